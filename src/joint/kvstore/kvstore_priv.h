/* SPDX-License-Identifier: Apache-2.0 */
/* Inside kvstore.
 *
 * Locks, outer before inner: a shard's; then any one of ground, evict, pins, models, changes, ssd, none of
 * which is held while another is taken. kvdisk is called under none, and calls us under its own. None is held
 * while bytes are copied or summed, nor while a callback runs; but a shard's while KVSTORE_SMALL bytes at most
 * take another value's place. A block belongs to whoever has a reference; the index has one. Only under the
 * shard's lock does a block that nobody else holds get a second one (evict_some: under the lock of evict,
 * whose queues only have blocks of the index), so that "refs is 1" stays true there. */
#pragma once
#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>

#include "io/pages/pages.h"
#include "joint/kvdisk/kvdisk.h"
#include "joint/kvstore/kvstore.h"
#include "joint/telemetry/telemetry.h"
#include "policy/evict/evict.h"

#define KVSTORE_TAG         0x4b565354U
#define KVSTORE_CHUNK_TAG   0x4b564348U
#define KVSTORE_SHARDS      64
#define KVSTORE_CHANGES     65536U
#define KVSTORE_CHUNK_BYTES ((size_t)1 << 20)
#define KVSTORE_CHUNKS      458752U /* times cells: just under 2^32 */
#define KVSTORE_MODELS      65536U
#define KVSTORE_NONE        0U

/* A number of 48 bits: milliseconds until the year 10889. */
struct kvstore_ms {
	uint16_t part[3];
};
static inline struct kvstore_ms kvstore_ms_of(uint64_t ms)
{
	ms = ms >> 48 == 0 ? ms : ((uint64_t)1 << 48) - 1;
	return (struct kvstore_ms){{(uint16_t)ms, (uint16_t)(ms >> 16), (uint16_t)(ms >> 32)}};
}
static inline uint64_t kvstore_ms_get(struct kvstore_ms m)
{
	return m.part[0] | (uint64_t)m.part[1] << 16 | (uint64_t)m.part[2] << 32;
}

/* An entry of the index, and what a reader holds. What is here once a million times is counted in bytes. Once
 * it can be found, what changes (expires, tiers and the flags) changes under its shard's lock. */
struct kvstore_block {
	struct block_key key;
	_Atomic uint32_t refs;
	uint64_t checksum;
	kvdisk_place place;    /* on SSD; 0: not there */
	struct evict_node use; /* in a queue: linked, in RAM, not pinned */
	uint32_t size, tokens;
	uint32_t page, tail_page; /* struct pages_place, without its runs; both KVSTORE_NO_PAGE: not in RAM */
	uint32_t next;            /* in its bucket, or of the free cells */
	_Atomic uint32_t extra;   /* a cell with what only few have, KVSTORE_NONE without */
	struct kvstore_ms created, expires;
	uint16_t model;
	uint8_t slot;
	uint8_t tiers : 4;
	uint8_t linked : 1; /* it is what its key means */
	uint8_t pinned : 1;
	uint8_t queued : 1; /* for SSD: waits or is being written */
	uint8_t reread : 1; /* from SSD, since it was written there */
};
#define KVSTORE_NO_PAGE UINT32_MAX
static_assert(sizeof(struct kvstore_block) == 120, "an entry grew");

struct kvstore_extra {
	char *name; /* owned */
	size_t n_name;
	struct pages_runs *runs;     /* owned, by struct pages_place in the end */
	struct kvstore_block *block; /* whose it is */
	struct cgn_link pin;         /* of kvstore.pins */
	struct cgn_link ending;      /* of kvstore_ssd.ending: the list has a reference of the block's */
	uint64_t pinned_until;
};
union kvstore_cell {
	struct kvstore_block block;
	struct kvstore_extra extra;
};
/* Aligned to its size, so that a cell finds it. */
struct kvstore_chunk {
	uint32_t tag;
	uint32_t index;
	struct kvstore *store;
	union kvstore_cell cell[];
};
#define KVSTORE_CHUNK_CELLS \
	((KVSTORE_CHUNK_BYTES - sizeof(struct kvstore_chunk)) / sizeof(union kvstore_cell))

