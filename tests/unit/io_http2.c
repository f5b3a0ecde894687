/* SPDX-License-Identifier: Apache-2.0 */
#include <arpa/inet.h>
#include <nghttp2/nghttp2.h>

#include "http_world.h"

/* ---- frames written by hand ---- */

static void put_frame(struct cgn_buf *b, unsigned type, unsigned flags, uint32_t id, const void *p, size_t n)
{
	uint8_t hd[9] = {(uint8_t)(n >> 16), (uint8_t)(n >> 8), (uint8_t)n, (uint8_t)type, (uint8_t)flags,
		(uint8_t)(id >> 24), (uint8_t)(id >> 16), (uint8_t)(id >> 8), (uint8_t)id};
	cgn_buf_add(b, hd, 9);
	cgn_buf_add(b, p, n);
}

static void put_hello(struct cgn_buf *b)
{
	cgn_buf_add(b, NGHTTP2_CLIENT_MAGIC, NGHTTP2_CLIENT_MAGIC_LEN);
	put_frame(b, NGHTTP2_SETTINGS, 0, 0, NULL, 0);
}

/* Append a request: method (0x82 GET, 0x83 POST), http, authority "a", the path, then |more| as raw HPACK. */
static void put_request(struct cgn_buf *b, uint32_t id, unsigned flags, uint8_t method, const char *path,
	const void *more, size_t n)
{
	struct cgn_buf h = {0};
	cgn_buf_char(&h, (char)method);
	cgn_buf_add(&h,
		"\x86\x01\x01"
		"a\x04",
		5);
	cgn_buf_char(&h, (char)strlen(path));
	cgn_buf_putz(&h, path);
	cgn_buf_add(&h, more, n);
	put_frame(b, NGHTTP2_HEADERS, flags, id, h.p, h.n);
	cgn_buf_fini(&h);
}

#define END_HEADERS NGHTTP2_FLAG_END_HEADERS
#define END_STREAM  NGHTTP2_FLAG_END_STREAM

static void put_hang(struct cgn_buf *b, uint32_t id)
{
	put_request(b, id, END_HEADERS | END_STREAM, 0x82, "/hang", NULL, 0);
}

struct seen {
	unsigned goaways, resets, ends, pings, heads;
	uint32_t goaway_code, reset_code, reset_id;
};

static uint32_t read_be32(const char *p)
{
	uint32_t v;
	memcpy(&v, p, 4);
	return ntohl(v);
}

static struct seen raw_look(const struct raw *r)
{
	struct seen s = {0};
	for (size_t at = 0; at + 9 <= r->got.n;) {
		const char *p = r->got.p + at;
		size_t n = read_be32(p) >> 8;
		uint8_t type = (uint8_t)p[3], flags = (uint8_t)p[4];
		if (at + 9 + n > r->got.n)
			break;
		if (type == NGHTTP2_GOAWAY) {
			s.goaways++;
			s.goaway_code = read_be32(p + 13);
		} else if (type == NGHTTP2_RST_STREAM) {
			s.resets++;
			s.reset_id = read_be32(p + 5);
			s.reset_code = read_be32(p + 9);
		} else if (type == NGHTTP2_PING)
			s.pings++;
		s.heads += type == NGHTTP2_HEADERS;
		if ((type == NGHTTP2_HEADERS || type == NGHTTP2_DATA) && (flags & END_STREAM) != 0)
			s.ends++;
		at += 9 + n;
	}
	return s;
}

static void raw_write(struct world *w, struct raw *r, struct cgn_buf *b)
{
	raw_send(r, b->p, b->n);
	cgn_buf_fini(b);
	(void)uv_run(cgn_loop_uv(w->l), UV_RUN_NOWAIT);
}

/* ---- floods ---- */

static void expect_calm(struct world *w, struct raw *r)
{
	world_until(w, r->closed);
	assert_int_equal(raw_look(r).goaway_code, NGHTTP2_ENHANCE_YOUR_CALM);
	assert_int_equal(http_server_stats(w->d.server).floods, 1);
	assert_int_equal(http_server_stats(w->d.server).exchanges, 0);
	cgn_buf_fini(&r->got);
	world_close(w);
}

static void raw_begin(struct world *w, struct raw *r, const struct http_server_cfg *cfg)
{
	struct cgn_buf b = {0};
	world_open(w, cfg);
	raw_dial(w, r);
	put_hello(&b);
	raw_write(w, r, &b);
}

