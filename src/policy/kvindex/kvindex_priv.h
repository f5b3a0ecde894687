/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of kvindex share. kvindex.c: nodes and updates · segment.c: the table · holders.c: who holds
 * a block · memory.c: the budget, and what readers may still see · match.c: readers.
 *
 * One thread writes. What readers read is atomic; a comment at each such field says in which order it
 * changes. */
#pragma once
#include <stdatomic.h>

#include "base/mix/mix.h"
#include "policy/kvindex/kvindex.h"

#define SEGMENTS   1024
#define WAYS       4
#define NODE_WORDS (KVINDEX_NODES / 64)

/* Head of an allocation that readers may hold on to for a while after it was replaced. */
struct epoch_head {
	struct epoch_head *next; /* the writer's, once it was replaced */
	uint32_t bytes;          /* as asked for; never changes */
	uint16_t n;              /* sets: members; the writer's */
	uint8_t kind;            /* enum epoch_kind; never changes */
	uint8_t words;           /* dense sets: words of a plane; never changes */
};
enum epoch_kind { EPOCH_TABLE, EPOCH_ARRAY, EPOCH_DENSE, EPOCH_DENSE_TIERS };

/* |key|: the digest below the 10 bits that chose the segment, and above it an age, the clock when the block
 * was last asked for: readers exchange it. Who holds a block is one word (holders.c): 0: nobody, the slot is
 * empty. */
struct slot {
	_Atomic uint64_t key, holders;
};
struct bucket {
	struct slot slots[WAYS];
};
_Static_assert(sizeof(struct bucket) == 64, "a bucket is a cache line");

struct table {
	struct epoch_head head;
	uint32_t n_buckets;
	_Alignas(64) struct bucket buckets[];
};

/* |at| has two places so that a reader gets table and size from one: the writer fills the other one and turns
 * |cur|. |gen| goes up before a slot is emptied and before a place is filled; a reader that finds it changed
 * looks again, because an entry may have moved past it. */
struct segment {
	_Alignas(64) _Atomic uint64_t gen;
	_Atomic uint32_t cur;
	uint32_t used;
	struct {
		_Atomic(struct table *) table; /* NULL before the first block */
		_Atomic uint32_t n_buckets;
	} at[2];
};

enum node_state {
	NODE_FREE,
	NODE_LIVE,
	NODE_DEAD /* waits for a sweep */,
	NODE_SWEEPING,
	NODE_SWEPT /* waits for readers */
};

struct index_node {
	uint64_t sums[BLOCK_RANGES], count;
	uint64_t tiers[BLOCK_TIERS]; /* blocks in each */
	uint64_t shed[BLOCK_RANGES / 64];
};

struct reader_slot {
	_Alignas(64) _Atomic uint64_t epoch; /* 0: not in a match */
	_Atomic bool taken;
};

struct kvindex {
	uint32_t tag;
	unsigned max_readers;
	uint64_t seed;
	struct reader_slot *readers;
	/* read by all */
	_Alignas(64) _Atomic uint64_t epoch;
	_Atomic uint32_t words; /* of node bit sets in use; only grows */
	_Atomic uint8_t clock;  /* of ages */
	_Alignas(64) _Atomic uint64_t live[NODE_WORDS];
	/* the writer's */
	_Alignas(64) size_t bytes, max_bytes, retired_bytes;
	uint64_t blocks, memberships, nodes_live, shed_blocks, shed_memberships;
	/* replaced since; replaced before aging_epoch ended; seen by nobody */
	struct epoch_head *fresh, *aging, *free_now;
	uint64_t aging_epoch, swept_epoch;
	uint64_t updates;
	uint64_t births; /* blocks that are new since the last step of the clock */
	uint32_t steps, sweep_at;
	unsigned n_dead, n_sweeping, n_swept;
	uint8_t states[KVINDEX_NODES];
	uint64_t sweeping[NODE_WORDS];
	struct index_node *nodes[KVINDEX_NODES];
	uint16_t members[KVINDEX_NODES]; /* scratch of holders.c */
	uint16_t listed[KVINDEX_NODES];  /* scratch of segment.c and kvindex.c */
	struct segment segments[SEGMENTS];
};

static inline uint64_t bit_of(unsigned node)
{
	return UINT64_C(1) << (node % 64);
}

/* ---- memory.c ---- */

/* A seq_cst fence; ThreadSanitizer knows none. */
static inline void full_fence(void)
{
#if defined(__SANITIZE_THREAD__)
	static _Atomic int any;
	atomic_fetch_add(&any, 1);
#else
	atomic_thread_fence(memory_order_seq_cst);
#endif
}

/* What an allocation of so many bytes costs with the allocator's overhead, about. */
size_t mem_cost(size_t bytes, bool aligned);
/* Count |cost| in; false when that would pass the budget less |spare|, even after what nobody sees was
 * freed. */
bool mem_take(struct kvindex *ix, size_t cost, size_t spare);
void mem_give(struct kvindex *ix, size_t cost);
/* For readers to see: NULL when neither budget nor system have it. Tables leave a part of the budget to
 * sets. */
