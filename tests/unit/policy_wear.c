/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/kv/wear/wear.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "policy/kv/evict/evict.h"

#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)
#define DAY (24 * 3600 * CGN_SEC)

/* Offer |n| blocks of 1 MiB; write those that are admitted. Returns how many were. */
static unsigned blocks_offer(struct wear *w, enum wear_class c, unsigned n, bool room, cgn_nsec now)
{
	unsigned got = 0;
	for (unsigned i = 0; i < n; i++) {
		if (!wear_admits(w, c, MIB, room, now))
			continue;
		wear_wrote(w, c, MIB);
		wear_spent(w, MIB);
		got++;
	}
	return got;
}

/* Whether the class is written without room, and not only as a sample: two samples never follow each other. */
static bool class_wanted(struct wear copy, enum wear_class c)
{
	return wear_admits(&copy, c, MIB, false, 0) && wear_admits(&copy, c, MIB, false, 0);
}

static void test_a_tier_with_room_takes_everything(void **state)
{
	struct wear w;
	(void)state;
	wear_init(&w, GIB, GIB, 0);
	assert_int_equal(blocks_offer(&w, WEAR_ONCE, 800, true, 0), 800);
	wear_init(&w, GIB, 0, 0); /* without a limit */
	assert_int_equal(blocks_offer(&w, WEAR_ONCE, 10000, true, 0), 10000);
}

static void test_the_budget_is_a_bound(void **state)
{
	struct wear w;
	unsigned got = 0;
	(void)state;
	wear_init(&w, GIB, GIB, 0);
	for (unsigned day = 0; day < 10; day++)
		for (unsigned hour = 0; hour < 24; hour++)
			got += blocks_offer(&w, (enum wear_class)(hour % WEAR_CLASSES), 500, hour % 2 == 0,
				(day * 24U + hour) * (DAY / 24));
	assert_in_range(got, 9 * 1024, 11 * 1024); /* ten days, and the saved writes */
	wear_init(&w, GIB, GIB, 0);
	wear_read(&w, WEAR_BACK, 1000000 * MIB);
	assert_int_equal(blocks_offer(&w, WEAR_BACK, 5000, true, 0), 1024);
	assert_int_equal(blocks_offer(&w, WEAR_BACK, 5000, true, DAY / 2), 512);
	assert_int_equal(blocks_offer(&w, WEAR_BACK, 5000, true, 100 * DAY),
		1024); /* At most one day's budget is saved. */
}

/* Without room, blocks that are never read from SSD are not written any more, but for samples. */
static void test_what_is_not_read_is_not_written(void **state)
{
	struct wear w;
	(void)state;
	wear_init(&w, GIB, 0, 0);
	(void)blocks_offer(&w, WEAR_ONCE, 1024, true, 0);
	assert_in_range(blocks_offer(&w, WEAR_ONCE, 3200, false, 0), 50, 110);
	assert_int_equal(blocks_offer(&w, WEAR_BACK, 10, false, 0),
		10); /* nothing speaks against these yet */
}

/* The store of a chat: a conversation's blocks are read for the first time when it continues. */
static void test_what_is_read_is_written(void **state)
{
	struct wear w;
	(void)state;
	wear_init(&w, GIB, 0, 0);
	for (unsigned i = 0; i < 1024; i++) {
		assert_int_equal(blocks_offer(&w, WEAR_ONCE, 1, true, 0), 1);
		if (i % 2 == 0)
			wear_read(&w, WEAR_ONCE, MIB);
	}
	assert_int_equal(blocks_offer(&w, WEAR_ONCE, 100, false, 0), 100);
}

static void test_the_best_class_gets_the_rest_of_the_budget(void **state)
{
	struct wear w;
	(void)state;
	wear_init(&w, GIB, GIB, 0);
	for (unsigned i = 0; i < 256; i++) {
		wear_wrote(&w, WEAR_ONCE, MIB);
		wear_wrote(&w, WEAR_BACK, MIB);
		wear_read(&w, WEAR_BACK, 2 * MIB);
		wear_read(&w, WEAR_ONCE, MIB);
	}
	unsigned once = 0;
	for (unsigned i = 0; i < 1100; i++) {
		once += blocks_offer(&w, WEAR_ONCE, 1, false, 0);
		wear_read(&w, WEAR_ONCE, MIB);
	}
	assert_in_range(once, 850, 1010);
	assert_int_equal(blocks_offer(&w, WEAR_BACK, 1000, false, 0), 1024 - once);
	assert_int_equal(blocks_offer(&w, WEAR_BACK, 1, false, 0), 0);
}

/* Old measurements count less and less. */
static void test_a_change_is_noticed(void **state)
{
	struct wear w;
	(void)state;
	wear_init(&w, GIB, 0, 0);
	(void)blocks_offer(&w, WEAR_ONCE, 4096, true, 0);
	assert_false(class_wanted(w, WEAR_ONCE));
	for (unsigned i = 0; i < 32000 && !class_wanted(w, WEAR_ONCE); i++)
		if (blocks_offer(&w, WEAR_ONCE, 1, false, 0) > 0)
			wear_read(&w, WEAR_ONCE, MIB);
	assert_true(class_wanted(w, WEAR_ONCE));
}

/* Old writes and old reads lose weight alike: a class of which the same part is always read keeps its worth. */
static void test_age_changes_no_yield(void **state)
{
	struct wear little, enough;
	(void)state;
	wear_init(&little, GIB, 0, 0);
	wear_init(&enough, GIB, 0, 0);
	for (unsigned i = 0; i < 20 * 1024; i++) {
		wear_wrote(&little, WEAR_USED, MIB);
		wear_wrote(&enough, WEAR_USED, MIB);
		wear_read(&little, WEAR_USED, MIB / 10);
		wear_read(&enough, WEAR_USED, MIB / 7);
		if (i < 1024)
			continue;
		assert_false(class_wanted(little, WEAR_USED));
		assert_true(class_wanted(enough, WEAR_USED));
	}
}

static void test_classes(void **state)
{
	(void)state;
	assert_int_equal(wear_class_of(0), WEAR_ONCE);
	assert_int_equal(wear_class_of(EVICT_USED), WEAR_USED);
	assert_int_equal(wear_class_of(EVICT_USED | EVICT_USED_MORE), WEAR_OFTEN);
	assert_int_equal(wear_class_of(EVICT_USED | EVICT_CAME_BACK), WEAR_BACK);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_tier_with_room_takes_everything),
		cmocka_unit_test(test_the_budget_is_a_bound),
		cmocka_unit_test(test_what_is_not_read_is_not_written),
		cmocka_unit_test(test_what_is_read_is_written),
		cmocka_unit_test(test_the_best_class_gets_the_rest_of_the_budget),
		cmocka_unit_test(test_a_change_is_noticed),
		cmocka_unit_test(test_age_changes_no_yield),
		cmocka_unit_test(test_classes),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