/* Linear hashing: buckets split one by one as blocks come, none of the others moves. The buckets lie in
 * segments, each as long as all before. */
#define KVSTORE_SEGMENT_0 64U
struct kvstore_shard {
	_Alignas(64) pthread_mutex_t lock;
	uint32_t *segment[27];
	uint32_t n_buckets, n_blocks;
	uint32_t n_expiring, sweep_at;
	uint64_t n_ram, ram_value_bytes, n_ssd, ssd_value_bytes;
	uint64_t hits, misses, ssd_hits;
};

struct kvstore_model {
	uint32_t refs;
	uint16_t id, next;
	size_t n;
	char name[];
};
struct kvstore_models {
	pthread_mutex_t lock;
	struct kvstore_model *row[KVSTORE_MODELS]; /* by id; 0: none */
	uint16_t bucket[4096];
	uint32_t top; /* ids from here on were never used */
	uint16_t free[KVSTORE_MODELS];
	uint32_t n_free;
};

struct kvstore {
	uint32_t tag;
	uint64_t seed;
	uint64_t (*wall_ms)(void);
	struct telemetry *telemetry;
	struct kvstore_shard shard[KVSTORE_SHARDS];

	pthread_mutex_t ground; /* what blocks are made of: */
	struct pages *pages;
	struct kvstore_chunk *chunk[KVSTORE_CHUNKS];
	uint32_t free_cell, top_cell; /* cells from top_cell on were never used */
	uint32_t n_cells;             /* in use */

	pthread_mutex_t evict_lock;
	struct evict evict;

	pthread_mutex_t pins_lock;
	struct cgn_link pins;
	uint64_t pinned_bytes;
	size_t n_pins;

	pthread_mutex_t changes_lock;
	uint64_t change_end;
	struct block_change changes[KVSTORE_CHANGES];

	struct kvstore_ssd *ssd; /* NULL: there is no such tier */
	struct kvstore_models models;
	_Atomic uint64_t turn; /* goes up when a block came or went for good */
	_Atomic uint64_t corrupt, evictions, aside_bytes /* names, runs, models */;
	struct metric_cell *seconds_hit, *seconds_miss, *seconds_corrupt;
};

/* ---- cells.c; under ground ---- */
static inline struct kvstore_chunk *kvstore_chunk_of(const void *cell)
{
	struct kvstore_chunk *c =
		(struct kvstore_chunk *)((uintptr_t)cell & ~(uintptr_t)(KVSTORE_CHUNK_BYTES - 1));
	CGN_LIVE(c, KVSTORE_CHUNK_TAG);
	return c;
}
/* Of an object that can be found by others: any thread, no lock. */
static inline union kvstore_cell *kvstore_cell_at(const struct kvstore *s, uint32_t id)
{
	return &s->chunk[id / KVSTORE_CHUNK_CELLS]->cell[id % KVSTORE_CHUNK_CELLS];
}
static inline uint32_t kvstore_cell_id(const void *cell)
{
	const struct kvstore_chunk *c = kvstore_chunk_of(cell);
	return c->index * (uint32_t)KVSTORE_CHUNK_CELLS +
		(uint32_t)((const union kvstore_cell *)cell - c->cell);
}
union kvstore_cell *kvstore_cell_take(struct kvstore *s); /* cleared; NULL: no memory */
/* of a cell that was taken; to be set as |b|'s */
struct kvstore_extra *kvstore_extra_init(union kvstore_cell *cell, struct kvstore_block *b);
void kvstore_cell_give(struct kvstore *s, void *cell);
void kvstore_cells_free(struct kvstore *s);

