/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/json/json.h"

#define TEXT(lit) {lit, sizeof(lit) - 1}

/* The texts that JSONTestSuite calls "must accept". */
static const struct cgn_str accepted[] = {
	TEXT("[[]   ]"),
	TEXT("[]"),
	TEXT("[\"\"]"),
	TEXT("[\"a\"]"),
	TEXT("[false]"),
	TEXT("[null, 1, \"1\", {}]"),
	TEXT("[null]"),
	TEXT("[1\n]"),
	TEXT(" [1]"),
	TEXT("[1,null,null,null,2]"),
	TEXT("[2] "),
	TEXT("[0e+1]"),
	TEXT("[0e1]"),
	TEXT("[ 4]"),
	TEXT("[-0.000000000000000000000000000000000000000000000000000000000000000000000000000001]\n"),
	TEXT("[20e1]"),
	TEXT("[123e65]"),
	TEXT("[-0]"),
	TEXT("[-123]"),
	TEXT("[-1]"),
	TEXT("[1E22]"),
	TEXT("[1E-2]"),
	TEXT("[1E+2]"),
	TEXT("[123e45]"),
	TEXT("[123.456e78]"),
	TEXT("[1e-2]"),
	TEXT("[1e+2]"),
	TEXT("[123]"),
	TEXT("[123.456789]"),
	TEXT("{\"asd\":\"sdf\", \"dfg\":\"fgh\"}"),
	TEXT("{\"asd\":\"sdf\"}"),
	TEXT("{\"a\":\"b\",\"a\":\"c\"}"),
	TEXT("{\"a\":\"b\",\"a\":\"b\"}"),
	TEXT("{}"),
	TEXT("{\"\":0}"),
	TEXT("{\"foo\\u0000bar\": 42}"),
	TEXT("{ \"min\": -1.0e+28, \"max\": 1.0e+28 }"),
	TEXT("{\"x\":[{\"id\": \"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\"}], \"id\": \"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\"}"),
	TEXT("{\"a\":[]}"),
	TEXT("{\"title\":\"\\u041f\\u043e\\u043b\\u0442\\u043e\\u0440\\u0430\" }"),
	TEXT("{\n\"a\": \"b\"\n}"),
	TEXT("[\"\\u0060\\u012a\\u12AB\"]"),
	TEXT("[\"\\uD801\\udc37\"]"),
	TEXT("[\"\\ud83d\\ude39\\ud83d\\udc8d\"]"),
	TEXT("[\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"]"),
	TEXT("[\"\\\\u0000\"]"),
	TEXT("[\"\\\"\"]"),
	TEXT("[\"a/*b*/c/*d//e\"]"),
	TEXT("[\"\\\\a\"]"),
	TEXT("[\"\\\\n\"]"),
	TEXT("[\"\\u0012\"]"),
	TEXT("[\"\\uFFFF\"]"),
	TEXT("[\"asd\"]"),
	TEXT("[ \"asd\"]"),
	TEXT("[\"\\uDBFF\\uDFFF\"]"),
	TEXT("[\"new\\u00A0line\"]"),
	TEXT("[\"\xf4\x8f\xbf\xbf\"]"),
	TEXT("[\"\xef\xbf\xbf\"]"),
	TEXT("[\"\\u0000\"]"),
	TEXT("[\"\\u002c\"]"),
	TEXT("[\"\xcf\x80\"]"),
	TEXT("[\"\xf0\x9b\xbf\xbf\"]"),
	TEXT("[\"asd \"]"),
	TEXT("\" \""),
	TEXT("[\"\\uD834\\uDd1e\"]"),
	TEXT("[\"\\u0821\"]"),
	TEXT("[\"\\u0123\"]"),
	TEXT("[\"\xe2\x80\xa8\"]"),
	TEXT("[\"\xe2\x80\xa9\"]"),
	TEXT("[\"\\u0061\\u30af\\u30EA\\u30b9\"]"),
	TEXT("[\"new\\u000Aline\"]"),
	TEXT("[\"\x7f\"]"),
	TEXT("[\"\\uA66D\"]"),
	TEXT("[\"\\u005C\"]"),
	TEXT("[\"\xe2\x8d\x82\xe3\x88\xb4\xe2\x8d\x82\"]"),
	TEXT("[\"\\u200B\"]"),
	TEXT("[\"\\u2064\"]"),
	TEXT("[\"\\uFDD0\"]"),
	TEXT("[\"\\uFFFE\"]"),
	TEXT("[\"\\u0022\"]"),
	TEXT("[\"\xe2\x82\xac\xf0\x9d\x84\x9e\"]"),
	TEXT("[\"a\x7f"
	     "a\"]"),
	TEXT("false"),
	TEXT("42"),
	TEXT("-0.1"),
	TEXT("null"),
	TEXT("\"asd\""),
	TEXT("true"),
	TEXT("\"\""),
	TEXT("[\"a\"]\n"),
	TEXT("[true]"),
	TEXT(" [] "),
	TEXT("\t\r\n 1 \t\r\n"),
};

