/* SPDX-License-Identifier: Apache-2.0 */
/* route: the state that finds a node for the current leg. */
#include "router/answer/answer/keepalive.h"
#include "router/answer/answer/reply.h"
#include "router/answer/answer/resume.h"
#include "router/answer/plan/away.h"
#include "router/answer/plan/handoff.h"
#include "router/answer/plan/legs.h"
#include "router/answer/plan/place.h"
#include "router/answer/plan/queue.h"
#include "router/answer/plan/states.h"
#include "router/answer/quote/quote.h"
#include "router/answer/selection/selection.h"
#include "router/request/account/explain.h"
#include "router/request/cascade/cascade.h"
#include "router/request/hooks/hooks.h"
#include "router/request/tokens/tokens.h"
#include "router/shared/worker/breaker.h"

#define RETRY_AFTER  2 /* seconds */
#define AWAIT_POLL   (50 * CGN_MSEC)
#define BACKOFF_MOST (10 * CGN_SEC)

static const struct gw_refusal no_node = {503, "server_error", "no_node", .reason = "no_node",
	.retry_after = RETRY_AFTER};

static enum gw_step node_missing(struct gw_req *r, enum route_verdict verdict)
{
	struct quota_told told;
	gw_queue_end(r);
	if (verdict == ROUTE_FULL && !r->answer.head_sent && gw_place_lacks(r, &told))
		return gw_place_refuse(r, &told, 1);
	if (verdict == ROUTE_FULL)
		return gw_plan_fail(r,
			&(struct gw_refusal){503, "server_error", "overloaded", .reason = "concurrency",
				.retry_after = 1},
			"every node that serves %.*s has as many requests as it may have",
			CGN_STR_ARG(r->prompt.model));
	if (r->client.pin.n > 0 && !r->answer.head_sent)
		return gw_plan_fail(r, &no_node,
			"the node of X-Cgn-Node is not known, not ready, or does not serve %.*s",
			CGN_STR_ARG(r->prompt.model));
	return gw_plan_fail(r, &no_node, "no node that serves %.*s is ready%s", CGN_STR_ARG(r->prompt.model),
		plan_attempts(&r->plan.legs) > 0 ? " beside those that failed" : "");
}

/* The engines take only requests that another engine computes the prompt of. */
static enum gw_step pair_missing(struct gw_req *r)
{
	bool embeds = r->client.route->scope == AUTH_EMBED; /* Never handed over */
	if (embeds || (r->plan.disagg != NULL && strcmp(r->plan.disagg, "unsupported") == 0))
		return gw_plan_fail(r, &(struct gw_refusal){501, "not_supported_error", "not_supported"},
			"the engines of %.*s answer only in pairs, and hand over no requests for %s%.*s",
			CGN_STR_ARG(r->prompt.model),
			r->prompt.several ? "several answers (n), here for " : "",
			CGN_STR_ARG(r->client.target));
	return gw_plan_fail(r, &no_node,
		"the engines of %.*s answer only in pairs, and no prefill node with the same kind and terms of hand-off is ready or has room",
		CGN_STR_ARG(r->prompt.model));
}

static const char *verdict_reason(enum route_verdict verdict)
{
	return verdict == ROUTE_NONE ? "no_node" : "full";
}

/* A smaller model is asked only where it answers now. */
static enum gw_step trial_skip(struct gw_req *r, const char *why)
{
	gw_queue_end(r);
	gw_cascade_skip(r, why);
	return STEP_AGAIN;
}

static enum gw_step select_book(struct gw_req *r, const struct chooser_ask *ask,
	struct chooser_pick_result *p)
{
	enum gw_step next = gw_select_book(r, ask, p);
	gw_queue_end(r);
	if (r->answer.refused)
		gw_queue_room(r->w);
	return next;
}

/* Give back what pick_open took. */
static void pick_return(struct gw_req *r, struct chooser_pick_result *p, const struct view_node *node,
	enum breaker_gate gate)
{
	chooser_unclaim(r->w->chooser, p);
	gw_breaker_unclaim(r->w, node->slot, node->id, gate);
}

static enum gw_step leg_send(struct gw_req *r, const struct chooser_ask *ask, struct chooser_pick_result *p,
	enum breaker_gate gate, cgn_nsec began)
{
	const struct view_node *node = view_node_at(r->w->view, p->cands[p->index].slot);
	CGN_MUST(node != NULL);
	if (plan_leg(&r->plan.legs)->role == LEG_WHOLE && !p->cands[p->index].alone &&
		(r->client.pin.n == 0 || r->answer.head_sent)) {
		pick_return(r, p, node, gate);
		if (gw_cascade_is_held(r))
			return trial_skip(r, "pairs");
		return pair_missing(r);
	}
	if (r->selecting != NULL)
		return select_book(r, ask, p);
	if (plan_leg(&r->plan.legs)->edit == LEG_CONTINUES && !gw_resume_send(r, node)) {
		pick_return(r, p, node, gate);
		return gw_plan_fail(r,
			&(struct gw_refusal){503, "server_error", "no_memory", .retry_after = 1},
			"out of memory");
	}
	gw_leg_send(r, ask, p, gate, began);
	if (plan_leg(&r->plan.legs)->role == LEG_DECODE && gw_handoff_is_at_once(r))
		gw_beside_send(r);
	gw_goto(r, GW_DISPATCH);
	return STEP_AGAIN;
}