static void rapid_reset_is_a_flood(void **state)
{
	(void)state;
	struct world w;
	struct raw r;
	raw_begin(&w, &r, NULL);
	for (uint32_t i = 0; i < 4000 && r.c != NULL; i++) {
		struct cgn_buf b = {0};
		put_hang(&b, 2 * i + 1);
		put_frame(&b, NGHTTP2_RST_STREAM, 0, 2 * i + 1, "\0\0\0\x08", 4);
		raw_write(&w, &r, &b);
	}
	assert_true(w.d.requests < 3000);
	assert_int_equal(w.d.cancelled, w.d.requests);
	expect_calm(&w, &r);
}

static void many_of(unsigned type, uint32_t id, const void *p, size_t n)
{
	struct world w;
	struct raw r;
	struct cgn_buf b = {0};
	raw_begin(&w, &r, NULL);
	put_request(&b, 1, END_HEADERS, 0x83, "/hang", NULL, 0);
	for (int i = 0; i < 3000; i++)
		put_frame(&b, type, 0, id, p, n);
	raw_write(&w, &r, &b);
	expect_calm(&w, &r);
}

static void frames_that_do_no_work_are_a_flood(void **state)
{
	(void)state;
	many_of(NGHTTP2_PING, 0, "12345678", 8);
	many_of(NGHTTP2_SETTINGS, 0, NULL, 0);
	many_of(NGHTTP2_DATA, 1, NULL, 0);
	many_of(NGHTTP2_PRIORITY, 3, "\0\0\0\0\0", 5);
	many_of(NGHTTP2_WINDOW_UPDATE, 1, "\0\0\0\1", 4);
	many_of(NGHTTP2_WINDOW_UPDATE, 0, "\0\0\0\1", 4);
}

static void endless_continuations_end_the_connection(void **state)
{
	(void)state;
	struct world w;
	struct raw r;
	struct cgn_buf b = {0};
	raw_begin(&w, &r, NULL);
	put_request(&b, 1, END_STREAM, 0x82, "/hang", NULL, 0);
	for (int i = 0; i < 200; i++)
		put_frame(&b, NGHTTP2_CONTINUATION, 0, 1, "\x82", 1);
	raw_write(&w, &r, &b);
	world_until(&w, r.closed);
	assert_int_equal(w.d.requests, 0);
	cgn_buf_fini(&r.got);
	world_close(&w);
}

static void a_frame_of_too_many_settings_ends_the_connection(void **state)
{
	(void)state;
	struct world w;
	struct raw r;
	struct cgn_buf b = {0};
	uint8_t entries[6 * 200] = {0};
	raw_begin(&w, &r, NULL);
	put_frame(&b, NGHTTP2_SETTINGS, 0, 0, entries, sizeof entries);
	raw_write(&w, &r, &b);
	world_until(&w, r.closed);
	assert_int_equal(raw_look(&r).goaways, 1);
	cgn_buf_fini(&r.got);
	world_close(&w);
}

/* ---- heads whose few bytes decode to many ---- */

#define LARGE 4000 /* Bytes of a field in the table of HPACK, which has 4096. */

/* Append a request whose head puts x: aaa... into the table, as its newest entry. */
static void put_entry(struct cgn_buf *b, uint32_t id)
{
	/* A literal with incremental indexing, a name of one byte, and the value's length: 127 + 3873. */
	char field[6 + LARGE] = "\x40\x01x\x7f\xa1\x1e";
	memset(field + 6, 'a', LARGE);
	put_request(b, id, END_HEADERS | END_STREAM, 0x82, "/hello", field, sizeof field);
}

/* Append a request with |n| references to the newest entry. */
static void put_references(struct cgn_buf *b, uint32_t id, size_t n)
{
	char refs[16000];
	assert_true(n <= sizeof refs);
	memset(refs, 0xbe, n);
	put_request(b, id, END_HEADERS | END_STREAM, 0x82, "/hello", refs, n);
}

static void a_head_that_decodes_to_much_ends_the_connection(void **state)
{
	(void)state;
	struct world w;
	struct raw r;
	struct cgn_buf b = {0};
	raw_begin(&w, &r, NULL);
	put_entry(&b, 1);
	put_references(&b, 3, 15000);
	put_hang(&b, 5);
	raw_write(&w, &r, &b);
	expect_calm(&w, &r);
	assert_int_equal(w.d.requests, 1); /* The one that made the entry. */
}

