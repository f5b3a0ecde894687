/* SPDX-License-Identifier: Apache-2.0 */
/* Behaviour that holds for both HTTP versions: our client against our server. */
#include <netinet/in.h>

#include "http_world.h"
#include "io/wire/http/server_priv.h"
#include "name_world.h"

static enum http_proto proto; /* Version of the running test group. */

static void open_world(struct world *w, const struct http_server_cfg *sc)
{
	world_open(w, sc);
	world_client(w, &(struct http_client_cfg){.proto = proto});
}

static void answers_come_over_one_connection(void **state)
{
	(void)state;
	struct world w;
	struct story s;
	open_world(&w, NULL);
	for (int i = 0; i < 5; i++) {
		story_tell(&w, &s, "/hello");
		assert_int_equal(s.status, 200);
		assert_string_equal(s.text, "hello\n");
		assert_int_equal(s.content_length, 6);
		assert_int_equal(s.ends + s.fails, 1);
	}
	world_until(&w, w.d.fine == 5);
	assert_int_equal(http_server_stats(w.d.server).accepted, 1);
	assert_string_equal(w.d.authority, w.addr);
	assert_string_equal(w.d.scheme, "http");
	assert_int_equal(w.d.version, proto == HTTP_2 ? 20 : 11);
	world_close(&w);
}

static void a_head_of_some_kilobytes_is_taken(void **state)
{
	(void)state;
	struct world w;
	struct story s = {0};
	static char cookie[8000];
	memset(cookie, 'c', sizeof cookie);
	const struct http_field field = {CGN_STR("cookie"), {cookie, sizeof cookie}};
	open_world(&w, NULL);
	story_start(&w, &s,
		&(struct http_request){.method = "GET", .path = "/hello", .fields = &field, .n_fields = 1});
	world_until(&w, s.done);
	assert_int_equal(s.status, 200);
	world_close(&w);
}

static void a_big_answer_waits_for_a_slow_reader(void **state)
{
	(void)state;
	struct world w;
	struct story s = {.pause_at_head = true};
	open_world(&w, NULL);
	story_get(&w, &s, "/big");
	world_until(&w, s.heads == 1);
	for (int i = 0; i < 50; i++) /* As many bytes as the sockets and windows take. */
		(void)uv_run(cgn_loop_uv(w.l), UV_RUN_NOWAIT);
	assert_int_equal(s.bytes, 0);
	assert_true(w.d.most_queued < 512 * 1024);
	http_call_resume(s.c);
	world_until(&w, s.done);
	assert_int_equal(s.bytes, DEMO_BIG);
	assert_int_equal(s.ends, 1);
	assert_false(s.corrupt);
	world_until(&w, w.d.fine == 1);
	world_close(&w);
}

static bool is_over;

static bool over_as_set(struct http_exchange *x)
{
	(void)x;
	return is_over;
}

/* A producer that stopped is told when the queue is short again, even if another question came meanwhile with the
 * answer "not over the mark": without that an answer of many events stalled for ever. */
static void a_stopped_producer_is_told_whoever_asks_meanwhile(void **state)
{
	(void)state;
	struct world w;
	struct story s = {0};
	open_world(&w, NULL);
	story_get(&w, &s, "/hang");
	world_until(&w, w.d.last != NULL);
	struct http_exchange *x = w.d.last;
	const struct exchange_ops *real = x->ops;
	struct exchange_ops set = *real;
	set.over_mark = over_as_set;
	x->ops = &set;
	is_over = true;
	assert_true(http_exchange_over_mark(x));
	http_exchange_drained(x);
	assert_int_equal(w.d.drains, 0);
	is_over = false;
	assert_false(http_exchange_over_mark(x));
	http_exchange_drained(x);
	assert_int_equal(w.d.drains, 1);
	http_exchange_drained(x); /* Once for each time. */
	assert_int_equal(w.d.drains, 1);
	x->ops = real;
	http_call_cancel(&s.c);
	world_until(&w, w.d.last == NULL);
	world_close(&w);
}

