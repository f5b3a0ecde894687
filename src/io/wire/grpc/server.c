/* SPDX-License-Identifier: Apache-2.0 */
/* server: gRPC calls from HTTP/2 exchanges. */
#include <stdlib.h>

#include "io/wire/grpc/grpc_priv.h"
#include "io/wire/http/server.h"

#define GRPC_SERVER_TAG 0x67725e27U

struct grpc_server {
	uint32_t tag;
	uint32_t max_message;
	struct grpc_budget *budget;
	struct cgn_loop *loop;
	struct http_server *http;
	const struct grpc_method *methods;
	size_t n_methods;
	void *user;
	bool (*admit)(void *gate, struct grpc_call *c, unsigned action);
	void *gate;
	bool has_health;
	struct grpc_health health;
	struct cgn_link calls;
};

/* ---- ending a call ---- */

void grpc_finish(struct grpc_call *c, enum cgn_code code, const char *sentence)
{
	char number[12];
	CGN_LIVE(c, GRPC_CALL_TAG);
	CGN_MUST(c->server);
	if (c->finished || c->x == NULL)
		return;
	c->finished = c->deaf = true;
	cgn_timer_cancel(&c->deadline);
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf message = {.limit = 4096};
	grpc_message_encode(sentence != NULL && code != CGN_FINE ? sentence : "", &message);
	(void)snprintf(number, sizeof number, "%d", cgn_code_grpc(code));
	const struct http_field fields[] = {
		{CGN_STR("content-type"),
			CGN_STR("application/grpc")}, /* Sent only when head and trailers are one. */
		{CGN_STR("grpc-status"), cgn_str_of(number)},
		{CGN_STR("grpc-message"), cgn_buf_view(&message)},
	};
	size_t n = message.n > 0 ? 3 : 2;
	if (c->head_sent)
		http_exchange_end(c->x, fields + 1, n - 1);
	else
		http_exchange_reply(c->x, 200, fields, n, (struct cgn_str){NULL, 0});
}

struct cgn_str grpc_metadata(const struct grpc_call *c, const char *name)
{
	CGN_LIVE(c, GRPC_CALL_TAG);
	return c->head != NULL ? http_head_get(c->head, name) : (struct cgn_str){NULL, 0};
}

static void refused_on_close(struct grpc_call *c, void *user, const struct cgn_err *why)
{
	(void)c;
	(void)user;
	(void)why;
}

void grpc_refuse(struct grpc_call *c, enum cgn_code code, const char *sentence)
{
	static const struct grpc_call_ops refused = {.on_close = refused_on_close};
	grpc_call_take(c, &refused, NULL);
	grpc_finish(c, code, sentence);
}

void grpc_abort(struct grpc_call *c, enum cgn_code code)
{
	CGN_LIVE(c, GRPC_CALL_TAG);
	CGN_MUST(c->server);
	if (c->x == NULL)
		return;
	c->finished = c->deaf = true;
	cgn_timer_cancel(&c->deadline);
	http_exchange_abort(c->x, code);
}

void grpc_server_break(struct grpc_call *c, const struct cgn_err *why)
{
	c->final = *why;
	grpc_finish(c, why->code, why->msg);
}

/* ---- http's callbacks ---- */

static const struct grpc_method *find_method(const struct grpc_method *methods, size_t n, struct cgn_str path)
{
	for (size_t i = 0; i < n; i++)
		if (cgn_str_is(path, methods[i].path))
			return &methods[i];
	return NULL;
}

static void call_dispatch(struct grpc_server *s, struct grpc_call *c, struct cgn_str path)
{
	char sentence[256];
	const struct grpc_method *m = find_method(s->methods, s->n_methods, path);
	if (m != NULL) {
		if (s->admit == NULL || s->admit(s->gate, c, m->action))
			m->on_call(c, s->user);
		/* The head lives for on_call only. */
		c->head = NULL;
		CGN_MUST(c->ops != NULL || c->finished);
		return;
	}
	m = s->has_health ? find_method(grpc_health_methods, CGN_COUNT(grpc_health_methods), path) : NULL;
	if (m != NULL) {
		m->on_call(c, &s->health);
		return;
	}
	(void)snprintf(sentence, sizeof sentence, "there is no method %.*s here",
		(int)(path.n < 128 ? path.n : 128), path.p);
	grpc_finish(c, CGN_UNSUPPORTED, sentence);
}

static void call_refuse(struct http_exchange *x, int status, const char *sentence)
{
	const struct http_field fields[] = {{CGN_STR("content-type"), CGN_STR("text/plain")}};
	http_exchange_reply(x, status, fields, 1, cgn_str_of(sentence));
}

