/* SPDX-License-Identifier: Apache-2.0 */
/* wait: the states that wait for the engine of an answer leg: for its first byte, then for its bytes. */
#include "base/log/log.h"
#include "router/answer/answer/relay.h"
#include "router/answer/answer/resume.h"
#include "router/answer/plan/away.h"
#include "router/answer/plan/gate.h"
#include "router/answer/plan/handoff.h"
#include "router/answer/plan/legs.h"
#include "router/answer/plan/queue.h"
#include "router/answer/plan/refused.h"
#include "router/answer/plan/states.h"
#include "router/request/attempt/opening.h"
#include "router/request/attempt/verdict.h"
#include "router/request/cascade/cascade.h"
#include "router/request/hooks/hooks.h"
#include "router/request/streamusage/streamusage.h"
#include "router/shared/peers/peers.h"

#define LOOK_POLL (20 * CGN_MSEC)

static const char not_continued[] = "no engine could resume the answer";

/* ---- the first byte ---- */

static void failure_log(struct gw_req *r, const char *code, const char *why)
{
	cgn_log_limited(INFO, "gateway.try_failed", F_STRN("id", r->client.id),
		F_STR("node", r->attempt.call.node_id), F_U64("try", plan_attempts(&r->plan.legs)),
		F_STR("code", code), F_STR("why", why));
}

static enum gw_step leg_failed(struct gw_req *r, enum breaker_failure how, enum cgn_code code,
	const char *why)
{
	return gw_leg_ended(r, &(struct gw_leg_report){{.end = LEG_END_FAILED, .how = how}, code, why});
}

static enum gw_step attempt_failed(struct gw_req *r)
{
	struct gw_attempt *a = &r->attempt;
	if (a->call.why.code == CGN_FINE)
		a->call.why =
			(struct cgn_err){.code = CGN_BAD_GATEWAY, .msg = "the call ended without an answer"};
	enum breaker_failure how = gw_attempt_failure(a);
	if (gw_attempt_died(a))
		plan_died(&r->plan.legs);
	failure_log(r, cgn_code_name(a->call.why.code), a->call.why.msg);
	if (how == BREAKER_FAILURES)
		gw_verdict_none(a);
	else if (how == BREAKER_STALL)
		gw_verdict_stalled(a);
	else
		gw_refused_take(r, a, how);
	struct cgn_err why = a->call.why;
	return leg_failed(r, how, why.code, why.msg);
}

static enum gw_step leg_late(struct gw_req *r, enum breaker_failure how, const char *why)
{
	gw_verdict_late(&r->attempt, how);
	return leg_failed(r, how, CGN_DEADLINE, why);
}

/* An answer that is an error took no computing: it says nothing of the node's speed, and left nothing new in the
 * node's cache. Its booking ends here. */
static void uncomputed_release(struct gw_req *r, bool failed)
{
	(void)gw_attempt_release(&r->attempt);
	gw_queue_room(r->w);
	gw_leg_unlearn(r, failed ? 0 : plan_last(&r->plan.legs)->held);
}

/* True if the engine has no such route and says so in the words of its web framework. An error in an API's shape is
 * about something else, such as the model. */
static bool is_route_missing(const struct gw_req *r)
{
	const struct gw_attempt *a = &r->attempt;
	const char key[] = "\"error\"";
	return gw_route_may_lack(r->client.route->kind, r->client.target) &&
		(a->status == 404 || a->status == 405) &&
		(a->opening.bytes.p == NULL ||
			memmem(a->opening.bytes.p, a->opening.bytes.n, key, sizeof key - 1) == NULL);
}

static enum gw_step route_missing(struct gw_req *r)
{
	int status = r->attempt.status;
	const char *node = r->attempt.call.node_id;
	plan_ended(&r->plan.legs, true, cgn_loop_now(r->w->loop));
	gw_leg_close(r);
	return gw_plan_fail(r, &(struct gw_refusal){501, "not_supported_error", "not_supported"},
		"the engine of node %s has no route %.*s: it answered %d", node,
		CGN_STR_ARG(r->client.target), status);
}