/* A whole MiB at once is queued until there are a connection and windows. */
static void a_big_request_comes_back(void **state)
{
	(void)state;
	struct world w;
	struct story s = {0};
	uint8_t *big = malloc(DEMO_BIG);
	assert_non_null(big);
	for (size_t i = 0; i < DEMO_BIG; i++)
		big[i] = demo_byte(i);
	open_world(&w, NULL);
	struct iovec body = {big, DEMO_BIG};
	for (int again = 0; again < 2; again++) {
		s = (struct story){0};
		story_start(&w, &s,
			&(struct http_request){.method = "POST",
				.path = "/echo",
				.body = &body,
				.n_body = 1});
		world_until(&w, s.done);
		assert_int_equal(s.bytes, DEMO_BIG);
		assert_int_equal(s.content_length, DEMO_BIG);
		assert_int_equal(w.d.content_length, DEMO_BIG);
		assert_false(s.corrupt);
	}
	free(big);
	world_close(&w);
}

static uint8_t *big_make(void)
{
	uint8_t *big = malloc(DEMO_BIG);
	assert_non_null(big);
	for (size_t i = 0; i < DEMO_BIG; i++)
		big[i] = demo_byte(i);
	return big;
}

/* Send |big| as one copied piece and three lent ones. */
static void story_lend(struct story *s, uint8_t *big)
{
	http_call_body(s->c, &(struct iovec){big, 10}, 1);
	http_call_lend(s->c,
		(struct iovec[]){{big + 10, 7}, {big + 17, 0}, {big + 17, 200000},
			{big + 200017, DEMO_BIG - 200017}},
		4);
	http_call_end(s->c);
}

/* The first call lends before there is a connection. */
static void lent_bytes_come_whole(void **state)
{
	(void)state;
	static const int64_t lengths[] = {DEMO_BIG, -1, DEMO_BIG, -1};
	struct world w;
	uint8_t *big = big_make();
	open_world(&w, NULL);
	for (size_t i = 0; i < CGN_COUNT(lengths); i++) {
		struct story s = {0};
		story_start(&w, &s,
			&(struct http_request){.method = "POST", .path = "/echo", .body_len = lengths[i]});
		story_lend(&s, big);
		world_until(&w, s.done);
		assert_int_equal(s.ends, 1);
		assert_int_equal(s.bytes, DEMO_BIG);
		assert_false(s.corrupt);
	}
	free(big);
	world_close(&w);
}

static void lent_bytes_may_be_freed_once_they_are_kept(void **state)
{
	(void)state;
	struct world w;
	open_world(&w, NULL);
	for (int turns = 0; turns < 12; turns++) {
		struct story s = {0};
		uint8_t *big = big_make();
		story_start(&w, &s,
			&(struct http_request){.method = "POST", .path = "/echo", .body_len = -1});
		story_lend(&s, big);
		for (int i = 0; i < turns; i++)
			(void)uv_run(cgn_loop_uv(w.l), UV_RUN_NOWAIT);
		if (!s.done)
			http_call_keep(s.c);
		free(big);
		world_until(&w, s.done);
		assert_int_equal(s.bytes, DEMO_BIG);
		assert_false(s.corrupt);
	}
	world_close(&w);
}

/* A call that ends before its lent bytes are sent gives them back, and the next call is not confused. */
static void lent_bytes_end_with_their_call(void **state)
{
	(void)state;
	struct world w;
	open_world(&w, NULL);
	for (int turns = 0; turns < 4; turns++) {
		struct story s = {0};
		uint8_t *big = big_make();
		story_start(&w, &s,
			&(struct http_request){.method = "POST", .path = "/hold", .body_len = DEMO_BIG});
		story_lend(&s, big);
		for (int i = 0; i < turns * 3; i++)
			(void)uv_run(cgn_loop_uv(w.l), UV_RUN_NOWAIT);
		http_call_cancel(&s.c);
		free(big);
		struct story next = {0};
		story_tell(&w, &next, "/hello");
		assert_string_equal(next.text, "hello\n");
	}
	struct story early = {0};
	uint8_t *big = big_make();
	story_start(&w, &early, &(struct http_request){.method = "POST", .path = "/early", .body_len = -1});
	story_lend(&early, big);
	world_until(&w, early.done);
	free(big);
	story_tell(&w, &early, "/hello");
	assert_string_equal(early.text, "hello\n");
	world_close(&w);
}

