/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of kvstore. block_priv.h has the layout of entries, ssd_priv.h the SSD tier.
 *
 * Lock order: the lock of a shard first (of several: in the order of their numbers); then one of ground, evict, pins, labels, changes, ssd. No thread
 * holds two of the second group. kvdisk is called under no lock; it calls the store under locks of its own.
 * No lock is held while bytes are copied or summed or while a callback runs, with one exception: a shard's
 * lock is held while at most KVSTORE_SMALL bytes replace another value in place.
 *
 * Every holder of a block has a reference; the index has one. A block that only the index holds gets a second
 * reference under the lock of its shard only, so "refs is 1" stays true under that lock. The exception is
 * room_evict_some, which takes the reference under the lock of evict, whose queues hold blocks of the index
 * only. */
#pragma once
#include <pthread.h>

#include "block_priv.h"
#include "joint/report/telemetry/telemetry.h"
#include "policy/kv/kvsite/kvsite.h"

#define KVSTORE_TAG       0x4b565354U
#define KVSTORE_SHARDS    64
#define KVSTORE_CHANGES   65536U
#define KVSTORE_LABELS    65536U
#define KVSTORE_SEGMENT_0 64U
#define KVSTORE_SPARED    128U /* Bit of a node's mark: the block leaves RAM after others. */

/* A shard of the index: linear hashing. The buckets lie in segments; each segment is as long as all segments
 * before it together. */
struct kvstore_shard {
	_Alignas(64) pthread_mutex_t lock;
	uint32_t *segment[27];
	uint32_t n_buckets, n_blocks;
	uint32_t n_expiring, sweep_at;
	uint64_t n_ram, ram_value_bytes, n_ssd, ssd_value_bytes;
	uint64_t hits, misses, ssd_hits;
};

/* A model and a tenant that blocks have in common. */
struct kvstore_label {
	uint32_t refs;
	uint16_t id, next;
	uint16_t n_model, n_tenant;
	struct block_leave leave;
	char text[]; /* the model, then the tenant */
};
struct kvstore_labels {
	pthread_mutex_t lock;
	struct kvstore_label *row[KVSTORE_LABELS]; /* by id; row 0 stays empty */
	uint16_t bucket[4096];
	uint32_t top; /* ids from |top| on were never used */
	uint16_t free[KVSTORE_LABELS];
	uint32_t n_free;
};

struct kvstore {
	uint32_t tag;
	uint64_t seed; /* for the hash of keys and labels */
	uint64_t (*wall_ms)(void);
	struct telemetry *telemetry;
	struct kvstore_shard shard[KVSTORE_SHARDS];

	pthread_mutex_t ground; /* guards the pages and the cells */
	struct pages *pages;
	struct kvstore_chunk *chunk[KVSTORE_CHUNKS];
	uint32_t free_cell, top_cell; /* cells from top_cell on were never used */
	uint32_t n_cells;             /* cells in use */

	pthread_mutex_t evict_lock;
	struct evict evict;

	pthread_mutex_t pins_lock;
	struct cgn_link pins;
	uint64_t pinned_bytes;
	size_t n_pins;

	pthread_mutex_t changes_lock;
	uint64_t change_end; /* number of the next change */
	struct block_change changes[KVSTORE_CHANGES];

	struct kvstore_ssd *ssd; /* NULL: there is no SSD tier */
	struct kvstore_labels labels;
	const struct kvsites *sites; /* borrowed; NULL: there are no other sites */
	_Atomic uint64_t turn;       /* rises when memory of a block is freed and when a value is committed */
	_Atomic uint64_t corrupt, evictions;
	_Atomic uint64_t aside_bytes; /* bytes of names, runs and labels */
	struct metric_cell *seconds_hit, *seconds_miss, *seconds_corrupt;
};

/* ---- cells.c; the caller holds |ground| ---- */
/* Return the cell with number |id|. Any thread, no lock, for objects that other threads can find. */
static inline union kvstore_cell *kvstore_cell_at(const struct kvstore *s, uint32_t id)
{
	return &s->chunk[id / KVSTORE_CHUNK_CELLS]->cell[id % KVSTORE_CHUNK_CELLS];
}
/* Return a cleared cell; NULL: no memory. */
union kvstore_cell *kvstore_cell_take(struct kvstore *s);
void kvstore_cell_give(struct kvstore *s, void *cell);
void kvstore_cells_free(struct kvstore *s);

/* ---- index.c; the caller holds the shard's lock ---- */
uint64_t kvstore_hash(const struct kvstore *s, const struct block_key *k);
static inline struct kvstore_shard *kvstore_shard_of(struct kvstore *s, uint64_t hash)
{
	return &s->shard[hash >> 58];
}
/* Lock and return the shard of |k|. */
static inline struct kvstore_shard *kvstore_shard_lock(struct kvstore *s, const struct block_key *k)
{
	struct kvstore_shard *sh = kvstore_shard_of(s, kvstore_hash(s, k));
	(void)pthread_mutex_lock(&sh->lock);
	return sh;
}
static inline struct kvstore_block *kvstore_block_at(const struct kvstore *s, uint32_t id)
{
	return id == KVSTORE_NONE ? NULL : &kvstore_cell_at(s, id)->block;
}
void kvstore_shard_init(struct kvstore_shard *sh);
void kvstore_shard_fini(struct kvstore_shard *sh);
uint64_t kvstore_shard_bytes(const struct kvstore_shard *sh);
struct kvstore_block *kvstore_index_find(struct kvstore *s, struct kvstore_shard *sh,
	const struct block_key *k, uint64_t hash);
