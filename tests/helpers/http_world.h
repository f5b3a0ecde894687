/* SPDX-License-Identifier: Apache-2.0 */
/* A loop with a demo server, a client and raw connections, for the tests of io/wire/http. */
#pragma once
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>
#include <uv.h>

#include "base/core/buf.h"
#include "http_demo.h"
#include "io/wire/http/client.h"
#include "io/wire/http/server.h"

struct world {
	struct cgn_loop *l;
	struct demo d;
	struct http_client *cl;
	char addr[64];
	struct cgn_timer tick; /* Ends turns, so that an effect of the end of a turn is seen soon. */
};

static void world_tick(struct cgn_timer *t)
{
	cgn_timer_set(t, CGN_MSEC);
}

/* Run one turn. The test's own timeout ends a hang. */
static void world_turn(struct world *w)
{
	(void)uv_run(cgn_loop_uv(w->l), UV_RUN_ONCE);
}
#define world_until(w, cond)           \
	do {                           \
		alarm(60);             \
		while (!(cond))        \
			world_turn(w); \
		alarm(0);              \
	} while (0)

static void world_open(struct world *w, const struct http_server_cfg *cfg)
{
	struct cgn_err err = {0};
	struct http_server_cfg c = cfg != NULL ? *cfg : (struct http_server_cfg){0};
	c.listen.addr = "127.0.0.1:0";
	*w = (struct world){0};
	assert_true(cgn_ok(cgn_loop_new(&w->l, &err)));
	if (!cgn_ok(http_server_new(w->l, &c, &demo_ops, &w->d, &w->d.server, &err)))
		fail_msg("%s", err.msg);
	(void)snprintf(w->addr, sizeof w->addr, "127.0.0.1:%u", http_server_port(w->d.server));
	cgn_timer_init(&w->tick, w->l, world_tick);
	world_tick(&w->tick);
}

static void world_client(struct world *w, const struct http_client_cfg *cfg)
{
	struct cgn_err err = {0};
	struct http_client_cfg c = cfg != NULL ? *cfg : (struct http_client_cfg){0};
	c.addr = c.addr != NULL ? c.addr : w->addr;
	if (!cgn_ok(http_client_new(w->l, &c, &w->cl, &err)))
		fail_msg("%s", err.msg);
}

static void world_close(struct world *w)
{
	cgn_timer_cancel(&w->tick);
	http_client_free(&w->cl);
	http_server_free(&w->d.server);
	assert_int_equal(w->d.requests, w->d.fine + w->d.cancelled + w->d.timed_out + w->d.other);
	cgn_loop_free(&w->l);
}

/* ---- a call and its story ---- */

struct story {
	struct http_call *c;
	unsigned heads, ends, fails, drains;
	int status;
	size_t bytes, n_trailers, cancel_at;
	int64_t content_length;
	bool pause_at_head, pause_often, paused, corrupt;
	enum http_fail_stage stage;
	struct cgn_err why;
	char text[256], trailers[64], probe[64];
	bool done;
};

static void story_head(struct http_call *c, void *user, const struct http_head *h)
{
	struct story *s = user;
	s->heads++;
	s->status = h->status;
	s->content_length = h->content_length;
	demo_text(s->probe, sizeof s->probe, http_head_get(h, "x-probe"));
	if (s->pause_at_head)
		http_call_pause(c);
}

static void story_body(struct http_call *c, void *user, const uint8_t *p, size_t n)
{
	struct story *s = user;
	for (size_t i = 0; i < n && s->bytes + i < sizeof s->text - 1; i++)
		s->text[s->bytes + i] = (char)p[i];
	for (size_t i = 0; i < n; i++)
		s->corrupt = s->corrupt || p[i] != demo_byte(s->bytes + i);
	s->bytes += n;
	if (s->pause_often) {
		http_call_pause(c);
		s->paused = true;
	}
	if (s->cancel_at != 0 && s->bytes >= s->cancel_at)
		http_call_cancel(&s->c);
}

static void story_end(struct http_call *c, void *user, const struct http_field *t, size_t n)
{
	(void)c;
	struct story *s = user;
	s->ends++;
	s->n_trailers = n;
	struct cgn_buf b = cgn_buf_over(s->trailers, sizeof s->trailers - 1);
	for (size_t i = 0; i < n; i++)
		cgn_buf_fmt(&b, "%.*s: %.*s\n", (int)t[i].name.n, t[i].name.p, (int)t[i].value.n,
			t[i].value.p);
	s->trailers[b.n] = '\0';
	s->c = NULL;
	s->done = true;
}

static void story_drain(struct http_call *c, void *user)
{
	(void)c;
	((struct story *)user)->drains++;
}

static void story_fail(struct http_call *c, void *user, enum http_fail_stage stage, const struct cgn_err *why)
{
	(void)c;
	struct story *s = user;
	s->fails++;
	s->stage = stage;
	s->why = *why;
	s->c = NULL;
	s->done = true;
}

static const struct http_call_ops story_ops = {story_head, story_body, story_end, story_drain, story_fail};

