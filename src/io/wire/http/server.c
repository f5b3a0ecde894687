/* SPDX-License-Identifier: Apache-2.0 */
/* http server: accept connections, detect the protocol, keep time, and the part of an exchange that both
 * versions share. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "io/wire/http/server_priv.h"

static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
#define PREFACE_TELLS 3 /* No HTTP/1 method begins with "PRI". */

/* ---- exchange ---- */

void http_exchange_open(struct http_exchange *x, const struct exchange_ops *ops, struct server_conn *c,
	const struct http_head *h)
{
	x->tag = HTTP_EXCHANGE_TAG;
	x->ops = ops;
	x->conn = c;
	x->answer_left = -1;
	x->body_due = cgn_loop_now(c->wire.loop) + c->server->cfg.body_timeout;
	x->bodyless = cgn_str_is(h->method, "HEAD");
	x->errors = apierror_shape_of(h->path);
	cgn_list_push(&c->exchanges, &x->link);
	c->server->stats.requests++;
	c->server->stats.exchanges++;
}

static void exchange_bury(struct cgn_grave *g)
{
	free(CGN_CONTAINER(g, struct http_exchange, grave));
}

/* Keep the connections in the order in which their last requests ended. */
static void conn_used(struct server_conn *c)
{
	if (c->server->cfg.evict_above == 0)
		return;
	cgn_list_drop(&c->link);
	cgn_list_push(&c->server->conns, &c->link);
}

void http_exchange_close(struct http_exchange *x, enum cgn_code code, const char *why)
{
	CGN_LIVE(x, HTTP_EXCHANGE_TAG);
	struct http_server *s = x->conn->server;
	struct cgn_err err = {0};
	(void)CGN_FAIL_AS(&err, code, "%s", why);
	cgn_list_drop(&x->link);
	conn_used(x->conn);
	s->stats.exchanges--;
	s->ops->on_close(x, x->user, &err);
	x->ops->release(x);
	x->tag = 0;
	cgn_loop_bury(s->loop, &x->grave, exchange_bury);
}

void http_exchange_drained(struct http_exchange *x)
{
	if (!x->over || x->ended || x->doom != CGN_FINE || x->ops->over_mark(x))
		return;
	x->over = false;
	if (x->conn->server->ops->on_drain != NULL)
		x->conn->server->ops->on_drain(x, x->user);
}

void http_exchange_user(struct http_exchange *x, void *user)
{
	CGN_LIVE(x, HTTP_EXCHANGE_TAG);
	x->user = user;
}

struct cgn_str http_exchange_peer(const struct http_exchange *x)
{
	CGN_LIVE(x, HTTP_EXCHANGE_TAG);
	return x->conn->wire.net != NULL ? net_peer(x->conn->wire.net) : CGN_STR("");
}

struct cgn_str http_exchange_peer_name(const struct http_exchange *x)
{
	CGN_LIVE(x, HTTP_EXCHANGE_TAG);
	return x->conn->wire.net != NULL ? net_peer_name(x->conn->wire.net) : CGN_STR("");
}

struct cgn_str http_exchange_peer_uris(const struct http_exchange *x)
{
	CGN_LIVE(x, HTTP_EXCHANGE_TAG);
	return x->conn->wire.net != NULL ? net_peer_uris(x->conn->wire.net) : CGN_STR("");
}

void http_exchange_more(struct http_exchange *x, const struct http_field *fields, size_t n)
{
	CGN_LIVE(x, HTTP_EXCHANGE_TAG);
	CGN_MUST(n <= HTTP_ANSWER_MORE && !x->has_head);
	memcpy(x->more, fields, n * sizeof *fields);
	x->n_more = n;
}

static void head_send(struct http_exchange *x, int status, const struct http_field *fields, size_t n,
	int64_t content_length)
{
	if (x->n_more == 0) {
		x->ops->head(x, status, fields, n, content_length);
		return;
	}
	struct http_field *all = CGN_NEW_ARRAY(struct http_field, n + x->n_more);
	if (n > 0)
		memcpy(all, fields, n * sizeof *fields);
	memcpy(all + n, x->more, x->n_more * sizeof *all);
	x->ops->head(x, status, all, n + x->n_more, content_length);
	free(all);
}

