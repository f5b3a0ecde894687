/* SPDX-License-Identifier: Apache-2.0 */
/* Eviction: the order of the victims against a naive model; sizes; pinned items; ghosts; touches from other
 * threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <pthread.h>

#include <cmocka.h>

#include "base/mix/mix.h"
#include "policy/kv/evict/evict.h"

struct item {
	struct evict_node node;
	uint64_t key;
	bool pinned;
};

static uint64_t held_bytes(const struct evict *e)
{
	return e->ring[EVICT_SMALL].bytes + e->ring[EVICT_MAIN].bytes;
}

static uint64_t hash_of(struct evict_node *n)
{
	uint64_t h = (CGN_CONTAINER(n, struct item, node)->key + 1) * MIX_GOLDEN;
	return (h ^ h >> 29) * 0xbf58476d1ce4e5b9U;
}

static bool may_go(void *user, struct evict_node *n)
{
	(void)user;
	return !CGN_CONTAINER(n, struct item, node)->pinned;
}

static struct evict_cfg cfg_of(uint64_t bytes)
{
	return (struct evict_cfg){.bytes = bytes, .hash_of = hash_of};
}

static uint64_t victim_key(struct evict *e)
{
	struct evict_node *n = evict_victim(e, may_go, NULL);
	assert_non_null(n);
	assert_false(evict_has(n));
	return CGN_CONTAINER(n, struct item, node)->key;
}

/* Begin with room for |n| bytes and |n| items of one byte. */
static void evict_begin(struct evict *e, struct item *items, size_t n)
{
	struct evict_cfg c = cfg_of(n);
	evict_init(e, &c);
	for (size_t i = 0; i < n; i++) {
		items[i] = (struct item){.key = i};
		evict_add(e, &items[i].node, 1);
	}
}

static void evict_end(struct evict *e)
{
	assert_true(evict_sound(e));
	evict_fini(e);
}

static void first_in_goes_first_unless_it_was_used(void **state)
{
	(void)state;
	struct evict e;
	struct item items[10];
	evict_begin(&e, items, 10);
	evict_touch(&items[0].node);
	evict_touch(&items[3].node);
	assert_int_equal(victim_key(&e), 1);
	assert_int_equal(evict_worth(&items[1].node), 0);
	assert_int_equal(victim_key(&e), 2);
	assert_int_equal(victim_key(&e), 4);
	assert_int_equal(evict_count(&e), 7);
	assert_int_equal(held_bytes(&e), 7);
	evict_end(&e);
}

static void the_worth_of_an_item_is_reported(void **state)
{
	(void)state;
	struct evict e;
	struct item items[10];
	evict_begin(&e, items, 10);
	evict_touch(&items[1].node);
	assert_int_equal(evict_worth(&items[1].node), EVICT_USED);
	evict_touch(&items[2].node);
	evict_touch(&items[2].node);
	assert_int_equal(evict_worth(&items[2].node), EVICT_USED | EVICT_USED_MORE);
	for (int i = 0; i < 7; i++)
		victim_key(&e);
	assert_int_equal(evict_count(&e), 3); /* 9 in the small queue, which may take that share. */
	assert_int_equal(evict_worth(&items[0].node), 0);
	/* Visited by the hand, and still known as used. */
	assert_int_equal(evict_worth(&items[1].node), EVICT_USED);
	evict_touch(&items[1].node);
	assert_int_equal(evict_worth(&items[1].node), EVICT_USED);
	assert_int_equal(victim_key(&e), 2); /* The hand visits both in the main queue. */
	assert_true((evict_worth(&items[1].node) & EVICT_USED_MORE) != 0);
	evict_add(&e, &items[8].node, 1);
	assert_int_equal(evict_worth(&items[8].node), EVICT_CAME_BACK);
	evict_fini(&e);
}

static void a_refused_victim_stays(void **state)
{
	(void)state;
	struct evict e;
	struct item items[4];
	evict_begin(&e, items, 4);
	items[0].pinned = items[2].pinned = true;
	assert_int_equal(victim_key(&e), 1);
	assert_int_equal(victim_key(&e), 3);
	assert_null(evict_victim(&e, may_go, NULL));
	assert_int_equal(evict_count(&e), 2);
	items[2].pinned = false;
	assert_int_equal(victim_key(&e), 2);
	evict_drop(&e, &items[0].node);
	evict_drop(&e, &items[0].node); /* An item in no queue: nothing happens. */
	assert_null(evict_victim(&e, NULL, NULL));
	assert_int_equal(evict_count(&e), 0);
	evict_end(&e);
}

static void a_pinned_item_is_passed_over(void **state)
{
	(void)state;
	struct evict e;
	struct item items[100];
	evict_begin(&e, items, 100);
	for (size_t i = 0; i < 100; i++) {
		items[i].pinned = i % 10 != 7;
		if (!items[i].pinned)
			evict_touch(&items[i].node);
	}
	for (size_t i = 0; i < 10; i++) /* Used, but there is no other victim. */
		assert_int_equal(victim_key(&e), 10 * i + 7);
	assert_null(evict_victim(&e, may_go, NULL));
	assert_int_equal(evict_count(&e), 90);
	evict_end(&e);
}

