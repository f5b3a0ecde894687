/* SPDX-License-Identifier: Apache-2.0 */
/* attempt: from the call that is sent to the head and the bytes of its answer. */
#include "router/request/attempt/attempt.h"

#include "base/unlikely/unlikely.h"
#include "router/request/attempt/direct.h"
#include "router/request/attempt/opening.h"
#include "router/request/attempt/peercall.h"
#include "router/request/attempt/verdict.h"

#define POLL_LEAST (5 * CGN_MSEC)
#define HUNG_UP    CGN_INTERNAL /* As enginecall_hung_up has it. */

void gw_attempt_refuse(struct gw_attempt *a, enum cgn_code code)
{
	if (code == CGN_NO_MEMORY)
		a->call.why = (struct cgn_err){.code = code, .msg = "no memory for the head of the answer"};
	else
		a->call.why =
			(struct cgn_err){.code = CGN_BAD_GATEWAY, .msg = "the node's answer makes no sense"};
	a->ops->on_event(a->user);
}

static bool is_event_stream(const struct gw_attempt *a)
{
	for (size_t i = 0; i < a->n_headers; i++)
		if (cgn_str_eq_nocase(a->headers[i].name, CGN_STR("content-type")))
			return cgn_str_starts(a->headers[i].value, "text/event-stream");
	return false;
}

void gw_attempt_head(struct gw_attempt *a, int status, const struct proto_header *headers, size_t n)
{
	a->status = status;
	a->headers = headers;
	a->n_headers = n;
	a->head_seen = true;
	a->events = is_event_stream(a);
	gw_opening_head(a);
	a->ops->on_event(a->user);
}

/* The strings of a head are borrowed from its message: copy the message rather than each of them. */
static void head_take(struct gw_attempt *a, struct cgn_str msg)
{
	struct proto_chunk c;
	if (a->head_seen || msg.n > GW_HEAD_MAX) {
		gw_attempt_refuse(a, CGN_BAD_GATEWAY);
		return;
	}
	struct cgn_str copy = cgn_arena_str(a->head, msg);
	cgn_rc rc = copy.p != NULL ? proto_chunk_read(copy, a->head, &c, NULL) : CGN_RC_OF(CGN_NO_MEMORY);
	if (!cgn_ok(rc) || c.status < 200) {
		gw_attempt_refuse(a, rc.code);
		return;
	}
	gw_attempt_head(a, c.status, c.headers, c.n_headers);
}

static void on_message(struct grpc_call *call, void *user, const uint8_t *p, size_t n)
{
	(void)call;
	struct gw_attempt *a = user;
	struct proto_chunk c;
	struct cgn_str msg = {(const char *)p, n};
	cgn_rc rc = proto_chunk_read(msg, a->head, &c, NULL);
	if (!cgn_ok(rc))
		gw_attempt_refuse(a, rc.code);
	else if (c.kind == PROTO_CHUNK_HEAD)
		head_take(a, msg);
	else if (c.kind == PROTO_CHUNK_DATA && !a->head_seen)
		gw_attempt_refuse(a, CGN_BAD_GATEWAY);
	else if (c.kind == PROTO_CHUNK_DATA && c.data.n > 0)
		a->ops->on_data(a->user, c.data);
}

static void on_close(struct grpc_call *call, void *user, const struct cgn_err *why)
{
	(void)call;
	struct gw_attempt *a = user;
	gw_call_on_close(&a->call, why);
	a->ops->on_event(a->user);
}

static const struct grpc_call_ops call_ops = {.on_message = on_message, .on_close = on_close};

void gw_attempt_by_agent(struct gw_attempt *a, const struct proto_generate *g)
{
	gw_call_by_agent(&a->call, a->arena, g, &call_ops, a);
}

void gw_attempt_begin(struct gw_attempt *a, const struct gw_attempt_cfg *cfg)
{
	CGN_MUST(!a->ticket.booked && !gw_call_is_open(&a->call) && a->call.link == NULL);
	*a = (struct gw_attempt){.w = cfg->w,
		.turn = a->turn + 1,
		.used = gw_attempt_joules(a),
		.arena = cfg->arena,
		.head = cfg->head,
		.ops = cfg->ops,
		.user = cfg->user,
		.ticket = cfg->ticket,
		.gate = cfg->gate,
		.call.lends = true,
		.opening.route = cfg->route,
		.opening.answers = cfg->answers,
		.once = cfg->once,
		.sent_at = cgn_loop_now(cfg->w->loop)};
}

void gw_attempt_start(struct gw_attempt *a, const struct gw_attempt_cfg *cfg, const struct view_node *node,
	const struct proto_generate *g)
{
	gw_attempt_begin(a, cfg);
	if (!gw_call_link(&a->call, cfg->w, node, cfg->arena))
		return;
	a->predicted = a->call.link->predicted;
	a->actual = a->call.link->actual;
	if (node->direct.door != NULL)
		gw_direct_bare(a, node, cfg->arena, g);
	else if (!gw_direct_start(a, node, cfg->arena, g))
		gw_attempt_by_agent(a, g);
}