static void story_start(struct world *w, struct story *s, const struct http_request *rq)
{
	struct cgn_err err = {0};
	if (!cgn_ok(http_call_start(w->cl, rq, &story_ops, s, &s->c, &err)))
		fail_msg("%s", err.msg);
	assert_false(s->done);
}

static void story_get(struct world *w, struct story *s, const char *path)
{
	story_start(w, s, &(struct http_request){.method = "GET", .path = path});
}

static CGN_UNUSED void story_tell(struct world *w, struct story *s, const char *path)
{
	*s = (struct story){0};
	story_get(w, s, path);
	world_until(w, s->done);
}

/* ---- raw bytes to the server ---- */

struct raw {
	struct net_conn *c;
	struct cgn_buf got;
	bool open, closed, eof;
};

static void raw_open(struct net_conn *c, void *user)
{
	(void)c;
	((struct raw *)user)->open = true;
}

static void raw_data(struct net_conn *c, void *user, const uint8_t *p, size_t n)
{
	(void)c;
	cgn_buf_add(&((struct raw *)user)->got, p, n);
}

static void raw_eof(struct net_conn *c, void *user)
{
	((struct raw *)user)->eof = true;
	net_close(c);
}

static void raw_close(struct net_conn *c, void *user, const struct cgn_err *why)
{
	(void)c;
	(void)why;
	struct raw *r = user;
	r->closed = true;
	r->c = NULL;
}

static CGN_UNUSED const struct net_conn_ops raw_ops = {.on_open = raw_open,
	.on_data = raw_data,
	.on_eof = raw_eof,
	.on_close = raw_close};

static CGN_UNUSED void raw_dial(struct world *w, struct raw *r)
{
	*r = (struct raw){0};
	assert_true(cgn_ok(net_connect(w->l, &(struct net_dial){.addr = w->addr}, &raw_ops, r, &r->c, NULL)));
	world_until(w, r->open || r->closed);
	assert_true(r->open);
}

static CGN_UNUSED void raw_send(struct raw *r, const void *p, size_t n)
{
	union {
		const void *in;
		void *out;
	} cast = {.in = p};
	if (r->c != NULL)
		net_write(r->c, &(struct iovec){cast.out, n}, 1);
}

static CGN_UNUSED void raw_say(struct raw *r, const char *z)
{
	raw_send(r, z, strlen(z));
}

static CGN_UNUSED bool raw_has(struct raw *r, const char *z)
{
	return r->got.n > 0 && memmem(r->got.p, r->got.n, z, strlen(z)) != NULL;
}

static CGN_UNUSED unsigned raw_count(struct raw *r, const char *z)
{
	unsigned n = 0;
	const char *at = r->got.p, *end = r->got.p + r->got.n;
	while (at != NULL && at < end && (at = memmem(at, (size_t)(end - at), z, strlen(z))) != NULL) {
		n++;
		at += strlen(z);
	}
	return n;
}

static CGN_UNUSED void raw_fini(struct world *w, struct raw *r)
{
	if (r->c != NULL)
		net_abort(r->c);
	world_until(w, r->closed);
	cgn_buf_fini(&r->got);
}

/* ---- a server that sends a scripted answer to any request ---- */

struct canned {
	struct net_listener *ln;
	const char *answer;
	size_t n;
	/* |silent_again|: the second request on a connection is answered by a close. */
	bool close_after, silent_again;
	unsigned accepted, asked;
	struct net_conn *last;
	struct cgn_buf got;
	char addr[64];
};

static void canned_data(struct net_conn *c, void *user, const uint8_t *p, size_t n)
{
	struct canned *k = user;
	k->asked++;
	cgn_buf_add(&k->got, p, n);
	union {
		const char *in;
		void *out;
	} cast = {.in = k->answer};
	if (k->silent_again && k->asked > 1) {
		net_close(c);
		return;
	}
	if (k->n > 0)
		net_write(c, &(struct iovec){cast.out, k->n}, 1);
	if (k->close_after)
		net_close(c);
}

static void canned_close(struct net_conn *c, void *user, const struct cgn_err *why)
{
	(void)why;
	struct canned *k = user;
	if (k->last == c)
		k->last = NULL;
}

static CGN_UNUSED const struct net_conn_ops canned_ops = {.on_data = canned_data, .on_close = canned_close};

static CGN_UNUSED void canned_accept(void *user, struct net_conn *c)
{
	struct canned *k = user;
	k->accepted++;
	k->asked = 0;
	k->last = c;
	net_conn_take(c, &canned_ops, k);
}

static CGN_UNUSED void canned_open(struct world *w, struct canned *k)
{
	assert_true(cgn_ok(net_listen(w->l, &(struct net_listen_cfg){.addr = "127.0.0.1:0"}, canned_accept, k,
		&k->ln, NULL)));
	(void)snprintf(k->addr, sizeof k->addr, "127.0.0.1:%u", net_listener_port(k->ln));
}

static CGN_UNUSED void canned_fini(struct canned *k)
{
	net_listener_close(&k->ln);
	if (k->last != NULL)
		net_abort(k->last);
	cgn_buf_fini(&k->got);
}
