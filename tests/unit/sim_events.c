/* SPDX-License-Identifier: Apache-2.0 */
/* KV events byte for byte, in every dialect, compared with bytes written by hand from the engines'
 * structures. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "sim/events/events.h"

#define TS "\xcb\x3f\xf8\x00\x00\x00\x00\x00\x00" /* 1.5 */
/* Hashes: LOW is below 2^63, HIGH is above and negative in SGLang. */
#define LOW         0x1122334455667788U
#define HIGH        0xfedcba9876543210U
#define LOW_INT     "\xcf\x11\x22\x33\x44\x55\x66\x77\x88"
#define HIGH_INT    "\xcf\xfe\xdc\xba\x98\x76\x54\x32\x10"
#define HIGH_SIGNED "\xd3\xfe\xdc\xba\x98\x76\x54\x32\x10"
#define STORED \
	"\xab" \
	"BlockStored"
#define REMOVED \
	"\xac"  \
	"BlockRemoved"
#define TYPE   \
	"\xa4" \
	"type"
#define HASHES \
	"\xac" \
	"block_hashes"
#define PARENT \
	"\xb1" \
	"parent_block_hash"
#define TOKENS \
	"\xa9" \
	"token_ids"
#define SIZE   \
	"\xaa" \
	"block_size"
#define LORA_ID \
	"\xa7"  \
	"lora_id"
#define MEDIUM \
	"\xa6" \
	"medium"
#define LORA   \
	"\xa9" \
	"lora_name"
#define EXTRA  \
	"\xaa" \
	"extra_keys"
#define GROUP  \
	"\xa9" \
	"group_idx"
#define KIND   \
	"\xb2" \
	"kv_cache_spec_kind"
#define WINDOW \
	"\xbc" \
	"kv_cache_spec_sliding_window"
#define FULL   \
	"\xae" \
	"full_attention"
#define SLIDING \
	"\xae"  \
	"sliding_window"
#define GPU    \
	"\xa3" \
	"GPU"
#define NIL "\xc0"

static const uint64_t hashes[] = {LOW, HIGH};
static uint32_t tokens[] = {1, 300, 70000, 5}; /* Two for each block. */
static uint64_t digests[] = {11, 12};
static const char *const models[] = {"base", "l"};
static union {
	struct enginemodel_salt salt;
	char room[sizeof(struct enginemodel_salt) + 8];
} salty;
static struct sim_events e;

static struct enginemodel_listener begin_events(enum sim_dialect d, uint32_t groups)
{
	sim_events_fini(&e);
	sim_events_init(&e,
		&(struct sim_events_cfg){.dialect = d,
			.groups = groups,
			.block_tokens = 2,
			.rank = 3,
			.models = models});
	salty.salt.refs = 1;
	salty.salt.n = 1;
	salty.salt.text[0] = 's';
	return sim_events_listener(&e);
}

static struct enginemodel_contents plain_run(void)
{
	return (struct enginemodel_contents){.tokens = tokens, .digests = digests};
}

static void is_bytes(const char *want, size_t n, bool alien)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf out = {0};
	sim_events_take(&e, 1.5, alien, &out);
	assert_false(out.bad);
	for (size_t i = 0; i < n && i < out.n; i++) {
		if ((uint8_t)out.p[i] != (uint8_t)want[i])
			fail_msg("byte %zu is %02x, not %02x: \"%.*s\"", i, (uint8_t)out.p[i],
				(uint8_t)want[i], (int)(out.n - i), out.p + i);
	}
	assert_int_equal(out.n, n);
	assert_false(sim_events_any(&e));
}
#define IS(want) is_bytes("" want, sizeof(want) - 1, false)

static void expect_stored(struct enginemodel_listener l, const struct enginemodel_contents *c, uint32_t from,
	uint32_t n)
{
	l.stored(l.arg, &(struct enginemodel_run){hashes, c, from, n});
}

