/* SPDX-License-Identifier: Apache-2.0 */
/* h2 server: the HTTP/2 server side of one connection. */
#include <stdio.h>
#include <stdlib.h>

#include "io/wire/http/server_priv.h"

/* Streams that a client may reset before they were answered: at once, and per second. */
#define RESET_BURST    1000
#define RESET_RATE     200
#define DECODE_BURST   ((size_t)1 << 20)
#define TRUSTED_FACTOR 10 /* For inner gRPC ports, where a router passes on the cancels of all its clients. */

struct h2_exchange {
	struct http_exchange x; /* First member: both are freed as one. */
	struct h2_stream st;
	struct h2_block *head; /* Kept until it is known whether a body follows. */
	bool expect;           /* A 100 Continue is owed. */
};

static struct h2_exchange *of_x(struct http_exchange *x)
{
	return CGN_CONTAINER(x, struct h2_exchange, x);
}

static struct h2_exchange *of_stream(struct h2_stream *st)
{
	return CGN_CONTAINER(st, struct h2_exchange, st);
}

static struct server_conn *conn_of(struct h2_link *l)
{
	return CGN_CONTAINER(l, struct server_conn, h2.link);
}

/* ---- answers ---- */

static struct cgn_str decimal_text(char *out, size_t cap, int64_t v)
{
	int n = snprintf(out, cap, "%lld", (long long)v);
	return (struct cgn_str){out, (size_t)n};
}

static void h2_head(struct http_exchange *x, int status, const struct http_field *fields, size_t n,
	int64_t content_length)
{
	struct h2_exchange *e = of_x(x);
	char code[16], length[24];
	struct http_field own[3] = {{CGN_STR(":status"), decimal_text(code, sizeof code, status)}};
	size_t k = 1;
	if (!http_has_field(fields, n, CGN_STR("date")))
		own[k++] = (struct http_field){CGN_STR("date"), http_server_date(x->conn->server)};
	if (content_length >= 0 && status != 204 && status != 304 && !(x->bodyless && content_length == 0))
		own[k++] = (struct http_field){CGN_STR("content-length"),
			decimal_text(length, sizeof length, content_length)};
	e->head = h2_block_make(own, k, fields, n);
	if (e->head == NULL)
		http_exchange_abort(x, CGN_NO_MEMORY);
	else
		h2_stream_wake(&e->st); /* Sent at the end of the turn, if nothing follows before. */
}

/* END_STREAM goes with the head when nothing follows it (gRPC's Trailers-Only). */
static void submit_head(struct h2_exchange *e, bool alone)
{
	if (e->head == NULL || e->st.id <= 0)
		return;
	nghttp2_data_provider source = h2_stream_source(&e->st);
	(void)nghttp2_submit_response(e->st.link->session, e->st.id, e->head->nv, e->head->n,
		alone ? NULL : &source);
	free(e->head);
	e->head = NULL;
}

static void h2_body(struct http_exchange *x, const struct iovec *iov, size_t n)
{
	submit_head(of_x(x), false);
	h2_stream_write(&of_x(x)->st, iov, n);
}

static void h2_end(struct http_exchange *x, const struct http_field *trailers, size_t n)
{
	struct h2_exchange *e = of_x(x);
	struct h2_block *tail = n > 0 ? h2_block_make(NULL, 0, trailers, n) : NULL;
	submit_head(e, tail == NULL);
	h2_stream_end(&e->st, &tail);
}

static void h2_doom(struct http_exchange *x)
{
	struct h2_stream *st = &of_x(x)->st;
	/* Reset at the end of the turn: a reset overtakes bytes that were written before it. */
	st->reset_due = true;
	st->reset_code = x->doom == CGN_CANCELLED ? NGHTTP2_CANCEL : NGHTTP2_INTERNAL_ERROR;
	h2_stream_wake(st);
}