static size_t story_upload(struct story *s, size_t from)
{
	uint8_t piece[7000];
	while (from < DEMO_BIG && !http_call_over_mark(s->c)) {
		size_t n = DEMO_BIG - from < sizeof piece ? DEMO_BIG - from : sizeof piece;
		for (size_t i = 0; i < n; i++)
			piece[i] = demo_byte(from + i);
		http_call_body(s->c, &(struct iovec){piece, n}, 1);
		from += n;
	}
	if (from == DEMO_BIG)
		http_call_end(s->c);
	return from;
}

static void an_upload_waits_for_a_paused_server(void **state)
{
	(void)state;
	struct world w;
	struct story s = {0};
	open_world(&w, NULL);
	story_start(&w, &s, &(struct http_request){.method = "POST", .path = "/hold", .body_len = -1});
	size_t sent = story_upload(&s, 0);
	world_until(&w, w.d.last != NULL);
	assert_true(sent < DEMO_BIG);
	unsigned drains = 0;
	for (int i = 0; i < 200; i++) {
		(void)uv_run(cgn_loop_uv(w.l), UV_RUN_NOWAIT);
		if (s.drains > drains) { /* The connection is open, and its buffers took some bytes. */
			drains = s.drains;
			sent = story_upload(&s, sent);
		}
	}
	assert_int_equal(w.d.body_bytes, 0);
	http_exchange_resume(w.d.last);
	while (sent < DEMO_BIG) {
		world_until(&w, s.drains > drains);
		drains = s.drains;
		sent = story_upload(&s, sent);
	}
	world_until(&w, s.done);
	assert_int_equal(w.d.body_bytes, DEMO_BIG);
	assert_int_equal(w.d.bodies_ended, 1);
	assert_string_equal(s.text, "swallowed\n");
	assert_int_equal(w.d.content_length, -1);
	world_close(&w);
}

static void a_streamed_echo_is_whole(void **state)
{
	(void)state;
	struct world w;
	struct story s = {0};
	open_world(&w, NULL);
	story_start(&w, &s, &(struct http_request){.method = "POST", .path = "/echo", .body_len = -1});
	size_t sent = story_upload(&s, 0);
	unsigned drains = 0;
	while (sent < DEMO_BIG) {
		world_until(&w, s.drains > drains);
		drains = s.drains;
		sent = story_upload(&s, sent);
	}
	world_until(&w, s.done);
	assert_int_equal(s.bytes, DEMO_BIG);
	assert_false(s.corrupt);
	assert_true(w.d.most_queued < 1024 * 1024);
	world_close(&w);
}

static void trailers_come_last(void **state)
{
	(void)state;
	struct world w;
	struct story s;
	open_world(&w, NULL);
	story_tell(&w, &s, "/trailers");
	assert_string_equal(s.text, "part");
	assert_int_equal(s.n_trailers, 2); /* Hop-by-hop fields and split lines are not sent. */
	assert_string_equal(s.trailers, "grpc-status: 0\ngrpc-message: all is well\n");
	s = (struct story){.pause_at_head = true};
	story_get(&w, &s, "/trailers");
	world_until(&w, s.heads == 1 && w.d.fine == 2);
	for (int i = 0; i < 20; i++)
		(void)uv_run(cgn_loop_uv(w.l), UV_RUN_NOWAIT);
	assert_int_equal(s.ends + s.fails + s.bytes, 0);
	http_call_resume(s.c);
	world_until(&w, s.done);
	assert_int_equal(s.ends, 1);
	assert_string_equal(s.text, "part");
	assert_string_equal(s.trailers, "grpc-status: 0\ngrpc-message: all is well\n");
	world_close(&w);
}

static void answers_without_a_body(void **state)
{
	(void)state;
	struct world w;
	struct story s;
	open_world(&w, NULL);
	story_tell(&w, &s, "/nothing");
	assert_int_equal(s.status, 204);
	assert_int_equal(s.bytes, 0);
	s = (struct story){0};
	story_start(&w, &s, &(struct http_request){.method = "HEAD", .path = "/big"});
	world_until(&w, s.done);
	assert_int_equal(s.content_length, DEMO_BIG);
	assert_int_equal(s.bytes, 0);
	assert_int_equal(s.ends, 1);
	story_tell(&w, &s, "/hello"); /* The connection is still in step. */
	assert_string_equal(s.text, "hello\n");
	assert_int_equal(http_server_stats(w.d.server).accepted, 1);
	world_close(&w);
}

