/* SPDX-License-Identifier: Apache-2.0 */
/* h1 server: the HTTP/1 server side of one connection: one exchange at a time; pipelined requests wait,
 * bounded. */
#include <stdio.h>
#include <stdlib.h>

#include "base/unlikely/unlikely.h"
#include "io/wire/http/server_priv.h"

static const struct exchange_ops h1_exchange_ops;

/* No byte may be parsed now: the application paused, or an answer is still owed. */
static bool is_stalled(const struct server_conn *c)
{
	return c->h1.x != NULL && (c->h1.x->paused || c->h1.parser.phase == H1_DONE);
}

/* ---- answers ---- */

static bool status_has_length(int status)
{
	return status != 204 && status != 304;
}

static const char *reason_of(int status)
{
	switch (status) {
#define STATUS(code, text) \
	case code:         \
		return text;
#include "io/wire/http/status.def"
#undef STATUS
	default:
		return ""; /* The reason phrase is optional: RFC 9112 4. */
	}
}

static void buf_status(struct cgn_buf *b, int status)
{
	cgn_buf_putz(b, "HTTP/1.1 ");
	cgn_buf_u64(b, (uint64_t)status);
	cgn_buf_char(b, ' ');
	cgn_buf_putz(b, reason_of(status));
	cgn_buf_add(b, "\r\n", 2);
}

static void buf_framing(struct cgn_buf *b, const struct h1_side *h, bool bodyless, int status,
	int64_t content_length)
{
	if (h->chunked && status_has_length(status))
		cgn_buf_putz(b, "transfer-encoding: chunked\r\n");
	else if (content_length >= 0 && status_has_length(status) && !(bodyless && content_length == 0)) {
		cgn_buf_putz(b, "content-length: ");
		cgn_buf_u64(b, (uint64_t)content_length);
		cgn_buf_add(b, "\r\n", 2);
	}
	if (status == 426) /* RFC 9110, 15.5.22: the answer names a protocol that is taken. */
		cgn_buf_putz(b, "upgrade: HTTP/1.1\r\nconnection: upgrade\r\n");
	if (!h->keep)
		cgn_buf_putz(b, "connection: close\r\n");
	else if (h->parser.ll.http_minor == 0)
		cgn_buf_putz(b, "connection: keep-alive\r\n");
}

/* A short request body that is on its way may be drained instead of closing the connection. */
static bool body_will_come(const struct server_conn *c)
{
	const struct h1_parser *p = &c->h1.parser;
	return p->phase == H1_DONE ||
		(!c->h1.expect && (p->chunked || p->ll.content_length <= HTTP_DROP_BYTES));
}

static void h1_head(struct http_exchange *x, int status, const struct http_field *fields, size_t n,
	int64_t content_length)
{
	struct server_conn *c = x->conn;
	struct h1_side *h = &c->h1;
	bool old = h->parser.ll.http_minor == 0;
	h->chunked = content_length < 0 && !x->bodyless && !old;
	bool until_close = content_length < 0 && !x->bodyless && old;
	h->keep = h->parser.keep_alive && !c->server->draining && !until_close && body_will_come(c) &&
		!unlikely_way(UNLIKELY_keeps_not);
	h->expect = false;
	if (http_wire_room(&c->wire, http_fields_bytes(fields, n) + 256) == NULL)
		return;
	struct cgn_buf *b = &c->wire.out;
	buf_status(b, status);
	http_fields_write(b, fields, n);
	if (!http_has_field(fields, n, CGN_STR("date")))
		http_field_write(b, CGN_STR("date"), http_server_date(c->server));
	buf_framing(b, h, x->bodyless, status, content_length);
	cgn_buf_add(b, "\r\n", 2);
}

static void h1_body(struct http_exchange *x, const struct iovec *iov, size_t n)
{
	struct server_conn *c = x->conn;
	char size[24];
	struct cgn_str before = {NULL, 0};
	if (c->h1.chunked)
		before = (struct cgn_str){size,
			(size_t)snprintf(size, sizeof size, "%zx\r\n", cgn_iov_bytes(iov, n))};
	http_wire_send(&c->wire, before, iov, n, c->h1.chunked ? CGN_STR("\r\n") : (struct cgn_str){NULL, 0});
	http_conn_retime(c);
}

static void h1_end(struct http_exchange *x, const struct http_field *trailers, size_t n)
{
	struct server_conn *c = x->conn;
	cgn_loop_defer(c->wire.loop, &c->wire.hook);
	if (!c->h1.chunked || x->bodyless ||
		http_wire_room(&c->wire, http_fields_bytes(trailers, n) + 5) == NULL)
		return;
	cgn_buf_add(&c->wire.out, "0\r\n", 3);
	http_fields_write(&c->wire.out, trailers, n);
	cgn_buf_add(&c->wire.out, "\r\n", 2);
}

