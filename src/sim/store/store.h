/* SPDX-License-Identifier: Apache-2.0 */
/* store: a worker's blocks in the block store of its node, cgn-kvcached (joint/kvclient). What was computed
 * is put there; what a prompt needs and the device lacks is asked for in one batch and read. A block is known
 * by the full digest of its chain, segment 0; its value is made of that digest, so that a wrong one is
 * noticed. One loop; never inline.
 *
 * Bounds: SIM_STORE_QUEUE blocks wait to be put (48 bytes each; more are not put, and counted),
 * SIM_STORE_PUTS or SIM_STORE_BYTES of values are under way; a prompt's load asks for SIM_LOAD_MAX blocks and
 * reads SIM_LOAD_GETS at a time. A call takes SIM_STORE_TIMEOUT at most; what fails is computed, as if it had
 * not been held. */
#pragma once
#include <sys/uio.h>

#include "io/loop/loop.h"
#include "lab/enginemodel/memory.h"
#include "policy/block/block.h"

#define SIM_STORE_QUEUE   16384
#define SIM_STORE_PUTS    32
#define SIM_STORE_BYTES   ((uint64_t)4 << 20) /* and of one value at most */
#define SIM_STORE_TIMEOUT (2 * CGN_SEC)
#define SIM_LOAD_MAX      4096
#define SIM_LOAD_GETS     8

struct sim_store;
struct sim_store_cfg {
	const char *uds; /* as kv.uds; strings are borrowed */
	const char *const *models;
	uint32_t block_bytes, block_tokens;
	double block_ms; /* what computing one takes; 0: not known */
};
struct sim_store_stats {
	/* blocks; had: it was there already; not_put: too many waited, or no store */
	uint64_t put, had, put_failed, not_put;
	uint64_t asked, loaded[BLOCK_TIERS]; /* by where the store had them */
	uint64_t wrong, lost;                /* not what was put; said to be there, and not got */
	bool ready;
};
CGN_RC sim_store_new(struct cgn_loop *l, const struct sim_store_cfg *cfg, struct sim_store **out,
	struct cgn_err *err);
void sim_store_free(struct sim_store **take); /* after its loads */
/* Those of |run|, its end first. Needs contents. */
void sim_store_put(struct sim_store *s, const struct enginemodel_run *run);
struct sim_store_stats sim_store_stats(const struct sim_store *s); /* NULL: all zeroes */

/* A stretch of one chain that the device lacks. */
struct sim_load_range {
	const struct digest *names; /* of the chain; copied */
	uint32_t from, n;
};
struct sim_load;
/* False: no store, nothing wanted, no memory: nobody is called back. |done| comes once, unless the load is
 * freed before. */
bool sim_load_new(struct sim_store *s, const struct sim_load_range *wants, uint32_t n,
	void (*done)(void *user), void *user, struct sim_load **out);
void sim_load_free(struct sim_load **take);
/* How many of the |i|-th want's blocks came, from its first on; *from is the want's. After |done|. */
uint32_t sim_load_got(const struct sim_load *load, uint32_t i, uint32_t *from);

/* The value of the block that is called |name|: |n| bytes of it from |off| on, a multiple of 8. */
void sim_store_value(const struct digest *name, uint64_t off, void *out, size_t n);
bool sim_store_value_matches(const struct digest *name, const struct iovec *iov, size_t n_iov);
