/* SPDX-License-Identifier: Apache-2.0 */
#include "router/answer/plan/gate.h"

#include "router/answer/answer/relay.h"
#include "router/answer/plan/refused.h"
#include "router/answer/plan/states.h"
#include "router/request/attempt/verdict.h"
#include "router/request/cascade/cascade.h"

/* The answer is not shown: the next model is asked. */
static enum gw_step gate_escalate(struct gw_req *r, const char *outcome, const char *why)
{
	gw_cascade_reject(r);
	gw_cascade_note(r, outcome, why);
	return gw_leg_ended(r,
		&(struct gw_leg_report){{.end = LEG_END_REJECTED, .how = BREAKER_FAILURES}, CGN_FINE,
			"a larger model is asked"});
}

/* The client gets the answer from its first byte on. */
static enum gw_step gate_release(struct gw_req *r)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf held = {0};
	gw_cascade_learn(r, false);
	gw_cascade_release(r, &held);
	gw_cascade_note(r, "released", NULL);
	plan_release(&r->plan.legs);
	gw_relay_head(r);
	gw_relay(r, cgn_buf_view(&held));
	gw_goto(r, GW_STREAM);
	return STEP_AGAIN;
}

enum gw_step gw_gate_begin(struct gw_req *r)
{
	if (r->attempt.status != 200) {
		gw_cascade_note(r, "refused", NULL);
		return gw_leg_ended(r,
			&(struct gw_leg_report){{.end = LEG_END_REJECTED, .how = BREAKER_FAILURES}, CGN_FINE,
				"the smaller model's engine refused the request"});
	}
	gw_cascade_begin(r);
	if (r->attempt.opening.bytes.p != NULL)
		gw_gate_data(r, r->attempt.opening.bytes);
	gw_goto(r, GW_GATE);
	return STEP_AGAIN;
}

void gw_gate_data(struct gw_req *r, struct cgn_str data)
{
	gw_attempt_beat(&r->attempt);
	gw_cascade_add(r, data);
	if (r->state == GW_GATE && gw_cascade_judge(r) != CASCADE_WAIT)
		gw_wake(r);
}

static const char *reason_of(const struct gw_cascade *c)
{
	if (c->held.bad)
		return "too_large";
	return c->answer.seen == 0 ? "no_logprobs" : NULL;
}

enum gw_step gw_gate(struct gw_req *r)
{
	struct gw_attempt *a = &r->attempt;
	if (a->call.why.code != CGN_FINE) {
		gw_refused_cut(r);
		return gate_escalate(r, "failed", NULL);
	}
	enum cascade_verdict v = gw_cascade_judge(r);
	if (v == CASCADE_RELEASE)
		return gate_release(r);
	if (v == CASCADE_ESCALATE && a->call.closed)
		gw_verdict_fine(a, true);
	if (v == CASCADE_ESCALATE && r->plan.cascade->answer.n > 0)
		gw_cascade_learn(r, true);
	if (v == CASCADE_ESCALATE)
		return gate_escalate(r, "escalated", reason_of(r->plan.cascade));
	if (gw_attempt_silence(a, cgn_loop_now(r->w->loop)) == NULL)
		return gw_park(r, WAIT_ENGINE, gw_attempt_poll(r->w));
	gw_verdict_late(a, BREAKER_STALL);
	return gate_escalate(r, "failed", NULL);
}