/* ---- index.c; under the shard's lock ---- */
uint64_t kvstore_hash(const struct kvstore *s, const struct block_key *k);
static inline struct kvstore_shard *kvstore_shard_of(struct kvstore *s, uint64_t hash)
{
	return &s->shard[hash >> 58];
}
static inline struct kvstore_block *kvstore_block_at(const struct kvstore *s, uint32_t id)
{
	return id == KVSTORE_NONE ? NULL : &kvstore_cell_at(s, id)->block;
}
CGN_RC kvstore_shard_init(struct kvstore_shard *sh, struct cgn_err *err);
void kvstore_shard_fini(struct kvstore_shard *sh);
uint64_t kvstore_shard_bytes(const struct kvstore_shard *sh);
struct kvstore_block *kvstore_index_find(struct kvstore *s, struct kvstore_shard *sh,
	const struct block_key *k, uint64_t hash);
void kvstore_index_add(struct kvstore *s, struct kvstore_shard *sh, struct kvstore_block *b, uint64_t hash);
void kvstore_index_drop(struct kvstore *s, struct kvstore_shard *sh, struct kvstore_block *b, uint64_t hash);
uint32_t kvstore_index_bucket(const struct kvstore_shard *sh, uint32_t i); /* its first block */
/* The bucket of a place in the order of a scan, and the last place that is in it too. */
uint32_t kvstore_index_place(const struct kvstore_shard *sh, uint32_t place, uint32_t *last);
uint32_t kvstore_index_place_of(uint64_t hash);

/* ---- block.c ---- */
#define KVSTORE_BLOCK_LIVE(b)                                                    \
	CGN_MUST((b) != NULL && kvstore_chunk_of(b)->tag == KVSTORE_CHUNK_TAG && \
		atomic_load_explicit(&(b)->refs, memory_order_relaxed) > 0)
static inline struct kvstore *kvstore_block_store(const struct kvstore_block *b)
{
	return kvstore_chunk_of(b)->store;
}
static inline struct kvstore_extra *kvstore_block_extra(const struct kvstore_block *b) /* NULL: it has none */
{
	uint32_t id = atomic_load_explicit(&b->extra, memory_order_acquire);
	return id == KVSTORE_NONE ? NULL : &kvstore_cell_at(kvstore_block_store(b), id)->extra;
}
static inline struct kvstore_extra *kvstore_block_pinned_extra(
	const struct kvstore_block *b) /* of one that is pinned */
{
	struct kvstore_extra *x = kvstore_block_extra(b);
	CGN_MUST(x != NULL);
	return x;
}
struct pages_place kvstore_block_place(const struct kvstore_block *b);
uint64_t kvstore_block_sum(const struct kvstore_block *b); /* its XXH3-64, computed */
bool kvstore_block_expired(const struct kvstore *s, const struct kvstore_block *b);
void kvstore_block_describe(const struct kvstore *s, const struct kvstore_block *b, struct block_info *out);

static inline bool kvstore_block_in_ram(const struct kvstore_block *b)
{
	return b->page != KVSTORE_NO_PAGE || b->tail_page != KVSTORE_NO_PAGE;
}

/* ---- life.c; under the shard's lock ---- */
/* It is what its key means from now on; the index has its caller's reference. */
void kvstore_link(struct kvstore *s, struct kvstore_shard *sh, struct kvstore_block *b, uint64_t hash);
/* No longer; the index's reference is its caller's, to be given up after the lock. */
void kvstore_unlink(struct kvstore *s, struct kvstore_shard *sh, struct kvstore_block *b, uint64_t hash);
/* What |k| means, NULL: nothing. What expired goes to |*gone|. */
struct kvstore_block *kvstore_find_live(struct kvstore *s, struct kvstore_shard *sh,
	const struct block_key *k, uint64_t hash, struct kvstore_block **gone);

/* It leaves RAM and stays on SSD. Nobody but the index and the caller holds it. */
void kvstore_demote(struct kvstore *s, struct kvstore_shard *sh, struct kvstore_block *b);
/* Under ground too: its extra goes when it holds nothing. Nobody but the index and the caller holds the
 * block. */
void kvstore_extra_drop(struct kvstore *s, struct kvstore_block *b);
/* its own or a new one; NULL: no memory */
struct kvstore_extra *kvstore_extra_ensure(struct kvstore *s, struct kvstore_block *b);
/* What lies in |from|, which nobody else knows, is from now on |b|'s value in RAM. */
void kvstore_promote(struct kvstore *s, struct kvstore_shard *sh, struct kvstore_block *b,
	struct kvstore_block *from);

