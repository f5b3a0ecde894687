/* SPDX-License-Identifier: Apache-2.0 */
/* queue: the worker's side of admission: which requests wait, their tickets, and what follows a verdict. */
#include <stdlib.h>

#include "base/log/log.h"

#include "router/answer/answer/resume.h"
#include "router/answer/plan/legs.h"
#include "router/answer/plan/place.h"
#include "router/answer/plan/queue.h"
#include "router/answer/plan/refused.h"
#include "router/answer/plan/states.h"
#include "router/request/account/account.h"
#include "router/request/account/sessions.h"
#include "router/request/admission/admission.h"
#include "router/request/limit/limit.h"

#define BAD_REQUEST   "invalid_request_error"
#define MAX_DEADLINE  3600000U /* milliseconds */
#define ANSWER_TOKENS 256      /* Expected tokens of an answer of a model that has not answered yet */

static enum admission_role role_of(const struct gw_req *r)
{
	/* the chooser has the same rule */
	return r->client.route->scope == AUTH_EMBED ? ADMISSION_PROMPT_ONLY : ADMISSION_GENERATION;
}

/* ---- priority and budget ---- */

/* Return the highest priority that the client may have. Without keys clients can't be told apart, so each may
 * have any. */
static unsigned priority_most(const struct gw_req *r)
{
	const struct gw_tenant *t = gw_rules_tenant(r->w->rules, r->identity.tenant);
	return !r->w->rules->auth.asks && t->name.n == 0 ? QUEUE_PRIORITIES - 1 : t->max_priority;
}

enum gw_step gw_queue_check(struct gw_req *r)
{
	uint64_t ms = 0;
	unsigned most = priority_most(r);
	r->client.priority = QUEUE_NORMAL;
	if (r->client.priority_text.n > 0 &&
		!queue_priority_read(r->client.priority_text, &r->client.priority))
		return gw_refuse(r,
			&(struct gw_refusal){400, BAD_REQUEST, "invalid_header", .param = "X-Cgn-Priority",
				.reason = "invalid"},
			"X-Cgn-Priority is high, normal, low or a digit, not %.*s",
			(int)(r->client.priority_text.n < 40 ? r->client.priority_text.n : 40),
			r->client.priority_text.p);
	r->client.priority = r->client.priority < most ? r->client.priority : most;
	if (r->client.budget_text.n > 0 &&
		(!cgn_str_u64(r->client.budget_text, &ms) || ms == 0 || ms > MAX_DEADLINE))
		return gw_refuse(r,
			&(struct gw_refusal){400, BAD_REQUEST, "invalid_header", .param = "X-Cgn-Deadline-Ms",
				.reason = "invalid"},
			"X-Cgn-Deadline-Ms is a number of milliseconds from 1 to %u, not %.*s", MAX_DEADLINE,
			(int)(r->client.budget_text.n < 40 ? r->client.budget_text.n : 40),
			r->client.budget_text.p);
	r->client.first_byte_budget = ms * CGN_MSEC;
	return STEP_AGAIN;
}

void gw_queue_hint(struct gw_req *r)
{
	const struct body_hints *h = &r->prompt.facts.hints;
	const int64_t most = priority_most(r), level = (int64_t)QUEUE_NORMAL + h->priority;
	if (h->has_priority && r->client.priority_text.n == 0)
		r->client.priority = level < 0 ? 0 : level < most ? (unsigned)level : (unsigned)most;
}

/* Return the time from arrival to first byte that is to be kept; 0: none, or the first byte was sent: the rest of an answer
 * that broke off waits. */
static cgn_nsec ttft_budget(const struct gw_req *r)
{
	if (r->answer.head_sent)
		return 0;
	return r->client.first_byte_budget != 0 ? r->client.first_byte_budget : r->w->rules->queue.ttft_slo;
}

/* ---- the ticket ---- */

static struct gw_admission *admission_of(const struct gw_req *r)
{
	return r->w->shared->admission;
}

static size_t bucket_of(const struct gw_req *r)
{
	return admission_bucket(r->prompt.model);
}

