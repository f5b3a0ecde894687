/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/kv/kvindex/segment_priv.h"

#include <stdlib.h>
#include <string.h>

#include "policy/kv/kvindex/match_priv.h"

#define KVINDEX_TAG 0x4b564958U
#define LOOK_AHEAD  8 /* Blocks ahead of the current one whose buckets are prefetched. */

static size_t fixed_bytes(unsigned max_readers)
{
	return mem_cost(sizeof(struct kvindex), true) +
		mem_cost(max_readers * sizeof(struct reader_slot), true) +
		max_readers * mem_cost(match_reader_bytes(), false);
}

size_t kvindex_least_bytes(unsigned max_readers)
{
	return fixed_bytes(max_readers) + ((size_t)128 << 10);
}

CGN_RC kvindex_new(const struct kvindex_cfg *cfg, struct kvindex **out, struct cgn_err *err)
{
	if (cfg->max_readers == 0 || cfg->max_readers > KVINDEX_READERS)
		return CGN_FAIL(err, INVALID, "an index of KV blocks takes 1 to %d readers, not %u",
			KVINDEX_READERS, cfg->max_readers);
	if (cfg->max_bytes < kvindex_least_bytes(cfg->max_readers))
		return CGN_FAIL(err, INVALID,
			"an index of KV blocks with %u readers takes at least %zu bytes, not %zu",
			cfg->max_readers, kvindex_least_bytes(cfg->max_readers), cfg->max_bytes);
	struct kvindex *ix = CGN_NEW_LINES(struct kvindex, 1);
	ix->tag = KVINDEX_TAG;
	ix->max_readers = cfg->max_readers;
	ix->max_bytes = cfg->max_bytes;
	ix->seed = cfg->seed;
	ix->readers = CGN_NEW_LINES(struct reader_slot, cfg->max_readers);
	ix->bytes = fixed_bytes(cfg->max_readers);
	atomic_store(&ix->epoch, 1); /* Epoch 0 marks an idle reader. */
	*out = ix;
	return CGN_OK;
}

static void sets_free(struct kvindex *ix, struct table *t)
{
	for (uint32_t i = 0; i < t->n_buckets * WAYS; i++) {
		uint64_t holders = atomic_load(&t->buckets[i / WAYS].slots[i % WAYS].holders);
		if (holders_is_set(holders))
			epoch_free(ix, holders_set(holders));
	}
}

void kvindex_free(struct kvindex **take)
{
	struct kvindex *ix = *take;
	if (ix == NULL)
		return;
	CGN_LIVE(ix, KVINDEX_TAG);
	for (unsigned i = 0; i < ix->max_readers; i++)
		CGN_MUST(!atomic_load(&ix->readers[i].taken));
	for (unsigned i = 0; i < SEGMENTS; i++) {
		struct table *t = segment_table(&ix->segments[i]);
		if (t == NULL)
			continue;
		sets_free(ix, t);
		epoch_free(ix, &t->head);
	}
	mem_fini(ix);
	for (unsigned i = 0; i < KVINDEX_NODES; i++)
		free(ix->nodes[i]);
	ix->tag = 0;
	free(ix->readers);
	free(ix);
	*take = NULL;
}

/* ---- nodes ---- */

static struct index_node *node_of(const struct kvindex *ix, unsigned node)
{
	CGN_LIVE(ix, KVINDEX_TAG);
	CGN_MUST(node < KVINDEX_NODES && ix->states[node] == NODE_LIVE);
	return ix->nodes[node];
}

CGN_RC kvindex_node_add(struct kvindex *ix, uint16_t *node, struct cgn_err *err)
{
	CGN_LIVE(ix, KVINDEX_TAG);
	uint16_t i = 0;
	while (i < KVINDEX_NODES && ix->states[i] != NODE_FREE)
		i++;
	if (i == KVINDEX_NODES)
		return CGN_FAIL(err, TOO_LARGE,
			"the index of KV blocks has no room for another node: it takes %d", KVINDEX_NODES);
	if (!mem_take(ix, mem_cost(sizeof(struct index_node), false), 0))
		return CGN_FAIL(err, NO_MEMORY,
			"the index of KV blocks has no room for another node within its %zu bytes",
			ix->max_bytes);
	ix->nodes[i] = CGN_NEW(struct index_node);
	ix->states[i] = NODE_LIVE;
	ix->nodes_live++;
	if (i / 64 + 1U > atomic_load(&ix->words))
		atomic_store(&ix->words, i / 64 + 1U);
	atomic_fetch_or(&ix->live[i / 64], bit_of(i));
	*node = i;
	return CGN_OK;
}