static void heads_that_decode_to_much_together_are_a_flood(void **state)
{
	(void)state;
	struct world w;
	struct raw r;
	struct cgn_buf b = {0};
	raw_begin(&w, &r, NULL);
	put_entry(&b, 1);
	for (uint32_t i = 0; i < 1500; i++) /* Each is below the limit of a head. */
		put_references(&b, 2 * i + 3, 7);
	raw_write(&w, &r, &b);
	expect_calm(&w, &r);
	assert_true(w.d.requests < 500);
}

/* A proxy's connection: each head has the same large cookie. */
static void the_heads_of_a_busy_client_are_no_flood(void **state)
{
	(void)state;
	struct world w;
	struct raw r;
	struct cgn_buf b = {0};
	raw_begin(&w, &r, NULL);
	put_entry(&b, 1);
	for (uint32_t i = 0; i < 200; i++)
		put_references(&b, 2 * i + 3, 1);
	raw_write(&w, &r, &b);
	world_until(&w, raw_look(&r).ends >= 201);
	assert_int_equal(w.d.requests, 201);
	assert_int_equal(raw_look(&r).goaways, 0);
	raw_fini(&w, &r);
	world_close(&w);
}

/* ---- requests that are wrong ---- */

static void a_large_head_is_431_and_costs_one_stream(void **state)
{
	(void)state;
	struct world w;
	struct raw r;
	struct cgn_buf b = {0}, more = {0};
	raw_begin(&w, &r, &(struct http_server_cfg){.max_fields = 20});
	for (int i = 0; i < 30; i++)
		cgn_buf_add(&more, "\0\1x\1y", 5);
	put_request(&b, 1, END_HEADERS | END_STREAM, 0x82, "/hello", more.p, more.n);
	put_request(&b, 3, END_HEADERS | END_STREAM, 0x82, "/hello", NULL, 0);
	raw_write(&w, &r, &b);
	world_until(&w, raw_has(&r, "headers_too_large") && raw_has(&r, "hello\n"));
	assert_int_equal(w.d.requests, 1);
	assert_int_equal(raw_look(&r).goaways, 0);
	assert_int_equal(http_server_stats(w.d.server).bad_requests, 1);
	cgn_buf_fini(&more);
	raw_fini(&w, &r);
	world_close(&w);
}

static void malformed_requests_do_not_arrive(void **state)
{
	(void)state;
	static const struct {
		const char *bytes;
		size_t n;
	} more[] = {
		{"\0\1X\1y", 5},                /* upper case */
		{"\0\12connection\5close", 18}, /* A field of HTTP/1 only. */
		{"\0\21transfer-encoding\7chunked", 27},
		{"\0\2te\4gzip", 9},
		{"\0\1x\3a\rb", 7}, /* A line end in a value. */
		{"\0\1x\3a\0b", 7},
		{"\x82", 1}, /* A second :method. */
		/* A content-length together with END_STREAM. */
		{"\0\16content-length\1x", 18},
		{"\0\16content-length\0015", 18},
	};
	struct world w;
	struct raw r;
	raw_begin(&w, &r, NULL);
	for (uint32_t i = 0; i < CGN_COUNT(more); i++) {
		struct cgn_buf b = {0};
		put_request(&b, 2 * i + 1, END_HEADERS | END_STREAM, 0x82, "/hello", more[i].bytes,
			more[i].n);
		raw_write(&w, &r, &b);
		world_until(&w, raw_look(&r).resets == i + 1);
		assert_int_equal(raw_look(&r).reset_id, 2 * i + 1);
		assert_int_equal(raw_look(&r).reset_code, NGHTTP2_PROTOCOL_ERROR);
	}
	assert_int_equal(w.d.requests, 0);
	assert_true(http_server_stats(w.d.server).bad_requests >= CGN_COUNT(more));
	raw_fini(&w, &r);
	world_close(&w);
}

static void streams_beyond_the_limit_are_refused(void **state)
{
	(void)state;
	struct world w;
	struct raw r;
	struct cgn_buf b = {0};
	raw_begin(&w, &r, &(struct http_server_cfg){.max_streams = 2});
	world_until(&w, r.got.n >= 9);
	put_frame(&b, NGHTTP2_SETTINGS, NGHTTP2_FLAG_ACK, 0, NULL, 0);
	for (uint32_t i = 0; i < 3; i++)
		put_hang(&b, 2 * i + 1);
	raw_write(&w, &r, &b);
	world_until(&w, r.closed || raw_look(&r).resets == 1);
	assert_int_equal(w.d.requests, 2);
	raw_fini(&w, &r);
	world_close(&w);
}

