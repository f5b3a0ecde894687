/* SPDX-License-Identifier: Apache-2.0 */
/* legs: the steps after the end of a leg. policy/answer/plan decides; this file does it. */
#include "router/answer/plan/legs.h"

#include "base/log/log.h"
#include "policy/answer/opening/opening.h"
#include "policy/node/engine/usage.h"
#include "router/answer/answer/relay.h"
#include "router/answer/answer/resume.h"
#include "router/answer/plan/away.h"
#include "router/answer/plan/refused.h"
#include "router/request/attempt/opening.h"
#include "router/request/attempt/verdict.h"
#include "router/request/cascade/cascade.h"

#define RETRY_AFTER 2 /* seconds */

void gw_leg_unlearn(struct gw_req *r, size_t keep)
{
	const struct prefix_chain *chain = &r->prompt.chain;
	if (gw_away_is_on(r) || keep >= chain->n)
		return;
	route_record_drop(r->w->shared->choice.record, chain->short_digests + keep, chain->n - keep,
		r->attempt.call.slot);
}

/* Take a retry from the budget, if a node could take |leg|. Sets |*denied| to a label of cgn_resumes_total. */
static bool retry_take(struct gw_req *r, const struct plan_leg *leg, const char **denied)
{
	*denied = "no_node";
	if (!gw_can_send(r, leg) && !gw_away_continues(r, leg))
		return false;
	if (retry_budget_take(&r->w->budget, cgn_loop_now(r->w->loop)))
		return true;
	metric_add(METRIC_ONE(r->w->shared->telemetry, RETRIES_DENIED), 1);
	*denied = "failed";
	return false;
}

static enum gw_step leg_follow(struct gw_req *r, const struct plan_step *step)
{
	gw_leg_close(r);
	plan_take(&r->plan.legs, step);
	gw_cascade_follow(r);
	gw_goto(r, GW_ROUTE);
	return STEP_AGAIN;
}

/* Another leg follows whatever became of this one. The answer of another model says nothing of it. */
static enum gw_step leg_lead_on(struct gw_req *r, const struct plan_step *step, const struct leg_outcome *o)
{
	if (plan_is_held(&r->plan.legs) && (o->end == LEG_END_STATUS || o->end == LEG_END_FAILED)) {
		gw_refused_take(r, &r->attempt, o->how);
		gw_refused_over(r);
	}
	return leg_follow(r, step);
}

static enum gw_step leg_retry(struct gw_req *r, const struct plan_step *step,
	const struct gw_leg_report *report)
{
	bool refused = report->outcome.how == BREAKER_REFUSED;
	gw_refused_take(r, &r->attempt, report->outcome.how);
	gw_leg_close(r);
	gw_leg_unlearn(r, refused ? plan_last(&r->plan.legs)->held : 0);
	metric_add(METRIC_OF(r->w->shared->telemetry, RETRIES, step->reason), 1);
	return leg_follow(r, step);
}

static enum gw_step leg_cut(struct gw_req *r, const char *why)
{
	(void)gw_relay_cut(r, why);
	gw_leg_close(r);
	return STEP_AGAIN;
}

/* Another engine continues the answer: it goes through GW_ROUTE with a body of its own. */
static enum gw_step leg_resume(struct gw_req *r, const struct plan_step *step, const char *why)
{
	if (!gw_resume_prepare(r)) {
		gw_resume_deny(r, "no_memory", "the router lacks memory");
		return leg_cut(r, why);
	}
	cgn_log_limited(INFO, "gateway.resume", F_STRN("id", r->client.id),
		F_STR("node", r->attempt.call.node_id), F_U64("try", plan_attempts(&r->plan.legs)),
		F_U64("bytes", gw_resume_shown(r)));
	gw_away_settle(r, "cut");
	r->answer.paused = false;
	r->prompt.parsed = false;
	return leg_follow(r, step);
}

/* An answer that turned out to be none, or a stream that ends with the engine's own error, is a failure, although its client has
 * got it: a node that fails at once behind its first event must not attract requests. */
static void answer_judge(struct gw_req *r)
{
	bool failed = gw_opening_failed(&r->attempt);
	if (failed || (r->answer.event_stream && opening_tail_fails(usage_tail_view(&r->answer.tail)))) {
		gw_refused_cut(r);
		return;
	}
	gw_verdict_fine(&r->attempt, !r->answer.was_paused);
	gw_refused_answered(r);
}

static enum gw_step answer_over(struct gw_req *r, const struct gw_leg_report *report)
{
	if (report->outcome.end == LEG_END_FINE) {
		(void)gw_relay_end(r);
		answer_judge(r);
	} else {
		(void)gw_resume_complete(r);
	}
	gw_leg_close(r);
	return STEP_AGAIN;
}

