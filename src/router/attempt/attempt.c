/* SPDX-License-Identifier: Apache-2.0 */
/* try: one node's turn. Its gRPC call from the first byte sent to the last callback, and the state that waits
 * for its first byte. */
#include <stdlib.h>

#include "base/log/log.h"
#include "router/request/gateway.h"

#define RETRY_AFTER 2

static struct cgn_str engine_field(const struct gw_try *t, const char *name)
{
	for (size_t i = 0; i < t->n_headers; i++)
		if (cgn_str_eq_nocase(t->headers[i].name, cgn_str_of(name)))
			return t->headers[i].value;
	return (struct cgn_str){NULL, 0};
}

static void nonsense(struct gw_req *r)
{
	r->t.why = (struct cgn_err){.code = CGN_BAD_GATEWAY, .msg = "the node's answer makes no sense"};
	gw_wake(r);
}

/* The strings of a head are borrowed from its message: keep a copy of that instead of each of them. */
static void head_take(struct gw_req *r, struct cgn_str msg)
{
	struct proto_chunk c;
	struct cgn_str copy = cgn_arena_str(&r->work, msg);
	bool sound = copy.p != NULL && !r->t.head_seen &&
		cgn_ok(proto_chunk_read(copy, &r->work, &c, NULL)) && c.status >= 200;
	if (!sound) {
		nonsense(r);
		return;
	}
	r->t.status = c.status;
	r->t.headers = c.headers;
	r->t.n_headers = c.n_headers;
	r->t.head_seen = true;
	r->t.events = cgn_str_starts(engine_field(&r->t, "content-type"), "text/event-stream");
	if (!r->head_sent)
		r->event_stream = r->t.events;
	gw_wake(r);
}

static void data_take(struct gw_req *r, struct cgn_str data)
{
	if (r->state == GW_STREAM) {
		gw_relay(r, data);
		return;
	}
	r->t.first_data = data;
	gw_wake(r);
	if (r->tag == GW_REQ_TAG) /* buried, it is still there until the turn's end */
		r->t.first_data = (struct cgn_str){NULL, 0};
}

static void on_message(struct grpc_call *call, void *user, const uint8_t *p, size_t n)
{
	(void)call;
	struct gw_req *r = user;
	struct proto_chunk c;
	struct cgn_str msg = {(const char *)p, n};
	CGN_LIVE(r, GW_REQ_TAG);
	if (!cgn_ok(proto_chunk_read(msg, &r->work, &c, NULL)))
		nonsense(r);
	else if (c.kind == PROTO_CHUNK_HEAD)
		head_take(r, msg);
	else if (c.kind == PROTO_CHUNK_DATA && !r->t.head_seen)
		nonsense(r);
	else if (c.kind == PROTO_CHUNK_DATA && c.data.n > 0)
		data_take(r, c.data);
}

static void on_close(struct grpc_call *call, void *user, const struct cgn_err *why)
{
	(void)call;
	struct gw_req *r = user;
	CGN_LIVE(r, GW_REQ_TAG);
	r->t.call = NULL;
	r->t.closed = true;
	if (r->t.why.code == CGN_FINE)
		r->t.why = *why;
	gw_wake(r);
}

static const struct grpc_call_ops call_ops = {.on_message = on_message, .on_close = on_close};

static void send_request(struct gw_req *r)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf prefix = {0};
	struct proto_generate g = {
		.request_id = r->id,
		.method = r->method,
		.path = r->path,
		.headers = r->headers,
		.n_headers = r->n_headers,
		.facts =
			{
				.model = r->model,
				.blocks_total = r->blocks,
				.blocks_predicted = r->held,
				.chain = r->chain.short_digests,
				.n_chain = r->chain.n,
				.attempt = r->tries > 0 ? r->tries : 1,
				.stream = r->stream,
				.block_tokens = r->block_tokens,
				.router = r->w->shared->instance,
				.new_tokens = r->t.ticket.new_tokens,
				.leg = r->leg,
			},
		.body = cgn_buf_view(&r->body),
	};
	proto_generate_prefix(&g, &prefix);
	if (prefix.bad) {
		grpc_cancel(&r->t.call);
		r->t.closed = true;
		r->t.why = (struct cgn_err){.code = CGN_NO_MEMORY, .msg = "out of memory"};
		return;
	}
	const struct iovec iov[] = {{prefix.p, prefix.n}, {r->body.p, r->body.n}};
	grpc_send(r->t.call, iov, r->body.n > 0 ? 2 : 1);
	if (r->t.call != NULL)
		grpc_half_close(r->t.call);
}

