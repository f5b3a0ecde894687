/* SPDX-License-Identifier: Apache-2.0 */
#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mix/mix.h"
#include "policy/kv/holdings/holdings.h"

static struct holdings *make_holdings(size_t max, holdings_changed changed, void *user)
{
	struct holdings *h = holdings_new(max, changed, user);
	return h;
}

static void add_digest(struct holdings *h, uint64_t digest, enum block_tier tier)
{
	assert_true(cgn_ok(holdings_add(h, digest, tier)));
}

struct told {
	const struct holdings *h;
	uint64_t digest;
	unsigned tiers, calls;
};

static void note_change(void *user, uint64_t digest)
{
	struct told *t = user;
	t->digest = digest;
	t->tiers = holdings_tiers(t->h, digest);
	t->calls++;
}

static void a_block_is_gone_with_the_last_reference(void **state)
{
	(void)state;
	struct told t = {0};
	struct holdings *h = make_holdings(10, note_change, &t);
	t.h = h;
	add_digest(h, 7, BLOCK_GPU);
	add_digest(h, 7, BLOCK_GPU);
	assert_int_equal(t.calls, 1);
	add_digest(h, 7, BLOCK_RAM);
	assert_int_equal(t.calls, 2);
	assert_int_equal(t.tiers, BLOCK_TIER_BIT(BLOCK_GPU) | BLOCK_TIER_BIT(BLOCK_RAM));
	assert_true(holdings_drop(h, 7, BLOCK_GPU));
	assert_int_equal(t.calls, 2);
	assert_true(holdings_drop(h, 7, BLOCK_GPU));
	assert_int_equal(t.calls, 3);
	assert_int_equal(t.tiers, BLOCK_TIER_BIT(BLOCK_RAM));
	assert_false(holdings_drop(h, 7, BLOCK_GPU));
	assert_false(holdings_drop(h, 8, BLOCK_RAM));
	assert_int_equal(t.calls, 3);
	assert_true(holdings_drop(h, 7, BLOCK_RAM));
	assert_true(t.calls == 4 && t.tiers == 0 && t.digest == 7);
	assert_int_equal(holdings_count(h), 0);
	holdings_free(&h);
	assert_null(h);
	holdings_free(&h);
}

static void the_limit_refuses_and_changes_nothing(void **state)
{
	(void)state;
	struct told t = {0};
	struct holdings *h = make_holdings(2, note_change, &t);
	t.h = h;
	add_digest(h, 0, BLOCK_SSD); /* 0 is a digest like any other. */
	add_digest(h, UINT64_MAX, BLOCK_SSD);
	assert_int_equal(holdings_add(h, 5, BLOCK_GPU).code, CGN_TOO_LARGE);
	assert_int_equal(t.calls, 2);
	assert_int_equal(holdings_tiers(h, 5), 0);
	add_digest(h, 0, BLOCK_GPU); /* Held already: no room needed. */
	assert_true(holdings_drop(h, UINT64_MAX, BLOCK_SSD));
	add_digest(h, 5, BLOCK_GPU);
	holdings_free(&h);
}

static void more_references_than_fit_end_early_but_end(void **state)
{
	(void)state;
	struct holdings *h = make_holdings(1, NULL, NULL);
	for (unsigned i = 0; i < 70000; i++)
		add_digest(h, 1, BLOCK_REMOTE);
	unsigned drops = 0;
	while (holdings_drop(h, 1, BLOCK_REMOTE))
		drops++;
	assert_int_equal(drops, UINT16_MAX);
	assert_int_equal(holdings_count(h), 0);
	holdings_free(&h);
}

static void equal_contents_have_equal_sums(void **state)
{
	(void)state;
	struct holdings *a = make_holdings(1000, NULL, NULL), *b = make_holdings(1000, NULL, NULL);
	uint64_t zero[BLOCK_RANGES] = {0}, seed = 5, digests[500];
	for (size_t i = 0; i < CGN_COUNT(digests); i++)
		add_digest(a, digests[i] = mix_xorshift_star(&seed), (enum block_tier)(i % BLOCK_TIERS));
	for (size_t i = CGN_COUNT(digests); i-- > 0;)
		add_digest(b, digests[i], (enum block_tier)(i % BLOCK_TIERS));
	assert_memory_equal(holdings_sums(a), holdings_sums(b), sizeof zero);
	assert_true(holdings_drop(b, digests[3], BLOCK_REMOTE));
	for (unsigned r = 0; r < BLOCK_RANGES; r++)
		assert_true((holdings_sums(a)[r] != holdings_sums(b)[r]) == (r == block_range(digests[3])));
	add_digest(b, digests[3], BLOCK_RAM); /* Held in another tier. */
	assert_true(holdings_sums(a)[block_range(digests[3])] != holdings_sums(b)[block_range(digests[3])]);
	for (size_t i = 0; i < CGN_COUNT(digests); i++)
		assert_true(holdings_drop(a, digests[i], (enum block_tier)(i % BLOCK_TIERS)));
	assert_memory_equal(holdings_sums(a), zero, sizeof zero);
	holdings_free(&a);
	holdings_free(&b);
}

