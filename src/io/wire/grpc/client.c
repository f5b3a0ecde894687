/* SPDX-License-Identifier: Apache-2.0 */
/* client: a channel to one address, and the calls on it. */
#include <stdlib.h>

#include "io/os/loop/backoff.h"
#include "io/wire/grpc/grpc_priv.h"

#define GRPC_CHANNEL_TAG 0x67c4a22eU

struct grpc_channel {
	uint32_t tag;
	uint32_t max_message;
	struct cgn_loop *loop;
	struct http_client *http;
	char *addr;
	const char *traceparent; /* Borrowed from cfg. */
	struct cgn_link calls;
	/* After a failed connect, calls fail at once until blocked_until, so that a dead peer does not cost
	 * each call a timeout. */
	struct cgn_backoff backoff;
	cgn_nsec blocked_until;
	char reason[320];
	bool dying;
};

/* ---- backoff ---- */

/* Many calls may wait for one connect; count its failure once. */
static void connect_failed(struct grpc_channel *ch, const struct cgn_err *why)
{
	cgn_nsec now = cgn_loop_now(ch->loop);
	if (now < ch->blocked_until)
		return;
	ch->blocked_until = now + cgn_backoff_next(&ch->backoff);
	(void)cgn_str_copyz(ch->reason, sizeof ch->reason, cgn_str_of(why->msg));
}

static void connect_done(struct grpc_channel *ch)
{
	cgn_backoff_reset(&ch->backoff);
	ch->blocked_until = 0;
}

/* ---- http's callbacks ---- */

void grpc_client_break(struct grpc_call *c, const struct cgn_err *why)
{
	if (c->h != NULL)
		http_call_cancel(&c->h);
	grpc_call_close(c, why);
}

static void on_head(struct http_call *h, void *user, const struct http_head *head)
{
	struct grpc_call *c = user;
	struct cgn_err err;
	struct cgn_str type = http_head_get(head, "content-type");
	(void)h;
	connect_done(c->channel);
	c->has_status = grpc_status_read(head->fields, head->n_fields, &c->final);
	if (c->has_status)
		return;
	if (head->status != 200) {
		(void)CGN_FAIL_AS(&err, grpc_code_from_http(head->status),
			"%s answered HTTP status %d and no gRPC", c->channel->addr, head->status);
		grpc_client_break(c, &err);
	} else if (!cgn_str_starts(type, "application/grpc")) {
		(void)CGN_FAIL_AS(&err, CGN_INTERNAL, "%s answered content-type \"%.*s\" and no gRPC",
			c->channel->addr, (int)(type.n < 64 ? type.n : 64), type.n > 0 ? type.p : "");
		grpc_client_break(c, &err);
	}
}

static void on_body(struct http_call *h, void *user, const uint8_t *p, size_t n)
{
	struct grpc_call *c = user;
	(void)h;
	if (!c->deaf)
		grpc_call_feed(c, p, n);
}

static void on_end(struct http_call *h, void *user, const struct http_field *trailers, size_t n)
{
	struct grpc_call *c = user;
	(void)h;
	c->h = NULL;
	c->finished = true;
	cgn_timer_cancel(&c->deadline);
	if (!c->has_status && !grpc_status_read(trailers, n, &c->final))
		(void)CGN_FAIL_AS(&c->final, CGN_INTERNAL, "%s ended the call without a status",
			c->channel->addr);
	grpc_call_peer_ended(c);
}

static void on_drain(struct http_call *h, void *user)
{
	struct grpc_call *c = user;
	(void)h;
	if (!c->finished && c->ops->on_drain != NULL)
		c->ops->on_drain(c, c->user);
}

static void on_fail(struct http_call *h, void *user, enum http_fail_stage stage, const struct cgn_err *why)
{
	struct grpc_call *c = user;
	struct cgn_err err;
	(void)h;
	c->h = NULL;
	bool ours = why->code == CGN_CANCELLED || why->code == CGN_NO_MEMORY;
	if (stage == HTTP_FAIL_CONNECT && !ours)
		connect_failed(c->channel, why);
	(void)CGN_FAIL_AS(&err, ours ? why->code : CGN_UNAVAILABLE, "%s", why->msg);
	grpc_call_close(c, &err);
}

