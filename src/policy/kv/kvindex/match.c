/* SPDX-License-Identifier: Apache-2.0 */
/* A match walks along the chain with the nodes that are still alive: those that hold every block so far. Many
 * alive nodes are a bit set, so that a block costs one word for 64 nodes; FEW or less are a list. A node that
 * ends is noted with its depth. When more than BULK nodes end at one block, the block's depth and their bit
 * set are noted instead. So a block never costs a step for each node.
 *
 * Tiers: a node stays in its best tier until a block changes that, and only changes are noted: entering tier
 * t at depth d subtracts d from its count, leaving it adds d. GPU is the remainder, so the usual case costs
 * nothing.
 *
 * Reading a segment: gen, place, table; then key, holders and key again; then gen. When gen has changed, the
 * read starts over, because
 * - a moved entry is copied before gen is incremented and emptied after, so a reader that misses both copies
 *   sees another gen;
 * - a slot that was reused got its new key before its new holders, so either the second read of the key
 *   differs, or the slot was emptied once more, with another gen. The writer never leaves gen in a state that
 *   readers have to wait for. */
#include <stdlib.h>
#include <string.h>

#include "base/unlikely/unlikely.h"
#include "policy/kv/kvindex/match_priv.h"
#include "policy/kv/kvindex/segment_priv.h"

#define READER_TAG 0x4b565244U
#define FEW        16
#define BULK       32
#define MAX_LEVELS 16 /* Bulk ends beyond this many levels are noted node by node. */
#define AHEAD      32 /* Blocks placed ahead of the current one; a power of two. */
#define MAX_CHAIN  ((size_t)1 << 31)
#define FAR        (BLOCK_TIERS - 1) /* Tiers other than GPU. */

struct note {
	uint32_t stamp;   /* Stamp of the match that the note belongs to. */
	uint32_t depth;   /* 0: the node did not end individually. */
	uint32_t by[FAR]; /* Blocks by tier; complete when depth is not 0. */
};

struct level {
	uint32_t depth;
	uint64_t nodes[NODE_WORDS];
};

struct kvindex_reader {
	uint32_t tag, stamp;
	struct kvindex *ix;
	struct reader_slot *slot;
	unsigned words, n_levels, n_few;
	uint32_t depth; /* Blocks so far. */
	bool few;       /* |list| is valid, not |alive|. */
	bool any_far;   /* |far| is valid; otherwise all blocks are in GPU. */
	struct {
		uint16_t node;
		uint8_t tier;
	} list[FEW];
	uint64_t alive[NODE_WORDS];
	uint64_t far[FAR][NODE_WORDS]; /* Nodes whose last block was at best in tier 1 + i. */
	struct level levels[MAX_LEVELS];
	struct note notes[KVINDEX_NODES];
};

/* The holders of one block, as bit sets. */
struct holding {
	uint64_t in[NODE_WORDS], far[FAR][NODE_WORDS];
	bool any_far;
};

size_t match_reader_bytes(void)
{
	return sizeof(struct kvindex_reader);
}

CGN_RC kvindex_reader_new(struct kvindex *ix, struct kvindex_reader **out, struct cgn_err *err)
{
	unsigned i = 0;
	while (i < ix->max_readers && atomic_exchange(&ix->readers[i].taken, true))
		i++;
	if (i == ix->max_readers)
		return CGN_FAIL(err, TOO_LARGE, "the index of KV blocks was made for %u readers",
			ix->max_readers);
	struct kvindex_reader *r = CGN_NEW(struct kvindex_reader);
	r->tag = READER_TAG;
	r->ix = ix;
	r->slot = &ix->readers[i];
	*out = r;
	return CGN_OK;
}

void kvindex_reader_free(struct kvindex_reader **lookup_finish)
{
	struct kvindex_reader *r = *lookup_finish;
	if (r == NULL)
		return;
	CGN_LIVE(r, READER_TAG);
	atomic_store(&r->slot->taken, false);
	r->tag = 0;
	free(r);
	*lookup_finish = NULL;
}

/* ---- finding a block ---- The lookup has three steps, so that the cache lines of many blocks are fetched at
 * once: place_read reads the segment and prefetches the first bucket; lookup_begin looks in that bucket and
 * prefetches the set of holders or the second bucket; lookup_finish completes it when it is the block's turn.
 * The holders are those at the time of the lookup, which lies within the match; the same is true of their
 * set, even if it was replaced since. */