static size_t h2_queued(const struct http_exchange *x)
{
	return h2_stream_queued(&((const struct h2_exchange *)(const void *)x)->st);
}

static bool h2_over_mark(struct http_exchange *x)
{
	return h2_stream_over_mark(&of_x(x)->st);
}

static void say_continue(struct h2_exchange *e)
{
	if (!e->expect || e->x.has_head || e->st.id <= 0)
		return;
	e->expect = false;
	struct http_field status = {CGN_STR(":status"), CGN_STR("100")};
	struct h2_block *b = h2_block_make(&status, 1, NULL, 0);
	if (b != NULL)
		(void)nghttp2_submit_headers(e->st.link->session, NGHTTP2_FLAG_NONE, e->st.id, NULL, b->nv,
			b->n, NULL);
	free(b);
}

static void h2_pause(struct http_exchange *x, bool yes)
{
	if (!yes)
		say_continue(of_x(x));
	h2_stream_pause(&of_x(x)->st, yes);
}

static void h2_exchange_release(struct http_exchange *x)
{
	struct h2_exchange *e = of_x(x);
	h2_stream_fini(&e->st);
	free(e->head);
	e->head = NULL;
}

static const struct exchange_ops h2_exchange_ops = {
	.head = h2_head,
	.body = h2_body,
	.end = h2_end,
	.doom = h2_doom,
	.queued = h2_queued,
	.over_mark = h2_over_mark,
	.pause = h2_pause,
	.release = h2_exchange_release,
};

/* ---- requests ---- */

static ssize_t refusal_read(nghttp2_session *s, int32_t id, uint8_t *buf, size_t len, uint32_t *flags,
	nghttp2_data_source *src, void *user)
{
	(void)s;
	(void)id;
	(void)user;
	const char *json = src->ptr;
	size_t n = strlen(json);
	*flags |= NGHTTP2_DATA_FLAG_EOF;
	if (n > len)
		return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
	memcpy(buf, json, n);
	return (ssize_t)n;
}

/* The head is too large: answer the stream without an exchange. */
static void refuse_head(struct h2_link *l, int32_t id)
{
	static _Thread_local char json[256]; /* always the same text: read until the stream is done */
	struct cgn_buf text = cgn_buf_over(json, sizeof json - 1);
	struct http_field own[] = {{CGN_STR(":status"), CGN_STR("431")},
		{CGN_STR("content-type"), CGN_STR("application/json")}};
	struct h2_block *b = h2_block_make(own, CGN_COUNT(own), NULL, 0);
	nghttp2_data_provider source = {.source.ptr = json, .read_callback = refusal_read};
	http_error_put(&text, 431, APIERROR_OPENAI, "the header fields are larger than this server accepts");
	conn_of(l)->server->stats.bad_requests++;
	if (b != NULL)
		(void)nghttp2_submit_response(l->session, id, b->nv, b->n, &source);
	free(b);
}

static bool on_head(struct h2_link *l, int32_t id, struct h2_stream *st, struct http_store *s, bool full)
{
	struct server_conn *c = conn_of(l);
	if (st != NULL || c->closing)
		return false; /* Request trailers are dropped. */
	if (full) {
		refuse_head(l, id);
		return false;
	}
	struct h2_exchange *e = CGN_NEW(struct h2_exchange);
	h2_stream_init(&e->st, l, id);
	(void)nghttp2_session_set_stream_user_data(l->session, id, &e->st);
	http_exchange_open(&e->x, &h2_exchange_ops, c, &s->head);
	e->expect = s->head.content_length != 0 &&
		cgn_str_eq_nocase(http_head_get(&s->head, "expect"), CGN_STR("100-continue"));
	c->server->ops->on_request(&e->x, &s->head, c->server->user);
	if (!e->x.paused && e->x.doom == CGN_FINE)
		say_continue(e);
	return false;
}

static bool wants_body(const struct http_exchange *x)
{
	return !x->ended && x->doom == CGN_FINE;
}

