/* SPDX-License-Identifier: Apache-2.0 */
/* blocks: the simulated KV memory. A fixed number of blocks; one that holds a full hashed block stays
 * findable after its last user went, until the least recently used one is taken for something else (as vLLM's
 * v1 block pool does it). A block that is known can carry a note. Pure. */
#pragma once
#include "base/core/err.h"

struct enginemodel_blocks;
#define ENGINEMODEL_BLOCK_NONE UINT32_MAX

struct enginemodel_blocks_cfg {
	uint32_t n;
	uint32_t note_bytes; /* kept for each block, 8-byte aligned; 0: no notes */
	/* The block that was known by |hash| is taken for something else; |note| is there until this returns.
	 * NULL: nobody minds. */
	void (*evict)(void *arg, uint64_t hash, void *note);
	void *arg;
};
CGN_RC enginemodel_blocks_new(const struct enginemodel_blocks_cfg *cfg, struct enginemodel_blocks **out);
void enginemodel_blocks_free(struct enginemodel_blocks **take);
/* The block that is known by |hash|, one more user on it; ENGINEMODEL_BLOCK_NONE when there is none. */
uint32_t enginemodel_blocks_find(struct enginemodel_blocks *b, uint64_t hash);
bool enginemodel_blocks_has(const struct enginemodel_blocks *b, uint64_t hash);
/* A block without contents for one user: a never used one, else the least recently used. ENGINEMODEL_BLOCK_NONE when
 * all have users. */
uint32_t enginemodel_blocks_take(struct enginemodel_blocks *b);
/* |block| is full and known by |hash| from now on. False when another block already is: that one stays the
 * known one. */
bool enginemodel_blocks_publish(struct enginemodel_blocks *b, uint32_t block, uint64_t hash);
/* Of a known block, or one that is about to be; NULL when there are no notes. */
void *enginemodel_blocks_note(struct enginemodel_blocks *b, uint32_t block);
/* One user less. */
void enginemodel_blocks_release(struct enginemodel_blocks *b, uint32_t block);
/* No block is known any more; users keep theirs. Not an eviction. */
void enginemodel_blocks_forget_all(struct enginemodel_blocks *b);
/* Each block that is known, in no order that means anything. */
void enginemodel_blocks_each(struct enginemodel_blocks *b, void (*fn)(void *arg, uint64_t hash, void *note),
	void *arg);
uint32_t enginemodel_blocks_total(const struct enginemodel_blocks *b);
uint32_t enginemodel_blocks_used(const struct enginemodel_blocks *b);  /* blocks with users */
uint32_t enginemodel_blocks_known(const struct enginemodel_blocks *b); /* blocks with a hash */
/* known, without users: counting on it costs capacity */
bool enginemodel_blocks_idle(const struct enginemodel_blocks *b, uint64_t hash);
/* O(n) check of the invariants, for tests: lists, counts and table agree. */
bool enginemodel_blocks_sound(const struct enginemodel_blocks *b);