static void only_http2_means_it(void **state)
{
	(void)state;
	struct world w;
	struct raw r;
	world_open(&w, &(struct http_server_cfg){.h2_only = true});
	raw_dial(&w, &r);
	raw_say(&r, "GET /hello HTTP/1.1\r\nHost: a\r\n\r\n");
	world_until(&w, r.closed);
	assert_int_equal(r.got.n, 0);
	raw_dial(&w, &r);
	raw_say(&r, "PRI * HTTP/2.0\r\n\r\nXX\r\n\r\nxxxxxxxxxxxxxxxxxxxxxxx");
	world_until(&w, r.closed);
	assert_int_equal(w.d.requests, 0);
	assert_int_equal(http_server_stats(w.d.server).bad_requests, 2);
	cgn_buf_fini(&r.got);
	world_close(&w);
}

static void the_preface_may_come_in_pieces(void **state)
{
	(void)state;
	struct world w;
	struct raw r;
	struct cgn_buf b = {0};
	world_open(&w, NULL);
	raw_dial(&w, &r);
	put_hello(&b);
	put_request(&b, 1, END_HEADERS | END_STREAM, 0x82, "/hello", NULL, 0);
	for (size_t i = 0; i < b.n; i++) {
		raw_send(&r, b.p + i, 1);
		(void)uv_run(cgn_loop_uv(w.l), UV_RUN_NOWAIT);
	}
	world_until(&w, raw_has(&r, "hello\n"));
	assert_int_equal(w.d.version, 20);
	cgn_buf_fini(&b);
	raw_fini(&w, &r);
	world_close(&w);
}

/* ---- timeouts, and clients that leave ---- */

static void a_head_that_never_ends_times_out(void **state)
{
	(void)state;
	struct world w;
	struct raw r;
	struct cgn_buf b = {0};
	raw_begin(&w, &r, &(struct http_server_cfg){.head_timeout = 20 * CGN_MSEC});
	put_request(&b, 1, END_STREAM, 0x82, "/hang", NULL, 0);
	raw_write(&w, &r, &b);
	world_until(&w, r.closed);
	assert_int_equal(w.d.requests, 0);
	cgn_buf_fini(&r.got);
	world_close(&w);
}

static void a_client_that_goes_is_noticed(void **state)
{
	(void)state;
	struct world w;
	struct raw r;
	struct cgn_buf b = {0};
	raw_begin(&w, &r, NULL);
	put_hang(&b, 1);
	put_hang(&b, 3);
	put_hang(&b, 5);
	raw_write(&w, &r, &b);
	world_until(&w, w.d.requests == 3);
	put_frame(&b, NGHTTP2_RST_STREAM, 0, 3, "\0\0\0\x08", 4);
	raw_write(&w, &r, &b);
	world_until(&w, w.d.cancelled == 1);
	net_close(r.c); /* FIN */
	world_until(&w, w.d.cancelled == 3);
	world_until(&w, r.closed);
	cgn_buf_fini(&r.got);
	world_close(&w);
}

/* The server has answered in full while the client keeps sending a body: the server stops that stream, and
 * the other streams live. */
static void an_unwanted_upload_is_stopped(void **state)
{
	(void)state;
	struct world w;
	struct raw r;
	struct cgn_buf b = {0};
	static const uint8_t piece[16000];
	raw_begin(&w, &r, NULL);
	put_request(&b, 1, END_HEADERS, 0x83, "/early", NULL, 0);
	raw_write(&w, &r, &b);
	world_until(&w, raw_has(&r, "too much"));
	for (int i = 0; i < 4; i++)
		put_frame(&b, NGHTTP2_DATA, 0, 1, piece, sizeof piece);
	put_hang(&b, 3);
	raw_write(&w, &r, &b);
	world_until(&w, raw_look(&r).resets == 1 && w.d.requests == 2);
	assert_int_equal(raw_look(&r).reset_id, 1);
	assert_int_equal(raw_look(&r).reset_code, NGHTTP2_NO_ERROR);
	assert_int_equal(w.d.fine, 1);
	assert_int_equal(w.d.body_bytes, 0);
	raw_fini(&w, &r);
	world_close(&w);
}