void gw_try_start(struct gw_req *r, const struct view_node *node, const struct chooser_ticket *ticket,
	enum breaker_gate gate)
{
	struct gw_try *t = &r->t;
	CGN_MUST(!t->ticket.booked && t->call == NULL);
	*t = (struct gw_try){.slot = node->slot,
		.ticket = *ticket,
		.gate = gate,
		.sent_at = cgn_loop_now(r->w->loop)};
	t->node_id = cgn_arena_strz(&r->arena, cgn_str_of(node->id));
	cgn_rc rc = gw_link_get(r->w, node, &t->link, &t->why);
	if (cgn_ok(rc)) {
		t->predicted = t->link->predicted;
		t->actual = t->link->actual;
	}
	if (cgn_ok(rc))
		rc = grpc_call_start(t->link->channel, PROTO_AGENT_GENERATE, 0, &call_ops, r, &t->call,
			&t->why);
	if (cgn_ok(rc)) {
		t->why = (struct cgn_err){.code = CGN_FINE};
		send_request(r);
		return;
	}
	t->call = NULL;
	t->closed = true;
}

void gw_try_end(struct gw_req *r)
{
	struct gw_try *t = &r->t;
	if (t->ticket.booked)
		gw_judge_left(r); /* unless it was judged: its client went */
	if (t->call != NULL)
		grpc_cancel(&t->call);
	if (t->link != NULL)
		gw_link_release(r->w, &t->link);
	if (t->ticket.booked) {
		chooser_release(r->w->chooser, &t->ticket, cgn_loop_now(r->w->loop));
		gw_queue_room(r->w);
	}
}

/* ---- waiting for the first byte ---- */

enum breaker_failure gw_status_failure(int status)
{
	if (status == 429)
		return BREAKER_FULL;
	bool failed = status == 500 || status == 502 || status == 503 || status == 504;
	return failed ? BREAKER_STATUS : BREAKER_FAILURES;
}

enum breaker_failure gw_try_failure(const struct gw_try *t)
{
	enum cgn_code c = t->why.code;
	if (c == CGN_INVALID || c == CGN_UNSUPPORTED || c == CGN_UNAUTHENTICATED || c == CGN_FORBIDDEN ||
		c == CGN_TOO_LARGE)
		return BREAKER_FAILURES;
	if (c == CGN_OVERLOADED)
		return BREAKER_FULL;
	if (c == CGN_DEADLINE)
		return BREAKER_STALL;
	return c == CGN_UNAVAILABLE && !t->head_seen ? BREAKER_CONNECT : BREAKER_RESET;
}

/* Is it worth another node's time, is there one, and does the budget allow it? Takes from the budget. */
static bool may_retry(struct gw_req *r, enum breaker_failure how)
{
	if (how == BREAKER_FAILURES || (r->w->rules->retry_on & 1U << how) == 0 || !gw_can_retry(r))
		return false;
	if (retry_budget_take(&r->w->budget, cgn_loop_now(r->w->loop)))
		return true;
	metric_add(METRIC_ONE(r->w->shared->telemetry, RETRIES_DENIED), 1);
	return false;
}

void gw_unlearn(struct gw_req *r)
{
	route_record_drop(r->w->shared->choice.record, r->chain.short_digests, r->chain.n, r->t.slot);
}

static enum gw_step again(struct gw_req *r, const char *reason)
{
	gw_try_end(r);
	gw_unlearn(r);
	r->last_retry = reason;
	gw_count_retry(r, reason);
	gw_goto(r, GW_ROUTE);
	return STEP_AGAIN;
}

/* Most failures say nothing to a client but "try later"; some say what is wrong with the request. */
static int give_up_status(enum cgn_code c)
{
	bool told = c == CGN_INVALID || c == CGN_UNSUPPORTED || c == CGN_TOO_LARGE || c == CGN_DEADLINE;
	return told ? cgn_code_http(c) : 503;
}

static enum gw_step give_up(struct gw_req *r, enum cgn_code code, const char *why)
{
	int status = give_up_status(code);
	gw_try_end(r);
	if (status >= 503)
		gw_unlearn(r);
	struct gw_refusal how = {
		.status = status,
		.type = status < 500 ? "invalid_request_error" : "server_error",
		.code = status == 504   ? "engine_timeout"
			: status == 503 ? "engine_unavailable"
					: "engine_refused",
		.retry_after = status == 503 ? RETRY_AFTER : 0,
	};
	return gw_refuse(r, &how, "the engine gave no answer (tried %u): %s", r->tries, why);
}