void http_exchange_head(struct http_exchange *x, int status, const struct http_field *fields, size_t n,
	int64_t content_length)
{
	CGN_LIVE(x, HTTP_EXCHANGE_TAG);
	CGN_MUST(!x->has_head && status >= 200 && status <= 599);
	if (x->doom != CGN_FINE)
		return;
	x->has_head = true;
	x->bodyless = x->bodyless || status == 204 || status == 304;
	x->answer_left = content_length;
	head_send(x, status, fields, n, content_length);
}

void http_exchange_body(struct http_exchange *x, const struct iovec *iov, size_t n)
{
	CGN_LIVE(x, HTTP_EXCHANGE_TAG);
	CGN_MUST(x->has_head || x->doom != CGN_FINE);
	size_t bytes = cgn_iov_bytes(iov, n);
	if (bytes == 0 || x->bodyless || x->ended || x->doom != CGN_FINE)
		return;
	if (x->answer_left >= 0 && (uint64_t)x->answer_left < bytes) {
		/* Bytes beyond the promised length would be read as the next answer. */
		http_exchange_abort(x, CGN_INTERNAL);
		return;
	}
	if (x->answer_left >= 0)
		x->answer_left -= (int64_t)bytes;
	x->ops->body(x, iov, n);
}

void http_exchange_end(struct http_exchange *x, const struct http_field *trailers, size_t n)
{
	CGN_LIVE(x, HTTP_EXCHANGE_TAG);
	CGN_MUST(x->has_head || x->doom != CGN_FINE);
	if (x->ended || x->doom != CGN_FINE)
		return;
	if (x->answer_left > 0 && !x->bodyless) {
		/* The body is shorter than promised: the client must not wait for the rest. */
		http_exchange_abort(x, CGN_INTERNAL);
		return;
	}
	x->ended = true;
	x->ops->end(x, trailers, n);
}

void http_exchange_reply(struct http_exchange *x, int status, const struct http_field *fields, size_t n,
	struct cgn_str body)
{
	struct iovec whole = http_iov(body);
	http_exchange_head(x, status, fields, n, (int64_t)body.n);
	http_exchange_body(x, &whole, 1);
	http_exchange_end(x, NULL, 0);
}

void http_exchange_abort(struct http_exchange *x, enum cgn_code code)
{
	CGN_LIVE(x, HTTP_EXCHANGE_TAG);
	if (x->doom != CGN_FINE || x->ended)
		return;
	x->doom = code == CGN_FINE ? CGN_INTERNAL : code;
	x->ops->doom(x);
}

size_t http_exchange_queued(const struct http_exchange *x)
{
	CGN_LIVE(x, HTTP_EXCHANGE_TAG);
	return x->ops->queued(x);
}

bool http_exchange_over_mark(struct http_exchange *x)
{
	CGN_LIVE(x, HTTP_EXCHANGE_TAG);
	/* Once it was true, on_drain is owed, whatever a later question finds: who asked first may have stopped. */
	bool over = x->ops->over_mark(x);
	x->over = x->over || over;
	return over;
}

void http_exchange_pause(struct http_exchange *x)
{
	CGN_LIVE(x, HTTP_EXCHANGE_TAG);
	if (!x->paused)
		x->ops->pause(x, true);
	x->paused = true;
}

void http_exchange_resume(struct http_exchange *x)
{
	CGN_LIVE(x, HTTP_EXCHANGE_TAG);
	if (!x->paused)
		return;
	x->paused = false;
	x->body_due = cgn_loop_now(x->conn->wire.loop) + x->conn->server->cfg.body_timeout;
	x->ops->pause(x, false);
}

/* ---- shared by both versions ---- */

void http_exchange_came(struct http_exchange *x, size_t n)
{
	const struct http_server_cfg *cfg = &x->conn->server->cfg;
	x->body_due = http_pace(x->body_due, cgn_loop_now(x->conn->wire.loop), n, cfg->body_rate,
		cfg->body_timeout);
}

bool http_has_field(const struct http_field *fields, size_t n, struct cgn_str name)
{
	for (size_t i = 0; i < n; i++)
		if (cgn_str_eq_nocase(fields[i].name, name))
			return true;
	return false;
}

struct cgn_str http_server_date(struct http_server *s)
{
	uint64_t now = cgn_clock_wall_ms() / 1000;
	if (now != s->date_s) {
		time_t t = (time_t)now;
		struct tm tm;
		(void)gmtime_r(&t, &tm);
		(void)strftime(s->date, sizeof s->date, "%a, %d %b %Y %H:%M:%S GMT", &tm);
		s->date_s = now;
	}
	return cgn_str_of(s->date);
}

