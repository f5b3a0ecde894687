/* SPDX-License-Identifier: Apache-2.0 */
/* kvevent: every layout of every engine gives the same events; errors name the place of the fault. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/codec/codec.h"
#include "policy/kv/kvevent/kvevent.h"

/* Print an event: "S gpu g0 b4 parent=- hashes=1,2 tokens=5,6,7,8 lora=x/0 salt= win=0". */
static void write_event(void *user, const struct kvevent *e)
{
	static const char *const tiers[] = {"gpu", "ram", "ssd", "remote"};
	struct cgn_buf *b = user;
	struct kvevent_list l = e->hashes;
	uint64_t hash;
	uint32_t token;
	if (e->type == KVEVENT_CLEARED) {
		cgn_buf_putz(b, "C;");
		return;
	}
	cgn_buf_fmt(b, "%c %s g%u", e->type == KVEVENT_STORED ? 'S' : 'R', tiers[e->tier], e->group);
	while (kvevent_hash_next(&l, &hash))
		cgn_buf_fmt(b, " %llu", (unsigned long long)hash);
	if (e->type == KVEVENT_STORED) {
		cgn_buf_fmt(b, " <%lld b%u:", e->has_parent ? (long long)e->parent : -1, e->block_size);
		for (l = e->tokens; kvevent_token_next(&l, &token);)
			cgn_buf_fmt(b, " %u", token);
		cgn_buf_fmt(b, " l%u/%.*s s%.*s x%zu%s", (unsigned)e->lora_id, CGN_STR_ARG(e->lora),
			CGN_STR_ARG(e->salt), e->extra_keys.n, e->windowed ? " windowed" : "");
	}
	cgn_buf_char(b, ';');
}

static const char *read_hex(const char *hex, struct kvevent_batch *batch, struct cgn_err *err)
{
	static char text[2000];
	struct cgn_buf bytes = {0}, out = cgn_buf_over(text, sizeof text - 1);
	assert_true(hex_get(&bytes, cgn_str_of(hex)));
	cgn_rc rc = kvevent_batch_read(cgn_buf_view(&bytes), write_event, &out, batch, err);
	assert_int_equal(cgn_ok(rc), err->code == CGN_FINE);
	text[out.n] = '\0';
	cgn_buf_fini(&bytes);
	return text;
}

/* [ts 1.5, [event], ...] around an event. */
#define BATCH(event)         \
	"92"                 \
	"cb3ff8000000000000" \
	"91" event
#define STORED \
	"ab"   \
	"426c6f636b53746f726564"
#define REMOVED \
	"ac"    \
	"426c6f636b52656d6f766564"
#define CLEARED \
	"b0"    \
	"416c6c426c6f636b73436c6561726564"
#define GPU      "a3475055"
#define K_TYPE   "a474797065"
#define K_HASHES "ac626c6f636b5f686173686573"
#define K_PARENT "b1706172656e745f626c6f636b5f68617368"
#define K_TOKENS "a9746f6b656e5f696473"
#define K_SIZE   "aa626c6f636b5f73697a65"
#define K_MEDIUM "a66d656469756d"
#define K_GROUP  "a967726f75705f696478"

