/* SPDX-License-Identifier: Apache-2.0 */
/* The index beside a plain table of the nodes' blocks; its memory budget; and readers while a writer works
 * (run this under ThreadSanitizer too). KVINDEX_SLOW=1: the 50 million updates of a long day instead of those
 * of a short one. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mix/mix.h"
#include "policy/kv/kvindex/kvindex.h"
#include "policy/kv/kvindex/segment_priv.h"

#define GPU BLOCK_TIER_BIT(BLOCK_GPU)
#define RAM BLOCK_TIER_BIT(BLOCK_RAM)
#define SSD BLOCK_TIER_BIT(BLOCK_SSD)

static struct kvindex *make_index(size_t max_bytes)
{
	struct kvindex *ix = NULL;
	const struct kvindex_cfg cfg = {.max_bytes = max_bytes, .max_readers = 2, .seed = 42};
	assert_true(cgn_ok(kvindex_new(&cfg, &ix, NULL)));
	return ix;
}

static struct kvindex_reader *make_reader(struct kvindex *ix)
{
	struct kvindex_reader *r = NULL;
	assert_true(cgn_ok(kvindex_reader_new(ix, &r, NULL)));
	return r;
}

static uint16_t add_node(struct kvindex *ix)
{
	uint16_t node = UINT16_MAX;
	assert_true(cgn_ok(kvindex_node_add(ix, &node, NULL)));
	return node;
}

static void set_digest(struct kvindex *ix, uint16_t node, uint64_t digest, unsigned tiers)
{
	const uint8_t t = (uint8_t)tiers;
	kvindex_set(ix, node, &digest, &t, 1);
}

static struct kvindex_stats index_stats(const struct kvindex *ix)
{
	struct kvindex_stats s;
	kvindex_stats(ix, &s);
	return s;
}

static void index_drain(struct kvindex *ix)
{
	while (kvindex_tick(ix, 100000))
		;
}

/* ---- single operations ---- */

static void leading_blocks_and_their_tiers(void **state)
{
	(void)state;
	struct kvindex *ix = make_index(8 << 20);
	struct kvindex_reader *r = make_reader(ix);
	uint16_t a = add_node(ix), b = add_node(ix), c = add_node(ix);
	const uint64_t chain[] = {0, UINT64_MAX, 3, 4, 5}; /* 0 is a digest like any other. */
	uint32_t by[BLOCK_TIERS];
	const uint8_t tiers[] = {GPU, RAM | SSD, SSD, GPU | RAM, 0};
	kvindex_set(ix, a, chain, tiers, 5);
	kvindex_set(ix, b, chain, NULL, 2);
	set_digest(ix, b, 5, GPU); /* Behind a gap, so of no use. */
	set_digest(ix, c, 3, GPU);
	kvindex_match(r, chain, 5);
	assert_int_equal(kvindex_held(r, a, by), 4);
	assert_true(by[BLOCK_GPU] == 2 && by[BLOCK_RAM] == 1 && by[BLOCK_SSD] == 1 && by[BLOCK_REMOTE] == 0);
	assert_int_equal(kvindex_held(r, b, by), 2);
	assert_true(by[BLOCK_GPU] == 2 && by[BLOCK_RAM] == 0 && by[BLOCK_SSD] == 0);
	assert_int_equal(kvindex_held(r, c, by), 0);
	assert_int_equal(kvindex_held(r, 4095, by), 0); /* No node. */
	kvindex_match(r, chain + 2, 1);
	assert_int_equal(kvindex_held(r, c, NULL), 1);
	assert_int_equal(kvindex_held(r, b, NULL), 0);
	kvindex_match(r, chain, 0);
	assert_int_equal(kvindex_held(r, a, NULL), 0);
	kvindex_reader_free(&r);
	kvindex_free(&ix);
}

