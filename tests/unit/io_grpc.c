/* SPDX-License-Identifier: Apache-2.0 */
/* gRPC over a real connection: our client, our server, and an HTTP/2 server and client that misbehave. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>
#include <uv.h>

#include "grpc/health.pb-c.h"
#include "grpc_demo.h"
#include "io/wire/http/server.h"

struct world {
	struct cgn_loop *l;
	struct demo d;
	struct grpc_channel *ch;
	char addr[64];
	struct cgn_timer tick; /* Ends a turn soon even when nothing arrives. */
};

static void world_tick(struct cgn_timer *t)
{
	cgn_timer_set(t, 5 * CGN_MSEC);
}

/* Run turns until the condition holds. The test's own timeout ends a hang. */
#define until(w, cond)                                                  \
	do {                                                            \
		alarm(60);                                              \
		while (!(cond))                                         \
			(void)uv_run(cgn_loop_uv((w)->l), UV_RUN_ONCE); \
		alarm(0);                                               \
	} while (0)

static int world_setup(void **state)
{
	struct world *w = calloc(1, sizeof *w);
	struct cgn_err err;
	assert_non_null(w);
	assert_true(cgn_ok(cgn_loop_new(&w->l, &err)));
	cgn_timer_init(&w->tick, w->l, world_tick);
	cgn_timer_set(&w->tick, 1);
	if (!cgn_ok(demo_serve(&w->d, w->l, "127.0.0.1:0", NULL, &err)))
		fail_msg("%s", err.msg);
	(void)snprintf(w->addr, sizeof w->addr, "127.0.0.1:%u", grpc_server_port(w->d.server));
	assert_true(
		cgn_ok(grpc_channel_new(w->l, &(struct grpc_channel_cfg){.addr = w->addr}, &w->ch, &err)));
	*state = w;
	return 0;
}

static int world_teardown(void **state)
{
	struct world *w = *state;
	cgn_timer_cancel(&w->tick);
	grpc_channel_free(&w->ch);
	grpc_server_free(&w->d.server);
	assert_int_equal(w->d.calls, w->d.fine + w->d.cancelled + w->d.expired + w->d.other);
	cgn_loop_free(&w->l);
	free(w);
	return 0;
}

/* ---- a call and its story ---- */

struct story {
	struct grpc_call *c;
	unsigned answers, drains;
	uint32_t last_seq;
	uint64_t total;
	size_t bytes;
	char text[128];
	bool pause, closed;
	unsigned cancel_at;
	struct grpc_channel **free_channel; /* Freed at the first message, when not NULL. */
	struct cgn_err why;
};

static void story_message(struct grpc_call *c, void *user, const uint8_t *p, size_t n)
{
	struct story *s = user;
	Test__EchoReply *r = NULL;
	assert_true(cgn_ok(
		pb_unpack(&test__echo_reply__descriptor, (struct cgn_str){(const char *)p, n}, &r, NULL)));
	s->answers++;
	s->last_seq = r->seq;
	s->total = r->total;
	s->bytes += r->blob.len;
	(void)cgn_str_copyz(s->text, sizeof s->text, cgn_str_of(r->text));
	pb_free(&r);
	if (s->pause)
		grpc_pause(c);
	if (s->cancel_at != 0 && s->answers == s->cancel_at)
		grpc_cancel(&s->c);
	if (s->free_channel != NULL)
		grpc_channel_free(s->free_channel);
}

static void story_drain(struct grpc_call *c, void *user)
{
	(void)c;
	((struct story *)user)->drains++;
}

static void story_close(struct grpc_call *c, void *user, const struct cgn_err *why)
{
	struct story *s = user;
	(void)c;
	assert_false(s->closed);
	s->closed = true;
	s->why = *why;
	s->c = NULL;
}

static const struct grpc_call_ops story_ops = {.on_message = story_message,
	.on_drain = story_drain,
	.on_close = story_close};

static void story_start(struct world *w, struct story *s, const char *path, cgn_nsec timeout)
{
	struct cgn_err err;
	*s = (struct story){.c = NULL};
	if (!cgn_ok(grpc_call_start(w->ch, path, timeout, &story_ops, s, &s->c, &err)))
		fail_msg("%s", err.msg);
	assert_false(s->closed);
}

static void story_say(struct story *s, Test__EchoRequest *rq)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {.n = 0};
	pb_pack(rq, &b);
	grpc_send(s->c, &(struct iovec){b.p, b.n}, b.n > 0);
}

static Test__EchoRequest echo_request(char *text)
{
	Test__EchoRequest rq = TEST__ECHO_REQUEST__INIT;
	rq.text = text;
	return rq;
}

static char hello[] = "hello";