/* The texts that JSONTestSuite calls "must reject", and what RFC 8259 leaves open and this reader refuses:
 * surrogates, encodings, a byte order mark. */
static const struct cgn_str rejected[] = {
	TEXT("[1 true]"),
	TEXT("[a\xe5]"),
	TEXT("[\"\": 1]"),
	TEXT("[\"\"],"),
	TEXT("[,1]"),
	TEXT("[1,,2]"),
	TEXT("[\"x\",,]"),
	TEXT("[\"x\"]]"),
	TEXT("[\"\",]"),
	TEXT("[\"x\""),
	TEXT("[x"),
	TEXT("[3[4]]"),
	TEXT("[\xff]"),
	TEXT("[1:2]"),
	TEXT("[,]"),
	TEXT("[-]"),
	TEXT("[   , \"\"]"),
	TEXT("[\"a\",\n4\n,1,"),
	TEXT("[1,]"),
	TEXT("[1,,]"),
	TEXT("[\"\va\"\\f]"),
	TEXT("[*]"),
	TEXT("[\"\""),
	TEXT("[1,"),
	TEXT("[1,\n1\n,1"),
	TEXT("[{}"),
	TEXT("[fals]"),
	TEXT("[nul]"),
	TEXT("[tru]"),
	TEXT("[++1234]"),
	TEXT("[+1]"),
	TEXT("[+Inf]"),
	TEXT("[-01]"),
	TEXT("[-1.0.]"),
	TEXT("[-2.]"),
	TEXT("[-NaN]"),
	TEXT("[.-1]"),
	TEXT("[.2e-3]"),
	TEXT("[0.1.2]"),
	TEXT("[0.3e+]"),
	TEXT("[0.3e]"),
	TEXT("[0.e1]"),
	TEXT("[0E+]"),
	TEXT("[0E]"),
	TEXT("[0e+]"),
	TEXT("[0e]"),
	TEXT("[1.0e+]"),
	TEXT("[1.0e-]"),
	TEXT("[1.0e]"),
	TEXT("[1 000.0]"),
	TEXT("[1eE2]"),
	TEXT("[2.e+3]"),
	TEXT("[2.e-3]"),
	TEXT("[2.e3]"),
	TEXT("[9.e+]"),
	TEXT("[Inf]"),
	TEXT("[NaN]"),
	TEXT("[\xef\xbc\x91]"),
	TEXT("[1+2]"),
	TEXT("[0x1]"),
	TEXT("[0x42]"),
	TEXT("[Infinity]"),
	TEXT("[0e+-1]"),
	TEXT("[-123.123foo]"),
	TEXT("[123\xe5]"),
	TEXT("[1e1\xe5]"),
	TEXT("[0\xe5]\n"),
	TEXT("[-Infinity]"),
	TEXT("[-foo]"),
	TEXT("[- 1]"),
	TEXT("[-012]"),
	TEXT("[-.123]"),
	TEXT("[-1x]"),
	TEXT("[1ea]"),
	TEXT("[1e\xe5]"),
	TEXT("[1.]"),
	TEXT("[.123]"),
	TEXT("[1.2a-3]"),
	TEXT("[1.8011670033376514H-308]"),
	TEXT("[012]"),
	TEXT("[\"x\", truth]"),
	TEXT("{[: \"x\"}\n"),
	TEXT("{\"x\", null}"),
	TEXT("{\"x\"::\"b\"}"),
	TEXT("{\xf0\x9f\x87\xa8\xf0\x9f\x87\xad}"),
	TEXT("{\"a\":\"a\" 123}"),
	TEXT("{key: 'value'}"),
	TEXT("{\"\xb9\":\"0\",}"),
	TEXT("{\"a\" b}"),
	TEXT("{:\"b\"}"),
	TEXT("{\"a\" \"b\"}"),
	TEXT("{\"a\":"),
	TEXT("{\"a\""),
	TEXT("{1:1}"),
	TEXT("{9999E9999:1}"),
	TEXT("{null:null,null:null}"),
	TEXT("{\"id\":0,,,,,}"),
	TEXT("{'a':0}"),
	TEXT("{\"id\":0,}"),
	TEXT("{\"a\":\"b\"}/**/"),
	TEXT("{\"a\":\"b\"}/**//"),
	TEXT("{\"a\":\"b\"}//"),
	TEXT("{\"a\":\"b\"}/"),
	TEXT("{\"a\":\"b\",,\"c\":\"d\"}"),
	TEXT("{a: \"b\"}"),
	TEXT("{\"a\":\"a"),
	TEXT("{ \"foo\" : \"bar\", \"a\" }"),
	TEXT("{\"a\":\"b\"}#"),
	TEXT(" "),
	TEXT(""),
	TEXT("[\"\\uD800\\\"]"),
	TEXT("[\"\\uD800\\u\"]"),
	TEXT("[\"\\uD800\\u1\"]"),
	TEXT("[\"\\uD800\\u1x\"]"),
	TEXT("[\xc3\xa9]"),
	TEXT("[\"\\\0\"]"),
	TEXT("[\"\\x00\"]"),
	TEXT("[\"\\\\\\\"]"),
	TEXT("[\"\\\t\"]"),
	TEXT("[\"\\\xf0\x9f\x8c\x80\"]"),
	TEXT("[\"\\\"]"),
	TEXT("[\"\\u00A\"]"),
	TEXT("[\"\\uD834\\uDd\"]"),
	TEXT("[\"\\uD800\\uD800\\x\"]"),
	TEXT("[\"\\u\xe5\"]"),
	TEXT("[\"\\a\"]"),
	TEXT("[\"\\uqqqq\"]"),
	TEXT("[\"\\\xe5\"]"),
	TEXT("[\\u0020\"asd\"]"),
	TEXT("[\\n]"),
	TEXT("\""),
	TEXT("['single quote']"),
	TEXT("abc"),
	TEXT("[\"\\"),
	TEXT("[\"a\0a\"]"),
	TEXT("[\"new\nline\"]"),
	TEXT("[\"\t\"]"),
	TEXT("\"\\UA66D\""),
	TEXT("\"\"x"),
	TEXT("[\xe2\x81\xa0]"),
	TEXT("\xef\xbb\xbf"),
	TEXT("<.>"),
	TEXT("[<null>]"),
	TEXT("[1]x"),
	TEXT("[1]]"),
	TEXT("[\"asd]"),
	TEXT("a\xc3\xa5"),
	TEXT("[True]"),
	TEXT("1]"),
	TEXT("{\"x\": true,"),
	TEXT("[][]"),
	TEXT("]"),
	TEXT("\xef\xbb{}"),
	TEXT("\xe5"),
	TEXT("["),
	TEXT("[\0]"),
	TEXT("2@"),
	TEXT("{}}"),
	TEXT("{\"\":"),
	TEXT("{\"a\":/*comment*/\"b\"}"),
	TEXT("{\"a\": true} \"x\""),
	TEXT("['"),
	TEXT("[,"),
	TEXT("[{"),
	TEXT("[\"a"),
	TEXT("[\"a\""),
	TEXT("{"),
	TEXT("{]"),
	TEXT("{,"),
	TEXT("{["),
	TEXT("{\"a"),
	TEXT("{'a'"),
	TEXT("[\"\\{[\"\\{[\"\\{[\"\\{"),
	TEXT("\xe9"),
	TEXT("*"),
	TEXT("{\"a\":\"b\"}#{}"),
	TEXT("[\\u000A\"\"]"),
	TEXT("[1"),
	TEXT("[ false, nul"),
	TEXT("[ true, fals"),
	TEXT("[ false, tru"),
	TEXT("{\"asd\":\"asd\""),
	TEXT("[\f]"),
	TEXT("\xef\xbb\xbf{}"),
	TEXT("[\"\\uDADA\"]"),
	TEXT("[\"\\uD888\\u1234\"]"),
	TEXT("[\"\\uD800\\n\"]"),
	TEXT("[\"\\uDd1ea\"]"),
	TEXT("[\"\\uD800\\uD800\\n\"]"),
	TEXT("[\"\\ud800\"]"),
	TEXT("[\"\\ud800abc\"]"),
	TEXT("[\"\xff\"]"),
	TEXT("[\"\\uDd1e\\uD834\"]"),
	TEXT("[\"\xe9\"]"),
	TEXT("[\"\xed\xa0\x80\"]"),
	TEXT("[\"\xe6\x97\xa5\xd1\x88\xfa\"]"),
	TEXT("[\"\xf4\xbf\xbf\xbf\"]"),
	TEXT("[\"\xc0\xaf\"]"),
	TEXT("[\"\xfc\x83\xbf\xbf\xbf\xbf\"]"),
	TEXT("[\"\x81\"]"),
	TEXT("[\"\xe0\xff\"]"),
	TEXT("[\0\"\0\xe9\0\"\0]\0"),
	TEXT("[\"\xc2\"]"),
	TEXT("nulll"),
	TEXT("00"),
	TEXT("-"),
	TEXT("1e"),
	TEXT("\v1"),
	TEXT("\xc2\xa0"
	     "1"),
};