static void a_removed_node_is_gone_at_once_and_its_number_later(void **state)
{
	(void)state;
	struct kvindex *ix = make_index(8 << 20);
	struct kvindex_reader *r = make_reader(ix);
	uint16_t a = add_node(ix), b = add_node(ix);
	const uint64_t chain[] = {1, 2, 3};
	kvindex_set(ix, a, chain, NULL, 3);
	kvindex_set(ix, b, chain, NULL, 2);
	kvindex_node_remove(ix, a);
	kvindex_match(r, chain, 3);
	assert_int_equal(kvindex_held(r, a, NULL), 0);
	assert_int_equal(kvindex_held(r, b, NULL), 2);
	assert_int_equal(index_stats(ix).memberships, 2);
	assert_int_equal(add_node(ix), 2);
	index_drain(ix);
	assert_int_equal(index_stats(ix).blocks, 2);
	assert_int_equal(add_node(ix), a); /* The lowest free number. */
	kvindex_match(r, chain, 3);
	assert_int_equal(kvindex_held(r, a, NULL), 0);
	kvindex_reader_free(&r);
	kvindex_free(&ix);
}

static void what_it_can_not_take_is_an_error(void **state)
{
	(void)state;
	struct kvindex *ix = NULL;
	struct cgn_err err = {0};
	struct kvindex_cfg cfg = {.max_bytes = 1000, .max_readers = 1};
	assert_int_equal(kvindex_new(&cfg, &ix, &err).code, CGN_INVALID);
	assert_non_null(strstr(err.msg, "at least"));
	cfg = (struct kvindex_cfg){.max_bytes = 64 << 20, .max_readers = KVINDEX_READERS + 1};
	assert_int_equal(kvindex_new(&cfg, &ix, &err).code, CGN_INVALID);
	ix = make_index(64 << 20);
	struct kvindex_reader *r1 = make_reader(ix), *r2 = make_reader(ix), *r3 = NULL;
	assert_int_equal(kvindex_reader_new(ix, &r3, &err).code, CGN_TOO_LARGE);
	kvindex_reader_free(&r1);
	r3 = make_reader(ix);
	uint16_t node;
	for (unsigned i = 0; i < KVINDEX_NODES; i++)
		(void)add_node(ix);
	assert_int_equal(kvindex_node_add(ix, &node, &err).code, CGN_TOO_LARGE);
	kvindex_node_remove(ix, 17);
	index_drain(ix);
	assert_int_equal(add_node(ix), 17);
	kvindex_reader_free(&r2);
	kvindex_reader_free(&r3);
	kvindex_free(&ix);
	assert_null(ix);
	kvindex_free(&ix);
}

/* ---- beside a plain table ---- */

#define MAX_KEYS 512
struct model {
	unsigned n_nodes, n_keys;
	uint16_t *nodes; /* [n_nodes]: number in the index; UINT16_MAX: absent. */
	uint64_t keys[MAX_KEYS];
	uint8_t (*held)[MAX_KEYS]; /* [n_nodes] */
	uint64_t seed;
	struct kvindex *ix;
	struct kvindex_reader *r;
};

static void model_node_in(struct model *m, unsigned l)
{
	m->nodes[l] = add_node(m->ix);
	memset(m->held[l], 0, MAX_KEYS);
}

static void model_init(struct model *m, uint64_t seed, unsigned n_nodes, unsigned n_keys)
{
	*m = (struct model){.n_nodes = n_nodes, .n_keys = n_keys, .seed = seed, .ix = make_index(256 << 20)};
	m->r = make_reader(m->ix);
	m->nodes = calloc(n_nodes, sizeof *m->nodes);
	m->held = calloc(n_nodes, sizeof *m->held);
	assert_true(m->nodes != NULL && m->held != NULL);
	for (unsigned i = 0; i < n_keys; i++) /* Half of the keys crowd in one segment. */
		m->keys[i] = i % 2 == 0 ? mix_xorshift_star(&m->seed)
					: mix_xorshift_star(&m->seed) >> 10 | UINT64_C(5) << 54;
	for (unsigned i = 0; i < n_nodes; i++)
		model_node_in(m, i);
}

static void model_fini(struct model *m)
{
	kvindex_reader_free(&m->r);
	kvindex_free(&m->ix);
	free(m->nodes);
	free(m->held);
}

static unsigned some_tiers(struct model *m)
{
	uint64_t x = mix_xorshift_star(&m->seed) % 16;
	return x < 8 ? GPU : x < 10 ? 0 : (unsigned)(x & BLOCK_TIER_MASK);
}

static void model_set(struct model *m, unsigned l, unsigned from, unsigned n, unsigned tiers_or_random)
{
	uint64_t digests[MAX_KEYS];
	uint8_t tiers[MAX_KEYS];
	for (unsigned i = 0; i < n; i++) {
		unsigned k = (from + i) % m->n_keys;
		digests[i] = m->keys[k];
		m->held[l][k] = tiers[i] =
			(uint8_t)(tiers_or_random <= BLOCK_TIER_MASK ? tiers_or_random : some_tiers(m));
	}
	kvindex_set(m->ix, m->nodes[l], digests, tiers, n);
}

