/* SPDX-License-Identifier: Apache-2.0 */
#include "http_world.h"

/* ---- messages that must be refused ---- */

static const struct {
	const char *name, *bytes, *status;
} hostile[] = {
	{"length and encoding",
		"POST /sink HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"400"},
	{"encoding and length",
		"POST /sink HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
		"400"},
	{"two lengths",
		"POST /sink HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nabcd",
		"400"},
	{"two equal lengths",
		"POST /sink HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nContent-Length: 4\r\n\r\nabcd",
		"400"},
	{"length list", "POST /sink HTTP/1.1\r\nHost: a\r\nContent-Length: 4, 4\r\n\r\nabcd", "400"},
	{"signed length", "POST /sink HTTP/1.1\r\nHost: a\r\nContent-Length: +4\r\n\r\nabcd", "400"},
	{"negative length", "POST /sink HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", "400"},
	{"huge length", "POST /sink HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n\r\n",
		"400"},
	{"hex length", "POST /sink HTTP/1.1\r\nHost: a\r\nContent-Length: 0x4\r\n\r\nabcd", "400"},
	{"bare LF", "GET / HTTP/1.1\nHost: a\n\n", "400"},
	{"bare LF in the middle", "GET / HTTP/1.1\r\nHost: a\nX: y\r\n\r\n", "400"},
	{"LF ends the head", "GET / HTTP/1.1\r\nHost: a\r\n\n", "400"},
	{"bare CR", "GET / HTTP/1.1\r\nHost: a\rX: y\r\n\r\n", "400"},
	{"space before colon", "GET / HTTP/1.1\r\nHost : a\r\n\r\n", "400"},
	{"space before colon, length", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length : 4\r\n\r\nabcd", "400"},
	{"folded line", "GET / HTTP/1.1\r\nHost: a\r\nX: y\r\n z\r\n\r\n", "400"},
	{"folded by tab", "GET / HTTP/1.1\r\nHost: a\r\nX: y\r\n\tz\r\n\r\n", "400"},
	{"space before first field", "GET / HTTP/1.1\r\n Host: a\r\n\r\n", "400"},
	{"control byte in value", "GET / HTTP/1.1\r\nHost: a\r\nX: a\001b\r\n\r\n", "400"},
	{"DEL in value", "GET / HTTP/1.1\r\nHost: a\r\nX: a\177b\r\n\r\n", "400"},
	{"control byte in name", "GET / HTTP/1.1\r\nHost: a\r\nX\002: b\r\n\r\n", "400"},
	{"no name", "GET / HTTP/1.1\r\nHost: a\r\n: b\r\n\r\n", "400"},
	{"no colon", "GET / HTTP/1.1\r\nHost: a\r\nnonsense\r\n\r\n", "400"},
	{"gzip encoding", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", "501"},
	{"gzip, chunked", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
		NULL},
	{"xchunked", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", NULL},
	{"chunked twice",
		"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		NULL},
	{"chunked, identity",
		"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n", NULL},
	{"vertical tab before chunked",
		"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: \013chunked\r\n\r\n0\r\n\r\n", NULL},
	{"encoding in 1.0", "POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"400"},
	{"no host", "GET / HTTP/1.1\r\nX: y\r\n\r\n", "400"},
	{"two hosts", "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "400"},
	{"host with a path", "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", "400"},
	{"host with a user", "GET / HTTP/1.1\r\nHost: u@b\r\n\r\n", "400"},
	{"version 2 in a line", "GET / HTTP/2.0\r\nHost: a\r\n\r\n", NULL},
	{"version 1.2", "GET / HTTP/1.2\r\nHost: a\r\n\r\n", NULL},
	{"no version", "GET /\r\nHost: a\r\n\r\n", NULL},
	{"connect", "CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n", "501"},
	{"unknown method", "BREW / HTTP/1.1\r\nHost: a\r\n\r\n", "400"},
	{"path without slash", "GET x HTTP/1.1\r\nHost: a\r\n\r\n", "400"},
	{"TLS hello", "\026\003\001\002\003\001\001\374\003\003", "400"},
};

static void refused_one(struct world *w, const char *bytes, size_t n, const char *status, const char *name)
{
	struct raw r;
	char line[32];
	unsigned before = w->d.requests;
	(void)snprintf(line, sizeof line, "HTTP/1.1 %s ", status != NULL ? status : "");
	raw_dial(w, &r);
	raw_send(&r, bytes, n);
	world_until(w, r.closed);
	if (w->d.requests != before || r.got.n == 0 || (status != NULL && !raw_has(&r, line)) ||
		raw_count(&r, "HTTP/1.1") != 1)
		fail_msg("%s: %.*s", name, (int)r.got.n, r.got.p);
	assert_true(raw_has(&r, "{\"error\":{\"message\":\""));
	assert_true(raw_has(&r, "\"type\":\"invalid_request_error\",\"param\":null,\"code\":\""));
	assert_true(raw_has(&r, "connection: close\r\n"));
	assert_false(raw_has(&r, "HTTP/1.1 200"));
	cgn_buf_fini(&r.got);
}

static void hostile_heads_are_refused(void **state)
{
	(void)state;
	struct world w;
	world_open(&w, NULL);
	for (size_t i = 0; i < CGN_COUNT(hostile); i++)
		refused_one(&w, hostile[i].bytes, strlen(hostile[i].bytes), hostile[i].status,
			hostile[i].name);
	static const char nul[] = "GET / HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n";
	refused_one(&w, nul, sizeof nul - 1, "400", "NUL");
	assert_int_equal(http_server_stats(w.d.server).bad_requests, CGN_COUNT(hostile) + 1);
	assert_int_equal(w.d.requests, 0);
	world_close(&w);
}

/* ---- valid requests in unusual forms ---- */

static void one_byte_at_a_time(void **state)
{
	(void)state;
	static const char rq[] =
		"\r\nPOST /echo HTTP/1.1\r\nhOsT: a:80\r\nX-Probe:  v w \t\r\nTransfer-Encoding: Chunked\r\n\r\n"
		"5;x=y\r\nhello\r\n00006\r\n world\r\n0\r\nX-Sum: 1\r\n\r\n";
	struct world w;
	struct raw r;
	world_open(&w, NULL);
	raw_dial(&w, &r);
	for (size_t i = 0; i < sizeof rq - 1; i++) {
		raw_send(&r, rq + i, 1);
		(void)uv_run(cgn_loop_uv(w.l), UV_RUN_NOWAIT);
	}
	world_until(&w, raw_has(&r, "\r\n0\r\n\r\n"));
	assert_string_equal(w.d.probe, "v w");
	assert_string_equal(w.d.authority, "a:80");
	assert_string_equal(w.d.method, "POST");
	assert_int_equal(w.d.body_bytes, 11);
	assert_true(raw_has(&r, "transfer-encoding: chunked\r\n"));
	raw_fini(&w, &r);
	world_close(&w);
}

static void pipelined_requests_are_answered_in_order(void **state)
{
	(void)state;
	enum { N = 60 };
	struct world w;
	struct raw r;
	struct cgn_buf b = {0};
	world_open(&w, NULL);
	raw_dial(&w, &r);
	for (int i = 0; i < N; i++)
		cgn_buf_fmt(&b, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\n<%02d>", i);
	raw_send(&r, b.p, b.n);
	world_until(&w, raw_has(&r, "<59>"));
	for (int i = 1; i < N; i++) {
		char before[8], after[8];
		(void)snprintf(before, sizeof before, "<%02d>", i - 1);
		(void)snprintf(after, sizeof after, "<%02d>", i);
		assert_true(memmem(r.got.p, r.got.n, before, 4) < memmem(r.got.p, r.got.n, after, 4));
	}
	assert_int_equal(raw_count(&r, "HTTP/1.1 200 OK"), N);
	cgn_buf_fini(&b);
	raw_fini(&w, &r);
	world_close(&w);
}

static void continue_is_said_when_the_body_is_wanted(void **state)
{
	(void)state;
	struct world w;
	struct raw r;
	world_open(&w, NULL);
	raw_dial(&w, &r);
	raw_say(&r, "POST /hold HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n");
	world_until(&w, w.d.last != NULL);
	for (int i = 0; i < 10; i++)
		(void)uv_run(cgn_loop_uv(w.l), UV_RUN_NOWAIT);
	assert_int_equal(r.got.n, 0); /* The application has not answered yet. */
	http_exchange_resume(w.d.last);
	world_until(&w, raw_has(&r, "HTTP/1.1 100 Continue\r\n\r\n"));
	raw_say(&r, "abc");
	world_until(&w, raw_has(&r, "swallowed"));
	raw_say(&r, "POST /early HTTP/1.1\r\nHost: a\r\nExpect: 100-Continue\r\nContent-Length: 3\r\n\r\n");
	/* Refused before the rest is read: the following bytes could be a body or a request. */
	world_until(&w, r.closed);
	assert_int_equal(raw_count(&r, "100 Continue"), 1);
	assert_true(raw_has(&r, "HTTP/1.1 413 Content Too Large\r\n"));
	assert_true(raw_has(&r, "connection: close\r\n"));
	cgn_buf_fini(&r.got);
	world_close(&w);
}

/* RFC 9110, 8.6 and RFC 9112, 6.1: a 204 has neither a length nor a transfer coding. */
static void a_204_says_nothing_of_a_body(void **state)
{
	(void)state;
	struct world w;
	struct raw r;
	world_open(&w, NULL);
	raw_dial(&w, &r);
	raw_say(&r, "GET /nothing HTTP/1.1\r\nHost: a\r\n\r\n");
	world_until(&w, raw_has(&r, "\r\n\r\n"));
	assert_true(raw_has(&r, "HTTP/1.1 204 No Content\r\n"));
	assert_true(raw_has(&r, "\r\ndate: ") && raw_has(&r, " GMT\r\n")); /* RFC 9110, 6.6.1 */
	assert_false(raw_has(&r, "content-length") || raw_has(&r, "transfer-encoding"));
	raw_say(&r, "GET /hello HTTP/1.1\r\nHost: a\r\n\r\n");
	world_until(&w, raw_has(&r, "hello\n"));
	assert_true(raw_has(&r, "content-length: 6\r\n"));
	raw_fini(&w, &r);
	world_close(&w);
}

static void http_1_0_clients_are_served(void **state)
{
	(void)state;
	struct world w;
	struct raw r;
	world_open(&w, NULL);
	raw_dial(&w, &r);
	raw_say(&r, "GET /hello HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
	world_until(&w, raw_has(&r, "hello\n"));
	assert_true(raw_has(&r, "connection: keep-alive\r\n"));
	raw_say(&r, "GET /trailers HTTP/1.0\r\n\r\n");
	world_until(&w, r.closed);
	assert_true(raw_has(&r, "part"));
	assert_false(raw_has(&r, "chunked"));
	assert_int_equal(w.d.version, 10);
	cgn_buf_fini(&r.got);
	world_close(&w);
}

static void absolute_targets_name_the_host(void **state)
{
	(void)state;
	struct world w;
	struct raw r;
	world_open(&w, NULL);
	raw_dial(&w, &r);
	raw_say(&r, "GET http://real:81/hello?q=1 HTTP/1.1\r\nHost: other\r\n\r\n");
	world_until(&w, raw_has(&r, "hello\n"));
	assert_string_equal(w.d.path, "/hello?q=1");
	assert_string_equal(w.d.authority, "real:81");
	raw_say(&r, "OPTIONS * HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
	world_until(&w, r.closed);
	assert_string_equal(w.d.path, "*");
	cgn_buf_fini(&r.got);
	world_close(&w);
}

static void an_early_answer_keeps_the_connection(void **state)
{
	(void)state;
	struct world w;
	struct raw r;
	world_open(&w, NULL);
	raw_dial(&w, &r);
	raw_say(&r, "POST /early HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n12345");
	world_until(&w, raw_has(&r, "too much") && w.d.fine == 1);
	raw_say(&r, "67890GET /hello HTTP/1.1\r\nHost: a\r\n\r\n");
	world_until(&w, raw_has(&r, "hello\n"));
	assert_int_equal(w.d.body_bytes, 0);
	raw_fini(&w, &r);
	world_close(&w);
}

/* ---- limits and time ---- */

static void large_heads_are_431(void **state)
{
	(void)state;
	struct world w;
	struct cgn_buf b = {0};
	world_open(&w, &(struct http_server_cfg){.max_head_bytes = 2000, .max_fields = 10});
	cgn_buf_putz(&b, "GET / HTTP/1.1\r\nHost: a\r\n");
	for (int i = 0; i < 11; i++)
		cgn_buf_fmt(&b, "x-%d: y\r\n", i);
	cgn_buf_putz(&b, "\r\n");
	refused_one(&w, b.p, b.n, "431", "too many fields");
	cgn_buf_fini(&b);
	cgn_buf_putz(&b, "GET / HTTP/1.1\r\nHost: a\r\nX: ");
	for (int i = 0; i < 3000; i++)
		cgn_buf_char(&b, 'y');
	refused_one(&w, b.p, b.n, "431", "an endless value");
	cgn_buf_fini(&b);
	cgn_buf_putz(&b, "GET /");
	for (int i = 0; i < 3000; i++)
		cgn_buf_char(&b, 'y');
	refused_one(&w, b.p, b.n, "431", "an endless path");
	cgn_buf_fini(&b);
	for (int i = 0; i < 3000; i++)
		cgn_buf_char(&b, 'A');
	refused_one(&w, b.p, b.n, "400", "an endless method");
	cgn_buf_fini(&b);
	world_close(&w);
}

static void expect_broken(struct world *w, const char *head, const struct cgn_buf *body)
{
	struct raw r;
	unsigned other = w->d.other;
	raw_dial(w, &r);
	raw_say(&r, head);
	raw_send(&r, body->p, body->n);
	world_until(w, r.closed);
	assert_int_equal(w->d.other, other + 1);
	assert_true(raw_has(&r, "HTTP/1.1 400 Bad Request"));
	cgn_buf_fini(&r.got);
}

static void broken_chunks_are_refused(void **state)
{
	(void)state;
	static const char *const bad[] = {"g\r\n", "-1\r\n", "5\nhello\r\n", "5\r\nhelloX\r\n",
		"fffffffffffffffff\r\n", "5 \r\nhello\r\n0\r\n\r\n", "0\r\nX: y\n\r\n", "0\r\nX : y\r\n\r\n",
		"0\r\n X: y\r\n\r\n", "\r\n\r\n", "0x5\r\nhello\r\n"};
	static const char head[] = "POST /sink HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
	struct world w;
	struct cgn_buf b = {0};
	world_open(&w, NULL);
	for (size_t i = 0; i < CGN_COUNT(bad); i++) {
		cgn_buf_putz(&b, bad[i]);
		expect_broken(&w, head, &b);
		cgn_buf_fini(&b);
	}
	cgn_buf_putz(&b, "5;");
	for (int i = 0; i < 5000; i++)
		cgn_buf_char(&b, 'e');
	expect_broken(&w, head, &b);
	cgn_buf_fini(&b);
	for (int i = 0; i < 40000; i++)
		cgn_buf_char(&b, '0');
	expect_broken(&w, head, &b);
	cgn_buf_fini(&b);
	cgn_buf_putz(&b, "0\r\n");
	for (int i = 0; i < 4000; i++)
		cgn_buf_fmt(&b, "x-%d: y\r\n", i);
	struct raw r;
	raw_dial(&w, &r);
	raw_say(&r, head);
	raw_send(&r, b.p, b.n);
	world_until(&w, r.closed);
	assert_true(raw_has(&r, "HTTP/1.1 431"));
	cgn_buf_fini(&r.got);
	cgn_buf_fini(&b);
	world_close(&w);
}

struct drip {
	struct cgn_timer timer;
	struct raw *r;
};

static void drip_step(struct cgn_timer *timer)
{
	struct drip *d = CGN_CONTAINER(timer, struct drip, timer);
	if (d->r->c == NULL)
		return;
	raw_say(d->r, "x");
	cgn_timer_set(timer, 50 * CGN_MSEC);
}

/* The body of a request that was answered early is read for a while, so that the connection can be used again. */
static void an_unread_body_that_trickles_ends_the_connection(void **state)
{
	(void)state;
	struct world w;
	struct raw r;
	struct drip d = {.r = &r};
	world_open(&w, NULL);
	raw_dial(&w, &r);
	raw_say(&r, "POST /early HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n");
	cgn_timer_init(&d.timer, w.l, drip_step);
	drip_step(&d.timer);
	world_until(&w, r.closed);
	assert_true(raw_has(&r, "HTTP/1.1 413"));
	cgn_timer_cancel(&d.timer);
	cgn_buf_fini(&r.got);
	world_close(&w);
}

static void slow_heads_time_out(void **state)
{
	(void)state;
	struct world w;
	struct raw r;
	world_open(&w, &(struct http_server_cfg){.head_timeout = 20 * CGN_MSEC});
	raw_dial(&w, &r);
	raw_say(&r, "GET / HTTP/1.1\r\nHost:");
	world_until(&w, r.closed);
	assert_true(raw_has(&r, "HTTP/1.1 408 Request Timeout"));
	assert_true(raw_has(&r, "\"code\":\"request_timeout\""));
	cgn_buf_fini(&r.got);
	raw_dial(&w, &r); /* A client that sends nothing gets no answer. */
	world_until(&w, r.closed);
	assert_int_equal(r.got.n, 0);
	world_close(&w);
}

static void a_client_that_goes_is_noticed(void **state)
{
	(void)state;
	struct world w;
	struct raw r;
	world_open(&w, NULL);
	raw_dial(&w, &r);
	raw_say(&r, "GET /hang HTTP/1.1\r\nHost: a\r\n\r\n");
	world_until(&w, w.d.last != NULL);
	net_close(r.c); /* FIN */
	world_until(&w, w.d.cancelled == 1);
	world_until(&w, r.closed);
	raw_dial(&w, &r);
	raw_say(&r, "GET /stream HTTP/1.1\r\nHost: a\r\n\r\n");
	world_until(&w, raw_has(&r, "200 OK"));
	net_abort(r.c); /* RST */
	world_until(&w, w.d.cancelled == 2);
	raw_fini(&w, &r);
	raw_dial(&w, &r); /* The reading is paused, with unread bytes before the FIN. */
	raw_say(&r, "POST /hold HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n");
	world_until(&w, w.d.last != NULL);
	raw_say(&r, "123456789");
	net_close(r.c);
	world_until(&w, w.d.cancelled == 3);
	world_until(&w, r.closed);
	assert_int_equal(http_server_stats(w.d.server).exchanges, 0);
	world_close(&w);
}

static void a_cut_answer_has_no_last_chunk(void **state)
{
	(void)state;
	struct world w;
	struct raw r;
	world_open(&w, NULL);
	raw_dial(&w, &r);
	raw_say(&r, "GET /cut HTTP/1.1\r\nHost: a\r\n\r\n");
	world_until(&w, r.closed);
	assert_true(raw_has(&r, "7\r\npartial\r\n"));
	assert_false(raw_has(&r, "0\r\n\r\n"));
	cgn_buf_fini(&r.got);
	world_close(&w);
}

/* ---- answers from a broken or hostile server ---- */

#define OK_HEAD "HTTP/1.1 200 OK\r\n"
static const struct {
	const char *name, *answer;
	bool close_after;
	int ends, stage; /* |stage|: stage of the failure */
	const char *text;
} answers[] = {
	{"until close", OK_HEAD "\r\nhello", true, 1, 0, "hello"},
	{"100 first",
		"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" OK_HEAD
		"content-length: 2\r\n\r\nok",
		false, 1, 0, "ok"},
	{"1.0 without length", "HTTP/1.0 200 OK\r\n\r\nold", true, 1, 0, "old"},
	{"not modified with a length", "HTTP/1.1 304 Not Modified\r\ncontent-length: 10\r\n\r\n", false, 1, 0,
		""},
	{"chunked", OK_HEAD "transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", false, 1, 0, "abc"},
	{"length and encoding",
		OK_HEAD "content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", false,
		0, HTTP_FAIL_HEAD, ""},
	{"two lengths", OK_HEAD "content-length: 3\r\ncontent-length: 4\r\n\r\nabcd", false, 0,
		HTTP_FAIL_HEAD, ""},
	{"gzip encoding", OK_HEAD "transfer-encoding: gzip\r\n\r\nabc", false, 0, HTTP_FAIL_HEAD, ""},
	{"bad chunk", OK_HEAD "transfer-encoding: chunked\r\n\r\n3\r\nabc\r\nzz\r\n", false, 0,
		HTTP_FAIL_BODY, "abc"},
	{"cut chunk", OK_HEAD "transfer-encoding: chunked\r\n\r\n9\r\nabc", true, 0, HTTP_FAIL_BODY, "abc"},
	{"no last chunk", OK_HEAD "transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n", true, 0, HTTP_FAIL_BODY,
		"abc"},
	{"cut body", OK_HEAD "content-length: 9\r\n\r\nabc", true, 0, HTTP_FAIL_BODY, "abc"},
	{"cut head", OK_HEAD "content-len", true, 0, HTTP_FAIL_HEAD, ""},
	{"nothing", "", true, 0, HTTP_FAIL_HEAD, ""},
	{"noise", "SSH-2.0-OpenSSH_9.2\r\n", false, 0, HTTP_FAIL_HEAD, ""},
	{"bare LF", "HTTP/1.1 200 OK\ncontent-length: 0\n\n", false, 0, HTTP_FAIL_HEAD, ""},
	{"folded", OK_HEAD "x: y\r\n z\r\ncontent-length: 0\r\n\r\n", false, 0, HTTP_FAIL_HEAD, ""},
	{"switching", "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n", false,
		0, HTTP_FAIL_HEAD, ""},
	{"status 99", "HTTP/1.1 099 Odd\r\ncontent-length: 2\r\n\r\n{}", false, 0, HTTP_FAIL_HEAD, ""},
	{"only 100", "HTTP/1.1 100 Continue\r\n\r\n", true, 0, HTTP_FAIL_HEAD, ""},
};

static void answer_one(struct world *w, struct canned *k, size_t i)
{
	struct story s = {0};
	k->answer = answers[i].answer;
	k->n = strlen(k->answer);
	k->close_after = answers[i].close_after;
	story_get(w, &s, "/");
	world_until(w, s.done);
	if (s.ends != (unsigned)answers[i].ends || s.fails != (unsigned)!answers[i].ends ||
		strcmp(s.text, answers[i].text) != 0 || (s.fails > 0 && (int)s.stage != answers[i].stage))
		fail_msg("%s: ends %u fails %u stage %d \"%s\" %s", answers[i].name, s.ends, s.fails, s.stage,
			s.text, s.why.msg);
}

static void broken_answers_never_end_well(void **state)
{
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(answers); i++) {
		struct world w;
		struct canned k = {0};
		world_open(&w, NULL);
		canned_open(&w, &k);
		world_client(&w, &(struct http_client_cfg){.addr = k.addr});
		answer_one(&w, &k, i);
		canned_fini(&k);
		world_close(&w);
	}
}

static void answers_have_bounds(void **state)
{
	(void)state;
	struct world w;
	struct canned k = {0};
	struct cgn_buf b = {0};
	struct story s = {0};
	world_open(&w, NULL);
	canned_open(&w, &k);
	world_client(&w, &(struct http_client_cfg){.addr = k.addr, .max_head_bytes = 3000});
	for (int i = 0; i < 40; i++)
		cgn_buf_putz(&b, "HTTP/1.1 102 Processing\r\n\r\n");
	k.answer = b.p;
	k.n = b.n;
	story_get(&w, &s, "/");
	world_until(&w, s.done);
	assert_int_equal(s.stage, HTTP_FAIL_HEAD);
	assert_int_equal(s.why.code, CGN_BAD_GATEWAY);
	cgn_buf_fini(&b);
	cgn_buf_putz(&b, OK_HEAD);
	for (int i = 0; i < 400; i++)
		cgn_buf_putz(&b, "x-y: zzzzzzzzzzzzzzz\r\n");
	k.answer = b.p;
	k.n = b.n;
	s = (struct story){0};
	story_get(&w, &s, "/");
	world_until(&w, s.done);
	assert_int_equal(s.stage, HTTP_FAIL_HEAD);
	cgn_buf_fini(&b);
	canned_fini(&k);
	world_close(&w);
}

static void a_stale_connection_says_so(void **state)
{
	(void)state;
	struct world w;
	struct canned k = {.answer = OK_HEAD "content-length: 2\r\n\r\nok", .silent_again = true};
	struct story s = {0};
	k.n = strlen(k.answer);
	world_open(&w, NULL);
	canned_open(&w, &k);
	world_client(&w, &(struct http_client_cfg){.addr = k.addr});
	story_get(&w, &s, "/");
	world_until(&w, s.done);
	assert_int_equal(s.ends, 1);
	s = (struct story){0};
	story_get(&w, &s, "/");
	world_until(&w, s.done);
	assert_int_equal(s.fails, 1);
	assert_int_equal(s.stage, HTTP_FAIL_STALE);
	assert_int_equal(k.accepted, 1);
	s = (struct story){0};
	story_get(&w, &s, "/");
	world_until(&w, s.done);
	assert_int_equal(s.ends, 1);
	assert_int_equal(k.accepted, 2);
	canned_fini(&k);
	world_close(&w);
}

static void bytes_behind_an_answer_are_no_answer(void **state)
{
	(void)state;
	struct world w;
	struct canned k = {
		.answer = OK_HEAD "content-length: 2\r\n\r\nok" OK_HEAD "content-length: 4\r\n\r\nevil"};
	struct story s = {0};
	k.n = strlen(k.answer);
	world_open(&w, NULL);
	canned_open(&w, &k);
	world_client(&w, &(struct http_client_cfg){.addr = k.addr});
	for (unsigned i = 1; i <= 2; i++) {
		s = (struct story){0};
		story_get(&w, &s, "/");
		world_until(&w, s.done);
		assert_string_equal(s.text, "ok");
		assert_int_equal(k.accepted, i);
	}
	canned_fini(&k);
	world_close(&w);
}

static void what_is_asked_is_exact(void **state)
{
	(void)state;
	struct world w;
	struct canned k = {.answer = OK_HEAD "content-length: 2\r\n\r\nok"};
	struct story s = {0};
	char body[] = "{}";
	struct http_field f = {CGN_STR("Content-Type"), CGN_STR("application/json")};
	k.n = strlen(k.answer);
	world_open(&w, NULL);
	canned_open(&w, &k);
	world_client(&w, &(struct http_client_cfg){.addr = k.addr, .authority = "engine:1"});
	story_start(&w, &s,
		&(struct http_request){.method = "POST",
			.path = "/v1/x?y",
			.fields = &f,
			.n_fields = 1,
			.body = &(struct iovec){body, 2},
			.n_body = 1});
	world_until(&w, s.done);
	static const char want[] =
		"POST /v1/x?y HTTP/1.1\r\nhost: engine:1\r\nContent-Type: application/json\r\ncontent-length: 2\r\n\r\n{}";
	assert_int_equal(k.got.n, sizeof want - 1);
	assert_memory_equal(k.got.p, want, sizeof want - 1);
	assert_int_equal(k.asked, 1); /* All in a single write. */
	canned_fini(&k);
	world_close(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(hostile_heads_are_refused),
		cmocka_unit_test(one_byte_at_a_time),
		cmocka_unit_test(pipelined_requests_are_answered_in_order),
		cmocka_unit_test(continue_is_said_when_the_body_is_wanted),
		cmocka_unit_test(a_204_says_nothing_of_a_body),
		cmocka_unit_test(http_1_0_clients_are_served),
		cmocka_unit_test(absolute_targets_name_the_host),
		cmocka_unit_test(an_early_answer_keeps_the_connection),
		cmocka_unit_test(large_heads_are_431),
		cmocka_unit_test(broken_chunks_are_refused),
		cmocka_unit_test(an_unread_body_that_trickles_ends_the_connection),
		cmocka_unit_test(slow_heads_time_out),
		cmocka_unit_test(a_client_that_goes_is_noticed),
		cmocka_unit_test(a_cut_answer_has_no_last_chunk),
		cmocka_unit_test(broken_answers_never_end_well),
		cmocka_unit_test(answers_have_bounds),
		cmocka_unit_test(a_stale_connection_says_so),
		cmocka_unit_test(bytes_behind_an_answer_are_no_answer),
		cmocka_unit_test(what_is_asked_is_exact),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