/* Parse a copy of exactly |text|'s size, so that a sanitizer sees a read beyond its end. */
static bool json_parses(struct cgn_str text, struct cgn_err *err)
{
	char *copy = malloc(text.n > 0 ? text.n : 1);
	assert_non_null(copy);
	memcpy(copy, text.p, text.n);
	struct json_val v;
	bool ok = cgn_ok(json_parse((struct cgn_str){copy, text.n}, &v, NULL, err));
	free(copy);
	return ok;
}

static void what_must_be_accepted_is(void **state)
{
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(accepted); i++) {
		struct cgn_err err = {0};
		if (!json_parses(accepted[i], &err))
			fail_msg("refused %.*s: %s", CGN_STR_ARG(accepted[i]), err.msg);
	}
}

static void what_must_be_rejected_is(void **state)
{
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(rejected); i++) {
		struct cgn_err err = {0};
		if (json_parses(rejected[i], &err))
			fail_msg("accepted %.*s", CGN_STR_ARG(rejected[i]));
		assert_int_equal(err.code, CGN_INVALID);
		assert_true(strncmp(err.msg, "line ", 5) == 0);
	}
}

/* Strings of each length around the scan width, with a fault at each place. */
static void each_place_in_a_block_is_looked_at(void **state)
{
	(void)state;
	char text[80];
	for (size_t n = 0; n < 70; n++) {
		memset(text, 'x', sizeof text);
		text[0] = text[n + 1] = '"';
		assert_true(json_parses((struct cgn_str){text, n + 2}, NULL));
		assert_false(json_parses((struct cgn_str){text, n + 1}, NULL));
		for (size_t at = 1; at <= n; at++) {
			const char faults[] = {'\n', '"', '\\', '\0', '\x1f', (char)0x80, (char)0xff};
			for (size_t f = 0; f < sizeof faults; f++) {
				text[at] = faults[f];
				assert_false(json_parses((struct cgn_str){text, n + 2}, NULL));
			}
			text[at] = '\x7f';
			assert_true(json_parses((struct cgn_str){text, n + 2}, NULL));
			text[at] = 'x';
		}
	}
}