static void model_clear(struct model *m, unsigned l, unsigned range)
{
	kvindex_clear(m->ix, m->nodes[l], range);
	for (unsigned k = 0; k < m->n_keys; k++)
		if (range == BLOCK_RANGES || block_range(m->keys[k]) == range)
			m->held[l][k] = 0;
}

static void model_step(struct model *m)
{
	uint64_t x = mix_xorshift_star(&m->seed);
	unsigned l = (unsigned)(x % m->n_nodes), what = (unsigned)(x >> 32 & 255),
		 from = (unsigned)(x >> 40) % m->n_keys;
	if (m->nodes[l] == UINT16_MAX) {
		if (what < 128)
			model_node_in(m, l);
		return;
	}
	if (what < 160)
		model_set(m, l, from, 1 + (unsigned)(x >> 20 & 31), 255);
	else if (what < 200)
		model_set(m, l, from, 1 + (unsigned)(x >> 20 & 127), GPU);
	else if (what < 235)
		model_set(m, l, from, 1 + (unsigned)(x >> 20 & 127), 0);
	else if (what < 245)
		model_clear(m, l, block_range(m->keys[from]));
	else if (what < 247)
		model_clear(m, l, BLOCK_RANGES);
	else if (what < 250) {
		kvindex_node_remove(m->ix, m->nodes[l]);
		m->nodes[l] = UINT16_MAX;
	} else
		(void)kvindex_tick(m->ix, x >> 50);
}

static void check_match(struct model *m, unsigned from, unsigned n)
{
	uint64_t chain[MAX_KEYS];
	for (unsigned i = 0; i < n; i++)
		chain[i] = m->keys[(from + i) % m->n_keys];
	kvindex_match(m->r, chain, n);
	for (unsigned l = 0; l < m->n_nodes; l++) {
		uint32_t by[BLOCK_TIERS], want[BLOCK_TIERS] = {0}, depth = 0;
		if (m->nodes[l] == UINT16_MAX)
			continue;
		for (; depth < n && m->held[l][(from + depth) % m->n_keys] != 0; depth++)
			want[__builtin_ctz(m->held[l][(from + depth) % m->n_keys])]++;
		assert_int_equal(kvindex_held(m->r, m->nodes[l], by), depth);
		assert_int_equal(kvindex_held(m->r, m->nodes[l], NULL), depth);
		assert_memory_equal(by, want, sizeof by);
	}
}

/* Where a node's chain has no holes, leaps return the same as steps. Where it has holes, leaps return at
 * least as much, and no more than up to a missing block that was looked at. */
static void check_leap(struct model *m, unsigned from, unsigned n)
{
	uint64_t chain[MAX_KEYS];
	for (unsigned i = 0; i < n; i++)
		chain[i] = m->keys[(from + i) % m->n_keys];
	kvindex_leap(m->r, chain, n);
	for (unsigned l = 0; l < m->n_nodes; l++) {
		uint32_t by[BLOCK_TIERS], sum = 0, depth = 0, holes = 0;
		if (m->nodes[l] == UINT16_MAX)
			continue;
		while (depth < n && m->held[l][(from + depth) % m->n_keys] != 0)
			depth++;
		for (uint32_t d = depth; d < n; d++)
			holes += m->held[l][(from + d) % m->n_keys] != 0;
		uint32_t said = kvindex_held(m->r, m->nodes[l], by);
		for (unsigned t = 0; t < BLOCK_TIERS; t++)
			sum += by[t];
		assert_int_equal(sum, said);
		assert_true(said >= depth);
		if (holes == 0)
			assert_int_equal(said, depth);
		assert_true(said == n || m->held[l][(from + said) % m->n_keys] == 0 || said == depth);
	}
}

struct seen {
	struct model *m;
	unsigned node, n;
};

static void see_digest(void *user, uint64_t digest, unsigned tiers)
{
	struct seen *s = user;
	unsigned k = 0;
	while (k < s->m->n_keys && s->m->keys[k] != digest)
		k++;
	assert_true(k < s->m->n_keys);
	assert_int_equal(tiers, s->m->held[s->node][k]);
	s->n++;
}

