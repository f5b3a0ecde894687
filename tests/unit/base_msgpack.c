/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

#include "base/core/err.h"
#include "base/msgpack/msgpack.h"

static void integers_of_all_widths(void **state)
{
	static const int64_t values[] = {0, 1, 127, 128, 255, 256, 65535, 65536, UINT32_MAX,
		(int64_t)UINT32_MAX + 1, INT64_MAX, -1, -32, -33, -128, -129, -32768, -32769, INT32_MIN,
		(int64_t)INT32_MIN - 1, INT64_MIN};
	static const size_t bytes[] = {1, 1, 1, 2, 2, 3, 3, 5, 5, 9, 9, 1, 1, 2, 2, 3, 3, 5, 5, 9,
		9}; /* The shortest form. */
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(values); i++) {
		struct cgn_buf b = {0};
		msgpack_put_i64(&b, values[i]);
		assert_int_equal(b.n, bytes[i]);
		struct msgpack_in in = msgpack_in_of(cgn_buf_view(&b));
		assert_int_equal(msgpack_peek(&in), MSGPACK_INT);
		assert_true(msgpack_get_i64(&in) == values[i]);
		assert_true(msgpack_end(&in));
		in = msgpack_in_of(cgn_buf_view(&b));
		assert_true(msgpack_get_bits(&in) == (uint64_t)values[i]);
		in = msgpack_in_of(cgn_buf_view(&b));
		assert_true(msgpack_get_f64(&in) == (double)values[i]);
		in = msgpack_in_of(cgn_buf_view(&b));
		(void)msgpack_get_u64(&in);
		assert_int_equal(msgpack_bad(&in), values[i] < 0);
		in = msgpack_in_of(cgn_buf_view(&b));
		(void)msgpack_get_u32(&in);
		assert_int_equal(msgpack_bad(&in), values[i] < 0 || values[i] > UINT32_MAX);
		cgn_buf_fini(&b);
	}
}

/* The examples of the specification's table of formats, and wider encodings of the same values where these
 * are allowed. */
static void every_format_is_read(void **state)
{
	const struct {
		struct cgn_str bytes;
		enum msgpack_type type;
	} rows[] = {{CGN_STR("\xc0"), MSGPACK_NIL}, {CGN_STR("\xc2"), MSGPACK_BOOL},
		{CGN_STR("\x7f"), MSGPACK_INT}, {CGN_STR("\xe0"), MSGPACK_INT},
		{CGN_STR("\xcf\0\0\0\0\0\0\0\1"), MSGPACK_INT},
		{CGN_STR("\xd3\0\0\0\0\0\0\0\1"), MSGPACK_INT}, {CGN_STR("\xd0\1"), MSGPACK_INT},
		{CGN_STR("\xca\x3f\xc0\0\0"), MSGPACK_FLOAT},
		{CGN_STR("\xcb\x3f\xf8\0\0\0\0\0\0"), MSGPACK_FLOAT}, {CGN_STR("\xa2hi"), MSGPACK_STR},
		{CGN_STR("\xd9\2hi"), MSGPACK_STR}, {CGN_STR("\xda\0\2hi"), MSGPACK_STR},
		{CGN_STR("\xdb\0\0\0\2hi"), MSGPACK_STR}, {CGN_STR("\xc4\2hi"), MSGPACK_BIN},
		{CGN_STR("\xc5\0\2hi"), MSGPACK_BIN}, {CGN_STR("\xc6\0\0\0\2hi"), MSGPACK_BIN},
		{CGN_STR("\x92\1\2"), MSGPACK_ARRAY}, {CGN_STR("\xdc\0\2\1\2"), MSGPACK_ARRAY},
		{CGN_STR("\xdd\0\0\0\2\1\2"), MSGPACK_ARRAY}, {CGN_STR("\x81\1\2"), MSGPACK_MAP},
		{CGN_STR("\xde\0\1\1\2"), MSGPACK_MAP}, {CGN_STR("\xdf\0\0\0\1\1\2"), MSGPACK_MAP},
		{CGN_STR("\xd4\1a"), MSGPACK_EXT}, {CGN_STR("\xd5\1ab"), MSGPACK_EXT},
		{CGN_STR("\xd8\1abcdefghijklmnop"), MSGPACK_EXT}, {CGN_STR("\xc7\3\1abc"), MSGPACK_EXT},
		{CGN_STR("\xc8\0\3\1abc"), MSGPACK_EXT}, {CGN_STR("\xc9\0\0\0\3\1abc"), MSGPACK_EXT}};
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		struct msgpack_in in = msgpack_in_of(rows[i].bytes);
		assert_int_equal(msgpack_peek(&in), rows[i].type);
		assert_int_equal(msgpack_get_raw(&in).n, rows[i].bytes.n);
		assert_true(msgpack_end(&in));
		/* No prefix of a value is a whole value. */
		for (size_t cut = 0; cut < rows[i].bytes.n; cut++) {
			in = msgpack_in_of((struct cgn_str){rows[i].bytes.p, cut});
			msgpack_skip(&in);
			assert_true(msgpack_bad(&in));
			assert_in_range(in.bad_at, 0, cut);
		}
	}
	struct msgpack_in narrow = msgpack_in_of(rows[7].bytes), wide = msgpack_in_of(rows[8].bytes);
	assert_true(msgpack_get_f64(&narrow) == 1.5 && msgpack_get_f64(&wide) == 1.5);
}

