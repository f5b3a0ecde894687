/* SPDX-License-Identifier: Apache-2.0 */
/* stream: the engine's answer to the client, byte for byte, and what the client is told when the engine dies
 * over it. */
#include "base/log/log.h"
#include "router/request/gateway.h"

#define MAX_FIELDS (PROTO_MAX_HEADERS + 4 + GW_SESSION_FIELDS + GW_LIMIT_FIELDS)

/* Fields of the engine that are not passed on: the connection's (http drops the rest of them) and those that
 * this house answers with. */
static bool starts_nocase(struct cgn_str name, const char *lead)
{
	size_t n = strlen(lead);
	return name.n >= n && cgn_str_eq_nocase((struct cgn_str){name.p, n}, cgn_str_of(lead));
}

static bool is_kept(const struct gw_req *r, struct cgn_str name)
{
	/* of a hosted engine: ours are nearer */
	return !cgn_str_eq_nocase(name, CGN_STR("x-request-id")) &&
		!cgn_str_eq_nocase(name, CGN_STR("content-length")) && !starts_nocase(name, "x-cgn-") &&
		!(r->limits != NULL && starts_nocase(name, "x-ratelimit-"));
}

static int64_t content_length(const struct gw_try *t)
{
	uint64_t n = 0;
	for (size_t i = 0; i < t->n_headers; i++)
		if (cgn_str_eq_nocase(t->headers[i].name, CGN_STR("content-length")) &&
			cgn_str_u64(t->headers[i].value, &n))
			return n <= INT64_MAX ? (int64_t)n : -1;
	return -1;
}

void gw_send_head(struct gw_req *r)
{
	struct http_field f[MAX_FIELDS];
	size_t n = 0;
	char hit[32];
	for (size_t i = 0; i < r->t.n_headers && n < PROTO_MAX_HEADERS; i++)
		if (is_kept(r, r->t.headers[i].name))
			f[n++] = (struct http_field){r->t.headers[i].name, r->t.headers[i].value};
	(void)snprintf(hit, sizeof hit, "%u/%u", r->held, r->blocks);
	f[n++] = (struct http_field){CGN_STR("x-request-id"), r->id};
	f[n++] = (struct http_field){CGN_STR("x-cgn-node"), cgn_str_of(r->t.node_id)};
	f[n++] = (struct http_field){CGN_STR("x-cgn-cache-hit"), cgn_str_of(hit)};
	n += gw_session_fields(r, f + n);
	n += gw_limit_fields(r, f + n);
	if (r->explain_text.n > 0)
		f[n++] = (struct http_field){CGN_STR("x-cgn-explain"), r->explain_text};
	r->status = r->t.status;
	r->head_sent = true;
	http_exchange_head(r->x, r->status, f, n, content_length(&r->t));
	/* No retry from here on: what only a retry needs goes, so that a stream that is open for long holds
	 * little. */
	gw_resume_keep(r);
	gw_body_drop(r);
	r->t.headers = NULL;
	r->t.n_headers = 0;
}

static void count_gap(struct gw_req *r, cgn_nsec now)
{
	struct pulse *pulse = &r->w->shared->choice.cells[r->t.slot].pulse;
	if (r->first_byte == 0)
		r->first_byte = now;
	else if (r->event_stream)
		gw_series_itl(r, now - r->last_byte);
	if (r->pieces > 0)
		pulse_gap(pulse, now - r->last_byte);
	r->pieces++;
	pulse_beat(pulse, now);
	r->last_byte = now;
}

void gw_relay(struct gw_req *r, struct cgn_str data)
{
	if (r->x == NULL)
		return;
	count_gap(r, cgn_loop_now(r->w->loop));
	if (r->resume != NULL)
		gw_resume_relay(r, data);
	else
		gw_relay_bytes(r, data);
}