static void check_node(struct model *m, unsigned l)
{
	uint64_t sums[BLOCK_RANGES] = {0}, n = 0;
	struct seen s = {.m = m, .node = l};
	for (unsigned k = 0; k < m->n_keys; k++) {
		sums[block_range(m->keys[k])] ^= block_fingerprint(m->keys[k], m->held[l][k]);
		n += m->held[l][k] != 0;
		assert_int_equal(kvindex_tiers(m->ix, m->nodes[l], m->keys[k]), m->held[l][k]);
	}
	assert_memory_equal(kvindex_sums(m->ix, m->nodes[l]), sums, sizeof sums);
	assert_int_equal(kvindex_count(m->ix, m->nodes[l]), n);
	kvindex_each(m->ix, m->nodes[l], BLOCK_RANGES, see_digest, &s);
	assert_int_equal(s.n, n);
}

struct told {
	struct model *m;
	unsigned part, step, n;
};

static bool is_held_by_some(const struct model *m, unsigned k, unsigned step)
{
	for (unsigned l = 0; l < m->n_nodes; l += step)
		if (m->nodes[l] != UINT16_MAX && m->held[l][k] != 0)
			return true;
	return false;
}

static void see_block(void *user, uint64_t digest)
{
	struct told *t = user;
	unsigned k = 0;
	while (k < t->m->n_keys && t->m->keys[k] != digest)
		k++;
	assert_true(k < t->m->n_keys && is_held_by_some(t->m, k, t->step));
	assert_int_equal(digest >> 54, t->part);
	t->n++;
}

/* Each block that one of every |step|-th node holds is told once, in the part of its top bits. */
static void check_parts(struct model *m, unsigned step)
{
	struct told t = {.m = m, .step = step};
	struct kvindex_nodes nodes = {0};
	unsigned n = 0;
	for (unsigned l = 0; l < m->n_nodes; l += step)
		if (m->nodes[l] != UINT16_MAX)
			nodes.bits[m->nodes[l] / 64] |= UINT64_C(1) << m->nodes[l] % 64;
	for (unsigned k = 0; k < m->n_keys; k++)
		n += is_held_by_some(m, k, step);
	for (t.part = 0; t.part < KVINDEX_PARTS; t.part++)
		(void)kvindex_part(m->ix, &nodes, t.part, see_block, &t);
	assert_int_equal(t.n, n);
}

static void check_all(struct model *m)
{
	check_parts(m, 1);
	check_parts(m, 3);
	uint64_t memberships = 0, blocks = 0;
	for (unsigned l = 0; l < m->n_nodes; l++)
		for (unsigned k = 0; k < m->n_keys; k++)
			memberships += m->nodes[l] != UINT16_MAX && m->held[l][k] != 0;
	for (unsigned l = 0; l < m->n_nodes; l += 1 + m->n_nodes / 16)
		if (m->nodes[l] != UINT16_MAX)
			check_node(m, l);
	index_drain(m->ix);
	for (unsigned k = 0; k < m->n_keys; k++) {
		unsigned l = 0;
		while (l < m->n_nodes && (m->nodes[l] == UINT16_MAX || m->held[l][k] == 0))
			l++;
		blocks += l < m->n_nodes;
	}
	struct kvindex_stats s = index_stats(m->ix);
	assert_int_equal(s.memberships, memberships);
	assert_int_equal(s.blocks, blocks);
	assert_true(s.retired_bytes == 0 && s.shed_blocks == 0 && s.shed_memberships == 0);
}

static void random_steps(uint64_t seed, unsigned n_nodes, unsigned n_keys, unsigned steps)
{
	struct model m;
	model_init(&m, seed, n_nodes, n_keys);
	for (unsigned i = 1; i <= steps; i++) {
		model_step(&m);
		uint64_t x = mix_xorshift_star(&m.seed);
		if (i % (1 + n_nodes / 8) == 0)
			check_match(&m, (unsigned)(x % n_keys), 1 + (unsigned)(x >> 32) % n_keys);
		if (i % (1 + n_nodes / 8) == 0)
			check_leap(&m, (unsigned)(x % n_keys), 1 + (unsigned)(x >> 32) % n_keys);
		if (i % (steps / 8) == 0)
			check_all(&m);
	}
	size_t bytes = index_stats(m.ix).bytes;
	for (unsigned l = 0; l < n_nodes; l++)
		if (m.nodes[l] != UINT16_MAX)
			model_clear(&m, l, BLOCK_RANGES);
	check_all(&m);
	assert_true(index_stats(m.ix).bytes <= bytes);
	model_fini(&m);
}

