/* SPDX-License-Identifier: Apache-2.0 */
/* Messages and frames that are written by hand, against those of the versions that are kept (tests/golden). Fields that a
 * later version adds are read; other versions are refused with a sentence. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "golden_world.h"

#include "base/codec/codec.h"
#include "policy/kv/kvbulk/kvbulk.h"
#include "policy/kv/kvframe/kvframe.h"
#include "policy/node/proto/proto.h"
#include "policy/route/peer/summary.h"

#define NOW   UINT64_C(1764316800) /* 2025-11-28T08:00:00Z */
#define ARENA ((size_t)1 << 16)

static struct block_key key_of(uint8_t first)
{
	struct block_key k = {.segment = 3};
	for (size_t i = 0; i < sizeof k.digest.b; i++)
		k.digest.b[i] = (uint8_t)(first + i);
	return k;
}

static void key_is(const struct block_key *k, uint8_t first)
{
	const struct block_key want = key_of(first);
	assert_true(block_key_eq(k, &want));
}

/* ---- router and agent: messages that are written without protobuf-c ---- */

static const uint64_t chain[] = {1, UINT64_MAX, UINT64_C(0x0123456789abcdef)};

static void generate_make(struct cgn_buf *out)
{
	static const struct proto_header headers[] = {{{"content-type", 12}, {"application/json", 16}}};
	const struct proto_generate g = {.request_id = CGN_STR("req-1"),
		.method = CGN_STR("POST"),
		.path = CGN_STR("/v1/chat/completions"),
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
			.block_tokens = 16,
			.router = 77,
			.new_tokens = 7000,
			.leg = COGNITORA__V1__LEG__LEG_DECODE,
			.keep_alive = proto_keep_alive(300000)},
		.body = CGN_STR("{\"model\":\"m\"}")};
	proto_generate_prefix(&g, out);
	cgn_buf_str(out, g.body);
}

static void generate_check(struct cgn_str bytes)
{
	struct cgn_arena a;
	struct proto_generate g;
	struct cgn_err err = {.msg = ""};
	cgn_arena_init(&a, ARENA);
	must_work(proto_generate_read(bytes, &a, &g, &err), &err);
	text_is(g.request_id, "req-1");
	text_is(g.path, "/v1/chat/completions");
	assert_int_equal(g.n_headers, 1);
	text_is(g.headers[0].value, "application/json");
	text_is(g.facts.model, "m");
	text_is(g.facts.engine, "e0");
	assert_true(g.facts.blocks_total == 300 && g.facts.blocks_predicted == 2 && g.facts.stream);
	assert_true(g.facts.n_chain == CGN_COUNT(chain) && memcmp(g.facts.chain, chain, sizeof chain) == 0);
	assert_true(g.facts.attempt == 1 && g.facts.block_tokens == 16 && g.facts.router == 77);
	assert_true(g.facts.new_tokens == 7000 && g.facts.leg == COGNITORA__V1__LEG__LEG_DECODE);
	assert_true(g.facts.keep_alive == proto_keep_alive(300000));
	text_is(g.body, "{\"model\":\"m\"}");
	cgn_arena_fini(&a);
}

static void chunk_head_make(struct cgn_buf *out)
{
	static const struct proto_header headers[] = {{{"content-type", 12}, {"text/event-stream", 17}}};
	proto_chunk_head(200, headers, 1, CGN_STR("e0"), out);
}

static void chunk_head_check(struct cgn_str bytes)
{
	struct cgn_arena a;
	struct proto_chunk ch;
	struct cgn_err err = {.msg = ""};
	cgn_arena_init(&a, ARENA);
	must_work(proto_chunk_read(bytes, &a, &ch, &err), &err);
	assert_true(ch.kind == PROTO_CHUNK_HEAD && ch.status == 200 && ch.n_headers == 1);
	text_is(ch.headers[0].name, "content-type");
	text_is(ch.engine, "e0");
	cgn_arena_fini(&a);
}

static void chunk_data_make(struct cgn_buf *out)
{
	uint8_t lead[PROTO_CHUNK_LEAD];
	cgn_buf_add(out, lead, proto_chunk_lead(lead, 5));
	cgn_buf_putz(out, "hello");
}

static void chunk_data_check(struct cgn_str bytes)
{
	struct cgn_arena a;
	struct proto_chunk ch;
	struct cgn_err err = {.msg = ""};
	cgn_arena_init(&a, ARENA);
	must_work(proto_chunk_read(bytes, &a, &ch, &err), &err);
	assert_true(ch.kind == PROTO_CHUNK_DATA);
	text_is(ch.data, "hello");
	cgn_arena_fini(&a);
}

