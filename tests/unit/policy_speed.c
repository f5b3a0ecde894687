/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "policy/route/routing/speed.h"

static uint64_t seed = 88172645463325252ULL;

static double any_between(double lo, double hi)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return lo + (hi - lo) * (double)(seed >> 11) / 9007199254740992.0;
}

static bool near_to(float is, double want, double share)
{
	return fabs((double)is - want) <= want * share;
}

static void prefill_is_what_prompts_took(void **state)
{
	(void)state;
	struct route_speed s = {0};
	route_speed_prefill(&s, 300, 3000);
	assert_true(near_to(s.prefill_ms, 0.1, 1e-3)); /* The first sample is all that is known. */
	for (int i = 0; i < 2000; i++) {
		double tokens = any_between(100, 20000);
		route_speed_prefill(&s, tokens * 0.04 * any_between(0.9, 1.1), tokens);
	}
	assert_true(near_to(s.prefill_ms, 0.04, 0.05));
	float was = s.prefill_ms;
	route_speed_prefill(&s, 9000, ROUTE_SPEED_LEAST - 1); /* Too few tokens to count. */
	assert_true(near_to(s.prefill_ms, (double)was, 1e-6));
}

static void one_outlier_moves_little(void **state)
{
	(void)state;
	struct route_speed s = {.prefill_ms = 0.05F};
	route_speed_prefill(&s, 600000, 4096); /* Ten minutes for a prefill of 200 ms. */
	assert_true(near_to(s.prefill_ms, 0.05, 0.25));
	route_speed_prefill(&s, 1e-9, 4096);
	assert_true(near_to(s.prefill_ms, 0.05, 0.25));
	/* A wrong first sample is corrected. */
	s.prefill_ms = 100;
	for (int i = 0; i < 500; i++)
		route_speed_prefill(&s, 200, 4096);
	assert_true(near_to(s.prefill_ms, 200.0 / 4096, 0.05));
}

/* Return the time that a node with these speeds would take. */
static double stream_ms(double tokens, double beside, double stall)
{
	return tokens * (12 + 0.12 * beside) + 0.9 * stall;
}

static void decode_finds_its_three_parts(void **state)
{
	(void)state;
	struct route_speed s = {0};
	for (int i = 0; i < 5000; i++) {
		double tokens = any_between(20, 600), beside = any_between(0, 30),
		       stall = any_between(0, 1) < 0.5 ? 0 : tokens * any_between(0, 20);
		route_speed_decode(&s, stream_ms(tokens, beside, stall) * any_between(0.98, 1.02), tokens,
			beside, stall);
	}
	assert_true(near_to(s.step_ms, 12, 0.05));
	assert_true(near_to(s.batch_ms, 0.12, 0.35));
	assert_true(near_to(s.interference, 0.9, 0.1));
}

static void slow_and_fast_engines_learn_alike(void **state)
{
	(void)state;
	for (double scale = 0.01; scale < 200; scale *= 10) {
		struct route_speed s = {0};
		for (int i = 0; i < 5000; i++) {
			double beside = any_between(0, 30),
			       stall = any_between(0, 1) < 0.5 ? 0 : 100 * any_between(0, 20);
			route_speed_decode(&s, scale * stream_ms(100, beside, stall), 100, beside,
				scale * stall);
		}
		assert_true(near_to(s.step_ms, 12 * scale, 0.05));
		assert_true(near_to(s.interference, 0.9, 0.1));
	}
}

static void whatever_comes_in_speeds_stay_sane(void **state)
{
	(void)state;
	static const double odd[] = {0, -1, NAN, INFINITY, -INFINITY, 1e308, 1e-308, 1, 100, 1e6, 3e9};
	const size_t n = sizeof odd / sizeof odd[0];
	struct route_speed s = {0};
	for (int i = 0; i < 200000; i++) {
		double v[4];
		for (int k = 0; k < 4; k++)
			v[k] = any_between(0, 1) < 0.5 ? odd[(size_t)any_between(0, (double)n)]
						       : any_between(0, 5000);
		route_speed_decode(&s, v[0], v[1], v[2], v[3]);
		route_speed_prefill(&s, v[0], v[1]);
		assert_true(isfinite(s.prefill_ms) && s.prefill_ms >= 0 && s.prefill_ms <= 1000);
		assert_true(isfinite(s.step_ms) && s.step_ms >= 0 && s.step_ms <= 10000);
		assert_true(isfinite(s.batch_ms) && s.batch_ms >= 0 && s.batch_ms <= 10000);
		assert_true(isfinite(s.interference) && s.interference >= 0 && s.interference <= 2);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(prefill_is_what_prompts_took),
		cmocka_unit_test(one_outlier_moves_little),
		cmocka_unit_test(decode_finds_its_three_parts),
		cmocka_unit_test(slow_and_fast_engines_learn_alike),
		cmocka_unit_test(whatever_comes_in_speeds_stay_sane),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
