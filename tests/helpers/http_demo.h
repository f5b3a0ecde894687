/* SPDX-License-Identifier: Apache-2.0 */
/* A small HTTP application for tests: the path selects its behaviour; counters record its callbacks. */
#pragma once
#include <stdio.h>
#include <stdlib.h>

#include "io/wire/http/server.h"
#include "io/wire/http/server_priv.h"

#define DEMO_BIG ((size_t)1024 * 1024)

struct demo {
	struct http_server *server;
	unsigned requests, bodies_ended, fine, cancelled, timed_out, other, drains;
	size_t body_bytes;
	size_t most_queued;
	struct http_exchange *last; /* The exchange of /hang and /hold. */
	char method[16], path[128], authority[128], scheme[8], probe[128], authorization[64];
	int64_t content_length;
	uint8_t version;
	size_t n_fields;
};

struct demo_job {
	struct demo *demo;
	struct http_exchange *x;
	enum { DEMO_PLAIN, DEMO_ECHO, DEMO_BIG_BODY, DEMO_SINK } kind;
	size_t left;
	bool request_ended;
};

static inline uint8_t demo_byte(size_t i)
{
	return (uint8_t)('a' + i % 23);
}

static void demo_text(char *out, size_t cap, struct cgn_str s)
{
	(void)cgn_str_copyz(out, cap, s);
}

static void demo_note(struct demo *d, struct http_exchange *x, const struct http_head *h)
{
	d->requests++;
	d->last = x;
	d->content_length = h->content_length;
	d->version = h->version;
	d->n_fields = h->n_fields;
	demo_text(d->method, sizeof d->method, h->method);
	demo_text(d->path, sizeof d->path, h->path);
	demo_text(d->authority, sizeof d->authority, h->authority);
	demo_text(d->scheme, sizeof d->scheme, h->scheme);
	demo_text(d->probe, sizeof d->probe, http_head_get(h, "x-probe"));
	demo_text(d->authorization, sizeof d->authorization, http_head_get(h, "authorization"));
}

/* Send as much of the big body as fits without queueing. */
static void demo_pump(struct demo_job *j)
{
	uint8_t piece[8192];
	while (j->left > 0 && !http_exchange_over_mark(j->x)) {
		size_t n = j->left < sizeof piece ? j->left : sizeof piece;
		for (size_t i = 0; i < n; i++)
			piece[i] = demo_byte(DEMO_BIG - j->left + i);
		http_exchange_body(j->x, &(struct iovec){piece, n}, 1);
		j->left -= n;
		size_t queued = http_exchange_queued(j->x);
		if (queued > j->demo->most_queued)
			j->demo->most_queued = queued;
	}
	if (j->left == 0)
		http_exchange_end(j->x, NULL, 0);
}

static void demo_reply(struct http_exchange *x, int status, const char *text)
{
	struct http_field type = {CGN_STR("content-type"), CGN_STR("text/plain")};
	http_exchange_reply(x, status, &type, 1, cgn_str_of(text));
}

static void demo_cut_short(struct http_exchange *x)
{
	char part[] = "partial";
	http_exchange_head(x, 200, NULL, 0, -1);
	http_exchange_body(x, &(struct iovec){part, 7}, 1);
	http_exchange_abort(x, CGN_BAD_GATEWAY);
}

static void demo_trailers(struct http_exchange *x)
{
	char part[] = "part";
	struct http_field t[] = {{CGN_STR("grpc-status"), CGN_STR("0")},
		{CGN_STR("connection"), CGN_STR("x")}, {CGN_STR("x-bad"), CGN_STR("a\r\nb: c")},
		{CGN_STR("grpc-message"), CGN_STR("all is well")}};
	http_exchange_head(x, 200, NULL, 0, -1);
	http_exchange_body(x, &(struct iovec){part, 4}, 1);
	http_exchange_end(x, t, CGN_COUNT(t));
}