struct epoch_head *epoch_new(struct kvindex *ix, enum epoch_kind kind, size_t bytes);
/* No reader that starts now can reach it. */
void epoch_retire(struct kvindex *ix, struct epoch_head *s);
void epoch_free(struct kvindex *ix, struct epoch_head *s); /* no reader ever saw it */
/* Free up to |max| of what no reader can see; false when nothing is left that waits. */
bool mem_reclaim(struct kvindex *ix, unsigned max);
bool readers_passed(struct kvindex *ix, uint64_t epoch);
void mem_fini(struct kvindex *ix);

/* ---- holders.c ---- */

static inline bool holders_is_set(uint64_t holders)
{
	return holders != 0 && (holders & 15) == 0;
}
static inline struct epoch_head *holders_set(uint64_t holders)
{
	return (struct epoch_head *)(uintptr_t)holders; /* NOLINT */
}
/* Member of a word or of an array: node << 4 | tiers; never 0 in tiers. */
static inline uint16_t member_of(unsigned node, unsigned tiers)
{
	return (uint16_t)(node << 4 | tiers);
}
/* Any thread. */
unsigned holders_tiers(uint64_t holders, unsigned node);
unsigned holders_array_cap(const struct epoch_head *s);
uint16_t holders_array_at(const struct epoch_head *s, unsigned i); /* 0: empty */
/* plane 0: held; 1 + t: in tier t (EPOCH_DENSE_TIERS) */
uint64_t holders_plane(const struct epoch_head *s, unsigned plane, unsigned word);
/* The writer. */
unsigned holders_list(uint64_t holders, uint16_t out[KVINDEX_NODES]);
/* |node| with |tiers| (0: without) added to |*holders|, in place or as another word; the caller publishes that
 * and retires the set that the old one was. False, nothing changed, when there is no memory; never with
 * |tiers| 0. */
bool holders_put(struct kvindex *ix, uint64_t *holders, unsigned node, unsigned tiers);

/* ---- segment.c ---- */

static inline struct segment *segment_of(struct kvindex *ix, uint64_t digest)
{
	return &ix->segments[digest >> 54];
}
#define KEY_BITS 54
static inline bool key_is(uint64_t key, uint64_t digest)
{
	return (key ^ digest) << (64 - KEY_BITS) == 0;
}
static inline uint8_t key_age(uint64_t key)
{
	return (uint8_t)(key >> KEY_BITS);
}
static inline uint64_t key_of(uint64_t digest, uint8_t age)
{
	return (digest & ((UINT64_C(1) << KEY_BITS) - 1)) | (uint64_t)age << KEY_BITS;
}
static inline uint64_t key_digest(const struct kvindex *ix, const struct segment *s, uint64_t key)
{
	return (uint64_t)(s - ix->segments) << KEY_BITS | key_of(key, 0);
}
/* |key| as it was read a moment ago: when the slot changed meanwhile, nothing is done. */
static inline void slot_touch(struct slot *slot, uint64_t key, uint8_t now)
{
	if (key_age(key) != now)
		(void)atomic_compare_exchange_strong_explicit(&slot->key, &key, key_of(key, now),
			memory_order_relaxed, memory_order_relaxed);
}
/* Of a digest or a key. */
static inline uint64_t spread(uint64_t seed, uint64_t key)
{
	uint64_t x = mix_golden(key << (64 - KEY_BITS) ^ seed);
	x = (x ^ x >> 32) * 0xd6e8feb86659fd93ULL;
	return x ^ x >> 32;
}
static inline uint32_t first_bucket(uint64_t spread, uint32_t n)
{
	return (uint32_t)((spread >> 32) * n >> 32);
}
static inline uint32_t second_bucket(uint64_t spread, uint32_t n)
{
	uint32_t b = (uint32_t)((spread & UINT32_MAX) * n >> 32);
	return b != first_bucket(spread, n) ? b : b + 1 < n ? b + 1 : 0;
}
static inline struct table *segment_table(struct segment *s) /* the writer */
{
	return atomic_load_explicit(&s->at[atomic_load_explicit(&s->cur, memory_order_relaxed)].table,
		memory_order_relaxed);
}
static inline uint32_t segment_buckets(struct segment *s) /* the writer */
{
	return atomic_load_explicit(&s->at[atomic_load_explicit(&s->cur, memory_order_relaxed)].n_buckets,
		memory_order_relaxed);
}
/* The slot of |digest|, its age set to now when |touch|; NULL. */
struct slot *segment_find(struct kvindex *ix, uint64_t digest, bool touch);
/* A block that is not in it. Grows, or sheds others when it may not; false when neither helped. */
bool segment_insert(struct kvindex *ix, uint64_t digest, uint64_t holders);
/* Empty a slot; what |holders| was is the caller's. */
void segment_remove(struct kvindex *ix, struct segment *s, struct slot *slot);
/* Before a pass that empties many slots and fills none: then a segment_remove_next for each. */
void segment_bump(struct segment *s);
void segment_remove_next(struct kvindex *ix, struct segment *s, struct slot *slot);
/* Give memory back when it is too empty. */
void segment_fit(struct kvindex *ix, struct segment *s);
/* Drop the oldest sixteenth, at least one block; false when it is empty. */
bool segment_shed(struct kvindex *ix, struct segment *s);

/* ---- kvindex.c ---- */

/* A live node's |digest| went from |before| to |now|. */
void node_account(struct kvindex *ix, unsigned node, uint64_t digest, unsigned before, unsigned now);
void node_mark_shed(struct kvindex *ix, unsigned node, uint64_t digest);