static void vllm_today(void **state)
{
	(void)state;
	struct enginemodel_listener l = begin_events(SIM_DIALECT_VLLM, 1);
	struct enginemodel_contents c = plain_run();
	expect_stored(l, &c, 0, 2);
	IS("\x93" TS "\x91"
	   "\x8b" TYPE STORED HASHES "\x92" LOW_INT HIGH_INT PARENT NIL TOKENS
	   "\x94\x01\xcd\x01\x2c\xce\x00\x01\x11\x70\x05" SIZE "\x02" LORA_ID NIL MEDIUM GPU LORA NIL EXTRA
	   "\x92\xc0\xc0" GROUP "\x00" KIND FULL "\x03");
	c.model = 1;
	c.salt = &salty.salt;
	expect_stored(l, &c, 0, 2);
	l.removed(l.arg, ENGINEMODEL_TIER_GPU, HIGH);
	l.cleared(l.arg);
	IS("\x93" TS "\x93"
	   "\x8b" TYPE STORED HASHES "\x92" LOW_INT HIGH_INT PARENT NIL TOKENS
	   "\x94\x01\xcd\x01\x2c\xce\x00\x01\x11\x70\x05" SIZE "\x02" LORA_ID "\x01" MEDIUM GPU LORA "\xa1"
	   "l" EXTRA "\x92\x92\xa1"
	   "l\xa1s\x91\xa1"
	   "l" GROUP "\x00" KIND FULL "\x84" TYPE REMOVED HASHES "\x91" HIGH_INT MEDIUM GPU GROUP "\x00"
	   "\x81" TYPE "\xb0"
	   "AllBlocksCleared"
	   "\x03");
}

static void vllm_goes_on_behind_a_parent(void **state)
{
	(void)state;
	struct enginemodel_listener l = begin_events(SIM_DIALECT_VLLM, 1);
	struct enginemodel_contents c = plain_run();
	c.salt = &salty.salt; /* Counts on first blocks only. */
	expect_stored(l, &c, 1, 1);
	IS("\x93" TS "\x91"
	   "\x8b" TYPE STORED HASHES "\x91" HIGH_INT PARENT LOW_INT TOKENS "\x92\xce\x00\x01\x11\x70\x05" SIZE
	   "\x02" LORA_ID NIL MEDIUM GPU LORA NIL EXTRA "\x91\xc0" GROUP "\x00" KIND FULL "\x03");
}

static void vllm_groups(void **state)
{
	(void)state;
	struct enginemodel_listener l = begin_events(SIM_DIALECT_VLLM, 2);
	struct enginemodel_contents c = plain_run();
	expect_stored(l, &c, 0, 1);
	l.removed(l.arg, ENGINEMODEL_TIER_GPU, LOW);
	IS("\x93" TS "\x94"
	   "\x8b" TYPE STORED HASHES "\x91" LOW_INT PARENT NIL TOKENS "\x92\x01\xcd\x01\x2c" SIZE
	   "\x02" LORA_ID NIL MEDIUM GPU LORA NIL EXTRA "\x91\xc0" GROUP "\x00" KIND FULL
	   "\x8c" TYPE STORED HASHES "\x91" LOW_INT PARENT NIL TOKENS "\x92\x01\xcd\x01\x2c" SIZE
	   "\x02" LORA_ID NIL MEDIUM GPU LORA NIL EXTRA "\x91\xc0" GROUP "\x01" KIND SLIDING WINDOW
	   "\xcd\x04\x00"
	   "\x84" TYPE REMOVED HASHES "\x91" LOW_INT MEDIUM GPU GROUP "\x00"
	   "\x84" TYPE REMOVED HASHES "\x91" LOW_INT MEDIUM GPU GROUP "\x01"
	   "\x03");
}

