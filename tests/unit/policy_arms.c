/* SPDX-License-Identifier: Apache-2.0 */
/* A session keeps its arm, and a difference is told when there is one. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/core/alloc.h"
#include "base/mix/mix.h"
#include "policy/route/arms/arms.h"
#include "policy/route/arms/unit.h"

static const struct arms_rules half = {.live = ROUTE_ROUND_ROBIN,
	.shadows = {ROUTE_KV},
	.n = 1,
	.share = 0.5};

static double number_draw(uint64_t *s)
{
	return (double)((mix_splitmix(s) >> 11) + 1) / 9007199254740993.0;
}

static uint64_t unit_named(struct unit_counts *c, const uint64_t *chain, size_t blocks, uint64_t request)
{
	return unit_of(c, &(struct unit_ask){.chain = chain, .blocks = blocks, .request = request});
}

static void a_conversation_is_one_unit(void **state)
{
	(void)state;
	struct unit_counts *c = CGN_NEW(struct unit_counts);
	uint64_t chain[40], own[2] = {77, 78};
	for (size_t i = 0; i < 40; i++)
		chain[i] = i + 1;
	uint64_t first = unit_named(c, chain, 1, 1);
	for (size_t turn = 2; turn <= 40; turn++)
		assert_int_equal(unit_named(c, chain, turn, turn), first);
	assert_int_not_equal(unit_named(c, own, 2, 41), first);
	/* A session's name counts, whatever its prompts are. */
	assert_int_equal(unit_of(c, &(struct unit_ask){.session = 5, .chain = chain, .blocks = 3}), 5);
	/* Requests without a full block are alone. */
	assert_int_not_equal(unit_named(c, NULL, 0, 42), unit_named(c, NULL, 0, 43));
	free(c);
}

static void a_common_beginning_is_no_unit(void **state)
{
	(void)state;
	struct unit_counts *c = CGN_NEW(struct unit_counts);
	uint64_t chain[4] = {1, 2}; /* A system prompt of two blocks, and a conversation. */
	for (uint64_t i = 0; i < 1000; i++) {
		chain[2] = 1000 + i;
		(void)unit_named(c, chain, 3, i);
	}
	chain[2] = 5000;
	uint64_t one = unit_named(c, chain, 3, 2000);
	assert_int_equal(unit_named(c, chain, 4, 2001), one);
	chain[2] = 5001;
	assert_int_not_equal(unit_named(c, chain, 3, 2002), one);
	for (uint64_t i = 0; i < 100000; i++) /* The counts fade; common blocks stay common. */
		(void)unit_named(c, (const uint64_t[]){1, 2, i + 9000}, 3, i);
	chain[2] = 5000;
	assert_int_equal(unit_named(c, chain, 3, 2003), one);
	free(c);
}

static void a_share_of_the_units_follows(void **state)
{
	(void)state;
	struct arms *a = arms_new();
	const struct arms_rules rules = {.live = ROUTE_KV,
		.shadows = {ROUTE_RANDOM, ROUTE_SESSION},
		.n = 2,
		.share = 0.1};
	size_t n[3] = {0};
	assert_false(arms_seat(a, 1, 10).seated); /* Nothing is compared. */
	arms_set(a, &rules);
	for (uint64_t unit = 0; unit < 100000; unit++) {
		struct arms_seat s = arms_seat(a, unit, 10);
		assert_true(s.seated);
		assert_int_equal(s.policy, s.arm == 0 ? ROUTE_KV : s.arm == 1 ? ROUTE_RANDOM : ROUTE_SESSION);
		n[s.arm]++;
	}
	assert_in_range(n[1], 4800, 5200);
	assert_in_range(n[2], 4800, 5200);
	arms_free(&a);
}

/* Play |n| sessions of four requests, with long tails and requests of a session alike. The shadow's times are |times|
 * those of the live policy. Return how often a difference was told, looking again and again. */