static void a_cancelled_call_reaches_the_server(void **state)
{
	(void)state;
	struct world w;
	struct story s = {0};
	open_world(&w, NULL);
	story_get(&w, &s, "/hang");
	world_until(&w, w.d.last != NULL);
	http_call_cancel(&s.c);
	assert_null(s.c);
	world_until(&w, w.d.cancelled == 1);
	s = (struct story){.cancel_at = 1}; /* Cancel from inside on_body. */
	story_get(&w, &s, "/big");
	/* A loopback socket may take all bytes at once. */
	world_until(&w, s.heads == 1 && s.c == NULL && w.d.cancelled + w.d.fine == 2);
	assert_int_equal(s.heads, 1);
	assert_int_equal(s.ends + s.fails, 0);
	assert_null(s.c);
	s = (struct story){0};
	story_get(&w, &s, "/hello"); /* Cancel before the request was sent. */
	http_call_cancel(&s.c);
	story_tell(&w, &s, "/hello");
	assert_string_equal(s.text, "hello\n");
	assert_int_equal(http_server_stats(w.d.server).exchanges, 0);
	world_close(&w);
}

static void a_cut_answer_is_a_failure(void **state)
{
	(void)state;
	struct world w;
	struct story s;
	open_world(&w, NULL);
	story_tell(&w, &s, "/cut");
	assert_int_equal(s.heads, 1);
	assert_int_equal(s.fails, 1);
	assert_int_equal(s.ends, 0);
	assert_int_equal(s.stage, HTTP_FAIL_BODY);
	assert_int_equal(s.why.code, CGN_BAD_GATEWAY);
	world_until(&w, w.d.other == 1);
	world_close(&w);
}

static void an_early_answer_ends_the_call(void **state)
{
	(void)state;
	struct world w;
	struct story s = {0};
	open_world(&w, NULL);
	story_start(&w, &s, &(struct http_request){.method = "POST", .path = "/early", .body_len = -1});
	char part[] = "part of it";
	http_call_body(s.c, &(struct iovec){part, 10}, 1);
	world_until(&w, s.done);
	assert_int_equal(s.status, 413);
	assert_int_equal(s.ends, 1);
	world_until(&w, w.d.fine == 1);
	story_tell(&w, &s, "/hello");
	assert_string_equal(s.text, "hello\n");
	world_close(&w);
}

static void silence_meets_its_deadline(void **state)
{
	(void)state;
	struct world w;
	struct story s = {0};
	open_world(&w, NULL);
	story_start(&w, &s,
		&(struct http_request){.method = "GET", .path = "/hang", .head_timeout = 20 * CGN_MSEC});
	world_until(&w, s.done);
	assert_int_equal(s.why.code, CGN_DEADLINE);
	assert_int_equal(s.stage, HTTP_FAIL_HEAD);
	s = (struct story){0};
	story_start(&w, &s,
		&(struct http_request){.method = "GET", .path = "/stream", .idle_timeout = 20 * CGN_MSEC});
	world_until(&w, s.done);
	assert_int_equal(s.why.code, CGN_DEADLINE);
	assert_int_equal(s.stage, HTTP_FAIL_BODY);
	world_until(&w, w.d.cancelled == 2);
	world_close(&w);
}

static void an_absent_server_is_a_connect_failure(void **state)
{
	(void)state;
	struct world w;
	struct story s[3] = {0};
	world_open(&w, NULL);
	world_client(&w, &(struct http_client_cfg){.addr = "127.0.0.1:1", .proto = proto});
	for (int i = 0; i < 3; i++)
		story_get(&w, &s[i], "/hello");
	world_until(&w, s[0].done && s[1].done && s[2].done);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(s[i].stage, HTTP_FAIL_CONNECT);
		assert_int_equal(s[i].fails, 1);
	}
	world_close(&w);
}

