/* SPDX-License-Identifier: Apache-2.0 */
/* blocks: the simulated KV memory. A fixed number of blocks; one that holds a full hashed block stays findable after its last user
 * went, until the least recently used one is taken for something else (as vLLM's v1 block pool does it). Pure. */
#pragma once
#include "base/core/err.h"

struct sim_blocks;
#define SIM_BLOCK_NONE UINT32_MAX

CGN_RC sim_blocks_new(uint32_t n, struct sim_blocks **out);
void sim_blocks_free(struct sim_blocks **take);
/* The block that is known by |hash|, one more user on it; SIM_BLOCK_NONE when there is none. */
uint32_t sim_blocks_find(struct sim_blocks *b, uint64_t hash);
/* A block without contents for one user: a never used one, else the least recently used. SIM_BLOCK_NONE when all have users. */
uint32_t sim_blocks_take(struct sim_blocks *b);
/* |block| is full and known by |hash| from now on. When another block already is, that one stays the known one. */
void sim_blocks_publish(struct sim_blocks *b, uint32_t block, uint64_t hash);
/* One user less. */
void sim_blocks_release(struct sim_blocks *b, uint32_t block);
/* How many of the leading |hashes| are there, and how many of those have no user now (so that counting on them costs capacity). */
uint32_t sim_blocks_match(const struct sim_blocks *b, const uint64_t *hashes, uint32_t n, uint32_t *unused);
uint32_t sim_blocks_total(const struct sim_blocks *b);
uint32_t sim_blocks_used(const struct sim_blocks *b);  /* blocks with users */
uint32_t sim_blocks_known(const struct sim_blocks *b); /* blocks with a hash */
/* O(n) check of the invariants, for tests: lists, counts and table agree. */
bool sim_blocks_sound(const struct sim_blocks *b);
