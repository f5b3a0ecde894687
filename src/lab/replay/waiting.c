/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "lab/replay/replay_priv.h"

#define BUDGET_WAIT (100 * CGN_MSEC)

struct waiter {
	struct admission_ticket ticket;
	struct cgn_link link; /* in replay.decided, once the verdict is given */
	struct replay_call call;
	uint64_t tenant;
	struct replay_quoted quoted;
};

static cgn_nsec request_budget(const struct replay *r, const struct trace_request *q)
{
	return q->deadline_ms > 0 ? q->deadline_ms * CGN_MSEC : r->cfg->ttft_slo;
}

static uint32_t tenant_weight(const struct replay *r, uint64_t tenant)
{
	for (size_t i = 0; i < r->cfg->n_tenants; i++)
		if (r->cfg->tenants[i].name == tenant)
			return r->cfg->tenants[i].weight;
	return 1;
}

static struct admission_forecast request_forecast(struct replay *r, const struct trace_request *q)
{
	const struct chooser_ask ask = replay_ask(r, q);
	const struct chooser_pick_result pick = chooser_pick(r->chooser, &ask);
	return admission_forecast_of(&pick, r->cluster->stats, q->input);
}

bool waiting_misses_deadline(struct replay *r, const struct trace_request *q)
{
	const struct admission_budget budget = {.total = request_budget(r, q), .firm = q->deadline_ms > 0};
	unsigned retry_after;
	if (budget.total == 0 || admission_waiting(r->admission) > 0)
		return false;
	const struct admission_forecast f = request_forecast(r, q);
	return admission_misses_budget(&f, &budget, &retry_after);
}

static void on_verdict(void *user, struct admission_ticket *t)
{
	struct replay *r = user;
	cgn_list_push(&r->decided, &CGN_CONTAINER(t, struct waiter, ticket)->link);
}

static void on_change(void *user, const char *model, int by, cgn_nsec wait)
{
	struct replay *r = user;
	(void)model;
	(void)by;
	r->wait = wait;
}

static const struct admission_ops waiting_ops = {.on_verdict = on_verdict, .on_change = on_change};

void waiting_open(struct replay *r)
{
	const struct admission_rules rules = {.policy = r->cfg->queue,
		.max_queue = r->cfg->max_waiting,
		.max_inflight = r->cfg->rules->max_inflight,
		.prefill_answers = pools_exist(r)};
	r->admission = admission_new(&rules, r->cluster->stats, &waiting_ops, r, 0);
	admission_view_set(r->admission, r->view, 0);
}

static void waiter_decided(struct replay *r, struct waiter *w)
{
	struct admission_ticket *t = &w->ticket;
	uint16_t slot = t->slot;
	enum replay_sent sent =
		t->verdict == ADMISSION_ADMITTED ? replay_send(r, &w->call, &w->quoted) : REPLAY_SENT;
	if (sent == REPLAY_FULL || sent == REPLAY_OVER_BUDGET) {
		r->budget_wait = sent == REPLAY_OVER_BUDGET ? r->now + BUDGET_WAIT : 0;
		t->bounced = true;
		admission_enter(r->admission, t, r->now);
		return;
	}
	bool admitted = t->verdict == ADMISSION_ADMITTED;
	r->result->refused_power += sent == REPLAY_NEVER;
	r->result->refused_late += t->verdict == ADMISSION_UNMEETABLE;
	r->result->refused_full += !admitted && t->verdict != ADMISSION_UNMEETABLE;
	free(w);
	if (admitted)
		admission_settle(r->admission, slot, r->now);
}

static void waiting_decide(struct replay *r)
{
	struct cgn_link *l;
	while ((l = cgn_list_first(&r->decided)) != NULL) {
		cgn_list_drop(l);
		waiter_decided(r, CGN_CONTAINER(l, struct waiter, link));
	}
}

void waiting_add(struct replay *r, const struct replay_call *c)
{
	const struct trace_request *q = c->request;
	const cgn_nsec budget = request_budget(r, q);
	struct admission_forecast f = {.tokens = q->input};
	struct waiter *w = calloc(1, sizeof *w);
	if (w == NULL) {
		r->no_memory = true;
		return;
	}
	/* fcfs for one tenant needs no forecast */
	if (r->cfg->queue != QUEUE_FCFS || budget > 0 || q->tenant != 0)
		f = request_forecast(r, q);
	if (r->quotes != NULL) {
		const struct chooser_ask ask = replay_ask(r, q);
		const struct chooser_pick_result pick = chooser_pick(r->chooser, &ask);
		quotes_make(r, &ask, &pick, true, &w->quoted);
	}
	w->call = *c;
	w->tenant = q->tenant;
	w->ticket = (struct admission_ticket){.model = r->model->name,
		.ahead = cgn_since(f.now, f.idle),
		.measured = f.measured,
		.item = {.tenant = {(const char *)&w->tenant, sizeof w->tenant},
			.weight = tenant_weight(r, q->tenant),
			.priority = q->has_priority ? q->priority : QUEUE_NORMAL,
			.new_tokens = f.tokens,
			.answer_tokens = q->output,
			.arrived = r->now,
			.deadline = budget > 0 ? r->now + budget : 0,
			.need = f.measured ? f.idle : 0,
			.firm = q->deadline_ms > 0}};
	admission_enter(r->admission, &w->ticket, r->now);
	r->result->waited += w->ticket.queue != NULL || w->ticket.verdict == ADMISSION_ADMITTED;
	waiting_decide(r);
}

void waiting_serve(struct replay *r)
{
	if (r->now <
		r->budget_wait) /* A budget has room again when a prompt is computed, and that a second ago. */
		return;
	admission_serve(r->admission, r->now);
	waiting_decide(r);
	/* While nothing is in flight, requests that still cannot be sent never can be, unless a replica comes for them. */
	bool never = r->inflight == 0 && !r->cfg->scales && r->now >= r->budget_wait;
	for (struct admission_ticket *t; never && (t = admission_pull(r->admission)) != NULL;) {
		r->result->refused_full++;
		free(CGN_CONTAINER(t, struct waiter, ticket));
	}
}

void waiting_close(struct replay *r)
{
	if (r->admission == NULL)
		return;
	cgn_list_each_safe (l, &r->decided)
		free(CGN_CONTAINER(l, struct waiter, link));
	for (struct admission_ticket *t; (t = admission_pull(r->admission)) != NULL;)
		free(CGN_CONTAINER(t, struct waiter, ticket));
	admission_free(&r->admission);
}