static void a_reused_item_outlives_a_scan(void **state)
{
	(void)state;
	struct evict e;
	static struct item items[400];
	struct item again = {.key = 0};
	evict_begin(&e, items, 100);
	assert_int_equal(victim_key(&e), 0);
	evict_add(&e, &again.node, 1);
	assert_int_equal(evict_worth(&again.node), EVICT_CAME_BACK);
	for (size_t i = 100; i < 400; i++) {
		assert_int_equal(victim_key(&e), i - 99);
		items[i] = (struct item){.key = i};
		evict_add(&e, &items[i].node, 1);
	}
	assert_true(evict_has(&again.node));
	evict_fini(&e);
}

static void a_dropped_item_leaves_no_ghost(void **state)
{
	(void)state;
	struct evict e;
	struct item items[2];
	evict_begin(&e, items, 2);
	evict_drop(&e, &items[0].node);
	evict_add(&e, &items[0].node, 1);
	assert_int_equal(evict_worth(&items[0].node), 0);
	evict_fini(&e);
}

/* Sizes from a byte to a thousand: evictions make room, no more leave than necessary, and a large item does
 * not evict the small ones in use. */
static void sizes_count(void **state)
{
	(void)state;
	enum { N = 2000, BUDGET = 100000 };
	static struct item items[N];
	struct evict e;
	struct evict_cfg c = cfg_of(BUDGET);
	uint64_t r = 1, wanted = 0;
	evict_init(&e, &c);
	for (size_t i = 0; i < N; i++) {
		(void)mix_lcg(&r);
		uint32_t bytes = (uint32_t)(1 + (r >> 33) % 1000);
		items[i] = (struct item){.key = i};
		for (; held_bytes(&e) + bytes > BUDGET; wanted++) {
			uint64_t before = held_bytes(&e);
			struct evict_node *n = evict_victim(&e, may_go, NULL);
			assert_int_equal(held_bytes(&e), before - n->bytes);
		}
		evict_add(&e, &items[i].node, bytes);
		if (i < 20)
			evict_touch(&items[i].node);
		assert_true(held_bytes(&e) <= BUDGET);
	}
	assert_true(wanted < N);
	/* No ghost came back, so items used once still have the larger part of the tier. */
	for (size_t i = 0; i < 20; i++)
		assert_true(evict_has(&items[i].node));
	evict_end(&e);
}

static void ghosts_are_bounded(void **state)
{
	(void)state;
	enum { HELD = 1000, CAME = 100000 };
	static struct item items[HELD];
	struct evict e;
	evict_begin(&e, items, HELD);
	for (uint64_t i = HELD; i < CAME; i++) {
		struct item *it = CGN_CONTAINER(evict_victim(&e, NULL, NULL), struct item, node);
		it->key = i;
		evict_add(&e, &it->node, 1);
		assert_true(evict_bytes(&e) <= 25 * HELD + 2048);
	}
	assert_true(evict_bytes(&e) >= 20 * HELD);
	evict_fini(&e);
	evict_fini(&e);
	evict_fini(NULL);
}

/* ---- the naive model ---- */

#define KEYS 150
struct naive {
	uint64_t bytes, small_bytes;
	int order[2][KEYS], n[2]; /* Keys, the oldest first. */
	uint32_t size[KEYS];
	int uses[KEYS], queue[KEYS]; /* |queue| -1: absent. */
	int from[KEYS];              /* A ghost's former queue; -1: none. */
	uint64_t left[2], at[KEYS];
};

static uint64_t naive_held(const struct naive *m, int queue)
{
	uint64_t sum = 0;
	for (int i = 0; i < m->n[queue]; i++)
		sum += m->size[m->order[queue][i]];
	return sum;
}

static void naive_put(struct naive *m, int queue, int key)
{
	m->order[queue][m->n[queue]++] = key;
	m->queue[key] = queue;
}

static void naive_take(struct naive *m, int key)
{
	int *o = m->order[m->queue[key]], i = 0, *n = &m->n[m->queue[key]];
	while (o[i] != key)
		i++;
	memmove(o + i, o + i + 1, sizeof *o * (size_t)(--*n - i));
	m->queue[key] = -1;
}

static void naive_add(struct naive *m, int key, uint32_t bytes)
{
	uint64_t nodes = (uint64_t)(m->n[0] + m->n[1]),
		 ago = m->from[key] >= 0 ? m->left[m->from[key]] - m->at[key] : UINT64_MAX;
	int queue = 0;
	m->size[key] = bytes;
	if (ago <= nodes / 5) {
		int64_t all = (int64_t)m->bytes, step = bytes > m->bytes / 1000 ? (int64_t)bytes : all / 1000;
		int64_t to = (int64_t)m->small_bytes + (m->from[key] == 0 ? step : -step);
		to = to < all / 50 ? all / 50 : to;
		to = to > all / 10 * 9 ? all / 10 * 9 : to;
		m->small_bytes = (uint64_t)to;
	}
	if (ago <= (m->from[key] == 0 ? 2 * nodes : nodes / 2))
		queue = 1;
	m->from[key] = -1;
	m->uses[key] = 0;
	naive_put(m, queue, key);
}