void kvindex_node_remove(struct kvindex *ix, uint16_t node)
{
	struct index_node *l = node_of(ix, node);
	atomic_fetch_and(&ix->live[node / 64], ~bit_of(node));
	ix->states[node] = NODE_DEAD;
	ix->n_dead++;
	ix->nodes_live--;
	ix->memberships -= l->count;
	ix->nodes[node] = NULL;
	mem_give(ix, mem_cost(sizeof *l, false));
	free(l);
}

void node_account(struct kvindex *ix, unsigned node, uint64_t digest, unsigned before, unsigned now)
{
	struct index_node *l = ix->nodes[node];
	l->sums[block_range(digest)] ^= block_fingerprint(digest, before) ^ block_fingerprint(digest, now);
	l->count += (uint64_t)(now != 0) - (before != 0);
	for (unsigned t = 0; t < BLOCK_TIERS; t++)
		l->tiers[t] += (uint64_t)(now >> t & 1) - (before >> t & 1);
	ix->memberships += (uint64_t)(now != 0) - (before != 0);
}

void node_mark_shed(struct kvindex *ix, unsigned node, uint64_t digest)
{
	unsigned range = block_range(digest);
	ix->nodes[node]->shed[range / 64] |= bit_of(range);
	ix->shed_memberships++;
}

const uint64_t *kvindex_sums(const struct kvindex *ix, uint16_t node)
{
	return node_of(ix, node)->sums;
}

void kvindex_tier_counts(const struct kvindex *ix, uint16_t node, uint64_t out[BLOCK_TIERS])
{
	memcpy(out, node_of(ix, node)->tiers, sizeof node_of(ix, node)->tiers);
}

uint64_t kvindex_count(const struct kvindex *ix, uint16_t node)
{
	return node_of(ix, node)->count;
}

bool kvindex_range_was_shed(const struct kvindex *ix, uint16_t node, unsigned range)
{
	CGN_MUST(range < BLOCK_RANGES);
	return (node_of(ix, node)->shed[range / 64] & bit_of(range)) != 0;
}

/* ---- updates ---- */

/* Publish |now| as the holders of |slot| and retire the set that |was| refers to. */
static void holders_replace(struct kvindex *ix, struct segment *s, struct slot *slot, uint64_t was,
	uint64_t now, bool next_of_pass)
{
	if (now == was)
		return;
	if (now != 0)
		atomic_store_explicit(&slot->holders, now, memory_order_release);
	else
		(next_of_pass ? segment_remove_next : segment_remove)(ix, s, slot);
	if (holders_is_set(was))
		epoch_retire(ix, holders_set(was));
}

static uint64_t slot_holders(struct slot *slot)
{
	return atomic_load_explicit(&slot->holders, memory_order_relaxed);
}

static uint64_t digest_of(const struct kvindex *ix, const struct segment *s, struct slot *slot)
{
	return key_digest(ix, s, atomic_load_explicit(&slot->key, memory_order_relaxed));
}

/* Return false when there is no memory. Shedding makes room for a second try, and may remove |digest|
 * itself. */
static bool index_put_once(struct kvindex *ix, unsigned node, uint64_t digest, unsigned tiers)
{
	struct segment *s = segment_of(ix, digest);
	struct slot *slot = segment_find(ix, digest, tiers != 0);
	uint64_t was = slot != NULL ? slot_holders(slot) : 0, now = was;
	unsigned before = holders_tiers(was, node);
	if (before == tiers)
		return true;
	if (slot == NULL) {
		if (!segment_insert(ix, digest, member_of(node, tiers)))
			return false;
	} else {
		if (!holders_put(ix, &now, node, tiers))
			return false;
		holders_replace(ix, s, slot, was, now, false);
	}
	node_account(ix, node, digest, before, tiers);
	if (tiers == 0)
		segment_fit(ix, s);
	return true;
}

static void index_put(struct kvindex *ix, unsigned node, uint64_t digest, unsigned tiers)
{
	if (index_put_once(ix, node, digest, tiers) ||
		(segment_shed(ix, segment_of(ix, digest)) && index_put_once(ix, node, digest, tiers)))
		return;
	(void)index_put_once(ix, node, digest,
		0); /* The old entry is wrong now, and removing it takes no memory. */
	node_mark_shed(ix, node, digest);
}

