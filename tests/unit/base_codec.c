/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/codec/codec.h"
#include "base/core/err.h"

typedef void (*put_fn)(struct cgn_buf *out, struct cgn_str bytes);

static void expect_encoded(put_fn put, struct cgn_str bytes, const char *text)
{
	struct cgn_buf b = {0};
	put(&b, bytes);
	assert_string_equal(cgn_buf_z(&b), text);
	cgn_buf_fini(&b);
}

static void expect_refused(struct cgn_str text)
{
	struct cgn_buf b = {0};
	cgn_buf_putz(&b, "kept");
	assert_false(hex_get(&b, text));
	assert_true(cgn_str_is(cgn_buf_view(&b), "kept"));
	assert_false(b.bad);
	cgn_buf_fini(&b);
}

static void the_vectors_of_rfc_4648_hold(void **state)
{
	(void)state;
	const char *rows[][3] = {{"", "", ""}, {"f", "Zg==", "66"}, {"fo", "Zm8=", "666f"},
		{"foo", "Zm9v", "666f6f"}, {"foob", "Zm9vYg==", "666f6f62"},
		{"fooba", "Zm9vYmE=", "666f6f6261"}, {"foobar", "Zm9vYmFy", "666f6f626172"}};
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		expect_encoded(base64_put, cgn_str_of(rows[i][0]), rows[i][1]);
		expect_encoded(hex_put, cgn_str_of(rows[i][0]), rows[i][2]);
	}
	expect_encoded(base64_put, CGN_STR("\xfb\xff\xfe\x00"), "+//+AA==");
	expect_encoded(base64url_put, CGN_STR("\xfb\xff\xfe\x00"), "-__-AA");
	expect_encoded(base64url_put, CGN_STR("fo"), "Zm8");
}

static void each_byte_survives_hex(void **state)
{
	(void)state;
	char bytes[256];
	for (size_t i = 0; i < sizeof bytes; i++)
		bytes[i] = (char)i;
	struct cgn_buf b = {0}, back = {0};
	hex_put(&b, (struct cgn_str){bytes, sizeof bytes});
	assert_true(hex_get(&back, cgn_buf_view(&b)));
	assert_true(cgn_str_eq(cgn_buf_view(&back), (struct cgn_str){bytes, sizeof bytes}));
	cgn_buf_fini(&b);
	cgn_buf_fini(&back);
}

static void hex_takes_both_cases_and_nothing_else(void **state)
{
	(void)state;
	struct cgn_buf b = {0};
	assert_true(hex_get(&b, CGN_STR("")));
	assert_int_equal(b.n, 0);
	assert_true(hex_get(&b, CGN_STR("aAfF09")));
	assert_true(cgn_str_is(cgn_buf_view(&b), "\xaa\xff\x09"));
	cgn_buf_fini(&b);
	expect_refused(CGN_STR("a"));
	expect_refused(CGN_STR("0g"));
	expect_refused(CGN_STR("aa g0"));
	expect_refused(CGN_STR("0x00"));
}

static void a_full_buffer_gets_nothing(void **state)
{
	(void)state;
	struct cgn_buf b = {.limit = 3};
	assert_false(hex_get(&b, CGN_STR("00000000")));
	assert_true(b.bad);
	assert_int_equal(b.n, 0);
	cgn_buf_fini(&b);
}

static void percents_become_bytes(void **state)
{
	(void)state;
	static const char *const rows[][2] = {{"", ""}, {"abc", "abc"}, {"a%2Fb", "a/b"}, {"%2f", "/"},
		{"%41%42", "AB"}, {"100%", "100%"}, {"%4", "%4"}, {"%zz%41", "%zzA"}, {"%%41", "%A"}};
	char out[16];
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		size_t n = percent_get(out, cgn_str_of(rows[i][0]));
		assert_true(cgn_str_is((struct cgn_str){out, n}, rows[i][1]));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(percents_become_bytes),
		cmocka_unit_test(the_vectors_of_rfc_4648_hold),
		cmocka_unit_test(each_byte_survives_hex),
		cmocka_unit_test(hex_takes_both_cases_and_nothing_else),
		cmocka_unit_test(a_full_buffer_gets_nothing),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