static int naive_victim(struct naive *m)
{
	while (m->n[0] + m->n[1] > 0) {
		int queue = m->n[0] > 0 && (m->n[1] == 0 || naive_held(m, 0) > m->small_bytes) ? 0 : 1,
		    key = m->order[queue][0];
		naive_take(m, key);
		if (m->uses[key] == 0) {
			m->from[key] = queue;
			m->at[key] = m->left[queue]++;
			return key;
		}
		m->uses[key] = queue == 1 ? m->uses[key] - 1 : 0;
		naive_put(m, 1, key);
	}
	return -1;
}

/* Draw a key: runs as in prompts, some more popular than others, with scans between. */
static int draw_key(uint64_t *r, int step)
{
	static int run = 0;
	(void)mix_lcg(r);
	uint64_t v = *r >> 33;
	if (step % 8 == 0)
		run = (int)(v % 10 < 7 ? v / 10 % 40 : v / 10 % KEYS);
	return (run + step % 8) % KEYS;
}

static void the_order_equals_the_naive_model(void **state)
{
	(void)state;
	static struct item items[KEYS];
	struct naive m = {.bytes = 6000, .small_bytes = 600};
	struct evict e;
	struct evict_cfg c = cfg_of(m.bytes);
	uint64_t r = 7, hits = 0, moved = 0;
	evict_init(&e, &c);
	for (int k = 0; k < KEYS; k++) {
		items[k] = (struct item){.key = (uint64_t)k};
		m.queue[k] = m.from[k] = -1;
	}
	for (int step = 0; step < 40000; step++) {
		int key = draw_key(&r, step);
		uint32_t bytes = 50 + (uint32_t)(key * 7 % 100);
		if (evict_has(&items[key].node) && r >> 60 == 0) {
			evict_drop(&e, &items[key].node);
			naive_take(&m, key);
		}
		if (evict_has(&items[key].node)) {
			evict_touch(&items[key].node);
			m.uses[key] += m.uses[key] < EVICT_MAX_USES;
			hits++;
			continue;
		}
		while (held_bytes(&e) + bytes > c.bytes)
			assert_int_equal(victim_key(&e), naive_victim(&m));
		evict_add(&e, &items[key].node, bytes);
		naive_add(&m, key, bytes);
		moved += e.small_bytes != 600;
		assert_int_equal(e.small_bytes, m.small_bytes);
		assert_int_equal(held_bytes(&e), naive_held(&m, 0) + naive_held(&m, 1));
		assert_int_equal(items[key].node.queue, m.queue[key]);
		assert_true(step % 97 != 0 || evict_sound(&e));
	}
	assert_true(hits > 5000 && moved > 5000);
	evict_fini(&e);
}

/* ---- threads ---- */

struct toucher {
	struct item *items;
	_Atomic bool stop;
};

static void *touch_all(void *arg)
{
	struct toucher *t = arg;
	while (!atomic_load(&t->stop)) {
		for (size_t i = 0; i < 64; i++) {
			evict_touch(&t->items[i].node);
			(void)evict_worth(&t->items[i].node);
		}
	}
	return NULL;
}

/* The first 64 stay pinned, like items that a reader holds; others come and go. */
static void touches_need_no_lock(void **state)
{
	(void)state;
	static struct item items[256];
	struct toucher t = {.items = items};
	struct evict e;
	pthread_t threads[2];
	evict_begin(&e, items, 256);
	for (size_t i = 0; i < 64; i++)
		items[i].pinned = true;
	for (size_t i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, touch_all, &t), 0);
	for (uint64_t i = 0; i < 20000; i++) {
		struct item *it = CGN_CONTAINER(evict_victim(&e, may_go, NULL), struct item, node);
		assert_false(it->pinned);
		it->key = 256 + i;
		evict_add(&e, &it->node, 1);
	}
	atomic_store(&t.stop, true);
	for (size_t i = 0; i < 2; i++)
		(void)pthread_join(threads[i], NULL);
	assert_int_equal(evict_count(&e), 256);
	evict_end(&e);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(first_in_goes_first_unless_it_was_used),
		cmocka_unit_test(the_worth_of_an_item_is_reported),
		cmocka_unit_test(a_refused_victim_stays),
		cmocka_unit_test(a_pinned_item_is_passed_over),
		cmocka_unit_test(a_reused_item_outlives_a_scan),
		cmocka_unit_test(a_dropped_item_leaves_no_ghost),
		cmocka_unit_test(sizes_count),
		cmocka_unit_test(ghosts_are_bounded),
		cmocka_unit_test(the_order_equals_the_naive_model),
		cmocka_unit_test(touches_need_no_lock),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