static void waiting_count(struct gw_ticket *t, size_t cell, bool more)
{
	if (more) {
		atomic_fetch_add(&t->admission->waiting, 1);
		atomic_fetch_add(&t->admission->waiting_of[cell], 1);
	} else {
		atomic_fetch_sub(&t->admission->waiting, 1);
		atomic_fetch_sub(&t->admission->waiting_of[cell], 1);
	}
}

static struct cgn_str name_copy(char **at, struct cgn_str s)
{
	struct cgn_str copy = {*at, s.n};
	if (s.n > 0)
		memcpy(*at, s.p, s.n);
	(*at)[s.n] = '\0';
	*at += s.n + 1;
	return copy;
}

static void on_verdict(struct cgn_loop *l, struct cgn_post *p);

static struct gw_ticket *ticket_new(struct gw_req *r)
{
	struct gw_ticket *t = cgn_zeroed(1,
		sizeof *t + r->prompt.model.n + gw_identity_label(&r->identity).n + 2, CGN_HERE);
	char *names = (char *)(t + 1);
	t->tag = GW_TICKET_TAG;
	atomic_init(&t->refs, 1);
	t->admission = admission_of(r);
	atomic_fetch_add_explicit(&t->admission->refs, 1, memory_order_relaxed);
	t->w = r->w;
	t->on_verdict = on_verdict;
	t->r = r;
	t->policy.model = name_copy(&names, r->prompt.model);
	t->policy.item.tenant = name_copy(&names, gw_identity_label(&r->identity));
	t->policy.role = role_of(r);
	return t;
}

static uint32_t answer_expected(const struct gw_req *r, enum admission_role role)
{
	uint32_t mean = gw_series_answer(r->w, r->prompt.model);
	if (role == ADMISSION_PROMPT_ONLY)
		return 0;
	mean = mean > 0 ? mean : ANSWER_TOKENS;
	/* A hint that is too low, which costs nothing, would give a tenant more than its turns. */
	mean = r->prompt.facts.hints.answer > mean ? r->prompt.facts.hints.answer : mean;
	return r->prompt.answer_limit > 0 && r->prompt.answer_limit < mean ? r->prompt.answer_limit : mean;
}

static void ticket_fill(struct gw_ticket *t, struct gw_req *r)
{
	const uint32_t answer = answer_expected(r, t->policy.role);
	const cgn_nsec budget = ttft_budget(r);
	t->policy.measured = r->plan.ttft.measured;
	t->policy.ahead = cgn_since(r->plan.ttft.now, r->plan.ttft.idle);
	t->policy.item = (struct queue_item){.tenant = t->policy.item.tenant,
		.weight = gw_rules_tenant(r->w->rules, r->identity.tenant)->weight,
		/* A client that reads an answer is kept waiting less than one that waits for its first byte. */
		.priority = r->answer.head_sent ? QUEUE_PRIORITIES - 1 : r->client.priority,
		.new_tokens = r->plan.ttft.tokens,
		.answer_tokens = answer,
		.arrived = r->client.started,
		.deadline = budget != 0 ? r->client.started + budget : 0,
		.need = r->plan.ttft.measured ? r->plan.ttft.idle : 0,
		.firm = budget != 0 && r->client.first_byte_budget != 0,
		.attained = gw_session_charge(r, r->plan.ttft.tokens + answer)};
}

/* Name the nodes that failed the request, or can't continue its answer. Of very many, some stay unnamed: a place that is
 * reserved there is given back. */
static void ticket_exclude(struct gw_ticket *t, struct gw_req *r)
{
	const struct plan_leg *leg = plan_leg(&r->plan.legs);
	uint16_t *out = t->policy.excluded;
	size_t n = 0;
	if (leg->target.resuming) {
		const uint16_t *v = gw_resume_excluded(r, &n);
		n = n < ADMISSION_MAX_EXCLUDED ? n : ADMISSION_MAX_EXCLUDED;
		if (n > 0)
			memcpy(out, v, n * sizeof *v);
	} else {
		n = plan_tried(&r->plan.legs, out);
	}
	t->policy.n_excluded = (uint32_t)gw_refused_add(r, leg, out, n, ADMISSION_MAX_EXCLUDED);
}