static void on_data(struct h2_stream *st, const uint8_t *p, size_t n)
{
	struct http_exchange *x = &of_stream(st)->x;
	http_exchange_came(x, n);
	if (wants_body(x) && x->conn->server->ops->on_body != NULL)
		x->conn->server->ops->on_body(x, x->user, p, n);
}

static void on_end(struct h2_stream *st, const struct http_field *trailers, size_t n)
{
	(void)trailers;
	(void)n;
	struct http_exchange *x = &of_stream(st)->x;
	x->request_done = true;
	if (wants_body(x) && x->conn->server->ops->on_body_end != NULL)
		x->conn->server->ops->on_body_end(x, x->user);
}

static void on_closed(struct h2_stream *st, uint32_t code)
{
	struct http_exchange *x = &of_stream(st)->x;
	struct server_conn *c = x->conn;
	c->h2.since = cgn_loop_now(c->wire.loop);
	if (x->doom != CGN_FINE)
		http_exchange_close(x, x->doom, "aborted");
	else if (st->end_sent)
		http_exchange_close(x, CGN_FINE, "");
	else
		http_exchange_close(x, CGN_CANCELLED, nghttp2_http2_strerror(code));
}

static void on_drain(struct h2_stream *st)
{
	http_exchange_drained(&of_stream(st)->x);
}

static const struct h2_link_ops link_ops = {
	.on_head = on_head,
	.on_data = on_data,
	.on_end = on_end,
	.on_closed = on_closed,
	.on_drain = on_drain,
};

/* ---- connection ---- */

static void h2_input(struct server_conn *c, const uint8_t *p, size_t n)
{
	uint64_t bad = c->h2.link.bad_frames;
	bool alive = h2_link_feed(&c->h2.link, p, n);
	c->server->stats.bad_requests += c->h2.link.bad_frames - bad;
	if (alive)
		return;
	if (c->h2.link.flooded)
		c->server->stats.floods++;
	else
		c->server->stats.bad_requests++;
	http_conn_close(c);
}

static void h2_eof(struct server_conn *c)
{
	http_conn_close(c);
	http_conn_end_exchanges(c, "the client closed the connection");
}

/* Send a head that the application gave without a body yet. */
static void send_heads(struct server_conn *c)
{
	cgn_list_each (l, &c->h2.link.wake) {
		struct h2_exchange *e = of_stream(CGN_CONTAINER(l, struct h2_stream, wake));
		submit_head(e, false);
	}
}

static void h2_turn(struct server_conn *c)
{
	send_heads(c);
	if (!h2_link_turn(&c->h2.link) || (c->h2.leaving && cgn_list_empty(&c->exchanges)))
		http_conn_close(c);
	else if (!cgn_list_empty(&c->h2.link.wake))
		cgn_loop_defer(c->wire.loop, &c->wire.hook);
}

static void h2_drained(struct server_conn *c)
{
	cgn_loop_defer(c->wire.loop, &c->wire.hook);
}

static void h2_wind_down(struct server_conn *c)
{
	c->h2.leaving = true;
	(void)nghttp2_submit_goaway(c->h2.link.session, NGHTTP2_FLAG_NONE,
		nghttp2_session_get_last_proc_stream_id(c->h2.link.session), NGHTTP2_NO_ERROR, NULL, 0);
	cgn_loop_defer(c->wire.loop, &c->wire.hook);
}

/* ---- time: all streams are checked periodically instead of by a timer for each ---- */

static cgn_nsec check_interval(const struct http_server_cfg *cfg)
{
	cgn_nsec least = cfg->head_timeout;
	least = cfg->body_timeout < least ? cfg->body_timeout : least;
	least = cfg->write_timeout < least ? cfg->write_timeout : least;
	least = cfg->idle_timeout < least ? cfg->idle_timeout : least;
	return least / 4 + 1;
}

