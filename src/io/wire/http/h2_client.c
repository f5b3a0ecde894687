/* SPDX-License-Identifier: Apache-2.0 */
/* h2 client: the HTTP/2 client side of one connection: many calls at once. */
#include <stdio.h>
#include <stdlib.h>

#include "io/wire/http/client_priv.h"

#define PING_PATIENCE (10 * CGN_SEC)
#define DECODE_BURST  ((size_t)8 << 20)

static const struct call_via h2_via;

static struct http_call *of_stream(struct h2_stream *st)
{
	return CGN_CONTAINER(st, struct http_call, st);
}

static struct client_conn *conn_of(struct h2_link *l)
{
	return CGN_CONTAINER(l, struct client_conn, h2.link);
}

/* ---- requests ---- */

static int32_t call_submit(struct client_conn *c, struct http_call *call, const struct http_request *rq,
	int64_t body_len)
{
	char length[24];
	struct http_field own[5] = {{CGN_STR(":method"), cgn_str_of(rq->method)},
		{CGN_STR(":scheme"), c->client->cfg.tls != NULL ? CGN_STR("https") : CGN_STR("http")},
		{CGN_STR(":authority"), cgn_str_of(c->client->authority)},
		{CGN_STR(":path"), cgn_str_of(rq->path)}};
	size_t k = 4;
	if (body_len > 0) {
		int n = snprintf(length, sizeof length, "%lld", (long long)body_len);
		own[k++] = (struct http_field){CGN_STR("content-length"), {length, (size_t)n}};
	}
	struct h2_block *b = h2_block_make(own, k, rq->fields, rq->n_fields);
	if (b == NULL)
		return NGHTTP2_ERR_NOMEM;
	nghttp2_data_provider source = h2_stream_source(&call->st);
	int32_t id = nghttp2_submit_request(c->h2.link.session, NULL, b->nv, b->n,
		body_len != 0 ? &source : NULL, &call->st);
	free(b);
	return id;
}

static void h2_lend(struct http_call *call)
{
	struct iovec all[HTTP_LENT_PIECES];
	size_t n = http_loan_take(&call->loan, call->loan.left, all);
	h2_stream_lend(&call->st, all, n);
}

static void h2_keep(struct http_call *call)
{
	h2_stream_keep(&call->st);
}

static void send_body(struct http_call *call, const struct http_request *rq)
{
	if (rq->body != NULL)
		h2_stream_write(&call->st, rq->body, rq->n_body);
	else if (call->pending.n > 0)
		h2_stream_write(&call->st, &(struct iovec){call->pending.p, call->pending.n}, 1);
	cgn_buf_fini(&call->pending);
	if (call->loan.left > 0)
		h2_lend(call);
	if (call->body_ended)
		h2_stream_end(&call->st, NULL);
}

static void conn_leave(struct client_conn *c)
{
	c->h2.leaving = true;
	http_out_retire(c);
}

static void h2_start(struct client_conn *c, struct http_call *call, const struct http_request *rq)
{
	int64_t body_len = rq->body != NULL ? (int64_t)cgn_iov_bytes(rq->body, rq->n_body)
		: rq->body_len == 0         ? (int64_t)call->pending.n
					    : rq->body_len;
	call->via = &h2_via;
	h2_stream_init(&call->st, &c->h2.link, 0);
	int32_t id = call_submit(c, call, rq, body_len);
	if (id < 0) { /* Reported at the end of the turn, never inline. */
		call->st.close_code = NGHTTP2_REFUSED_STREAM;
		conn_leave(c);
		h2_stream_wake(&call->st);
		return;
	}
	call->st.id = id;
	call->st.paused = call->paused;
	send_body(call, rq);
	/* The call may have been above its mark while it waited for this connection. */
	if (call->over && cgn_list_empty(&call->st.owed))
		cgn_list_push(&c->h2.link.owed, &call->st.owed);
	cgn_loop_defer(c->wire.loop, &c->wire.hook);
}

static void h2_body(struct http_call *call, const struct iovec *iov, size_t n)
{
	h2_stream_write(&call->st, iov, n);
}

static void h2_end(struct http_call *call)
{
	h2_stream_end(&call->st, NULL);
}