const char *http_error_code(int status)
{
	switch (status) {
	case 408:
		return "request_timeout";
	case 431:
		return "headers_too_large";
	case 501:
		return "not_implemented";
	case 505:
		return "version_not_supported";
	case 500:
		return "out_of_memory";
	default:
		return "malformed_request";
	}
}

/* ---- connection ---- */

static void server_idle(struct cgn_hook *h)
{
	struct http_server *s = CGN_CONTAINER(h, struct http_server, idle_hook);
	void (*tell)(void *) = s->on_idle;
	s->on_idle = NULL;
	if (tell != NULL)
		tell(s->idle_arg);
}

static void server_check_idle(struct http_server *s)
{
	if (s->draining && s->on_idle != NULL && cgn_list_empty(&s->conns))
		cgn_loop_defer(s->loop, &s->idle_hook);
}

static void conn_bury(struct cgn_grave *g)
{
	struct server_conn *c = CGN_CONTAINER(g, struct server_conn, grave);
	cgn_buf_fini(&c->hold);
	free(c);
}

void http_conn_end_exchanges(struct server_conn *c, const char *why)
{
	struct cgn_link *l;
	while ((l = cgn_list_first(&c->exchanges)) != NULL) {
		struct http_exchange *x = CGN_CONTAINER(l, struct http_exchange, link);
		http_exchange_close(x, x->doom != CGN_FINE ? x->doom : CGN_CANCELLED, why);
	}
}

/* Leave the server; the memory stays until net made its final callback. */
static void conn_leave(struct server_conn *c, const char *why)
{
	struct http_server *s = c->server;
	if (s == NULL)
		return;
	c->closing = true;
	http_conn_end_exchanges(c, why);
	if (c->ops != NULL)
		c->ops->release(c);
	http_wire_fini(&c->wire);
	cgn_timer_cancel(&c->timer);
	cgn_list_drop(&c->link);
	s->stats.connections--;
	c->server = NULL;
	server_check_idle(s);
}

static void conn_on_close(struct net_conn *net, void *user, const struct cgn_err *why)
{
	struct server_conn *c = user;
	struct cgn_loop *l = net_loop(net);
	CGN_LIVE(c, HTTP_SERVER_CONN_TAG);
	conn_leave(c, why->code == CGN_FINE ? "the client closed the connection" : why->msg);
	c->wire.net = NULL;
	c->tag = 0;
	cgn_loop_bury(l, &c->grave, conn_bury);
}

void http_conn_close(struct server_conn *c)
{
	c->closing = true;
	http_wire_close(&c->wire);
	if (http_wire_queued(&c->wire) > 0)
		cgn_timer_set(&c->timer, c->server->cfg.write_timeout);
}

void http_conn_abort(struct server_conn *c)
{
	c->closing = true;
	http_wire_fail(&c->wire);
}

void http_conn_retime(struct server_conn *c)
{
	cgn_nsec at = c->closing || c->ops == NULL ? 0 : c->ops->deadline(c),
		 now = cgn_loop_now(c->wire.loop);
	if (at != 0 && (c->timer.at == 0 || at < c->timer.at))
		cgn_timer_set(&c->timer, at > now ? at - now : 1);
}

/* The last bytes are being sent: continue while the client takes some. */
static void closing_on_timer(struct server_conn *c)
{
	cgn_nsec at = http_wire_progress(&c->wire) + c->server->cfg.write_timeout,
		 now = cgn_loop_now(c->wire.loop);
	if (at <= now)
		http_wire_fail(&c->wire);
	else
		cgn_timer_set(&c->timer, at - now);
}

/* The timer is lazy: its deadline may have moved on since it was set. */
static void conn_on_timer(struct cgn_timer *t)
{
	struct server_conn *c = CGN_CONTAINER(t, struct server_conn, timer);
	if (c->closing) {
		closing_on_timer(c);
		return;
	}
	if (c->ops == NULL) {
		http_conn_abort(c);
		return;
	}
	cgn_nsec at = c->ops->deadline(c);
	if (at != 0 && at <= cgn_loop_now(c->wire.loop))
		c->ops->late(c);
	http_conn_retime(c);
}