void gw_relay_bytes(struct gw_req *r, struct cgn_str data)
{
	if (r->x == NULL || data.n == 0)
		return;
	if (r->bytes_out == 0 && r->event_stream)
		(void)usage_find(data, &r->usage); /* Anthropic states the prompt's tokens at the beginning */
	const struct iovec iov = {(void *)(uintptr_t)data.p, data.n};
	http_exchange_body(r->x, &iov, 1);
	r->bytes_out += data.n;
	usage_tail_add(&r->tail, data.p, data.n);
	gw_limit_relayed(r, data);
	r->last2[0] = data.n > 1 ? data.p[data.n - 2] : r->last2[1];
	r->last2[1] = data.p[data.n - 1];
	if (!r->paused && r->t.call != NULL && http_exchange_over_mark(r->x)) {
		/* a slow reader slows the engine, and fills nobody's memory */
		r->paused = r->was_paused = true;
		grpc_pause(r->t.call);
	}
}

/* An event stream ends with an error event and without [DONE]; any other body is cut, so that nobody takes
 * half of it for the whole. */
static void cut(struct gw_req *r, const struct cgn_err *why)
{
	cgn_log(WARN, "gateway.stream_cut", F_STRN("id", r->id), F_STR("node", r->t.node_id),
		F_STR("why", why->msg), F_U64("bytes", r->bytes_out));
	r->outcome = "cut";
	if (!r->event_stream) {
		http_exchange_abort(r->x, CGN_BAD_GATEWAY);
		return;
	}
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	bool between = r->bytes_out == 0 || (r->last2[0] == '\n' && r->last2[1] == '\n');
	cgn_buf_putz(&b, between ? "event: error\ndata: " : "\n\nevent: error\ndata: ");
	gw_error_json(&b, &(struct gw_refusal){502, "server_error", "engine_failed"},
		"the engine died while it answered");
	cgn_buf_putz(&b, "\n\n");
	const struct iovec iov = {b.p, b.n};
	if (b.bad) {
		http_exchange_abort(r->x, CGN_NO_MEMORY);
		return;
	}
	http_exchange_body(r->x, &iov, 1);
	http_exchange_end(r->x, NULL, 0);
}

enum gw_step gw_cut(struct gw_req *r, const struct cgn_err *why)
{
	cut(r, why);
	gw_try_end(r);
	gw_goto(r, GW_ANSWER);
	return STEP_AGAIN;
}

static enum gw_step stream_over(struct gw_req *r, const struct cgn_err *why)
{
	if (why->code != CGN_FINE)
		return gw_resume_try(r) ? STEP_AGAIN : gw_cut(r, why);
	gw_resume_flush(r);
	http_exchange_end(r->x, NULL, 0);
	gw_judge_ok(r);
	gw_try_end(r);
	gw_goto(r, GW_ANSWER);
	return STEP_AGAIN;
}

/* Is the stream dead, and why. One that its client holds up is not: write_timeout is the server's. */
static bool stream_is_dead(struct gw_req *r, struct cgn_err *why)
{
	cgn_nsec now = cgn_loop_now(r->w->loop), silent = now - r->last_byte;
	*why = r->t.why;
	if (r->t.closed || why->code != CGN_FINE) {
		if (why->code == CGN_DEADLINE)
			gw_judge_stalled(r);
		else if (why->code != CGN_FINE)
			gw_judge_bad(r, BREAKER_CUT);
		return true;
	}
	if (r->paused)
		return false;
	if (gw_stream_stalled(r, now))
		*why = (struct cgn_err){.code = CGN_DEADLINE,
			.msg = "its node is stalled (router.stall_timeout)"};
	else if (silent >= r->w->rules->stream_idle_timeout)
		*why = (struct cgn_err){.code = CGN_DEADLINE,
			.msg = "silent for too long (router.stream_idle_timeout)"};
	if (why->code != CGN_FINE)
		gw_judge_bad(r, BREAKER_STALL);
	return why->code != CGN_FINE;
}

enum gw_step gw_stream(struct gw_req *r)
{
	struct cgn_err why;
	cgn_arena_reset(&r->work); /* the chain and the head's strings: all used */
	r->chain = (struct prefix_chain){NULL, 0};
	if (stream_is_dead(r, &why))
		return stream_over(r, &why);
	return gw_park(r, WAIT_ENGINE, gw_look_again(r));
}

enum gw_step gw_answer(struct gw_req *r)
{
	return gw_park(r, WAIT_CLIENT, 0);
}
