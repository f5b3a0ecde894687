/* SPDX-License-Identifier: Apache-2.0 */
/* h1 client: the HTTP/1 client side of one connection: one call at a time, no pipelining. */
#include <stdio.h>

#include "io/wire/http/client_priv.h"

static const struct call_via h1_via;

/* ---- requests ---- */

static size_t head_bytes(const struct http_client *cl, const struct http_request *rq)
{
	return strlen(rq->method) + strlen(rq->path) + strlen(cl->authority) +
		http_fields_bytes(rq->fields, rq->n_fields) + 128;
}

static void buf_head(struct cgn_buf *b, const struct client_conn *c, const struct http_request *rq,
	int64_t body_len)
{
	cgn_buf_putz(b, rq->method);
	cgn_buf_char(b, ' ');
	cgn_buf_putz(b, rq->path);
	cgn_buf_putz(b, " HTTP/1.1\r\n");
	http_field_write(b, CGN_STR("host"), cgn_str_of(c->client->authority));
	for (size_t i = 0; i < rq->n_fields; i++)
		if (http_field_passes(rq->fields, rq->n_fields, i) &&
			!cgn_str_eq_nocase(rq->fields[i].name, CGN_STR("host")) &&
			!cgn_str_eq_nocase(rq->fields[i].name, CGN_STR("expect")))
			http_field_write(b, rq->fields[i].name, rq->fields[i].value);
	if (body_len < 0)
		cgn_buf_putz(b, "transfer-encoding: chunked\r\n");
	else if (body_len > 0 || strcmp(rq->method, "GET") != 0) {
		cgn_buf_putz(b, "content-length: ");
		cgn_buf_u64(b, (uint64_t)body_len);
		cgn_buf_add(b, "\r\n", 2);
	}
	cgn_buf_add(b, "\r\n", 2);
}

static void h1_body(struct http_call *call, const struct iovec *iov, size_t n)
{
	struct client_conn *c = call->conn;
	char size[24];
	struct cgn_str before = {NULL, 0};
	if (c->h1.chunked)
		before = (struct cgn_str){size,
			(size_t)snprintf(size, sizeof size, "%zx\r\n", cgn_iov_bytes(iov, n))};
	http_wire_send(&c->wire, before, iov, n, c->h1.chunked ? CGN_STR("\r\n") : (struct cgn_str){NULL, 0});
}

/* A body goes to the connection in pieces, so that no copy of all of it waits for the socket. */
#define LENT_PIECE ((size_t)128 * 1024)

static void h1_end(struct http_call *call);

static void h1_lend(struct http_call *call)
{
	struct iovec piece[HTTP_LENT_PIECES];
	while (call->loan.left > 0 && !http_wire_over_mark(&call->conn->wire))
		h1_body(call, piece, http_loan_take(&call->loan, LENT_PIECE, piece));
	if (call->loan.left == 0 && call->body_ended)
		h1_end(call);
}

static void h1_keep(struct http_call *call)
{
	struct iovec all[HTTP_LENT_PIECES];
	if (call->loan.left == 0)
		return;
	h1_body(call, all, http_loan_take(&call->loan, call->loan.left, all));
	if (call->body_ended)
		h1_end(call);
}

static void h1_end(struct http_call *call)
{
	if (call->conn->h1.chunked && call->loan.left == 0)
		http_wire_add(&call->conn->wire, "0\r\n\r\n", 5);
}

static void send_body(struct http_call *call, const struct http_request *rq)
{
	if (rq->body != NULL)
		http_wire_send(&call->conn->wire, (struct cgn_str){NULL, 0}, rq->body, rq->n_body,
			(struct cgn_str){NULL, 0});
	else if (call->pending.n > 0)
		h1_body(call, &(struct iovec){call->pending.p, call->pending.n}, 1);
	cgn_buf_fini(&call->pending);
	if (call->loan.left > 0)
		h1_lend(call);
	else if (call->body_ended)
		h1_end(call);
}