static void every_layout_says_the_same(void **state)
{
	static const char *const first = "S gpu g0 1 2 <-1 b2: 5 6 7 8 l0/ s x0;";
	static const char *const rows[] = {
		/* vLLM before 2026-06: arrays, all fields. */
		BATCH("9c" STORED "920102"
		      "c0"
		      "9405060708"
		      "02"
		      "c0" GPU "c0"
		      "c0"
		      "c0"
		      "c0"
		      "c0"),
		/* Trailing defaults left out. */
		BATCH("97" STORED "920102"
		      "c0"
		      "9405060708"
		      "02"
		      "c0" GPU),
		/* Old SGLang: no medium. */
		BATCH("96" STORED "920102"
		      "c0"
		      "9405060708"
		      "02"
		      "c0"),
		BATCH("95" STORED "920102"
		      "c0"
		      "9405060708"
		      "02"),
		/* Current SGLang: metadata where vLLM has lora_name. */
		BATCH("98" STORED "920102"
		      "c0"
		      "9405060708"
		      "02"
		      "c0" GPU "80"),
		/* Hashes as bytes: the last 8 count. */
		BATCH("95" STORED "92"
		      "c408"
		      "0000000000000001"
		      "c40a"
		      "ffff0000000000000002"
		      "c0"
		      "9405060708"
		      "02"),
		/* With a data-parallel rank, and without one; wide integers; an integer ts. */
		"93"
		"01"
		"91"
		"95" STORED "92"
		"cf0000000000000001"
		"d30000000000000002"
		"c0"
		"94"
		"cd0005"
		"06"
		"07"
		"08"
		"02"
		"03",
		"93"
		"cb3ff8000000000000"
		"91"
		"95" STORED "920102"
		"c0"
		"9405060708"
		"02"
		"c0",
		/* vLLM since 2026-06: maps inside, in any order; unknown fields are skipped. */
		BATCH("86" K_TYPE STORED K_HASHES "920102" K_PARENT "c0" K_TOKENS "9405060708" K_SIZE
		      "02" K_MEDIUM GPU),
		BATCH("86" K_SIZE "02" K_TOKENS "9405060708"
		      "a16e"
		      "810102" K_HASHES "920102" K_TYPE STORED K_MEDIUM "c0"),
		/* A map outside. */
		"83"
		"a27473"
		"01"
		"a66576656e7473"
		"91"
		"95" STORED "920102"
		"c0"
		"9405060708"
		"02"
		"b2646174615f706172616c6c656c5f72616e6b"
		"c0",
	};
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		struct kvevent_batch b;
		struct cgn_err err = {0};
		assert_string_equal(read_hex(rows[i], &b, &err), first);
		assert_string_equal(err.msg, "");
		assert_int_equal(b.events, 1);
		assert_int_equal(b.unknown_fields, i == 9);
		assert_int_equal(b.dp_rank, i == 6 ? 3 : -1);
	}
}