static void conn_on_turn(struct cgn_hook *h)
{
	struct server_conn *c = CGN_CONTAINER(h, struct server_conn, wire.hook);
	if (c->ops != NULL && !c->closing)
		c->ops->turn(c);
	else
		http_wire_flush(&c->wire);
	if (c->server != NULL)
		http_conn_retime(c);
}

static void conn_speak(struct server_conn *c, bool h2)
{
	c->ops = h2 ? &http_h2_conn_ops : &http_h1_conn_ops;
	c->ops->init(c);
}

/* TLS is done when a connection is accepted, so ALPN has decided. */
static void conn_speak_agreed(struct server_conn *c)
{
	bool h2 = cgn_str_is(net_alpn(c->wire.net), "h2");
	if (h2 || !c->server->cfg.h2_only)
		conn_speak(c, h2);
	else
		http_conn_abort(c);
}

/* In clear: detect the client preface of HTTP/2. */
static void conn_detect(struct server_conn *c, const uint8_t *p, size_t n)
{
	cgn_buf_add(&c->hold, p, n);
	size_t have = c->hold.n < PREFACE_TELLS ? c->hold.n : PREFACE_TELLS;
	bool may_be_h2 = have > 0 && memcmp(c->hold.p, preface, have) == 0;
	if (c->hold.bad || (c->server->cfg.h2_only && !may_be_h2)) {
		c->server->stats.bad_requests++;
		http_conn_abort(c);
		return;
	}
	if (may_be_h2 && have < PREFACE_TELLS)
		return;
	conn_speak(c, may_be_h2);
	struct cgn_buf first = c->hold;
	c->hold = (struct cgn_buf){0};
	if (c->ops != NULL)
		c->ops->input(c, (const uint8_t *)first.p, first.n);
	cgn_buf_fini(&first);
}

static void conn_on_data(struct net_conn *net, void *user, const uint8_t *p, size_t n)
{
	(void)net;
	struct server_conn *c = user;
	CGN_LIVE(c, HTTP_SERVER_CONN_TAG);
	if (c->closing)
		return;
	if (c->ops == NULL && c->hold.n == 0 && n >= PREFACE_TELLS && !c->server->cfg.h2_only &&
		memcmp(p, preface, PREFACE_TELLS) != 0)
		conn_speak(c, false);
	if (c->ops != NULL)
		c->ops->input(c, p, n);
	else if (!c->closing)
		conn_detect(c, p, n);
	if (c->server != NULL)
		http_conn_retime(c);
}

static void conn_on_eof(struct net_conn *net, void *user)
{
	(void)net;
	struct server_conn *c = user;
	CGN_LIVE(c, HTTP_SERVER_CONN_TAG);
	if (c->closing)
		return;
	if (c->ops != NULL)
		c->ops->eof(c);
	else
		http_conn_close(c);
}

/* Reading is paused, and the client ended behind bytes that were not read. It is gone even if an answer is
 * pending. */
static void conn_on_hangup(struct net_conn *net, void *user)
{
	struct server_conn *c = user;
	if (!cgn_list_empty(&c->exchanges))
		conn_on_eof(net, user);
}

static void conn_on_drain(struct net_conn *net, void *user)
{
	(void)net;
	struct server_conn *c = user;
	CGN_LIVE(c, HTTP_SERVER_CONN_TAG);
	http_wire_flush(&c->wire);
	if (c->ops != NULL && !c->closing)
		c->ops->drained(c);
}

static const struct net_conn_ops conn_net_ops = {
	.on_data = conn_on_data,
	.on_eof = conn_on_eof,
	.on_hangup = conn_on_hangup,
	.on_drain = conn_on_drain,
	.on_close = conn_on_close,
};

/* Make room for a new connection. */
static void conns_evict(struct http_server *s)
{
	if (s->cfg.evict_above == 0 || s->stats.connections < s->cfg.evict_above)
		return;
	cgn_list_each (l, &s->conns) {
		struct server_conn *c = CGN_CONTAINER(l, struct server_conn, link);
		if (!cgn_list_empty(&c->exchanges) || c->closing)
			continue;
		s->stats.evicted++;
		http_conn_abort(c);
		return;
	}
}