/* ---- ssd.c: what is written, and removed; by one thread ---- */
/* blocks that wait to be written, and a quarter of the RAM tier's bytes at most, or 256 MiB */
#define KVSTORE_SSD_QUEUE     4096U
#define KVSTORE_SSD_QUEUE_MAX ((uint64_t)256 << 20)
#define KVSTORE_SSD_FETCHES   1024U /* reads of different blocks that run or wait */
#define KVSTORE_SSD_READERS   8U
CGN_RC kvstore_ssd_open(struct kvstore *s, const struct kvstore_ssd_cfg *cfg, uint64_t ram_bytes,
	struct cgn_err *err);
void kvstore_ssd_close(struct kvstore *s); /* the queue is written first, as far as the time allows */
struct kvdisk *kvstore_ssd_disk(const struct kvstore *s);
/* Under the shard's lock: it has become worth writing. */
void kvstore_ssd_offer(struct kvstore *s, struct kvstore_block *b);
void kvstore_ssd_on_link(struct kvstore *s, struct kvstore_block *b);
void kvstore_ssd_forget(struct kvstore *s, struct kvstore_block *b);  /* was unlinked */
void kvstore_ssd_expires(struct kvstore *s, struct kvstore_block *b); /* was changed */
/* Under none: what lay there is not there any more; unlinked when it is in no other tier. */
void kvstore_ssd_lost(struct kvstore *s, const struct block_key *k, kvdisk_place at);
void kvstore_ssd_add_stats(struct kvstore *s, struct kvstore_stats *out);

/* ---- fetch.c: what is read, by several threads; one read for all who wait for a block ---- */
struct kvstore_read {
	struct cgn_post post;
	struct kvstore_read *next;
	struct kvstore *store;
	struct cgn_loop *loop;
	struct block_key key;
	struct kvstore_block *block;
	struct cgn_err err;
	kvstore_read_done done; /* NULL: cancelled */
	void *user;
};
struct kvstore_fetches;
CGN_RC kvstore_fetches_new(struct kvstore *s, struct kvstore_fetches **out, struct cgn_err *err);
/* after what waits was read and answered; nothing more is taken */
void kvstore_fetches_stop(struct kvstore_fetches *f);
void kvstore_fetches_free(struct kvstore_fetches **take);
void kvstore_fetch(struct kvstore_fetches *f,
	struct kvstore_read *r); /* answered by kvstore_read_answer, on its loop */
void kvstore_read_answer(struct kvstore_read *r);
struct kvstore_fetches *kvstore_ssd_fetches(const struct kvstore *s);

/* ---- read.c ---- */
/* Under none: it is not what was put, so nobody gets it any more. |hit|: it was counted as one. */
void kvstore_drop_corrupt(struct kvstore *s, struct kvstore_block **take, bool hit);

/* ---- room.c ---- */
/* Larger values than half of the tier are not let in: most of what is there would leave for one. */
bool kvstore_room_fits(const struct kvstore *s, uint64_t size);
/* A block of |size| bytes with one reference, and an extra when |named|, for which others may have to
 * leave. */
CGN_RC kvstore_room_make(struct kvstore *s, uint64_t size, bool named, struct kvstore_block **out,
	struct cgn_err *err);

/* ---- pins.c ---- */
void kvstore_unpin(struct kvstore *s, struct kvstore_block *b); /* under the shard's lock; in no queue then */
bool kvstore_unpin_due(struct kvstore *s,
	size_t at_most); /* under none; looks at so many. False: none was due */

/* ---- changes.c ---- */
void kvstore_changes_add(struct kvstore *s, const struct kvstore_block *b, unsigned tiers);

/* ---- models.c ---- */
CGN_RC kvstore_model_take(struct kvstore *s, struct cgn_str name, uint16_t *out, struct cgn_err *err);
void kvstore_model_give(struct kvstore *s, uint16_t id);
struct cgn_str kvstore_model_name(const struct kvstore *s, uint16_t id);