static void vllm_before_maps(void **state)
{
	(void)state;
	struct enginemodel_listener l = begin_events(SIM_DIALECT_VLLM_ARRAY, 1);
	struct enginemodel_contents c = plain_run();
	c.model = 1;
	c.salt = &salty.salt;
	expect_stored(l, &c, 0, 2);
	l.removed(l.arg, ENGINEMODEL_TIER_GPU, LOW);
	l.removed(l.arg, ENGINEMODEL_TIER_CPU, LOW);
	l.cleared(l.arg);
	IS("\x93" TS "\x94"
	   "\x9c" STORED "\x92" LOW_INT HIGH_INT NIL "\x94\x01\xcd\x01\x2c\xce\x00\x01\x11\x70\x05"
	   "\x02\x01" GPU "\xa1"
	   "l"
	   "\x92\x92\xa1"
	   "l\xa1s\x91\xa1"
	   "l"
	   "\x00" FULL NIL "\x94" REMOVED "\x91" LOW_INT GPU "\x00"
	   "\x94" REMOVED "\x91" LOW_INT "\xa3"
	   "CPU" NIL "\x91\xb0"
	   "AllBlocksCleared"
	   "\x03");
	l.moved(l.arg, ENGINEMODEL_TIER_CPU, LOW, NULL);
	IS("\x93" TS "\x91"
	   "\x9c" STORED "\x91" LOW_INT NIL "\x90\x02" NIL "\xa3"
	   "CPU" NIL NIL NIL NIL NIL "\x03");
}

static void vllm_with_a_batch_that_is_a_map(void **state)
{
	(void)state;
	struct enginemodel_listener l = begin_events(SIM_DIALECT_VLLM_MAP, 1);
	l.removed(l.arg, ENGINEMODEL_TIER_STORAGE, LOW);
	IS("\x83\xa2"
	   "ts" TS "\xa6"
	   "events\x91"
	   "\x83" TYPE REMOVED HASHES "\x91" LOW_INT MEDIUM "\xa7"
	   "STORAGE"
	   "\xb2"
	   "data_parallel_rank\x03");
}

static void vllm_tiers_below(void **state)
{
	(void)state;
	struct enginemodel_listener l = begin_events(SIM_DIALECT_VLLM, 2); /* Groups do not apply here. */
	l.moved(l.arg, ENGINEMODEL_TIER_CPU, LOW, NULL);
	IS("\x93" TS "\x91"
	   "\x88" TYPE STORED HASHES "\x91" LOW_INT PARENT NIL TOKENS "\x90" SIZE "\x02" LORA_ID NIL MEDIUM
	   "\xa3"
	   "CPU" LORA NIL "\x03");
	union {
		struct enginemodel_note note;
		char room[sizeof(struct enginemodel_note) + 8];
	} n = {.note = {.parent = LOW, .salt = &salty.salt, .model = 1}};
	n.note.tokens[0] = 70000;
	n.note.tokens[1] = 5;
	l.moved(l.arg, ENGINEMODEL_TIER_STORAGE, HIGH, &n.note);
	IS("\x93" TS "\x91"
	   "\x89" TYPE STORED HASHES "\x91" HIGH_INT PARENT LOW_INT TOKENS "\x92\xce\x00\x01\x11\x70\x05" SIZE
	   "\x02" LORA_ID "\x01" MEDIUM "\xa7"
	   "STORAGE" LORA "\xa1"
	   "l" EXTRA "\x91\x91\xa1"
	   "l"
	   "\x03");
	n.note.first = true;
	n.note.model = 0;
	l.moved(l.arg, ENGINEMODEL_TIER_CPU, HIGH, &n.note);
	IS("\x93" TS "\x91"
	   "\x89" TYPE STORED HASHES "\x91" HIGH_INT PARENT NIL TOKENS "\x92\xce\x00\x01\x11\x70\x05" SIZE
	   "\x02" LORA_ID NIL MEDIUM "\xa3"
	   "CPU" LORA NIL EXTRA "\x91\x91\xa1s"
	   "\x03");
}