static void event_make(struct cgn_buf *out)
{
	static const uint8_t tiers[] = {1, 6, 0};
	static const uint32_t ranges[] = {0, 255};
	static uint64_t sums[BLOCK_RANGES];
	for (size_t i = 0; i < BLOCK_RANGES; i++)
		sums[i] = i;
	const struct proto_residency r = {.reset = true,
		.ranges = ranges,
		.n_ranges = 2,
		.blocks = chain,
		.tiers = tiers,
		.n_blocks = CGN_COUNT(chain),
		.source = COGNITORA__V1__RESIDENCY_SOURCE__RESIDENCY_EVENTS,
		.stale_ms = 9};
	const struct proto_check c = {.sums = sums, .blocks = 2};
	proto_watch_event(&(struct proto_event){.seq = 5,
				  .sent_unix_ms = 6,
				  .beat_ms = 250,
				  .residency = &r,
				  .check = &c},
		out);
}

static void event_check(struct cgn_str bytes)
{
	CGN_ON_EXIT(pb_free) Cognitora__V1__WatchEvent *ev = NULL;
	struct cgn_err err = {.msg = ""};
	must_work(pb_unpack(&cognitora__v1__watch_event__descriptor, bytes, &ev, &err), &err);
	assert_true(ev->seq == 5 && ev->sent_unix_ms == 6 && ev->beat_ms == 250);
	assert_true(ev->residency != NULL && ev->check != NULL);
	must_work(proto_residency_check(ev->residency, ev->check, &err), &err);
	assert_true(ev->residency->n_blocks == 3 && ev->residency->blocks[2] == chain[2]);
	assert_true(ev->residency->tiers.len == 3 && ev->residency->tiers.data[1] == 6);
	assert_true(ev->residency->reset && ev->residency->n_ranges == 2);
	assert_true(ev->check->n_sums == BLOCK_RANGES && ev->check->sums[7] == 7);
}

/* ---- stores: frames of QUIC streams ---- */

/* Read the frame of |bytes|; its payload is borrowed from |in|. */
static struct kvframe frame_of(struct kvframe_in *in, struct cgn_str bytes, enum kvframe_type type)
{
	struct kvframe f = {.type = KVFRAME_FETCH};
	struct cgn_err err = {.msg = ""};
	bool got = false;
	kvframe_in_init(in);
	must_work(kvframe_next(in, &bytes, &f, &got, &err), &err);
	assert_true(got && bytes.n == 0 && f.type == type);
	return f;
}

static void fetch_make(struct cgn_buf *out)
{
	const struct kvframe_fetch f = {.key = key_of(7),
		.offset = 4096,
		.length = 8192,
		.budget_ms = 250,
		.priority = 2};
	kvframe_put_fetch(out, &f);
}

static void fetch_check(struct cgn_str bytes)
{
	struct kvframe_in in;
	struct kvframe_fetch f;
	struct cgn_err err = {.msg = ""};
	must_work(kvframe_read_fetch(frame_of(&in, bytes, KVFRAME_FETCH).payload, &f, &err), &err);
	key_is(&f.key, 7);
	assert_true(f.offset == 4096 && f.length == 8192 && f.budget_ms == 250 && f.priority == 2);
	kvframe_in_fini(&in);
}

static void answer_make(struct cgn_buf *out)
{
	const struct kvframe_answer a = {.status = KVFRAME_OK,
		.size = 10000,
		.checksum = 11,
		.offset = 1,
		.length = 2,
		.tokens = 16,
		.created_unix_ms = NOW,
		.expires_unix_ms = NOW + 1,
		.model = CGN_STR("m"),
		.name = CGN_STR("name")};
	kvframe_put_answer(out, &a);
}

static void answer_check(struct cgn_str bytes)
{
	struct kvframe_in in;
	struct kvframe_answer a;
	struct cgn_err err = {.msg = ""};
	must_work(kvframe_read_answer(frame_of(&in, bytes, KVFRAME_ANSWER).payload, &a, &err), &err);
	assert_true(a.status == KVFRAME_OK && a.size == 10000 && a.checksum == 11 && a.length == 2);
	assert_true(a.tokens == 16 && a.created_unix_ms == NOW && a.expires_unix_ms == NOW + 1);
	text_is(a.model, "m");
	text_is(a.name, "name");
	kvframe_in_fini(&in);
}

static void who_put(struct cgn_buf *out, enum kvframe_type type)
{
	const struct kvframe_who w = {.instance = 99,
		.node = CGN_STR("node-a"),
		.rack = CGN_STR("r1"),
		.region = CGN_STR("eu")};
	kvframe_put_who(out, type, &w);
}