static void continue_is_said_when_the_body_is_wanted(void **state)
{
	(void)state;
	struct world w;
	struct raw r;
	struct cgn_buf b = {0};
	raw_begin(&w, &r, NULL);
	put_request(&b, 1, END_HEADERS, 0x83, "/hold",
		"\0\6expect\x0c"
		"100-continue",
		21);
	raw_write(&w, &r, &b);
	world_until(&w, w.d.last != NULL);
	for (int i = 0; i < 10; i++)
		(void)uv_run(cgn_loop_uv(w.l), UV_RUN_NOWAIT);
	assert_int_equal(raw_look(&r).heads, 0); /* The application has not answered yet. */
	http_exchange_resume(w.d.last);
	world_until(&w, raw_look(&r).heads == 1);
	assert_int_equal(raw_look(&r).ends, 0);
	put_frame(&b, NGHTTP2_DATA, END_STREAM, 1, "abc", 3);
	raw_write(&w, &r, &b);
	world_until(&w, raw_has(&r, "swallowed"));
	raw_fini(&w, &r);
	world_close(&w);
}

/* Nothing holds this request back: the client hears at once that it may send. */
static void continue_is_said_at_once(void **state)
{
	(void)state;
	struct world w;
	struct raw r;
	struct cgn_buf b = {0};
	raw_begin(&w, &r, NULL);
	put_request(&b, 1, END_HEADERS, 0x83, "/hang",
		"\0\6expect\x0c"
		"100-continue",
		21);
	raw_write(&w, &r, &b);
	world_until(&w, raw_look(&r).heads == 1);
	assert_int_equal(raw_look(&r).ends, 0);
	raw_fini(&w, &r);
	world_close(&w);
}

static void a_client_that_leaves_without_a_word_is_forgotten(void **state)
{
	(void)state;
	struct world w;
	struct raw r;
	world_open(&w, &(struct http_server_cfg){.head_timeout = 600 * CGN_SEC});
	raw_dial(&w, &r);
	world_until(&w, http_server_stats(w.d.server).connections == 1);
	net_close(r.c);
	world_until(&w, http_server_stats(w.d.server).connections == 0);
	world_until(&w, r.closed);
	cgn_buf_fini(&r.got);
	world_close(&w);
}

static void a_head_alone_ends_the_stream(void **state)
{
	(void)state;
	struct world w;
	struct raw r;
	struct cgn_buf b = {0};
	raw_begin(&w, &r, NULL);
	put_request(&b, 1, END_HEADERS | END_STREAM, 0x82, "/status-only", NULL, 0);
	raw_write(&w, &r, &b);
	world_until(&w, raw_look(&r).ends == 1 && w.d.fine == 1);
	unsigned data = 0, heads = 0;
	for (size_t at = 0; at + 9 <= r.got.n; at += 9 + (read_be32(r.got.p + at) >> 8)) {
		data += r.got.p[at + 3] == NGHTTP2_DATA;
		heads += r.got.p[at + 3] == NGHTTP2_HEADERS;
	}
	assert_int_equal(data, 0);
	assert_int_equal(heads, 1);
	raw_fini(&w, &r);
	world_close(&w);
}

/* The second call waits for the server's SETTINGS only, not for the first call's answer. */
static void a_slow_first_answer_holds_nobody_up(void **state)
{
	(void)state;
	struct world w;
	struct story s[2] = {0};
	world_open(&w, NULL);
	world_client(&w, &(struct http_client_cfg){.proto = HTTP_2});
	story_get(&w, &s[0], "/hang");
	story_get(&w, &s[1], "/hello");
	world_until(&w, s[1].done);
	assert_string_equal(s[1].text, "hello\n");
	assert_int_equal(s[0].heads + s[0].fails, 0);
	assert_int_equal(http_server_stats(w.d.server).accepted, 1);
	world_close(&w);
}

/* ---- our client against servers that are broken or leave ---- */

static void canned_answer(struct world *w, struct canned *k, struct cgn_buf *answer, struct story *s)
{
	world_open(w, NULL);
	canned_open(w, k);
	k->answer = answer->p;
	k->n = answer->n;
	world_client(w, &(struct http_client_cfg){.addr = k->addr, .proto = HTTP_2});
	*s = (struct story){0};
	story_get(w, s, "/");
	world_until(w, s->done);
	assert_int_equal(s->fails, 1);
}