static void expect_story(const struct story *s, enum cgn_code code)
{
	if (s->why.code != code)
		fail_msg("%s instead of %s: %s", cgn_code_name(s->why.code), cgn_code_name(code), s->why.msg);
}

static void unary_calls_are_answered(void **state)
{
	struct world *w = *state;
	static struct story s;
	for (unsigned i = 0; i < 3; i++) {
		Test__EchoRequest rq = echo_request(hello);
		story_start(w, &s, "/test.Echo/Unary", 0);
		story_say(&s, &rq);
		grpc_half_close(s.c);
		until(w, s.closed);
		expect_story(&s, CGN_FINE);
		assert_int_equal(s.answers, 1);
		assert_string_equal(s.text, "hello");
	}
	until(w, w->d.fine == 3);
}

static void errors_carry_code_and_sentence(void **state)
{
	struct world *w = *state;
	static struct story s;
	static const struct {
		uint32_t status;
		enum cgn_code code;
	} cases[] = {{3, CGN_INVALID}, {5, CGN_NOT_FOUND}, {8, CGN_OVERLOADED}, {14, CGN_UNAVAILABLE},
		{16, CGN_UNAUTHENTICATED}};
	for (size_t i = 0; i < CGN_COUNT(cases); i++) {
		Test__EchoRequest rq = echo_request((char[]){"100% \xc3\xa9\nline"});
		rq.fail = cases[i].status;
		story_start(w, &s, "/test.Echo/Unary", 0);
		story_say(&s, &rq);
		grpc_half_close(s.c);
		until(w, s.closed);
		expect_story(&s, cases[i].code);
		assert_string_equal(s.why.msg, "100% \xc3\xa9\nline");
		assert_int_equal(s.answers, 0);
	}
	story_start(w, &s, "/test.Echo/Nothing", 0);
	grpc_half_close(s.c);
	until(w, s.closed);
	expect_story(&s, CGN_UNSUPPORTED);
	assert_non_null(strstr(s.why.msg, "/test.Echo/Nothing"));
}

static void streams_go_down_and_up(void **state)
{
	struct world *w = *state;
	static struct story s;
	Test__EchoRequest rq = echo_request(hello);
	rq.count = 1000;
	rq.size = 100;
	story_start(w, &s, "/test.Echo/Down", 0);
	story_say(&s, &rq);
	grpc_half_close(s.c);
	until(w, s.closed);
	expect_story(&s, CGN_FINE);
	assert_int_equal(s.answers, 1000);
	assert_int_equal(s.last_seq, 1000);

	story_start(w, &s, "/test.Echo/Up", 0);
	rq.blob = (ProtobufCBinaryData){5, (uint8_t *)hello};
	for (unsigned i = 0; i < 1000; i++)
		story_say(&s, &rq);
	grpc_half_close(s.c);
	until(w, s.closed);
	expect_story(&s, CGN_FINE);
	assert_int_equal(s.last_seq, 1000);
	assert_int_equal(s.total, 5000);
}

static void both_directions_at_once(void **state)
{
	struct world *w = *state;
	static struct story s;
	Test__EchoRequest rq = echo_request(hello);
	story_start(w, &s, "/test.Echo/Bidi", 0);
	for (unsigned i = 1; i <= 5; i++) {
		story_say(&s, &rq);
		until(w, s.answers == i);
	}
	grpc_send(s.c, NULL, 0); /* an empty message is a message */
	until(w, s.answers == 6);
	assert_string_equal(s.text, "");
	grpc_half_close(s.c);
	until(w, s.closed);
	expect_story(&s, CGN_FINE);
}

static void big_messages_and_the_limit(void **state)
{
	struct world *w = *state;
	static struct story s;
	size_t big = (size_t)4 * 1024 * 1024 - 100;
	uint8_t *blob = calloc(1, big + 200);
	assert_non_null(blob);
	Test__EchoRequest rq = echo_request(hello);
	rq.blob = (ProtobufCBinaryData){big, blob};
	rq.size = (uint32_t)big;
	story_start(w, &s, "/test.Echo/Unary", 0);
	story_say(&s, &rq);
	grpc_half_close(s.c);
	until(w, s.closed);
	expect_story(&s, CGN_FINE);
	assert_int_equal(s.bytes, big);
	assert_int_equal(s.total, big);

	rq.blob.len = big + 200;
	story_start(w, &s, "/test.Echo/Unary", 0);
	story_say(&s, &rq);
	grpc_half_close(s.c);
	until(w, s.closed);
	expect_story(&s, CGN_OVERLOADED);

	rq.blob.len = 0;
	rq.size = (uint32_t)big + 200; /* the same limit for answers */
	story_start(w, &s, "/test.Echo/Unary", 0);
	story_say(&s, &rq);
	grpc_half_close(s.c);
	until(w, s.closed);
	expect_story(&s, CGN_OVERLOADED);
	free(blob);
}

