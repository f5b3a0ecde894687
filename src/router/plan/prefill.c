/* SPDX-License-Identifier: Apache-2.0 */
/* prefill: the leg of a node of role prefill, which computes the prompt and puts what it computed into its block
 * store. The node that answers fetches it from there; if the prefill leg fails, the answer leg computes
 * everything. */
#include "base/log/log.h"
#include "router/attempt/verdict.h"
#include "router/plan/legs.h"
#include "router/plan/states.h"
#include "router/worker/breaker.h"

static void outcome_count(struct gw_req *r, const char *outcome)
{
	r->plan.disagg = outcome;
	metric_add(METRIC_OF(r->w->shared->telemetry, DISAGG, outcome), 1);
}

/* ---- the decision ---- */

/* Return why the node |c| should compute the prompt itself, as a label of cgn_disagg_total; NULL: it has enough to
 * compute, and could fetch that instead. */
static const char *split_refusal(const struct gw_req *r, const struct route_cand *c)
{
	if (!c->stores || c->role == COGNITORA__V1__ROLE__ROLE_PREFILL)
		return "no_node";
	return c->uncached_tokens < (float)r->w->rules->colocate_below ? "colocated" : NULL;
}

static struct chooser_pick_result prefill_pick(struct gw_req *r, const struct chooser_ask *ask,
	enum breaker_gate *gate)
{
	struct chooser_pick_result p = chooser_pick(r->w->chooser, ask);
	const struct route_cand *c = p.verdict == ROUTE_PICKED ? &p.cands[p.index] : NULL;
	if (c == NULL || !c->stores || c->role != COGNITORA__V1__ROLE__ROLE_PREFILL)
		return (struct chooser_pick_result){.verdict = ROUTE_NONE};
	*gate = gw_breaker_claim(r->w, view_node_at(r->w->view, c->slot));
	return *gate != BREAKER_SHUT ? p : (struct chooser_pick_result){.verdict = ROUTE_NONE};
}

static bool may_split(const struct gw_req *r, const struct chooser_ask *ask)
{
	return r->w->rules->disagg && !r->plan.legs.staged && !r->answer.head_sent && ask->blocks > 0 &&
		!ask->embeds && ask->pin == CHOOSER_NO_PIN;
}

bool gw_prefill_begin(struct gw_req *r, const struct chooser_ask *ask)
{
	cgn_nsec began = cgn_clock_now();
	enum breaker_gate gate = BREAKER_PASS;
	struct plan *legs = &r->plan.legs;
	if (!may_split(r, ask))
		return false;
	struct chooser_pick_result p = chooser_pick(r->w->chooser, ask);
	if (p.verdict != ROUTE_PICKED)
		return false; /* the request waits, and the decision is made afterwards */
	legs->staged = true;
	const char *why_not = split_refusal(r, &p.cands[p.index]);
	const struct plan_leg leg = plan_prefill_leg(legs);
	const struct chooser_ask prompt = gw_choose_ask(r, &leg);
	if (why_not == NULL)
		p = prefill_pick(r, &prompt, &gate);
	if (why_not == NULL && p.verdict != ROUTE_PICKED)
		why_not = "no_node";
	if (why_not != NULL) {
		outcome_count(r, why_not);
		return false;
	}
	plan_prefill_first(legs, &leg);
	gw_leg_send(r, &prompt, &p, gate, began);
	gw_goto(r, GW_PREFILL);
	return true;
}

/* ---- the leg ---- */

/* End the prefill leg; the answer leg follows in any case. |outcome|: label of cgn_disagg_total. */
static enum gw_step prefill_end(struct gw_req *r, const struct leg_outcome *o, const char *outcome)
{
	outcome_count(r, outcome);
	return gw_leg_ended(r, &(struct gw_leg_report){.outcome = *o});
}

static enum gw_step prefill_done(struct gw_req *r)
{
	cgn_nsec now = cgn_loop_now(r->w->loop);
	chooser_begun(r->w->chooser, &r->attempt.ticket, now);
	gw_verdict_begun(&r->attempt);
	gw_verdict_fine(&r->attempt, true);
	metric_observe(METRIC_ONE(r->w->shared->telemetry, DISAGG_SECONDS), now - r->attempt.sent_at);
	return prefill_end(r, &(struct leg_outcome){.end = LEG_END_FINE}, "prefilled");
}

static enum gw_step prefill_failed(struct gw_req *r, enum breaker_failure how, const char *outcome,
	const char *why)
{
	cgn_log_limited(INFO, "gateway.prefill_failed", F_STRN("id", r->client.id),
		F_STR("node", r->attempt.call.node_id), F_I64("status", r->attempt.status), F_STR("why", why),
		F_STR("then", "the node that answers computes the prompt"));
	if (how == BREAKER_FAILURES)
		gw_verdict_none(&r->attempt);
	else
		gw_verdict_bad(&r->attempt, how);
	gw_leg_unlearn(r);
	return prefill_end(r, &(struct leg_outcome){.end = LEG_END_FAILED, .how = how}, outcome);
}

static enum gw_step prefill_closed(struct gw_req *r)
{
	const struct gw_attempt *a = &r->attempt;
	const struct cgn_err *why = &a->call.why;
	bool answered = why->code == CGN_FINE && a->head_seen;
	if (answered && a->status == 200)
		return prefill_done(r);
	if (answered && a->status == 501)
		return prefill_failed(r, BREAKER_FAILURES, "unsupported",
			"the engine's cache can't be stored");
	if (answered)
		return prefill_failed(r, gw_status_failure(a->status), "failed",
			"the engine answered with an error");
	return prefill_failed(r, gw_attempt_failure(a), "failed",
		why->code != CGN_FINE ? why->msg : "the call ended without an answer");
}

/* A node that leaves ends what it has; an answer leg waits for that, a prefill leg is not worth the wait. */
static bool node_has_left(const struct gw_req *r)
{
	const struct gw_call *call = &r->attempt.call;
	const struct view_node *node = view_node_at(r->w->view, call->slot);
	return node == NULL || (call->node_id != NULL && strcmp(node->id, call->node_id) != 0);
}

enum gw_step gw_prefill(struct gw_req *r)
{
	const struct gw_attempt *a = &r->attempt;
	cgn_nsec waited = cgn_loop_now(r->w->loop) - a->sent_at, limit = r->w->rules->first_byte_timeout;
	if (a->call.closed || a->call.why.code != CGN_FINE)
		return prefill_closed(r);
	if (waited >= limit)
		return prefill_failed(r, BREAKER_TIMEOUT, "failed",
			"no answer in time (router.first_byte_timeout)");
	if (gw_attempt_node_stalled(a, a->sent_at))
		return prefill_failed(r, BREAKER_STALL, "failed", "the node is stalled");
	if (node_has_left(r))
		return prefill_failed(r, BREAKER_FAILURES, "failed", "the node left the cluster");
	cgn_nsec look = gw_attempt_poll(r->w);
	return gw_park(r, WAIT_ENGINE, look < limit - waited ? look : limit - waited);
}