static bool h2_over_mark(struct http_call *call)
{
	return h2_stream_over_mark(&call->st);
}

static void h2_cancel(struct http_call *call)
{
	h2_stream_reset(&call->st, NGHTTP2_CANCEL);
	h2_link_pump(&call->conn->h2.link);
}

static void h2_pause(struct http_call *call, bool yes)
{
	h2_stream_pause(&call->st, yes);
}

static void h2_call_release(struct http_call *call)
{
	struct client_conn *c = call->conn;
	if (c != NULL && c->n_calls == 1)
		c->h2.idle_since = cgn_loop_now(c->wire.loop);
	h2_stream_fini(&call->st);
}

static const struct call_via h2_via = {
	.body = h2_body,
	.end = h2_end,
	.lend = h2_lend,
	.keep = h2_keep,
	.over_mark = h2_over_mark,
	.cancel = h2_cancel,
	.pause = h2_pause,
	.release = h2_call_release,
};

/* ---- answers ---- */

/* Drop our side of the stream, whatever its other end does. */
static void drop_stream(struct h2_stream *st, uint32_t code)
{
	if (!st->end_sent)
		h2_stream_reset(st, code);
}

static bool on_head(struct h2_link *l, int32_t id, struct h2_stream *st, struct http_store *s, bool full)
{
	(void)l;
	(void)id;
	if (st == NULL)
		return false;
	struct http_call *call = of_stream(st);
	if (full) {
		h2_stream_reset(st, NGHTTP2_CANCEL);
		http_call_fail(call, http_call_stage(call), CGN_BAD_GATEWAY,
			"the answer's header fields are too large");
		return false;
	}
	if (call->got_head)
		return true;
	if (s->head.status >= 200)
		http_call_head(call, &s->head);
	return false;
}

static void on_data(struct h2_stream *st, const uint8_t *p, size_t n)
{
	http_call_data(of_stream(st), p, n);
}

static void on_end(struct h2_stream *st, const struct http_field *trailers, size_t n)
{
	struct http_call *call = of_stream(st);
	drop_stream(st, NGHTTP2_NO_ERROR);
	if (call->got_head)
		http_call_finish(call, trailers, n);
	else
		http_call_fail(call, HTTP_FAIL_HEAD, CGN_BAD_GATEWAY, "the stream ended without an answer");
}

static void on_closed(struct h2_stream *st, uint32_t code)
{
	char why[96];
	struct http_call *call = of_stream(st);
	bool refused = code == NGHTTP2_REFUSED_STREAM && !call->got_head;
	(void)snprintf(why, sizeof why, "the stream was reset (%s)", nghttp2_http2_strerror(code));
	http_call_fail(call,
		refused                  ? HTTP_FAIL_STALE
			: call->got_head ? HTTP_FAIL_BODY
					 : HTTP_FAIL_HEAD,
		refused ? CGN_UNAVAILABLE : CGN_BAD_GATEWAY, why);
}

static void on_drain(struct h2_stream *st)
{
	http_call_drained(of_stream(st));
}

static void on_frame(struct h2_link *l, const nghttp2_frame *f)
{
	struct client_conn *c = conn_of(l);
	if (f->hd.type == NGHTTP2_GOAWAY)
		conn_leave(c);
	else if (f->hd.type == NGHTTP2_PING && (f->hd.flags & NGHTTP2_FLAG_ACK) != 0)
		c->h2.pinged = false;
	else if (f->hd.type == NGHTTP2_SETTINGS && (f->hd.flags & NGHTTP2_FLAG_ACK) == 0) {
		c->h2.settled = true;
		http_client_look(c->client);
	}
}

static const struct h2_link_ops link_ops = {
	.on_head = on_head,
	.on_data = on_data,
	.on_end = on_end,
	.on_closed = on_closed,
	.on_drain = on_drain,
	.on_frame = on_frame,
};

/* ---- connection ---- */

static void fail_all(struct client_conn *c, enum cgn_code code, const char *why)
{
	struct cgn_link *l;
	while ((l = cgn_list_first(&c->calls)) != NULL) {
		struct http_call *call = CGN_CONTAINER(l, struct http_call, link);
		http_call_fail(call, http_call_stage(call), code, why);
	}
}

