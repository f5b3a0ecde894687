/* SPDX-License-Identifier: Apache-2.0 */
/* http client: a pool of connections to one origin, the calls that wait for one, and the part of a call that
 * both versions share. */
#include <stdlib.h>

#include "base/unlikely/unlikely.h"
#include "io/net/net/name.h"
#include "io/wire/http/client_priv.h"

/* ---- call: ends ---- */

static void call_bury(struct cgn_grave *g)
{
	struct http_call *c = CGN_CONTAINER(g, struct http_call, grave);
	cgn_arena_fini(&c->arena);
	cgn_buf_fini(&c->pending);
	free(c);
}

/* Remove the call from every list; the memory lives to the end of the turn. */
static void call_retire(struct http_call *c)
{
	struct http_client *cl = c->client;
	cgn_timer_cancel(&c->timer);
	cgn_list_drop(&c->link);
	if (c->via != NULL)
		c->via->release(c);
	if (c->conn != NULL)
		c->conn->n_calls--;
	else
		cl->n_waiting--;
	c->conn = NULL;
	c->tag = 0;
	cgn_loop_bury(cl->loop, &c->grave, call_bury);
	http_client_look(cl);
}

void http_call_finish(struct http_call *c, const struct http_field *trailers, size_t n)
{
	CGN_LIVE(c, HTTP_CALL_TAG);
	call_retire(c);
	c->ops->on_end(c, c->user, trailers, n);
}

void http_call_fail(struct http_call *c, enum http_fail_stage stage, enum cgn_code code, const char *why)
{
	CGN_LIVE(c, HTTP_CALL_TAG);
	struct cgn_err err;
	(void)CGN_FAIL_AS(&err, code, "%s: %s", c->client->addr, why);
	call_retire(c);
	c->ops->on_fail(c, c->user, stage, &err);
}

enum http_fail_stage http_call_stage(const struct http_call *c)
{
	if (c->got_head)
		return HTTP_FAIL_BODY;
	return c->conn->served > 1 && c->conn->heard == c->heard_before ? HTTP_FAIL_STALE : HTTP_FAIL_HEAD;
}

void http_call_head(struct http_call *c, const struct http_head *h)
{
	c->got_head = true;
	c->since = cgn_loop_now(c->client->loop);
	cgn_timer_cancel(&c->timer);
	if (c->idle_timeout != 0)
		cgn_timer_set(&c->timer, c->idle_timeout);
	c->ops->on_head(c, c->user, h);
}

void http_call_data(struct http_call *c, const uint8_t *p, size_t n)
{
	c->since = cgn_loop_now(c->client->loop);
	c->ops->on_body(c, c->user, p, n);
}

size_t http_loan_take(struct http_loan *l, size_t most, struct iovec out[HTTP_LENT_PIECES])
{
	size_t n = 0, from = 0;
	for (; n < l->n && most > 0; n++) {
		struct iovec *at = &l->v[n];
		size_t k = at->iov_len < most ? at->iov_len : most;
		out[n] = (struct iovec){at->iov_base, k};
		*at = (struct iovec){(char *)at->iov_base + k, at->iov_len - k};
		from += at->iov_len == 0;
		most -= k;
		l->left -= k;
	}
	l->n -= from;
	memmove(l->v, l->v + from, l->n * sizeof l->v[0]);
	return n;
}

void http_call_drained(struct http_call *c)
{
	if (c->loan.left > 0)
		c->via->lend(c);
	if (!c->over || c->body_ended || c->via->over_mark(c))
		return;
	c->over = false;
	if (c->ops->on_drain != NULL)
		c->ops->on_drain(c, c->user);
}

/* Fail the call through its timer, never inline. */
static void call_doom(struct http_call *c, const char *why)
{
	c->doom = why;
	cgn_timer_set(&c->timer, 1);
}

static void call_cut(struct http_call *c, enum cgn_code code, const char *why)
{
	bool sent = c->sent, got_head = c->got_head;
	if (c->via != NULL)
		c->via->cancel(c);
	http_call_fail(c, got_head ? HTTP_FAIL_BODY : sent ? HTTP_FAIL_HEAD : HTTP_FAIL_CONNECT, code, why);
}