static void deadlines_end_calls_on_both_sides(void **state)
{
	struct world *w = *state;
	static struct story s;
	Test__EchoRequest rq = echo_request(hello);
	rq.delay_ms = 60000;
	story_start(w, &s, "/test.Echo/Unary", 50 * CGN_MSEC);
	story_say(&s, &rq);
	grpc_half_close(s.c);
	until(w, s.closed);
	expect_story(&s, CGN_DEADLINE);
	until(w, w->d.expired + w->d.cancelled == 1); /* Either of the two comes first. */
}

static void cancelling_is_seen_by_the_server(void **state)
{
	struct world *w = *state;
	static struct story s;
	Test__EchoRequest rq = echo_request(hello);
	rq.count = 1000000;
	rq.size = 1000;
	story_start(w, &s, "/test.Echo/Down", 0);
	story_say(&s, &rq);
	grpc_half_close(s.c);
	s.cancel_at = 10; /* Cancel from inside the callback. */
	until(w, w->d.cancelled == 1);
	assert_int_equal(s.answers, 10);
	assert_false(s.closed);
	assert_null(s.c);

	story_start(w, &s, "/test.Echo/Unary", 0); /* Cancel before anything was sent. */
	grpc_cancel(&s.c);
	grpc_cancel(&s.c);
	Test__EchoRequest fine = echo_request(hello);
	story_start(w, &s, "/test.Echo/Unary", 0); /* The connection still works. */
	story_say(&s, &fine);
	grpc_half_close(s.c);
	until(w, s.closed);
	expect_story(&s, CGN_FINE);
}

static void a_paused_reader_slows_the_server(void **state)
{
	struct world *w = *state;
	static struct story s;
	Test__EchoRequest rq = echo_request(hello);
	rq.count = 3000;
	rq.size = 10000; /* 30 MB, far above all windows and marks. */
	story_start(w, &s, "/test.Echo/Down", 0);
	s.pause = true;
	story_say(&s, &rq);
	grpc_half_close(s.c);
	until(w, s.answers == 1);
	for (unsigned i = 0; i < 200; i++)
		(void)uv_run(cgn_loop_uv(w->l), UV_RUN_NOWAIT);
	assert_int_equal(s.answers, 1);     /* no message after the pause */
	assert_int_equal(w->d.fine, 0);     /* The server did not finish: the call was cancelled. */
	for (unsigned i = 2; i < 20; i++) { /* The answers come singly, in order. */
		grpc_resume(s.c);
		until(w, s.answers == i);
		assert_int_equal(s.last_seq, i);
	}
	s.pause = false;
	grpc_resume(s.c);
	until(w, s.closed);
	expect_story(&s, CGN_FINE);
	assert_int_equal(s.answers, 3000);
	assert_true(w->d.drains > 0);
}

/* The server sends the whole answer while the reader is paused, when the reader's window has room for it. */
static void a_wide_channel_takes_a_large_answer_at_once(void **state)
{
	struct world *w = *state;
	struct grpc_channel *narrow = w->ch, *wide = NULL;
	static struct story s;
	Test__EchoRequest rq = echo_request(hello);
	rq.count = 50;
	rq.size = 10000; /* Half of a wide window, eight narrow ones. */
	assert_true(cgn_ok(grpc_channel_new(w->l, &(struct grpc_channel_cfg){.addr = w->addr, .wide = true},
		&wide, NULL)));
	for (unsigned i = 0; i < 2; i++) {
		w->ch = i == 0 ? narrow : wide;
		story_start(w, &s, "/test.Echo/Down", 0);
		s.pause = true;
		story_say(&s, &rq);
		grpc_half_close(s.c);
		until(w, s.answers == 1);
		for (unsigned turn = 0; turn < 200; turn++)
			(void)uv_run(cgn_loop_uv(w->l), UV_RUN_NOWAIT);
		assert_int_equal(w->d.fine, i == 0 ? 0 : 2);
		assert_int_equal(s.answers, 1);
		s.pause = false;
		grpc_resume(s.c);
		until(w, s.closed);
		expect_story(&s, CGN_FINE);
		assert_int_equal(s.answers, 50);
	}
	w->ch = narrow;
	grpc_channel_free(&wide);
}