static void h1_start(struct client_conn *c, struct http_call *call, const struct http_request *rq)
{
	int64_t body_len = rq->body != NULL ? (int64_t)cgn_iov_bytes(rq->body, rq->n_body)
		: rq->body_len == 0         ? (int64_t)call->pending.n
					    : rq->body_len;
	call->via = &h1_via;
	c->h1.call = call;
	c->h1.busy = true;
	c->h1.chunked = body_len < 0;
	h1_parser_next(&c->h1.parser);
	c->h1.parser.no_body = call->is_head;
	cgn_timer_cancel(&c->timer);
	if (http_wire_room(&c->wire, head_bytes(c->client, rq)) == NULL)
		return; /* The connection was aborted, and the call fails with it. */
	buf_head(&c->wire.out, c, rq, body_len);
	send_body(call, rq);
	if (call->paused && c->wire.net != NULL)
		net_pause(c->wire.net);
}

static bool h1_over_mark(struct http_call *call)
{
	return http_wire_over_mark(&call->conn->wire);
}

static void h1_cancel(struct http_call *call)
{
	struct client_conn *c = call->conn;
	c->h1.call = NULL;
	c->h1.parser.stop = true;
	http_out_abort(c);
}

static void h1_pause(struct http_call *call, bool yes)
{
	struct client_conn *c = call->conn;
	if (c->wire.net == NULL)
		return;
	if (yes) {
		c->h1.parser.stop = true;
		net_pause(c->wire.net);
		return;
	}
	cgn_loop_defer(c->wire.loop, &c->wire.hook); /* Held bytes are parsed in the hook, never inline. */
}

static void h1_call_release(struct http_call *call)
{
	(void)call;
}

static const struct call_via h1_via = {
	.release = h1_call_release,
	.body = h1_body,
	.end = h1_end,
	.lend = h1_lend,
	.keep = h1_keep,
	.over_mark = h1_over_mark,
	.cancel = h1_cancel,
	.pause = h1_pause,
};

/* ---- answers ---- */

static void on_head(void *user, const struct http_head *h)
{
	struct client_conn *c = user;
	http_call_head(c->h1.call, h);
}

static void on_body(void *user, const uint8_t *p, size_t n)
{
	struct client_conn *c = user;
	if (c->h1.call != NULL) /* An earlier callback for the same bytes may have cancelled the call. */
		http_call_data(c->h1.call, p, n);
}

static void on_end(void *user, const struct http_field *trailers, size_t n)
{
	struct client_conn *c = user;
	struct http_call *call = c->h1.call;
	if (call == NULL)
		return;
	c->h1.call = NULL;
	/* The server would take an unfinished request for the beginning of the next one. */
	c->h1.parser.keep_alive = c->h1.parser.keep_alive && call->body_ended && call->loan.left == 0;
	http_call_finish(call, trailers, n);
}

static const struct h1_parser_ops parser_ops = {.on_head = on_head, .on_body = on_body, .on_end = on_end};

static void fail_call(struct client_conn *c, enum cgn_code code, const char *why)
{
	struct http_call *call = c->h1.call;
	c->h1.call = NULL;
	if (call == NULL)
		return;
	http_call_fail(call, http_call_stage(call), code, why);
}

static void conn_park(struct client_conn *c)
{
	if (c->client == NULL)
		return;
	c->h1.busy = false;
	/* The connection used last is taken first, so that idle ones can time out. */
	cgn_list_drop(&c->link);
	cgn_list_push_front(&c->client->conns, &c->link);
	cgn_timer_set(&c->timer, c->client->cfg.idle_timeout);
	http_client_look(c->client);
}

static void answer_done(struct client_conn *c, bool more_bytes)
{
	if (c->closing)
		return;
	/* Bytes without a request belong to no call. */
	if (!c->h1.parser.keep_alive || c->left || more_bytes || c->h1.eof)
		http_out_close(c);
	else
		conn_park(c);
}