static enum gw_step first_byte(struct gw_req *r)
{
	struct gw_attempt *a = &r->attempt;
	enum breaker_failure how = gw_refused_how(r, a);
	bool refusal = gw_opening_says(a) == OPENING_REFUSAL, computes = a->status < 300 && !refusal;
	gw_refused_mark(r);
	if (how != BREAKER_FAILURES) {
		gw_refused_take(r, a, how);
		gw_refused_over(r);
	} else if (computes) {
		gw_streamusage_answered(r);
		gw_refused_begun(r);
	} else {
		gw_refused_forget(r);
	}
	if (computes)
		chooser_begun(r->w->chooser, &a->ticket, cgn_loop_now(r->w->loop));
	else
		uncomputed_release(r, how != BREAKER_FAILURES && how != BREAKER_REFUSED);
	if (how == BREAKER_FAILURES)
		gw_verdict_begun(a);
	if (how == BREAKER_ERROR)
		r->answer.outcome = "engine_error";
	gw_away_begun(r);
	if (gw_cascade_is_held(r))
		return gw_gate_begin(r);
	if (is_route_missing(r))
		return route_missing(r);
	if (r->answer.head_sent)
		gw_resume_begin(r);
	else
		gw_relay_head(r);
	if (a->opening.bytes.p != NULL)
		gw_relay(r, a->opening.bytes);
	gw_goto(r, GW_STREAM);
	return STEP_AGAIN;
}

/* An engine that was to continue an answer answers something else. If it dislikes the body, the body is ours:
 * that says nothing of the node. */
static enum gw_step leg_misfit(struct gw_req *r)
{
	struct gw_attempt *a = &r->attempt;
	enum breaker_failure how = gw_attempt_status_failure(a);
	if (how == BREAKER_FAILURES)
		gw_verdict_none(a);
	else
		gw_refused_take(r, a, how);
	cgn_log_limited(INFO, "gateway.try_failed", F_STRN("id", r->client.id),
		F_STR("node", a->call.node_id), F_U64("try", plan_attempts(&r->plan.legs)),
		F_I64("status", a->status));
	return gw_leg_ended(r,
		&(struct gw_leg_report){{.end = LEG_END_MISFIT, .how = how}, CGN_BAD_GATEWAY, not_continued});
}

/* The engine answered 200 with something that does not answer the route. */
static enum gw_step answer_failed(struct gw_req *r, enum opening_says says)
{
	struct gw_attempt *a = &r->attempt;
	struct cgn_err why = {.code = CGN_BAD_GATEWAY};
	(void)snprintf(why.msg, sizeof why.msg, "it answered %d with %s", a->status, opening_text(says));
	failure_log(r, breaker_failure_text(BREAKER_ERROR), why.msg);
	if (gw_away_is_on(r)) {
		gw_verdict_bad(a, BREAKER_RESET);
		a->call.why = why;
		return gw_away_return(r, "failed");
	}
	if (says == OPENING_ERROR ||
		says == OPENING_OTHER) /* the client gets it if no other node has an answer */
		return gw_leg_ended(r,
			&(struct gw_leg_report){{.end = LEG_END_STATUS, .how = BREAKER_ERROR}, why.code,
				not_continued});
	return leg_failed(r, BREAKER_ERROR, why.code, why.msg);
}

static bool is_misfit(const struct gw_req *r)
{
	const struct gw_attempt *a = &r->attempt;
	return r->answer.head_sent && a->head_seen &&
		(a->status != 200 || !a->events || (a->call.closed && a->opening.bytes.p == NULL));
}

static cgn_nsec first_byte_limit(const struct gw_req *r)
{
	return gw_away_is_on(r) ? r->attempt.peer->first_byte_timeout : r->w->rules->timeout.first_byte;
}

/* The end of a request at the agent says that the engine is dead; a request straight at the engine just waits. */
static bool is_node_gone(struct gw_attempt *a, cgn_nsec now)
{
	return a->by_engine ? gw_attempt_node_dead(a, now) : gw_attempt_node_stalled(a, a->sent_at);
}

/* Send the leg once more, without the question for usage that its engine refuses. */
static enum gw_step leg_repeat(struct gw_req *r)
{
	struct gw_attempt *a = &r->attempt;
	gw_verdict_none(a);
	gw_leg_unlearn(r, plan_last(&r->plan.legs)->held);
	gw_away_settle(r, "refused");
	gw_leg_close(r);
	plan_withdraw(&r->plan.legs);
	*a = (struct gw_attempt){.turn = a->turn, .used = gw_attempt_joules(a)};
	gw_goto(r, GW_ROUTE);
	return STEP_AGAIN;
}

