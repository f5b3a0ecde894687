/* SPDX-License-Identifier: Apache-2.0 */
/* The memory layout of index entries. There may be a million of them, so every byte counts. */
#pragma once
#include <assert.h>
#include <stdatomic.h>

#include "base/core/list.h"
#include "io/os/pages/pages.h"
#include "joint/kv/kvdisk/kvdisk.h"
#include "joint/kv/kvstore/kvstore.h"
#include "policy/kv/evict/evict.h"

#define KVSTORE_CHUNK_TAG   0x4b564348U
#define KVSTORE_CHUNK_BYTES ((size_t)1 << 20)
#define KVSTORE_CHUNKS      458752U /* times the cells of a chunk: just under 2^32 */
#define KVSTORE_NONE        0U      /* no cell */
#define KVSTORE_NO_PAGE     UINT32_MAX

/* A Unix time in 48 bits: milliseconds until the year 10889. */
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

/* An entry of the index, and the object that readers hold. Once the index has the entry, expires, tiers and
 * the flags change only under the lock of its shard. */
struct kvstore_block {
	struct block_key key;
	_Atomic uint32_t refs;
	uint64_t checksum;
	kvdisk_place place;    /* on SSD; 0: not there */
	struct evict_node use; /* in an eviction queue while the block is linked, in RAM and not pinned */
	uint32_t size, tokens;
	uint32_t page, tail_page; /* struct pages_place without its runs; both KVSTORE_NO_PAGE: not in RAM */
	uint32_t next;            /* cell: the next entry of the bucket, or the next free cell */
	_Atomic uint32_t extra;   /* cell of the struct kvstore_extra; KVSTORE_NONE: there is none */
	struct kvstore_ms created, expires;
	uint16_t label; /* number of the label: model and tenant */
	uint8_t slot;   /* the slot of struct pages_place */
	uint8_t tiers : 4;
	uint8_t linked : 1; /* the index has this entry for the key */
	uint8_t pinned : 1;
	uint8_t queued : 1; /* in the SSD queue, or being written to SSD */
	uint8_t reread : 1; /* read from SSD since it was written there */
};
static_assert(sizeof(struct kvstore_block) == 120, "an entry grew");

/* Fields that few blocks need. */
struct kvstore_extra {
	char *name; /* owned */
	size_t n_name;
	struct pages_runs *runs;     /* owned; struct pages_place frees them */
	struct kvstore_block *block; /* the block that this extra belongs to */
	struct cgn_link pin;         /* in kvstore.pins */
	struct cgn_link ending;      /* in kvstore_ssd.ending, with a reference to the block */
	uint64_t pinned_until;       /* Unix ms */
};
union kvstore_cell {
	struct kvstore_block block;
	struct kvstore_extra extra;
};
/* Aligned to its size, so that the address of a cell gives the address of its chunk. */
struct kvstore_chunk {
	uint32_t tag;
	uint32_t index;
	struct kvstore *store;
	union kvstore_cell cell[];
};
#define KVSTORE_CHUNK_CELLS \
	((KVSTORE_CHUNK_BYTES - sizeof(struct kvstore_chunk)) / sizeof(union kvstore_cell))

#define KVSTORE_BLOCK_LIVE(b)                                                    \
	CGN_MUST((b) != NULL && kvstore_chunk_of(b)->tag == KVSTORE_CHUNK_TAG && \
		atomic_load_explicit(&(b)->refs, memory_order_relaxed) > 0)
static inline struct kvstore_chunk *kvstore_chunk_of(const void *cell)
{
	struct kvstore_chunk *c =
		(struct kvstore_chunk *)((uintptr_t)cell & ~(uintptr_t)(KVSTORE_CHUNK_BYTES - 1));
	CGN_LIVE(c, KVSTORE_CHUNK_TAG);
	return c;
}
static inline uint32_t kvstore_cell_id(const void *cell)
{
	const struct kvstore_chunk *c = kvstore_chunk_of(cell);
	return c->index * (uint32_t)KVSTORE_CHUNK_CELLS +
		(uint32_t)((const union kvstore_cell *)cell - c->cell);
}
static inline struct kvstore *kvstore_block_store(const struct kvstore_block *b)
{
	return kvstore_chunk_of(b)->store;
}
static inline bool kvstore_block_in_ram(const struct kvstore_block *b)
{
	return b->page != KVSTORE_NO_PAGE || b->tail_page != KVSTORE_NO_PAGE;
}