static void ticket_post(struct gw_ticket *t, struct gw_req *r)
{
	t->seen = ADMISSION_WAITS;
	t->has_place = r->plan.place != 0 || r->identity.own;
	ticket_exclude(t, r);
	gw_ticket_ref(t);
	cgn_loop_post(t->admission->loop, &t->ask, gw_admission_on_enter);
}

/* Tell admission that the place was not needed, or is booked by now. */
static void ticket_settle(struct gw_ticket *t)
{
	cgn_loop_post(t->admission->loop, &t->settle, gw_admission_on_settle);
}

static void on_verdict(struct cgn_loop *l, struct cgn_post *p)
{
	(void)l;
	struct gw_ticket *t = CGN_CONTAINER(p, struct gw_ticket, answer);
	CGN_LIVE(t, GW_TICKET_TAG);
	if (t->r == NULL && t->policy.verdict == ADMISSION_ADMITTED) {
		ticket_settle(t); /* the post's reference goes with the ticket */
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
	struct gw_ticket *t = r->plan.ticket;
	if (t == NULL)
		return;
	CGN_LIVE(t, GW_TICKET_TAG);
	r->plan.ticket = NULL;
	r->plan.queued += cgn_since(cgn_loop_now(r->w->loop), r->plan.queued_at);
	t->r = NULL;
	waiting_count(t, bucket_of(r), false);
	if (t->seen == ADMISSION_ADMITTED)
		ticket_settle(t);
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

/* ---- deciding to wait ---- */

void gw_queue_predict(struct gw_req *r, const struct chooser_pick_result *p)
{
	r->plan.ttft = admission_forecast_of(p, r->w->shared->choice.stats, r->prompt.tokens);
	r->plan.barred_w = p->verdict == ROUTE_FULL ? p->ask.barred_w : 0;
	r->plan.never_w = p->verdict == ROUTE_FULL ? p->ask.never_w : 0;
}

static bool others_wait(const struct gw_req *r)
{
	return atomic_load_explicit(&admission_of(r)->waiting_of[bucket_of(r)], memory_order_relaxed) > 0;
}

bool gw_queue_concerns(const struct gw_req *r)
{
	return admission_of(r) != NULL && plan_attempts(&r->plan.legs) == 0 &&
		(ttft_budget(r) != 0 || r->client.if_available || (r->plan.ticket == NULL && others_wait(r)));
}

static bool may_wait(const struct gw_req *r)
{
	/* A request of another cluster waits there, where its tenant's place in the queue is known. */
	bool pinned = r->client.pin.n > 0 && !r->answer.head_sent;
	return admission_of(r) != NULL && r->w->rules->queue.most > 0 && !pinned &&
		r->client.from.peer == NULL;
}

bool gw_queue_must_wait(const struct gw_req *r, enum route_verdict verdict)
{
	const struct admission_facts facts = {.verdict = verdict,
		.model = view_model_find(r->w->view, r->prompt.model),
		.tried = plan_attempts(&r->plan.legs) > 0,
		.unreachable = !r->answer.head_sent && r->attempt.call.why.code == CGN_UNAVAILABLE,
		.waited = r->plan.ticket != NULL,
		.others_wait = admission_of(r) != NULL && others_wait(r)};
	return may_wait(r) && admission_must_wait(&facts);
}

static enum gw_step budget_refuse(struct gw_req *r, unsigned retry_after, const char *why)
{
	struct gw_refusal how = {503, "server_error", "slo_unmeetable", .reason = "slo_unmeetable",
		.retry_after = retry_after};
	return gw_plan_fail(r, &how, "no node can begin to answer within %llu ms (%s): %s",
		(unsigned long long)(ttft_budget(r) / CGN_MSEC),
		r->client.first_byte_budget != 0 ? "X-Cgn-Deadline-Ms" : "router.admission.ttft_slo", why);
}

bool gw_queue_refuse_unmeetable(struct gw_req *r)
{
	const struct admission_budget budget = {.total = ttft_budget(r),
		.spent = cgn_since(cgn_loop_now(r->w->loop), r->client.started),
		.firm = r->client.first_byte_budget != 0,
		.waited = r->plan.ticket != NULL};
	unsigned retry_after = 0;
	if (admission_of(r) == NULL || plan_attempts(&r->plan.legs) > 0 ||
		!admission_misses_budget(&r->plan.ttft, &budget, &retry_after))
		return false;
	gw_queue_end(r);
	(void)budget_refuse(r, retry_after,
		retry_after > 0 ? "too many prompts are before it" : "not even an idle node could");
	return true;
}

/* ---- clients that do not wait ---- */

#define NO_NODE_RETRY_AFTER 2 /* seconds */

static void unavailable_refuse(struct gw_req *r, unsigned retry_after, const char *why)
{
	const struct gw_refusal how = {503, "server_error", "would_wait", .reason = "would_wait",
		.retry_after = retry_after};
	gw_limit_settle(r);
	(void)gw_plan_fail(r, &how, "the request would wait, and Prefer: if-available asks not to: %s", why);
}

bool gw_queue_refuse_load(struct gw_req *r, const struct chooser_pick_result *p)
{
	uint32_t ms = p->verdict == ROUTE_PICKED ? p->cands[p->index].load_ms : 0;
	if (!r->client.if_available || ms == 0)
		return false;
	unavailable_refuse(r, admission_retry_after(ms * CGN_MSEC), "the model has to be loaded first");
	return true;
}

static void queue_decline(struct gw_req *r, enum route_verdict verdict)
{
	cgn_nsec ms = atomic_load_explicit(&admission_of(r)->wait_ms[bucket_of(r)], memory_order_relaxed);
	unsigned seconds = admission_retry_after(ms * CGN_MSEC);
	bool none = verdict == ROUTE_NONE;
	gw_queue_end(r);
	unavailable_refuse(r, none && seconds < NO_NODE_RETRY_AFTER ? NO_NODE_RETRY_AFTER : seconds,
		none ? "no node that serves the model is ready"
		     : "every node that serves the model is busy, or others wait before it");
}

/* ---- waiting ---- */

/* Return when the client's time for the first byte is over; UINT64_MAX: never. */
static cgn_nsec first_byte_end(const struct gw_req *r)
{
	bool firm = r->client.first_byte_budget != 0 && !r->answer.head_sent;
	return firm ? r->client.started + r->client.first_byte_budget : UINT64_MAX;
}

/* Leave the queue without a node. A request that was not answered cost nothing, and the client may repeat it as soon as it
 * has the refusal. */
static void ticket_give_up(struct gw_req *r)
{
	gw_queue_end(r);
	if (!r->answer.head_sent)
		gw_limit_settle(r);
}

/* Refuse a request that the budget of power has no room for, and say so in the log. */
static enum gw_step power_refuse(struct gw_req *r, unsigned retry_after, const char *when, double watts)
{
	const double budget = r->w->rules->route.energy.budget_w;
	const struct gw_refusal how = {503, "server_error", "power_budget", .reason = "power_budget",
		.retry_after = retry_after};
	cgn_log_limited(WARN, "gateway.power_budget", F_STRN("model", r->prompt.model),
		F_F64("budget_w", budget), F_F64("watts", watts), F_STR("when", when));
	return gw_plan_fail(r, &how,
		"no node that serves %.*s had room in the budget of power (router.energy.budget, %.0f W less 3 %%): %s the nodes would draw %.0f W with the request",
		CGN_STR_ARG(r->prompt.model), budget, when, watts);
}

bool gw_queue_refuse_power(struct gw_req *r)
{
	if (!(r->plan.never_w > 0) || r->client.from.peer != NULL)
		return false;
	ticket_give_up(r);
	(void)power_refuse(r, 0, "even alone", r->plan.never_w);
	return true;
}

static enum gw_step queue_timed_out(struct gw_req *r)
{
	cgn_nsec ms = atomic_load_explicit(&admission_of(r)->wait_ms[bucket_of(r)], memory_order_relaxed);
	bool late = cgn_loop_now(r->w->loop) >= first_byte_end(r);
	ticket_give_up(r);
	if (late)
		return budget_refuse(r, admission_retry_after(ms * CGN_MSEC),
			r->plan.barred_w > 0 ? "the budget of power (router.energy.budget) had no room"
					     : "the time is over");
	if (r->plan.barred_w > 0)
		return power_refuse(r, admission_retry_after(ms * CGN_MSEC), "when it was last tried",
			r->plan.barred_w);
	struct quota_told told;
	if (!r->answer.head_sent && gw_place_lacks(r, &told))
		return gw_place_refuse(r, &told, admission_retry_after(ms * CGN_MSEC));
	struct gw_refusal how = {503, "server_error", "queue_timeout", .reason = "queue_timeout",
		.retry_after = admission_retry_after(ms * CGN_MSEC)};
	return gw_plan_fail(r, &how,
		"no node that serves %.*s had room in time (router.admission.queue_timeout)",
		CGN_STR_ARG(r->prompt.model));
}

static enum gw_step queue_refused(struct gw_req *r, enum admission_verdict verdict, unsigned retry_after)
{
	struct gw_refusal full = {503, "server_error", "queue_full", .reason = "queue_full",
				  .retry_after = retry_after},
			  gone = {503, "server_error", "no_node", .reason = "no_node",
				  .retry_after = retry_after},
			  leaving = {503, "server_error", "draining", .reason = "draining",
				  .retry_after = retry_after};
	ticket_give_up(r);
	if (verdict == ADMISSION_UNMEETABLE)
		return budget_refuse(r, retry_after,
			retry_after > 0 ? "too many prompts are before it" : "not even an idle node could");
	if (verdict == ADMISSION_NO_NODE)
		return gw_plan_fail(r, &gone, "no node that serves %.*s is ready",
			CGN_STR_ARG(r->prompt.model));
	if (verdict == ADMISSION_DRAINING)
		return gw_plan_fail(r, &leaving,
			"this router is shutting down: try another one, or again in a moment");
	struct quota_told told;
	if (!r->answer.head_sent && gw_place_lacks(r, &told))
		return gw_place_refuse(r, &told, retry_after);
	return gw_plan_fail(r, &full,
		"every node that serves %.*s is busy, and the queue is full (router.admission.max_queue)",
		CGN_STR_ARG(r->prompt.model));
}

/* Enter the queue, or return to it because the place that was reserved is gone. |forget_failed|: no other
 * nodes exist than those that failed the request. */
static void ticket_enter(struct gw_req *r, bool forget_failed)
{
	struct gw_ticket *t = r->plan.ticket;
	if (t == NULL) {
		t = r->plan.ticket = ticket_new(r);
		r->plan.queued_at = cgn_loop_now(r->w->loop);
		ticket_fill(t, r);
		waiting_count(t, bucket_of(r), true);
	} else
		t->policy.bounced = true;
	t->policy.pause = plan_attempts(&r->plan.legs) > 0 && forget_failed;
	if (t->policy.pause)
		plan_forgive(&r->plan.legs);
	ticket_post(t, r);
}

void gw_queue_enter(struct gw_req *r, enum route_verdict verdict)
{
	if (r->client.if_available && !r->answer.head_sent) {
		queue_decline(r, verdict);
		return;
	}
	gw_goto(r, GW_QUEUE);
	ticket_enter(r, verdict == ROUTE_NONE);
}

enum gw_step gw_queue(struct gw_req *r)
{
	struct gw_ticket *t = r->plan.ticket;
	cgn_nsec now = cgn_loop_now(r->w->loop), until = r->plan.queued_at + r->w->rules->queue.timeout;
	CGN_MUST(t != NULL);
	if (t->seen == ADMISSION_ADMITTED) {
		gw_place_admitted(r);
		cgn_timer_cancel(&r->timer);
		gw_goto(r, GW_ROUTE);
		return STEP_AGAIN;
	}
	if (t->seen != ADMISSION_WAITS)
		return queue_refused(r, t->seen, t->policy.retry_after);
	if (first_byte_end(r) < until)
		until = first_byte_end(r);
	if (now >= until)
		return queue_timed_out(r);
	return gw_park(r, WAIT_QUEUE, until - now);
}