static void call_on_timer(struct cgn_timer *t)
{
	struct http_call *c = CGN_CONTAINER(t, struct http_call, timer);
	if (c->doom != NULL) {
		call_cut(c, CGN_INTERNAL, c->doom);
		return;
	}
	cgn_nsec limit = c->got_head ? c->idle_timeout : c->head_timeout, now = cgn_loop_now(c->client->loop);
	if (c->got_head && c->paused) /* The caller paused reading, so the silence is our own. */
		c->since = now;
	if (now < c->since + limit) {
		cgn_timer_set(&c->timer, c->since + limit - now);
		return;
	}
	call_cut(c, CGN_DEADLINE, c->got_head ? "the answer stopped coming" : "no answer came in time");
}

/* ---- connection ---- */

static void out_bury(struct cgn_grave *g)
{
	struct client_conn *c = CGN_CONTAINER(g, struct client_conn, grave);
	cgn_buf_fini(&c->hold);
	free(c);
}

void http_out_close(struct client_conn *c)
{
	c->closing = true;
	http_wire_close(&c->wire);
}

void http_out_abort(struct client_conn *c)
{
	c->closing = true;
	http_wire_fail(&c->wire);
}

void http_out_retire(struct client_conn *c)
{
	if (c->retired)
		return;
	c->retired = true;
	c->client->n_conns--;
	http_client_look(c->client);
}

/* With no connection established, fail every waiting call. Otherwise a failed attempt costs at most one
 * call. */
static void connect_failed(struct http_client *cl, const struct cgn_err *why)
{
	bool only_way = cl->n_conns == cl->n_dialing;
	struct cgn_link *l;
	while ((l = cgn_list_first(&cl->waiting)) != NULL && (only_way || cl->n_dialing == 0)) {
		http_call_fail(CGN_CONTAINER(l, struct http_call, link), HTTP_FAIL_CONNECT, why->code,
			why->msg);
		if (!only_way)
			return;
	}
}

static void out_leave(struct client_conn *c, const struct cgn_err *why)
{
	struct http_client *cl = c->client;
	if (cl == NULL)
		return;
	c->closing = true;
	cgn_list_drop(&c->link);
	http_out_retire(c);
	if (c->ops != NULL) {
		c->ops->gone(c, why);
		c->ops->release(c);
	} else {
		cl->n_dialing--;
		connect_failed(cl, why);
	}
	http_wire_fini(&c->wire);
	cgn_timer_cancel(&c->timer);
	c->client = NULL;
	http_client_look(cl);
}

static void out_on_close(struct net_conn *net, void *user, const struct cgn_err *why)
{
	struct client_conn *c = user;
	struct cgn_loop *l = net_loop(net);
	CGN_LIVE(c, HTTP_CLIENT_CONN_TAG);
	struct cgn_err closed = {.code = CGN_UNAVAILABLE,
		.where = CGN_HERE,
		.msg = "the connection was closed"};
	out_leave(c, why->code == CGN_FINE ? &closed : why);
	c->wire.net = NULL;
	c->tag = 0;
	cgn_loop_bury(l, &c->grave, out_bury);
}

static void out_on_turn(struct cgn_hook *h)
{
	struct client_conn *c = CGN_CONTAINER(h, struct client_conn, wire.hook);
	if (c->ops != NULL && !c->closing)
		c->ops->turn(c);
	else
		http_wire_flush(&c->wire);
}

static void out_on_timer(struct cgn_timer *t)
{
	struct client_conn *c = CGN_CONTAINER(t, struct client_conn, timer);
	if (c->ops != NULL && !c->closing)
		c->ops->late(c);
}

/* ---- a name that moves ---- */

/* Leave |c| if its name stands for another address now. |cut|: its calls fail. */
static bool conn_follows(struct client_conn *c, bool cut)
{
	static const struct cgn_err moved = {.code = CGN_UNAVAILABLE,
		.where = "http",
		.msg = "its name stands for another address now"};
	if (c->wire.net == NULL || !net_is_moved(c->wire.net))
		return false;
	if (!c->left)
		c->client->moves++;
	c->left = true;
	c->ops->leave(c);
	if (!cut)
		return true;
	c->ops->gone(c, &moved);
	http_out_close(c);
	return true;
}

