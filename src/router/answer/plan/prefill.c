/* SPDX-License-Identifier: Apache-2.0 */
/* prefill: the leg of a node of role prefill, which computes the prompt and puts what it computed into its block
 * store. The node that answers fetches it from there; if the prefill leg fails, the answer leg computes
 * everything. The chooser decides which requests are split (policy/route/chooser/split.c). */
#include "base/log/log.h"
#include "router/answer/plan/handoff.h"
#include "router/answer/plan/legs.h"
#include "router/answer/plan/refused.h"
#include "router/answer/plan/states.h"
#include "router/request/attempt/opening.h"
#include "router/request/attempt/verdict.h"
#include "router/shared/worker/breaker.h"

static void outcome_count(struct gw_req *r, const char *outcome)
{
	r->plan.disagg = outcome;
	metric_add(METRIC_OF(r->w->shared->telemetry, DISAGG, outcome), 1);
}

/* ---- the decision ---- */

static bool may_split(const struct gw_req *r, const struct chooser_ask *ask)
{
	/* An answer that is resumed is computed by one node, unless its engine can't do that. */
	bool begun = r->answer.head_sent && !gw_handoff_is_at_once(r);
	return r->w->rules->route.disagg.enabled && !plan_is_held(&r->plan.legs) && !r->plan.legs.staged &&
		!begun && !ask->embeds && ask->pin == CHOOSER_NO_PIN;
}

/* Decide, without the prefill nodes that failed this request. */
static void split_decide(struct gw_req *r, const struct chooser_ask *ask, struct chooser_split *out)
{
	uint16_t excluded[PLAN_MAX_ATTEMPTS + GW_PREFILLS_MAX];
	struct chooser_ask own = *ask;
	size_t n = ask->n_excluded, failed = r->plan.n_prefill_failed;
	if (failed > 0 && n + failed <= CGN_COUNT(excluded)) {
		if (n > 0)
			memcpy(excluded, ask->excluded, n * sizeof *excluded);
		memcpy(excluded + n, r->plan.prefill_failed, failed * sizeof *excluded);
		own.excluded = excluded;
		own.n_excluded = n + failed;
	}
	chooser_split(r->w->chooser, &own, out);
}

/* The request can't be handed over, whichever nodes there are. */
static void handoff_refused(struct gw_req *r, const char *why)
{
	const struct view_model *m = view_model_find(r->w->view, plan_leg(&r->plan.legs)->model);
	const struct handoff_end *end = m != NULL ? view_handoff(m, r->plan.split.prefill) : NULL;
	if (end != NULL)
		metric_add(METRIC_OF(r->w->shared->telemetry, HANDOFFS, handoff_ops_of(end->kind)->name, why),
			1);
}

/* Return the shape to use, where a prompt without a full block has nothing to hand over, unless no engine answers
 * alone. */
static enum chooser_shape shape_of(const struct chooser_ask *ask, const struct chooser_split *s)
{
	return s->shape == CHOOSER_PAIR && ask->blocks == 0 && s->whole != CHOOSER_NO_SLOT ? CHOOSER_WHOLE
											   : s->shape;
}

/* Log a prefill node and an answer node whose hand-offs differ: that is why there is no pair. */
static void mismatch_log(const struct gw_req *r)
{
	const struct view_model *m = view_model_find(r->w->view, r->prompt.model);
	char differ[2 * HANDOFF_TERMS_MAX];
	for (size_t i = 0; m != NULL && i < m->n_ready; i++)
		for (size_t k = 0; k < m->n_ready; k++) {
			const struct handoff_end *a = m->handoff[i], *b = m->handoff[k];
			bool pair = m->ready[i]->role == COGNITORA__V1__ROLE__ROLE_PREFILL &&
				m->ready[k]->role != COGNITORA__V1__ROLE__ROLE_PREFILL;
			if (!pair || a == NULL || b == NULL || a->fingerprint == b->fingerprint)
				continue;
			handoff_differ(a, b, differ, sizeof differ);
			cgn_log_limited(WARN, "gateway.handoff_mismatch",
				F_STR("prefill_node", m->ready[i]->id), F_STR("node", m->ready[k]->id),
				F_STR("differ", differ), F_STR("then", "the two are never a pair"));
			return;
		}
}

/* Give the request to the pair. True: the prefill leg was sent. Otherwise |*outcome| is why not, or NULL if both legs
 * are sent at once. */
static bool prefill_send(struct gw_req *r, cgn_nsec began, const char **outcome)
{
	const struct chooser_split *s = &r->plan.split;
	const char *why = NULL;
	*outcome = "no_node";
	if (!gw_handoff_open(r, &why)) {
		*outcome = "unsupported";
		handoff_refused(r, why);
		return false;
	}
	if (gw_handoff_is_at_once(r)) {
		plan_leg(&r->plan.legs)->role = LEG_DECODE;
		*outcome = NULL;
		return false;
	}
	enum breaker_gate gate = gw_breaker_claim(r->w, view_node_at(r->w->view, s->prefill));
	const struct plan_leg leg = plan_prefill_leg(&r->plan.legs);
	struct chooser_ask prompt = gw_choose_ask(r, &leg);
	prompt.handoff = s->handoff;
	if (gate == BREAKER_SHUT)
		return false;
	plan_prefill_first(&r->plan.legs, &leg);
	gw_leg_send(r, &prompt, &s->first, gate, began);
	gw_goto(r, GW_PREFILL);
	return true;
}