static void fields_mean_what_they_say(void **state)
{
	static const struct {
		const char *hex, *text;
	} rows[] = {
		/* A parent of 2^64-1 prints as -1. */
		{BATCH("95" STORED "9101"
		       "cfffffffffffffffff"
		       "9105"
		       "01"),
			"S gpu g0 1 <-1 b1: 5 l0/ s x0;"},
		/* A signed hash. */
		{BATCH("95" STORED "91ff"
		       "09"
		       "9105"
		       "01"),
			"S gpu g0 18446744073709551615 <9 b1: 5 l0/ s x0;"},
		{BATCH("97" STORED "9101"
		       "09"
		       "9105"
		       "01"
		       "07"
		       "a3637075"),
			"S ram g0 1 <9 b1: 5 l7/ s x0;"},
		{BATCH("98" STORED "9101"
		       "09"
		       "9105"
		       "01"
		       "07" GPU "a16c"),
			"S gpu g0 1 <9 b1: 5 l7/l s x0;"},
		/* SGLang has the LoRA's name here. */
		{BATCH("96" STORED "9101"
		       "09"
		       "9105"
		       "01"
		       "a16c"),
			"S gpu g0 1 <9 b1: 5 l0/l s x0;"},
		{BATCH("98" STORED "9101"
		       "09"
		       "9105"
		       "01"
		       "c0" GPU "81"
		       "aa63616368655f73616c74"
		       "a173"),
			"S gpu g0 1 <9 b1: 5 l0/ ss x0;"},
		/* Metadata that is not known stands in front of the salt. */
		{BATCH("98" STORED "9101"
		       "09"
		       "9105"
		       "01"
		       "c0" GPU "82"
		       "a178"
		       "a179"
		       "aa63616368655f73616c74"
		       "a173"),
			"S gpu g0 1 <9 b1: 5 l0/ ss x0;"},
		/* A map with a member that is not known in front of the events, and with other events behind them. */
		{"83"
		 "a3666f6f"
		 "01"
		 "a66576656e7473"
		 "9195" STORED "9101"
		 "09"
		 "9105"
		 "01"
		 "a66576656e7473"
		 "9191" CLEARED,
			"S gpu g0 1 <9 b1: 5 l0/ s x0;"},
		{BATCH("9a" STORED "9101"
		       "09"
		       "9105"
		       "01"
		       "c0" GPU "c0"
		       "91"
		       "91a161"
		       "02"),
			"S gpu g2 1 <9 b1: 5 l0/ s x4;"},
		{BATCH("9b" STORED "9101"
		       "09"
		       "9105"
		       "01"
		       "c0" GPU "c0"
		       "c0"
		       "01"
		       "ae66756c6c5f617474656e74696f6e"),
			"S gpu g1 1 <9 b1: 5 l0/ s x0;"},
		{BATCH("9b" STORED "9101"
		       "09"
		       "9105"
		       "01"
		       "c0" GPU "c0"
		       "c0"
		       "01"
		       "ae736c6964696e675f77696e646f77"),
			"S gpu g1 1 <9 b1: 5 l0/ s x0 windowed;"},
		{BATCH("9b" STORED "9101"
		       "09"
		       "9105"
		       "01"
		       "c0" GPU "c0"
		       "c0"
		       "01"
		       "a56d616d6261"),
			"S gpu g1 1 <9 b1: 5 l0/ s x0 windowed;"},
		{BATCH("9c" STORED "9101"
		       "09"
		       "9105"
		       "01"
		       "c0" GPU "c0"
		       "c0"
		       "01"
		       "c0"
		       "cd0400"),
			"S gpu g1 1 <9 b1: 5 l0/ s x0 windowed;"},
		/* A window keeps one of two blocks, or none. */
		{BATCH("9c" STORED "9101"
		       "09"
		       "920506"
		       "01"
		       "c0" GPU "c0"
		       "91c0"
		       "01"
		       "ae736c6964696e675f77696e646f77"
		       "cc80"),
			"S gpu g1 1 <9 b1: 5 6 l0/ s x2 windowed;"},
		{BATCH("86" K_TYPE STORED K_HASHES "90" K_TOKENS "9105" K_SIZE "01" K_GROUP "01"
		       "bc"
		       "6b765f63616368655f737065635f736c6964696e675f77696e646f77"
		       "cc80"),
			"S gpu g1 <-1 b1: 5 l0/ s x0 windowed;"},
		{BATCH("9d" STORED "9101"
		       "09"
		       "9105"
		       "01"
		       "c0"
		       "a753544f52414745"
		       "c0"
		       "c0"
		       "c0"
		       "c0"
		       "c0"
		       "a54c4f43414c"),
			"S ssd g0 1 <9 b1: 5 l0/ s x0;"},
		{BATCH("9d" STORED "9101"
		       "09"
		       "9105"
		       "01"
		       "c0"
		       "a753544f52414745"
		       "c0"
		       "c0"
		       "c0"
		       "c0"
		       "c0"
		       "a652454d4f5445"),
			"S remote g0 1 <9 b1: 5 l0/ s x0;"},
		/* A medium of its own. */
		{BATCH("97" STORED "9101"
		       "09"
		       "9105"
		       "01"
		       "c0"
		       "a26f73"),
			"S remote g0 1 <9 b1: 5 l0/ s x0;"},
		/* An offloaded block, by name. */
		{BATCH("97" STORED "9101"
		       "c0"
		       "90"
		       "00"
		       "c0"
		       "a3435055"),
			"S ram g0 1 <-1 b0: l0/ s x0;"},
		{BATCH("92" REMOVED "920102"), "R gpu g0 1 2;"},
		{BATCH("93" REMOVED "9101"
		       "a3435055"),
			"R ram g0 1;"},
		{BATCH("94" REMOVED "9101"
		       "c0"
		       "03"),
			"R gpu g3 1;"},
		{BATCH("84" K_TYPE REMOVED K_HASHES "9101" K_MEDIUM GPU K_GROUP "01"), "R gpu g1 1;"},
		{BATCH("91" CLEARED), "C;"},
		{BATCH("81" K_TYPE CLEARED), "C;"},
		{"9201"
		 "92"
		 "91" CLEARED "92" REMOVED "90",
			"C;R gpu g0;"},
		{"920190", ""},
		{BATCH("92a3"
		       "4e6577"
		       "01"),
			""}, /* An event type of a later version. */
		{BATCH("82a16101" K_TYPE "a34e6577"), ""},
	};
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		struct kvevent_batch b;
		struct cgn_err err = {0};
		assert_string_equal(read_hex(rows[i].hex, &b, &err), rows[i].text);
		assert_string_equal(err.msg, "");
		assert_int_equal(b.unknown_events, i >= CGN_COUNT(rows) - 2);
	}
}