static void follow_later(struct http_client *cl)
{
	if (cl->cfg.follow && !cl->freed && cl->n_conns > 0)
		cgn_timer_set(&cl->follow, net_name_interval() / 4);
}

static void on_follow(struct cgn_timer *t)
{
	struct http_client *cl = CGN_CONTAINER(t, struct http_client, follow);
	CGN_LIVE(cl, HTTP_CLIENT_TAG);
	cgn_list_each_safe (l, &cl->conns) {
		struct client_conn *c = CGN_CONTAINER(l, struct client_conn, link);
		if (c->ops != NULL && !c->closing)
			(void)conn_follows(c, true);
	}
	follow_later(cl);
}

static bool wants_h2(const struct http_client *cl, struct cgn_str alpn)
{
	return cl->cfg.proto == HTTP_2 || (cl->cfg.proto == HTTP_AUTO && cgn_str_is(alpn, "h2"));
}

static void out_on_open(struct net_conn *net, void *user)
{
	struct client_conn *c = user;
	struct http_client *cl = c->client;
	if (cl == NULL || c->closing)
		return;
	struct cgn_str alpn = net_alpn(net);
	bool h2 = wants_h2(cl, alpn);
	if (cl->cfg.tls != NULL && h2 != cgn_str_is(alpn, "h2")) {
		struct cgn_err err;
		(void)CGN_FAIL(&err, UNSUPPORTED, "the peer did not agree on %s (ALPN)",
			h2 ? "HTTP/2" : "HTTP/1.1");
		out_leave(c, &err);
		net_abort(net);
		return;
	}
	cl->learned = h2 ? HTTP_2 : HTTP_1;
	cl->n_dialing--;
	(void)cgn_str_copyz(cl->peer, sizeof cl->peer, net_peer(net));
	follow_later(cl);
	c->ops = h2 ? &http_h2_out_ops : &http_h1_out_ops;
	c->ops->init(c);
	http_client_look(cl);
}

static void out_on_data(struct net_conn *net, void *user, const uint8_t *p, size_t n)
{
	(void)net;
	struct client_conn *c = user;
	CGN_LIVE(c, HTTP_CLIENT_CONN_TAG);
	c->heard++;
	if (c->ops != NULL && !c->closing)
		c->ops->input(c, p, n);
}

static void out_on_eof(struct net_conn *net, void *user)
{
	(void)net;
	struct client_conn *c = user;
	CGN_LIVE(c, HTTP_CLIENT_CONN_TAG);
	if (c->ops != NULL && !c->closing)
		c->ops->eof(c);
	else
		http_out_close(c);
}

static void out_on_drain(struct net_conn *net, void *user)
{
	(void)net;
	struct client_conn *c = user;
	CGN_LIVE(c, HTTP_CLIENT_CONN_TAG);
	http_wire_flush(&c->wire);
	if (c->ops != NULL && !c->closing)
		c->ops->drained(c);
}

static const struct net_conn_ops out_net_ops = {
	.on_open = out_on_open,
	.on_data = out_on_data,
	.on_eof = out_on_eof,
	.on_drain = out_on_drain,
	.on_close = out_on_close,
};

static CGN_RC out_dial(struct http_client *cl, struct cgn_err *err)
{
	struct client_conn *c = CGN_NEW(struct client_conn);
	struct net_dial dial = {.addr = cl->addr,
		.tls = cl->cfg.tls,
		.server_name = cl->server_name,
		.connect_timeout = cl->cfg.connect_timeout};
	struct net_conn *net = NULL;
	cgn_rc rc = net_connect(cl->loop, &dial, &out_net_ops, c, &net, err);
	if (!cgn_ok(rc)) {
		free(c);
		return rc;
	}
	c->tag = HTTP_CLIENT_CONN_TAG;
	c->client = cl;
	c->hold.limit = 4 * CGN_LOOP_SCRATCH;
	cgn_list_init(&c->calls);
	cgn_list_init(&c->link);
	http_wire_init(&c->wire, cl->loop, net, out_on_turn);
	cgn_timer_init(&c->timer, cl->loop, out_on_timer);
	cgn_list_push(&cl->conns, &c->link);
	cl->n_conns++;
	cl->n_dialing++;
	return CGN_OK;
}