static void h1_doom(struct http_exchange *x)
{
	x->conn->h1.parser.stop = true;
	cgn_loop_defer(x->conn->wire.loop, &x->conn->wire.hook);
}

static size_t h1_queued(const struct http_exchange *x)
{
	return http_wire_queued(&x->conn->wire);
}

static bool h1_over_mark(struct http_exchange *x)
{
	return http_wire_over_mark(&x->conn->wire);
}

static void say_continue(struct server_conn *c)
{
	if (!c->h1.expect)
		return;
	c->h1.expect = false;
	http_wire_add(&c->wire, "HTTP/1.1 100 Continue\r\n\r\n", 25);
}

static void h1_pause(struct http_exchange *x, bool yes)
{
	struct server_conn *c = x->conn;
	if (x->request_done || c->wire.net == NULL)
		return;
	if (yes) {
		c->h1.parser.stop = true;
		net_pause(c->wire.net);
		return;
	}
	if (!x->has_head)
		say_continue(c);
	cgn_loop_defer(c->wire.loop, &c->wire.hook); /* Held bytes are parsed in the hook, never inline. */
}

static void h1_release(struct http_exchange *x)
{
	(void)x;
}

static const struct exchange_ops h1_exchange_ops = {
	.head = h1_head,
	.body = h1_body,
	.end = h1_end,
	.doom = h1_doom,
	.queued = h1_queued,
	.over_mark = h1_over_mark,
	.pause = h1_pause,
	.release = h1_release,
};

/* ---- refusals ---- */

static void request_refuse(struct server_conn *c, int status, enum apierror_shape shape, const char *why)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf json = {0};
	http_error_put(&json, status, shape, why);
	struct cgn_str body = cgn_buf_view(&json);
	struct cgn_buf *b = &c->wire.out;
	if (http_wire_room(&c->wire, body.n + 256) != NULL) {
		buf_status(b, status);
		http_field_write(b, CGN_STR("content-type"), CGN_STR("application/json"));
		cgn_buf_fmt(b, "content-length: %zu\r\n", body.n);
		http_field_write(b, CGN_STR("date"), http_server_date(c->server));
		cgn_buf_putz(b, "connection: close\r\n\r\n");
		cgn_buf_str(b, body);
	}
	http_conn_close(c); /* net reads on for a while, so that no reset discards the answer. */
}

/* The request cannot be read further: answer with the reason if no answer began, else cut. */
static void fail_request(struct server_conn *c, int status, enum cgn_code code, const char *why)
{
	struct http_exchange *x = c->h1.x;
	bool may_answer = x == NULL || !x->has_head;
	enum apierror_shape shape = x != NULL ? x->errors : APIERROR_OPENAI;
	c->h1.x = NULL;
	if (x != NULL)
		http_exchange_close(x, code, why);
	if (may_answer)
		request_refuse(c, status, shape, why);
	else
		http_conn_abort(c);
}

/* ---- requests ---- */

static void on_head(void *user, const struct http_head *h)
{
	struct server_conn *c = user;
	struct http_exchange *x = CGN_NEW(struct http_exchange);
	c->h1.served = true;
	c->h1.keep = false;
	http_exchange_open(x, &h1_exchange_ops, c, h);
	c->h1.x = x;
	struct cgn_str expect = http_head_get(h, "expect");
	c->h1.expect = h->version == 11 && cgn_str_eq_nocase(expect, CGN_STR("100-continue")) &&
		h->content_length != 0;
	struct http_head seen = *h;
	seen.scheme = c->server->tls ? CGN_STR("https") : CGN_STR("http");
	c->server->ops->on_request(x, &seen, c->server->user);
	if (!x->has_head && !x->paused && x->doom == CGN_FINE)
		say_continue(c);
}

static bool wants_body(const struct http_exchange *x)
{
	return x != NULL && !x->ended && x->doom == CGN_FINE;
}

static void on_body(void *user, const uint8_t *p, size_t n)
{
	struct server_conn *c = user;
	struct http_exchange *x = c->h1.x;
	if (x != NULL)
		http_exchange_came(x, n);
	if (wants_body(x)) {
		if (c->server->ops->on_body != NULL)
			c->server->ops->on_body(x, x->user, p, n);
		return;
	}
	c->h1.dropped += n;
	c->h1.drop_due = http_pace(c->h1.drop_due, cgn_loop_now(c->wire.loop), n, c->server->cfg.body_rate,
		HTTP_DROP_TIME);
}