static void who_is(struct cgn_str bytes, enum kvframe_type type)
{
	struct kvframe_in in;
	struct kvframe_who w;
	struct cgn_err err = {.msg = ""};
	must_work(kvframe_read_who(frame_of(&in, bytes, type).payload, &w, &err), &err);
	assert_true(w.instance == 99);
	text_is(w.node, "node-a");
	text_is(w.region, "eu");
	kvframe_in_fini(&in);
}

static void subscribe_make(struct cgn_buf *out)
{
	who_put(out, KVFRAME_SUBSCRIBE);
}
static void subscribe_check(struct cgn_str bytes)
{
	who_is(bytes, KVFRAME_SUBSCRIBE);
}
static void hello_make(struct cgn_buf *out)
{
	who_put(out, KVFRAME_HELLO);
}
static void hello_check(struct cgn_str bytes)
{
	who_is(bytes, KVFRAME_HELLO);
}

static void holds_make(struct cgn_buf *out)
{
	static const struct kvframe_hold list[] = {{1, 2}, {UINT64_MAX, 6}, {5, 0}};
	const struct kvframe_holds h = {.seq = 4, .reset = true, .synced = true, .blocks = 2, .bytes = 20000};
	kvframe_put_holds(out, &h, list, CGN_COUNT(list));
}

static void holds_check(struct cgn_str bytes)
{
	struct kvframe_in in;
	struct kvframe_holds h;
	struct cgn_err err = {.msg = ""};
	must_work(kvframe_read_holds(frame_of(&in, bytes, KVFRAME_HOLDS).payload, &h, &err), &err);
	assert_true(h.seq == 4 && h.reset && h.synced && h.blocks == 2 && h.bytes == 20000 && h.n == 3);
	assert_true(kvframe_hold_at(&h, 1).block == UINT64_MAX && kvframe_hold_at(&h, 1).tiers == 6);
	kvframe_in_fini(&in);
}

/* ---- a store and the programs of its node ---- */

static const struct block_info info = {.size = 5,
	.checksum = 12,
	.tokens = 16,
	.tiers = 6,
	.pinned = true,
	.created_unix_ms = 9,
	.expires_unix_ms = 10};

/* Append the message of |m|, with its length before it. */
static void packet_put(struct cgn_buf *out, const struct kvbulk_msg *m)
{
	struct cgn_buf one = {.n = 0};
	const struct block_key key = key_of(1);
	kvbulk_write(m, &one);
	if (m->type == KVBULK_LOOKUP || m->type == KVBULK_REMOVE)
		kvbulk_add_key(&one, &key);
	else if (m->type == KVBULK_RELEASE)
		kvbulk_add_lease(&one, 8);
	else if (m->type == KVBULK_INFOS)
		kvbulk_add_info(&one, &info);
	else if (m->type == KVBULK_VALUE)
		kvbulk_add_extent(&one, (struct kvbulk_extent){4096, 5});
	else if (m->type == KVBULK_CHANGES)
		kvbulk_add_change(&one, &(struct block_change){.key = key, .tiers = 2, .size = 5});
	cgn_buf_fmt(out, "%04zx ", one.n);
	hex_put(out, cgn_buf_view(&one));
	cgn_buf_char(out, '\n');
	cgn_buf_fini(&one);
}

static const enum kvbulk_type packets[] = {KVBULK_HELLO, KVBULK_LOOKUP, KVBULK_GET, KVBULK_RELEASE,
	KVBULK_PUT, KVBULK_REMOVE, KVBULK_PIN, KVBULK_WATCH, KVBULK_WELCOME, KVBULK_INFOS, KVBULK_VALUE,
	KVBULK_COUNT, KVBULK_FAILED, KVBULK_CHANGES};

static void bulk_make(struct cgn_buf *out)
{
	for (size_t i = 0; i < CGN_COUNT(packets); i++) {
		struct kvbulk_msg m = {.type = packets[i], .id = 40 + i, .version = 1, .key = key_of(1)};
		enum kvbulk_type t = m.type;
		m.count = t == KVBULK_LOOKUP || t == KVBULK_REMOVE || t == KVBULK_RELEASE ||
			t == KVBULK_INFOS || t == KVBULK_VALUE || t == KVBULK_CHANGES;
		m.terms = (struct kvbulk_terms){1, 2, 3, 4, 5, 6};
		m.info = info;
		if (t == KVBULK_PUT || t == KVBULK_VALUE) {
			m.model = CGN_STR("m");
			m.name = CGN_STR("name");
		}
		m.for_ms = 70;
		m.lease = 71;
		m.number = 3;
		m.text = t == KVBULK_PUT     ? CGN_STR("value")
			: t == KVBULK_FAILED ? CGN_STR("a sentence")
					     : (struct cgn_str){.n = 0};
		packet_put(out, &m);
	}
}