static void prefetch_block(struct kvindex *ix, const struct index_node *l, uint64_t digest)
{
	struct table *t = segment_table(segment_of(ix, digest));
	uint32_t n = segment_buckets(segment_of(ix, digest));
	uint64_t x = spread(ix->seed, digest);
	if (t == NULL)
		return;
	__builtin_prefetch(&t->buckets[first_bucket(x, n)], 1);
	__builtin_prefetch(&t->buckets[second_bucket(x, n)], 1);
	__builtin_prefetch(&l->sums[block_range(digest)], 1);
}

void kvindex_set(struct kvindex *ix, uint16_t node, const uint64_t *digests, const uint8_t *tiers, size_t n)
{
	const struct index_node *l = node_of(ix, node);
	for (size_t i = 0; i < n && i < LOOK_AHEAD; i++)
		prefetch_block(ix, l, digests[i]);
	for (size_t i = 0; i < n; i++) {
		if (i + LOOK_AHEAD < n)
			prefetch_block(ix, l, digests[i + LOOK_AHEAD]);
		index_put(ix, node, digests[i],
			tiers != NULL ? tiers[i] & BLOCK_TIER_MASK : BLOCK_TIER_BIT(BLOCK_GPU));
		if (++ix->updates % 32 == 0 && ix->retired_bytes > (64 << 10))
			(void)mem_reclaim(ix, 64);
	}
}

/* ---- passes over slots ---- */

typedef void (*slot_fn)(struct kvindex *ix, struct segment *s, struct slot *slot, void *arg);

static size_t segment_pass(struct kvindex *ix, struct segment *s, slot_fn fn, void *arg)
{
	struct table *t = segment_table(s);
	uint32_t slots = t != NULL ? t->n_buckets * WAYS : 0;
	for (uint32_t i = 0; i < slots; i++) {
		struct slot *slot = &t->buckets[i / WAYS].slots[i % WAYS];
		if (slot_holders(slot) != 0)
			fn(ix, s, slot, arg);
	}
	return slots;
}

static void range_pass(struct kvindex *ix, unsigned range, bool change, slot_fn fn, void *arg)
{
	unsigned per = SEGMENTS / BLOCK_RANGES, first = range < BLOCK_RANGES ? range * per : 0,
		 n = range < BLOCK_RANGES ? per : SEGMENTS;
	CGN_MUST(range <= BLOCK_RANGES);
	for (struct segment *s = ix->segments + first; s < ix->segments + first + n; s++) {
		if (change)
			segment_bump(s);
		(void)segment_pass(ix, s, fn, arg);
		if (change)
			segment_fit(ix, s);
	}
}

static void clear_slot(struct kvindex *ix, struct segment *s, struct slot *slot, void *arg)
{
	unsigned node = *(const uint16_t *)arg;
	uint64_t was = slot_holders(slot), now = was;
	unsigned before = holders_tiers(was, node);
	if (before == 0)
		return;
	CGN_MUST(holders_put(ix, &now, node, 0));
	node_account(ix, node, digest_of(ix, s, slot), before, 0);
	holders_replace(ix, s, slot, was, now, true);
}

void kvindex_clear(struct kvindex *ix, uint16_t node, unsigned range)
{
	struct index_node *l = node_of(ix, node);
	range_pass(ix, range, true, clear_slot, &node);
	for (unsigned r = range < BLOCK_RANGES ? range : 0;
		r < (range < BLOCK_RANGES ? range + 1 : BLOCK_RANGES); r++) {
		CGN_MUST(l->sums[r] == 0);
		l->shed[r / 64] &= ~bit_of(r);
	}
	(void)mem_reclaim(ix, 1024);
}

unsigned kvindex_tiers(const struct kvindex *ix, uint16_t node, uint64_t digest)
{
	(void)node_of(ix, node);
	struct slot *slot = segment_find((struct kvindex *)(uintptr_t)ix, digest, false);
	return slot != NULL ? holders_tiers(slot_holders(slot), node) : 0;
}

struct each {
	uint16_t node;
	void (*fn)(void *user, uint64_t digest, unsigned tiers);
	void *user;
};

static void each_slot(struct kvindex *ix, struct segment *s, struct slot *slot, void *arg)
{
	const struct each *e = arg;
	unsigned tiers = holders_tiers(slot_holders(slot), e->node);
	if (tiers != 0)
		e->fn(e->user, digest_of(ix, s, slot), tiers);
}

void kvindex_each(const struct kvindex *ix, uint16_t node, unsigned range,
	void (*fn)(void *user, uint64_t digest, unsigned tiers), void *user)
{
	(void)node_of(ix, node);
	struct each e = {node, fn, user};
	range_pass((struct kvindex *)(uintptr_t)ix, range, false, each_slot, &e);
}