static unsigned slowed_by_its_server(struct world *w)
{
	static struct story s;
	uint8_t *blob = calloc(1, 10000);
	assert_non_null(blob);
	Test__EchoRequest rq = echo_request(hello);
	rq.blob = (ProtobufCBinaryData){10000, blob};
	w->d.pause_bidi = true;
	story_start(w, &s, "/test.Echo/Bidi", 0);
	unsigned sent = 0;
	for (; sent < 3000 && !grpc_over_mark(s.c); sent++)
		story_say(&s, &rq);
	until(w, s.answers == 1);
	for (unsigned i = 0; i < 200; i++)
		(void)uv_run(cgn_loop_uv(w->l), UV_RUN_NOWAIT);
	assert_int_equal(s.answers, 1);
	assert_true(sent < 3000);
	grpc_half_close(s.c); /* The half-close arrives after all queued messages. */
	w->d.pause_bidi = false;
	grpc_resume(w->d.last);
	until(w, s.closed);
	expect_story(&s, CGN_FINE);
	assert_int_equal(s.answers, sent);
	assert_true(s.drains > 0); /* The sender was told that there is room again. */
	assert_int_equal(w->d.half_closes, 1);
	free(blob);
	return sent;
}

static void a_paused_server_slows_the_client(void **state)
{
	(void)slowed_by_its_server(*state);
}

/* After the connection is up, the server holds as much as its window admits, far more than its client
 * queues. */
static void a_paused_server_holds_its_window(void **state)
{
	struct world *w = *state;
	static struct story s;
	Test__EchoRequest rq = echo_request(hello);
	story_start(w, &s, "/test.Echo/Unary", 0);
	story_say(&s, &rq);
	grpc_half_close(s.c);
	until(w, s.closed);
	w->d.half_closes = 0;
	assert_true(slowed_by_its_server(w) > 20);
}

/* ---- no peer ---- */

static void an_absent_server_is_unavailable_at_once(void **state)
{
	struct world *w = *state;
	struct grpc_channel *ch = NULL, *keep = w->ch;
	static struct story first, second;
	char addr[] = "127.0.0.1:1";
	assert_true(cgn_ok(grpc_channel_new(w->l, &(struct grpc_channel_cfg){.addr = addr}, &ch, NULL)));
	w->ch = ch;
	story_start(w, &first, "/test.Echo/Unary", 0);
	until(w, first.closed);
	expect_story(&first, CGN_UNAVAILABLE);
	assert_non_null(strstr(first.why.msg, "127.0.0.1:1"));
	story_start(w, &second, "/test.Echo/Unary", 0);
	story_say(&second, &(Test__EchoRequest)TEST__ECHO_REQUEST__INIT);
	grpc_half_close(second.c);
	until(w, second.closed);
	expect_story(&second, CGN_UNAVAILABLE);
	story_start(w, &second, "/test.Echo/Unary", 0);
	static struct story cancelled;
	story_start(w, &cancelled, "/test.Echo/Unary", 0);
	grpc_cancel(&cancelled.c);
	grpc_channel_free(&ch); /* Calls still wait for their error. */
	assert_true(second.closed);
	expect_story(&second, CGN_CANCELLED);
	assert_false(cancelled.closed);
	w->ch = keep;
}

/* A router forgets a node because of the node's own message. */
static void a_channel_may_be_freed_by_its_own_message(void **state)
{
	struct world *w = *state;
	static struct story s, other;
	Test__EchoRequest rq = echo_request(hello);
	rq.count = 1000;
	rq.size = 1000;
	story_start(w, &other, "/test.Echo/Bidi", 0);
	story_start(w, &s, "/test.Echo/Down", 0);
	s.free_channel = &w->ch;
	story_say(&s, &rq);
	grpc_half_close(s.c);
	until(w, s.closed);
	assert_int_equal(s.answers, 1);
	expect_story(&s, CGN_CANCELLED);
	expect_story(&other, CGN_CANCELLED);
	until(w, w->d.cancelled == 2 || (w->d.cancelled == 1 && w->d.calls == 1));
}

static void a_channel_finds_a_server_that_came_back(void **state)
{
	struct world *w = *state;
	static struct story s;
	struct cgn_err err;
	Test__EchoRequest rq = echo_request(hello);
	rq.delay_ms = 60000;
	story_start(w, &s, "/test.Echo/Unary", 0);
	story_say(&s, &rq);
	until(w, w->d.calls == 1);
	grpc_server_free(&w->d.server);
	until(w, s.closed);
	expect_story(&s, CGN_UNAVAILABLE);
	assert_true(cgn_ok(demo_serve(&w->d, w->l, w->addr, NULL, &err)));
	rq.delay_ms = 0;
	do {
		story_start(w, &s, "/test.Echo/Unary", 0);
		story_say(&s, &rq);
		grpc_half_close(s.c);
		until(w, s.closed);
	} while (s.why.code == CGN_UNAVAILABLE);
	expect_story(&s, CGN_FINE);
}

/* ---- unary calls in one function ---- */

struct unary_story {
	unsigned done;
	enum cgn_code code;
	char text[64];
};