static void nesting_is_bounded(void **state)
{
	(void)state;
	char text[2 * JSON_MAX_DEPTH + 2];
	memset(text, '[', JSON_MAX_DEPTH + 1);
	memset(text + JSON_MAX_DEPTH + 1, ']', JSON_MAX_DEPTH + 1);
	assert_true(json_parses((struct cgn_str){text + 1, 2 * JSON_MAX_DEPTH}, NULL));
	struct cgn_err err = {0};
	assert_false(json_parses((struct cgn_str){text, sizeof text}, &err));
	assert_string_equal(err.msg, "line 1 column 129: nested deeper than 128 levels");
	text[JSON_MAX_DEPTH + 1] = '}';
	assert_false(json_parses((struct cgn_str){text + 1, 2 * JSON_MAX_DEPTH}, NULL));
}

static void errors_say_where(void **state)
{
	(void)state;
	struct cgn_err err = {0};
	size_t offset = 0;
	struct json_val v;
	assert_false(cgn_ok(json_parse(CGN_STR("{\n  \"\xc3\xa4\xe2\x82\xac\": tru }"), &v, &offset, &err)));
	assert_string_equal(err.msg, "line 2 column 9: a value was expected here");
	assert_int_equal(offset, 13);
	assert_false(cgn_ok(json_parse(CGN_STR("[\"abc\xff\"]"), &v, &offset, &err)));
	assert_string_equal(err.msg, "line 1 column 6: a string that is not UTF-8");
	assert_int_equal(offset, 5);
	assert_false(cgn_ok(json_parse((struct cgn_str){NULL, 0}, &v, &offset, &err)));
	assert_string_equal(err.msg, "line 1 column 1: the text ends too early");
}

