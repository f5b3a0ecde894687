/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/mix/mix.h"
#include "policy/who/quota/quota.h"

#define MOST_HOLDERS 16

/* Let a holder take units one by one until it is refused. */
static uint64_t take_all(enum quota_kind kind, uint64_t *held, uint64_t *free)
{
	while (quota_may(kind, *held, *free, 1)) {
		++*held;
		--*free;
	}
	return *held;
}

static void one_holder_gets_most_and_never_all(void **state)
{
	(void)state;
	for (uint64_t size = 2; size < 3000; size++) {
		uint64_t held = 0, free = size;
		assert_true(take_all(QUOTA_CALLS, &held, &free) == (size / 2 > 1 ? size / 2 : 1));
		assert_true(free >= 1);
		held = 0;
		free = size;
		(void)take_all(QUOTA_REQUESTS, &held, &free);
		assert_true(held == (size * 9 / 10 > 1 ? size * 9 / 10 : 1));
	}
}

static void a_supply_of_one_serves_one(void **state)
{
	(void)state;
	uint64_t held = 0, free = 1;
	assert_true(take_all(QUOTA_REQUESTS, &held, &free) == 1);
	assert_false(quota_may(QUOTA_REQUESTS, 0, 0, 1));
}

/* In any order of taking and giving: a holder that has none gets one while any is free, and no holder that has one takes the last. */
static void who_holds_none_is_served_before_who_holds_some(void **state)
{
	(void)state;
	uint64_t seed = 7;
	for (int run = 0; run < 200; run++) {
		uint64_t held[MOST_HOLDERS] = {0}, size = 1 + mix_splitmix(&seed) % 300, free = size;
		enum quota_kind kind = mix_splitmix(&seed) % 2 ? QUOTA_REQUESTS : QUOTA_BATCHES;
		for (int step = 0; step < 2000; step++) {
			uint64_t *h = &held[mix_splitmix(&seed) % MOST_HOLDERS];
			if (mix_splitmix(&seed) % 3 == 0 && *h > 0) {
				--*h;
				free++;
				continue;
			}
			bool may = quota_may(kind, *h, free, 1);
			assert_true(may || *h > 0 || free == 0);
			assert_false(may && *h > 0 && free == 1);
			*h += may;
			free -= may;
		}
	}
}

/* All want as much as they get, and give one back now and then: each ends with its even part. */
static void greedy_holders_end_even(void **state)
{
	(void)state;
	uint64_t seed = 11;
	for (uint64_t k = 1; k <= 8; k++) {
		uint64_t held[8] = {0}, free = 960;
		for (int step = 0; step < 200000; step++) {
			uint64_t *h = &held[mix_splitmix(&seed) % k];
			bool gives = mix_splitmix(&seed) % 2 == 0 && *h > 0;
			if (gives) {
				--*h;
				free++;
			}
			(void)take_all(QUOTA_BATCHES, &held[mix_splitmix(&seed) % k], &free);
		}
		for (uint64_t i = 0; i < k; i++)
			assert_in_range(held[i], 960 / (k + 1) - 40, 960 / (k + 1) + 40);
	}
}

static void amounts_are_granted_whole(void **state)
{
	(void)state;
	assert_true(quota_may(QUOTA_BODIES, 0, 1000, 500));
	assert_false(quota_may(QUOTA_BODIES, 0, 1000, 501));
	assert_false(quota_may(QUOTA_BODIES, 0, 10, 11));
	assert_true(quota_limit(QUOTA_BODIES, UINT64_MAX, UINT64_MAX) > 0); /* No sum overflows. */
	assert_false(quota_may(QUOTA_BODIES, 0, UINT64_MAX, UINT64_MAX));
}

static void holders_are_counted_by_tenant_and_supply(void **state)
{
	(void)state;
	struct quota_table *t = quota_table_new();
	const struct quota_holder a = {QUOTA_REQUESTS, CGN_STR("a"), 1},
				  a2 = {QUOTA_REQUESTS, CGN_STR("a"), 2},
				  b = {QUOTA_REQUESTS, CGN_STR("b"), 1},
				  other = {QUOTA_CALLS, CGN_STR("a"), 0};
	quota_add(t, &a, 3);
	quota_add(t, &a2, 4);
	quota_add(t, &b, 5);
	quota_add(t, &other, 6);
	quota_add(t, &other, 0);
	assert_true(quota_held(t, &a) == 3 && quota_held(t, &a2) == 4 && quota_held(t, &b) == 5);
	assert_true(quota_tenant(t, QUOTA_REQUESTS, CGN_STR("a")) == 7);
	assert_true(quota_total(t, QUOTA_REQUESTS) == 12 && quota_total(t, QUOTA_CALLS) == 6);
	quota_give(t, &a, 3);
	quota_give(t, &a, 0);
	assert_true(quota_held(t, &a) == 0 && quota_total(t, QUOTA_REQUESTS) == 9);
	quota_table_free(&t);
	quota_table_free(&t);
}

static void long_names_are_cut_alike(void **state)
{
	(void)state;
	char name[QUOTA_NAME_MAX + 40];
	memset(name, 'x', sizeof name);
	struct quota_table *t = quota_table_new();
	const struct quota_holder h = {QUOTA_FILES, {name, sizeof name}, 0};
	quota_add(t, &h, 2);
	assert_true(quota_held(t, &h) == 2);
	quota_give(t, &h, 2);
	quota_table_free(&t);
}

static void each_kind_leaves_something(void **state)
{
	(void)state;
	for (enum quota_kind k = 0; k < QUOTA_KINDS; k++) {
		assert_true(quota_name(k)[0] != '\0' && quota_nouns(k)[0] != '\0');
		assert_in_range(quota_limit(k, 0, 1000), 1, 999);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(one_holder_gets_most_and_never_all),
		cmocka_unit_test(a_supply_of_one_serves_one),
		cmocka_unit_test(who_holds_none_is_served_before_who_holds_some),
		cmocka_unit_test(greedy_holders_end_even),
		cmocka_unit_test(amounts_are_granted_whole),
		cmocka_unit_test(holders_are_counted_by_tenant_and_supply),
		cmocka_unit_test(long_names_are_cut_alike),
		cmocka_unit_test(each_kind_leaves_something),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