static void what_is_wrong_is_named(void **state)
{
	static const struct {
		const char *hex, *what;
	} rows[] = {
		{"", "ends where a value is due, at byte 0"},
		{"c0", "an array was expected, at byte 0"},
		{"9101", "a batch without events, at byte 1"},
		{"81a2747301", "a batch without events"},
		{"92a161"
		 "90",
			"a number was expected, at byte 1"},
		{"9201"
		 "9101",
			"an array was expected, at byte 3"},
		{"9201"
		 "9190",
			"an event without a type, at byte 4"},
		{"9201"
		 "9180",
			"an event without a type, at byte 4"},
		{BATCH("91" STORED), "a BlockStored without block_hashes"},
		{BATCH("91" REMOVED), "a BlockRemoved without block_hashes"},
		{BATCH("95" STORED "9101"
		       "c0"
		       "9105"
		       "02"),
			"a BlockStored whose token_ids are not block_size for each hash"},
		{BATCH("95" STORED "91"
		       "a161"
		       "c0"
		       "9105"
		       "01"),
			"an integer was expected"},
		{BATCH("95" STORED "91"
		       "c400"
		       "c0"
		       "9105"
		       "01"),
			"a hash of no bytes"},
		{BATCH("95" STORED "9101"
		       "c0"
		       "91ff"
		       "01"),
			"a negative number"},
		{BATCH("95" STORED "9101"
		       "c0"
		       "91cf0000000100000000"
		       "01"),
			"a number over 32 bits"},
		{BATCH("9a" STORED "9101"
		       "c0"
		       "9105"
		       "01"
		       "c0"
		       "c0"
		       "c0"
		       "c0"
		       "20"),
			"a group_idx over 31"},
		{BATCH("99" STORED "9101"
		       "c0"
		       "9105"
		       "01"
		       "c0"
		       "c0"
		       "c0"
		       "92c0c0"),
			"extra_keys that are not one for each hash"},
		{BATCH("99" STORED "9101"
		       "c0"
		       "9105"
		       "01"
		       "c0"
		       "c0"
		       "c0"
		       "9101"),
			"an entry of extra_keys is not an array"},
		{BATCH("99" STORED "9101"
		       "c0"
		       "9105"
		       "01"
		       "c0"
		       "c0"
		       "c0"
		       "01"),
			"extra_keys is not an array"},
		{BATCH("97" STORED "9101"
		       "c0"
		       "9105"
		       "01"
		       "c0"
		       "01"),
			"a string was expected"},
		{BATCH("95" STORED "dd00ffffff"
		       "c0"
		       "90"
		       "01"),
			"a container of more elements than there are bytes"},
		{BATCH("91" CLEARED) "00", "more bytes behind the batch"},
	};
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		struct kvevent_batch b;
		struct cgn_err err = {0};
		(void)read_hex(rows[i].hex, &b, &err);
		assert_int_equal(err.code, CGN_INVALID);
		if (strstr(err.msg, rows[i].what) == NULL)
			fail_msg("row %zu: \"%s\", not \"%s\"", i, err.msg, rows[i].what);
		assert_non_null(strstr(err.msg, "at byte"));
	}
}