struct chooser_energy gw_attempt_joules(const struct gw_attempt *a)
{
	struct chooser_energy all = a->used;
	if (a->w == NULL)
		return all;
	const struct chooser_energy e = chooser_joules(a->w->chooser, &a->ticket, cgn_loop_now(a->w->loop));
	all.counted |= e.counted;
	all.prefill_j += e.prefill_j;
	all.decode_j += e.decode_j;
	return all;
}

void gw_attempt_beat(struct gw_attempt *a)
{
	struct pulse *pulse = &a->w->shared->choice.stats[a->call.slot].pulse;
	cgn_nsec now = cgn_loop_now(a->w->loop);
	if (a->pieces > 0)
		pulse_gap(pulse, cgn_since(now, a->last_byte));
	a->pieces++;
	pulse_beat(pulse, now);
	a->last_byte = now;
}

bool gw_attempt_release(struct gw_attempt *a)
{
	if (!a->ticket.booked)
		return false;
	chooser_release(a->w->chooser, &a->ticket, cgn_loop_now(a->w->loop));
	return true;
}

bool gw_attempt_end(struct gw_attempt *a)
{
	if (a->w == NULL)
		return false;
	if (a->ticket.booked)
		gw_verdict_none(a);
	gw_direct_end(a);
	gw_peercall_end(a);
	gw_call_end(&a->call, a->w);
	gw_opening_drop(a);
	coding_close(&a->opening.decoder);
	return gw_attempt_release(a);
}

static enum breaker_failure status_failure(enum opening_status says, bool document)
{
	static const enum breaker_failure hows[] = {
		[STATUS_JUDGED] = BREAKER_FAILURES,
		[STATUS_NOTHING] = BREAKER_FAILURES,
		[STATUS_REQUEST] = BREAKER_FAILURES,
		[STATUS_NODE] = BREAKER_FAILURES, /* router/plan/refused.h */
		[STATUS_BROKE] = BREAKER_ERROR,
		[STATUS_FULL] = BREAKER_FULL,
		[STATUS_FAILED] = BREAKER_STATUS,
	};
	return says == STATUS_NOTHING && document ? BREAKER_ERROR : hows[says];
}

enum breaker_failure gw_attempt_status_failure(const struct gw_attempt *a)
{
	for (size_t i = 0; a->status == 503 && i < a->n_headers; i++)
		if (cgn_str_is(a->headers[i].name, PROTO_REFUSED))
			return BREAKER_FULL;
	if (!a->head_seen)
		return BREAKER_FAILURES;
	if (a->opening.reader.says >= OPENING_ERROR)
		return BREAKER_ERROR;
	return status_failure(opening_status(a->status), a->opening.route == OPENING_JSON);
}

bool gw_attempt_is_error(const struct gw_attempt *a)
{
	enum opening_says says = a->opening.reader.says;
	return a->head_seen && (a->status >= 400 || says == OPENING_REFUSAL || says == OPENING_ERROR);
}

enum breaker_failure gw_attempt_failure(const struct gw_attempt *a)
{
	enum cgn_code c = a->call.why.code;
	if (c == CGN_INVALID || c == CGN_UNSUPPORTED || c == CGN_UNAUTHENTICATED || c == CGN_FORBIDDEN ||
		c == CGN_TOO_LARGE)
		return BREAKER_FAILURES;
	if (c == CGN_NO_MEMORY)
		return BREAKER_OURS;
	if (c == CGN_OVERLOADED)
		return BREAKER_FULL;
	if (c == CGN_DEADLINE)
		return BREAKER_STALL;
	bool unsent = (c == CGN_UNAVAILABLE || c == HUNG_UP) && !a->head_seen && !a->begun_unseen;
	return unsent ? BREAKER_CONNECT : BREAKER_RESET;
}

bool gw_attempt_died(const struct gw_attempt *a)
{
	if (a->peer != NULL || a->head_seen || !a->call.closed || a->call.why.code == CGN_FINE)
		return false;
	/* An agent that is asked after the engine hung up may know only that it can't be reached. */
	return a->call.why.code == HUNG_UP || (a->direct.retried && gw_attempt_failure(a) == BREAKER_CONNECT);
}

cgn_nsec gw_attempt_poll(const struct gw_worker *w)
{
	cgn_nsec stall = w->rules->timeout.stall, idle = w->rules->timeout.stream_idle / 4;
	/* A cluster that is lost gives its requests back soon. */
	if (w->shared->peers != NULL && idle > 200 * CGN_MSEC)
		idle = 200 * CGN_MSEC;
	cgn_nsec most = stall > 0 && stall / 4 < idle ? stall / 4 : idle;
	most = unlikely_way(UNLIKELY_look_soon) ? 0 : most;
	return most > CGN_SEC ? CGN_SEC : most > POLL_LEAST ? most : POLL_LEAST;
}