static void server_on_accept(void *user, struct net_conn *net)
{
	struct http_server *s = user;
	conns_evict(s);
	struct server_conn *c = CGN_NEW(struct server_conn);
	c->tag = HTTP_SERVER_CONN_TAG;
	c->server = s;
	c->hold.limit = CGN_LOOP_SCRATCH + HTTP_HOLD_MARK;
	cgn_list_init(&c->exchanges);
	cgn_list_init(&c->link);
	cgn_list_push(&s->conns, &c->link);
	http_wire_init(&c->wire, s->loop, net, conn_on_turn);
	cgn_timer_init(&c->timer, s->loop, conn_on_timer);
	cgn_timer_set(&c->timer, s->cfg.head_timeout);
	s->stats.accepted++;
	s->stats.connections++;
	net_conn_take(net, &conn_net_ops, c);
	if (s->tls)
		conn_speak_agreed(c);
}

/* ---- server ---- */

static void cfg_defaults(struct http_server_cfg *c)
{
#define OR(field, value) c->field = c->field != 0 ? c->field : (value)
	OR(max_head_bytes, 32U * 1024);
	OR(max_fields, 100);
	OR(head_timeout, 10 * CGN_SEC);
	OR(body_timeout, 30 * CGN_SEC);
	OR(body_rate, 500);
	OR(idle_timeout, 75 * CGN_SEC);
	OR(write_timeout, 60 * CGN_SEC);
	OR(max_streams, 256);
	OR(max_requests_h1_pipeline, 16);
#undef OR
}

CGN_RC http_server_new(struct cgn_loop *l, const struct http_server_cfg *cfg,
	const struct http_server_ops *ops, void *user, struct http_server **out, struct cgn_err *err)
{
	struct http_server *s = CGN_NEW(struct http_server);
	s->tag = HTTP_SERVER_TAG;
	s->loop = l;
	s->cfg = *cfg;
	cfg_defaults(&s->cfg);
	s->ops = ops;
	s->user = user;
	s->tls = cfg->listen.tls != NULL;
	cgn_list_init(&s->conns);
	cgn_hook_init(&s->idle_hook, server_idle);
	cgn_rc rc = net_listen(l, &cfg->listen, server_on_accept, s, &s->listener, err);
	if (!cgn_ok(rc)) {
		free(s);
		return rc;
	}
	s->port = net_listener_port(s->listener);
	*out = s;
	return CGN_OK;
}

unsigned http_server_port(const struct http_server *s)
{
	return s->port;
}

struct net_listener *http_server_listener(const struct http_server *s)
{
	CGN_LIVE(s, HTTP_SERVER_TAG);
	return s->listener;
}

static void stop_listening(struct http_server *s)
{
	if (s->listener != NULL)
		s->stats.refused += net_listener_stats(s->listener).refused;
	net_listener_close(&s->listener);
}

/* How long a drain waits for the first byte of a connection that was accepted just before it began. */
#define FRESH_GRACE (500 * CGN_MSEC)

void http_server_drain(struct http_server *s, void (*on_idle)(void *arg), void *arg)
{
	CGN_LIVE(s, HTTP_SERVER_TAG);
	if (s->listener != NULL) /* To their clients they are connected, and the request may be on its way. */
		net_listener_empty(s->listener);
	stop_listening(s);
	s->draining = true;
	s->on_idle = on_idle;
	s->idle_arg = arg;
	cgn_list_each_safe (l, &s->conns) {
		struct server_conn *c = CGN_CONTAINER(l, struct server_conn, link);
		if (c->ops != NULL && !c->closing)
			c->ops->wind_down(c);
		else if (c->ops == NULL && !c->closing)
			cgn_timer_set(&c->timer, FRESH_GRACE); /* The first request may be on its way. */
		else
			http_conn_close(c);
	}
	server_check_idle(s);
}

void http_server_free(struct http_server **take)
{
	struct http_server *s = CGN_TAKE_LIVE(take, HTTP_SERVER_TAG);
	if (s == NULL)
		return;
	stop_listening(s);
	s->on_idle = NULL;
	struct cgn_link *l;
	while ((l = cgn_list_first(&s->conns)) != NULL) {
		struct server_conn *c = CGN_CONTAINER(l, struct server_conn, link);
		http_conn_abort(c);
		conn_leave(c, "the server was stopped");
	}
	cgn_hook_drop(&s->idle_hook);
	http_store_free(&s->spare);
	s->tag = 0;
	free(s);
}

struct http_server_stats http_server_stats(const struct http_server *s)
{
	CGN_LIVE(s, HTTP_SERVER_TAG);
	struct http_server_stats stats = s->stats;
	if (s->listener != NULL)
		stats.refused += net_listener_stats(s->listener).refused;
	return stats;
}