static size_t looks_different(uint64_t seed, size_t n, double times)
{
	struct arms *a = arms_new();
	size_t different = 0;
	arms_set(a, &half);
	for (size_t i = 0; i < n; i++) {
		uint64_t unit = mix_splitmix(&seed);
		double own = exp(1.5 * (number_draw(&seed) + number_draw(&seed) - 1)),
		       length = number_draw(&seed);
		for (unsigned k = 0; k < 4; k++) {
			struct arms_seat s = arms_seat(a, unit, (uint64_t)(length * 5000));
			double ms = -100 * log(number_draw(&seed)) * own * (0.2 + length) *
				(s.arm > 0 ? times : 1);
			arms_add(a, &s,
				&(struct arms_outcome){.ttft_ms = ms,
					.finish_ms = -1,
					.stream_ms = -1,
					.cached = -1});
		}
		if (i % 25 == 24) {
			struct arms_estimate e;
			arms_estimate(a, 0, ARMS_TTFT, &e);
			different += e.verdict == (times < 1 ? ARMS_BETTER : ARMS_WORSE) ||
				(times == 1 && e.verdict == ARMS_BETTER);
		}
	}
	arms_free(&a);
	return different;
}

static void equal_arms_are_not_told_different(void **state)
{
	(void)state;
	size_t wrong = 0;
	for (uint64_t seed = 1; seed <= 100; seed++)
		wrong += looks_different(seed, 2500, 1) > 0;
	assert_in_range(wrong, 0, 5); /* Each run was looked at 100 times. */
}

static void a_difference_is_told_with_its_sign(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 20; seed++) {
		assert_true(looks_different(seed, 2500, 0.6) > 0);
		assert_true(looks_different(seed, 2500, 1.7) > 0);
	}
}

/* The intervals hold the true difference. */
static void intervals_hold(void **state)
{
	(void)state;
	size_t outside = 0;
	for (uint64_t run = 1; run <= 100; run++) {
		struct arms *a = arms_new();
		struct arms_estimate e;
		uint64_t seed = run;
		arms_set(a, &half);
		for (size_t i = 0; i < 2000; i++) {
			struct arms_seat s = arms_seat(a, mix_splitmix(&seed), 10);
			double ms = 100 + 50 * number_draw(&seed) + (s.arm > 0 ? 7 : 0);
			arms_add(a, &s,
				&(struct arms_outcome){.ttft_ms = ms,
					.finish_ms = -1,
					.stream_ms = -1,
					.cached = -1});
		}
		arms_estimate(a, 0, ARMS_TTFT, &e);
		assert_true(e.high - e.low < 14 && fabs((e.high + e.low) / 2 - (e.shadow - e.live)) < 1e-6);
		outside += e.low > 7 || e.high < 7;
		arms_free(&a);
	}
	assert_in_range(outside, 0, 5);
}

/* The shadow has equal times, and by chance more long prompts. */
static void arms_are_made_alike_by_length(void **state)
{
	(void)state;
	struct arms *a = arms_new();
	struct arms_estimate e;
	uint64_t seed = 3;
	arms_set(a, &half);
	for (size_t i = 0; i < 4000; i++) {
		struct arms_seat s = arms_seat(a, mix_splitmix(&seed), 0);
		bool is_long = number_draw(&seed) < (s.arm > 0 ? 0.8 : 0.2);
		s.length = is_long ? 4 : 1;
		double ms = (is_long ? 5000 : 50) * (0.9 + 0.2 * number_draw(&seed));
		arms_add(a, &s,
			&(struct arms_outcome){.ttft_ms = ms,
				.finish_ms = -1,
				.stream_ms = -1,
				.cached = -1});
	}
	arms_estimate(a, 0, ARMS_TTFT, &e);
	assert_int_equal(e.verdict, ARMS_UNCLEAR);
	assert_true(fabs(e.shadow - e.live) < 0.01 * e.live);
	arms_free(&a);
}

