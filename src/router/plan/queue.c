/* SPDX-License-Identifier: Apache-2.0 */
/* queue: the worker's side of waiting: who has to, what the ticket says of the request, and what comes of its
 * verdict. */
#include <stdlib.h>

#include "router/admission/admission.h"

#define BAD_REQUEST   "invalid_request_error"
#define MAX_DEADLINE  3600000U /* milliseconds */
#define ANSWER_TOKENS 256      /* that are expected of a model that has answered nothing yet */

static enum admission_role role_of(const struct gw_req *r)
{
	return r->route->scope == AUTH_EMBED ? ADMISSION_PROMPT_ONLY
					     : ADMISSION_GENERATION; /* as the chooser has it */
}

/* ---- what the client asks for ---- */

static bool priority_read(struct cgn_str s, unsigned *out)
{
	static const struct {
		const char *text;
		unsigned value;
	} names[] = {{"high", QUEUE_HIGH}, {"normal", QUEUE_NORMAL}, {"low", QUEUE_LOW}};
	if (s.n == 1 && s.p[0] >= '0' && s.p[0] <= '9') {
		*out = (unsigned)(s.p[0] - '0');
		return true;
	}
	for (size_t i = 0; i < CGN_COUNT(names); i++)
		if (cgn_str_eq_nocase(s, cgn_str_of(names[i].text))) {
			*out = names[i].value;
			return true;
		}
	return false;
}

/* Nobody is told apart without keys, and so nobody is held below another. */
static unsigned priority_most(const struct gw_req *r)
{
	const struct gw_tenant *t = gw_rules_tenant(r->w->rules, r->tenant);
	return r->w->rules->keys == NULL && t->name.n == 0 ? QUEUE_PRIORITIES - 1 : t->max_priority;
}

enum gw_step gw_queue_check(struct gw_req *r)
{
	uint64_t ms = 0;
	unsigned most = priority_most(r);
	r->priority = QUEUE_NORMAL;
	if (r->priority_text.n > 0 && !priority_read(r->priority_text, &r->priority))
		return gw_refuse(r,
			&(struct gw_refusal){400, BAD_REQUEST, "invalid_header", .param = "X-Cgn-Priority",
				.reason = "invalid"},
			"X-Cgn-Priority is high, normal, low or a digit, not %.*s",
			(int)(r->priority_text.n < 40 ? r->priority_text.n : 40), r->priority_text.p);
	r->priority = r->priority < most ? r->priority : most;
	if (r->deadline_text.n > 0 && (!cgn_str_u64(r->deadline_text, &ms) || ms == 0 || ms > MAX_DEADLINE))
		return gw_refuse(r,
			&(struct gw_refusal){400, BAD_REQUEST, "invalid_header", .param = "X-Cgn-Deadline-Ms",
				.reason = "invalid"},
			"X-Cgn-Deadline-Ms is a number of milliseconds from 1 to %u, not %.*s", MAX_DEADLINE,
			(int)(r->deadline_text.n < 40 ? r->deadline_text.n : 40), r->deadline_text.p);
	r->deadline = ms * CGN_MSEC;
	return STEP_AGAIN;
}

/* From arrival to first byte; 0: whenever. */
static cgn_nsec objective_of(const struct gw_req *r)
{
	return r->deadline != 0 ? r->deadline : r->w->rules->ttft_slo;
}

/* ---- the ticket ---- */

static struct gw_admission *admission_of(const struct gw_req *r)
{
	return r->w->shared->admission;
}

static void admission_unref(struct gw_admission *g)
{
	if (atomic_fetch_sub_explicit(&g->refs, 1, memory_order_acq_rel) != 1)
		return;
	g->tag = 0;
	free(g);
}

void gw_admission_unref(struct gw_admission **take)
{
	struct gw_admission *g = *take;
	*take = NULL;
	if (g != NULL)
		admission_unref(g);
}