static void canned_leave(struct world *w, struct canned *k, struct cgn_buf *answer)
{
	cgn_buf_fini(answer);
	canned_fini(k);
	world_close(w);
	*k = (struct canned){0};
}

static void a_server_that_leaves_is_stale(void **state)
{
	(void)state;
	struct world w;
	struct canned k = {0};
	struct story s;
	struct cgn_buf b = {0};
	put_frame(&b, NGHTTP2_SETTINGS, 0, 0, NULL, 0);
	put_frame(&b, NGHTTP2_GOAWAY, 0, 0, "\0\0\0\0\0\0\0\0", 8); /* No stream was processed. */
	canned_answer(&w, &k, &b, &s);
	assert_int_equal(s.stage, HTTP_FAIL_STALE);
	canned_leave(&w, &k, &b);
	put_frame(&b, NGHTTP2_SETTINGS, 0, 0, NULL, 0);
	put_frame(&b, NGHTTP2_RST_STREAM, 0, 1, "\0\0\0\7", 4); /* REFUSED_STREAM */
	canned_answer(&w, &k, &b, &s);
	assert_int_equal(s.stage, HTTP_FAIL_STALE);
	canned_leave(&w, &k, &b);
}

static void broken_servers_fail_the_call(void **state)
{
	(void)state;
	struct world w;
	struct canned k = {0};
	struct story s;
	struct cgn_buf b = {0};
	cgn_buf_putz(&b, "HTTP/1.1 400 Bad Request\r\n\r\n");
	canned_answer(&w, &k, &b, &s);
	assert_int_equal(s.stage, HTTP_FAIL_HEAD);
	assert_int_equal(s.why.code, CGN_BAD_GATEWAY);
	canned_leave(&w, &k, &b);
	put_frame(&b, NGHTTP2_SETTINGS, 0, 0, NULL, 0);
	put_frame(&b, NGHTTP2_RST_STREAM, 0, 1, "\0\0\0\2", 4);
	canned_answer(&w, &k, &b, &s);
	assert_int_equal(s.stage, HTTP_FAIL_HEAD);
	canned_leave(&w, &k, &b);
	put_frame(&b, NGHTTP2_SETTINGS, 0, 0, NULL, 0);
	put_frame(&b, NGHTTP2_HEADERS, END_HEADERS, 1, "\x88", 1); /* 200 */
	put_frame(&b, NGHTTP2_DATA, 0, 1, "part", 4);
	k.close_after = true;
	canned_answer(&w, &k, &b, &s);
	assert_int_equal(s.stage, HTTP_FAIL_BODY);
	assert_string_equal(s.text, "part");
	canned_leave(&w, &k, &b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(rapid_reset_is_a_flood),
		cmocka_unit_test(frames_that_do_no_work_are_a_flood),
		cmocka_unit_test(endless_continuations_end_the_connection),
		cmocka_unit_test(a_frame_of_too_many_settings_ends_the_connection),
		cmocka_unit_test(a_head_that_decodes_to_much_ends_the_connection),
		cmocka_unit_test(heads_that_decode_to_much_together_are_a_flood),
		cmocka_unit_test(the_heads_of_a_busy_client_are_no_flood),
		cmocka_unit_test(a_large_head_is_431_and_costs_one_stream),
		cmocka_unit_test(malformed_requests_do_not_arrive),
		cmocka_unit_test(streams_beyond_the_limit_are_refused),
		cmocka_unit_test(only_http2_means_it),
		cmocka_unit_test(the_preface_may_come_in_pieces),
		cmocka_unit_test(a_head_that_never_ends_times_out),
		cmocka_unit_test(a_client_that_goes_is_noticed),
		cmocka_unit_test(an_unwanted_upload_is_stopped),
		cmocka_unit_test(continue_is_said_when_the_body_is_wanted),
		cmocka_unit_test(continue_is_said_at_once),
		cmocka_unit_test(a_client_that_leaves_without_a_word_is_forgotten),
		cmocka_unit_test(a_head_alone_ends_the_stream),
		cmocka_unit_test(a_slow_first_answer_holds_nobody_up),
		cmocka_unit_test(a_server_that_leaves_is_stale),
		cmocka_unit_test(broken_servers_fail_the_call),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
