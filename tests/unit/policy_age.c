/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "policy/who/age/age.h"

#define DAY   UINT64_C(86400)
#define BEGAN UINT64_C(1700000000)

static void test_the_right_clock_is_followed(void **state)
{
	struct age a;
	(void)state;
	age_begin(&a, BEGAN, 5 * CGN_SEC);
	for (uint64_t s = 0; s < 100; s++)
		assert_int_equal(age_now(&a, (BEGAN + s) * 1000 + 999, (5 + s) * CGN_SEC), BEGAN + s);
}

static void test_a_clock_that_jumps_ahead_is_followed_slowly(void **state)
{
	struct age a;
	(void)state;
	age_begin(&a, BEGAN, 0);
	assert_int_equal(age_now(&a, (BEGAN + 40 * DAY) * 1000, 0), BEGAN);
	for (uint64_t ms = 0; ms <= 3600000; ms += 7) /* Often, and in steps of no round size. */
		(void)age_now(&a, (BEGAN + 40 * DAY) * 1000, ms * CGN_MSEC + 123);
	assert_in_range(age_now(&a, (BEGAN + 40 * DAY) * 1000, 3600 * CGN_SEC), BEGAN + DAY - 60,
		BEGAN + DAY);
	assert_int_equal(age_now(&a, (BEGAN + 40 * DAY) * 1000, 40 * 3600 * CGN_SEC), BEGAN + 40 * DAY);
}

static void test_no_time_is_later_than_the_clock(void **state)
{
	struct age a;
	(void)state;
	age_begin(&a, BEGAN, 0);
	(void)age_now(&a, (BEGAN + 40 * DAY) * 1000, 3600 * CGN_SEC);
	assert_int_equal(age_now(&a, BEGAN * 1000, 3601 * CGN_SEC), BEGAN); /* The clock is right again. */
	assert_int_equal(age_now(&a, (BEGAN + 1) * 1000, 3602 * CGN_SEC), BEGAN + 1);
	assert_int_equal(age_now(&a, (BEGAN - DAY) * 1000, 3603 * CGN_SEC), BEGAN - DAY);
	/* Another thread's instant may be earlier. */
	assert_int_equal(age_now(&a, (BEGAN + DAY) * 1000, 3000 * CGN_SEC), BEGAN - DAY);
}

static void test_the_text_says_what_was_seen(void **state)
{
	struct age a;
	struct cgn_buf text = {0};
	struct cgn_err err;
	uint64_t seen = 0;
	(void)state;
	age_begin(&a, BEGAN, 0);
	age_write(&a, &text);
	assert_true(cgn_ok(age_read(cgn_buf_view(&text), &seen, &err)));
	assert_int_equal(seen, BEGAN);
	for (size_t i = 0; i < text.n; i++) {
		text.p[i] ^= 4;
		assert_int_equal(age_read(cgn_buf_view(&text), &seen, &err).code, CGN_INVALID);
		text.p[i] ^= 4;
	}
	for (size_t n = 0; n < text.n; n++)
		assert_int_equal(age_read((struct cgn_str){(const char *)text.p, n}, &seen, &err).code,
			CGN_INVALID);
	cgn_buf_fini(&text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_the_right_clock_is_followed),
		cmocka_unit_test(test_a_clock_that_jumps_ahead_is_followed_slowly),
		cmocka_unit_test(test_no_time_is_later_than_the_clock),
		cmocka_unit_test(test_the_text_says_what_was_seen),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