void gw_ticket_ref(struct gw_ticket *t)
{
	atomic_fetch_add_explicit(&t->refs, 1, memory_order_relaxed);
}

void gw_ticket_unref(struct gw_ticket *t)
{
	CGN_LIVE(t, GW_TICKET_TAG);
	if (atomic_fetch_sub_explicit(&t->refs, 1, memory_order_acq_rel) != 1)
		return;
	admission_unref(t->admission);
	t->tag = 0;
	free(t);
}

static size_t cell_of(const struct gw_req *r)
{
	return admission_bucket(r->model);
}

static void count(struct gw_ticket *t, size_t cell, bool more)
{
	if (more) {
		atomic_fetch_add(&t->admission->waiting, 1);
		atomic_fetch_add(&t->admission->waiting_of[cell], 1);
	} else {
		atomic_fetch_sub(&t->admission->waiting, 1);
		atomic_fetch_sub(&t->admission->waiting_of[cell], 1);
	}
}

static struct cgn_str keep(char **at, struct cgn_str s)
{
	struct cgn_str copy = {*at, s.n};
	if (s.n > 0)
		memcpy(*at, s.p, s.n);
	(*at)[s.n] = '\0';
	*at += s.n + 1;
	return copy;
}

static struct gw_ticket *ticket_new(struct gw_req *r)
{
	struct gw_ticket *t = calloc(1, sizeof *t + r->model.n + r->tenant.n + 2);
	if (t == NULL)
		return NULL;
	char *names = (char *)(t + 1);
	t->tag = GW_TICKET_TAG;
	atomic_init(&t->refs, 1);
	t->admission = admission_of(r);
	atomic_fetch_add_explicit(&t->admission->refs, 1, memory_order_relaxed);
	t->w = r->w;
	t->r = r;
	t->policy.model = keep(&names, r->model);
	t->policy.item.tenant = keep(&names, r->tenant);
	t->policy.role = role_of(r);
	return t;
}

static uint32_t answer_expected(const struct gw_req *r, enum admission_role role)
{
	uint32_t mean = gw_series_answer(r->w, r->model);
	if (role == ADMISSION_PROMPT_ONLY)
		return 0;
	mean = mean > 0 ? mean : ANSWER_TOKENS;
	return r->answer_tokens > 0 && r->answer_tokens < mean ? r->answer_tokens : mean;
}

static void ticket_fill(struct gw_ticket *t, const struct gw_req *r)
{
	const cgn_nsec budget = objective_of(r);
	t->policy.measured = r->ttft.measured;
	t->policy.ahead = r->ttft.now - r->ttft.idle;
	t->policy.item = (struct queue_item){.tenant = t->policy.item.tenant,
		.weight = gw_rules_tenant(r->w->rules, r->tenant)->weight,
		.priority = r->priority,
		.new_tokens = r->ttft.tokens,
		.answer_tokens = answer_expected(r, t->policy.role),
		.arrived = r->started,
		.deadline = budget != 0 ? r->started + budget : 0,
		.need = r->ttft.measured ? r->ttft.idle : 0,
		.firm = r->deadline != 0};
}

static void ticket_post(struct gw_ticket *t, const struct gw_req *r)
{
	t->seen = ADMISSION_WAITS;
	t->policy.n_excluded = r->tries;
	memcpy(t->policy.excluded, r->excluded, r->tries * sizeof *r->excluded);
	gw_ticket_ref(t);
	cgn_loop_post(t->admission->loop, &t->ask, gw_admission_on_enter);
}

/* Its place was not needed, or is booked by now. */
static void settle(struct gw_ticket *t)
{
	cgn_loop_post(t->admission->loop, &t->settle, gw_admission_on_settle);
}