void kvstore_index_add(struct kvstore *s, struct kvstore_shard *sh, struct kvstore_block *b, uint64_t hash);
void kvstore_index_drop(struct kvstore *s, struct kvstore_shard *sh, struct kvstore_block *b, uint64_t hash);
/* Return the cell of the first block of bucket |i|. */
uint32_t kvstore_index_bucket(const struct kvstore_shard *sh, uint32_t i);
/* Return the bucket of a place in scan order; |*last|: the last place in that bucket. */
uint32_t kvstore_index_place(const struct kvstore_shard *sh, uint32_t place, uint32_t *last);
uint32_t kvstore_index_place_of(uint64_t hash);

/* ---- block.c ---- */
struct pages_place kvstore_block_place(const struct kvstore_block *b);
uint64_t kvstore_block_sum(const struct kvstore_block *b); /* computes the XXH3-64 of the value in RAM */
bool kvstore_block_expired(const struct kvstore *s, const struct kvstore_block *b);
void kvstore_block_describe(const struct kvstore *s, const struct kvstore_block *b, struct block_info *out);
/* Set up a fresh cell as the extra of |b|. The caller stores the cell's number in |b|. */
struct kvstore_extra *kvstore_extra_init(union kvstore_cell *cell, struct kvstore_block *b);
/* Return the extra of |b|, a new one when it has none; NULL: no memory. Under the shard's lock. */
struct kvstore_extra *kvstore_extra_ensure(struct kvstore *s, struct kvstore_block *b);
/* Free the extra of |b| when it holds nothing. Under the shard's lock and |ground|; only the index and the
 * caller may hold the block. */
void kvstore_extra_drop(struct kvstore *s, struct kvstore_block *b);
/* Return the extra of |b|; NULL: it has none. */
static inline struct kvstore_extra *kvstore_block_extra(const struct kvstore_block *b)
{
	uint32_t id = atomic_load_explicit(&b->extra, memory_order_acquire);
	return id == KVSTORE_NONE ? NULL : &kvstore_cell_at(kvstore_block_store(b), id)->extra;
}
static inline struct kvstore_extra *kvstore_block_pinned_extra(const struct kvstore_block *b)
{
	struct kvstore_extra *x = kvstore_block_extra(b);
	CGN_MUST(x != NULL);
	return x;
}

/* ---- life.c; the caller holds the shard's lock ---- */
/* Make |b| the value of its key. The index takes over the caller's reference. */
void kvstore_link(struct kvstore *s, struct kvstore_shard *sh, struct kvstore_block *b, uint64_t hash);
/* Remove |b| from the index. The caller gets the index's reference and gives it up after unlocking. */
void kvstore_unlink(struct kvstore *s, struct kvstore_shard *sh, struct kvstore_block *b, uint64_t hash);
/* Return the block of |k|; NULL: there is none. An expired block is unlinked and moved to |*gone|. */
struct kvstore_block *kvstore_find_live(struct kvstore *s, struct kvstore_shard *sh,
	const struct block_key *k, uint64_t hash, struct kvstore_block **gone);
/* Free the memory of a block that stays on SSD. Only the index and the caller may hold the block. */
void kvstore_demote(struct kvstore *s, struct kvstore_shard *sh, struct kvstore_block *b);
/* Move the memory of |from|, a block that no other thread knows, to |b|, which is on SSD only. */
void kvstore_promote(struct kvstore *s, struct kvstore_shard *sh, struct kvstore_block *b,
	struct kvstore_block *from);
void kvstore_unpin(struct kvstore *s, struct kvstore_block *b); /* afterwards |b| is in no eviction queue */
/* Under no lock: unlink a value whose bytes are damaged, and count it. |hit|: it was counted as a hit. */
void kvstore_drop_corrupt(struct kvstore *s, struct kvstore_block **take, bool hit);

/* ---- room.c; under no lock ---- */
/* Whether the tier takes a value of |size| bytes. Values over half of the tier are refused: most blocks would
 * have to leave for one. */
bool kvstore_room_fits(const struct kvstore *s, uint64_t size);
/* Create a block of |size| bytes with one reference, and with an extra when |named|. May evict others. */
CGN_RC kvstore_room_make(struct kvstore *s, uint64_t size, bool named, struct kvstore_block **out,
	struct cgn_err *err);

/* ---- pins.c, changes.c, labels.c; under no lock of the second group ---- */
/* End pins whose time is over; looks at |at_most| of them. Returns false when none was. Under no lock. */
bool kvstore_unpin_due(struct kvstore *s, size_t at_most);
void kvstore_changes_add(struct kvstore *s, const struct kvstore_block *b, unsigned tiers);
/* Get the label of a model and a tenant, with a reference. When there are too many labels, a block keeps its model
 * and loses its tenant, so that it stays at this site. Fails when there is no room for that either. */
CGN_RC kvstore_label_take(struct kvstore *s, struct cgn_str model, struct cgn_str tenant, uint16_t *out,
	struct cgn_err *err);
void kvstore_label_give(struct kvstore *s, uint16_t id);
/* Borrowed from a label whose reference the caller has. */
struct cgn_str kvstore_label_model(const struct kvstore *s, uint16_t id);
struct cgn_str kvstore_label_tenant(const struct kvstore *s, uint16_t id);
struct block_leave kvstore_label_leave(const struct kvstore *s, uint16_t id);