static void unary_done(void *user, const struct grpc_unary_result *r)
{
	struct unary_story *s = user;
	Test__EchoReply *m = NULL;
	s->done++;
	s->code = r->err->code;
	if (s->code == CGN_FINE &&
		cgn_ok(pb_unpack(&test__echo_reply__descriptor, (struct cgn_str){(const char *)r->p, r->n},
			&m, NULL)))
		(void)cgn_str_copyz(s->text, sizeof s->text, cgn_str_of(m->text));
	pb_free(&m);
}

static enum cgn_code unary_run(struct world *w, const char *path, Test__EchoRequest *rq,
	struct unary_story *s)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {.n = 0};
	*s = (struct unary_story){.done = 0};
	pb_pack(rq, &b);
	assert_true(cgn_ok(grpc_unary(w->ch, path, cgn_buf_view(&b), 0, unary_done, s, NULL)));
	assert_int_equal(s->done, 0);
	until(w, s->done);
	return s->code;
}

static void unary_wants_exactly_one_answer(void **state)
{
	struct world *w = *state;
	struct unary_story s;
	Test__EchoRequest rq = echo_request(hello);
	assert_int_equal(unary_run(w, "/test.Echo/Unary", &rq, &s), CGN_FINE);
	assert_string_equal(s.text, "hello");
	rq.count = 2;
	assert_int_equal(unary_run(w, "/test.Echo/Down", &rq, &s), CGN_INTERNAL);
	rq.fail = 5;
	assert_int_equal(unary_run(w, "/test.Echo/Unary", &rq, &s), CGN_NOT_FOUND);
	assert_int_equal(s.done, 1);
}

/* ---- health ---- */

struct health_story {
	struct grpc_call *c;
	unsigned answers, last;
	bool closed;
	enum cgn_code code;
};

static void health_message(struct grpc_call *c, void *user, const uint8_t *p, size_t n)
{
	struct health_story *s = user;
	Grpc__Health__V1__HealthCheckResponse *r = NULL;
	(void)c;
	assert_true(cgn_ok(pb_unpack(&grpc__health__v1__health_check_response__descriptor,
		(struct cgn_str){(const char *)p, n}, &r, NULL)));
	s->answers++;
	s->last = (unsigned)r->status;
	pb_free(&r);
}

static void health_close(struct grpc_call *c, void *user, const struct cgn_err *why)
{
	struct health_story *s = user;
	(void)c;
	s->closed = true;
	s->code = why->code;
}

static void ask_health(struct world *w, struct health_story *s, const char *method, char *service)
{
	static const struct grpc_call_ops ops = {.on_message = health_message, .on_close = health_close};
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {.n = 0};
	Grpc__Health__V1__HealthCheckRequest rq = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
	rq.service = service;
	*s = (struct health_story){.answers = 0};
	pb_pack(&rq, &b);
	assert_true(cgn_ok(grpc_call_start(w->ch, method, 0, &ops, s, &s->c, NULL)));
	grpc_send(s->c, &(struct iovec){b.p, b.n}, b.n > 0);
	grpc_half_close(s->c);
}

static char everything[] = "", echo[] = "test.Echo", part[] = "test.Ech", unknown[] = "nobody";

static void health_is_checked(void **state)
{
	struct world *w = *state;
	static struct health_story s;
	ask_health(w, &s, "/grpc.health.v1.Health/Check", everything);
	until(w, s.closed);
	assert_int_equal(s.code, CGN_FINE);
	assert_int_equal(s.last, 1);
	grpc_server_serving(w->d.server, false);
	ask_health(w, &s, "/grpc.health.v1.Health/Check", echo);
	until(w, s.closed);
	assert_int_equal(s.last, 2);
	ask_health(w, &s, "/grpc.health.v1.Health/Check", part);
	until(w, s.closed);
	assert_int_equal(s.code, CGN_NOT_FOUND);
	/* A call that asks nothing is answered too. */
	static const struct grpc_call_ops ops = {.on_message = health_message, .on_close = health_close};
	s = (struct health_story){.answers = 0};
	assert_true(cgn_ok(grpc_call_start(w->ch, "/grpc.health.v1.Health/Check", 0, &ops, &s, &s.c, NULL)));
	grpc_half_close(s.c);
	until(w, s.closed);
	assert_int_equal(s.code, CGN_INVALID);
	assert_int_equal(s.answers, 0);
}

static void pool_idle(void *arg)
{
	*(bool *)arg = true;
}