static const struct http_call_ops http_ops = {
	.on_head = on_head,
	.on_body = on_body,
	.on_end = on_end,
	.on_drain = on_drain,
	.on_fail = on_fail,
};

/* ---- calls ---- */

static CGN_RC start_http(struct grpc_call *c, const char *path, cgn_nsec timeout, struct cgn_err *err)
{
	char text[GRPC_TIMEOUT_TEXT];
	grpc_timeout_format(timeout, text);
	struct http_field fields[5] = {
		{CGN_STR("content-type"), CGN_STR("application/grpc")},
		{CGN_STR("te"), CGN_STR("trailers")},
		{CGN_STR("user-agent"), CGN_STR("cognitora/" CGN_VERSION)},
	};
	size_t n = 3;
	if (timeout != 0)
		fields[n++] = (struct http_field){CGN_STR("grpc-timeout"), cgn_str_of(text)};
	if (c->channel->traceparent != NULL)
		fields[n++] =
			(struct http_field){CGN_STR("traceparent"), cgn_str_of(c->channel->traceparent)};
	const struct http_request rq = {
		.method = "POST",
		.path = path,
		.fields = fields,
		.n_fields = n,
		.body_len = -1,
	};
	return http_call_start(c->channel->http, &rq, &http_ops, c, &c->h, err);
}

static void call_doom(struct grpc_call *c)
{
	(void)CGN_FAIL_AS(&c->final, CGN_UNAVAILABLE, "%s", c->channel->reason);
	c->finished = true;
	c->peer_ended = true;
	cgn_loop_defer(c->loop, &c->turn);
}

CGN_RC grpc_call_start(struct grpc_channel *ch, const char *path, cgn_nsec timeout,
	const struct grpc_call_ops *ops, void *user, struct grpc_call **out, struct cgn_err *err)
{
	CGN_LIVE(ch, GRPC_CHANNEL_TAG);
	if (ch->dying)
		return CGN_FAIL(err, CANCELLED, "the channel to %s is being closed", ch->addr);
	struct grpc_call *c = grpc_call_new(ch->loop, ch->max_message, &ch->calls);
	c->channel = ch;
	grpc_call_take(c, ops, user);
	if (cgn_loop_now(ch->loop) < ch->blocked_until) {
		call_doom(c);
	} else {
		cgn_rc rc = start_http(c, path, timeout, err);
		if (!cgn_ok(rc)) {
			grpc_call_bury(c);
			return rc;
		}
		if (timeout != 0)
			grpc_call_set_deadline(c, timeout);
	}
	*out = c;
	return CGN_OK;
}

void grpc_half_close(struct grpc_call *c)
{
	CGN_LIVE(c, GRPC_CALL_TAG);
	CGN_MUST(!c->server);
	if (c->finished)
		return;
	c->finished = true;
	if (c->h != NULL)
		http_call_end(c->h);
}

void grpc_cancel(struct grpc_call **take)
{
	struct grpc_call *c = CGN_TAKE_LIVE(take, GRPC_CALL_TAG);
	if (c == NULL)
		return;
	CGN_MUST(!c->server);
	if (c->closed)
		return;
	if (c->h != NULL)
		http_call_cancel(&c->h);
	grpc_call_bury(c);
}

/* ---- unary ---- */

struct unary {
	void (*done)(void *user, const struct grpc_unary_result *r);
	void *user;
	struct cgn_buf answer;
	unsigned answers;
};

static void unary_message(struct grpc_call *c, void *user, const uint8_t *p, size_t n)
{
	struct unary *u = user;
	(void)c;
	u->answers++;
	if (u->answers == 1)
		cgn_buf_add(&u->answer, p, n);
}