static void on_end(void *user, const struct http_field *trailers, size_t n)
{
	(void)trailers;
	(void)n;
	struct server_conn *c = user;
	struct http_exchange *x = c->h1.x;
	if (x == NULL)
		return;
	x->request_done = true;
	if (wants_body(x) && c->server->ops->on_body_end != NULL)
		c->server->ops->on_body_end(x, x->user);
}

static const struct h1_parser_ops parser_ops = {.on_head = on_head, .on_body = on_body, .on_end = on_end};

/* Prepare for the next request. */
static void next_request(struct server_conn *c)
{
	if (!c->h1.keep || c->server->draining) {
		http_conn_close(c);
		return;
	}
	h1_parser_next(&c->h1.parser);
	c->h1.since = cgn_loop_now(c->wire.loop);
	c->h1.dropped = 0;
}

static size_t held_parse(struct server_conn *c, const uint8_t *p, size_t n)
{
	struct h1_side *h = &c->h1;
	bool fresh = h->parser.phase == H1_START;
	size_t used = h1_parser_feed(&h->parser, p, n);
	if (fresh && h->parser.phase == H1_HEAD)
		h->since = cgn_loop_now(c->wire.loop);
	if (h->parser.phase == H1_BAD) {
		c->server->stats.bad_requests++;
		fail_request(c, h->parser.fault_status,
			h->parser.fault_status == 431 ? CGN_TOO_LARGE : CGN_INVALID, h->parser.fault);
		return n;
	}
	if (h->x == NULL && h->parser.phase == H1_DONE) /* The rest of a request that was answered early. */
		next_request(c);
	else if (h->x == NULL && h->dropped > HTTP_DROP_BYTES)
		http_conn_close(c);
	return used;
}

/* Return how many bytes were used; the rest has to wait. */
static size_t bytes_consume(struct server_conn *c, const uint8_t *p, size_t n)
{
	size_t at = 0;
	do {
		if (c->closing)
			return n;
		if (is_stalled(c))
			return at;
		at += held_parse(c, p + at, n - at);
	} while (at < n);
	return at;
}

/* Count whole heads among the waiting bytes. Bodies may look like heads; then a client is read a little
 * later, which is harmless. */
static bool hold_is_long(const struct server_conn *c)
{
	uint32_t heads = 0;
	const char *at = c->hold.p, *end = c->hold.p + c->hold.n;
	if (c->hold.n > HTTP_HOLD_MARK)
		return true;
	while (at != NULL && at < end && (at = memmem(at, (size_t)(end - at), "\r\n\r\n", 4)) != NULL) {
		heads++;
		at += 4;
	}
	return heads >= c->server->cfg.max_requests_h1_pipeline;
}

static void hold_add(struct server_conn *c, const uint8_t *p, size_t n)
{
	cgn_buf_add(&c->hold, p, n);
	if (c->hold.bad) {
		http_conn_abort(c);
		return;
	}
	if (!c->h1.throttled && c->wire.net != NULL && hold_is_long(c)) {
		c->h1.throttled = true;
		net_pause(c->wire.net);
	}
}

static void h1_input(struct server_conn *c, const uint8_t *p, size_t n)
{
	size_t used = c->hold.n > 0 ? 0 : bytes_consume(c, p, n);
	if (used < n && !c->closing)
		hold_add(c, p + used, n - used);
}

static void hold_consume(struct server_conn *c)
{
	struct cgn_buf held = c->hold;
	c->hold = (struct cgn_buf){.limit = held.limit};
	size_t used = bytes_consume(c, (const uint8_t *)(held.p != NULL ? held.p : ""), held.n);
	if (used < held.n && !c->closing) {
		CGN_MUST(c->hold.n == 0);
		c->hold = held;
		cgn_buf_eat(&c->hold, used);
		return;
	}
	cgn_buf_fini(&held);
}

static void reading_resume(struct server_conn *c)
{
	bool paused = c->h1.x != NULL && c->h1.x->paused && !c->h1.x->request_done;
	if (c->closing || c->wire.net == NULL || paused ||
		(c->h1.throttled && c->hold.n > 0 && hold_is_long(c)))
		return;
	c->h1.throttled = false;
	net_resume(c->wire.net);
}

static void answer_finish(struct server_conn *c, struct http_exchange *x)
{
	bool whole = c->h1.parser.phase == H1_DONE;
	c->h1.x = NULL;
	c->h1.drop_due = cgn_loop_now(c->wire.loop) + HTTP_DROP_TIME;
	http_exchange_close(x, CGN_FINE, "");
	if (whole)
		next_request(c);
	else if (!c->h1.keep)
		http_conn_close(c);
}