static void demo_on_request(struct http_exchange *x, const struct http_head *h, void *user)
{
	struct demo *d = user;
	demo_note(d, x, h);
	struct demo_job *j = calloc(1, sizeof *j);
	if (j == NULL)
		abort();
	*j = (struct demo_job){.demo = d, .x = x};
	http_exchange_user(x, j);
	if (cgn_str_is(h->path, "/echo")) {
		j->kind = DEMO_ECHO;
		http_exchange_head(x, 200, NULL, 0, h->content_length);
	} else if (cgn_str_is(h->path, "/big")) {
		j->kind = DEMO_BIG_BODY;
		j->left = DEMO_BIG;
		http_exchange_head(x, 200, NULL, 0, (int64_t)DEMO_BIG);
		demo_pump(j);
	} else if (cgn_str_is(h->path, "/sink") || cgn_str_is(h->path, "/hold")) {
		j->kind = DEMO_SINK;
		if (cgn_str_is(h->path, "/hold"))
			http_exchange_pause(x);
	} else if (cgn_str_is(h->path, "/early")) {
		demo_reply(x, 413, "too much\n");
	} else if (cgn_str_is(h->path, "/cut")) {
		demo_cut_short(x);
	} else if (cgn_str_is(h->path, "/trailers")) {
		demo_trailers(x);
	} else if (cgn_str_is(h->path, "/nothing")) {
		http_exchange_reply(x, 204, NULL, 0, (struct cgn_str){NULL, 0});
	} else if (cgn_str_is(h->path, "/status-only")) {
		struct http_field f = {CGN_STR("grpc-status"), CGN_STR("12")};
		http_exchange_head(x, 200, &f, 1, -1);
		http_exchange_end(x, NULL, 0);
	} else if (cgn_str_is(h->path, "/hang")) {
		j->kind = DEMO_PLAIN;
	} else if (cgn_str_is(h->path, "/stream")) {
		http_exchange_head(x, 200, NULL, 0, -1);
	} else {
		demo_reply(x, 200, "hello\n");
	}
}

static void demo_on_body(struct http_exchange *x, void *user, const uint8_t *p, size_t n)
{
	struct demo_job *j = user;
	j->demo->body_bytes += n;
	if (j->kind != DEMO_ECHO)
		return;
	union {
		const uint8_t *in;
		void *out;
	} cast = {.in = p};
	http_exchange_body(x, &(struct iovec){cast.out, n}, 1);
	if (http_exchange_queued(x) > j->demo->most_queued)
		j->demo->most_queued = http_exchange_queued(x);
	if (http_exchange_over_mark(x))
		http_exchange_pause(x);
}

static void demo_on_body_end(struct http_exchange *x, void *user)
{
	struct demo_job *j = user;
	j->request_ended = true;
	j->demo->bodies_ended++;
	if (j->kind == DEMO_ECHO)
		http_exchange_end(x, NULL, 0);
	else if (j->kind == DEMO_SINK)
		demo_reply(x, 200, "swallowed\n");
}

static void demo_on_drain(struct http_exchange *x, void *user)
{
	struct demo_job *j = user;
	j->demo->drains++;
	if (j->kind == DEMO_BIG_BODY)
		demo_pump(j);
	else
		http_exchange_resume(x);
}

static void demo_on_close(struct http_exchange *x, void *user, const struct cgn_err *why)
{
	struct demo_job *j = user;
	struct demo *d = j->demo;
	if (d->last == x)
		d->last = NULL;
	if (why->code == CGN_FINE)
		d->fine++;
	else if (why->code == CGN_CANCELLED)
		d->cancelled++;
	else if (why->code == CGN_REQUEST_TIMEOUT)
		d->timed_out++;
	else
		d->other++;
	free(j);
}

static const struct http_server_ops demo_ops = {
	.on_request = demo_on_request,
	.on_body = demo_on_body,
	.on_body_end = demo_on_body_end,
	.on_drain = demo_on_drain,
	.on_close = demo_on_close,
};