/* ---- giving calls to connections ---- */

static struct client_conn *conn_pick(struct http_client *cl)
{
	cgn_list_each (l, &cl->conns) {
		struct client_conn *c = CGN_CONTAINER(l, struct client_conn, link);
		if (c->ops == NULL || c->closing)
			continue;
		if (c->ops->has_room(c) && !conn_follows(c, false))
			return c;
		if (c->left)
			continue;
		if (cl->learned == HTTP_1) /* Connections with room are at the front. */
			return NULL;
	}
	return NULL;
}

static void calls_assign(struct client_conn *conn, struct http_call *c, const struct http_request *rq)
{
	c->conn = conn;
	conn->n_calls++;
	conn->served++;
	c->heard_before = conn->heard;
	c->sent = true;
	cgn_list_push(&conn->calls, &c->link);
	cgn_list_drop(&conn->link); /* Just used: move it to the end until it is free again. */
	cgn_list_push(&conn->client->conns, &conn->link);
	conn->ops->start(conn, c, rq);
}

static uint32_t max_conns(const struct http_client *cl)
{
	enum http_proto p = cl->learned != HTTP_AUTO ? cl->learned : cl->cfg.proto;
	if (cl->cfg.max_conns != 0)
		return cl->cfg.max_conns;
	return p == HTTP_2 ? 1 : 1024;
}

static bool should_dial(const struct http_client *cl)
{
	bool one_call_each = cl->learned == HTTP_1;
	return cl->n_conns < max_conns(cl) && cl->n_dialing < (one_call_each ? cl->n_waiting : 1) &&
		cl->n_waiting > 0;
}

static void client_turn(struct cgn_hook *h)
{
	struct http_client *cl = CGN_CONTAINER(h, struct http_client, hook);
	struct cgn_link *l;
	struct client_conn *conn;
	while ((l = cgn_list_first(&cl->waiting)) != NULL && (conn = conn_pick(cl)) != NULL) {
		struct http_call *c = CGN_CONTAINER(l, struct http_call, link);
		if (c->pending.bad) { /* Never send a part of a body as if it were complete. */
			http_call_fail(c, HTTP_FAIL_CONNECT, CGN_TOO_LARGE,
				"the body is too large to wait for a connection");
			continue;
		}
		cgn_list_drop(&c->link);
		cl->n_waiting--;
		calls_assign(conn, c, &c->rq);
		cgn_arena_fini(&c->arena);
	}
	struct cgn_err err;
	while (should_dial(cl))
		if (!cgn_ok(out_dial(cl, &err))) {
			connect_failed(cl, &err);
			return;
		}
}

void http_client_look(struct http_client *cl)
{
	if (!cl->freed)
		cgn_loop_defer(cl->loop, &cl->hook);
}

/* ---- calls ---- */

static struct cgn_str str_save(struct cgn_arena *a, struct cgn_str s, bool *bad)
{
	struct cgn_str copy = cgn_arena_str(a, s);
	*bad = *bad || copy.p == NULL;
	return copy;
}

static CGN_RC save_body(struct http_call *c, const struct http_request *rq)
{
	if (rq->body == NULL)
		return CGN_OK;
	c->pending.limit = SIZE_MAX / 2; /* The caller chose its size. */
	(void)cgn_buf_room(&c->pending, cgn_iov_bytes(rq->body, rq->n_body));
	for (size_t i = 0; i < rq->n_body; i++)
		cgn_buf_add(&c->pending, rq->body[i].iov_base, rq->body[i].iov_len);
	return CGN_RC_OF(c->pending.bad ? CGN_NO_MEMORY : CGN_FINE);
}

