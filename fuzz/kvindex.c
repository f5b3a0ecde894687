/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz kvindex: a stream of updates, clears, leaving and joining nodes and lookups, beside a plain table. The
 * first byte chooses the memory budget: with a small one the index may shed blocks, and then the remaining
 * ones must still be right. */
#include <string.h>

#include "policy/kv/kvindex/kvindex.h"

#include "base/mix/mix.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

#define NODES 200
#define KEYS  256

struct world {
	struct kvindex *ix;
	struct kvindex_reader *r;
	bool shed; /* The budget is small, so blocks may be shed. */
	uint16_t nodes[NODES];
	bool there[NODES];
	uint8_t held[NODES][KEYS];
};

struct input {
	const uint8_t *p;
	size_t n;
};

static unsigned input_byte(struct input *in)
{
	if (in->n == 0)
		return 0;
	in->n--;
	return *in->p++;
}

static uint64_t digest_of(unsigned key)
{
	/* Four segments, so that they grow; otherwise the top bits are those of a hash. */
	return (uint64_t)(key & 3) << 54 | (key * MIX_GOLDEN) >> 10;
}

static void table_set(struct world *w, unsigned node, unsigned key, unsigned tiers)
{
	unsigned expected = w->held[node][key];
	if (tiers != expected)
		CGN_MUST(w->shed && tiers == 0 &&
			kvindex_range_was_shed(w->ix, w->nodes[node], block_range(digest_of(key))));
}

static void index_set(struct world *w, unsigned node, unsigned from, unsigned n, unsigned tiers)
{
	uint64_t digests[64];
	uint8_t masks[64];
	for (unsigned i = 0; i < n; i++) {
		unsigned key = (from + i) % KEYS;
		digests[i] = digest_of(key);
		masks[i] = w->held[node][key] = (uint8_t)(tiers ^ (tiers != 0 && i % 7 == 6 ? 3 : 0));
	}
	kvindex_set(w->ix, w->nodes[node], digests, masks, n);
	for (unsigned i = 0; i < n; i++)
		table_set(w, node, (from + i) % KEYS, kvindex_tiers(w->ix, w->nodes[node], digests[i]));
}

static void index_clear(struct world *w, unsigned node, unsigned range)
{
	kvindex_clear(w->ix, w->nodes[node], range);
	for (unsigned k = 0; k < KEYS; k++)
		if (range == BLOCK_RANGES || block_range(digest_of(k)) == range)
			w->held[node][k] = 0;
}

static void join_or_leave(struct world *w, unsigned node)
{
	if (w->there[node])
		kvindex_node_remove(w->ix, w->nodes[node]);
	else if (!cgn_ok(kvindex_node_add(w->ix, &w->nodes[node], NULL)))
		return;
	w->there[node] = !w->there[node];
	memset(w->held[node], 0, sizeof w->held[node]);
}

static void index_match(struct world *w, unsigned from, unsigned n)
{
	uint64_t chain[KEYS];
	for (unsigned i = 0; i < n; i++)
		chain[i] = digest_of((from + i) % KEYS);
	kvindex_match(w->r, chain, n);
	for (unsigned l = 0; l < NODES; l++) {
		uint32_t by[BLOCK_TIERS], expected[BLOCK_TIERS] = {0}, depth = 0;
		if (!w->there[l])
			continue;
		for (unsigned t; depth < n && (t = kvindex_tiers(w->ix, w->nodes[l], chain[depth])) != 0;
			depth++) {
			table_set(w, l, (from + depth) % KEYS, t);
			expected[__builtin_ctz(t)]++;
		}
		CGN_MUST(
			kvindex_held(w->r, w->nodes[l], by) == depth && memcmp(by, expected, sizeof by) == 0);
		CGN_MUST(w->shed || depth == n || w->held[l][(from + depth) % KEYS] == 0);
	}
}

static void index_step(struct world *w, struct input *in)
{
	unsigned op = input_byte(in), node = input_byte(in) % NODES, key = input_byte(in), n = input_byte(in);
	if (op % 16 == 15)
		join_or_leave(w, node);
	else if (op % 16 == 14)
		index_match(w, key, n);
	else if (op % 16 == 13)
		(void)kvindex_tick(w->ix, n * 16U);
	else if (!w->there[node])
		join_or_leave(w, node);
	else if (op % 16 == 12)
		index_clear(w, node, n < 16 ? BLOCK_RANGES : block_range(digest_of(key)));
	else if (op % 16 < 6) /* The same for many nodes. */
		for (unsigned l = node; l < NODES && l < node + n; l++) {
			if (w->there[l])
				index_set(w, l, key, 1 + op % 4, op >> 4);
		}
	else
		index_set(w, node, key, n % 64, op >> 4);
}

static void index_audit(struct world *w)
{
	struct kvindex_stats s;
	uint64_t held = 0, counted = 0;
	while (kvindex_tick(w->ix, 1 << 20))
		;
	kvindex_stats(w->ix, &s);
	for (unsigned l = 0; l < NODES; l++) {
		uint64_t sums[BLOCK_RANGES] = {0};
		if (!w->there[l])
			continue;
		counted += kvindex_count(w->ix, w->nodes[l]);
		for (unsigned k = 0; k < KEYS; k++) {
			unsigned tiers = kvindex_tiers(w->ix, w->nodes[l], digest_of(k));
			table_set(w, l, k, tiers);
			held += tiers != 0;
			sums[block_range(digest_of(k))] ^= block_fingerprint(digest_of(k), tiers);
		}
		CGN_MUST(memcmp(sums, kvindex_sums(w->ix, w->nodes[l]), sizeof sums) == 0);
	}
	CGN_MUST(s.memberships == held && counted == held && s.retired_bytes == 0 && s.bytes <= s.max_bytes);
	CGN_MUST(w->shed || s.shed_memberships == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	static struct world w;
	struct input in = {data, n};
	struct kvindex_cfg cfg = {.max_readers = 1, .seed = input_byte(&in)};
	w = (struct world){.shed = cfg.seed % 2 == 1};
	cfg.max_bytes = w.shed ? kvindex_least_bytes(1) + ((size_t)input_byte(&in) << 11) : (size_t)64 << 20;
	CGN_MUST(cgn_ok(kvindex_new(&cfg, &w.ix, NULL)));
	CGN_MUST(cgn_ok(kvindex_reader_new(w.ix, &w.r, NULL)));
	for (unsigned steps = 0; in.n > 0 && steps < 400; steps++)
		index_step(&w, &in);
	index_audit(&w);
	kvindex_reader_free(&w.r);
	kvindex_free(&w.ix);
	return 0;
}