static size_t held_parse(struct client_conn *c, const uint8_t *p, size_t n)
{
	size_t used = h1_parser_feed(&c->h1.parser, p, n);
	if (c->closing)
		return n;
	if (c->h1.parser.phase == H1_BAD) {
		char why[200];
		(void)snprintf(why, sizeof why, "malformed answer: %s", c->h1.parser.fault);
		fail_call(c, CGN_BAD_GATEWAY, why);
		http_out_abort(c);
		return n;
	}
	if (c->h1.parser.phase == H1_DONE) {
		answer_done(c, used < n);
		return n;
	}
	return used;
}

static bool is_stalled(const struct client_conn *c)
{
	return c->h1.call != NULL && c->h1.call->paused;
}

static void h1_input(struct client_conn *c, const uint8_t *p, size_t n)
{
	if (c->h1.call == NULL) { /* The connection is idle: received bytes belong to no request. */
		http_out_abort(c);
		return;
	}
	size_t used = c->hold.n > 0 || is_stalled(c) ? 0 : held_parse(c, p, n);
	if (used == n || c->closing)
		return;
	cgn_buf_add(&c->hold, p + used, n - used);
	if (c->hold.bad) {
		fail_call(c, CGN_NO_MEMORY, "no memory to hold the answer");
		http_out_abort(c);
	}
}

static void finish_by_eof(struct client_conn *c)
{
	if (c->h1.call != NULL && !h1_parser_eof(&c->h1.parser))
		fail_call(c, CGN_BAD_GATEWAY, "the connection was closed before the answer was complete");
	if (!c->closing)
		http_out_close(c);
}

static void h1_turn(struct client_conn *c)
{
	http_wire_flush(&c->wire);
	/* The call may have been above its mark while it waited for this connection. */
	if (c->h1.call != NULL)
		http_call_drained(c->h1.call);
	if (c->h1.call == NULL || is_stalled(c))
		return;
	if (c->hold.n > 0 || c->h1.parser.halted) {
		struct cgn_buf held = c->hold;
		c->hold = (struct cgn_buf){.limit = held.limit};
		size_t used = held_parse(c, (const uint8_t *)(held.p != NULL ? held.p : ""), held.n);
		if (!c->closing && used < held.n)
			cgn_buf_add(&c->hold, held.p + used, held.n - used);
		cgn_buf_fini(&held);
	}
	if (c->closing || is_stalled(c))
		return;
	if (c->h1.eof)
		finish_by_eof(c);
	else if (c->wire.net != NULL)
		net_resume(c->wire.net);
}

static void h1_eof(struct client_conn *c)
{
	c->h1.eof = true;
	if (!is_stalled(c) && c->hold.n == 0)
		finish_by_eof(c);
}

static void h1_drained(struct client_conn *c)
{
	if (c->h1.call != NULL)
		http_call_drained(c->h1.call);
}

static void h1_late(struct client_conn *c)
{
	if (c->h1.call == NULL)
		http_out_close(c);
}

static void h1_leave(struct client_conn *c)
{
	http_out_retire(c);
	if (!c->h1.busy)
		http_out_close(c);
}

static void h1_gone(struct client_conn *c, const struct cgn_err *why)
{
	fail_call(c, why->code, why->msg);
}

static void h1_release(struct client_conn *c)
{
	h1_parser_fini(&c->h1.parser);
}

static bool h1_has_room(const struct client_conn *c)
{
	return !c->h1.busy;
}

static void h1_init(struct client_conn *c)
{
	struct http_client *cl = c->client;
	h1_parser_init(&c->h1.parser, true, &parser_ops, c, &cl->spare, cl->cfg.max_head_bytes,
		HTTP_CLIENT_FIELDS);
	conn_park(c);
}

const struct client_conn_ops http_h1_out_ops = {
	.init = h1_init,
	.has_room = h1_has_room,
	.start = h1_start,
	.input = h1_input,
	.eof = h1_eof,
	.turn = h1_turn,
	.drained = h1_drained,
	.late = h1_late,
	.leave = h1_leave,
	.gone = h1_gone,
	.release = h1_release,
};
