/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mix/mix.h"
#include "base/samples/samples.h"

static void close_to(double got, double want)
{
	assert_true(got > want - 1e-9 && got < want + 1e-9);
}

static void quantiles_are_by_nearest_rank(void **state)
{
	(void)state;
	struct samples s = {0};
	for (unsigned i = 100; i >= 1; i--)
		samples_add(&s, i * CGN_MSEC);
	assert_int_equal(samples_count(&s), 100);
	close_to(samples_mean_ms(&s), 50.5);
	close_to(samples_ms(&s, 0), 1);
	close_to(samples_ms(&s, 0.5), 50);
	close_to(samples_ms(&s, 0.501), 51);
	close_to(samples_ms(&s, 0.99), 99);
	close_to(samples_ms(&s, 1), 100);
	samples_add(&s, 1000 * CGN_MSEC); /* after it was sorted */
	close_to(samples_ms(&s, 1), 1000);
	samples_fini(&s);
	assert_int_equal(samples_count(&s), 0);
}

static int by_value(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;
	return *x < *y ? -1 : *x > *y;
}

static void any_values_sort_as_qsort_sorts_them(void **state)
{
	(void)state;
	enum { N = 5000 };
	static uint64_t want[N];
	for (unsigned width = 1; width <= 64; width += 9) {
		struct samples s = {0};
		uint64_t x = width * MIX_GOLDEN;
		for (size_t i = 0; i < N; i++) {
			x ^= x << 13;
			x ^= x >> 7;
			x ^= x << 17;
			want[i] = x >> (64 - width);
			samples_add(&s, want[i]);
		}
		(void)samples_ms(&s, 0.5);
		qsort(want, N, sizeof want[0], by_value);
		assert_memory_equal(s.ns.p, want, sizeof want);
		samples_fini(&s);
	}
}

static void nothing_is_nothing(void **state)
{
	(void)state;
	struct samples s = {0};
	struct cgn_buf b = {0};
	struct json_out o = json_out_to(&b);
	close_to(samples_ms(&s, 0.5), 0);
	close_to(samples_mean_ms(&s), 0);
	samples_json(&s, &o);
	assert_string_equal(cgn_buf_z(&b), "null");
	cgn_buf_fini(&b);
}

static void json_has_the_count_and_the_quantiles(void **state)
{
	(void)state;
	struct samples s = {0};
	struct cgn_buf b = {0};
	struct json_out o = json_out_to(&b);
	for (unsigned i = 1; i <= 200; i++)
		samples_add(&s, i * CGN_MSEC / 2);
	samples_json(&s, &o);
	assert_string_equal(cgn_buf_z(&b),
		"{\"count\":200,\"mean\":50.25,\"p50\":50,\"p90\":90,\"p99\":99,\"max\":100}");
	close_to(samples_us(&s, 0.5), 50000);
	cgn_buf_fini(&b);
	samples_fini(&s);
}

static void lost_samples_leave_no_mean(void **state)
{
	(void)state;
	struct samples s = {0};
	struct cgn_buf b = {0};
	struct json_out o = json_out_to(&b);
	samples_add(&s, CGN_MSEC);
	s.ns.bad = true; /* No memory for more. */
	samples_add(&s, 9 * CGN_MSEC);
	assert_int_equal(s.lost, 1);
	assert_true(isnan(samples_mean_ms(&s)) && isnan(samples_ms(&s, 0.5)) && isnan(samples_us(&s, 1)));
	samples_json(&s, &o);
	assert_string_equal(cgn_buf_z(&b), "{\"count\":2,\"lost\":1}");
	cgn_buf_fini(&b);
	samples_fini(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(quantiles_are_by_nearest_rank),
		cmocka_unit_test(any_values_sort_as_qsort_sorts_them),
		cmocka_unit_test(nothing_is_nothing),
		cmocka_unit_test(json_has_the_count_and_the_quantiles),
		cmocka_unit_test(lost_samples_leave_no_mean),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