/* An event of a later engine is stepped over, whatever is in it, and the events around it count. */
static void unknown_events_are_stepped_over(void **state)
{
	static const char *const unknown[] = {
		"91a3"
		"4e6577", /* ["New"] */
		"94a3"
		"4e6577"
		"9301c0a161"
		"81a16101"
		"c2", /* ["New", [1, null, "a"], {"a": 1}, false] */
		"82" K_TYPE "a3"
		"4e6577"
		"a161"
		"9201a162", /* {"type": "New", "a": [1, "b"]} */
		"82a161"
		"9201a162" K_TYPE "a3"
		"4e6577", /* the same, with the type at the end */
	};
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(unknown); i++) {
		struct kvevent_batch b;
		struct cgn_err err = {0};
		char hex[1000];
		(void)snprintf(hex, sizeof hex,
			"92cb3ff800000000000093"
			"92" REMOVED "9107"
			"%s"
			"91" CLEARED,
			unknown[i]);
		const char *text = read_hex(hex, &b, &err);
		if (err.code != CGN_FINE)
			fail_msg("row %zu: %s", i, err.msg);
		assert_string_equal(text, "R gpu g0 7;C;");
		assert_int_equal(b.events, 2);
		assert_int_equal(b.unknown_events, 1);
	}
}

/* No prefix of a batch is a batch. */
static void what_is_cut_is_an_error(void **state)
{
	struct cgn_buf bytes = {0};
	struct kvevent_batch b;
	struct cgn_err err;
	(void)state;
	assert_true(hex_get(&bytes,
		cgn_str_of(BATCH("9c" STORED "920102"
				 "c0"
				 "9405060708"
				 "02"
				 "c0" GPU "a161"
				 "92c091a161"
				 "c0"
				 "c0"
				 "c0"))));
	assert_true(cgn_ok(kvevent_batch_read(cgn_buf_view(&bytes), NULL, NULL, &b, &err)));
	for (size_t n = 0; n < bytes.n; n++)
		assert_false(cgn_ok(kvevent_batch_read((struct cgn_str){bytes.p, n}, NULL, NULL, &b, &err)));
	cgn_buf_fini(&bytes);
}

static void extra_keys_by_their_places(void **state)
{
	static const struct {
		const char *hex, *lora;
		bool first;
		const char *salt, *foreign; /* In hex. */
	} rows[] = {
		{"c0", "", true, "", ""}, {"90", "", true, "", ""}, {"91a173", "", true, "s", ""},
		{"91a173", "", false, "", "a173"}, /* an image's hash */
		{"91a16c", "l", true, "", ""}, {"91a16c", "l", false, "", ""},
		{"92a16ca173", "l", true, "s", ""},
		{"92a16da173", "", true, "s", "a16da173"}, /* an image and a salt */
		{"9192a16d05", "", true, "", "92a16d05"},  /* an image's hash and its offset */
		{"91c4020102", "", true, "", "c4020102"},  /* prompt embeddings */
	};
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		struct cgn_buf bytes = {0}, foreign = {0};
		struct kvevent_extra x;
		assert_true(hex_get(&bytes, cgn_str_of(rows[i].hex)));
		struct msgpack_in in = msgpack_in_of(cgn_buf_view(&bytes));
		kvevent_extra_next(&in, cgn_str_of(rows[i].lora), rows[i].first, &x);
		assert_true(msgpack_end(&in));
		assert_true(cgn_str_is(x.salt, rows[i].salt));
		hex_put(&foreign, x.foreign);
		assert_string_equal(cgn_buf_z(&foreign), rows[i].foreign);
		cgn_buf_fini(&bytes);
		cgn_buf_fini(&foreign);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_layout_says_the_same),
		cmocka_unit_test(fields_mean_what_they_say),
		cmocka_unit_test(what_is_wrong_is_named),
		cmocka_unit_test(unknown_events_are_stepped_over),
		cmocka_unit_test(what_is_cut_is_an_error),
		cmocka_unit_test(extra_keys_by_their_places),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