static void calls_wait_and_then_do_not(void **state)
{
	(void)state;
	struct world w;
	struct story s[4] = {0};
	struct http_call *c = NULL;
	struct cgn_err err = {0};
	world_open(&w, &(struct http_server_cfg){.max_streams = 1});
	world_client(&w, &(struct http_client_cfg){.proto = proto, .max_conns = 1, .max_waiting = 4});
	struct http_request rq = {.method = "GET", .path = "/hello"};
	for (int i = 0; i < 4; i++)
		story_get(&w, &s[i], "/hello");
	assert_int_equal(http_call_start(w.cl, &rq, &story_ops, NULL, &c, &err).code, CGN_OVERLOADED);
	assert_null(c);
	world_until(&w, s[0].done && s[1].done && s[2].done && s[3].done);
	for (int i = 0; i < 4; i++)
		assert_string_equal(s[i].text, "hello\n");
	assert_int_equal(http_server_stats(w.d.server).accepted, 1);
	world_close(&w);
}

static void free_fails_what_is_open(void **state)
{
	(void)state;
	struct world w;
	struct story s[2] = {0};
	open_world(&w, NULL);
	story_get(&w, &s[0], "/hang");
	world_until(&w, w.d.last != NULL);
	story_get(&w, &s[1], "/hang");
	http_client_free(&w.cl);
	assert_int_equal(s[0].fails + s[1].fails, 2);
	assert_int_equal(s[0].why.code, CGN_CANCELLED);
	world_until(&w, w.d.cancelled >= 1);
	world_close(&w);
}

static void server_free_closes_exchanges(void **state)
{
	(void)state;
	struct world w;
	struct story s = {0};
	open_world(&w, NULL);
	story_get(&w, &s, "/hang");
	world_until(&w, w.d.last != NULL);
	http_server_free(&w.d.server);
	assert_int_equal(w.d.cancelled, 1);
	world_until(&w, s.done);
	assert_int_equal(s.stage, HTTP_FAIL_HEAD);
	world_close(&w);
}

static void idle_now(void *arg)
{
	*(bool *)arg = true;
}

static void drain_lets_the_last_answer_out(void **state)
{
	(void)state;
	struct world w;
	struct story busy = {0}, idle = {0};
	bool done = false;
	open_world(&w, NULL);
	story_get(&w, &busy, "/hang");
	world_until(&w, w.d.last != NULL);
	http_server_drain(w.d.server, idle_now, &done);
	assert_false(done);
	for (int i = 0; i < 20; i++)
		(void)uv_run(cgn_loop_uv(w.l), UV_RUN_NOWAIT);
	assert_false(done);
	demo_reply(w.d.last, 200, "at last\n");
	world_until(&w, busy.done);
	assert_string_equal(busy.text, "at last\n");
	world_until(&w, done);
	story_get(&w, &idle, "/hello");
	world_until(&w, idle.done);
	assert_int_equal(idle.stage, HTTP_FAIL_CONNECT);
	world_close(&w);
}