enum gw_step gw_dispatch(struct gw_req *r)
{
	struct gw_attempt *a = &r->attempt;
	cgn_nsec waited = cgn_since(cgn_loop_now(r->w->loop), a->sent_at), limit = first_byte_limit(r);
	enum opening_says says = gw_opening_says(a);
	enum breaker_failure said = a->head_seen ? gw_refused_how(r, a) : BREAKER_FAILURES;
	struct gw_leg_report pair;
	if (gw_beside_has_failed(r, &pair))
		return gw_leg_ended(r, &pair);
	if (a->call.why.code != CGN_FINE || (a->call.closed && !a->head_seen))
		return attempt_failed(r);
	if (gw_streamusage_refused(r))
		return leg_repeat(r);
	if (gw_away_refuses(r))
		return gw_away_return(r, "refused");
	if (said != BREAKER_FAILURES && !a->accepted && gw_beside_is_suspected(r))
		return gw_park(r, WAIT_ENGINE, gw_attempt_poll(r->w));
	if (said == BREAKER_REFUSED && !a->accepted && !is_route_missing(r) && gw_refused_looks(r, a))
		return gw_park(r, WAIT_ENGINE, LOOK_POLL);
	if (says >= OPENING_ERROR && !a->accepted)
		return answer_failed(r, says);
	if (said != BREAKER_FAILURES && !a->accepted)
		return gw_leg_ended(r,
			&(struct gw_leg_report){{.end = LEG_END_STATUS, .how = said}, CGN_BAD_GATEWAY,
				not_continued});
	if (is_misfit(r))
		return gw_away_is_on(r) ? gw_away_return(r, "refused") : leg_misfit(r);
	if (says != OPENING_MORE && (a->opening.bytes.p != NULL || a->call.closed)) {
		enum gw_step step = first_byte(r);
		gw_opening_drop(a);
		return step;
	}
	if (waited >= limit)
		return leg_late(r, BREAKER_TIMEOUT,
			gw_away_is_on(r) ? "no first byte in time (peers.NAME.first_byte_timeout)"
					 : "no first byte in time (router.first_byte_timeout)");
	if (is_node_gone(a, cgn_loop_now(r->w->loop)))
		return leg_late(r, BREAKER_STALL, "the node is stalled");
	cgn_nsec look = gw_attempt_poll(r->w);
	return gw_park(r, WAIT_ENGINE, look < limit - waited ? look : limit - waited);
}

/* ---- the stream ---- */

static enum gw_step stream_died(struct gw_req *r, const struct cgn_err *why)
{
	return gw_leg_ended(r,
		&(struct gw_leg_report){{.end = LEG_END_CUT,
						.how = BREAKER_CUT,
						.missing = gw_resume_missing(r)},
			why->code, why->msg});
}

static enum gw_step stream_closed(struct gw_req *r)
{
	struct cgn_err why = r->attempt.call.why;
	const char *early = why.code == CGN_FINE ? gw_resume_breaks_off(r) : NULL;
	if (early != NULL) {
		(void)CGN_FAIL(&why, BAD_GATEWAY, "%s", early);
		gw_refused_cut(r);
		return stream_died(r, &why);
	}
	if (why.code == CGN_FINE)
		return gw_leg_ended(r, &(struct gw_leg_report){.outcome = {.end = LEG_END_FINE}});
	gw_refused_cut(r);
	return stream_died(r, &why);
}

/* The engine was to repeat an answer, and says something else: the node did nothing wrong. */
static enum gw_step stream_other(struct gw_req *r)
{
	const struct cgn_err why = {.code = CGN_BAD_GATEWAY, .msg = "the engine does not repeat the answer"};
	gw_verdict_none(&r->attempt);
	return stream_died(r, &why);
}

/* The external check refuses the answer: the engine need not go on. */
static enum gw_step stream_refused(struct gw_req *r)
{
	plan_ended(&r->plan.legs, true, cgn_loop_now(r->w->loop));
	gw_leg_close(r);
	gw_goto(r, GW_CHECK);
	return STEP_AGAIN;
}

/* A stream whose client reads slowly is not stalled: the listener has a timeout for the client. */
enum gw_step gw_stream(struct gw_req *r)
{
	struct gw_attempt *a = &r->attempt;
	cgn_nsec now = cgn_loop_now(r->w->loop);
	struct cgn_err why = {.code = CGN_DEADLINE, .msg = ""};
	cgn_arena_reset(&r->scratch); /* the chain and the head's strings are used up */
	cgn_arena_reset(&r->head);
	r->prompt.chain = (struct prefix_chain){NULL, 0};
	if (gw_resume_differs(r))
		return stream_other(r);
	if (!gw_hold_step(r))
		return stream_refused(r);
	if (a->call.closed || a->call.why.code != CGN_FINE) {
		if (gw_beside_is_awaited(r))
			return gw_park(r, WAIT_ENGINE, gw_attempt_poll(r->w));
		return stream_closed(r);
	}
	if (r->answer.paused)
		return gw_park(r, WAIT_ENGINE, gw_attempt_poll(r->w));
	const char *silence = gw_attempt_silence(a, now);
	if (silence == NULL)
		return gw_park(r, WAIT_ENGINE, gw_attempt_poll(r->w));
	(void)cgn_str_copyz(why.msg, sizeof why.msg, cgn_str_of(silence));
	gw_verdict_late(a, BREAKER_STALL);
	return stream_died(r, &why);
}