static void sglang_page_by_page(void **state)
{
	(void)state;
	struct enginemodel_listener l = begin_events(SIM_DIALECT_SGLANG, 1);
	struct enginemodel_contents c = plain_run();
	expect_stored(l, &c, 0, 2);
	l.removed(l.arg, ENGINEMODEL_TIER_GPU, HIGH);
	IS("\x93" TS "\x93"
	   "\x97" STORED "\x91" LOW_INT NIL "\x92\x01\xcd\x01\x2c"
	   "\x02" NIL GPU "\x97" STORED "\x91" HIGH_SIGNED LOW_INT "\x92\xce\x00\x01\x11\x70\x05"
	   "\x02" NIL GPU "\x93" REMOVED "\x91" HIGH_SIGNED GPU "\x03");
	c.salt = &salty.salt;
	expect_stored(l, &c, 1, 1);
	IS("\x93" TS "\x91"
	   "\x98" STORED "\x91" HIGH_SIGNED LOW_INT "\x92\xce\x00\x01\x11\x70\x05"
	   "\x02" NIL GPU "\x81\xaa"
	   "cache_salt\xa1s"
	   "\x03");
}

static void sglang_long_ago(void **state)
{
	(void)state;
	struct enginemodel_listener l = begin_events(SIM_DIALECT_SGLANG_OLD, 1);
	struct enginemodel_contents c = plain_run();
	c.salt = &salty.salt;
	expect_stored(l, &c, 0, 1);
	l.moved(l.arg, ENGINEMODEL_TIER_CPU, LOW, NULL); /* This dialect has no tiers. */
	l.removed(l.arg, ENGINEMODEL_TIER_CPU, LOW);
	l.removed(l.arg, ENGINEMODEL_TIER_GPU, LOW);
	IS("\x92" TS "\x92"
	   "\x96" STORED "\x91" LOW_INT NIL "\x92\x01\xcd\x01\x2c"
	   "\x02" NIL "\x92" REMOVED "\x91" LOW_INT);
}

static void sglang_in_maps(void **state)
{
	(void)state;
	struct enginemodel_listener l = begin_events(SIM_DIALECT_SGLANG_MAP, 1);
	struct enginemodel_contents c = plain_run();
	c.salt = &salty.salt;
	c.model = 1;
	expect_stored(l, &c, 0, 1);
	l.removed(l.arg, ENGINEMODEL_TIER_CPU, HIGH);
	IS("\x93" TS "\x92"
	   "\x88" TYPE STORED HASHES "\x91" LOW_INT PARENT NIL TOKENS "\x92\x01\xcd\x01\x2c" SIZE
	   "\x02" LORA_ID "\x01" MEDIUM GPU "\xaa"
	   "cache_salt\xa1s"
	   "\x83" TYPE REMOVED HASHES "\x91" HIGH_SIGNED MEDIUM "\xaa"
	   "CPU_PINNED"
	   "\x03");
}

static void hashes_as_bytes_end_with_the_number(void **state)
{
	(void)state;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf out = {0};
	struct enginemodel_listener l = begin_events(SIM_DIALECT_VLLM_ARRAY, 1);
	e.cfg.hash_bytes = true;
	l.removed(l.arg, ENGINEMODEL_TIER_CPU, LOW);
	sim_events_take(&e, 1.5, false, &out);
	static const char head[] = "\x93" TS "\x91\x94" REMOVED "\x91\xc4\x20";
	static const char tail[] = "\x11\x22\x33\x44\x55\x66\x77\x88\xa3"
				   "CPU\xc0\x03";
	assert_int_equal(out.n, sizeof head - 1 + 24 + sizeof tail - 1);
	assert_memory_equal(out.p, head, sizeof head - 1);
	assert_memory_equal(out.p + sizeof head - 1 + 24, tail, sizeof tail - 1);
}

