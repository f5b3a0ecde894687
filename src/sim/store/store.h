/* SPDX-License-Identifier: Apache-2.0 */
/* store: a worker's connection to the block store of its node, cgn-kvcached (joint/kv/kvclient). Puts computed
 * blocks there; reads blocks that a prompt needs and the device lacks, after one batched lookup. The key of a
 * block is the full digest of its chain, segment 0. Its value is generated from that digest, so that a wrong
 * value is noticed. One loop; callbacks are never called inline.
 *
 * Bounds: SIM_STORE_QUEUE blocks wait to be put (48 bytes each; further ones are counted and not put);
 * SIM_STORE_PUTS puts or SIM_STORE_BYTES of values are in flight. The load of a prompt asks for up to
 * SIM_LOAD_MAX blocks and reads SIM_LOAD_GETS at a time. Every call has the timeout SIM_STORE_TIMEOUT; blocks
 * of a failed call are computed, as if the store did not have them. */
#pragma once
#include <sys/uio.h>

#include "io/os/loop/loop.h"
#include "lab/enginemodel/memory.h"
#include "policy/kv/block/block.h"

#define SIM_STORE_QUEUE   16384
#define SIM_STORE_PUTS    32
#define SIM_STORE_BYTES   ((uint64_t)4 << 20) /* Also the largest size of one value. */
#define SIM_STORE_TIMEOUT (2 * CGN_SEC)
#define SIM_LOAD_MAX      4096
#define SIM_LOAD_GETS     8

struct sim_store;
struct sim_store_cfg {
	const char *uds; /* Path of the store's socket (kv.uds); strings are borrowed. */
	const char *const *models;
	uint32_t block_bytes, block_tokens;
	double block_ms; /* Milliseconds to compute one block; 0: unknown. */
};
struct sim_store_stats {
	/* Blocks. |had|: the store already had them; |not_put|: the queue was full, or there is no store. */
	uint64_t put, had, put_failed, not_put;
	uint64_t asked, loaded[BLOCK_TIERS]; /* By the tier in which the store had them. */
	/* |wrong|: the value was not the one put; |lost|: reported present and not readable. */
	uint64_t wrong, lost;
	bool ready;
};
struct sim_store *sim_store_new(struct cgn_loop *l, const struct sim_store_cfg *cfg);
void sim_store_free(struct sim_store **take); /* Call after freeing its loads. */
/* Queue the blocks of |run|, the last first. Needs contents. */
void sim_store_put(struct sim_store *s, const struct enginemodel_run *run);
struct sim_store_stats sim_store_stats(const struct sim_store *s); /* All zeroes for NULL. */

/* Consecutive blocks of one chain that the device lacks. */
struct sim_load_range {
	const struct digest *names; /* Digests of the chain; copied. */
	uint32_t from, n;
};
struct sim_load;
/* Look up and read the blocks of |n| ranges. |done| is called once, unless the load is freed before. False,
 * without any call: no store, or no blocks. */
bool sim_load_new(struct sim_store *s, const struct sim_load_range *wants, uint32_t n,
	void (*done)(void *user), void *user, struct sim_load **out);
void sim_load_free(struct sim_load **take);
/* Return how many leading blocks of range |i| were read; |*from| is the start of that range. Call after
 * |done|. */
uint32_t sim_load_got(const struct sim_load *load, uint32_t i, uint32_t *from);

/* Write |n| bytes of the value of block |name|, from offset |off| on, which is a multiple of 8. */
void sim_store_value(const struct digest *name, uint64_t off, void *out, size_t n);
bool sim_store_value_matches(const struct digest *name, const struct iovec *iov, size_t n_iov);