struct place {
	uint64_t gen, holders;         /* holders: 0 when not found in |first|, or not looked up yet. */
	struct bucket *first, *second; /* NULL: the segment is empty or changed during the read. */
};

static bool place_read(struct kvindex *ix, uint64_t digest, struct place *p)
{
	struct segment *s = segment_of(ix, digest);
	p->gen = atomic_load_explicit(&s->gen, memory_order_acquire);
	uint32_t cur = atomic_load_explicit(&s->cur, memory_order_acquire);
	struct table *t = atomic_load_explicit(&s->at[cur].table, memory_order_acquire);
	uint32_t n = atomic_load_explicit(&s->at[cur].n_buckets, memory_order_acquire);
	p->holders = 0;
	p->first = p->second = NULL;
	if (atomic_load_explicit(&s->gen, memory_order_relaxed) != p->gen)
		return false; /* Table and size may not belong together. */
	if (t == NULL)
		return true;
	uint64_t x = spread(ix->seed, digest);
	p->first = &t->buckets[first_bucket(x, n)];
	p->second = &t->buckets[second_bucket(x, n)];
	return true;
}

static uint64_t bucket_look(struct bucket *b, uint64_t digest, uint8_t now)
{
	for (unsigned w = 0; w < WAYS; w++) {
		struct slot *slot = &b->slots[w];
		uint64_t key = atomic_load_explicit(&slot->key, memory_order_acquire);
		if (!key_is(key, digest))
			continue;
		uint64_t holders = atomic_load_explicit(&slot->holders, memory_order_acquire);
		if (holders == 0 || !key_is(atomic_load_explicit(&slot->key, memory_order_acquire), digest))
			continue;
		slot_touch(slot, key, now);
		return holders;
	}
	return 0;
}

static uint64_t lookup_restart(struct kvindex *ix, uint64_t digest, uint8_t now)
{
	struct segment *s = segment_of(ix, digest);
	struct place p;
	do {
		if (!place_read(ix, digest, &p))
			continue;
		p.holders = p.first != NULL ? bucket_look(p.first, digest, now) : 0;
		if (p.holders == 0 && p.second != NULL)
			p.holders = bucket_look(p.second, digest, now);
	} while (atomic_load_explicit(&s->gen, memory_order_acquire) != p.gen);
	return p.holders;
}

static void fetch_set(uint64_t holders, unsigned words)
{
	for (uintptr_t at = (uintptr_t)holders,
		       end = at + sizeof(struct epoch_head) + words * sizeof(uint64_t);
		at < end; at += 64)
		__builtin_prefetch((const void *)at);
}

static void lookup_begin(struct place *p, uint64_t digest, uint8_t now, unsigned words)
{
	p->holders = p->first != NULL ? bucket_look(p->first, digest, now) : 0;
	if (p->holders == 0)
		__builtin_prefetch(p->second);
	else if (holders_is_set(p->holders))
		fetch_set(p->holders, words);
}

static uint64_t lookup_finish(struct kvindex *ix, struct place *p, uint64_t digest, uint8_t now)
{
	if (p->holders == 0 && p->second != NULL)
		p->holders = bucket_look(p->second, digest, now);
	return atomic_load_explicit(&segment_of(ix, digest)->gen, memory_order_acquire) == p->gen
		? p->holders
		: lookup_restart(ix, digest, now);
}

/* ---- notes ---- */

static struct note *note_of(struct kvindex_reader *r, unsigned node)
{
	struct note *n = &r->notes[node];
	if (n->stamp != r->stamp)
		*n = (struct note){.stamp = r->stamp};
	return n;
}

static void note_end(struct kvindex_reader *r, unsigned node, unsigned tier, uint32_t depth)
{
	struct note *n = note_of(r, node);
	n->depth = depth;
	if (tier > 0)
		n->by[tier - 1] += depth;
}

static unsigned far_tier(const struct kvindex_reader *r, unsigned node)
{
	for (unsigned i = 0; r->any_far && i < FAR; i++)
		if ((r->far[i][node / 64] & bit_of(node)) != 0)
			return i + 1;
	return 0;
}

static unsigned best_of(unsigned tiers)
{
	return (unsigned)__builtin_ctz(tiers);
}

/* ---- many ---- */

static bool more_than(const uint64_t *bits, unsigned words, unsigned limit)
{
	unsigned n = 0;
	for (unsigned w = 0; w < words && n <= limit; w++)
		n += bits[w] != 0 ? (unsigned)__builtin_popcountll(bits[w]) : 0;
	return n > limit;
}