static void pictures_are_named_where_they_are(void **state)
{
	(void)state;
	static uint64_t many[140], d[140];
	static uint32_t t[280];
	/* 256 tokens, from the second half of block 1 to the first half of block 129. */
	struct enginemodel_image image = {.hash = LOW, .at = 3};
	struct enginemodel_contents c = {.tokens = t, .digests = d, .images = &image, .n_images = 1};
	for (unsigned from = 0; from < 140; from++) {
		CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf out = {0};
		char want[128];
		struct enginemodel_listener l = begin_events(SIM_DIALECT_VLLM, 1);
		l.stored(l.arg, &(struct enginemodel_run){many, &c, from, 1});
		sim_events_take(&e, 1.5, false, &out);
		bool inside = from >= 1 && from <= 129;
		int offset = 3 - 2 * (int)from;
		struct cgn_buf w = cgn_buf_over(want, sizeof want);
		cgn_buf_putz(&w, EXTRA);
		cgn_buf_putz(&w,
			inside ? "\x91\x91\x92\xd9\x40"
				 "1122334455667788"
			       : "\x91\xc0");
		assert_non_null(memmem(out.p, out.n, w.p, w.n));
		if (from == 1)
			assert_non_null(memmem(out.p, out.n, "\x01" GROUP, 1 + sizeof GROUP - 1));
		if (inside && offset < 0 && offset >= -32)
			assert_non_null(memmem(out.p, out.n, ((char[]){(char)offset, '\xa9', 'g'}), 3));
	}
}

static void an_alien_comes_first(void **state)
{
	(void)state;
	static const char maps[] = "\x93" TS "\x92"
				   "\x82" TYPE "\xaf"
				   "BlockTeleported" HASHES "\x91\x2a"
				   "\x81" TYPE "\xb0"
				   "AllBlocksCleared"
				   "\x03";
	static const char lists[] = "\x93" TS "\x92"
				    "\x92\xaf"
				    "BlockTeleported"
				    "\x91\x2a"
				    "\x91\xb0"
				    "AllBlocksCleared"
				    "\x03";
	struct enginemodel_listener l = begin_events(SIM_DIALECT_SGLANG_MAP, 1);
	l.cleared(l.arg);
	is_bytes(maps, sizeof maps - 1, true);
	l = begin_events(SIM_DIALECT_SGLANG, 1);
	l.cleared(l.arg);
	is_bytes(lists, sizeof lists - 1, true);
}

static void dropped_events_leave_nothing(void **state)
{
	(void)state;
	struct enginemodel_listener l = begin_events(SIM_DIALECT_VLLM_ARRAY, 1);
	assert_false(sim_events_any(&e));
	l.cleared(l.arg);
	assert_true(sim_events_any(&e));
	sim_events_drop(&e);
	assert_false(sim_events_any(&e));
	l.removed(l.arg, ENGINEMODEL_TIER_CPU, 1);
	IS("\x93" TS "\x91"
	   "\x94" REMOVED "\x91\x01\xa3"
	   "CPU" NIL "\x03");
	sim_events_fini(&e);
}

static void dialects_have_names(void **state)
{
	(void)state;
	for (enum sim_dialect d = 0; d < SIM_DIALECT_COUNT; d++) {
		enum sim_dialect found = SIM_DIALECT_COUNT;
		assert_true(sim_dialect_of(cgn_str_of(sim_dialect_name(d)), &found));
		assert_int_equal(found, d);
		assert_true(strlen(sim_dialect_help(d)) > 5);
	}
	enum sim_dialect d = SIM_DIALECT_VLLM;
	assert_false(sim_dialect_of(CGN_STR("vllm2"), &d));
	assert_true(sim_dialect_replays_topic(SIM_DIALECT_VLLM) &&
		!sim_dialect_replays_topic(SIM_DIALECT_VLLM_ARRAY));
	assert_true(
		sim_dialect_describes(SIM_DIALECT_SGLANG) && !sim_dialect_describes(SIM_DIALECT_SGLANG_OLD));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(vllm_today),
		cmocka_unit_test(vllm_goes_on_behind_a_parent),
		cmocka_unit_test(vllm_groups),
		cmocka_unit_test(vllm_before_maps),
		cmocka_unit_test(vllm_with_a_batch_that_is_a_map),
		cmocka_unit_test(vllm_tiers_below),
		cmocka_unit_test(sglang_page_by_page),
		cmocka_unit_test(sglang_long_ago),
		cmocka_unit_test(sglang_in_maps),
		cmocka_unit_test(hashes_as_bytes_end_with_the_number),
		cmocka_unit_test(pictures_are_named_where_they_are),
		cmocka_unit_test(an_alien_comes_first),
		cmocka_unit_test(dropped_events_leave_nothing),
		cmocka_unit_test(dialects_have_names),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
