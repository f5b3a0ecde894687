/* SPDX-License-Identifier: Apache-2.0 */
/* The hand-written messages against protobuf-c and against hostile bytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "policy/node/handoff/handoff.h"
#include "policy/node/proto/document.h"
#include "policy/node/proto/proto.h"

#define LIT(lit) {"" lit, sizeof(lit) - 1} /* For static initialisers. */

static const struct proto_header headers[] = {
	{LIT("content-type"), LIT("application/json")},
	{LIT("x-empty"), LIT("")},
	{LIT("x-latin"), LIT("caf\xe9\ttab")},
};
static const uint64_t chain[] = {1, UINT64_MAX, UINT64_C(0x0123456789abcdef)};

static struct proto_generate sample_generate(struct cgn_str body)
{
	return (struct proto_generate){
		.request_id = CGN_STR("req-1"),
		.method = CGN_STR("POST"),
		.path = CGN_STR("/v1/chat/completions?a=b"),
		.headers = headers,
		.n_headers = CGN_COUNT(headers),
		.facts = {.model = CGN_STR("m"),
			.engine = CGN_STR("e0"),
			.blocks_total = 300,
			.blocks_predicted = 2,
			.chain = chain,
			.n_chain = CGN_COUNT(chain),
			.attempt = 1,
			.stream = true,
			.router = UINT64_C(0x8000000000000001),
			.new_tokens = 7000,
			.leg = COGNITORA__V1__LEG__LEG_DECODE,
			.keep_alive = proto_keep_alive(300000),
			.once = true,
			.keep_bounded = true},
		.body = body,
	};
}

static void encode_generate(const struct proto_generate *g, struct cgn_buf *out)
{
	struct cgn_str body[PROTO_BODY_PIECES];
	size_t n = proto_generate_body(g, body);
	proto_generate_prefix(g, out);
	for (size_t i = 0; i < n; i++)
		cgn_buf_str(out, body[i]);
	assert_false(out->bad);
}

static void assert_str(struct cgn_str got, struct cgn_str want)
{
	assert_int_equal(got.n, want.n);
	if (want.n > 0)
		assert_memory_equal(got.p, want.p, want.n);
}

static void protobuf_c_reads_what_we_write(void **state)
{
	(void)state;
	struct cgn_buf b = {.n = 0};
	struct proto_generate g = sample_generate(CGN_STR("{\"a\":1}"));
	encode_generate(&g, &b);
	Cognitora__V1__GenerateRequest *m = NULL;
	assert_true(
		cgn_ok(pb_unpack(&cognitora__v1__generate_request__descriptor, cgn_buf_view(&b), &m, NULL)));
	assert_string_equal(m->request_id, "req-1");
	assert_string_equal(m->method, "POST");
	assert_string_equal(m->path, "/v1/chat/completions?a=b");
	assert_int_equal(m->n_headers, 3);
	assert_string_equal(m->headers[2]->name, "x-latin");
	assert_string_equal(m->headers[1]->value, "");
	assert_string_equal(m->facts->model, "m");
	assert_int_equal(m->facts->blocks_total, 300);
	assert_int_equal(m->facts->n_chain, 3);
	assert_memory_equal(m->facts->chain, chain, sizeof chain);
	assert_true(m->facts->stream);
	assert_true(m->facts->router == UINT64_C(0x8000000000000001));
	assert_int_equal(m->facts->new_tokens, 7000);
	assert_int_equal(m->facts->leg, COGNITORA__V1__LEG__LEG_DECODE);
	assert_int_equal(m->facts->keep_alive, 300002);
	assert_true(m->facts->once && m->facts->keep_bounded);
	assert_int_equal(m->body.len, 7);
	pb_free(&m);
	assert_null(m);
	cgn_buf_fini(&b);
}

static void our_bytes_are_protobuf_cs_bytes(void **state)
{
	(void)state;
	struct cgn_buf ours = {.n = 0}, theirs = {.n = 0};
	struct proto_generate g = sample_generate(CGN_STR("xyz"));
	encode_generate(&g, &ours);
	Cognitora__V1__GenerateRequest *m = NULL;
	assert_true(cgn_ok(
		pb_unpack(&cognitora__v1__generate_request__descriptor, cgn_buf_view(&ours), &m, NULL)));
	pb_pack(m, &theirs);
	assert_str(cgn_buf_view(&ours), cgn_buf_view(&theirs));
	pb_free(&m);
	cgn_buf_fini(&ours);
	cgn_buf_fini(&theirs);
}

