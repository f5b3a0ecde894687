/* SPDX-License-Identifier: Apache-2.0 */
/* Eviction: who leaves and who stays, in which order; pinned ones; ghosts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "policy/evict/evict.h"

struct item {
	struct evict_node node;
	uint64_t key;
	bool pinned;
};

static uint64_t hash_of(struct evict_node *n)
{
	uint64_t h = (CGN_CONTAINER(n, struct item, node)->key + 1) * 0x9e3779b97f4a7c15U;
	return (h ^ h >> 29) * 0xbf58476d1ce4e5b9U;
}

static bool may_go(void *user, struct evict_node *n)
{
	(void)user;
	return !CGN_CONTAINER(n, struct item, node)->pinned;
}

static struct evict_cfg cfg(uint64_t bytes)
{
	return (struct evict_cfg){.bytes = bytes, .hash_of = hash_of};
}

static uint64_t victim(struct evict *e)
{
	struct evict_node *n = evict_victim(e, may_go, NULL);
	assert_non_null(n);
	assert_false(evict_has(n));
	return CGN_CONTAINER(n, struct item, node)->key;
}

static void fill(struct evict *e, struct item *items, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		items[i] = (struct item){.key = i};
		evict_add(e, &items[i].node, 1);
	}
}

static void first_in_goes_first_unless_it_was_used(void **state)
{
	(void)state;
	struct evict e;
	struct item items[10];
	evict_init(&e, &(struct evict_cfg){.bytes = 10, .hash_of = hash_of});
	fill(&e, items, 10);
	evict_touch(&items[0].node);
	evict_touch(&items[3].node);
	assert_int_equal(victim(&e), 1);
	assert_int_equal(evict_worth(&items[1].node), 0);
	assert_int_equal(victim(&e), 2);
	assert_int_equal(victim(&e), 4);
	assert_int_equal(evict_count(&e), 7);
	assert_int_equal(evict_held_bytes(&e), 7);
	assert_int_equal(evict_worth(&items[0].node), EVICT_USED | EVICT_MAIN);
	evict_fini(&e);
}

static void who_may_not_go_stays(void **state)
{
	(void)state;
	struct evict e;
	struct item items[4];
	struct evict_cfg c = cfg(4);
	evict_init(&e, &c);
	fill(&e, items, 4);
	items[0].pinned = items[2].pinned = true;
	assert_int_equal(victim(&e), 1);
	assert_int_equal(victim(&e), 3);
	assert_null(evict_victim(&e, may_go, NULL));
	assert_int_equal(evict_count(&e), 2);
	items[2].pinned = false;
	assert_int_equal(victim(&e), 2);
	evict_drop(&e, &items[0].node);
	evict_drop(&e, &items[0].node); /* in no queue: nothing */
	assert_null(evict_victim(&e, NULL, NULL));
	assert_int_equal(evict_count(&e), 0);
	evict_fini(&e);
}

static void who_comes_back_soon_outlives_a_scan(void **state)
{
	(void)state;
	struct evict e;
	struct item items[200], again = {.key = 0};
	struct evict_cfg c = cfg(100);
	evict_init(&e, &c);
	fill(&e, items, 100);
	assert_int_equal(victim(&e), 0);
	evict_add(&e, &again.node, 1);
	assert_int_equal(evict_worth(&again.node), EVICT_CAME_BACK | EVICT_MAIN);
	for (size_t i = 100; i < 200; i++) {
		assert_int_equal(victim(&e), i - 99);
		items[i] = (struct item){.key = i};
		evict_add(&e, &items[i].node, 1);
	}
	assert_true(evict_has(&again.node));
	evict_fini(&e);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(first_in_goes_first_unless_it_was_used),
		cmocka_unit_test(who_may_not_go_stays),
		cmocka_unit_test(who_comes_back_soon_outlives_a_scan),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
