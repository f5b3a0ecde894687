/* SPDX-License-Identifier: Apache-2.0 */
/* The two tables of requests in flight: prompts (pending) and prefixes (heat). */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "policy/route/routing/hotprefix.h"
#include "policy/route/routing/pending.h"
#include "policy/route/routing/routing.h"

#define BLOCKS 50

static void fill_chain(uint64_t *chain, size_t n, uint64_t seed)
{
	for (size_t i = 0; i < n; i++)
		chain[i] = route_hash(&(uint64_t[]){seed, i}, 2 * sizeof(uint64_t));
}

static struct pending *pending_of(size_t bytes)
{
	struct pending *p = pending_new(bytes);
	return p;
}

static void cands_fill(struct route_cand *c, size_t n)
{
	for (size_t i = 0; i < n; i++)
		c[i] = (struct route_cand){.slot = (uint16_t)(i * 7), .fed = true};
}

/* Return the blocks that the nth of four candidates is assumed to hold. */
static uint32_t held_blocks(const struct pending *p, const uint64_t *chain, size_t n, size_t nth,
	cgn_nsec now)
{
	struct route_cand c[4];
	cands_fill(c, 4);
	pending_match(p, chain, n, c, 4, now);
	return c[nth].held;
}

static void what_is_on_its_way_counts_as_held(void **state)
{
	(void)state;
	struct pending *p = pending_of(1 << 16);
	uint64_t chain[BLOCKS], other[BLOCKS];
	fill_chain(chain, BLOCKS, 1);
	fill_chain(other, BLOCKS, 2);
	for (size_t i = 0; i < 20; i++)
		other[i] = chain[i];
	assert_int_equal(held_blocks(p, chain, BLOCKS, 1, 0), 0);
	assert_true(pending_add(p, chain, BLOCKS, 0, 7, 0, 10 * CGN_SEC) != 0);
	assert_int_equal(held_blocks(p, chain, BLOCKS, 1, CGN_SEC), BLOCKS);
	assert_int_equal(held_blocks(p, other, BLOCKS, 1, CGN_SEC), 20);
	assert_int_equal(held_blocks(p, chain, BLOCKS, 0, CGN_SEC), 0);
	assert_int_equal(held_blocks(p, chain, 0, 1, CGN_SEC), 0);
	pending_free(&p);
	assert_null(p);
	pending_free(&p);
}

static void an_entry_extends_the_reported_blocks(void **state)
{
	(void)state;
	struct pending *p = pending_of(1 << 16);
	uint64_t chain[BLOCKS];
	struct route_cand c[4];
	fill_chain(chain, BLOCKS, 1);
	pending_add(p, chain, BLOCKS, 30, 7, 0, 10 * CGN_SEC); /* The node held 30. */
	cands_fill(c, 4);
	c[0].held = 40; /* The other nodes hold the blocks that they reported. */
	c[1].held = 30;
	c[2].held = 30;
	c[3] = (struct route_cand){.slot = 21, .held = 30};
	pending_match(p, chain, BLOCKS, c, 4, CGN_SEC);
	assert_int_equal(c[0].held, 40);
	assert_int_equal(c[1].held, BLOCKS);
	assert_int_equal(c[1].by_tier[BLOCK_GPU], BLOCKS - 30);
	assert_int_equal(c[2].held, 30);
	assert_int_equal(c[3].held, 30);
	/* The node evicted all of it meanwhile: the assumed blocks have no beginning any more. */
	cands_fill(c, 4);
	pending_match(p, chain, BLOCKS, c, 4, CGN_SEC);
	assert_int_equal(c[1].held, 0);
	cands_fill(c, 4); /* The node confirmed some of it. */
	c[1].held = 35;
	pending_match(p, chain, BLOCKS, c, 4, CGN_SEC);
	assert_int_equal(c[1].held, BLOCKS);
	pending_free(&p);
}

static void an_entry_expires(void **state)
{
	(void)state;
	struct pending *p = pending_of(1 << 16);
	uint64_t chain[BLOCKS], other[BLOCKS];
	fill_chain(chain, BLOCKS, 1);
	fill_chain(other, BLOCKS, 2);
	cgn_nsec start = 90 * 24 * 3600 * CGN_SEC + 123; /* The clock has wrapped many times. */
	uint32_t a = pending_add(p, chain, BLOCKS, 0, 7, start, 10 * CGN_SEC);
	assert_int_equal(held_blocks(p, chain, BLOCKS, 1, start + 9 * CGN_SEC), BLOCKS);
	assert_int_equal(held_blocks(p, chain, BLOCKS, 1, start + 11 * CGN_SEC), 0);
	assert_int_equal(held_blocks(p, chain, BLOCKS, 1, start + 3600 * CGN_SEC), 0);
	pending_limit(p, a, start + 11 * CGN_SEC, 10 * CGN_SEC); /* An expired entry stays expired. */
	assert_int_equal(held_blocks(p, chain, BLOCKS, 1, start + 12 * CGN_SEC), 0);
	start += 20 * CGN_SEC;
	a = pending_add(p, chain, BLOCKS, 0, 7, start, 600 * CGN_SEC);
	pending_limit(p, a, start + CGN_SEC, 2 * CGN_SEC);
	assert_int_equal(held_blocks(p, chain, BLOCKS, 1, start + 2 * CGN_SEC), BLOCKS);
	assert_int_equal(held_blocks(p, chain, BLOCKS, 1, start + 4 * CGN_SEC), 0);
	start += 20 * CGN_SEC;
	a = pending_add(p, chain, BLOCKS, 0, 7, start, 600 * CGN_SEC);
	uint32_t b = pending_add(p, other, BLOCKS, 0, 14, start, 600 * CGN_SEC);
	pending_drop(p, a);
	pending_drop(p, a);
	assert_int_equal(held_blocks(p, chain, BLOCKS, 1, start), 0);
	assert_int_equal(held_blocks(p, other, BLOCKS, 2, start), BLOCKS);
	pending_drop(p, b);
	pending_add(p, chain, BLOCKS, 0, 7, start, 9999 * CGN_SEC);
	assert_int_equal(held_blocks(p, chain, BLOCKS, 1, start + PENDING_LONGEST + CGN_SEC), 0);
	pending_free(&p);
}