static void packet_check(const struct kvbulk_msg *m, size_t i)
{
	assert_true(m->type == packets[i] && m->id == 40 + i);
	if (m->type == KVBULK_HELLO || m->type == KVBULK_WELCOME)
		assert_int_equal(m->version, 1);
	if (m->type == KVBULK_WELCOME)
		assert_true(m->terms.max_calls == 1 && m->terms.arena_bytes == 6);
	if (m->type == KVBULK_GET || m->type == KVBULK_PUT || m->type == KVBULK_PIN)
		key_is(&m->key, 1);
	if (m->type == KVBULK_PUT)
		text_is(m->text, "value");
	if (m->type == KVBULK_VALUE)
		assert_true(m->lease == 71 && m->info.checksum == 12 && kvbulk_extent(m, 0).offset == 4096);
	if (m->type == KVBULK_CHANGES)
		assert_true(kvbulk_change(m, 0).tiers == 2);
	if (m->type == KVBULK_INFOS)
		assert_true(kvbulk_info(m, 0).pinned && kvbulk_info(m, 0).size == 5);
}

static void bulk_check(struct cgn_str text)
{
	for (size_t i = 0; text.n > 0; i++) {
		struct cgn_buf bytes = {.n = 0};
		struct cgn_str line = cgn_str_split(&text, '\n');
		struct kvbulk_msg m;
		struct cgn_err err = {.msg = ""};
		(void)cgn_str_split(&line, ' ');
		assert_true(i < CGN_COUNT(packets) && hex_get(&bytes, line));
		must_work(kvbulk_read(cgn_buf_view(&bytes), &m, &err), &err);
		packet_check(&m, i);
		cgn_buf_fini(&bytes);
	}
}

/* ---- a cluster and its peers ---- */

/* Version 2 tells the set narrowed to the bits that it needs. */
static void summary_put(unsigned version, struct cgn_buf *out)
{
	static struct peer_summary s;
	struct peer_draft d = {0};
	for (uint32_t i = 1; i <= 20; i++)
		peer_draft_add(&d, i * (version == 1 ? 1000 : 1U << 27)); /* told apart by a few bits too */
	struct peer_set *set = peer_draft_finish(&d);
	assert_non_null(set);
	if (version > 1)
		peer_set_narrow(set, peer_width(set->n, 0));
	s = (struct peer_summary){.version = version,
		.width = set->width,
		.generation = 5,
		.sum = set->sum,
		.blocks = set->n,
		.n_models = 1};
	s.models[0] = (struct peer_load){.name = CGN_STR("m"),
		.nodes = 2,
		.inflight = 3,
		.room = 4,
		.input = 5,
		.prefill_uj = 6};
	peer_summary_put(&s, set, (struct cgn_str){.n = 0}, out);
	peer_set_unref(&set);
}

static void summary_make(struct cgn_buf *out)
{
	summary_put(1, out);
}

static void summary_2_make(struct cgn_buf *out)
{
	summary_put(2, out);
}

static CGN_RC summary_try(struct cgn_str bytes, struct peer_summary *got, struct cgn_err *err)
{
	const struct peer_known nothing = {0};
	struct peer_set *now = NULL;
	CGN_TRY(peer_summary_get(bytes, &nothing, got, &now, err));
	peer_set_unref(&now);
	return CGN_OK;
}

static void summary_check(struct cgn_str bytes)
{
	static struct peer_summary s;
	struct cgn_err err = {.msg = ""};
	must_work(summary_try(bytes, &s, &err), &err);
	assert_true(s.generation == 5 && s.blocks == 20 && s.n_models == 1);
	text_is(s.models[0].name, "m");
	assert_true(s.models[0].nodes == 2 && s.models[0].room == 4 && s.models[0].prefill_uj == 6);
}

static void summary_2_check(struct cgn_str bytes)
{
	static struct peer_summary s;
	struct cgn_err err = {.msg = ""};
	must_work(summary_try(bytes, &s, &err), &err);
	assert_true(s.version == 2 && s.width < PEER_WIDTH && s.generation == 5 && s.blocks == 20);
	text_is(s.models[0].name, "m");
	assert_true(s.n_models == 1 && s.models[0].nodes == 2 && s.models[0].prefill_uj == 6);
}