static void many_end(struct kvindex_reader *r, const struct holding *h)
{
	uint64_t gone[NODE_WORDS];
	for (unsigned w = 0; w < r->words; w++)
		gone[w] = r->alive[w] & ~h->in[w];
	if (r->n_levels < MAX_LEVELS && more_than(gone, r->words, BULK)) {
		r->levels[r->n_levels].depth = r->depth;
		memcpy(r->levels[r->n_levels++].nodes, gone, r->words * sizeof gone[0]);
		return;
	}
	for (unsigned w = 0; w < r->words; w++)
		for (uint64_t bits = gone[w]; bits != 0; bits &= bits - 1) {
			unsigned node = w * 64 + (unsigned)__builtin_ctzll(bits);
			note_end(r, node, far_tier(r, node), r->depth);
		}
}

static void far_changed(struct kvindex_reader *r, unsigned tier, unsigned word, uint64_t changed)
{
	for (; r->depth > 0 && changed != 0; changed &= changed - 1) {
		unsigned node = word * 64 + (unsigned)__builtin_ctzll(changed);
		bool left = (r->far[tier - 1][word] & bit_of(node)) != 0;
		note_of(r, node)->by[tier - 1] += left ? r->depth : -r->depth;
	}
}

static void many_tiers(struct kvindex_reader *r, const struct holding *h)
{
	if (!r->any_far)
		for (unsigned i = 0; i < FAR; i++)
			memset(r->far[i], 0, r->words * sizeof r->far[i][0]);
	r->any_far = true;
	for (unsigned i = 0; i < FAR; i++)
		for (unsigned w = 0; w < r->words; w++) {
			uint64_t now = h->any_far ? h->far[i][w] : 0,
				 changed = (now ^ r->far[i][w]) & r->alive[w];
			far_changed(r, i + 1, w, changed);
			r->far[i][w] ^= changed;
		}
}

static void alive_to_list(struct kvindex_reader *r)
{
	if (more_than(r->alive, r->words, FEW))
		return;
	r->few = true;
	for (unsigned w = 0; w < r->words; w++)
		for (uint64_t bits = r->alive[w]; bits != 0; bits &= bits - 1) {
			uint16_t node = (uint16_t)(w * 64 + (unsigned)__builtin_ctzll(bits));
			r->list[r->n_few].node = node;
			r->list[r->n_few++].tier = (uint8_t)far_tier(r, node);
		}
}

static void add_member(const struct kvindex_reader *r, struct holding *h, uint16_t member)
{
	unsigned node = member >> 4, tier = best_of(member);
	if (node / 64 >= r->words)
		return;
	h->in[node / 64] |= bit_of(node);
	if (tier == 0)
		return;
	if (!h->any_far)
		for (unsigned i = 0; i < FAR; i++)
			memset(h->far[i], 0, r->words * sizeof h->far[i][0]);
	h->any_far = true;
	h->far[tier - 1][node / 64] |= bit_of(node);
}

static void add_word(struct holding *h, const struct epoch_head *s, unsigned w)
{
	uint64_t tiers[BLOCK_TIERS], any, seen;
	do {
		any = holders_plane(s, 0, w);
		seen = 0;
		for (unsigned t = 0; t < BLOCK_TIERS; t++) {
			tiers[t] = holders_plane(s, 1 + t, w) & ~seen;
			seen |= tiers[t];
		}
	} while ((any & ~seen) != 0); /* A tier changed during the read: see holders.c. */
	h->in[w] = any;
	for (unsigned i = 0; i < FAR; i++)
		h->far[i][w] = tiers[1 + i];
}

static void read_holders(const struct kvindex_reader *r, uint64_t holders, struct holding *h)
{
	const struct epoch_head *s = holders_is_set(holders) ? holders_set(holders) : NULL;
	h->any_far = s != NULL && s->kind == EPOCH_DENSE_TIERS;
	if (s == NULL || s->kind == EPOCH_ARRAY)
		memset(h->in, 0, r->words * sizeof h->in[0]);
	if (s == NULL)
		for (; holders != 0; holders >>= 16)
			add_member(r, h, (uint16_t)holders);
	else if (s->kind == EPOCH_ARRAY)
		for (unsigned i = 0, cap = holders_array_cap(s); i < cap; i++) {
			uint16_t m = holders_array_at(s, i);
			if (m != 0)
				add_member(r, h, m);
		}
	else
		for (unsigned w = 0; w < r->words; w++)
			if (h->any_far)
				add_word(h, s, w);
			else
				h->in[w] = holders_plane(s, 0, w);
}