static enum gw_step try_failed(struct gw_req *r)
{
	struct cgn_err why = r->t.why;
	if (why.code == CGN_FINE)
		why = r->t.why =
			(struct cgn_err){.code = CGN_BAD_GATEWAY, .msg = "it ended without an answer"};
	enum breaker_failure how = gw_try_failure(&r->t);
	cgn_log(INFO, "gateway.try_failed", F_STRN("id", r->id), F_STR("node", r->t.node_id),
		F_U64("try", r->tries), F_STR("code", cgn_code_name(why.code)), F_STR("why", why.msg));
	if (how == BREAKER_FAILURES)
		gw_judge_left(r);
	else if (how == BREAKER_STALL)
		gw_judge_stalled(r);
	else
		gw_judge_bad(r, how);
	if (may_retry(r, how))
		return again(r,
			how == BREAKER_FULL            ? "node_full"
				: how == BREAKER_STALL ? "stall"
						       : "failed");
	return give_up(r, why.code, why.msg);
}

/* An answer that is an error took no computing: it says nothing of the node's pace, and left nothing in its
 * cache but what was there. Its booking ends here. */
static void not_computed(struct gw_req *r, bool failed)
{
	size_t keep = failed || r->held > r->chain.n ? 0 : r->held;
	chooser_release(r->w->chooser, &r->t.ticket, cgn_loop_now(r->w->loop));
	gw_queue_room(r->w);
	if (r->chain.n > 0)
		route_record_drop(r->w->shared->choice.record, r->chain.short_digests + keep,
			r->chain.n - keep, r->t.slot);
}

static enum gw_step first_byte(struct gw_req *r)
{
	if (r->t.status < 300)
		chooser_begun(r->w->chooser, &r->t.ticket, cgn_loop_now(r->w->loop));
	else
		not_computed(r, gw_status_failure(r->t.status) != BREAKER_FAILURES);
	if (gw_status_failure(r->t.status) == BREAKER_FAILURES)
		gw_judge_begun(r);
	else
		gw_judge_bad(r, gw_status_failure(r->t.status));
	if (r->head_sent)
		gw_resume_begin(r);
	else
		gw_send_head(r);
	if (r->t.first_data.p != NULL)
		gw_relay(r, r->t.first_data);
	gw_goto(r, GW_STREAM);
	return STEP_AGAIN;
}

/* An engine that was to go on with an answer says something else. */
static enum gw_step not_gone_on(struct gw_req *r)
{
	enum breaker_failure how = gw_status_failure(r->t.status);
	if (how == BREAKER_FAILURES)
		gw_judge_left(r); /* it does not like the body: that is our doing */
	else
		gw_judge_bad(r, how);
	cgn_log(INFO, "gateway.try_failed", F_STRN("id", r->id), F_STR("node", r->t.node_id),
		F_U64("try", r->tries), F_I64("status", r->t.status));
	if (may_retry(r, how == BREAKER_FAILURES ? BREAKER_STATUS : how))
		return again(r, "resume");
	return give_up(r, CGN_BAD_GATEWAY, "no engine went on with the answer");
}

/* Nothing came, and nothing says why. */
static enum gw_step too_late(struct gw_req *r, enum breaker_failure how, const char *why)
{
	gw_judge_bad(r, how);
	if (may_retry(r, how))
		return again(r, breaker_failure_text(how));
	return give_up(r, CGN_DEADLINE, why);
}

enum gw_step gw_dispatch(struct gw_req *r)
{
	struct gw_try *t = &r->t;
	cgn_nsec waited = cgn_loop_now(r->w->loop) - t->sent_at, limit = r->w->rules->first_byte_timeout;
	enum breaker_failure said = t->head_seen ? gw_status_failure(t->status) : BREAKER_FAILURES;
	if (t->why.code != CGN_FINE || (t->closed && !t->head_seen))
		return try_failed(r);
	if (said != BREAKER_FAILURES && may_retry(r, said)) {
		gw_judge_bad(r, said);
		return again(r, said == BREAKER_FULL ? "engine_429" : "engine_5xx");
	}
	if (r->head_sent && t->head_seen &&
		(t->status != 200 || !t->events || (t->closed && t->first_data.p == NULL)))
		return not_gone_on(r);
	if (t->first_data.p != NULL || t->closed)
		return first_byte(r);
	if (waited >= limit)
		return too_late(r, BREAKER_TIMEOUT, "no first byte in time (router.first_byte_timeout)");
	if (gw_node_stalled(r, t->sent_at))
		return too_late(r, BREAKER_STALL, "its node is stalled");
	cgn_nsec look = gw_look_again(r);
	return gw_park(r, WAIT_ENGINE, look < limit - waited ? look : limit - waited);
}