/* Pick a node, take a place there, and become its breaker's probe if it waits for one. BREAKER_SHUT after a pick: another request has
 * just become the probe, and the next pick does not offer the node; or every breaker is shut. */
static struct chooser_pick_result pick_open(struct gw_req *r, const struct chooser_ask *ask,
	enum breaker_gate *gate)
{
	struct chooser_pick_result p = {.verdict = ROUTE_NONE};
	for (unsigned i = 0; i < 3; i++) {
		p = chooser_pick(r->w->chooser, ask);
		if (p.verdict != ROUTE_PICKED)
			break;
		if (!chooser_claim(r->w->chooser, ask, &p))
			continue;         /* another worker took the last place: the next pick sees it */
		if (r->selecting != NULL) /* no probe: the outcome is not seen here */
			break;
		*gate = gw_breaker_claim(r->w, view_node_at(r->w->view, p.cands[p.index].slot));
		if (*gate != BREAKER_SHUT)
			break;
		chooser_unclaim(r->w->chooser, &p);
	}
	return p;
}

/* Record once that no node had room: a decision too, and the last one if the request is never sent. */
static void explain_wait(struct gw_req *r, const struct chooser_ask *ask, const struct chooser_pick_result *p)
{
	if (p->verdict != ROUTE_PICKED && r->plan.explain_number == 0)
		gw_explain_pick(r, ask, p, 0);
}

/* Decide before anything is claimed for the request: must it wait behind others, or refuse what can't be met? Then
 * the request has left GW_ROUTE. */
static bool is_held_up(struct gw_req *r, const struct chooser_ask *ask)
{
	struct chooser_pick_result p = chooser_pick(r->w->chooser, ask);
	bool waits = gw_queue_must_wait(r, p.verdict);
	/* Where nodes that answer are full, a prefill node may answer, unless others wait for the same. */
	if (waits && p.verdict == ROUTE_FULL && gw_prefill_answers(r, ask))
		waits = gw_queue_must_wait(r, ROUTE_PICKED);
	gw_queue_predict(r, &p);
	if (waits)
		explain_wait(r, ask, &p);
	if (waits && gw_queue_refuse_power(r))
		return true;
	if (waits)
		gw_quote_note(r, ask, &p, true);
	gw_quote_promise(r, ask, &p, waits);
	gw_prefill_predict(r, ask);
	if (waits)
		gw_queue_enter(r, p.verdict);
	return waits || gw_queue_refuse_load(r, &p) ||
		(p.verdict == ROUTE_PICKED && gw_queue_refuse_unmeetable(r));
}

/* Return the pause before the next leg: doubled each time, with jitter against steps in unison. */
static cgn_nsec backoff_delay(struct gw_req *r)
{
	cgn_nsec d = r->w->rules->retry.backoff;
	for (uint32_t i = 2; i < plan_attempts(&r->plan.legs) && d < BACKOFF_MOST; i++)
		d *= 2;
	return (cgn_nsec)((double)(d < BACKOFF_MOST ? d : BACKOFF_MOST) * (0.5 + gw_random(r->w)));
}

static void budget_add(struct gw_req *r)
{
	if (!r->plan.budgeted)
		retry_budget_add(&r->w->budget, r->w->rules->retry.budget);
	r->plan.budgeted = true;
}

/* Quote the request unless a smaller model is asked first, whose answer may be dropped. */
static void quote_note(struct gw_req *r, const struct chooser_ask *ask, const struct chooser_pick_result *p,
	bool waits)
{
	if (!gw_cascade_is_held(r))
		gw_quote_note(r, ask, p, waits);
}

/* Pick a node for the current leg and send it; else wait, or fail. */
static enum gw_step leg_place(struct gw_req *r, struct chooser_ask *ask, cgn_nsec began)
{
	enum breaker_gate gate = BREAKER_PASS;
	struct chooser_pick_result p = pick_open(r, ask, &gate);
	if (p.verdict == ROUTE_PICKED && !gw_place_take(r, &p)) {
		pick_return(r, &p, view_node_at(r->w->view, p.cands[p.index].slot), gate);
		p.verdict = ROUTE_FULL;
	}
	if (p.verdict == ROUTE_PICKED) {
		quote_note(r, ask, &p, false);
		return leg_send(r, ask, &p, gate, began);
	}
	if (gw_cascade_is_held(r))
		return trial_skip(r, verdict_reason(p.verdict));
	if (gw_queue_must_wait(r, p.verdict)) {
		quote_note(r, ask, &p, true);
		gw_queue_predict(r, &p);
		explain_wait(r, ask, &p);
		if (gw_queue_refuse_power(r))
			return STEP_AGAIN;
		gw_prefill_undecide(r);
		gw_queue_enter(r, p.verdict);
		return STEP_AGAIN;
	}
	gw_explain_pick(r, ask, &p, cgn_since(cgn_clock_now(), began));
	return node_missing(r, p.verdict);
}