static void h2_input(struct client_conn *c, const uint8_t *p, size_t n)
{
	if (h2_link_feed(&c->h2.link, p, n))
		return;
	http_out_close(c);
	fail_all(c, CGN_BAD_GATEWAY,
		c->h2.link.flooded ? "the peer floods the connection" : "the peer does not speak HTTP/2");
}

static void h2_eof(struct client_conn *c)
{
	http_out_close(c);
	fail_all(c, CGN_UNAVAILABLE, "the connection was closed");
}

static void h2_turn(struct client_conn *c)
{
	bool alive = h2_link_turn(&c->h2.link);
	if (c->closing)
		return;
	if (!alive || (c->h2.leaving && c->n_calls == 0)) {
		http_out_close(c);
		fail_all(c, CGN_BAD_GATEWAY, "the peer broke the rules of HTTP/2");
	} else if (!cgn_list_empty(&c->h2.link.wake))
		cgn_loop_defer(c->wire.loop, &c->wire.hook);
}

static void h2_drained(struct client_conn *c)
{
	cgn_loop_defer(c->wire.loop, &c->wire.hook);
}

static bool h2_has_room(const struct client_conn *c)
{
	/* Before the peer's SETTINGS came, one call is safe. */
	uint32_t most = c->h2.settled ? nghttp2_session_get_remote_settings(c->h2.link.session,
						NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS)
				      : 1;
	return !c->h2.leaving && c->n_calls < most &&
		nghttp2_session_check_request_allowed(c->h2.link.session) != 0;
}

static cgn_nsec next_look(const struct client_conn *c)
{
	const struct http_client_cfg *cfg = &c->client->cfg;
	if (c->h2.pinged)
		return PING_PATIENCE;
	return cfg->ping_interval != 0 && cfg->ping_interval < cfg->idle_timeout ? cfg->ping_interval
										 : cfg->idle_timeout;
}

static void h2_late(struct client_conn *c)
{
	const struct http_client_cfg *cfg = &c->client->cfg;
	cgn_nsec now = cgn_loop_now(c->wire.loop);
	if (c->h2.pinged) {
		http_out_abort(c);
		fail_all(c, CGN_UNAVAILABLE, "the peer does not answer pings");
		return;
	}
	if (c->n_calls == 0 && cgn_since(now, c->h2.idle_since) >= cfg->idle_timeout) {
		(void)nghttp2_session_terminate_session(c->h2.link.session, NGHTTP2_NO_ERROR);
		h2_link_pump(&c->h2.link);
		http_out_close(c);
		return;
	}
	if (cfg->ping_interval != 0) {
		(void)nghttp2_submit_ping(c->h2.link.session, NGHTTP2_FLAG_NONE, NULL);
		c->h2.pinged = true;
		cgn_loop_defer(c->wire.loop, &c->wire.hook);
	}
	cgn_timer_set(&c->timer, next_look(c));
}

static void h2_leave(struct client_conn *c)
{
	conn_leave(c);
	cgn_loop_defer(c->wire.loop, &c->wire.hook); /* Closes it, if it has no call. */
}

static void h2_gone(struct client_conn *c, const struct cgn_err *why)
{
	fail_all(c, why->code, why->msg);
}

static void h2_release(struct client_conn *c)
{
	h2_link_fini(&c->h2.link);
}

static void h2_init(struct client_conn *c)
{
	struct h2_link_cfg lc = {.max_streams = 0,
		.max_head_bytes = c->client->cfg.max_head_bytes,
		.max_fields = HTTP_CLIENT_FIELDS,
		.wide = c->client->cfg.wide,
		.decode_burst = DECODE_BURST};
	c->h2.idle_since = cgn_loop_now(c->wire.loop);
	cgn_timer_set(&c->timer, next_look(c));
	h2_link_init(&c->h2.link, &lc, &link_ops, &c->wire, &c->client->spare);
}

const struct client_conn_ops http_h2_out_ops = {
	.init = h2_init,
	.has_room = h2_has_room,
	.start = h2_start,
	.input = h2_input,
	.eof = h2_eof,
	.turn = h2_turn,
	.drained = h2_drained,
	.late = h2_late,
	.leave = h2_leave,
	.gone = h2_gone,
	.release = h2_release,
};