static void strings_and_containers_of_all_lengths(void **state)
{
	static const uint32_t sizes[] = {0, 1, 15, 16, 31, 32, 255, 256, 65535, 65536};
	static char text[65536];
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(sizes); i++) {
		struct cgn_buf b = {0};
		struct cgn_str s = {text, sizes[i]};
		msgpack_put_str(&b, s);
		msgpack_put_bin(&b, s);
		msgpack_put_array(&b, sizes[i]);
		for (uint32_t k = 0; k < sizes[i]; k++)
			msgpack_put_nil(&b);
		msgpack_put_map(&b, sizes[i]);
		for (uint32_t k = 0; k < sizes[i]; k++) {
			cgn_buf_char(&b, (char)0xc3); /* true */
			msgpack_put_f64(&b, 0.5);
		}
		struct msgpack_in in = msgpack_in_of(cgn_buf_view(&b));
		assert_int_equal(msgpack_get_str(&in).n, sizes[i]);
		assert_int_equal(msgpack_get_bin(&in).n, sizes[i]);
		assert_int_equal(msgpack_get_array(&in), sizes[i]);
		for (uint32_t k = 0; k < sizes[i]; k++)
			assert_true(msgpack_get_nil(&in));
		assert_int_equal(msgpack_get_map(&in), sizes[i]);
		for (uint32_t k = 0; k < sizes[i]; k++)
			assert_true(cgn_str_is(msgpack_get_raw(&in), "\xc3") && msgpack_get_f64(&in) == 0.5);
		assert_true(msgpack_end(&in));
		cgn_buf_fini(&b);
	}
}

/* The bytes at hand bound memory and time, not the sizes that the bytes claim. */
static void claims_are_checked(void **state)
{
	const struct cgn_str claims[] = {CGN_STR("\xdd\xff\xff\xff\xff"), CGN_STR("\xdf\xff\xff\xff\xff\1\2"),
		CGN_STR("\x92\1"), CGN_STR("\x81\1"),
		CGN_STR("\xdb\xff\xff\xff\xff"
			"abc"),
		CGN_STR("\xc6\0\0\0\4abc"), CGN_STR("\xc9\xff\xff\xff\xff\1"), CGN_STR("\x92\x92\1\2"),
		CGN_STR("\xc1"), CGN_STR("")};
	char nest[100000];
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(claims); i++) {
		struct msgpack_in in = msgpack_in_of(claims[i]);
		assert_null(msgpack_get_raw(&in).p);
		assert_true(msgpack_bad(&in));
	}
	struct msgpack_in in = msgpack_in_of(claims[0]);
	assert_int_equal(msgpack_get_array(&in), 0);
	assert_string_equal(in.bad, "a container of more elements than there are bytes");
	memset(nest, 0x91, sizeof nest); /* an array in an array in an array */
	nest[sizeof nest - 1] = 0;
	in = msgpack_in_of((struct cgn_str){nest, sizeof nest});
	assert_int_equal(msgpack_get_raw(&in).n, sizeof nest);
	assert_true(msgpack_end(&in));
}

static void errors_stick(void **state)
{
	struct msgpack_in in = msgpack_in_of(CGN_STR("\1\xa1x\2"));
	(void)state;
	assert_int_equal(msgpack_get_u64(&in), 1);
	assert_false(msgpack_get_nil(&in));
	assert_false(msgpack_bad(&in));
	assert_int_equal(msgpack_get_u64(&in), 0);
	assert_string_equal(in.bad, "a number was expected");
	assert_int_equal(in.bad_at, 1);
	assert_null(msgpack_get_str(&in).p);
	assert_int_equal(msgpack_get_u64(&in), 0);
	assert_int_equal(msgpack_get_array(&in), 0);
	assert_int_equal(msgpack_peek(&in), MSGPACK_NONE);
	msgpack_fault(&in, "another");
	assert_string_equal(in.bad, "a number was expected");
	assert_false(msgpack_end(&in));
}

static void types_are_not_mixed_up(void **state)
{
	(void)state;
	struct msgpack_in in = msgpack_in_of(CGN_STR("\xa1x"));
	(void)msgpack_get_bin(&in);
	assert_string_equal(in.bad, "bytes were expected");
	in = msgpack_in_of(CGN_STR("\x90"));
	(void)msgpack_get_map(&in);
	assert_string_equal(in.bad, "a map was expected");
	in = msgpack_in_of(CGN_STR("\x80"));
	(void)msgpack_get_array(&in);
	assert_string_equal(in.bad, "an array was expected");
	in = msgpack_in_of(CGN_STR("\xc0"));
	(void)msgpack_get_f64(&in);
	assert_string_equal(in.bad, "a number was expected");
	in = msgpack_in_of(CGN_STR("\xcf\xff\xff\xff\xff\xff\xff\xff\xff"));
	(void)msgpack_get_i64(&in);
	assert_string_equal(in.bad, "a number over 63 bits");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(integers_of_all_widths),
		cmocka_unit_test(every_format_is_read),
		cmocka_unit_test(strings_and_containers_of_all_lengths),
		cmocka_unit_test(claims_are_checked),
		cmocka_unit_test(errors_stick),
		cmocka_unit_test(types_are_not_mixed_up),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