void gw_ticket_on_answer(struct cgn_loop *l, struct cgn_post *p)
{
	(void)l;
	struct gw_ticket *t = CGN_CONTAINER(p, struct gw_ticket, answer);
	CGN_LIVE(t, GW_TICKET_TAG);
	if (t->r == NULL && t->policy.verdict == ADMISSION_ADMITTED) {
		settle(t); /* the post's reference goes along */
		return;
	}
	struct gw_req *r = t->r;
	t->seen = t->policy.verdict;
	gw_ticket_unref(t);
	if (r != NULL)
		gw_wake(r);
}

void gw_queue_end(struct gw_req *r)
{
	struct gw_ticket *t = r->ticket;
	if (t == NULL)
		return;
	CGN_LIVE(t, GW_TICKET_TAG);
	r->ticket = NULL;
	r->queued += cgn_loop_now(r->w->loop) - r->queued_at;
	t->r = NULL;
	count(t, cell_of(r), false);
	if (t->seen == ADMISSION_ADMITTED)
		settle(t);
	else if (t->seen == ADMISSION_WAITS)
		cgn_loop_post(t->admission->loop, &t->leave, gw_admission_on_leave);
	else
		gw_ticket_unref(t);
}

void gw_queue_room(struct gw_worker *w)
{
	struct gw_admission *g = w->shared->admission;
	if (g == NULL || atomic_load(&g->waiting) == 0 || atomic_exchange(&g->room_posted, true))
		return;
	atomic_fetch_add_explicit(&g->refs, 1, memory_order_relaxed);
	cgn_loop_post(g->loop, &g->room, gw_admission_on_room);
}

/* ---- who waits ---- */

void gw_queue_predict(struct gw_req *r, const struct chooser_pick_result *p)
{
	r->ttft = admission_forecast_of(p, r->w->shared->choice.cells, r->prompt_tokens);
}

static bool somebody_waits(const struct gw_req *r)
{
	return atomic_load_explicit(&admission_of(r)->waiting_of[cell_of(r)], memory_order_relaxed) > 0;
}

bool gw_queue_looks(const struct gw_req *r)
{
	return admission_of(r) != NULL && r->tries == 0 &&
		(objective_of(r) != 0 || (r->ticket == NULL && somebody_waits(r)));
}

static bool may_wait(const struct gw_req *r)
{
	return admission_of(r) != NULL && r->w->rules->max_queue > 0 && r->pin.n == 0;
}

bool gw_queue_must(const struct gw_req *r, enum route_verdict verdict)
{
	const struct admission_facts facts = {.verdict = verdict,
		.model = view_model_find(r->w->view, r->model),
		.tried = r->tries > 0,
		.unreachable = !r->head_sent && r->t.why.code == CGN_UNAVAILABLE,
		.waited = r->ticket != NULL,
		.others_wait = admission_of(r) != NULL && somebody_waits(r)};
	return may_wait(r) && admission_must_wait(&facts);
}

static enum gw_step unmeetable(struct gw_req *r, unsigned retry_after, const char *why)
{
	struct gw_refusal how = {503, "server_error", "slo_unmeetable", .reason = "slo_unmeetable",
		.retry_after = retry_after};
	return gw_refuse(r, &how, "no node can begin to answer within %llu ms (%s): %s",
		(unsigned long long)(objective_of(r) / CGN_MSEC),
		r->deadline != 0 ? "X-Cgn-Deadline-Ms" : "router.admission.ttft_slo", why);
}

bool gw_queue_refuses(struct gw_req *r)
{
	const struct admission_budget budget = {.total = objective_of(r),
		.spent = cgn_loop_now(r->w->loop) - r->started,
		.firm = r->deadline != 0,
		.waited = r->ticket != NULL};
	unsigned retry_after = 0;
	if (admission_of(r) == NULL || r->tries > 0 ||
		!admission_misses_budget(&r->ttft, &budget, &retry_after))
		return false;
	gw_queue_end(r);
	(void)unmeetable(r, retry_after,
		retry_after > 0 ? "there is too much before it" : "not even an idle one");
	return true;
}

/* ---- waiting ---- */