static void on_request(struct http_exchange *x, const struct http_head *h, void *server_user)
{
	struct grpc_server *s = server_user;
	CGN_LIVE(s, GRPC_SERVER_TAG);
	http_exchange_user(x, NULL);
	if (!cgn_str_is(h->method, "POST")) {
		call_refuse(x, 405, "this port speaks gRPC: calls are POST\n");
		return;
	}
	if (!cgn_str_starts(http_head_get(h, "content-type"), "application/grpc")) {
		call_refuse(x, 415, "this port speaks gRPC: content-type application/grpc\n");
		return;
	}
	struct grpc_call *c = grpc_call_new(s->loop, s->max_message, &s->calls);
	c->server = true;
	c->in.budget = s->budget;
	c->x = x;
	http_exchange_user(x, c);
	struct cgn_str timeout = http_head_get(h, "grpc-timeout");
	cgn_nsec nsec = 0;
	if (timeout.p != NULL && !grpc_timeout_parse(timeout, &nsec)) {
		grpc_finish(c, CGN_INVALID, "grpc-timeout must be up to 8 digits and one of H M S m u n");
		return;
	}
	if (timeout.p != NULL)
		grpc_call_set_deadline(c, nsec);
	c->head = h;
	call_dispatch(s, c, h->path);
}

static void on_body(struct http_exchange *x, void *user, const uint8_t *p, size_t n)
{
	struct grpc_call *c = user;
	(void)x;
	if (c != NULL && !c->deaf)
		grpc_call_feed(c, p, n);
}

static void on_body_end(struct http_exchange *x, void *user)
{
	(void)x;
	if (user != NULL)
		grpc_call_peer_ended(user);
}

static void on_drain(struct http_exchange *x, void *user)
{
	struct grpc_call *c = user;
	(void)x;
	if (c != NULL && !c->finished && c->ops != NULL && c->ops->on_drain != NULL)
		c->ops->on_drain(c, c->user);
}

static void on_close(struct http_exchange *x, void *user, const struct cgn_err *why)
{
	struct grpc_call *c = user;
	(void)x;
	if (c == NULL)
		return;
	c->x = NULL;
	grpc_call_close(c, c->final.code != CGN_FINE ? &c->final : why);
}

static const struct http_server_ops http_ops = {
	.on_request = on_request,
	.on_body = on_body,
	.on_body_end = on_body_end,
	.on_drain = on_drain,
	.on_close = on_close,
};

/* ---- the server ---- */

static CGN_RC listen_http(struct grpc_server *s, const struct grpc_server_cfg *cfg, struct cgn_err *err)
{
	struct http_server_cfg http = {
		.listen = cfg->listen,
		.h2_only = true,
		.max_streams = cfg->max_streams != 0 ? cfg->max_streams : 1024,
		/* Streams may be silent; deadlines and keepalive pings end dead calls. */
		.body_timeout = GRPC_FOREVER,
	};
	return http_server_new(s->loop, &http, &http_ops, s, &s->http, err);
}

CGN_RC grpc_server_new(struct cgn_loop *l, const struct grpc_server_cfg *cfg, void *user,
	struct grpc_server **out, struct cgn_err *err)
{
	struct grpc_server *s = CGN_NEW(struct grpc_server);
	s->tag = GRPC_SERVER_TAG;
	s->loop = l;
	s->max_message = cfg->max_message != 0 ? cfg->max_message : GRPC_MAX_MESSAGE;
	s->budget = cfg->budget;
	s->methods = cfg->methods;
	s->n_methods = cfg->n_methods;
	s->user = user;
	s->admit = cfg->admit;
	s->gate = cfg->gate;
	s->has_health = cfg->health;
	grpc_health_init(&s->health, cfg);
	cgn_list_init(&s->calls);
	cgn_rc rc = listen_http(s, cfg, err);
	if (!cgn_ok(rc)) {
		free(s);
		return rc;
	}
	*out = s;
	return CGN_OK;
}

unsigned grpc_server_port(const struct grpc_server *s)
{
	CGN_LIVE(s, GRPC_SERVER_TAG);
	return http_server_port(s->http);
}

struct net_listener *grpc_server_listener(const struct grpc_server *s)
{
	CGN_LIVE(s, GRPC_SERVER_TAG);
	return http_server_listener(s->http);
}

void grpc_server_serving(struct grpc_server *s, bool yes)
{
	CGN_LIVE(s, GRPC_SERVER_TAG);
	grpc_health_set(&s->health, yes);
}

void grpc_server_drain(struct grpc_server *s, void (*on_idle)(void *arg), void *arg)
{
	CGN_LIVE(s, GRPC_SERVER_TAG);
	grpc_health_set(&s->health, false);
	grpc_health_end(&s->health);
	http_server_drain(s->http, on_idle, arg);
}

void grpc_server_free(struct grpc_server **take)
{
	struct grpc_server *s = CGN_TAKE_LIVE(take, GRPC_SERVER_TAG);
	if (s == NULL)
		return;
	http_server_free(&s->http);
	CGN_MUST(cgn_list_empty(&s->calls));
	s->tag = 0;
	free(s);
}

struct cgn_str grpc_peer(const struct grpc_call *c)
{
	CGN_LIVE(c, GRPC_CALL_TAG);
	return c->x != NULL ? http_exchange_peer(c->x) : (struct cgn_str){NULL, 0};
}

struct cgn_str grpc_peer_name(const struct grpc_call *c)
{
	CGN_LIVE(c, GRPC_CALL_TAG);
	return c->x != NULL ? http_exchange_peer_name(c->x) : (struct cgn_str){NULL, 0};
}

struct cgn_str grpc_peer_uris(const struct grpc_call *c)
{
	CGN_LIVE(c, GRPC_CALL_TAG);
	return c->x != NULL ? http_exchange_peer_uris(c->x) : (struct cgn_str){NULL, 0};
}