static void the_index_agrees_with_a_plain_table(void **state)
{
	(void)state;
	random_steps(1, 1, 100, 4000);
	random_steps(2, 3, 300, 20000);
	random_steps(3, 8, 512, 20000);
	random_steps(4, 40, 200, 20000);
	random_steps(5, 128, 100, 20000);
	random_steps(6, 700, 60, 20000);
	random_steps(7, 1500, 20, 40000);
}

/* Blocks of many nodes, fewer nodes with each block: sets of all kinds, ends in bulk and one by one, tiers
 * that change. */
static void long_shared_prefixes_of_many_nodes(void **state)
{
	(void)state;
	for (unsigned seed = 1; seed <= 6; seed++) {
		struct model m;
		unsigned nodes = seed % 2 == 0 ? 1200 : 130;
		model_init(&m, seed, nodes, 100);
		for (unsigned l = 0; l < nodes; l++) {
			unsigned n = 1 + (unsigned)(mix_xorshift_star(&m.seed) % 100) * l / nodes;
			model_set(&m, l, 0, n, seed < 3 ? GPU : 255);
			if (seed == 5 && l % 3 == 0)
				model_set(&m, l, 0, n, RAM);
		}
		for (unsigned n = 1; n <= 100; n += 9)
			check_match(&m, 0, n);
		for (unsigned l = 0; l < nodes; l += 2)
			model_set(&m, l, 0, 100, SSD);
		/* A block that changes tier in every node, and back. */
		for (unsigned l = 0; l < nodes; l += 3)
			model_set(&m, l, 40, 20, GPU);
		check_match(&m, 0, 100);
		check_match(&m, 30, 60);
		check_all(&m);
		model_fini(&m);
	}
}

/* ---- memory ---- */

static void bytes_per_membership(unsigned batch)
{
	struct kvindex *ix = make_index(256 << 20);
	uint16_t node = add_node(ix);
	size_t before = index_stats(ix).bytes;
	uint64_t seed = 9, digests[64];
	for (unsigned i = 0; i < 1000000 / 64; i++) {
		for (unsigned k = 0; k < 64; k++)
			digests[k] = mix_xorshift_star(&seed);
		for (unsigned k = 0; k < 64; k += batch)
			kvindex_set(ix, node, digests + k, NULL, batch);
		struct kvindex_stats s = index_stats(ix);
		/* At every size, including the memory that readers might still see. */
		if (s.blocks > 200000 && i % 16 == 0)
			assert_true(s.bytes - before <= s.memberships * 26);
	}
	index_drain(ix);
	kvindex_free(&ix);
}

static void bytes_per_membership_stay_small(void **state)
{
	(void)state;
	bytes_per_membership(64);
	bytes_per_membership(1);
}

