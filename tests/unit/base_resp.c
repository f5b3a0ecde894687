/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/core/err.h"
#include "base/resp/resp.h"

static struct resp_value value_of(const char *text)
{
	struct cgn_str rest = cgn_str_of(text);
	struct resp_value v = {0};
	const char *why = NULL;
	if (resp_take(&rest, &v, &why) != RESP_GOT)
		fail_msg("\"%s\": %s", text, why);
	assert_int_equal(rest.n, 0);
	return v;
}

static void each_type_is_read(void **state)
{
	(void)state;
	struct resp_value v = value_of("+OK\r\n");
	assert_int_equal(v.type, RESP_TEXT);
	assert_true(cgn_str_is(v.text, "OK"));
	v = value_of("-NOSCRIPT No matching\r\n");
	assert_int_equal(v.type, RESP_ERROR);
	assert_true(cgn_str_is(v.text, "NOSCRIPT No matching"));
	assert_true(value_of(":0\r\n").number == 0);
	assert_true(value_of(":-12\r\n").number == -12);
	assert_true(value_of(":+12\r\n").number == 12);
	assert_true(value_of(":9223372036854775807\r\n").number == INT64_MAX);
	assert_true(value_of(":-9223372036854775808\r\n").number == INT64_MIN);
	v = value_of("$7\r\na\r\nb\r\n!\r\n");
	assert_int_equal(v.type, RESP_BULK);
	assert_true(cgn_str_is(v.text, "a\r\nb\r\n!"));
	assert_int_equal(value_of("$0\r\n\r\n").text.n, 0);
	assert_int_equal(value_of("$-1\r\n").type, RESP_NIL);
	assert_int_equal(value_of("*-1\r\n").type, RESP_NIL);
	v = value_of("*3\r\n");
	assert_int_equal(v.type, RESP_ARRAY);
	assert_int_equal(v.n, 3);
	assert_int_equal(value_of("+\r\n").text.n, 0);
}

static void a_value_may_come_byte_by_byte(void **state)
{
	(void)state;
	static const char text[] = "*3\r\n:1\r\n*2\r\n$3\r\nabc\r\n-no\r\n$-1\r\n";
	size_t n = 0;
	const char *why;
	for (size_t i = 0; i + 1 < sizeof text - 1; i++)
		assert_int_equal(resp_whole((struct cgn_str){text, i}, &n, &why), RESP_MORE);
	assert_int_equal(resp_whole((struct cgn_str){text, sizeof text - 1}, &n, &why), RESP_GOT);
	assert_int_equal(n, sizeof text - 1);
	struct cgn_buf more = {0};
	cgn_buf_putz(&more, text);
	cgn_buf_putz(&more, "garbage");
	assert_int_equal(resp_whole(cgn_buf_view(&more), &n, &why), RESP_GOT);
	assert_int_equal(n, sizeof text - 1);
	cgn_buf_fini(&more);
}

static void what_is_wrong_is_said(void **state)
{
	(void)state;
	static const struct {
		const char *text, *says;
	} rows[] = {
		{"HTTP/1.1 400 Bad Request\r\n", "no known type"},
		{"\r\n", "no known type"},
		{":\r\n", "a number that is none"},
		{":1x\r\n", "a number that is none"},
		{":--1\r\n", "a number that is none"},
		{":9223372036854775808\r\n", "a number that is none"},
		{"$-2\r\n", "a count that cannot be"},
		{"*-2\r\n", "a count that cannot be"},
		{"*2147483647\r\n", "a count that cannot be"},
		{"$999999999999\r\n", "a bulk that is too long"},
		{"$2\r\nabcd", "does not end where it said"},
		{"$2\r\nab\rx", "does not end where it said"},
		{"+a\rb\r\n", "a carriage return inside a line"},
		{"*2\r\n:1\r\n?\r\n", "no known type"},
	};
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		size_t n = 7;
		const char *why = NULL;
		assert_int_equal(resp_whole(cgn_str_of(rows[i].text), &n, &why), RESP_BAD);
		assert_int_equal(n, 7);
		if (strstr(why, rows[i].says) == NULL)
			fail_msg("%s: \"%s\"", rows[i].text, why);
	}
}

static void lengths_are_bounded(void **state)
{
	(void)state;
	struct cgn_buf b = {0};
	size_t n;
	const char *why;
	cgn_buf_char(&b, '+');
	for (int i = 0; i < 4095; i++)
		cgn_buf_char(&b, 'x');
	assert_int_equal(resp_whole(cgn_buf_view(&b), &n, &why), RESP_MORE);
	cgn_buf_putz(&b, "xx");
	assert_int_equal(resp_whole(cgn_buf_view(&b), &n, &why), RESP_BAD);
	cgn_buf_fini(&b);
	/* Arrays in arrays: the number of values still to come is bounded as a whole. */
	for (int i = 0; i < 3; i++)
		cgn_buf_putz(&b, "*1048576\r\n");
	assert_int_equal(resp_whole(cgn_buf_view(&b), &n, &why), RESP_BAD);
	cgn_buf_fini(&b);
	for (int i = 0; i < 100000; i++) /* Depth costs no memory. */
		cgn_buf_putz(&b, "*1\r\n");
	cgn_buf_putz(&b, ":1\r\n");
	assert_int_equal(resp_whole(cgn_buf_view(&b), &n, &why), RESP_GOT);
	assert_int_equal(n, b.n);
	cgn_buf_fini(&b);
}

static void commands_are_written(void **state)
{
	(void)state;
	struct cgn_buf b = {0};
	resp_put_array(&b, 2);
	resp_put_bulk(&b, CGN_STR("GET"));
	resp_put_bulk(&b, CGN_STR("a\r\nb"));
	assert_string_equal(cgn_buf_z(&b), "*2\r\n$3\r\nGET\r\n$4\r\na\r\nb\r\n");
	cgn_buf_fini(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_type_is_read),
		cmocka_unit_test(a_value_may_come_byte_by_byte),
		cmocka_unit_test(what_is_wrong_is_said),
		cmocka_unit_test(lengths_are_bounded),
		cmocka_unit_test(commands_are_written),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
