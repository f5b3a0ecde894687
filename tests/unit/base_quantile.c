/* SPDX-License-Identifier: Apache-2.0 */
/* Quantiles from counts by bucket are those of the sorted durations, within the error that the header states. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mix/mix.h"
#include "base/quantile/quantile.h"

#define N 2000

static int by_value(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;
	return (*x > *y) - (*x < *y);
}

/* A duration from 8 us to 73 minutes, evenly by its logarithm, or evenly within a narrow range. */
static uint64_t duration_draw(uint64_t *s, unsigned kind)
{
	double u = (double)(mix_splitmix(s) >> 11) / 9007199254740992.0;
	return (uint64_t)(kind == 0 ? exp2(13.1 + 28.8 * u) : kind == 1 ? 1e9 * (1 + u) : 3e6);
}

static void quantiles_are_those_of_the_sorted_durations(void **state)
{
	(void)state;
	static const double at[] = {0, 0.01, 0.5, 0.9, 0.95, 0.99, 1};
	for (unsigned seed = 1; seed <= 30; seed++) {
		uint64_t s = seed, v[N], in[QUANTILE_BUCKETS] = {0};
		for (size_t i = 0; i < N; i++) {
			v[i] = duration_draw(&s, seed % 3);
			in[quantile_bucket(v[i])]++;
		}
		qsort(v, N, sizeof *v, by_value);
		for (size_t k = 0; k < sizeof at / sizeof *at; k++) {
			uint64_t got = quantile_of(in, at[k], v[0], v[N - 1]),
				 want = v[quantile_rank(N, at[k]) - 1];
			assert_true(fabs((double)got - (double)want) <= QUANTILE_ERROR * (double)want);
			assert_in_range(got, v[0], v[N - 1]);
		}
	}
}

static void buckets_rise_with_the_duration(void **state)
{
	(void)state;
	size_t last = 0;
	for (double v = 1; v < 1.8e19; v *= 1.01) {
		size_t at = quantile_bucket((uint64_t)v);
		assert_in_range(at, last, last + 1);
		last = at;
	}
	assert_int_equal(last, QUANTILE_BUCKETS - 1);
	assert_int_equal(quantile_bucket(0), 0);
	assert_int_equal(quantile_bucket(UINT64_MAX), QUANTILE_BUCKETS - 1);
}

static void no_quantile_is_outside_of_what_came(void **state)
{
	(void)state;
	uint64_t in[QUANTILE_BUCKETS] = {0};
	assert_int_equal(quantile_of(in, 0.5, 0, UINT64_MAX), 0);
	in[quantile_bucket(0)] = in[quantile_bucket(UINT64_MAX)] = 1;
	assert_int_equal(quantile_of(in, 0, 3, 4), 4); /* The middle of the first bucket is above. */
	assert_int_equal(quantile_of(in, 0, 0, 1), 1);
	assert_int_equal(quantile_of(in, 1, 0, UINT64_MAX), (uint64_t)1 << QUANTILE_LAST);
}

static void ranks_are_the_nearest(void **state)
{
	(void)state;
	assert_int_equal(quantile_rank(100, 0.5), 50);
	assert_int_equal(quantile_rank(100, 0.501), 51);
	assert_int_equal(quantile_rank(1, 0), 1);
	assert_int_equal(quantile_rank(7, 1), 7);
	assert_int_equal(quantile_rank(7, 2), 7);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(quantiles_are_those_of_the_sorted_durations),
		cmocka_unit_test(buckets_rise_with_the_duration),
		cmocka_unit_test(no_quantile_is_outside_of_what_came),
		cmocka_unit_test(ranks_are_the_nearest),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