static bool step_many(struct kvindex_reader *r, uint64_t holders)
{
	struct holding h;
	uint64_t kept = 0, gone = 0;
	read_holders(r, holders, &h);
	for (unsigned w = 0; w < r->words; w++) {
		kept |= r->alive[w] & h.in[w];
		gone |= r->alive[w] & ~h.in[w];
	}
	if (kept == 0)
		return false;
	if (gone != 0) {
		if (r->depth > 0)
			many_end(r, &h);
		for (unsigned w = 0; w < r->words; w++)
			r->alive[w] &= h.in[w];
	}
	if (h.any_far || r->any_far)
		many_tiers(r, &h);
	if (gone != 0 || r->depth == 0)
		alive_to_list(r);
	return true;
}

/* ---- few ---- */

static bool step_few(struct kvindex_reader *r, uint64_t holders)
{
	unsigned tiers[FEW], kept = 0, n = 0;
	for (unsigned i = 0; i < r->n_few; i++)
		kept |= tiers[i] = holders_tiers(holders, r->list[i].node);
	if (kept == 0)
		return false;
	for (unsigned i = 0; i < r->n_few; i++) {
		unsigned was = r->list[i].tier, node = r->list[i].node;
		if (tiers[i] == 0) {
			note_end(r, node, was, r->depth);
			continue;
		}
		unsigned now = best_of(tiers[i]);
		if (now != was && was > 0)
			note_of(r, node)->by[was - 1] += r->depth;
		if (now != was && now > 0)
			note_of(r, node)->by[now - 1] -= r->depth;
		r->list[n].node = (uint16_t)node;
		r->list[n++].tier = (uint8_t)now;
	}
	r->n_few = n;
	return true;
}

/* ---- a match ---- */

static void match_begin(struct kvindex_reader *r)
{
	atomic_store_explicit(&r->slot->epoch, atomic_load_explicit(&r->ix->epoch, memory_order_acquire),
		memory_order_relaxed);
	full_fence(); /* The epoch is visible before any read: see readers_passed. */
	if (++r->stamp == 0) {
		memset(r->notes, 0, sizeof r->notes);
		r->stamp = 1;
	}
	r->words = atomic_load_explicit(&r->ix->words, memory_order_acquire);
	for (unsigned w = 0; w < r->words; w++)
		r->alive[w] = atomic_load_explicit(&r->ix->live[w], memory_order_acquire);
	r->depth = 0;
	r->n_levels = r->n_few = 0;
	r->few = r->any_far = false;
}

static size_t size_min(size_t a, size_t b)
{
	return a < b ? a : b;
}

/* Take up to |n| steps of |stride| blocks each, looking at the last block of each, until |step| returns
 * false. Return the number of steps taken. */
static size_t match_walk(struct kvindex_reader *r, const uint64_t *chain, size_t n, uint32_t stride,
	bool (*step)(struct kvindex_reader *, uint64_t holders))
{
	struct kvindex *ix = r->ix;
	struct place places[AHEAD];
	uint8_t now = atomic_load_explicit(&ix->clock, memory_order_relaxed);
	chain += stride - 1;
	for (size_t i = 0, placed = 0, looked = 0; i < n; i++, r->depth += stride) {
		/* Most chains end soon, so the read-ahead grows with each block found. */
		size_t reach = size_min(i + 2, AHEAD - 1);
		for (size_t end = size_min(n, i + reach + 1); placed < end; placed++) {
			struct place *p = &places[placed % AHEAD];
			if (!place_read(ix, chain[placed * stride], p))
				p->gen--; /* An impossible gen, so that lookup_finish looks again. */
			__builtin_prefetch(p->first);
			__builtin_prefetch(segment_of(ix, chain[size_min(n - 1, placed + 6) * stride]));
		}
		for (size_t end = size_min(n, i + reach / 2 + 1); looked < end; looked++)
			lookup_begin(&places[looked % AHEAD], chain[looked * stride], now, r->words);
		uint64_t holders = lookup_finish(ix, &places[i % AHEAD], chain[i * stride], now);
		if (holders == 0 || !step(r, holders))
			return i;
	}
	return n;
}

static bool step_one(struct kvindex_reader *r, uint64_t holders)
{
	return (r->few ? step_few : step_many)(r, holders);
}