/* Copy the request for the time that it waits. */
static CGN_RC request_save(struct http_call *c, const struct http_request *rq)
{
	bool bad = false;
	struct http_field *fields = cgn_arena_get(&c->arena, (rq->n_fields + 1) * sizeof *fields);
	if (fields == NULL)
		return CGN_RC_OF(CGN_TOO_LARGE);
	for (size_t i = 0; i < rq->n_fields; i++)
		fields[i] = (struct http_field){str_save(&c->arena, rq->fields[i].name, &bad),
			str_save(&c->arena, rq->fields[i].value, &bad)};
	c->rq = *rq;
	c->rq.fields = fields;
	c->rq.method = str_save(&c->arena, cgn_str_of(rq->method), &bad).p;
	c->rq.path = str_save(&c->arena, cgn_str_of(rq->path), &bad).p;
	c->rq.body = NULL;
	c->rq.n_body = 0;
	return bad ? CGN_RC_OF(CGN_TOO_LARGE) : save_body(c, rq);
}

static bool path_is_clean(const char *path)
{
	for (const char *p = path; *p != '\0'; p++)
		if ((unsigned char)*p <= 0x20 || (unsigned char)*p == 0x7f)
			return false;
	return path[0] == '/' || (path[0] == '*' && path[1] == '\0');
}

static CGN_RC request_check(const struct http_request *rq, struct cgn_err *err)
{
	if (!http_name_is_token(cgn_str_of(rq->method)))
		return CGN_FAIL(err, INVALID, "\"%s\" is not a request method", rq->method);
	if (!path_is_clean(rq->path))
		return CGN_FAIL(err, INVALID,
			"\"%s\" is not a request path: it must begin with a slash and have no space",
			rq->path);
	return CGN_OK;
}

static struct http_call *call_new(struct http_client *cl, const struct http_request *rq,
	const struct http_call_ops *ops, void *user)
{
	struct http_call *c = CGN_NEW(struct http_call);
	c->tag = HTTP_CALL_TAG;
	c->client = cl;
	c->ops = ops;
	c->user = user;
	c->head_timeout = rq->head_timeout;
	c->idle_timeout = rq->idle_timeout;
	c->since = cgn_loop_now(cl->loop);
	c->is_head = strcmp(rq->method, "HEAD") == 0;
	c->body_left = rq->body != NULL ? (int64_t)cgn_iov_bytes(rq->body, rq->n_body) : rq->body_len;
	c->body_ended = rq->body != NULL || rq->body_len == 0;
	c->pending.limit = HTTP_CALL_QUEUE_LIMIT;
	cgn_list_init(&c->link);
	cgn_arena_init(&c->arena, HTTP_REQUEST_LIMIT);
	cgn_timer_init(&c->timer, cl->loop, call_on_timer);
	if (c->head_timeout != 0)
		cgn_timer_set(&c->timer, c->head_timeout);
	return c;
}

static CGN_RC call_wait(struct http_client *cl, struct http_call *c, const struct http_request *rq,
	struct cgn_err *err)
{
	if (cl->n_waiting >= cl->cfg.max_waiting)
		return CGN_FAIL(err, OVERLOADED, "%s: %u requests wait for a connection already", cl->addr,
			cl->n_waiting);
	cgn_rc rc = request_save(c, rq);
	if (!cgn_ok(rc))
		return CGN_FAIL_AS(err, rc.code, "the request to %s can't be kept while it waits: %s",
			cl->addr, cgn_code_text(rc.code));
	cgn_list_push(&cl->waiting, &c->link);
	cl->n_waiting++;
	if (!should_dial(cl))
		return CGN_OK;
	rc = out_dial(cl, err);
	if (cgn_ok(rc) || cl->n_conns > 0)
		return CGN_OK;
	cgn_list_drop(&c->link);
	cl->n_waiting--;
	return rc;
}

CGN_RC http_call_start(struct http_client *cl, const struct http_request *rq, const struct http_call_ops *ops,
	void *user, struct http_call **out, struct cgn_err *err)
{
	CGN_LIVE(cl, HTTP_CLIENT_TAG);
	CGN_TRY(request_check(rq, err));
	struct http_call *c = call_new(cl, rq, ops, user);
	bool busy = unlikely_way(UNLIKELY_pool_busy);
	struct client_conn *conn = cl->n_waiting == 0 && !busy ? conn_pick(cl) : NULL;
	if (conn != NULL) {
		calls_assign(conn, c, rq);
		*out = c;
		return CGN_OK;
	}
	if (busy)
		http_client_look(cl);
	cgn_rc rc = call_wait(cl, c, rq, err);
	if (!cgn_ok(rc)) {
		cgn_timer_cancel(&c->timer);
		call_bury(&c->grave);
		return rc;
	}
	*out = c;
	return CGN_OK;
}