static void the_ring_keeps_the_newest_in_bounded_memory(void **state)
{
	(void)state;
	struct pending *p = pending_of(1 << 15); /* 4096 blocks. */
	uint64_t chain[BLOCKS];
	for (uint64_t i = 0; i < 40000; i++) { /* The ring wraps too. */
		fill_chain(chain, BLOCKS, i);
		pending_add(p, chain, BLOCKS, 0, 7, 0, 60 * CGN_SEC);
	}
	assert_in_range(pending_bytes(p), 1 << 15, 300000);
	assert_int_equal(held_blocks(p, chain, BLOCKS, 1, CGN_SEC), BLOCKS);
	fill_chain(chain, BLOCKS, 3);
	assert_int_equal(held_blocks(p, chain, BLOCKS, 1, CGN_SEC), 0);
	pending_free(&p);
}

static void heat_counts_what_is_under_way(void **state)
{
	(void)state;
	struct hotprefix *h = hotprefix_new(4096);
	assert_int_equal(hotprefix_count(h, 5), 0);
	for (int i = 0; i < 40; i++)
		assert_true(hotprefix_add(h, 5));
	assert_true(hotprefix_add(h, 6));
	assert_int_equal(hotprefix_count(h, 5), 40);
	assert_int_equal(hotprefix_count(h, 6), 1);
	for (int i = 0; i < 40; i++)
		hotprefix_drop(h, 5);
	assert_int_equal(hotprefix_count(h, 5), 0);
	hotprefix_drop(h, 5);
	assert_int_equal(hotprefix_count(h, 5), 0);
	assert_int_equal(hotprefix_count(h, 6), 1);
	unsigned counted = 0;
	for (uint64_t i = 0; i < 5000; i++) /* 512 places: the rest is not counted, and gives nothing back. */
		counted += hotprefix_add(h, route_hash(&i, sizeof i));
	assert_in_range(counted, 300, 511);
	assert_in_range(hotprefix_bytes(h), 4096, 8192);
	hotprefix_free(&h);
	hotprefix_free(&h);
}

struct racer {
	struct hotprefix *hotprefix;
	struct pending *pending;
	uint64_t seed;
};

static void *race_thread(void *arg)
{
	struct racer *a = arg;
	uint64_t chain[BLOCKS];
	struct route_cand c[4];
	for (uint64_t i = 0; i < 4000; i++) {
		bool added = hotprefix_add(a->hotprefix, i % 13);
		fill_chain(chain, BLOCKS, (i + a->seed) % 11);
		uint32_t b =
			pending_add(a->pending, chain, BLOCKS, 0, (uint16_t)(i % 3 * 7), i, 600 * CGN_SEC);
		cands_fill(c, 4);
		pending_match(a->pending, chain, BLOCKS, c, 4, i);
		for (size_t k = 0; k < 4; k++)
			if (c[k].held > BLOCKS)
				return arg;
		pending_drop(a->pending, b);
		if (added)
			hotprefix_drop(a->hotprefix, i % 13);
	}
	return c[3].held > 0 ? arg : NULL;
}

static void the_tables_are_safe_without_locks(void **state)
{
	(void)state;
	struct hotprefix *h = hotprefix_new(4096);
	struct pending *p = pending_of(1 << 15);
	struct racer a[3] = {{h, p, 1}, {h, p, 5}, {h, p, 9}};
	pthread_t t[3];
	for (int i = 0; i < 3; i++)
		assert_int_equal(pthread_create(&t[i], NULL, race_thread, &a[i]), 0);
	for (int i = 0; i < 3; i++) {
		void *bad = &a[i];
		assert_int_equal(pthread_join(t[i], &bad), 0);
		assert_null(bad);
	}
	for (uint64_t i = 0; i < 13; i++)
		assert_int_equal(hotprefix_count(h, i), 0);
	uint64_t chain[BLOCKS];
	for (uint64_t i = 0; i < 11; i++) {
		fill_chain(chain, BLOCKS, i);
		assert_int_equal(held_blocks(p, chain, BLOCKS, 1, 4000), 0);
	}
	hotprefix_free(&h);
	pending_free(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_on_its_way_counts_as_held),
		cmocka_unit_test(an_entry_extends_the_reported_blocks),
		cmocka_unit_test(an_entry_expires),
		cmocka_unit_test(the_ring_keeps_the_newest_in_bounded_memory),
		cmocka_unit_test(heat_counts_what_is_under_way),
		cmocka_unit_test(the_tables_are_safe_without_locks),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