/* ---- random steps beside a plain array ---- */

#define KEYS 600
struct model {
	uint64_t keys[KEYS];
	uint16_t refs[KEYS][BLOCK_TIERS];
	unsigned seen[KEYS];
};

static unsigned model_tiers(const struct model *m, size_t i)
{
	unsigned mask = 0;
	for (unsigned t = 0; t < BLOCK_TIERS; t++)
		mask |= m->refs[i][t] > 0 ? BLOCK_TIER_BIT(t) : 0;
	return mask;
}

static void see_digest(void *user, uint64_t digest, unsigned tiers)
{
	struct model *m = user;
	for (size_t i = 0; i < KEYS; i++)
		if (m->keys[i] == digest) {
			assert_int_equal(tiers, model_tiers(m, i));
			m->seen[i]++;
			return;
		}
	fail_msg("a digest that was never added");
}

static void compare_model(const struct holdings *h, struct model *m)
{
	size_t held = 0;
	uint64_t sums[BLOCK_RANGES] = {0};
	memset(m->seen, 0, sizeof m->seen);
	holdings_each(h, BLOCK_RANGES, see_digest, m);
	holdings_each(h, block_range(m->keys[0]), see_digest, m);
	for (size_t i = 0; i < KEYS; i++) {
		unsigned tiers = model_tiers(m, i);
		held += tiers != 0;
		sums[block_range(m->keys[i])] ^= block_fingerprint(m->keys[i], tiers);
		assert_int_equal(holdings_tiers(h, m->keys[i]), tiers);
		assert_int_equal(m->seen[i],
			tiers == 0                                                   ? 0
				: block_range(m->keys[i]) == block_range(m->keys[0]) ? 2
										     : 1);
	}
	assert_int_equal(holdings_count(h), held);
	assert_memory_equal(holdings_sums(h), sums, sizeof sums);
}

static void random_steps(uint64_t seed, unsigned ranges)
{
	struct model m = {0};
	struct holdings *h = make_holdings(KEYS, NULL, NULL);
	for (size_t i = 0; i < KEYS; i++) /* Few ranges: long runs of neighbours in the tables. */
		m.keys[i] =
			(uint64_t)(mix_xorshift_star(&seed) % ranges) << 56 | mix_xorshift_star(&seed) >> 8;
	for (unsigned step = 0; step < 60000; step++) {
		uint64_t r = mix_xorshift_star(&seed);
		size_t i = r % KEYS;
		enum block_tier tier = (enum block_tier)(r >> 32 & 3);
		bool grows = step / 6000 % 2 == 0;
		if ((r >> 40 & 7) < (grows ? 5 : 2)) {
			add_digest(h, m.keys[i], tier);
			m.refs[i][tier]++;
		} else {
			assert_int_equal(holdings_drop(h, m.keys[i], tier), m.refs[i][tier] > 0);
			m.refs[i][tier] = (uint16_t)(m.refs[i][tier] - (m.refs[i][tier] > 0));
		}
		if (step % 3000 == 0)
			compare_model(h, &m);
	}
	compare_model(h, &m);
	holdings_free(&h);
}

static void holdings_agree_with_a_plain_array(void **state)
{
	(void)state;
	random_steps(11, 1);
	random_steps(12, 3);
	random_steps(13, 256);
}

/* Bytes allocated, including the allocator's overhead and caches, which SLACK allows for; 0 under a sanitizer. */
#define SLACK ((size_t)512 << 10)
static size_t heap_bytes(void)
{
	struct mallinfo2 m = mallinfo2();
	return m.uordblks + m.hblkhd;
}

static void memory_follows_what_is_held(void **state)
{
	(void)state;
	struct holdings *h = make_holdings(300000, NULL, NULL);
	size_t empty = heap_bytes();
	for (unsigned round = 0; round < 3; round++) {
		uint64_t seed = 77;
		for (unsigned i = 0; i < 300000; i++)
			add_digest(h, mix_xorshift_star(&seed), BLOCK_GPU);
		assert_true(heap_bytes() <= empty + 300000 * 26 + SLACK);
		seed = 77;
		for (unsigned i = 0; i < 300000; i++)
			assert_true(holdings_drop(h, mix_xorshift_star(&seed), BLOCK_GPU));
		assert_true(heap_bytes() <= empty + (size_t)BLOCK_RANGES * 16 * 16 + SLACK);
	}
	holdings_free(&h);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_block_is_gone_with_the_last_reference),
		cmocka_unit_test(the_limit_refuses_and_changes_nothing),
		cmocka_unit_test(more_references_than_fit_end_early_but_end),
		cmocka_unit_test(equal_contents_have_equal_sums),
		cmocka_unit_test(holdings_agree_with_a_plain_array),
		cmocka_unit_test(memory_follows_what_is_held),
	};
	return cmocka_run_group_tests_name("policy_holdings", tests, NULL, NULL);
}