static void health_is_watched_until_the_drain(void **state)
{
	struct world *w = *state;
	static struct health_story s, other;
	bool drained = false;
	ask_health(w, &s, "/grpc.health.v1.Health/Watch", everything);
	ask_health(w, &other, "/grpc.health.v1.Health/Watch", unknown);
	until(w, s.answers == 1 && other.answers == 1);
	assert_int_equal(s.last, 1);
	assert_int_equal(other.last, 3);
	grpc_server_serving(w->d.server, false);
	until(w, s.answers == 2);
	assert_int_equal(s.last, 2);
	grpc_server_serving(w->d.server, true);
	until(w, s.answers == 3);
	grpc_server_drain(w->d.server, pool_idle, &drained);
	until(w, s.closed && other.closed && drained);
	assert_int_equal(s.last, 2);
	assert_int_equal(s.code, CGN_UNAVAILABLE);
}

/* ---- peers that speak HTTP/2 but not gRPC ---- */

struct raw {
	struct http_client *cl;
	int status;
	char grpc_status[8], message[128];
	bool done, failed;
};

static void raw_status(struct raw *r, const struct http_field *f, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		if (cgn_str_is(f[i].name, "grpc-status"))
			(void)cgn_str_copyz(r->grpc_status, sizeof r->grpc_status, f[i].value);
		if (cgn_str_is(f[i].name, "grpc-message"))
			(void)cgn_str_copyz(r->message, sizeof r->message, f[i].value);
	}
}

static void raw_head(struct http_call *c, void *user, const struct http_head *h)
{
	struct raw *r = user;
	(void)c;
	r->status = h->status;
	raw_status(r, h->fields, h->n_fields);
}

static void raw_body(struct http_call *c, void *user, const uint8_t *p, size_t n)
{
	(void)c;
	(void)user;
	(void)p;
	(void)n;
}

static void raw_end(struct http_call *c, void *user, const struct http_field *t, size_t n)
{
	struct raw *r = user;
	(void)c;
	raw_status(r, t, n);
	r->done = true;
}

static void raw_fail(struct http_call *c, void *user, enum http_fail_stage stage, const struct cgn_err *why)
{
	struct raw *r = user;
	(void)c;
	(void)stage;
	(void)why;
	r->done = r->failed = true;
}

/* Send one POST of |body| to the Echo server, with a content-type and optionally a grpc-timeout. */
static void raw_post(struct world *w, struct raw *r, const char *method, const char *type,
	const char *timeout, struct cgn_str body)
{
	static const struct http_call_ops ops = {.on_head = raw_head,
		.on_body = raw_body,
		.on_end = raw_end,
		.on_fail = raw_fail};
	struct http_call *c;
	const struct http_field fields[] = {{CGN_STR("content-type"), cgn_str_of(type)},
		{CGN_STR("te"), CGN_STR("trailers")}, {CGN_STR("grpc-timeout"), cgn_str_of(timeout)}};
	union {
		const char *in;
		void *out;
	} bytes = {.in = body.p};
	const struct iovec iov = {bytes.out, body.n};
	const struct http_request rq = {.method = method,
		.path = "/test.Echo/Unary",
		.fields = fields,
		.n_fields = timeout != NULL ? 3 : 2,
		.body_len = (int64_t)body.n,
		.body = &iov,
		.n_body = 1};
	*r = (struct raw){.status = 0};
	assert_true(cgn_ok(http_client_new(w->l, &(struct http_client_cfg){.addr = w->addr, .proto = HTTP_2},
		&r->cl, NULL)));
	assert_true(cgn_ok(http_call_start(r->cl, &rq, &ops, r, &c, NULL)));
	until(w, r->done);
	http_client_free(&r->cl);
}

static void refusing_call(struct grpc_call *c, void *user)
{
	(void)user;
	grpc_refuse(c, CGN_FORBIDDEN, "not for you");
}

static void a_refused_call_ends_with_its_reason(void **state)
{
	struct world *w = *state;
	struct grpc_channel *keep = w->ch;
	struct grpc_server *server = NULL;
	static struct story s;
	char addr[64];
	static const struct grpc_method methods[] = {{"/x/Y", refusing_call}};
	const struct grpc_server_cfg cfg = {.listen = {.addr = "127.0.0.1:0"},
		.methods = methods,
		.n_methods = CGN_COUNT(methods)};
	assert_true(cgn_ok(grpc_server_new(w->l, &cfg, NULL, &server, NULL)));
	(void)snprintf(addr, sizeof addr, "127.0.0.1:%u", grpc_server_port(server));
	assert_true(cgn_ok(grpc_channel_new(w->l, &(struct grpc_channel_cfg){.addr = addr}, &w->ch, NULL)));
	for (unsigned i = 0; i < 2; i++) { /* Also before the client's last message. */
		story_start(w, &s, "/x/Y", 0);
		grpc_send(s.c, NULL, 0);
		if (i == 0)
			grpc_half_close(s.c);
		until(w, s.closed);
		expect_story(&s, CGN_FORBIDDEN);
		assert_string_equal(s.why.msg, "not for you");
		assert_int_equal(s.answers, 0);
	}
	grpc_channel_free(&w->ch);
	grpc_server_free(&server);
	w->ch = keep;
}

