/* SPDX-License-Identifier: Apache-2.0 */
/* Properties of trust, and the table of prompt tails against the stored values. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/mix/mix.h"
#include "policy/route/routing/prompttail.h"
#include "policy/route/routing/trust.h"

static double trust_after(double trust, unsigned n, uint64_t predicted, uint64_t actual)
{
	for (unsigned i = 0; i < n; i++)
		trust = route_trust_step(trust, predicted, actual);
	return trust;
}

static bool is_one(double t)
{
	return !(t < 1) && !(t > 1);
}

/* ---- trust ---- */

static void the_truth_costs_nothing(void **state)
{
	(void)state;
	assert_true(is_one(trust_after(1, 1000, 4096, 4096)));
	assert_true(is_one(trust_after(1, 1000, 4096, 9999))); /* More than predicted. */
	assert_true(is_one(trust_after(1, 1000, 4096, 3700))); /* The loss from cutting into blocks. */
	assert_true(is_one(trust_after(1, 1000, 0, 0)));
}

static void a_liar_sinks_to_the_floor_and_no_deeper(void **state)
{
	(void)state;
	assert_true(trust_after(1, 1, 4096, 0) < 1);
	assert_true(trust_after(1, 6, 4096, 0) < 0.5);
	assert_true(trust_after(1, 100, 4096, 0) <= ROUTE_TRUST_FLOOR + 1e-9);
	assert_true(trust_after(1, 100000, UINT64_MAX, 0) >= ROUTE_TRUST_FLOOR);
}

static void a_truthful_node_is_trusted_again(void **state)
{
	(void)state;
	double low = trust_after(1, 1000, 4096, 0);
	assert_true(trust_after(low, 6, 4096, 4096) > 0.5);
	assert_true(is_one(trust_after(low, 40, 4096, 4096)));
}

static void half_a_truth_settles_in_the_middle(void **state)
{
	(void)state;
	double t = trust_after(1, 1000, 900, 405); /* Half of 900 * slack. */
	assert_true(fabs(t - 0.5) < 1e-6);
	/* The same from any start. */
	assert_true(fabs(trust_after(ROUTE_TRUST_FLOOR, 1000, 900, 405) - t) < 1e-6);
}

static void small_promises_say_nothing(void **state)
{
	(void)state;
	assert_true(is_one(trust_after(1, 1000, ROUTE_TRUST_LEAST - 1, 0)));
	assert_true(trust_after(0.5, 1000, ROUTE_TRUST_LEAST - 1, 500) < 0.51);
}

static void trust_is_monotone_and_bounded_for_all_inputs(void **state)
{
	(void)state;
	uint64_t seed = 7;
	for (unsigned i = 0; i < 100000; i++) {
		double t = (double)(mix_xorshift_star(&seed) >> 11) * 0x1p-53;
		uint64_t predicted = mix_xorshift_star(&seed) >> mix_xorshift_star(&seed) % 64;
		uint64_t lo = mix_xorshift_star(&seed) >> mix_xorshift_star(&seed) % 64,
			 hi = lo + (mix_xorshift_star(&seed) >> 40);
		double a = route_trust_step(t, predicted, lo),
		       b = route_trust_step(t, predicted, hi >= lo ? hi : lo);
		assert_true(a >= ROUTE_TRUST_FLOOR && a <= 1 && b >= ROUTE_TRUST_FLOOR && b <= 1);
		assert_true(b >= a); /* A greater actual number never gives less trust. */
	}
	assert_true(route_trust_step((double)NAN, 4096, 4096) >= ROUTE_TRUST_FLOOR &&
		route_trust_step(-5, 100, 100) >= ROUTE_TRUST_FLOOR);
	assert_true(route_trust_step(17, 4096, 4096) <= 1);
}

/* ---- tails ---- */

static void a_tail_is_found_where_it_was_put(void **state)
{
	(void)state;
	struct prompttail_table *t = NULL;
	assert_true(cgn_ok(prompttail_new(1 << 20, &t, NULL)));
	assert_int_equal(prompttail_get(t, 1, 2).prompt, 0);
	prompttail_put(t, 1, 2, (struct prompttail){345, 67});
	assert_int_equal(prompttail_get(t, 1, 2).prompt, 345);
	assert_int_equal(prompttail_get(t, 1, 2).answer, 67);
	assert_int_equal(prompttail_get(t, 1, 3).prompt, 0); /* Another node. */
	assert_int_equal(prompttail_get(t, 2, 2).prompt, 0);
	prompttail_put(t, 1, 2, (struct prompttail){17, 0}); /* The last put counts. */
	assert_int_equal(prompttail_get(t, 1, 2).prompt, 17);
	assert_int_equal(prompttail_get(t, 1, 2).answer, 0);
	/* As much as an entry can hold. */
	prompttail_put(t, 1, 2, (struct prompttail){UINT64_MAX, UINT64_MAX});
	assert_int_equal(prompttail_get(t, 1, 2).prompt, (1 << 24) - 1);
	assert_int_equal(prompttail_get(t, 1, 2).answer, 65535);
	assert_true(prompttail_bytes(t) >= 1 << 20 && prompttail_bytes(t) < (1 << 20) + 256);
	prompttail_free(&t);
	prompttail_free(&t);
}

static void tails_are_right_or_forgotten(void **state)
{
	(void)state;
	enum { N = 20000 };
	struct prompttail_table *t = NULL;
	unsigned found = 0, recent = 0;
	assert_true(cgn_ok(prompttail_new(64 * 1024, &t, NULL))); /* 8,192 entries. */
	uint64_t seed = 99;
	for (uint64_t i = 0; i < N; i++)
		prompttail_put(t, mix_xorshift_star(&seed), 5, (struct prompttail){i + 1, 3});
	seed = 99;
	for (uint64_t i = 0; i < N; i++) {
		uint64_t got = prompttail_get(t, mix_xorshift_star(&seed), 5).prompt;
		assert_true(got == 0 || got == i + 1);
		found += got != 0;
		recent += got != 0 && i >= N - 2048;
	}
	assert_true(found <= 8192 && found > 5000);
	assert_true(recent > 1900); /* The newest are replaced last. */
	prompttail_free(&t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_truth_costs_nothing),
		cmocka_unit_test(a_liar_sinks_to_the_floor_and_no_deeper),
		cmocka_unit_test(a_truthful_node_is_trusted_again),
		cmocka_unit_test(half_a_truth_settles_in_the_middle),
		cmocka_unit_test(small_promises_say_nothing),
		cmocka_unit_test(trust_is_monotone_and_bounded_for_all_inputs),
		cmocka_unit_test(a_tail_is_found_where_it_was_put),
		cmocka_unit_test(tails_are_right_or_forgotten),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