static void late_body(struct http_exchange *x)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf json = {0};
	struct http_field type = {CGN_STR("content-type"), CGN_STR("application/json")};
	struct h2_exchange *e = of_x(x);
	x->doom = CGN_REQUEST_TIMEOUT; /* The code for on_close. */
	if (x->has_head) {
		h2_doom(x);
		return;
	}
	http_error_put(&json, 408, x->errors, "the request body took too long");
	struct cgn_str body = cgn_buf_view(&json);
	struct iovec whole = http_iov(body);
	h2_head(x, 408, &type, 1, (int64_t)body.n);
	h2_body(x, &whole, 1);
	h2_stream_end(&e->st, NULL);
}

static void check_exchange(struct http_exchange *x, cgn_nsec now)
{
	const struct http_server_cfg *cfg = &x->conn->server->cfg;
	struct h2_stream *st = &of_x(x)->st;
	if (x->doom != CGN_FINE)
		return;
	if (!x->request_done && !x->paused && st->hold.n == 0 && now >= x->body_due)
		late_body(x);
	else if (h2_stream_queued(st) > 0 && cgn_since(now, st->taken_at) >= cfg->write_timeout) {
		x->doom = CGN_REQUEST_TIMEOUT;
		h2_stream_reset(st, NGHTTP2_CANCEL);
	}
}

static bool conn_is_late(struct server_conn *c, cgn_nsec now)
{
	const struct http_server_cfg *cfg = &c->server->cfg;
	const struct h2_link *l = &c->h2.link;
	if (l->store_since != 0 && cgn_since(now, l->store_since) >= cfg->head_timeout)
		return true;
	if (http_wire_queued(&c->wire) > 0 &&
		cgn_since(now, http_wire_progress(&c->wire)) >= cfg->write_timeout)
		return true;
	return cgn_list_empty(&c->exchanges) && cgn_since(now, c->h2.since) >= cfg->idle_timeout;
}

static cgn_nsec h2_deadline(struct server_conn *c)
{
	return c->h2.check_at;
}

static void h2_late(struct server_conn *c)
{
	cgn_nsec now = cgn_loop_now(c->wire.loop);
	c->h2.check_at = now + check_interval(&c->server->cfg);
	if (conn_is_late(c, now)) {
		(void)nghttp2_session_terminate_session(c->h2.link.session, NGHTTP2_NO_ERROR);
		h2_link_pump(&c->h2.link);
		http_conn_close(c);
		http_conn_end_exchanges(c, "the client is too slow");
		return;
	}
	cgn_list_each_safe (l, &c->exchanges)
		check_exchange(CGN_CONTAINER(l, struct http_exchange, link), now);
}

static void h2_conn_release(struct server_conn *c)
{
	h2_link_fini(&c->h2.link);
}

static void h2_conn_init(struct server_conn *c)
{
	const struct http_server_cfg *cfg = &c->server->cfg;
	uint32_t factor = cfg->h2_only ? TRUSTED_FACTOR : 1;
	struct h2_link_cfg lc = {.server = true,
		.max_streams = cfg->max_streams,
		.max_head_bytes = cfg->max_head_bytes,
		.max_fields = cfg->max_fields,
		.wide = cfg->h2_only,
		.reset_burst = RESET_BURST * factor,
		.reset_rate = RESET_RATE * factor,
		.decode_burst = DECODE_BURST * factor};
	c->h2.since = cgn_loop_now(c->wire.loop);
	c->h2.check_at = c->h2.since + check_interval(cfg);
	h2_link_init(&c->h2.link, &lc, &link_ops, &c->wire, &c->server->spare);
}

const struct server_conn_ops http_h2_conn_ops = {
	.init = h2_conn_init,
	.input = h2_input,
	.eof = h2_eof,
	.turn = h2_turn,
	.drained = h2_drained,
	.wind_down = h2_wind_down,
	.deadline = h2_deadline,
	.late = h2_late,
	.release = h2_conn_release,
};