/* Connect and send a request without a turn of the loop: the connection waits in the kernel's queue. */
static int waiting_client(const struct world *w)
{
	static const char request[] = "GET /hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
	const struct sockaddr_in at = {.sin_family = AF_INET,
		.sin_port = htons((uint16_t)http_server_port(w->d.server)),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	assert_true(fd >= 0 && connect(fd, (const struct sockaddr *)&at, sizeof at) == 0);
	assert_int_equal(write(fd, request, sizeof request - 1), sizeof request - 1);
	return fd;
}

static void a_drain_serves_connections_that_wait(void **state)
{
	(void)state;
	struct world w;
	int clients[20];
	bool done = false;
	world_open(&w, NULL);
	for (size_t i = 0; i < CGN_COUNT(clients); i++)
		clients[i] = waiting_client(&w);
	http_server_drain(w.d.server, idle_now, &done);
	world_until(&w, done);
	for (size_t i = 0; i < CGN_COUNT(clients); i++) {
		char answer[16] = "";
		assert_int_equal(read(clients[i], answer, 12), 12);
		assert_string_equal(answer, "HTTP/1.1 200");
		close(clients[i]);
	}
	world_close(&w);
}

static void a_closed_idle_connection_is_replaced(void **state)
{
	(void)state;
	struct world w;
	struct story s;
	world_open(&w, &(struct http_server_cfg){.idle_timeout = 10 * CGN_MSEC});
	world_client(&w, &(struct http_client_cfg){.proto = proto});
	story_tell(&w, &s, "/hello");
	world_until(&w, http_server_stats(w.d.server).connections == 0);
	for (int i = 0; i < 20; i++)
		(void)uv_run(cgn_loop_uv(w.l), UV_RUN_NOWAIT);
	story_tell(&w, &s, "/hello");
	assert_string_equal(s.text, "hello\n");
	assert_int_equal(http_server_stats(w.d.server).accepted, 2);
	world_close(&w);
}

static void odd_requests_are_not_sent(void **state)
{
	(void)state;
	struct world w;
	struct cgn_err err;
	struct http_call *c = NULL;
	struct story s = {0};
	open_world(&w, NULL);
	static const struct http_request odd[] = {{.method = "GE T", .path = "/"},
		{.method = "GET", .path = "/a b"}, {.method = "GET", .path = "/a\r\nx: y"},
		{.method = "GET", .path = "nope"}, {.method = "", .path = "/"}};
	for (size_t i = 0; i < CGN_COUNT(odd); i++)
		assert_int_equal(http_call_start(w.cl, &odd[i], &story_ops, NULL, &c, &err).code,
			CGN_INVALID);
	struct http_field f[] = {{CGN_STR("X-Probe"), CGN_STR("kept")},
		{CGN_STR("Connection"), CGN_STR("x-hop")}, {CGN_STR("x-hop"), CGN_STR("1")},
		{CGN_STR("x-evil"), CGN_STR("a\r\nb: c")}, {CGN_STR("host"), CGN_STR("elsewhere")},
		{CGN_STR("content-length"), CGN_STR("77")}, {CGN_STR("bad name"), CGN_STR("1")}};
	story_start(&w, &s,
		&(struct http_request){.method = "GET",
			.path = "/hello",
			.fields = f,
			.n_fields = CGN_COUNT(f)});
	world_until(&w, s.done);
	assert_string_equal(w.d.probe, "kept");
	assert_int_equal(w.d.n_fields, 1);
	assert_string_equal(w.d.authority, w.addr);
	world_close(&w);
}

static void slow_bodies_time_out(void **state)
{
	(void)state;
	struct world w;
	struct story s = {0};
	world_open(&w, &(struct http_server_cfg){.body_timeout = 20 * CGN_MSEC});
	world_client(&w, &(struct http_client_cfg){.proto = proto});
	story_start(&w, &s, &(struct http_request){.method = "POST", .path = "/sink", .body_len = 100});
	world_until(&w, s.done);
	assert_int_equal(s.status, 408);
	assert_int_equal(w.d.timed_out, 1);
	world_close(&w);
}

/* A body that comes a byte at a time, from a timer. */
struct trickle {
	struct cgn_timer timer;
	struct story s;
	size_t left;
};

static void trickle_step(struct cgn_timer *timer)
{
	struct trickle *t = CGN_CONTAINER(timer, struct trickle, timer);
	char byte = 'x';
	if (t->s.done || t->s.status != 0)
		return;
	http_call_body(t->s.c, &(struct iovec){&byte, 1}, 1);
	if (--t->left == 0)
		http_call_end(t->s.c);
	else
		cgn_timer_set(timer, CGN_MSEC);
}

/* Each byte comes long before the timeout, which alone would let all of them pass. */
static void a_trickle_of_a_body_is_refused(void **state)
{
	(void)state;
	for (int any = 0; any < 2; any++) {
		struct world w;
		struct trickle t = {.left = 400};
		world_open(&w,
			&(struct http_server_cfg){.body_timeout = 100 * CGN_MSEC,
				.body_rate = any ? HTTP_ANY_RATE : 1000000});
		world_client(&w, &(struct http_client_cfg){.proto = proto});
		cgn_timer_init(&t.timer, w.l, trickle_step);
		story_start(&w, &t.s,
			&(struct http_request){.method = "POST",
				.path = "/sink",
				.body_len = (int64_t)t.left});
		trickle_step(&t.timer);
		world_until(&w, t.s.done);
		assert_int_equal(t.s.status, any ? 200 : 408);
		assert_int_equal(w.d.timed_out, any ? 0 : 1);
		cgn_timer_cancel(&t.timer);
		world_close(&w);
	}
}

static void a_burst_does_not_pay_for_a_trickle(void **state)
{
	(void)state;
	const cgn_nsec now = 1000 * CGN_SEC, most = 30 * CGN_SEC, due = now + most;
	assert_int_equal(http_pace(due, now, 1U << 30, 500, most), due);
	assert_int_equal(http_pace(now + 1, now, 1000, 500, most), now + 1 + 2 * CGN_SEC);
	assert_int_equal(http_pace(now + 1, now, 1U << 30, 500, most), due);
	assert_int_equal(http_pace(now + 1, now, (size_t)1 << 40, 500, most), due);
	assert_int_equal(http_pace(now + 1, now, 0, 500, most), now + 1);
	assert_int_equal(http_pace(now + 1, now, 1, HTTP_ANY_RATE, most), due);
}

static void a_reader_that_takes_nothing_is_cut(void **state)
{
	(void)state;
	struct world w;
	struct story s = {.pause_at_head = true};
	world_open(&w, &(struct http_server_cfg){.write_timeout = 30 * CGN_MSEC});
	world_client(&w, &(struct http_client_cfg){.proto = proto});
	story_get(&w, &s, "/big");
	world_until(&w, w.d.timed_out == 1 || w.d.fine == 1);
	if (proto == HTTP_2) /* HTTP/2's window is ours to bound; a loopback socket may take a MiB. */
		assert_int_equal(w.d.timed_out, 1);
	http_call_cancel(&s.c);
	world_close(&w);
}

static void a_body_is_as_long_as_announced(void **state)
{
	(void)state;
	struct world w;
	char text[] = "0123456789";
	open_world(&w, NULL);
	for (int i = 0; i < 2; i++) {
		struct story s = {0};
		story_start(&w, &s, &(struct http_request){.method = "POST", .path = "/sink", .body_len = 5});
		http_call_body(s.c, &(struct iovec){text, i == 0 ? 4 : 6}, 1);
		http_call_end(s.c);
		assert_false(s.done);
		world_until(&w, s.done);
		assert_int_equal(s.why.code, CGN_INTERNAL);
	}
	assert_int_equal(w.d.bodies_ended, 0);
	world_close(&w);
}

static void a_pausing_reader_gets_every_byte(void **state)
{
	(void)state;
	struct world w;
	struct story s = {.pause_often = true};
	open_world(&w, NULL);
	story_get(&w, &s, "/big");
	while (!s.done) {
		world_until(&w, s.done || s.paused);
		s.paused = false;
		if (!s.done)
			http_call_resume(s.c);
	}
	assert_int_equal(s.bytes, DEMO_BIG);
	assert_false(s.corrupt);
	world_close(&w);
}

/* A second server, on a port of its own. */
static void second_open(struct world *w, struct demo *d)
{
	struct cgn_err err = {0};
	const struct http_server_cfg c = {.listen.addr = "127.0.0.1:0"};
	*d = (struct demo){0};
	if (!cgn_ok(http_server_new(w->l, &c, &demo_ops, d, &d->server, &err)))
		fail_msg("%s", err.msg);
}

static void a_call_goes_where_the_name_stands_now(void **state)
{
	(void)state;
	struct world w;
	struct story s, hang = {0};
	struct demo second;
	world_open(&w, NULL);
	second_open(&w, &second);
	(void)name_stands_for("moves.test:1", http_server_port(w.d.server));
	world_client(&w, &(struct http_client_cfg){.proto = proto, .addr = "moves.test:1"});
	story_tell(&w, &s, "/hello");
	story_get(&w, &hang, "/hang");
	world_until(&w, w.d.last != NULL);
	story_tell(&w, &s, "/hello"); /* Another connection of HTTP/1 is kept too. */
	assert_int_equal(w.d.requests, 3);
	(void)name_stands_for("moves.test:1", http_server_port(second.server));
	for (int i = 0; i < 3; i++) {
		story_tell(&w, &s, "/hello");
		assert_int_equal(s.status, 200);
	}
	assert_int_equal(second.requests, 3);
	assert_int_equal(http_server_stats(second.server).accepted, 1);
	assert_int_equal(w.d.requests, 3);
	assert_true(http_client_moves(w.cl) > 0);
	assert_false(hang.done); /* The running call goes on there. */
	http_call_cancel(&hang.c);
	world_until(&w,
		http_server_stats(w.d.server).connections == 0); /* No connection to the old address stays. */
	(void)name_stands_for("moves.test:1", http_server_port(w.d.server));
	story_tell(&w, &s, "/hello");
	assert_int_equal(w.d.requests, 4);
	http_client_free(&w.cl);
	world_until(&w, http_server_stats(second.server).connections == 0);
	http_server_free(&second.server);
	world_close(&w);
}

static void a_client_that_follows_ends_its_calls(void **state)
{
	(void)state;
	struct world w;
	struct story s, hang = {0};
	struct demo second;
	cgn_nsec usual = net_name_interval();
	net_name_set_interval(40 * CGN_MSEC);
	world_open(&w, NULL);
	second_open(&w, &second);
	(void)name_stands_for("follows.test:1", http_server_port(w.d.server));
	world_client(&w, &(struct http_client_cfg){.proto = proto, .addr = "follows.test:1", .follow = true});
	story_get(&w, &hang, "/hang");
	world_until(&w, w.d.last != NULL);
	(void)name_stands_for("follows.test:1", http_server_port(second.server));
	world_until(&w, hang.done);
	assert_int_equal(hang.fails, 1);
	assert_int_equal(hang.why.code, CGN_UNAVAILABLE);
	assert_non_null(strstr(hang.why.msg, "another address"));
	story_tell(&w, &s, "/hello");
	assert_int_equal(second.requests, 1);
	http_client_free(&w.cl);
	world_until(&w, http_server_stats(second.server).connections == 0);
	http_server_free(&second.server);
	world_close(&w);
	net_name_set_interval(usual);
}

#define TESTS                                                                                            \
	cmocka_unit_test(answers_come_over_one_connection),                                              \
		cmocka_unit_test(a_head_of_some_kilobytes_is_taken),                                     \
		cmocka_unit_test(a_big_answer_waits_for_a_slow_reader),                                  \
		cmocka_unit_test(a_stopped_producer_is_told_whoever_asks_meanwhile),                     \
		cmocka_unit_test(a_big_request_comes_back), cmocka_unit_test(lent_bytes_come_whole),     \
		cmocka_unit_test(lent_bytes_may_be_freed_once_they_are_kept),                            \
		cmocka_unit_test(lent_bytes_end_with_their_call),                                        \
		cmocka_unit_test(an_upload_waits_for_a_paused_server),                                   \
		cmocka_unit_test(a_streamed_echo_is_whole), cmocka_unit_test(trailers_come_last),        \
		cmocka_unit_test(answers_without_a_body),                                                \
		cmocka_unit_test(a_cancelled_call_reaches_the_server),                                   \
		cmocka_unit_test(a_cut_answer_is_a_failure),                                             \
		cmocka_unit_test(an_early_answer_ends_the_call),                                         \
		cmocka_unit_test(silence_meets_its_deadline),                                            \
		cmocka_unit_test(an_absent_server_is_a_connect_failure),                                 \
		cmocka_unit_test(calls_wait_and_then_do_not), cmocka_unit_test(free_fails_what_is_open), \
		cmocka_unit_test(server_free_closes_exchanges),                                          \
		cmocka_unit_test(drain_lets_the_last_answer_out),                                        \
		cmocka_unit_test(a_drain_serves_connections_that_wait),                                  \
		cmocka_unit_test(a_closed_idle_connection_is_replaced),                                  \
		cmocka_unit_test(odd_requests_are_not_sent), cmocka_unit_test(slow_bodies_time_out),     \
		cmocka_unit_test(a_trickle_of_a_body_is_refused),                                        \
		cmocka_unit_test(a_burst_does_not_pay_for_a_trickle),                                    \
		cmocka_unit_test(a_reader_that_takes_nothing_is_cut),                                    \
		cmocka_unit_test(a_body_is_as_long_as_announced),                                        \
		cmocka_unit_test(a_call_goes_where_the_name_stands_now),                                 \
		cmocka_unit_test(a_client_that_follows_ends_its_calls),                                  \
		cmocka_unit_test(a_pausing_reader_gets_every_byte)

int main(void)
{
	const struct CMUnitTest tests[] = {TESTS};
	proto = HTTP_1;
	int failed = cmocka_run_group_tests_name("HTTP/1.1", tests, NULL, NULL);
	proto = HTTP_2;
	return failed + cmocka_run_group_tests_name("HTTP/2", tests, NULL, NULL);
}