struct part {
	const struct kvindex_nodes *nodes;
	void (*fn)(void *user, uint64_t digest);
	void *user;
};

static void part_slot(struct kvindex *ix, struct segment *s, struct slot *slot, void *arg)
{
	const struct part *p = arg;
	if (holders_any(slot_holders(slot), p->nodes->bits))
		p->fn(p->user, digest_of(ix, s, slot));
}

size_t kvindex_part(const struct kvindex *ix, const struct kvindex_nodes *nodes, unsigned part,
	void (*fn)(void *user, uint64_t digest), void *user)
{
	struct kvindex *own = (struct kvindex *)(uintptr_t)ix;
	struct part p = {nodes, fn, user};
	CGN_LIVE(ix, KVINDEX_TAG);
	CGN_MUST(part < KVINDEX_PARTS);
	return segment_pass(own, &own->segments[part], part_slot, &p);
}

/* ---- sweeping ---- */

static void sweep_slot(struct kvindex *ix, struct segment *s, struct slot *slot, void *arg)
{
	(void)arg;
	uint64_t was = slot_holders(slot), now = was;
	unsigned n = holders_list(was, ix->listed);
	for (unsigned i = 0; i < n; i++) {
		unsigned node = ix->listed[i] >> 4;
		if ((ix->sweeping[node / 64] & bit_of(node)) == 0)
			continue;
		uint64_t then = now;
		CGN_MUST(holders_put(ix, &now, node, 0));
		/* This loop made the set, so no reader has seen it. */
		if (then != was && then != now && holders_is_set(then))
			epoch_free(ix, holders_set(then));
	}
	holders_replace(ix, s, slot, was, now, true);
}

static void nodes_move(struct kvindex *ix, enum node_state from, enum node_state to)
{
	for (unsigned i = 0; i < KVINDEX_NODES; i++) {
		if (ix->states[i] != from)
			continue;
		ix->states[i] = (uint8_t)to;
		if (to == NODE_SWEEPING)
			ix->sweeping[i / 64] |= bit_of(i);
		else
			ix->sweeping[i / 64] &= ~bit_of(i);
	}
}

/* Free a node's number once every reader that began before the end of the sweep has finished: such a reader
 * could still add old blocks to the new node. */
static void release_swept(struct kvindex *ix)
{
	if (ix->n_swept == 0 || !readers_passed(ix, ix->swept_epoch))
		return;
	nodes_move(ix, NODE_SWEPT, NODE_FREE);
	ix->n_swept = 0;
}

static void nodes_sweep(struct kvindex *ix, size_t budget)
{
	if (ix->n_sweeping == 0 && ix->n_dead > 0) {
		nodes_move(ix, NODE_DEAD, NODE_SWEEPING);
		ix->n_sweeping = ix->n_dead;
		ix->n_dead = 0;
		ix->sweep_at = 0;
	}
	for (size_t done = 0; ix->n_sweeping > 0 && done < budget; done++) {
		struct segment *s = &ix->segments[ix->sweep_at];
		segment_bump(s);
		done += segment_pass(ix, s, sweep_slot, NULL);
		segment_fit(ix, s);
		if (++ix->sweep_at < SEGMENTS)
			continue;
		nodes_move(ix, NODE_SWEEPING, NODE_SWEPT);
		ix->n_swept += ix->n_sweeping;
		ix->n_sweeping = 0;
		ix->swept_epoch = atomic_load_explicit(&ix->epoch, memory_order_relaxed);
		atomic_store_explicit(&ix->epoch, ix->swept_epoch + 1, memory_order_release);
	}
}

bool kvindex_tick(struct kvindex *ix, size_t budget)
{
	CGN_LIVE(ix, KVINDEX_TAG);
	nodes_sweep(ix, budget);
	release_swept(ix);
	bool waits = mem_reclaim(ix, budget < 4096 ? (unsigned)budget : 4096);
	return waits || ix->n_dead > 0 || ix->n_sweeping > 0 || ix->n_swept > 0;
}

void kvindex_stats(const struct kvindex *ix, struct kvindex_stats *out)
{
	CGN_LIVE(ix, KVINDEX_TAG);
	*out = (struct kvindex_stats){.blocks = ix->blocks,
		.memberships = ix->memberships,
		.nodes = ix->nodes_live,
		.bytes = ix->bytes,
		.max_bytes = ix->max_bytes,
		.retired_bytes = ix->retired_bytes,
		.shed_blocks = ix->shed_blocks,
		.shed_memberships = ix->shed_memberships};
}