static struct json_val json_parsed(const char *text)
{
	struct json_val v;
	assert_true(cgn_ok(json_parse(cgn_str_of(text), &v, NULL, NULL)));
	return v;
}

static void walkers_see_what_is_there(void **state)
{
	(void)state;
	struct json_val
		doc = json_parsed(
			" {\"a\" : [1, \"]}\\\"\" , {\"b\":[[],{}]},null,true ], \"k\\u0065y\":\"v\\n\" , \"a2\":{}, \"n\": -1} "),
		list, e;
	assert_int_equal(doc.type, JSON_OBJECT);
	assert_true(json_get(doc, "a", &list));
	const char *want[] = {"1", "\"]}\\\"\"", "{\"b\":[[],{}]}", "null", "true"};
	const enum json_type types[] = {JSON_NUMBER, JSON_STRING, JSON_OBJECT, JSON_NULL, JSON_BOOL};
	struct json_iter it = json_iter_of(list);
	for (size_t i = 0; i < CGN_COUNT(want); i++) {
		assert_true(json_next_elem(&it, &e));
		assert_true(cgn_str_is(e.raw, want[i]));
		assert_int_equal(e.type, types[i]);
	}
	assert_false(json_next_elem(&it, &e));
	struct cgn_arena a;
	cgn_arena_init(&a, 4096);
	assert_true(cgn_str_is(json_get_str(doc, "key", &a), "v\n"));
	assert_null(json_get_str(doc, "n", &a).p);
	assert_null(json_get_str(doc, "absent", &a).p);
	assert_false(json_get(list, "a", &e));
	assert_true(json_get(doc, "a2", &e));
	it = json_iter_of(e);
	assert_false(json_next_elem(&it, &e));
	assert_int_equal(json_get_u64(doc, "n", 9), 9);
	cgn_arena_fini(&a);
}

static void the_last_of_equal_keys_counts(void **state)
{
	(void)state;
	struct json_val doc = json_parsed("{\"x\":1,\"\\u0078\":2,\"x\\u0000\":3,\"xx\":4}");
	assert_int_equal(json_get_u64(doc, "x", 0), 2);
	assert_int_equal(json_get_u64(doc, "xx", 0), 4);
	assert_int_equal(json_get_u64(doc, "", 9), 9);
}

static void members_that_stand_twice_are_found(void **state)
{
	(void)state;
	static const char *const good[] = {"{}", "[]", "1", "\"x\"", "{\"a\":1,\"b\":{\"a\":1}}",
		"[{\"a\":1},{\"a\":1}]", "{\"a\":[[],[{\"b\":{}}]],\"A\":0}",
		"{\"\":1,\"x\\u0000\":2,\"x\":3}"};
	static const char *const bad[] = {"{\"a\":1,\"a\":1}", "{\"a\":1,\"\\u0061\":1}",
		"[1,[{\"b\":{\"\":1,\"\":2}}]]", "{\"a\":{\"c\":[{\"x\":1},{\"x\":1,\"y\":2,\"x\":3}]}}",
		"{\"a\":1,\"b\":2,\"c\":3,\"d\":4}"};
	for (size_t i = 0; i < CGN_COUNT(good); i++)
		if (!json_is_unique(json_parsed(good[i]), 3))
			fail_msg("%s", good[i]);
	for (size_t i = 0; i < CGN_COUNT(bad); i++)
		if (json_is_unique(json_parsed(bad[i]), 3))
			fail_msg("%s", bad[i]);
	const char *const keys[] = {"b", "a"};
	struct json_val v[2];
	assert_true(json_pick(json_parsed("{\"a\":1,\"c\":2,\"c\":3,\"b\":{\"a\":1}}"), keys, 2, v));
	assert_false(json_pick(json_parsed("{\"a\":1,\"c\":2,\"\\u0061\":3}"), keys, 2, v));
}

