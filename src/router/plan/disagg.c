/* SPDX-License-Identifier: Apache-2.0 */
/* disagg: two legs of one request. A node of role prefill computes the prompt and puts what it computed into
 * its block store; the node that answers fetches it from there. Whatever goes wrong with the first leg, the
 * second does all of it. */
#include "base/log/log.h"
#include "router/request/gateway.h"

static void count(struct gw_req *r, const char *outcome)
{
	r->disagg = outcome;
	metric_add(METRIC_OF(r->w->shared->telemetry, DISAGG, outcome), 1);
}

/* ---- shall another node compute it? ---- */

/* Would the node that answers have enough to compute, and could it fetch that instead? */
static const char *worthless(const struct gw_req *r, const struct route_cand *c)
{
	if (!c->stores || c->role == COGNITORA__V1__ROLE__ROLE_PREFILL)
		return "no_node";
	return c->uncached_tokens < (float)r->w->rules->colocate_below ? "colocated" : NULL;
}

static struct chooser_pick_result prefill_pick(struct gw_req *r, struct chooser_ask *ask,
	enum breaker_gate *gate)
{
	ask->prefill = ask->embeds = true;
	ask->whole = false;
	ask->excluded = NULL;
	ask->n_excluded = 0;
	struct chooser_pick_result p = chooser_pick(r->w->chooser, ask);
	const struct route_cand *c = p.verdict == ROUTE_PICKED ? &p.cands[p.index] : NULL;
	if (c == NULL || !c->stores || c->role != COGNITORA__V1__ROLE__ROLE_PREFILL)
		return (struct chooser_pick_result){.verdict = ROUTE_NONE};
	*gate = gw_breaker_claim(r->w, view_node_at(r->w->view, c->slot));
	return *gate != BREAKER_SHUT ? p : (struct chooser_pick_result){.verdict = ROUTE_NONE};
}

static void send_prompt(struct gw_req *r, const struct chooser_ask *ask, const struct chooser_pick_result *p,
	enum breaker_gate gate, cgn_nsec began)
{
	struct chooser_ticket ticket = {.booked = false};
	const struct view_node *node = view_node_at(r->w->view, p->cands[p->index].slot);
	chooser_book(r->w->chooser, ask, p, &ticket);
	gw_queue_end(r);
	r->held = p->cands[p->index].held;
	r->blocks = (uint32_t)r->chain.n;
	gw_explain_pick(r, ask, p, cgn_clock_now() - began);
	r->leg = COGNITORA__V1__LEG__LEG_PREFILL;
	gw_try_start(r, node, &ticket, gate);
	gw_goto(r, GW_PREFILL);
}

bool gw_disagg_begin(struct gw_req *r, const struct chooser_ask *ask)
{
	cgn_nsec began = cgn_clock_now();
	enum breaker_gate gate = BREAKER_PASS;
	if (!r->w->rules->disagg || r->legs_settled || r->head_sent || ask->blocks == 0 || ask->embeds ||
		ask->pin != CHOOSER_NO_PIN)
		return false;
	struct chooser_pick_result p = chooser_pick(r->w->chooser, ask);
	if (p.verdict != ROUTE_PICKED)
		return false; /* it waits; then it is asked again */
	r->legs_settled = true;
	const char *why_not = worthless(r, &p.cands[p.index]);
	struct chooser_ask prompt = *ask;
	if (why_not == NULL)
		p = prefill_pick(r, &prompt, &gate);
	if (why_not == NULL && p.verdict != ROUTE_PICKED)
		why_not = "no_node";
	if (why_not != NULL) {
		count(r, why_not);
		return false;
	}
	send_prompt(r, &prompt, &p, gate, began);
	return true;
}

/* ---- the prompt's leg ---- */

static enum gw_step over(struct gw_req *r, const char *outcome)
{
	gw_try_end(r);
	count(r, outcome);
	gw_goto(r, GW_ROUTE);
	return STEP_AGAIN;
}

static enum gw_step computed(struct gw_req *r)
{
	cgn_nsec now = cgn_loop_now(r->w->loop);
	chooser_begun(r->w->chooser, &r->t.ticket, now);
	gw_judge_begun(r);
	gw_judge_ok(r);
	r->prefill_node = r->t.node_id;
	r->prefill_took = now - r->t.sent_at;
	r->leg = COGNITORA__V1__LEG__LEG_DECODE;
	metric_observe(METRIC_ONE(r->w->shared->telemetry, DISAGG_SECONDS), r->prefill_took);
	return over(r, "prefilled");
}

static enum gw_step failed(struct gw_req *r, enum breaker_failure how, const char *outcome, const char *why)
{
	cgn_log(INFO, "gateway.prefill_failed", F_STRN("id", r->id), F_STR("node", r->t.node_id),
		F_I64("status", r->t.status), F_STR("why", why),
		F_STR("then", "the node that answers computes the prompt"));
	if (how == BREAKER_FAILURES)
		gw_judge_left(r);
	else
		gw_judge_bad(r, how);
	gw_unlearn(r);
	r->leg = COGNITORA__V1__LEG__LEG_WHOLE;
	return over(r, outcome);
}

static enum gw_step ended(struct gw_req *r)
{
	const struct gw_try *t = &r->t;
	if (t->why.code == CGN_FINE && t->head_seen && t->status == 200)
		return computed(r);
	if (t->why.code == CGN_FINE && t->head_seen && t->status == 501)
		return failed(r, BREAKER_FAILURES, "unsupported", "its engine's cache can't be stored");
	if (t->why.code == CGN_FINE && t->head_seen)
		return failed(r, gw_status_failure(t->status), "failed", "the engine answered with an error");
	return failed(r, gw_try_failure(t), "failed",
		t->why.code != CGN_FINE ? t->why.msg : "it ended without an answer");
}

/* What an answer's leg does not look at: a node that drains ends what it has, but this leg is not worth the
 * wait. */
static bool has_left(const struct gw_req *r)
{
	const struct view_node *node = view_node_at(r->w->view, r->t.slot);
	return node == NULL || (r->t.node_id != NULL && strcmp(node->id, r->t.node_id) != 0);
}

enum gw_step gw_prefill(struct gw_req *r)
{
	const struct gw_try *t = &r->t;
	cgn_nsec waited = cgn_loop_now(r->w->loop) - t->sent_at, limit = r->w->rules->first_byte_timeout;
	if (t->closed || t->why.code != CGN_FINE)
		return ended(r);
	if (waited >= limit)
		return failed(r, BREAKER_TIMEOUT, "failed", "no answer in time (router.first_byte_timeout)");
	if (gw_node_stalled(r, t->sent_at))
		return failed(r, BREAKER_STALL, "failed", "its node is stalled");
	if (has_left(r))
		return failed(r, BREAKER_FAILURES, "failed", "its node left the cluster");
	cgn_nsec look = gw_look_again(r);
	return gw_park(r, WAIT_ENGINE, look < limit - waited ? look : limit - waited);
}