static bool few_stay(const struct kvindex_reader *r, uint64_t holders)
{
	for (unsigned i = 0; i < r->n_few; i++) {
		unsigned tiers = holders_tiers(holders, r->list[i].node);
		if (tiers == 0 || best_of(tiers) != r->list[i].tier)
			return false;
	}
	return true;
}

static bool many_stay(const struct kvindex_reader *r, uint64_t holders)
{
	struct holding h;
	uint64_t changed = 0;
	read_holders(r, holders, &h);
	for (unsigned w = 0; w < r->words; w++)
		changed |= r->alive[w] & ~h.in[w];
	for (unsigned i = 0; i < FAR && (h.any_far || r->any_far); i++)
		for (unsigned w = 0; w < r->words; w++)
			changed |= r->alive[w] &
				((h.any_far ? h.far[i][w] : 0) ^ (r->any_far ? r->far[i][w] : 0));
	return changed == 0;
}

/* Return true when all nodes of the previous block hold this one too, in the same tiers. */
static bool step_leap(struct kvindex_reader *r, uint64_t holders)
{
	return r->few ? few_stay(r, holders) : many_stay(r, holders);
}

static void walk_all(struct kvindex_reader *r, const uint64_t *chain, size_t n)
{
	(void)match_walk(r, chain, n, 1, step_one);
}

/* Leaps begin at another block each time, so that all blocks are looked at eventually. */
static void walk_leaping(struct kvindex_reader *r, const uint64_t *chain, size_t n)
{
	for (size_t at = 0, one = 1 + r->stamp % KVINDEX_LEAP; at < n; one = KVINDEX_LEAP) {
		one = size_min(n - at, one);
		if (match_walk(r, chain + at, one, 1, step_one) < one)
			return;
		at += one;
		at += KVINDEX_LEAP *
			match_walk(r, chain + at, (n - at) / KVINDEX_LEAP, KVINDEX_LEAP, step_leap);
	}
}

static void match_run(struct kvindex_reader *r, const uint64_t *chain, size_t n,
	void (*walk_it)(struct kvindex_reader *, const uint64_t *chain, size_t n))
{
	CGN_LIVE(r, READER_TAG);
	if (n > MAX_CHAIN)
		n = MAX_CHAIN;
	/* Prefetch while match_begin waits for its fence; nothing is read yet. */
	for (size_t i = 0; i < n && i < 6; i++)
		__builtin_prefetch(segment_of(r->ix, chain[i]));
	match_begin(r);
	walk_it(r, chain, n);
	for (unsigned i = 0; i < r->n_few; i++)
		note_end(r, r->list[i].node, r->list[i].tier, r->depth);
	atomic_store_explicit(&r->slot->epoch, 0, memory_order_release);
}

void kvindex_match(struct kvindex_reader *r, const uint64_t *chain, size_t n)
{
	match_run(r, chain, n, walk_all);
}

void kvindex_leap(struct kvindex_reader *r, const uint64_t *chain, size_t n)
{
	match_run(r, chain, unlikely_way(UNLIKELY_index_half) ? n / 2 : n, walk_leaping);
}

/* |*tier|: the tier of the node's last block, unless the note is complete. */
static uint32_t depth_of(const struct kvindex_reader *r, unsigned node, const struct note *note,
	unsigned *tier)
{
	*tier = 0;
	if (node / 64 >= r->words || r->depth == 0)
		return 0;
	if (note != NULL && note->depth > 0)
		return note->depth;
	*tier = far_tier(r, node);
	if (!r->few && (r->alive[node / 64] & bit_of(node)) != 0)
		return r->depth;
	for (unsigned i = 0; i < r->n_levels; i++)
		if ((r->levels[i].nodes[node / 64] & bit_of(node)) != 0)
			return r->levels[i].depth;
	return 0;
}

uint32_t kvindex_held(const struct kvindex_reader *r, uint16_t node, uint32_t by_tier[BLOCK_TIERS])
{
	CGN_LIVE(r, READER_TAG);
	CGN_MUST(node < KVINDEX_NODES);
	const struct note *note = r->notes[node].stamp == r->stamp ? &r->notes[node] : NULL;
	unsigned tier;
	uint32_t depth = depth_of(r, node, note, &tier), far = 0;
	if (by_tier == NULL)
		return depth;
	for (unsigned t = 1; t < BLOCK_TIERS; t++) {
		by_tier[t] = depth == 0 ? 0 : (note != NULL ? note->by[t - 1] : 0) + (t == tier ? depth : 0);
		far += by_tier[t];
	}
	by_tier[BLOCK_GPU] = depth - far;
	return depth;
}