static void pending_add(struct http_call *c, const struct iovec *iov, size_t n)
{
	for (size_t i = 0; i < n; i++)
		cgn_buf_add(&c->pending, iov[i].iov_base, iov[i].iov_len);
	if (c->pending.bad)
		call_doom(c, "too much of the request body waits for a connection");
}

/* Count |bytes| more of the body; false: there is nothing to send. */
static bool body_count(struct http_call *c, size_t bytes)
{
	CGN_MUST(!c->body_ended && c->loan.left == 0);
	if (bytes == 0 || c->doom != NULL)
		return false;
	if (c->body_left >= 0 && (uint64_t)c->body_left < bytes) {
		call_doom(c, "the request body is longer than announced");
		return false;
	}
	if (c->body_left >= 0)
		c->body_left -= (int64_t)bytes;
	return true;
}

void http_call_body(struct http_call *c, const struct iovec *iov, size_t n)
{
	CGN_LIVE(c, HTTP_CALL_TAG);
	if (!body_count(c, cgn_iov_bytes(iov, n)))
		return;
	if (c->via != NULL)
		c->via->body(c, iov, n);
	else
		pending_add(c, iov, n);
}

void http_call_lend(struct http_call *c, const struct iovec *iov, size_t n)
{
	CGN_LIVE(c, HTTP_CALL_TAG);
	CGN_MUST(n <= HTTP_LENT_PIECES);
	size_t bytes = cgn_iov_bytes(iov, n);
	if (bytes == 0 || !body_count(c, bytes))
		return;
	c->loan = (struct http_loan){.n = n, .left = bytes};
	memcpy(c->loan.v, iov, n * sizeof *iov);
	if (c->via != NULL)
		c->via->lend(c);
}

void http_call_keep(struct http_call *c)
{
	CGN_LIVE(c, HTTP_CALL_TAG);
	if (c->via != NULL) {
		c->via->keep(c);
		return;
	}
	struct iovec all[HTTP_LENT_PIECES];
	if (c->loan.left > 0)
		pending_add(c, all, http_loan_take(&c->loan, c->loan.left, all));
}

void http_call_end(struct http_call *c)
{
	CGN_LIVE(c, HTTP_CALL_TAG);
	if (c->body_ended || c->doom != NULL)
		return;
	if (c->body_left > 0) {
		call_doom(c, "the request body is shorter than announced");
		return;
	}
	c->body_ended = true;
	if (c->via != NULL)
		c->via->end(c);
}

bool http_call_over_mark(struct http_call *c)
{
	CGN_LIVE(c, HTTP_CALL_TAG);
	bool over = c->via != NULL ? c->via->over_mark(c) : c->pending.n > HTTP_CALL_MARK;
	c->over = c->over || over; /* As in http_exchange_over_mark. */
	return over;
}

void http_call_cancel(struct http_call **take)
{
	struct http_call *c = CGN_TAKE_LIVE(take, HTTP_CALL_TAG);
	if (c == NULL)
		return;
	if (c->via != NULL)
		c->via->cancel(c);
	call_retire(c);
}

void http_call_pause(struct http_call *c)
{
	CGN_LIVE(c, HTTP_CALL_TAG);
	if (!c->paused && c->via != NULL)
		c->via->pause(c, true);
	c->paused = true;
}

void http_call_resume(struct http_call *c)
{
	CGN_LIVE(c, HTTP_CALL_TAG);
	if (!c->paused)
		return;
	c->paused = false;
	c->since = cgn_loop_now(c->client->loop);
	if (c->via != NULL)
		c->via->pause(c, false);
}

/* ---- client ---- */