static void we_read_what_protobuf_c_writes(void **state)
{
	(void)state;
	Cognitora__V1__Header h = COGNITORA__V1__HEADER__INIT;
	h.name = (char[]){"accept"};
	h.value = (char[]){"*/*"};
	Cognitora__V1__Header *list[] = {&h};
	uint64_t digests[] = {7, 8};
	Cognitora__V1__RouteFacts f = COGNITORA__V1__ROUTE_FACTS__INIT;
	f.model = (char[]){"big"};
	f.chain = digests;
	f.n_chain = 2;
	f.attempt = 3;
	f.block_tokens = 16;
	f.router = UINT64_C(0xfedcba9876543210);
	f.new_tokens = 300;
	f.leg = COGNITORA__V1__LEG__LEG_PREFILL;
	Cognitora__V1__GenerateRequest m = COGNITORA__V1__GENERATE_REQUEST__INIT;
	m.method = (char[]){"GET"};
	m.path = (char[]){"/v1/models"};
	m.headers = list;
	m.n_headers = 1;
	m.facts = &f;
	struct cgn_buf b = {.n = 0};
	pb_pack(&m, &b);
	struct cgn_arena a;
	cgn_arena_init(&a, 4096);
	struct proto_generate g;
	assert_true(cgn_ok(proto_generate_read(cgn_buf_view(&b), &a, &g, NULL)));
	assert_str(g.method, CGN_STR("GET"));
	assert_str(g.path, CGN_STR("/v1/models"));
	assert_int_equal(g.n_headers, 1);
	assert_str(g.headers[0].value, CGN_STR("*/*"));
	assert_str(g.facts.model, CGN_STR("big"));
	assert_int_equal(g.facts.n_chain, 2);
	assert_true(g.facts.chain[1] == 8);
	assert_int_equal(g.facts.attempt, 3);
	assert_int_equal(g.facts.block_tokens, 16);
	assert_true(g.facts.router == UINT64_C(0xfedcba9876543210));
	assert_int_equal(g.facts.new_tokens, 300);
	int64_t kept_ms;
	assert_false(proto_keep_alive_ms(g.facts.keep_alive, &kept_ms));
	assert_true(proto_keep_alive_ms(proto_keep_alive(0), &kept_ms) && kept_ms == 0);
	assert_true(proto_keep_alive_ms(proto_keep_alive(-5), &kept_ms) && kept_ms == -1);
	assert_true(proto_keep_alive_ms(UINT64_MAX, &kept_ms) && kept_ms == -1);
	assert_int_equal(g.facts.leg, COGNITORA__V1__LEG__LEG_PREFILL);
	assert_false(g.facts.stream);
	assert_int_equal(g.body.n, 0);
	cgn_arena_fini(&a);
	cgn_buf_fini(&b);
}

static void round_trip_borrows_the_body(void **state)
{
	(void)state;
	struct cgn_buf b = {.n = 0};
	struct cgn_buf big = {.n = 0};
	memset(cgn_buf_room(&big, 100000), 'x', 100000);
	cgn_buf_grew(&big, 100000);
	struct proto_generate g = sample_generate(cgn_buf_view(&big)), back;
	encode_generate(&g, &b);
	struct cgn_arena a;
	cgn_arena_init(&a, 4096);
	assert_true(cgn_ok(proto_generate_read(cgn_buf_view(&b), &a, &back, NULL)));
	assert_str(back.body, g.body);
	assert_true(back.body.p > b.p && back.body.p < b.p + b.n);
	assert_int_equal(back.n_headers, 3);
	assert_str(back.headers[2].value, headers[2].value);
	cgn_arena_fini(&a);
	cgn_buf_fini(&b);
	cgn_buf_fini(&big);
}

static void a_part_of_the_body_is_sent_as_other_bytes(void **state)
{
	(void)state;
	const struct {
		struct proto_swap swap;
		const char *want;
	} rows[] = {
		{{3, 4, CGN_STR("ab")}, "012ab789"},
		{{0, 10, CGN_STR("x")}, "x"},
		{{0, 1, CGN_STR("longer")}, "longer123456789"},
		{{9, 1, CGN_STR("")}, "012345678"},
		{{0, 0, {NULL, 0}}, "0123456789"},
	};
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		struct cgn_buf b = {.n = 0};
		struct cgn_arena a;
		struct proto_generate g = sample_generate(CGN_STR("0123456789")), back;
		g.swap = rows[i].swap;
		encode_generate(&g, &b);
		cgn_arena_init(&a, 4096);
		assert_true(cgn_ok(proto_generate_read(cgn_buf_view(&b), &a, &back, NULL)));
		assert_str(back.body, cgn_str_of(rows[i].want));
		cgn_arena_fini(&a);
		cgn_buf_fini(&b);
	}
}

/* Each prefix of a message is a shorter valid message or an error; no read goes beyond the end. */
static void every_truncation_is_survived(void **state)
{
	(void)state;
	struct cgn_buf b = {.n = 0};
	struct proto_generate g = sample_generate(CGN_STR("0123456789")), back;
	encode_generate(&g, &b);
	size_t errors = 0;
	for (size_t n = 0; n < b.n; n++) {
		char *exact = malloc(n + 1); /* Exact size, so that ASan sees a read beyond the end. */
		assert_non_null(exact);
		memcpy(exact, b.p, n);
		struct cgn_arena a;
		struct cgn_err err = {.code = CGN_FINE};
		cgn_arena_init(&a, 4096);
		if (!cgn_ok(proto_generate_read((struct cgn_str){exact, n}, &a, &back, &err))) {
			errors++;
			assert_int_equal(err.code, CGN_INVALID);
			assert_true(err.msg[0] != '\0');
		}
		cgn_arena_fini(&a);
		free(exact);
	}
	assert_true(errors > b.n / 2);
	cgn_buf_fini(&b);
}