static enum gw_step timed_out(struct gw_req *r)
{
	cgn_nsec ms = atomic_load_explicit(&admission_of(r)->wait_ms[cell_of(r)], memory_order_relaxed);
	bool late = r->deadline != 0 && cgn_loop_now(r->w->loop) >= r->started + r->deadline;
	gw_queue_end(r);
	gw_limit_settle(r);
	if (late)
		return unmeetable(r, admission_retry_after(ms * CGN_MSEC), "it is over");
	struct gw_refusal how = {503, "server_error", "queue_timeout", .reason = "queue_timeout",
		.retry_after = admission_retry_after(ms * CGN_MSEC)};
	return gw_refuse(r, &how,
		"no node that serves %.*s had room in time (router.admission.queue_timeout)",
		CGN_STR_ARG(r->model));
}

static enum gw_step turned_away(struct gw_req *r, enum admission_verdict verdict, unsigned retry_after)
{
	struct gw_refusal full = {503, "server_error", "queue_full", .reason = "queue_full",
				  .retry_after = retry_after},
			  gone = {503, "server_error", "no_node", .reason = "no_node",
				  .retry_after = retry_after},
			  leaving = {503, "server_error", "draining", .reason = "draining",
				  .retry_after = retry_after};
	gw_queue_end(r);
	/* it cost nothing, and the next request may come as soon as this one is answered */
	gw_limit_settle(r);
	if (verdict == ADMISSION_UNMEETABLE)
		return unmeetable(r, retry_after,
			retry_after > 0 ? "there is too much before it" : "not even an idle one");
	if (verdict == ADMISSION_NO_NODE)
		return gw_refuse(r, &gone, "no node that serves %.*s is ready", CGN_STR_ARG(r->model));
	if (verdict == ADMISSION_DRAINING)
		return gw_refuse(r, &leaving, "the router is going: ask another, or in a moment");
	return gw_refuse(r, &full,
		"every node that serves %.*s is busy, and so many wait already (router.admission.max_queue)",
		CGN_STR_ARG(r->model));
}

/* First, or again with what it was let in for gone. |forget_failed|: there is no other node than those that
 * failed it. */
static bool enter(struct gw_req *r, bool forget_failed)
{
	struct gw_ticket *t = r->ticket;
	if (t == NULL) {
		t = r->ticket = ticket_new(r);
		if (t == NULL)
			return false;
		r->queued_at = cgn_loop_now(r->w->loop);
		ticket_fill(t, r);
		count(t, cell_of(r), true);
	} else
		t->policy.bounced = true;
	t->policy.pause = r->tries > 0 && forget_failed;
	if (t->policy.pause)
		for (uint32_t i = 0; i < r->tries; i++)
			r->excluded[i] = UINT16_MAX; /* no node's slot */
	ticket_post(t, r);
	return true;
}

void gw_queue_enter(struct gw_req *r, enum route_verdict verdict)
{
	gw_goto(r, GW_QUEUE);
	if (!enter(r, verdict == ROUTE_NONE))
		(void)gw_refuse(r, &(struct gw_refusal){503, "server_error", "no_memory", .retry_after = 1},
			"out of memory");
}

enum gw_step gw_queue(struct gw_req *r)
{
	struct gw_ticket *t = r->ticket;
	cgn_nsec now = cgn_loop_now(r->w->loop), until = r->queued_at + r->w->rules->queue_timeout;
	CGN_MUST(t != NULL);
	if (t->seen == ADMISSION_ADMITTED) {
		cgn_timer_cancel(&r->timer);
		gw_goto(r, GW_ROUTE);
		return STEP_AGAIN;
	}
	if (t->seen != ADMISSION_WAITS)
		return turned_away(r, t->seen, t->policy.retry_after);
	if (r->deadline != 0 && r->started + r->deadline < until)
		until = r->started + r->deadline;
	if (now >= until)
		return timed_out(r);
	return gw_park(r, WAIT_QUEUE, until - now);
}
