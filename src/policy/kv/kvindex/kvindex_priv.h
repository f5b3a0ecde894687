/* SPDX-License-Identifier: Apache-2.0 */
/* kvindex, inside. kvindex.c: nodes and updates · segment.c: the hash table · holders.c: the holders of a
 * block · memory.c: the budget and epoch-based reclamation · match.c: readers.
 *
 * One thread writes. Fields that readers read are atomic; the order of their changes is described at each. */
#pragma once
#include <stdatomic.h>

#include "base/mix/mix.h"
#include "policy/kv/kvindex/kvindex.h"

#define SEGMENTS   KVINDEX_PARTS
#define WAYS       4
#define NODE_WORDS (KVINDEX_NODES / 64)

/* Head of an allocation that readers may still use for a while after it was replaced. */
struct epoch_head {
	struct epoch_head *next; /* List of retired allocations; writer only. */
	uint32_t bytes;          /* Requested size; constant. */
	uint16_t n;              /* Members of a set; writer only. */
	uint8_t kind;            /* enum epoch_kind; constant. */
	uint8_t words;           /* Words of a plane of a dense set; constant. */
};
enum epoch_kind { EPOCH_TABLE, EPOCH_ARRAY, EPOCH_DENSE, EPOCH_DENSE_TIERS };

/* |key|: the low 54 bits of the digest (the top 10 chose the segment), and above them an age: the clock when
 * the block was last asked for, which readers update. |holders|: the holders' word (holders.c); 0: the slot
 * is empty. */
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

/* |at| has two places so that a reader gets table and size from one: the writer fills the unused place and
 * then flips |cur|. The writer increments |gen| before it empties a slot and before it fills a place. A
 * reader that finds |gen| changed looks again, because an entry may have moved past it. */
struct segment {
	_Alignas(64) _Atomic uint64_t gen;
	_Atomic uint32_t cur;
	uint32_t used;
	struct {
		_Atomic(struct table *) table; /* NULL before the first block. */
		_Atomic uint32_t n_buckets;
	} at[2];
};

enum node_state {
	NODE_FREE,
	NODE_LIVE,
	NODE_DEAD /* Waits for a sweep. */,
	NODE_SWEEPING,
	NODE_SWEPT /* Waits for readers. */
};

struct index_node {
	uint64_t sums[BLOCK_RANGES], count;
	uint64_t tiers[BLOCK_TIERS]; /* Blocks in each tier. */
	uint64_t shed[BLOCK_RANGES / 64];
};

struct reader_slot {
	_Alignas(64) _Atomic uint64_t epoch; /* 0: no match in progress. */
	_Atomic bool taken;
};

struct kvindex {
	uint32_t tag;
	unsigned max_readers;
	uint64_t seed;
	struct reader_slot *readers;
	/* ---- read by all threads ---- */
	_Alignas(64) _Atomic uint64_t epoch;
	_Atomic uint32_t words; /* Words of node bit sets in use; never shrinks. */
	_Atomic uint8_t clock;  /* Clock of the ages. */
	_Alignas(64) _Atomic uint64_t live[NODE_WORDS];
	/* ---- writer only ---- */
	_Alignas(64) size_t bytes, max_bytes, retired_bytes;
	uint64_t blocks, memberships, nodes_live, shed_blocks, shed_memberships;
	/* Retired allocations: since the last epoch; before |aging_epoch| ended; visible to no reader. */
	struct epoch_head *fresh, *aging, *free_now;
	uint64_t aging_epoch, swept_epoch;
	uint64_t updates;
	uint64_t births; /* New blocks since the last step of the clock. */
	uint32_t steps, sweep_at;
	unsigned n_dead, n_sweeping, n_swept;
	uint8_t states[KVINDEX_NODES];
	uint64_t sweeping[NODE_WORDS];
	struct index_node *nodes[KVINDEX_NODES];
	uint16_t members[KVINDEX_NODES]; /* Scratch of holders.c. */
	uint16_t listed[KVINDEX_NODES];  /* Scratch of segment.c and kvindex.c. */
	struct segment segments[SEGMENTS];
};

static inline uint64_t bit_of(unsigned node)
{
	return UINT64_C(1) << (node % 64);
}

/* ---- memory.c ---- */

/* A sequentially consistent fence. ThreadSanitizer does not model fences, so an atomic operation replaces it
 * there. */
static inline void full_fence(void)
{
#if defined(__SANITIZE_THREAD__)
	static _Atomic int any;
	atomic_fetch_add(&any, 1);
#else
	atomic_thread_fence(memory_order_seq_cst);
#endif
}

/* Approximate cost of an allocation of |bytes|, with the allocator's overhead. */
size_t mem_cost(size_t bytes, bool aligned);
/* Charge |cost| to the budget. Return false when it would exceed the budget less |spare|, even after
 * unreachable memory was freed. */
bool mem_take(struct kvindex *ix, size_t cost, size_t spare);
void mem_give(struct kvindex *ix, size_t cost);
/* Allocate an object that readers may see. Return NULL when the budget or the system's memory is used up.
 * Tables leave a part of the budget to sets. */
struct epoch_head *epoch_new(struct kvindex *ix, enum epoch_kind kind, size_t bytes);
/* Retire |s|: no reader that starts now can reach it. */
void epoch_retire(struct kvindex *ix, struct epoch_head *s);
void epoch_free(struct kvindex *ix, struct epoch_head *s); /* Free |s|, which no reader has seen. */
/* Free up to |max| retired objects that no reader can see. Return false when none is left waiting. */
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
/* A member of a word or of an array: node << 4 | tiers. |tiers| is never 0. */
static inline uint16_t member_of(unsigned node, unsigned tiers)
{
	return (uint16_t)(node << 4 | tiers);
}
/* Any thread. */
unsigned holders_tiers(uint64_t holders, unsigned node);
unsigned holders_array_cap(const struct epoch_head *s);
uint16_t holders_array_at(const struct epoch_head *s, unsigned i); /* 0: empty. */
/* Plane 0: held; plane 1 + t: in tier t (EPOCH_DENSE_TIERS). */
uint64_t holders_plane(const struct epoch_head *s, unsigned plane, unsigned word);
/* Writer only. */
bool holders_any(uint64_t holders, const uint64_t nodes[NODE_WORDS]); /* Is one of |nodes| a holder? */
unsigned holders_list(uint64_t holders, uint16_t out[KVINDEX_NODES]);
/* Set the tiers of |node| in |*holders| (0: remove it), in place or as a new word. The caller publishes the
 * word and retires the old set. Return false, with nothing changed, when there is no memory; this never
 * happens with |tiers| 0. */
bool holders_put(struct kvindex *ix, uint64_t *holders, unsigned node, unsigned tiers);

/* ---- kvindex.c ---- */

/* Account for the change of a live node's tiers for |digest| from |before| to |now|. */
void node_account(struct kvindex *ix, unsigned node, uint64_t digest, unsigned before, unsigned now);
void node_mark_shed(struct kvindex *ix, unsigned node, uint64_t digest);