static enum cgn_code read_code(struct cgn_str bytes, size_t arena_bytes, struct proto_generate *g)
{
	static struct cgn_arena a; /* Static, because |g| points into the arena until the next call. */
	cgn_arena_fini(&a);
	cgn_arena_init(&a, arena_bytes);
	struct cgn_err err = {.code = CGN_FINE};
	return proto_generate_read(bytes, &a, g, &err).code;
}

static void hostile_requests_are_refused(void **state)
{
	(void)state;
	struct proto_generate g;
	static const struct cgn_str bad[] = {
		LIT("\x0a\x7f"),                                         /* A length past the end. */
		LIT("\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),     /* 2^64-1 bytes. */
		LIT("\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), /* An endless varint. */
		LIT("\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f"),         /* A varint over 64 bits. */
		LIT("\x02\x00"),                                         /* field 0 */
		LIT("\x0b\x0c"),                                         /* A group. */
		LIT("\x0f"),                                             /* wire type 7 */
		LIT("\x12\x05GET \x0a"),                                 /* A method with a line break. */
		LIT("\x1a\x03/ x"),                                      /* A path with a space. */
		LIT("\x22\x06\x0a\x01"
		    "a\x12\x01\x0a"), /* A header value with a line break. */
		LIT("\x22\x04\x0a\x02"
		    "a:"),               /* A colon in a name. */
		LIT("\x22\x02\x12\x00"), /* A header without a name. */
		LIT("\x2a\x05\x2a\x03"
		    "abc"),          /* Digests of three bytes. */
		LIT("\x7d\x01\x02"), /* Half a fixed32. */
	};
	for (size_t i = 0; i < CGN_COUNT(bad); i++)
		assert_int_equal(read_code(bad[i], 4096, &g), CGN_INVALID);
}

static void bounds_are_kept(void **state)
{
	(void)state;
	struct cgn_buf b = {.n = 0};
	struct proto_generate g;
	for (size_t i = 0; i < PROTO_MAX_HEADERS; i++)
		cgn_buf_add(&b, "\x22\x03\x0a\x01h", 5);
	assert_int_equal(read_code(cgn_buf_view(&b), 8192, &g), CGN_FINE);
	assert_int_equal(g.n_headers, PROTO_MAX_HEADERS);
	assert_int_equal(read_code(cgn_buf_view(&b), 64, &g), CGN_NO_MEMORY);
	cgn_buf_add(&b, "\x22\x03\x0a\x01h", 5);
	assert_int_equal(read_code(cgn_buf_view(&b), 8192, &g), CGN_INVALID);
	cgn_buf_fini(&b);

	uint64_t *many = calloc(PROTO_MAX_CHAIN + 1, sizeof *many);
	assert_non_null(many);
	struct proto_generate big = {.facts = {.chain = many, .n_chain = PROTO_MAX_CHAIN}};
	encode_generate(&big, &b);
	assert_int_equal(read_code(cgn_buf_view(&b), 1U << 20, &g), CGN_FINE);
	assert_int_equal(g.facts.n_chain, PROTO_MAX_CHAIN);
	cgn_buf_add(&b,
		"\x2a\x0a\x2a\x08"
		"12345678",
		12); /* A further one, in a second RouteFacts. */
	assert_int_equal(read_code(cgn_buf_view(&b), 4U << 20, &g), CGN_INVALID);
	cgn_buf_fini(&b);
	free(many);
}

static void unknown_and_repeated_fields_follow_protobuf(void **state)
{
	(void)state;
	struct proto_generate g;
	struct cgn_str msg = CGN_STR("\x12\x01"
				     "A"
				     "\x12\x01"
				     "B"            /* The last one counts. */
				     "\xa0\x06\x05" /* field 100, varint */
				     "\xa5\x06"
				     "1234"     /* fixed32 */
				     "\x10\x07" /* The method as a varint: a wrong wire type is skipped. */
				     "\x2a\x0b\x29"
				     "12345678\x30\x02" /* RouteFacts: one unpacked digest, attempt 2. */
				     "\x2a\x0c\x0a\x00\x2a\x08"
				     "abcdefgh"); /* Merged into the first. */
	assert_int_equal(read_code(msg, 4096, &g), CGN_FINE);
	assert_str(g.method, CGN_STR("B"));
	assert_int_equal(g.facts.n_chain, 2);
	assert_memory_equal(g.facts.chain, "12345678abcdefgh", 16);
	assert_int_equal(g.facts.attempt, 2);
}

static void chunks_round_trip(void **state)
{
	(void)state;
	static const size_t sizes[] = {0, 1, 127, 128, 16383, 16384, 70000};
	char *data = calloc(1, 70000);
	assert_non_null(data);
	for (size_t i = 0; i < CGN_COUNT(sizes); i++) {
		uint8_t lead[PROTO_CHUNK_LEAD];
		struct cgn_buf b = {.n = 0};
		cgn_buf_add(&b, lead, proto_chunk_lead(lead, sizes[i]));
		cgn_buf_add(&b, data, sizes[i]);
		struct proto_chunk c;
		assert_true(cgn_ok(proto_chunk_read(cgn_buf_view(&b), NULL, &c, NULL)));
		assert_int_equal(c.kind, PROTO_CHUNK_DATA);
		assert_int_equal(c.data.n, sizes[i]);
		Cognitora__V1__GenerateChunk *m = NULL;
		assert_true(cgn_ok(
			pb_unpack(&cognitora__v1__generate_chunk__descriptor, cgn_buf_view(&b), &m, NULL)));
		assert_int_equal(m->piece_case, COGNITORA__V1__GENERATE_CHUNK__PIECE_DATA);
		assert_int_equal(m->data.len, sizes[i]);
		pb_free(&m);
		cgn_buf_fini(&b);
	}
	uint8_t lead[PROTO_CHUNK_LEAD];
	assert_true(proto_chunk_lead(lead, SIZE_MAX) <= sizeof lead);
	free(data);
}

static void response_heads_round_trip(void **state)
{
	(void)state;
	struct cgn_buf b = {.n = 0};
	struct cgn_arena a;
	struct proto_chunk c;
	cgn_arena_init(&a, 4096);
	proto_chunk_head(429, headers, CGN_COUNT(headers), CGN_STR("sim"), &b);
	assert_true(cgn_ok(proto_chunk_read(cgn_buf_view(&b), &a, &c, NULL)));
	assert_int_equal(c.kind, PROTO_CHUNK_HEAD);
	assert_int_equal(c.status, 429);
	assert_int_equal(c.n_headers, 3);
	assert_str(c.headers[0].name, CGN_STR("content-type"));
	assert_str(c.engine, CGN_STR("sim"));
	Cognitora__V1__GenerateChunk *m = NULL;
	assert_true(
		cgn_ok(pb_unpack(&cognitora__v1__generate_chunk__descriptor, cgn_buf_view(&b), &m, NULL)));
	assert_int_equal(m->head->status, 429);
	assert_int_equal(m->head->n_headers, 3);
	struct cgn_buf again = {.n = 0};
	pb_pack(m, &again);
	assert_str(cgn_buf_view(&again), cgn_buf_view(&b));
	pb_free(&m);
	cgn_buf_fini(&again);
	cgn_buf_fini(&b);
	cgn_arena_fini(&a);
}

static void hostile_chunks_are_refused(void **state)
{
	(void)state;
	static const struct cgn_str bad[] = {
		LIT("\x0a\x00"),                                             /* A head without a status. */
		LIT("\x0a\x03\x08\xe8\x07"),                                 /* status 1000 */
		LIT("\x0a\x0b\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), /* status -1 */
		LIT("\x12\x05"
		    "abc"), /* Data past the end. */
		LIT("\x0a\x0b\x08\xc8\x01\x12\x06\x0a\x01"
		    "a\x12\x01\x0d"), /* A header that splits the answer. */
	};
	struct cgn_arena a;
	struct proto_chunk c;
	cgn_arena_init(&a, 4096);
	for (size_t i = 0; i < CGN_COUNT(bad); i++)
		assert_int_equal(proto_chunk_read(bad[i], &a, &c, NULL).code, CGN_INVALID);
	assert_int_equal(proto_chunk_read(CGN_STR(""), &a, &c, NULL).code, CGN_FINE);
	assert_int_equal(c.kind, PROTO_CHUNK_EMPTY);
	cgn_arena_fini(&a);
}

static void watch_events_are_protobuf(void **state)
{
	(void)state;
	Cognitora__V1__Node node = COGNITORA__V1__NODE__INIT;
	node.id = (char[]){"n1"};
	Cognitora__V1__Load load = COGNITORA__V1__LOAD__INIT;
	load.running = 3;
	load.kv_usage = 0.5f;
	static const uint32_t ranges[] = {0, 127, 128, 255};
	static const uint8_t tiers[] = {1, 0, 15};
	struct proto_residency r = {.reset = true,
		.ranges = ranges,
		.n_ranges = 4,
		.blocks = chain,
		.tiers = tiers,
		.n_blocks = 3,
		.source = COGNITORA__V1__RESIDENCY_SOURCE__RESIDENCY_EVENTS,
		.stale_ms = 300};
	uint64_t sums[BLOCK_RANGES];
	for (uint64_t i = 0; i < BLOCK_RANGES; i++)
		sums[i] = block_fingerprint(i, 1);
	const struct proto_check check = {.sums = sums, .blocks = 77};
	const struct proto_event whole = {.seq = 1,
		.sent_unix_ms = 1234,
		.node = &node,
		.load = &load,
		.residency = &r,
		.check = &check,
		.beat_ms = 1000};
	struct cgn_buf b = {.n = 0};
	proto_watch_event(&whole, &b);
	Cognitora__V1__WatchEvent *e = NULL;
	assert_true(cgn_ok(pb_unpack(&cognitora__v1__watch_event__descriptor, cgn_buf_view(&b), &e, NULL)));
	assert_true(e->seq == 1 && e->sent_unix_ms == 1234);
	assert_string_equal(e->node->id, "n1");
	assert_int_equal(e->load->running, 3);
	assert_true(e->residency->reset);
	assert_int_equal(e->residency->n_ranges, 4);
	assert_memory_equal(e->residency->ranges, ranges, sizeof ranges);
	assert_int_equal(e->residency->n_blocks, 3);
	assert_memory_equal(e->residency->blocks, chain, 3 * sizeof chain[0]);
	assert_int_equal(e->residency->tiers.len, 3);
	assert_memory_equal(e->residency->tiers.data, tiers, 3);
	assert_int_equal(e->residency->source, COGNITORA__V1__RESIDENCY_SOURCE__RESIDENCY_EVENTS);
	assert_int_equal(e->residency->stale_ms, 300);
	assert_int_equal(e->check->n_sums, BLOCK_RANGES);
	assert_memory_equal(e->check->sums, sums, sizeof sums);
	assert_int_equal(e->check->blocks, 77);
	assert_int_equal(e->beat_ms, 1000);
	assert_true(cgn_ok(proto_residency_check(e->residency, e->check, NULL)));
	pb_free(&e);
	cgn_buf_fini(&b);
	proto_watch_event(&(struct proto_event){.seq = 2}, &b);
	assert_str(cgn_buf_view(&b), CGN_STR("\x08\x02"));
	cgn_buf_fini(&b);
}

static void residency_that_makes_no_sense_is_refused(void **state)
{
	(void)state;
	struct cgn_err err = {.code = CGN_FINE};
	uint32_t ranges[] = {3, BLOCK_RANGES};
	uint64_t blocks[] = {1, 2}, sums[BLOCK_RANGES] = {0};
	uint8_t tiers[] = {1, 16};
	Cognitora__V1__Residency r = COGNITORA__V1__RESIDENCY__INIT;
	Cognitora__V1__ResidencyCheck check = COGNITORA__V1__RESIDENCY_CHECK__INIT;
	assert_true(cgn_ok(proto_residency_check(NULL, NULL, &err)));
	assert_true(cgn_ok(proto_residency_check(&r, NULL, &err)));
	r.blocks = blocks;
	r.n_blocks = 2;
	r.tiers.data = tiers;
	r.tiers.len = 1;
	assert_int_equal(proto_residency_check(&r, NULL, &err).code, CGN_INVALID);
	assert_non_null(strstr(err.msg, "1 masks for 2 blocks"));
	r.tiers.len = 2;
	assert_int_equal(proto_residency_check(&r, NULL, &err).code, CGN_INVALID);
	tiers[1] = BLOCK_TIER_MASK;
	assert_true(cgn_ok(proto_residency_check(&r, NULL, &err)));
	r.ranges = ranges;
	r.n_ranges = 2;
	assert_int_equal(proto_residency_check(&r, NULL, &err).code, CGN_INVALID);
	assert_non_null(strstr(err.msg, "256"));
	assert_int_equal(proto_residency_check(NULL, &check, &err).code, CGN_INVALID);
	check.sums = sums;
	check.n_sums = BLOCK_RANGES;
	assert_true(cgn_ok(proto_residency_check(NULL, &check, &err)));
}

static void unpacking_is_bounded(void **state)
{
	(void)state;
	/* 4 MiB of empty engines would take 200 MiB in memory. */
	struct cgn_buf b = {.n = 0};
	for (size_t i = 0; i < (size_t)2 * 1024 * 1024; i++)
		cgn_buf_add(&b, "\x22\x00", 2);
	Cognitora__V1__Node *n = NULL;
	struct cgn_err err = {.code = CGN_FINE};
	assert_int_equal(pb_unpack(&cognitora__v1__node__descriptor, cgn_buf_view(&b), &n, &err).code,
		CGN_INVALID);
	assert_null(n);
	assert_non_null(strstr(err.msg, "Node"));
	cgn_buf_fini(&b);
}

static void nodes_are_checked_and_copied(void **state)
{
	(void)state;
	char *models[] = {(char[]){"llama"}, (char[]){"qwen"}};
	Cognitora__V1__Engine e = COGNITORA__V1__ENGINE__INIT;
	e.name = (char[]){"e0"};
	e.models = models;
	e.n_models = 2;
	Cognitora__V1__Engine *engines[] = {&e};
	Cognitora__V1__Node n = COGNITORA__V1__NODE__INIT;
	n.id = (char[]){"node-1"};
	n.address = (char[]){"10.0.0.1:7080"};
	n.engines = engines;
	n.n_engines = 1;
	struct cgn_err err;
	assert_true(cgn_ok(proto_node_check(&n, &err)));
	Cognitora__V1__Node *copy = proto_node_dup(&n);
	assert_non_null(copy);
	assert_true(proto_node_equal(copy, &n));
	models[1][0] = 'Q';
	assert_false(proto_node_equal(copy, &n));
	assert_string_equal(copy->engines[0]->models[1], "qwen");
	proto_node_free(&copy);
	assert_null(copy);
	proto_node_free(&copy);

	models[0] = (char[]){"bad\xff"};
	assert_int_equal(proto_node_check(&n, &err).code, CGN_INVALID);
	assert_non_null(strstr(err.msg, "models"));
	models[0] = (char[]){"llama"};
	static const char *const cards[] = {"\"a\":1},{\"b\":2", "\"a\":", "1", "\"a\":\"\xff\""};
	Cognitora__V1__ModelFacts f = COGNITORA__V1__MODEL_FACTS__INIT, *facts[] = {&f, &f};
	f.card = (char[]){"\"a\":1"};
	f.model = 1;
	e.facts = facts;
	e.n_facts = 1;
	assert_true(cgn_ok(proto_node_check(&n, &err)));
	e.n_facts = 2; /* Twice the same. */
	assert_int_equal(proto_node_check(&n, &err).code, CGN_INVALID);
	e.n_facts = 1;
	f.model = 2;
	assert_int_equal(proto_node_check(&n, &err).code, CGN_INVALID);
	f.model = 0;
	for (size_t i = 0; i < CGN_COUNT(cards); i++) {
		f.card = (char *)(uintptr_t)cards[i];
		assert_int_equal(proto_node_check(&n, &err).code, CGN_INVALID);
		assert_non_null(strstr(err.msg, "facts"));
	}
	e.n_facts = 0;
	Cognitora__V1__Handoff h = COGNITORA__V1__HANDOFF__INIT;
	char *ids[HANDOFF_RANKS_MAX + 1], long_id[HANDOFF_ENGINE_MAX + 2];
	for (size_t i = 0; i < CGN_COUNT(ids); i++)
		ids[i] = e.name;
	memset(long_id, 'a', sizeof long_id);
	long_id[sizeof long_id - 1] = '\0';
	e.handoff = &h;
	h.port = UINT16_MAX;
	h.engine_ids = ids;
	h.n_engine_ids = HANDOFF_RANKS_MAX;
	assert_true(cgn_ok(proto_node_check(&n, &err)));
	h.n_engine_ids++;
	assert_int_equal(proto_node_check(&n, &err).code, CGN_INVALID);
	h.n_engine_ids = 1;
	ids[0] = long_id;
	assert_int_equal(proto_node_check(&n, &err).code, CGN_INVALID);
	assert_non_null(strstr(err.msg, "engine_ids"));
	h.n_engine_ids = 0;
	h.port++;
	assert_int_equal(proto_node_check(&n, &err).code, CGN_INVALID);
	h.port = 0;
	h.terms = (char[]){"bad\xff"};
	assert_int_equal(proto_node_check(&n, &err).code, CGN_INVALID);
	e.handoff = NULL;
	static const char *const addresses[] = {"", "host", "host:", ":7080", "ho st:1", "host:1\n"};
	for (size_t i = 0; i < CGN_COUNT(addresses); i++) {
		n.address = cgn_str_dupz(cgn_str_of(addresses[i]));
		assert_int_equal(proto_node_check(&n, &err).code, CGN_INVALID);
		assert_non_null(strstr(err.msg, "address"));
		free(n.address);
	}
}

static void node_ids_are_parts_of_keys(void **state)
{
	(void)state;
	char longest[PROTO_MAX_ID + 1];
	memset(longest, 'a', sizeof longest);
	assert_true(proto_node_id_ok(CGN_STR("gpu-7.rack_2:x")));
	assert_true(proto_node_id_ok((struct cgn_str){longest, PROTO_MAX_ID}));
	assert_false(proto_node_id_ok((struct cgn_str){longest, PROTO_MAX_ID + 1}));
	assert_false(proto_node_id_ok(CGN_STR("")));
	assert_false(proto_node_id_ok(CGN_STR("a/b")));
	assert_false(proto_node_id_ok(CGN_STR("a b")));
	assert_false(proto_node_id_ok(CGN_STR("a\x80")));
	assert_false(proto_node_id_ok(CGN_STR("a\0b")));
}

/* ---- JSON ---- */

static void assert_json(struct cgn_str json, const char *again)
{
	Cognitora__V1__Node *n = NULL;
	struct cgn_err err;
	struct cgn_buf b = {.n = 0};
	if (!cgn_ok(proto_node_from_json(json, &n, &err)))
		fail_msg("%s", err.msg);
	proto_node_to_json(n, &b);
	assert_string_equal(cgn_buf_z(&b), again);
	proto_node_free(&n);
	cgn_buf_fini(&b);
}

static void nodes_are_proto3_json(void **state)
{
	(void)state;
	static const char full[] =
		"{\"id\":\"n1\",\"address\":\"h:1\",\"role\":\"ROLE_DECODE\",\"engines\":[{\"name\":\"e0\",\"kind\":\"sim\","
		"\"models\":[\"a\",\"b\"],\"ready\":true,\"slots\":4,\"kvBlocksTotal\":\"18446744073709551615\",\"kvBlockTokens\":16,"
		"\"residency\":\"events: partial (why)\"}],"
		"\"draining\":true,\"version\":\"0.1\",\"startedUnixMs\":\"1700000000000\","
		"\"kv\":{\"quicAddress\":\"h:7091\",\"rack\":\"r1\",\"region\":\"eu\"}}";
	static const char least[] = "{\"id\":\"n1\",\"address\":\"h:1\"}";
	assert_json(cgn_str_of(full), full);
	assert_json(cgn_str_of(least), least);
	/* Forms that other writers may use: original names, numbers for 64-bit integers, enum numbers, nulls,
	 * unknown members, defaults. */
	assert_json(
		CGN_STR(" { \"address\" : \"h:1\", \"id\":\"n\\u0031\", \"role\":2, \"started_unix_ms\":5, \"future\":[{}], \"version\":null,"
			"\"engines\":[{\"kv_blocks_total\":7,\"kvBlockTokens\":\"16\",\"ready\":false}] }"),
		"{\"id\":\"n1\",\"address\":\"h:1\",\"role\":\"ROLE_DECODE\",\"engines\":[{\"kvBlocksTotal\":\"7\",\"kvBlockTokens\":16}],"
		"\"startedUnixMs\":\"5\"}");
	assert_json(
		CGN_STR("{\"id\":\"n1\",\"address\":\"h:1\",\"kv\":{\"quic_address\":\"h:2\",\"rack\":null,\"more\":1}}"),
		"{\"id\":\"n1\",\"address\":\"h:1\",\"kv\":{\"quicAddress\":\"h:2\"}}");
	assert_json(CGN_STR("{\"id\":\"n1\",\"address\":\"h:1\",\"role\":77}"),
		"{\"id\":\"n1\",\"address\":\"h:1\",\"role\":77}"); /* An enum value of a later version. */
}

static void bad_json_is_refused_with_the_member(void **state)
{
	(void)state;
#define NODE(more) LIT("{\"id\":\"n1\",\"address\":\"h:1\"" more "}")
	static const struct {
		struct cgn_str json;
		const char *names;
	} bad[] = {
		{LIT(""), ""},
		{LIT("[]"), "object"},
		{LIT("{\"id\":\"n1\"}"), "address"},
		{LIT("{\"address\":\"h:1\"}"), "id"},
		{LIT("{\"id\":5,\"address\":\"h:1\"}"), "id"},
		{LIT("{\"id\":\"a/b\",\"address\":\"h:1\"}"), "id"},
		{LIT("{\"id\":\"a\\u0000b\",\"address\":\"h:1\"}"), "id"},
		{NODE(",\"role\":true"), "role"},
		{NODE(",\"role\":-1"), "role"},
		{NODE(",\"draining\":\"true\""), "draining"},
		{NODE(",\"startedUnixMs\":\"18446744073709551616\""), "startedUnixMs"},
		{NODE(",\"startedUnixMs\":1.5"), "startedUnixMs"},
		{NODE(",\"engines\":{}"), "engines"},
		{NODE(",\"kv\":[]"), "kv"},
		{NODE(",\"kv\":{}"), "quic_address"},
		{NODE(",\"kv\":{\"quicAddress\":\"h\"}"), "quic_address"},
		{NODE(",\"kv\":{\"quicAddress\":\"unix:/a:1\"}"), "quic_address"},
		{NODE(",\"kv\":{\"quicAddress\":\"h:2\",\"rack\":5}"), "rack"},
		{NODE(",\"kv\":{\"quicAddress\":\"h:2\",\"region\":\"12345678901234567890123456789012345678901234567890123456789012345\"}"),
			"region"},
		{NODE(",\"engines\":[5]"), "engines"},
		{NODE(",\"engines\":[null]"), "engines"},
		{NODE(",\"engines\":[{\"slots\":4294967296}]"), "slots"},
		{NODE(",\"engines\":[{\"models\":[\"\"]}]"), "models"},
		{NODE(",\"engines\":[{\"models\":[5]}]"), "models"},
	};
	for (size_t i = 0; i < CGN_COUNT(bad); i++) {
		Cognitora__V1__Node *n = NULL;
		struct cgn_err err;
		assert_int_equal(proto_node_from_json(bad[i].json, &n, &err).code, CGN_INVALID);
		assert_null(n);
		if (strstr(err.msg, bad[i].names) == NULL)
			fail_msg("case %zu: \"%s\" does not name %s", i, err.msg, bad[i].names);
	}
}

static void json_lists_are_bounded(void **state)
{
	(void)state;
	struct cgn_buf b = {.n = 0};
	Cognitora__V1__Node *n = NULL;
	for (size_t count = PROTO_MAX_ENGINES; count <= PROTO_MAX_ENGINES + 1; count++) {
		cgn_buf_putz(&b, "{\"id\":\"n1\",\"address\":\"h:1\",\"engines\":[");
		for (size_t i = 0; i < count; i++)
			cgn_buf_putz(&b, i == 0 ? "{}" : ",{}");
		cgn_buf_putz(&b, "]}");
		assert_int_equal(proto_node_from_json(cgn_buf_view(&b), &n, NULL).code,
			count > PROTO_MAX_ENGINES ? CGN_INVALID : CGN_FINE);
		proto_node_free(&n);
		cgn_buf_fini(&b);
	}
	cgn_buf_putz(&b, "{\"id\":\"n1\",\"address\":\"h:1\",\"x\":\"");
	memset(cgn_buf_room(&b, 1U << 20), 'x', 1U << 20);
	cgn_buf_grew(&b, 1U << 20);
	cgn_buf_putz(&b, "\"}");
	assert_int_equal(proto_node_from_json(cgn_buf_view(&b), &n, NULL).code, CGN_INVALID);
	cgn_buf_fini(&b);
}

/* Check a query; where it is refused, the sentence is |want|. */
static void assert_query(enum proto_document_id id, const char *path, const char *want)
{
	struct cgn_buf why = {0};
	bool good = proto_query_check(id, cgn_str_of(path), &why);
	assert_string_equal(good ? "" : cgn_buf_z(&why), want);
	cgn_buf_fini(&why);
}

static void queries_are_checked_against_the_table(void **state)
{
	(void)state;
	static const char *const good[] = {"/sessions", "/sessions?", "/sessions?&&",
		"/sessions?last=1000&skip=0",
		"/sessions?last=", "/sessions?sort=age&state=tool&tenant=a%2Fb"};
	for (size_t i = 0; i < CGN_COUNT(good); i++)
		assert_query(PROTO_DOCUMENT_SESSIONS, good[i], "");
	assert_query(PROTO_DOCUMENT_SESSIONS, "/sessions?limit=1",
		"there is no parameter \"limit\": /sessions takes last, skip, sort, state, tenant, model, node");
	assert_query(PROTO_DOCUMENT_NODES, "/nodes?a",
		"there is no parameter \"a\": /nodes takes no parameters");
	assert_query(PROTO_DOCUMENT_SESSIONS, "/sessions?last=5&last=0",
		"last is a whole number from 1 to 1000");
	assert_query(PROTO_DOCUMENT_SESSIONS, "/sessions?last=-1", "last is a whole number from 1 to 1000");
	assert_query(PROTO_DOCUMENT_SESSIONS, "/sessions?sort=us",
		"sort is one of: used turns tokens tools age");
	assert_query(PROTO_DOCUMENT_SESSIONS, "/sessions?sort=used turns",
		"sort is one of: used turns tokens tools age");
	assert_query(PROTO_DOCUMENT_USAGE, "/usage?from=anything", "");
	assert_query(PROTO_DOCUMENT_USAGE, "/usage?From=1",
		"there is no parameter \"From\": /usage takes from, to, by, step, format");
}

static void a_query_may_be_cut_anywhere(void **state)
{
	(void)state;
	static const char all[] = "/sessions?sort=age&last=7&=&x=%";
	for (size_t n = 0; n < sizeof all; n++) {
		struct cgn_buf why = {0};
		char *copy = malloc(n + 1);
		assert_non_null(copy);
		memcpy(copy, all, n);
		(void)!proto_query_check(PROTO_DOCUMENT_SESSIONS, (struct cgn_str){copy, n}, &why);
		cgn_buf_fini(&why);
		free(copy);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(protobuf_c_reads_what_we_write),
		cmocka_unit_test(our_bytes_are_protobuf_cs_bytes),
		cmocka_unit_test(we_read_what_protobuf_c_writes),
		cmocka_unit_test(round_trip_borrows_the_body),
		cmocka_unit_test(a_part_of_the_body_is_sent_as_other_bytes),
		cmocka_unit_test(every_truncation_is_survived),
		cmocka_unit_test(hostile_requests_are_refused),
		cmocka_unit_test(bounds_are_kept),
		cmocka_unit_test(unknown_and_repeated_fields_follow_protobuf),
		cmocka_unit_test(chunks_round_trip),
		cmocka_unit_test(response_heads_round_trip),
		cmocka_unit_test(hostile_chunks_are_refused),
		cmocka_unit_test(watch_events_are_protobuf),
		cmocka_unit_test(residency_that_makes_no_sense_is_refused),
		cmocka_unit_test(unpacking_is_bounded),
		cmocka_unit_test(nodes_are_checked_and_copied),
		cmocka_unit_test(node_ids_are_parts_of_keys),
		cmocka_unit_test(nodes_are_proto3_json),
		cmocka_unit_test(bad_json_is_refused_with_the_member),
		cmocka_unit_test(json_lists_are_bounded),
		cmocka_unit_test(queries_are_checked_against_the_table),
		cmocka_unit_test(a_query_may_be_cut_anywhere),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