static void the_oldest_are_shed_and_it_shows(void **state)
{
	(void)state;
	size_t max = kvindex_least_bytes(2) + (5 << 20);
	struct kvindex *ix = make_index(max);
	struct kvindex_reader *r = make_reader(ix);
	uint16_t a = add_node(ix), b = add_node(ix);
	enum { OLD = 60000, NEW = 400000 };
	uint64_t seed = 3, *digests = calloc(OLD + NEW, sizeof *digests);
	unsigned young = 0, asked = 0, old = 0, marks = 0;
	assert_non_null(digests);
	for (unsigned i = 0; i < OLD + NEW; i++)
		digests[i] = mix_xorshift_star(&seed);
	kvindex_set(ix, b, digests, NULL, 10);
	for (unsigned i = 0; i < OLD + NEW; i++) {
		set_digest(ix, a, digests[i], GPU);
		assert_true(index_stats(ix).bytes <= max);
		/* The first 100 are looked up again and again. */
		if (i % 10 == 0)
			for (unsigned k = 0; k < 100 && i % 1000 == 0; k++)
				kvindex_match(r, digests + k, 1);
		assert_true(i >= OLD || index_stats(ix).shed_blocks == 0);
	}
	for (unsigned i = 0; i < OLD + NEW; i++) {
		bool there = kvindex_tiers(ix, a, digests[i]) != 0;
		asked += there && i < 100;
		old += there && i >= 100 && i < OLD;
		young += there && i >= NEW;
	}
	assert_int_equal(asked, 100);
	assert_int_equal(old, 0);
	assert_int_equal(young, OLD);
	struct kvindex_stats s = index_stats(ix);
	assert_true(s.shed_blocks > 0 && s.shed_memberships >= s.shed_blocks);
	assert_int_equal(s.memberships, kvindex_count(ix, a) + kvindex_count(ix, b));
	assert_int_equal(kvindex_count(ix, a) + s.shed_memberships, OLD + NEW);
	for (unsigned range = 0; range < BLOCK_RANGES; range++)
		marks += kvindex_range_was_shed(ix, a, range);
	assert_int_equal(marks, BLOCK_RANGES);
	/* The ten blocks of the range were looked up. */
	for (unsigned range = 0; range < BLOCK_RANGES; range++)
		assert_false(kvindex_range_was_shed(ix, b, range));
	kvindex_clear(ix, a, 7);
	assert_false(kvindex_range_was_shed(ix, a, 7));
	assert_true(kvindex_range_was_shed(ix, a, 8));
	kvindex_reader_free(&r);
	kvindex_free(&ix);
	free(digests);
}

/* Sets take memory too: without room for a set, the existing entries stay right and the node is marked. */
static void shedding_with_many_holders(void **state)
{
	(void)state;
	size_t max = kvindex_least_bytes(2) + (3 << 20);
	struct kvindex *ix = make_index(max);
	uint16_t nodes[200];
	uint64_t seed = 8, digests[5000];
	for (unsigned l = 0; l < CGN_COUNT(nodes); l++)
		nodes[l] = add_node(ix);
	for (unsigned i = 0; i < CGN_COUNT(digests); i++)
		digests[i] = mix_xorshift_star(&seed);
	for (unsigned i = 0; i < 1500000; i++) {
		uint64_t x = mix_xorshift_star(&seed);
		uint16_t node = nodes[x % CGN_COUNT(nodes)];
		unsigned tiers = x >> 60 < 12 ? GPU : (unsigned)(x >> 60);
		uint64_t digest =
			x >> 58 & 1 ? digests[(x >> 16) % CGN_COUNT(digests)] : mix_xorshift_star(&seed);
		set_digest(ix, node, digest, tiers);
		unsigned got = kvindex_tiers(ix, node, digest);
		assert_true(
			got == tiers || (got == 0 && kvindex_range_was_shed(ix, node, block_range(digest))));
		assert_true(index_stats(ix).bytes <= max);
	}
	assert_true(index_stats(ix).shed_blocks > 0);
	for (unsigned l = 0; l < CGN_COUNT(nodes); l++)
		kvindex_clear(ix, nodes[l], BLOCK_RANGES);
	index_drain(ix);
	assert_true(index_stats(ix).memberships == 0 && index_stats(ix).blocks == 0);
	kvindex_free(&ix);
}

/* Digests chosen to lie in the same few buckets evict each other and do not make the index grow. */
static void chosen_digests_do_not_make_it_grow(void **state)
{
	(void)state;
	struct kvindex *ix = make_index(64 << 20);
	uint16_t node = add_node(ix);
	size_t before = index_stats(ix).bytes;
	uint64_t seed = 4;
	for (unsigned found = 0; found < 60;) {
		uint64_t digest = mix_xorshift_star(&seed) >> 10, x = spread(42, digest);
		if (x >> 56 != 7 || (x >> 24 & 255) != 99)
			continue;
		set_digest(ix, node, digest, GPU);
		assert_int_equal(kvindex_tiers(ix, node, digest), GPU);
		found++;
	}
	assert_true(index_stats(ix).shed_blocks > 0);
	assert_true(index_stats(ix).bytes - before < 8 << 10);
	kvindex_free(&ix);
}

/* A day of churn: nodes with full caches add a block and evict one, and restart now and then; memory stays
 * the same. */