static void nothing_is_told_of_few(void **state)
{
	(void)state;
	struct arms *a = arms_new();
	struct arms_estimate e;
	const struct arms_outcome
		fast = {.ttft_ms = 1, .finish_ms = 2, .stream_ms = 1, .gaps = 9, .cached = 5, .prompt = 10},
		slow = {.ttft_ms = 9, .finish_ms = 20, .stream_ms = 1, .gaps = 9, .cached = 5, .prompt = 10};
	uint64_t one = 0;
	arms_set(a, &half);
	arms_estimate(a, 0, ARMS_TTFT, &e);
	assert_true(e.verdict == ARMS_TOO_FEW && isnan(e.live) && isnan(e.low) && e.n_live == 0);
	while (arms_seat(a, one, 10).arm == 0)
		one++;
	/* A thousand requests of one session, against many of many. */
	struct arms_seat s = arms_seat(a, one, 10);
	for (size_t i = 0; i < 1000; i++)
		arms_add(a, &s, &fast);
	for (uint64_t unit = 0; unit < 2000; unit++)
		if ((s = arms_seat(a, unit, 10)).arm == 0)
			arms_add(a, &s, &slow);
	arms_estimate(a, 0, ARMS_TTFT, &e);
	assert_true(e.verdict == ARMS_TOO_FEW && isnan(e.low) && e.n_shadow == 1000);
	/* 300 further sessions with one request each. */
	for (uint64_t unit = 2000; unit < 2600; unit++)
		if ((s = arms_seat(a, unit, 10)).arm == 1)
			arms_add(a, &s, &fast);
	arms_estimate(a, 0, ARMS_TTFT, &e);
	assert_true(e.units_shadow < 8 && e.verdict == ARMS_TOO_FEW);
	arms_free(&a);
}

static void all_figures_are_counted(void **state)
{
	(void)state;
	struct arms *a = arms_new();
	struct arms_estimate e;
	arms_set(a, &half);
	for (uint64_t unit = 0; unit < 4000; unit++) {
		struct arms_seat s = arms_seat(a, unit, 10);
		bool better = s.arm == 1;
		arms_add(a, &s,
			&(struct arms_outcome){.ttft_ms = better ? 10 : 20,
				.finish_ms = better ? 100 : 200,
				.stream_ms = better ? 90 : 180,
				.gaps = 9,
				.cached = better ? 8 : 2,
				.prompt = 10,
				.failed = !better && unit % 2 == 0});
	}
	const double want[ARMS_FIGURES][2] = {{20, 10}, {20, 10}, {200, 100}, {0.2, 0.8}, {0.5, 0}};
	for (unsigned f = 0; f < ARMS_FIGURES; f++) {
		arms_estimate(a, 0, (enum arms_figure)f, &e);
		assert_true(
			fabs(e.live - want[f][0]) < 0.05 * want[f][0] && fabs(e.shadow - want[f][1]) < 1e-9);
		assert_int_equal(e.verdict, ARMS_BETTER);
		assert_int_equal(e.n_live + e.n_shadow, 4000);
	}
	/* Other rules begin a new comparison, and old requests don't count. */
	struct arms_seat old = arms_seat(a, 1, 10);
	arms_set(a, &half);
	arms_estimate(a, 0, ARMS_TTFT, &e);
	assert_int_equal(e.n_live + e.n_shadow, 4000);
	struct arms_rules other = half;
	other.live = ROUTE_RANDOM;
	arms_set(a, &other);
	arms_add(a, &old, &(struct arms_outcome){.ttft_ms = 1});
	arms_estimate(a, 0, ARMS_TTFT, &e);
	assert_int_equal(e.n_live + e.n_shadow, 0);
	arms_free(&a);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_conversation_is_one_unit),
		cmocka_unit_test(a_common_beginning_is_no_unit),
		cmocka_unit_test(a_share_of_the_units_follows),
		cmocka_unit_test(equal_arms_are_not_told_different),
		cmocka_unit_test(a_difference_is_told_with_its_sign),
		cmocka_unit_test(intervals_hold),
		cmocka_unit_test(arms_are_made_alike_by_length),
		cmocka_unit_test(nothing_is_told_of_few),
		cmocka_unit_test(all_figures_are_counted),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