static const struct golden_sample samples[] = {{"generate_request.bin", generate_make, generate_check},
	{"generate_chunk_head.bin", chunk_head_make, chunk_head_check},
	{"generate_chunk_data.bin", chunk_data_make, chunk_data_check},
	{"watch_event.bin", event_make, event_check}, {"kv_fetch.bin", fetch_make, fetch_check},
	{"kv_answer.bin", answer_make, answer_check}, {"kv_subscribe.bin", subscribe_make, subscribe_check},
	{"kv_hello.bin", hello_make, hello_check}, {"kv_holds.bin", holds_make, holds_check},
	{"kv_bulk.txt", bulk_make, bulk_check}, {"peer_summary.bin", summary_make, summary_check},
	{"peer_summary_2.bin", summary_2_make, summary_2_check}};

static void kept_versions_are_understood_and_understand(void **state)
{
	(void)state;
	golden_samples(samples, CGN_COUNT(samples));
}

/* ---- later versions ---- */

/* Append protobuf fields that no version has: a number, and bytes. */
static void fields_add(struct cgn_buf *out)
{
	cgn_buf_add(out, "\x80\x7d\x01\x8a\x7d\x03new", 9); /* 2000: 1; 2001: "new" */
}

static void unknown_fields_of_messages_are_skipped(void **state)
{
	(void)state;
	static const char *const files[] = {"generate_request.bin", "generate_chunk_head.bin",
		"generate_chunk_data.bin", "watch_event.bin"};
	for (size_t i = 0; i < CGN_COUNT(samples); i++)
		for (size_t k = 0; k < CGN_COUNT(files); k++) {
			struct cgn_buf b = {.n = 0};
			if (strcmp(samples[i].file, files[k]) != 0)
				continue;
			samples[i].make(&b);
			fields_add(&b);
			samples[i].check(cgn_buf_view(&b));
			cgn_buf_fini(&b);
		}
}

static void longer_frames_of_stores_are_read(void **state)
{
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(samples); i++) {
		struct cgn_buf b = {.n = 0};
		uint32_t n;
		if (strncmp(samples[i].file, "kv_", 3) != 0 || strcmp(samples[i].file, "kv_bulk.txt") == 0)
			continue;
		samples[i].make(&b);
		if (strcmp(samples[i].file, "kv_answer.bin") == 0)
			cgn_buf_add(&b, "\0", 2); /* No tenant, which is the last known field. */
		cgn_buf_add(&b, "\1\2\3\4\5\6\7\10", 8);
		n = (uint32_t)(b.n - KVFRAME_HEAD);
		memcpy(b.p + 4, &n, sizeof n); /* The length of the payload. */
		samples[i].check(cgn_buf_view(&b));
		cgn_buf_fini(&b);
	}
}

static void later_versions_of_wires_are_refused_and_named(void **state)
{
	(void)state;
	static struct peer_summary s;
	struct cgn_buf b = {.n = 0};
	struct cgn_err err = {.msg = ""};
	struct kvframe f;
	struct kvframe_in in;
	bool got = false;
	summary_make(&b);
	b.p[4] = 3;
	must_refuse(summary_try(cgn_buf_view(&b), &s, &err), &err, "of version 3, this one reads 1 to 2");
	b.n = 0;
	fetch_make(&b);
	b.p[0] = 9;
	struct cgn_str rest = cgn_buf_view(&b);
	kvframe_in_init(&in);
	must_refuse(kvframe_next(&in, &rest, &f, &got, &err), &err, "9");
	kvframe_in_fini(&in);
	cgn_buf_fini(&b);
}

static void the_greeting_of_a_later_version_is_read(void **state)
{
	(void)state;
	const struct kvbulk_msg hello = {.type = KVBULK_HELLO, .version = 7};
	struct kvbulk_msg m;
	struct cgn_buf b = {.n = 0};
	struct cgn_err err = {.msg = ""};
	kvbulk_write(&hello, &b);
	must_work(kvbulk_read(cgn_buf_view(&b), &m, &err), &err);
	assert_int_equal(m.version, 7);
	assert_int_equal(kvbulk_common(7), KVBULK_VERSION);
	assert_int_equal(kvbulk_common(1), 1);
	assert_int_equal(kvbulk_common(0), 0);
	cgn_buf_fini(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(kept_versions_are_understood_and_understand),
		cmocka_unit_test(unknown_fields_of_messages_are_skipped),
		cmocka_unit_test(longer_frames_of_stores_are_read),
		cmocka_unit_test(later_versions_of_wires_are_refused_and_named),
		cmocka_unit_test(the_greeting_of_a_later_version_is_read)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