/* Two nodes may share the request: quote it before they are chosen. */
static void pair_quote(struct gw_req *r, const struct chooser_ask *ask)
{
	if (!r->w->rules->route.disagg.enabled || !r->w->rules->quote.on || r->plan.quoted != NULL ||
		r->selecting != NULL)
		return;
	struct chooser_pick_result p = chooser_pick(r->w->chooser, ask);
	gw_queue_predict(r, &p);
	gw_prefill_predict(r, ask);
	p = chooser_pick(r->w->chooser, ask);
	if (p.verdict == ROUTE_PICKED)
		quote_note(r, ask, &p, false);
}

static enum gw_step quote_reply(struct gw_req *r)
{
	struct chooser_ask ask = gw_choose_ask(r, plan_leg(&r->plan.legs));
	pair_quote(r, &ask);
	struct chooser_pick_result p = chooser_pick(r->w->chooser, &ask);
	return gw_quote_reply(r, &ask, &p, gw_queue_must_wait(r, p.verdict));
}

static enum gw_step select_reply(struct gw_req *r)
{
	struct chooser_ask ask = gw_choose_ask(r, plan_leg(&r->plan.legs));
	struct chooser_pick_result p = chooser_pick(r->w->chooser, &ask);
	return gw_select_reply(r, &ask, &p);
}

enum gw_step gw_route(struct gw_req *r)
{
	cgn_nsec began = cgn_clock_now();
	if (!r->prompt.parsed && r->prompt.awaited.p == NULL)
		gw_body_parse(r);
	else if (!r->prompt.parsed && !gw_body_awaits(r))
		gw_body_go_on(r);
	if (r->state != GW_ROUTE)
		return STEP_AGAIN; /* refused, or read on the pool */
	if (!r->prompt.parsed && r->prompt.awaited.p != NULL)
		return gw_park(r, WAIT_BACKOFF, AWAIT_POLL);
	if (gw_hook_is_due(r)) {
		gw_goto(r, GW_HOOK);
		return STEP_AGAIN;
	}
	if (r->prompt.uncut) {
		r->prompt.uncut = false;
		gw_tokens_start(r, gw_rules_model(r->w->rules, r->prompt.model));
		return STEP_AGAIN; /* the tokens may be made elsewhere */
	}
	if (!r->plan.limited) {
		gw_goto(r, GW_LIMIT);
		return STEP_AGAIN;
	}
	if (r->client.route->kind == GW_COUNT && gw_reply_count(r))
		return STEP_AGAIN;
	if (r->client.quotes)
		return quote_reply(r);
	if (r->selecting != NULL && gw_select_refuses(r))
		return STEP_AGAIN;
	if (gw_select_only_picks(r))
		return select_reply(r);
	if (plan_attempts(&r->plan.legs) >= 2 && !r->plan.backed_off && r->w->rules->retry.backoff > 0) {
		r->plan.backed_off = true;
		return gw_park(r, WAIT_BACKOFF, backoff_delay(r));
	}
	budget_add(r);
	gw_keepalive_begin(r);
	if (gw_away_send(r, began))
		return STEP_AGAIN;
	gw_handoff_settle(r);
	struct chooser_ask ask = gw_choose_ask(r, plan_leg(&r->plan.legs));
	if (gw_cascade_is_held(r)) {
		const char *distrust = gw_cascade_distrust(r);
		if (gw_cascade_is_barred(r))
			return trial_skip(r, "engine");
		enum route_verdict v = chooser_pick(r->w->chooser, &ask).verdict;
		if (gw_queue_must_wait(r, v))
			return trial_skip(r, verdict_reason(v));
		if (distrust != NULL)
			return trial_skip(r, distrust);
		if (gw_cascade_is_hopeless(r))
			return trial_skip(r, "pregate");
	} else if (gw_queue_concerns(r) && is_held_up(r, &ask)) {
		return STEP_AGAIN;
	}
	pair_quote(r, &ask);
	if (r->selecting == NULL && gw_prefill_begin(r, &ask))
		return STEP_AGAIN;
	if (plan_leg(&r->plan.legs)->target.continues || plan_leg(&r->plan.legs)->role == LEG_DECODE)
		ask = gw_choose_ask(r, plan_leg(&r->plan.legs));
	return leg_place(r, &ask, began);
}