static void churn_leaves_memory_flat(void **state)
{
	(void)state;
	enum { NODES = 16, HELD = 4000 };
	struct kvindex *ix = make_index(64 << 20);
	uint16_t nodes[NODES];
	uint64_t seed = 21, (*ring)[HELD] = calloc(NODES, sizeof *ring);
	size_t most = 0;
	unsigned updates = getenv("KVINDEX_SLOW") != NULL ? 50000000 : 3000000;
	assert_non_null(ring);
	for (unsigned l = 0; l < NODES; l++)
		nodes[l] = add_node(ix);
	for (unsigned i = 0; i < updates / 2; i++) {
		uint64_t x = mix_xorshift_star(&seed);
		unsigned l = (unsigned)(x % NODES), at = (unsigned)(x >> 8) % HELD;
		if (ring[l][at] != 0)
			set_digest(ix, nodes[l], ring[l][at], 0);
		/* Some blocks are common to all nodes. */
		ring[l][at] = x >> 32 & 1 ? mix_xorshift_star(&seed) : ((x >> 33) % 1000 + 1) * MIX_GOLDEN;
		set_digest(ix, nodes[l], ring[l][at], x >> 60 < 14 ? GPU : RAM);
		if (i % 100003 == 0) {
			kvindex_node_remove(ix, nodes[l]);
			memset(ring[l], 0, sizeof ring[l]);
			index_drain(ix);
			nodes[l] = add_node(ix);
		}
		if (i % 64 == 0)
			(void)kvindex_tick(ix, 256);
		size_t bytes = index_stats(ix).bytes;
		if (i == updates / 4)
			most = bytes + bytes / 10;
		assert_true(i <= updates / 4 || bytes <= most);
	}
	assert_true(index_stats(ix).memberships <= NODES * HELD);
	kvindex_free(&ix);
	free(ring);
}

/* ---- readers while a writer works ---- */

enum { CHAINS = 40, DEPTH = 24, STEADY = 70, MOVING = 60 };
struct race {
	struct kvindex *ix;
	uint64_t chains[CHAINS][DEPTH], never[64];
	uint16_t steady[STEADY];
	uint16_t moving[MOVING]; /* Owned by the writer. */
	atomic_bool stop;
	atomic_uint matches;
	atomic_uint wrong;
};

static uint32_t steady_depth(unsigned node, unsigned chain)
{
	return (node * 7 + chain * 3) % (DEPTH + 1);
}

static void *read_on(void *arg)
{
	struct race *x = arg;
	struct kvindex_reader *r = NULL;
	uint32_t by[BLOCK_TIERS];
	if (!cgn_ok(kvindex_reader_new(x->ix, &r, NULL))) {
		atomic_fetch_add(&x->wrong, 1);
		return NULL;
	}
	for (unsigned i = 0; !atomic_load(&x->stop); i++) {
		unsigned c = i % CHAINS;
		kvindex_match(r, x->chains[c], DEPTH);
		/* Held throughout in one tier; the next block was never held. */
		for (unsigned l = 0; l < STEADY; l++) {
			uint32_t want = steady_depth(l, c), got = kvindex_held(r, x->steady[l], by);
			atomic_fetch_add(&x->wrong, got != want || by[BLOCK_GPU] != want);
		}
		for (unsigned l = 0; l < MOVING; l++) {
			uint32_t got = kvindex_held(r, (uint16_t)(STEADY + l), by);
			atomic_fetch_add(&x->wrong,
				got > DEPTH || by[BLOCK_GPU] + by[BLOCK_RAM] + by[BLOCK_SSD] != got ||
					by[BLOCK_REMOTE] != 0);
		}
		kvindex_match(r, &x->never[i % 64], 1);
		for (unsigned l = 0; l < STEADY; l++)
			atomic_fetch_add(&x->wrong, kvindex_held(r, x->steady[l], NULL) != 0);
		atomic_fetch_add(&x->matches, 1);
	}
	kvindex_reader_free(&r);
	return NULL;
}

static void race_init(struct race *x, size_t max_bytes)
{
	uint64_t seed = 31;
	memset(x, 0, sizeof *x);
	x->ix = make_index(max_bytes);
	for (unsigned c = 0; c < CHAINS; c++)
		for (unsigned d = 0; d < DEPTH; d++) /* In few segments, which are therefore busy. */
			x->chains[c][d] = mix_xorshift_star(&seed) & ~(UINT64_C(255) << 56);
	for (unsigned i = 0; i < 64; i++)
		x->never[i] = mix_xorshift_star(&seed) & ~(UINT64_C(255) << 56);
	for (unsigned l = 0; l < STEADY; l++)
		assert_int_equal(x->steady[l] = add_node(x->ix), l);
	for (unsigned l = 0; l < MOVING; l++)
		x->moving[l] = add_node(x->ix);
	for (unsigned l = 0; l < STEADY; l++)
		for (unsigned c = 0; c < CHAINS; c++)
			kvindex_set(x->ix, x->steady[l], x->chains[c], NULL, steady_depth(l, c));
}