static void strange_requests_are_refused(void **state)
{
	struct world *w = *state;
	struct raw r;
	raw_post(w, &r, "PUT", "application/grpc", NULL, CGN_STR(""));
	assert_int_equal(r.status, 405);
	raw_post(w, &r, "POST", "application/json", NULL, CGN_STR("{}"));
	assert_int_equal(r.status, 415);
	raw_post(w, &r, "POST", "application/grpc", "soon", CGN_STR(""));
	assert_string_equal(r.grpc_status, "3");
	raw_post(w, &r, "POST", "application/grpc+proto", NULL, CGN_STR("\1\0\0\0\1x"));
	assert_string_equal(r.grpc_status, "12");
	raw_post(w, &r, "POST", "application/grpc", NULL, CGN_STR("\0\xff\xff\xff\xffx"));
	assert_string_equal(r.grpc_status, "8");
	raw_post(w, &r, "POST", "application/grpc", NULL, CGN_STR("\0\0\0\0\x09x"));
	assert_string_equal(r.grpc_status, "3");
	assert_string_equal(r.message, "the stream ended inside a message");
	raw_post(w, &r, "POST", "application/grpc", NULL, CGN_STR("\0\0\0\0\2\xff\xff"));
	assert_string_equal(r.grpc_status, "3");
	raw_post(w, &r, "POST", "application/grpc", "0m", CGN_STR(""));
	assert_string_equal(r.grpc_status, "4");
	raw_post(w, &r, "POST", "application/grpc", "5S", CGN_STR("\0\0\0\0\0"));
	assert_int_equal(r.status, 200);
	assert_string_equal(r.grpc_status, "0");
}

/* An HTTP/2 server with a scripted answer. */
struct fake {
	struct http_server *s;
	int status;
	const char *type, *grpc_status, *body;
	size_t n_body;
	bool no_trailers, silent;
	cgn_nsec timeout; /* Timeout of the call. */
	bool seen_te;     /* "te: trailers" came with the last request. */
};

static void fake_request(struct http_exchange *x, const struct http_head *h, void *user)
{
	struct fake *f = user;
	const struct http_field head[] = {{CGN_STR("content-type"), cgn_str_of(f->type)}};
	const struct http_field trailer[] = {{CGN_STR("grpc-status"), cgn_str_of(f->grpc_status)}};
	f->seen_te = cgn_str_is(http_head_get(h, "te"), "trailers");
	if (f->silent)
		return;
	union {
		const char *in;
		void *out;
	} body = {.in = f->body};
	http_exchange_head(x, f->status, head, 1, -1);
	if (f->n_body > 0)
		http_exchange_body(x, &(struct iovec){body.out, f->n_body}, 1);
	http_exchange_end(x, trailer, f->no_trailers ? 0 : 1);
}

static void fake_body(struct http_exchange *x, void *user, const uint8_t *p, size_t n)
{
	(void)x;
	(void)user;
	(void)p;
	(void)n;
}

static void fake_end(struct http_exchange *x, void *user)
{
	(void)x;
	(void)user;
}

static void fake_close(struct http_exchange *x, void *user, const struct cgn_err *why)
{
	(void)x;
	(void)user;
	(void)why;
}

static const struct http_server_ops fake_ops = {
	.on_request = fake_request,
	.on_body = fake_body,
	.on_body_end = fake_end,
	.on_drain = fake_end,
	.on_close = fake_close,
};

static enum cgn_code ask_fake(struct world *w, struct fake *f, struct story *s)
{
	struct grpc_channel *keep = w->ch;
	char addr[64];
	const struct http_server_cfg cfg = {.listen = {.addr = "127.0.0.1:0"}, .h2_only = true};
	assert_true(cgn_ok(http_server_new(w->l, &cfg, &fake_ops, f, &f->s, NULL)));
	(void)snprintf(addr, sizeof addr, "127.0.0.1:%u", http_server_port(f->s));
	assert_true(cgn_ok(grpc_channel_new(w->l,
		&(struct grpc_channel_cfg){.addr = addr, .max_message = 1000}, &w->ch, NULL)));
	story_start(w, s, "/x/Y", f->timeout);
	grpc_send(s->c, NULL, 0);
	grpc_half_close(s->c);
	until(w, s->closed);
	grpc_channel_free(&w->ch);
	http_server_free(&f->s);
	w->ch = keep;
	return s->why.code;
}

/* The caller keeps its own deadline when the server does not care for it. */
static void a_silent_server_meets_the_deadline(void **state)
{
	struct world *w = *state;
	static struct story s;
	struct fake f = {.silent = true, .timeout = 20 * CGN_MSEC};
	assert_int_equal(ask_fake(w, &f, &s), CGN_DEADLINE);
}

