/* SPDX-License-Identifier: Apache-2.0 */
/* blocks: the simulated KV memory of a GPU, as vLLM's v1 block pool manages it. The number of blocks is
 * fixed. A full, hashed block stays cached after its last user released it, until the least recently used
 * block is taken for new contents. A cached block can carry a note. Pure. */
#pragma once
#include "base/core/err.h"

struct enginemodel_blocks;
#define ENGINEMODEL_BLOCK_NONE UINT32_MAX

struct enginemodel_blocks_cfg {
	uint32_t n;
	uint32_t note_bytes; /* Bytes of each block's note, 8-byte aligned; 0: no notes. */
	/* Called before the block cached under |hash| is taken for new contents. |note| is valid until the
	 * call returns. May be NULL. */
	void (*evict)(void *arg, uint64_t hash, void *note);
	void *arg;
};
CGN_RC enginemodel_blocks_new(const struct enginemodel_blocks_cfg *cfg, struct enginemodel_blocks **out);
void enginemodel_blocks_free(struct enginemodel_blocks **take);
/* Add a user to the block cached under |hash| and return the block; ENGINEMODEL_BLOCK_NONE when there is
 * none. */
uint32_t enginemodel_blocks_find(struct enginemodel_blocks *b, uint64_t hash);
bool enginemodel_blocks_has(const struct enginemodel_blocks *b, uint64_t hash);
/* Return an empty block with one user: a never used block, else the least recently used one.
 * ENGINEMODEL_BLOCK_NONE when every block has users. */
uint32_t enginemodel_blocks_take(struct enginemodel_blocks *b);
/* Cache the full |block| under |hash|. False, and nothing changes, when another block is cached under
 * |hash|. */
bool enginemodel_blocks_publish(struct enginemodel_blocks *b, uint32_t block, uint64_t hash);
/* Return the note of a block that is cached or about to be; NULL without notes. */
void *enginemodel_blocks_note(struct enginemodel_blocks *b, uint32_t block);
/* Remove one user from |block|. */
void enginemodel_blocks_release(struct enginemodel_blocks *b, uint32_t block);
/* Drop every block from the cache without calling |evict|. Users keep their blocks. */
void enginemodel_blocks_forget_all(struct enginemodel_blocks *b);
/* Call |fn| for every cached block, in no particular order. */
void enginemodel_blocks_each(struct enginemodel_blocks *b, void (*fn)(void *arg, uint64_t hash, void *note),
	void *arg);
uint32_t enginemodel_blocks_total(const struct enginemodel_blocks *b);
uint32_t enginemodel_blocks_used(const struct enginemodel_blocks *b);  /* Blocks with users. */
uint32_t enginemodel_blocks_known(const struct enginemodel_blocks *b); /* Blocks cached under a hash. */
/* True when |hash| is cached and its block has no users, so that taking it uses up capacity. */
bool enginemodel_blocks_idle(const struct enginemodel_blocks *b, uint64_t hash);
/* Check the invariants of lists, counts and hash table in O(n). For tests. */
bool enginemodel_blocks_sound(const struct enginemodel_blocks *b);