bool gw_prefill_answers(struct gw_req *r, const struct chooser_ask *ask)
{
	struct chooser_split s;
	if (!may_split(r, ask))
		return false;
	split_decide(r, ask, &s);
	return s.shape == CHOOSER_CONTINUES;
}

void gw_prefill_undecide(struct gw_req *r)
{
	struct plan_leg *leg = plan_leg(&r->plan.legs);
	if (plan_attempts(&r->plan.legs) > 0 || r->plan.pairs > 0 || leg->role != LEG_WHOLE)
		return;
	leg->target.continues = false;
	r->plan.legs.staged = false;
}

void gw_prefill_predict(struct gw_req *r, const struct chooser_ask *ask)
{
	struct chooser_split s;
	if (!may_split(r, ask))
		return;
	split_decide(r, ask, &s);
	struct admission_forecast *f = &r->plan.ttft;
	cgn_nsec pair = s.pair_ms < UINT32_MAX ? (cgn_nsec)(s.ttft_ms * 1e6) : UINT64_MAX;
	f->now = pair < f->now ? pair : f->now;
	f->idle = f->idle < f->now ? f->idle : f->now;
}

bool gw_prefill_begin(struct gw_req *r, const struct chooser_ask *ask)
{
	cgn_nsec began = cgn_clock_now();
	struct chooser_split *s = &r->plan.split;
	if (!may_split(r, ask))
		return false;
	split_decide(r, ask, s);
	r->plan.split_told = false;
	enum chooser_shape shape = shape_of(ask, s);
	if (shape == CHOOSER_WHOLE && s->whole == CHOOSER_NO_SLOT)
		return false; /* the request waits, and the decision is made afterwards */
	r->plan.legs.staged = true;
	const char *outcome = s->why == CHOOSER_BY_NO_PAIR ? "no_node" : "colocated";
	if (s->why == CHOOSER_BY_NO_PAIR)
		mismatch_log(r);
	if (shape == CHOOSER_PAIR && prefill_send(r, began, &outcome))
		return true;
	if (shape == CHOOSER_CONTINUES) {
		plan_let_prefill_answer(&r->plan.legs);
		outcome = "continued";
	}
	if (outcome != NULL && r->plan.n_prefill_failed == 0)
		outcome_count(r, outcome); /* otherwise "failed" was counted */
	return false;
}

/* ---- the leg ---- */

/* End the prefill leg; the answer leg follows in any case. |outcome|: label of cgn_disagg_total. */
static enum gw_step prefill_end(struct gw_req *r, const struct leg_outcome *o, const char *outcome)
{
	outcome_count(r, outcome);
	return gw_leg_ended(r, &(struct gw_leg_report){.outcome = *o});
}

static enum gw_step prefill_failed(struct gw_req *r, enum breaker_failure how, const char *outcome,
	const char *why);

static enum gw_step prefill_done(struct gw_req *r)
{
	const char *why = NULL;
	if (!gw_handoff_computed(r, &why))
		return prefill_failed(r, BREAKER_FAILURES, "failed", why);
	cgn_nsec now = cgn_loop_now(r->w->loop);
	chooser_begun(r->w->chooser, &r->attempt.ticket, now);
	gw_verdict_begun(&r->attempt);
	gw_verdict_fine(&r->attempt, true);
	metric_observe(METRIC_ONE(r->w->shared->telemetry, DISAGG_SECONDS),
		cgn_since(now, r->attempt.sent_at));
	return prefill_end(r, &(struct leg_outcome){.end = LEG_END_FINE}, "prefilled");
}

static enum gw_step prefill_failed(struct gw_req *r, enum breaker_failure how, const char *outcome,
	const char *why)
{
	bool died = gw_attempt_died(&r->attempt);
	if (died)
		plan_died(&r->plan.legs);
	bool again = how != BREAKER_FAILURES && gw_handoff_may_repeat(r, r->attempt.call.slot);
	cgn_log_limited(INFO, "gateway.prefill_failed", F_STRN("id", r->client.id),
		F_STR("node", r->attempt.call.node_id), F_I64("status", r->attempt.status), F_STR("why", why),
		F_STR("then",
			again ? "another pair of nodes, if there is one"
			      : "the node that answers computes the prompt"));
	if (how == BREAKER_FAILURES)
		gw_verdict_none(&r->attempt);
	else if (how == BREAKER_STATUS || died || again)
		gw_refused_take(r, &r->attempt, how);
	else
		gw_verdict_bad(&r->attempt, how);
	gw_leg_unlearn(r, 0);
	r->plan.legs.staged = !again;
	return prefill_end(r, &(struct leg_outcome){.end = LEG_END_FAILED, .how = how}, outcome);
}

static enum gw_step prefill_closed(struct gw_req *r)
{
	const struct gw_attempt *a = &r->attempt;
	const struct cgn_err *why = &a->call.why;
	bool answered = why->code == CGN_FINE && a->head_seen;
	enum breaker_failure said = answered ? gw_refused_how(r, a) : BREAKER_FAILURES;
	if (answered && a->status == 200 && said == BREAKER_FAILURES)
		return prefill_done(r);
	if (answered && a->status == 501)
		return prefill_failed(r, BREAKER_FAILURES, "unsupported",
			"the engine's cache can't be stored");
	if (answered)
		return prefill_failed(r, said, "failed", "the engine answered with an error");
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
	cgn_nsec waited = cgn_since(cgn_loop_now(r->w->loop), a->sent_at),
		 limit = r->w->rules->timeout.first_byte;
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