static void write_one(struct race *x, uint64_t *seed, uint64_t *noise, unsigned n_noise)
{
	uint64_t v = mix_xorshift_star(seed);
	unsigned l = (unsigned)(v % MOVING), c = (unsigned)(v >> 8) % CHAINS,
		 what = (unsigned)(v >> 24 & 127);
	uint8_t tiers[DEPTH];
	for (unsigned d = 0; d < DEPTH; d++)
		tiers[d] = (uint8_t)(mix_xorshift_star(seed) >> 20 & (GPU | RAM | SSD));
	if (what < 60)
		kvindex_set(x->ix, x->moving[l], x->chains[c], tiers, DEPTH);
	else if (what < 70)
		kvindex_set(x->ix, x->moving[l], x->chains[c], NULL, DEPTH);
	else if (what < 72)
		kvindex_clear(x->ix, x->moving[l], 0);
	else if (what == 72) {
		kvindex_node_remove(x->ix, x->moving[l]);
		/* A new number: the readers look up old and new nodes. */
		x->moving[l] = add_node(x->ix);
	} else if (what < 76)
		(void)kvindex_tick(x->ix, 2000);
	else { /* Blocks that come and go make the segments grow, shrink and move entries. */
		bool out = v >> 63;
		for (unsigned i = 0; i < 64; i++)
			set_digest(x->ix, x->steady[l % STEADY], noise[(v >> 32) % n_noise / 64 * 64 + i],
				out ? 0 : GPU);
	}
}

static void readers_are_right_while_the_writer_works(void **state)
{
	(void)state;
#ifdef __SANITIZE_THREAD__ /* A single concurrent access is enough for the sanitizer. */
	enum { NOISE = 64 * 200, WRITES = 5000 };
#else
	enum { NOISE = 64 * 200, WRITES = 20000 };
#endif
	static struct race x;
	static uint64_t noise[NOISE];
	uint64_t seed = 77;
	pthread_t threads[2];
	race_init(&x, 64 << 20);
	for (unsigned i = 0; i < NOISE; i++)
		noise[i] = mix_xorshift_star(&seed) & ~(UINT64_C(255) << 56);
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, read_on, &x), 0);
	/* Bounded by counts, not by time: until the writer and the readers have done their parts. */
	for (unsigned i = 0; i < WRITES || atomic_load(&x.matches) < 500; i++)
		if (i % 2000 != 1999)
			write_one(&x, &seed, noise, NOISE);
	atomic_store(&x.stop, true);
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(pthread_join(threads[i], NULL), 0);
	assert_int_equal(atomic_load(&x.wrong), 0);
	index_drain(x.ix);
	assert_int_equal(index_stats(x.ix).retired_bytes, 0);
	assert_int_equal(index_stats(x.ix).shed_blocks, 0);
	kvindex_free(&x.ix);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(leading_blocks_and_their_tiers),
		cmocka_unit_test(a_removed_node_is_gone_at_once_and_its_number_later),
		cmocka_unit_test(what_it_can_not_take_is_an_error),
		cmocka_unit_test(the_index_agrees_with_a_plain_table),
		cmocka_unit_test(long_shared_prefixes_of_many_nodes),
		cmocka_unit_test(bytes_per_membership_stay_small),
		cmocka_unit_test(the_oldest_are_shed_and_it_shows),
		cmocka_unit_test(shedding_with_many_holders),
		cmocka_unit_test(chosen_digests_do_not_make_it_grow),
		cmocka_unit_test(churn_leaves_memory_flat),
		cmocka_unit_test(readers_are_right_while_the_writer_works),
	};
/* The other tests have one thread, and are ten times slower under the sanitizer. */
#ifdef __SANITIZE_THREAD__
	cmocka_set_test_filter("readers_*");
#endif
	return cmocka_run_group_tests_name("policy_kvindex", tests, NULL, NULL);
}
