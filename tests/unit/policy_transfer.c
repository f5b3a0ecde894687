/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "policy/route/routing/transfer.h"

static void assert_near(double got, double want, double by)
{
	if (!(fabs(got - want) <= by))
		fail_msg("%g, not %g", got, want);
}

static const struct transfer_speed prior = {1, 0.01F, false};
static const struct transfer_path path = {11, 22, 33};

static double expected_ms(const struct transfer *t, const struct transfer_path *p, double tokens,
	cgn_nsec now)
{
	const struct transfer_speed s = transfer_speed_of(t, p, &prior, now);
	return transfer_ms(&s, tokens);
}

static void an_unknown_path_has_the_prior(void **state)
{
	(void)state;
	struct transfer *t = transfer_new();
	assert_near(expected_ms(t, &path, 1000, 0), 11, 1e-3);
	assert_near(expected_ms(NULL, &path, 1000, 0), 11, 1e-3);
	assert_near(expected_ms(t, &path, 0, 0), 0, 1e-9); /* Nothing moves. */
	assert_false(transfer_speed_of(t, &path, &prior, 0).measured);
	transfer_free(&t);
}

static void a_path_is_learned_and_its_kind_too(void **state)
{
	(void)state;
	struct transfer *t = transfer_new();
	const struct transfer_path other = {44, 55, 33}, alien = {11, 22, 34};
	for (int i = 0; i < 400; i++) {
		double tokens = 100 + i % 8 * 1000;
		transfer_learn(t, &path, &prior, tokens, 5 + 0.05 * tokens, 1);
	}
	assert_near(expected_ms(t, &path, 4000, 1), 205, 5);
	assert_near(expected_ms(t, &path, 200, 1), 15, 3);
	assert_true(transfer_speed_of(t, &path, &prior, 1).measured);
	assert_near(expected_ms(t, &other, 4000, 1), 205, 5);
	assert_false(transfer_speed_of(t, &other, &prior, 1).measured);
	assert_near(expected_ms(t, &alien, 4000, 1), 41, 1e-3);
	transfer_free(&t);
}

static void a_path_that_was_slow_is_tried_again(void **state)
{
	(void)state;
	struct transfer *t = transfer_new();
	for (int i = 0; i < 50; i++)
		transfer_learn(t, &path, &prior, 1000, 1000, CGN_SEC);
	assert_true(expected_ms(t, &path, 1000, CGN_SEC) > 900);
	assert_true(expected_ms(t, &path, 1000, 61 * CGN_SEC) < 600);
	assert_near(expected_ms(t, &path, 1000, 1201 * CGN_SEC), 11, 0.1);
	for (int i = 0; i < 200; i++)
		transfer_learn(t, &path, &prior, 1000, 2, 1202 * CGN_SEC);
	/* Faster than the prior stays. */
	assert_true(expected_ms(t, &path, 1000, 2402 * CGN_SEC) < 4);
	transfer_free(&t);
}

static void no_sample_makes_an_estimate_useless(void **state)
{
	(void)state;
	struct transfer *t = transfer_new();
	const double bad[] = {NAN, -1, INFINITY, 1e300, 0, 1e-30, 3e6};
	for (size_t i = 0; i < 100 * sizeof bad / sizeof bad[0]; i++) {
		double v = bad[i % (sizeof bad / sizeof bad[0])],
		       w = bad[i / 7 % (sizeof bad / sizeof bad[0])];
		transfer_learn(t, &path, &prior, v, w, i);
		transfer_learn(t, &path, &prior, 1000, v, i);
		double ms = expected_ms(t, &path, 1000, i);
		assert_true(isfinite(ms) && ms > 0);
	}
	for (int i = 0; i < 200; i++)
		transfer_learn(t, &path, &prior, 1000, 20, 1000);
	assert_near(expected_ms(t, &path, 1000, 1000), 20, 1);
	transfer_free(&t);
}

static void many_paths_keep_what_is_used(void **state)
{
	(void)state;
	struct transfer *t = transfer_new();
	for (uint64_t i = 1; i <= 20 * TRANSFER_PATHS; i++) {
		const struct transfer_path p = {i, i + 7, 33};
		transfer_learn(t, &p, &prior, 1000, 20, i);
		assert_true(transfer_speed_of(t, &p, &prior, i).measured);
	}
	transfer_free(&t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_unknown_path_has_the_prior),
		cmocka_unit_test(a_path_is_learned_and_its_kind_too),
		cmocka_unit_test(a_path_that_was_slow_is_tried_again),
		cmocka_unit_test(no_sample_makes_an_estimate_useless),
		cmocka_unit_test(many_paths_keep_what_is_used),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