static void unary_close(struct grpc_call *c, void *user, const struct cgn_err *why)
{
	struct unary *u = user;
	struct cgn_err err = *why;
	if (err.code == CGN_FINE && u->answers != 1)
		(void)CGN_FAIL_AS(&err, CGN_INTERNAL, "%s gave %u answers where one belongs",
			c->channel->addr, u->answers);
	if (err.code == CGN_FINE && u->answer.bad)
		(void)CGN_FAIL_AS(&err, CGN_NO_MEMORY, "no memory for the answer of %s", c->channel->addr);
	const struct grpc_unary_result r = {.err = &err, .p = (const uint8_t *)u->answer.p, .n = u->answer.n};
	u->done(u->user, &r);
	cgn_buf_fini(&u->answer);
	free(u);
}

static const struct grpc_call_ops unary_ops = {.on_message = unary_message, .on_close = unary_close};

CGN_RC grpc_unary(struct grpc_channel *ch, const char *path, struct cgn_str request, cgn_nsec timeout,
	void (*done)(void *user, const struct grpc_unary_result *r), void *user, struct cgn_err *err)
{
	struct unary *u = CGN_NEW(struct unary);
	struct grpc_call *c;
	u->done = done;
	u->user = user;
	cgn_rc rc = grpc_call_start(ch, path, timeout, &unary_ops, u, &c, err);
	if (!cgn_ok(rc)) {
		free(u);
		return rc;
	}
	union { /* iovec has no const; http only reads. */
		const char *in;
		void *out;
	} bytes = {.in = request.p};
	grpc_send(c, &(struct iovec){bytes.out, request.n}, 1);
	grpc_half_close(c);
	return CGN_OK;
}

/* ---- the channel ---- */

CGN_RC grpc_channel_new(struct cgn_loop *l, const struct grpc_channel_cfg *cfg, struct grpc_channel **out,
	struct cgn_err *err)
{
	const struct http_client_cfg http = {
		.addr = cfg->addr,
		.authority = cfg->server_name,
		.tls = cfg->tls,
		.server_name = cfg->server_name,
		.proto = HTTP_2,
		.max_conns = cfg->max_conns,
		.wide = cfg->wide,
		.follow = cfg->follow,
		.connect_timeout = cfg->connect_timeout,
		/* A channel stays connected, so that the next call needs no handshake. */
		.idle_timeout = GRPC_FOREVER,
		.ping_interval = cfg->keepalive != 0 ? cfg->keepalive : 20 * CGN_SEC,
	};
	struct grpc_channel *ch = CGN_NEW(struct grpc_channel);
	ch->tag = GRPC_CHANNEL_TAG;
	ch->loop = l;
	ch->traceparent = cfg->traceparent;
	ch->max_message = cfg->max_message != 0 ? cfg->max_message : GRPC_MAX_MESSAGE;
	ch->backoff = (struct cgn_backoff){.first = 50 * CGN_MSEC, .last = 3 * CGN_SEC};
	cgn_list_init(&ch->calls);
	ch->addr = cgn_str_dupz(cgn_str_of(cfg->addr));
	cgn_rc rc = http_client_new(l, &http, &ch->http, err);
	if (!cgn_ok(rc)) {
		free(ch->addr);
		free(ch);
		return rc;
	}
	*out = ch;
	return CGN_OK;
}

void grpc_channel_free(struct grpc_channel **take)
{
	struct grpc_channel *ch = *take;
	struct cgn_link *first;
	struct cgn_err err;
	*take = NULL;
	if (ch == NULL)
		return;
	CGN_LIVE(ch, GRPC_CHANNEL_TAG);
	ch->dying = true;
	(void)CGN_FAIL_AS(&err, CGN_CANCELLED, "the channel to %s is being closed", ch->addr);
	while ((first = cgn_list_first(&ch->calls)) != NULL)
		grpc_client_break(CGN_CONTAINER(first, struct grpc_call, link), &err);
	http_client_free(&ch->http);
	ch->tag = 0;
	free(ch->addr);
	free(ch);
}