static void several_keys_are_picked_in_one_walk(void **state)
{
	(void)state;
	const char *const keys[] = {"b", "absent", "a"};
	struct json_val v[3];
	json_pick(json_parsed("{\"a\":1,\"b\":[2],\"c\":3,\"a\":4}"), keys, CGN_COUNT(keys), v);
	assert_true(cgn_str_is(v[0].raw, "[2]"));
	assert_null(v[1].raw.p);
	assert_true(cgn_str_is(v[2].raw, "4"));
	json_pick(json_parsed("[\"a\"]"), keys, CGN_COUNT(keys), v);
	assert_null(v[0].raw.p);
	assert_null(v[2].raw.p);
}

static void strings_lose_their_escapes(void **state)
{
	(void)state;
	struct cgn_arena a;
	cgn_arena_init(&a, 4096);
	struct json_val v = json_parsed("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e4\\u20AC\\ud83d\\ude00z\"");
	assert_true(cgn_str_is(json_str(v, &a), "\"\\/\b\f\n\r\t\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80z"));
	struct cgn_str nul = json_str(json_parsed("\"a\\u0000b\""), &a);
	assert_int_equal(nul.n, 3);
	assert_memory_equal(nul.p, "a\0b", 3);
	struct json_val plain = json_parsed("\"plain\"");
	assert_ptr_equal(json_str(plain, &a).p, plain.raw.p + 1);
	cgn_arena_fini(&a);
	cgn_arena_init(&a, 0);
	assert_null(json_str(v, &a).p);
	assert_int_equal(json_str(plain, &a).n, 5);
}

static void integers_are_exact_or_refused(void **state)
{
	(void)state;
	const struct {
		const char *text;
		bool ok;
		uint64_t v;
	} rows[] = {
		{"0", true, 0},
		{"-0", true, 0},
		{"1.0", true, 1},
		{"1e3", true, 1000},
		{"1.5e1", true, 15},
		{"1200e-2", true, 12},
		{"18446744073709551615", true, UINT64_MAX},
		{"18446744073709551616", false, 0},
		{"1.8446744073709551615e19", true, UINT64_MAX},
		{"-1", false, 0},
		{"0.5", false, 0},
		{"1e20", false, 0},
		{"1e-1", false, 0},
		{"0e999999999999999999999", true, 0},
		{"1e999999999999999999999", false, 0},
		{"1e-999999999999999999999", false, 0},
		{"0.0000001e7", true, 1},
		{"-0.0", true, 0},
	};
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		uint64_t v = 77;
		if (json_u64(json_parsed(rows[i].text), &v) != rows[i].ok ||
			v != (rows[i].ok ? rows[i].v : 77))
			fail_msg("%s", rows[i].text);
	}
	assert_false(json_u64(json_parsed("\"1\""), &(uint64_t){0}));
}

static void reals_are_what_strtod_says(void **state)
{
	(void)state;
	const char *rows[] = {"0", "-0.0", "0.1", "1e308", "4.9e-324", "2.2250738585072011e-308",
		"9007199254740993", "1e-400",
		"0.1000000000000000055511151231257827021181583404541015625000000000000000000000000000000000000000001"};
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		double got = 7, want = strtod(rows[i], NULL);
		assert_true(json_f64(json_parsed(rows[i]), &got));
		assert_memory_equal(&got, &want, sizeof got);
	}
	assert_false(json_f64(json_parsed("1e400"), &(double){0}));
	assert_false(json_f64(json_parsed("null"), &(double){0}));
}

static void a_number_at_the_end_of_the_text_is_read_alone(void **state)
{
	(void)state;
	char *text = malloc(2); /* no NUL behind it */
	assert_non_null(text);
	memcpy(text, "42", 2);
	struct json_val v;
	double f = 0;
	assert_true(cgn_ok(json_parse((struct cgn_str){text, 2}, &v, NULL, NULL)));
	assert_true(json_f64(v, &f) && f > 41.9 && f < 42.1);
	free(text);
}