static void answer_cut(struct server_conn *c, struct http_exchange *x)
{
	bool until_close = x->has_head && !c->h1.chunked && x->answer_left < 0;
	c->h1.x = NULL;
	http_exchange_close(x, x->doom, "aborted");
	if (until_close) /* A proper end would look like the end of the answer. */
		http_conn_abort(c);
	else
		http_conn_close(c);
}

static void h1_turn(struct server_conn *c)
{
	do {
		http_wire_flush(&c->wire);
		struct http_exchange *x = c->h1.x;
		if (x != NULL && x->doom != CGN_FINE)
			answer_cut(c, x);
		else if (x != NULL && x->ended)
			answer_finish(c, x);
		if (c->closing)
			return;
		if (!is_stalled(c) && (c->hold.n > 0 || c->h1.parser.halted))
			hold_consume(c);
	} while (http_wire_can_flush(&c->wire) ||
		(c->h1.x != NULL && (c->h1.x->ended || c->h1.x->doom != CGN_FINE)));
	if (c->closing)
		return;
	reading_resume(c);
	if (c->h1.x != NULL)
		http_exchange_drained(c->h1.x);
}

static void h1_eof(struct server_conn *c)
{
	struct http_exchange *x = c->h1.x;
	c->h1.x = NULL;
	if (x != NULL)
		http_exchange_close(x, CGN_CANCELLED, "the client closed the connection");
	http_conn_close(c);
}

static void h1_drained(struct server_conn *c)
{
	if (c->h1.x != NULL)
		http_exchange_drained(c->h1.x);
}

static void h1_wind_down(struct server_conn *c)
{
	if (c->h1.x == NULL && c->h1.parser.phase == H1_START)
		http_conn_close(c);
}

/* ---- time ---- */

static cgn_nsec reading_deadline(const struct server_conn *c)
{
	const struct h1_side *h = &c->h1;
	const struct http_server_cfg *cfg = &c->server->cfg;
	if (h->x == NULL && h->parser.phase == H1_BODY)
		return h->drop_due;
	if (h->parser.phase == H1_START)
		return h->since + (h->served ? cfg->idle_timeout : cfg->head_timeout);
	if (h->parser.phase == H1_HEAD)
		return h->since + cfg->head_timeout;
	if (h->x != NULL && !h->x->request_done && !h->x->paused)
		return h->x->body_due;
	return 0;
}

static cgn_nsec writing_deadline(struct server_conn *c)
{
	if (c->wire.net == NULL || net_queued(c->wire.net) == 0)
		return 0;
	return http_wire_progress(&c->wire) + c->server->cfg.write_timeout;
}

static cgn_nsec h1_deadline(struct server_conn *c)
{
	cgn_nsec r = reading_deadline(c), w = writing_deadline(c);
	return r == 0 || (w != 0 && w < r) ? w : r;
}

static void late_writing(struct server_conn *c)
{
	struct http_exchange *x = c->h1.x;
	c->h1.x = NULL;
	if (x != NULL)
		http_exchange_close(x, CGN_REQUEST_TIMEOUT, "the client does not take the answer");
	http_conn_abort(c);
}

static void h1_late(struct server_conn *c)
{
	cgn_nsec w = writing_deadline(c), now = cgn_loop_now(c->wire.loop);
	if (w != 0 && w <= now)
		late_writing(c);
	else if (c->h1.parser.phase == H1_START || (c->h1.x == NULL && c->h1.parser.phase == H1_BODY))
		http_conn_close(c);
	else
		fail_request(c, 408, CGN_REQUEST_TIMEOUT,
			c->h1.parser.phase == H1_HEAD ? "the request head took too long"
						      : "the request body took too long");
}

static void h1_conn_release(struct server_conn *c)
{
	h1_parser_fini(&c->h1.parser);
}

static void h1_conn_init(struct server_conn *c)
{
	h1_parser_init(&c->h1.parser, false, &parser_ops, c, &c->server->spare, c->server->cfg.max_head_bytes,
		c->server->cfg.max_fields);
	c->h1.since = cgn_loop_now(c->wire.loop);
}

const struct server_conn_ops http_h1_conn_ops = {
	.init = h1_conn_init,
	.input = h1_input,
	.eof = h1_eof,
	.turn = h1_turn,
	.drained = h1_drained,
	.wind_down = h1_wind_down,
	.deadline = h1_deadline,
	.late = h1_late,
	.release = h1_conn_release,
};