/* Most failures tell a client only to try later; some name the request's own error. */
static int failure_status(enum cgn_code c)
{
	bool told = c == CGN_INVALID || c == CGN_UNSUPPORTED || c == CGN_TOO_LARGE || c == CGN_DEADLINE;
	return told ? cgn_code_http(c) : 503;
}

/* Refuse a request that failed for lack of the router's own memory: the node is not named. */
static enum gw_step ours_give_up(struct gw_req *r, const struct gw_leg_report *report)
{
	return gw_plan_fail(r,
		&(struct gw_refusal){503, "server_error", "no_memory", .reason = "memory",
			.retry_after = RETRY_AFTER},
		"the router lacks memory or file descriptors for the request: %s", report->why);
}

static enum gw_step leg_give_up(struct gw_req *r, const struct gw_leg_report *report)
{
	bool begun = r->attempt.begun_unseen || (report->outcome.how == BREAKER_ERROR && r->client.once);
	int status = begun ? 502 : failure_status(report->code);
	gw_leg_close(r);
	if (report->outcome.how == BREAKER_OURS)
		return ours_give_up(r, report);
	if (status >= 502)
		gw_leg_unlearn(r, 0);
	struct gw_refusal how = {
		.status = status,
		.by = GW_BY_ENGINE,
		.type = status < 500 ? "invalid_request_error" : "server_error",
		.code = begun           ? "engine_failed"
			: status == 504 ? "engine_timeout"
			: status == 503 ? "engine_unavailable"
					: "engine_refused",
		.retry_after = status == 503 ? RETRY_AFTER : 0,
	};
	return gw_plan_fail(r, &how, "the engine gave no answer (tried %u): %s", plan_attempts(&r->plan.legs),
		report->why);
}

/* Return why no leg continues the answer; |denied| is of retry_take. */
static const char *denied_text(const struct gw_req *r, const char *denied)
{
	if (strcmp(denied, "failed") == 0)
		return "too many requests are repeated at the moment (router.retry.budget)";
	if (plan_attempts(&r->plan.legs) >= r->w->rules->retry.attempts)
		return "as many nodes were tried as may be (router.retry.attempts)";
	return "no other node that can continue it is ready";
}

static enum gw_step leg_fail(struct gw_req *r, const struct gw_leg_report *report, const char *denied)
{
	const struct leg_outcome *o = &report->outcome;
	if (o->end == LEG_END_CUT && o->missing == PLAN_MISSES_MORE)
		gw_resume_deny(r, denied, denied_text(r, denied));
	if (o->end == LEG_END_STATUS || o->end == LEG_END_FAILED)
		gw_refused_take(r, &r->attempt, o->how);
	gw_refused_over(r);
	return o->end == LEG_END_CUT ? leg_cut(r, report->why) : leg_give_up(r, report);
}

/* Return the failures after which the request may be sent to another node, in bits of enum breaker_failure. An engine
 * that answers 503 has not begun. */
static unsigned retry_bits(const struct gw_req *r, enum breaker_failure how)
{
	bool begun = how != BREAKER_FAILURES && breaker_failure_begun(how) &&
		!(how == BREAKER_STATUS && r->attempt.status == 503);
	bool never =
		r->client.retry_off || r->client.route->kind == GW_STORED; /* Another node cannot have it. */
	return never || (r->client.once && begun) ? 0 : r->w->rules->retry.on;
}

enum gw_step gw_leg_ended(struct gw_req *r, const struct gw_leg_report *report)
{
	if (gw_away_is_on(r) && report->outcome.end == LEG_END_FAILED)
		return gw_away_return(r, report->outcome.how == BREAKER_TIMEOUT ? "late" : "failed");
	const struct plan_rules rules = {retry_bits(r, report->outcome.how), r->w->rules->retry.attempts};
	const struct leg_outcome *o = &report->outcome;
	const char *denied = "no_node";
	struct plan_step step;
	plan_follow(&r->plan.legs, &rules, o, &step);
	if (step.costs_retry && !retry_take(r, &step.leg, &denied))
		step.next = step.otherwise;
	if (step.next != PLAN_RELAY)
		plan_ended(&r->plan.legs, step.next == PLAN_OVER || o->end == LEG_END_FINE,
			cgn_loop_now(r->w->loop));
	switch (step.next) {
	case PLAN_LEG:
		if (!step.costs_retry)
			return leg_lead_on(r, &step, o);
		return step.reason != NULL ? leg_retry(r, &step, report) : leg_resume(r, &step, report->why);
	case PLAN_RELAY:
		r->attempt.accepted = true;
		return STEP_AGAIN;
	case PLAN_OVER:
		return answer_over(r, report);
	case PLAN_FAIL:
		break;
	}
	return leg_fail(r, report, denied);
}