static void client_release(struct http_client *cl)
{
	cgn_hook_drop(&cl->hook);
	http_store_free(&cl->spare);
	free(cl->addr);
	free(cl->authority);
	free(cl->server_name);
	if (cl->cfg.tls != NULL)
		tls_ctx_free(&cl->cfg.tls);
	cl->tag = 0;
	free(cl);
}

static void cfg_defaults(struct http_client_cfg *c)
{
	c->max_waiting = c->max_waiting != 0 ? c->max_waiting : 4096;
	c->idle_timeout = c->idle_timeout != 0 ? c->idle_timeout : 60 * CGN_SEC;
	c->max_head_bytes = c->max_head_bytes != 0 ? c->max_head_bytes : 64U * 1024;
}

CGN_RC http_client_new(struct cgn_loop *l, const struct http_client_cfg *cfg, struct http_client **out,
	struct cgn_err *err)
{
	CGN_TRY(net_addr_check(cfg->addr, err));
	struct cgn_str authority = cgn_str_of(cfg->authority != NULL ? cfg->authority : cfg->addr);
	if (cgn_str_starts(authority, "unix:"))
		authority = CGN_STR("localhost");
	if (!http_text_is_clean(authority) || memchr(authority.p, ' ', authority.n) != NULL)
		return CGN_FAIL(err, INVALID, "the authority of %s is not a host name", cfg->addr);
	struct http_client *cl = CGN_NEW(struct http_client);
	cl->tag = HTTP_CLIENT_TAG;
	cl->loop = l;
	cl->cfg = *cfg;
	cfg_defaults(&cl->cfg);
	cgn_list_init(&cl->conns);
	cgn_list_init(&cl->waiting);
	cgn_hook_init(&cl->hook, client_turn);
	cgn_timer_init(&cl->follow, l, on_follow);
	cl->learned = cfg->proto == HTTP_AUTO && cfg->tls == NULL ? HTTP_1 : cfg->proto;
	if (cl->cfg.tls != NULL)
		tls_ctx_ref(cl->cfg.tls);
	cl->addr = cgn_str_dupz(cgn_str_of(cfg->addr));
	cl->authority = cgn_str_dupz(authority);
	cl->server_name = cgn_str_dup_maybe(cfg->server_name);
	*out = cl;
	return CGN_OK;
}

uint64_t http_client_moves(const struct http_client *cl)
{
	CGN_LIVE(cl, HTTP_CLIENT_TAG);
	return cl->moves;
}

void http_client_shun(struct http_client *cl)
{
	CGN_LIVE(cl, HTTP_CLIENT_TAG);
	net_shun(cl->addr, cl->peer);
}

/* Runs after the turn: the call that frees a client may come from inside one of its connections. */
static void client_bury(struct cgn_grave *g)
{
	struct http_client *cl = CGN_CONTAINER(g, struct http_client, grave);
	struct cgn_err err = {.code = CGN_CANCELLED, .where = CGN_HERE, .msg = "the client was closed"};
	struct cgn_link *l;
	while ((l = cgn_list_first(&cl->conns)) != NULL) {
		struct client_conn *c = CGN_CONTAINER(l, struct client_conn, link);
		http_out_abort(c);
		out_leave(c, &err);
	}
	client_release(cl);
}

void http_client_free(struct http_client **take)
{
	struct http_client *cl = CGN_TAKE_LIVE(take, HTTP_CLIENT_TAG);
	if (cl == NULL)
		return;
	struct cgn_err err = {.code = CGN_CANCELLED, .where = CGN_HERE, .msg = "the client was closed"};
	struct cgn_link *l;
	cl->freed = true;
	cgn_hook_drop(&cl->hook);
	cgn_timer_cancel(&cl->follow);
	while ((l = cgn_list_first(&cl->waiting)) != NULL)
		http_call_fail(CGN_CONTAINER(l, struct http_call, link), HTTP_FAIL_CONNECT, err.code,
			err.msg);
	cgn_list_each (at, &cl->conns) {
		struct client_conn *c = CGN_CONTAINER(at, struct client_conn, link);
		if (c->ops != NULL)
			c->ops->gone(c, &err);
	}
	cgn_loop_bury(cl->loop, &cl->grave, client_bury);
}