static void the_writer_keeps_commas_and_escapes(void **state)
{
	(void)state;
	struct cgn_buf b = {0};
	struct json_out o = json_out_to(&b);
	json_open(&o, '{');
	json_key(&o, "a\"");
	json_open(&o, '[');
	json_put_u64(&o, UINT64_MAX);
	json_put_i64(&o, INT64_MIN);
	json_put_f64(&o, 0.1);
	json_put_f64(&o, 1e300);
	json_put_f64(&o, __builtin_inf());
	json_put_bool(&o, false);
	json_put_null(&o);
	json_open(&o, '{');
	json_close(&o, '}');
	json_put_raw(&o, CGN_STR("[1]"));
	json_close(&o, ']');
	json_key(&o, "s");
	json_put_str(&o, CGN_STR("q\" b\\ n\n \x01 \x0b \x7f \xff\xe2\x82 \xf0\x9f\x98\x80"));
	json_close(&o, '}');
	assert_string_equal(cgn_buf_z(&b),
		"{\"a\\\"\":[18446744073709551615,-9223372036854775808,0.1,1e+300,null,false,null,{},[1]],"
		"\"s\":\"q\\\" b\\\\ n\\n \\u0001 \\u000b \x7f \xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd \xf0\x9f\x98\x80\"}");
	assert_true(cgn_ok(json_parse(cgn_buf_view(&b), &(struct json_val){0}, NULL, NULL)));
	cgn_buf_fini(&b);
}

static void doubles_read_back(void **state)
{
	(void)state;
	const double rows[] = {0.1, 1.0 / 3, 5e-324, 1.7976931348623157e308, 123456789.125, -2.5e-7,
		9007199254740993.0};
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		struct cgn_buf b = {0};
		struct json_out o = json_out_to(&b);
		json_put_f64(&o, rows[i]);
		double again = 0;
		assert_true(json_f64(json_parsed(cgn_buf_z(&b)), &again));
		assert_memory_equal(&again, &rows[i], sizeof again);
		cgn_buf_fini(&b);
	}
}

/* The reader returns what the writer escaped, for any length and any bytes. */
static void any_text_survives_writing_and_reading(void **state)
{
	(void)state;
	uint32_t seed = 1;
	for (int round = 0; round < 500; round++) {
		char text[100];
		size_t n = (seed >> 8) % sizeof text;
		for (size_t i = 0; i < n; i++) {
			seed = seed * 1664525 + 1013904223;
			text[i] = (char)(seed >> 24 & 0x7f);
		}
		seed = seed * 1664525 + 1013904223;
		struct cgn_buf b = {0}, back = {0};
		struct json_out o = json_out_to(&b);
		json_put_str(&o, (struct cgn_str){text, n});
		struct json_val v;
		assert_true(cgn_ok(json_parse(cgn_buf_view(&b), &v, NULL, NULL)));
		json_str_to(v, &back);
		assert_true(cgn_str_eq(cgn_buf_view(&back), (struct cgn_str){text, n}));
		cgn_buf_fini(&b);
		cgn_buf_fini(&back);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_must_be_accepted_is),
		cmocka_unit_test(what_must_be_rejected_is),
		cmocka_unit_test(each_place_in_a_block_is_looked_at),
		cmocka_unit_test(nesting_is_bounded),
		cmocka_unit_test(errors_say_where),
		cmocka_unit_test(walkers_see_what_is_there),
		cmocka_unit_test(the_last_of_equal_keys_counts),
		cmocka_unit_test(members_that_stand_twice_are_found),
		cmocka_unit_test(several_keys_are_picked_in_one_walk),
		cmocka_unit_test(strings_lose_their_escapes),
		cmocka_unit_test(integers_are_exact_or_refused),
		cmocka_unit_test(reals_are_what_strtod_says),
		cmocka_unit_test(a_number_at_the_end_of_the_text_is_read_alone),
		cmocka_unit_test(the_writer_keeps_commas_and_escapes),
		cmocka_unit_test(doubles_read_back),
		cmocka_unit_test(any_text_survives_writing_and_reading),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