static void strange_answers_become_statuses(void **state)
{
	struct world *w = *state;
	static struct story s;
	static const struct {
		struct fake f;
		enum cgn_code code;
	} cases[] = {
		{{.status = 503, .type = "text/html", .no_trailers = true}, CGN_UNAVAILABLE},
		{{.status = 404, .type = "text/html", .no_trailers = true}, CGN_UNSUPPORTED},
		{{.status = 401, .type = "text/html", .no_trailers = true}, CGN_UNAUTHENTICATED},
		{{.status = 200, .type = "text/html", .no_trailers = true}, CGN_INTERNAL},
		{{.status = 200, .type = "text/html", .grpc_status = "0", .body = "\0\0\0\0\0", .n_body = 5},
			CGN_INTERNAL},
		{{.status = 200, .type = "application/grpc", .no_trailers = true},
			CGN_INTERNAL}, /* No status at all. */
		{{.status = 200, .type = "application/grpc", .grpc_status = "99"}, CGN_INTERNAL},
		{{.status = 200, .type = "application/grpc", .grpc_status = "7"}, CGN_FORBIDDEN},
		{{.status = 200,
			 .type = "application/grpc",
			 .grpc_status = "0",
			 .body = "\0\0\0\0\5x",
			 .n_body = 6},
			CGN_INVALID},
		{{.status = 200,
			 .type = "application/grpc",
			 .grpc_status = "0",
			 .body = "\0\0\0\x10\0x",
			 .n_body = 6},
			CGN_OVERLOADED},
		{{.status = 200,
			 .type = "application/grpc",
			 .grpc_status = "0",
			 .body = "\1\0\0\0\1x",
			 .n_body = 6},
			CGN_UNSUPPORTED},
		{{.status = 200,
			 .type = "application/grpc+proto",
			 .grpc_status = "0",
			 .body = "\0\0\0\0\0",
			 .n_body = 5},
			CGN_FINE},
	};
	for (size_t i = 0; i < CGN_COUNT(cases); i++) {
		struct fake f = cases[i].f;
		enum cgn_code got = ask_fake(w, &f, &s);
		assert_true(f.seen_te);
		if (got != cases[i].code)
			fail_msg("case %zu: %s, %s", i, cgn_code_name(got), s.why.msg);
		if (got != CGN_FINE)
			assert_true(s.why.msg[0] != '\0');
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(unary_calls_are_answered, world_setup, world_teardown),
		cmocka_unit_test_setup_teardown(errors_carry_code_and_sentence, world_setup, world_teardown),
		cmocka_unit_test_setup_teardown(streams_go_down_and_up, world_setup, world_teardown),
		cmocka_unit_test_setup_teardown(both_directions_at_once, world_setup, world_teardown),
		cmocka_unit_test_setup_teardown(big_messages_and_the_limit, world_setup, world_teardown),
		cmocka_unit_test_setup_teardown(deadlines_end_calls_on_both_sides, world_setup,
			world_teardown),
		cmocka_unit_test_setup_teardown(cancelling_is_seen_by_the_server, world_setup,
			world_teardown),
		cmocka_unit_test_setup_teardown(a_paused_reader_slows_the_server, world_setup,
			world_teardown),
		cmocka_unit_test_setup_teardown(a_wide_channel_takes_a_large_answer_at_once, world_setup,
			world_teardown),
		cmocka_unit_test_setup_teardown(a_paused_server_slows_the_client, world_setup,
			world_teardown),
		cmocka_unit_test_setup_teardown(a_paused_server_holds_its_window, world_setup,
			world_teardown),
		cmocka_unit_test_setup_teardown(an_absent_server_is_unavailable_at_once, world_setup,
			world_teardown),
		cmocka_unit_test_setup_teardown(a_channel_may_be_freed_by_its_own_message, world_setup,
			world_teardown),
		cmocka_unit_test_setup_teardown(a_channel_finds_a_server_that_came_back, world_setup,
			world_teardown),
		cmocka_unit_test_setup_teardown(unary_wants_exactly_one_answer, world_setup, world_teardown),
		cmocka_unit_test_setup_teardown(health_is_checked, world_setup, world_teardown),
		cmocka_unit_test_setup_teardown(health_is_watched_until_the_drain, world_setup,
			world_teardown),
		cmocka_unit_test_setup_teardown(a_refused_call_ends_with_its_reason, world_setup,
			world_teardown),
		cmocka_unit_test_setup_teardown(strange_requests_are_refused, world_setup, world_teardown),
		cmocka_unit_test_setup_teardown(a_silent_server_meets_the_deadline, world_setup,
			world_teardown),
		cmocka_unit_test_setup_teardown(strange_answers_become_statuses, world_setup, world_teardown),
	};
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
