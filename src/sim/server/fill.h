/* SPDX-License-Identifier: Apache-2.0 */
/* fill: fills caches as many requests would, without the requests. Makes chains of synthetic blocks of the
 * first model, the same for equal seed and rank; one rank after the other, one batch in each turn of the
 * rank's loop. Pure except for the models that it fills. */
#pragma once
#include "lab/enginemodel/enginemodel.h"
#include "sim/request/request.h"

#define SIM_FILL_CHAIN_MAX 4096 /* Blocks. */
#define SIM_FILL_BATCH     1024 /* Blocks of one turn; at least one chain. */

struct sim_fill {
	uint64_t seed;
	uint32_t blocks; /* Blocks on each rank. */
	uint32_t chain;  /* Length of a chain in blocks. */
	/* Progress. */
	unsigned rank;
	uint32_t made;
	bool full; /* No room for more; blocks with users are not evicted. */
};
/* Parse {"blocks": n, "seed": s, "chain": c}; only blocks is required. */
bool sim_fill_parse(const struct sim_cfg *cfg, struct cgn_str body, struct sim_fill *out,
	struct sim_refusal *no);
/* Make the next batch on |rank|, from the start when |rank| is new. True when the rank is done. |vocab|:
 * token ids are below this number; 0: words of the computed vocabulary. */
bool sim_fill_step(struct sim_fill *f, const struct sim_cfg *cfg, unsigned rank, uint32_t vocab,
	struct enginemodel *m);
