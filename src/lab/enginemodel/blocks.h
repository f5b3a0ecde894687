/* SPDX-License-Identifier: Apache-2.0 */
/* blocks: the simulated KV memory. A fixed number of blocks; one that holds a full hashed block stays
 * findable after its last user went, until the least recently used one is taken for something else (as vLLM's
 * v1 block pool does it). A block that is known can carry a note. Pure. */
#pragma once
#include "base/core/err.h"

struct em_blocks;
#define EM_BLOCK_NONE UINT32_MAX

struct em_blocks_cfg {
	uint32_t n;
	uint32_t note_bytes; /* kept for each block, 8-byte aligned; 0: no notes */
	/* The block that was known by |hash| is taken for something else; |note| is there until this returns.
	 * NULL: nobody minds. */
	void (*evict)(void *arg, uint64_t hash, void *note);
	void *arg;
};
CGN_RC em_blocks_new(const struct em_blocks_cfg *cfg, struct em_blocks **out);
void em_blocks_free(struct em_blocks **take);
/* The block that is known by |hash|, one more user on it; EM_BLOCK_NONE when there is none. */
uint32_t em_blocks_find(struct em_blocks *b, uint64_t hash);
bool em_blocks_has(const struct em_blocks *b, uint64_t hash);
/* A block without contents for one user: a never used one, else the least recently used. EM_BLOCK_NONE when
 * all have users. */
uint32_t em_blocks_take(struct em_blocks *b);
/* |block| is full and known by |hash| from now on. False when another block already is: that one stays the
 * known one. */
bool em_blocks_publish(struct em_blocks *b, uint32_t block, uint64_t hash);
/* Of a known block, or one that is about to be; NULL when there are no notes. */
void *em_blocks_note(struct em_blocks *b, uint32_t block);
/* One user less. */
void em_blocks_release(struct em_blocks *b, uint32_t block);
/* No block is known any more; users keep theirs. Not an eviction. */
void em_blocks_forget_all(struct em_blocks *b);
/* Each block that is known, in no order that means anything. */
void em_blocks_each(struct em_blocks *b, void (*fn)(void *arg, uint64_t hash, void *note), void *arg);
uint32_t em_blocks_total(const struct em_blocks *b);
uint32_t em_blocks_used(const struct em_blocks *b);  /* blocks with users */
uint32_t em_blocks_known(const struct em_blocks *b); /* blocks with a hash */
/* known, without users: counting on it costs capacity */
bool em_blocks_idle(const struct em_blocks *b, uint64_t hash);
/* O(n) check of the invariants, for tests: lists, counts and table agree. */
bool em_blocks_sound(const struct em_blocks *b);
