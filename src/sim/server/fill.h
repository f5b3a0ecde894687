/* SPDX-License-Identifier: Apache-2.0 */
/* fill: what a cache would hold after many requests, without them. Chains of synthetic blocks of the first
 * model, the same for the same seed and rank, made on one rank after the other, a batch in each turn of its
 * loop. Pure but for the models it fills. */
#pragma once
#include "lab/enginemodel/enginemodel.h"
#include "sim/request/request.h"

#define SIM_FILL_CHAIN_MAX 4096 /* blocks */
#define SIM_FILL_BATCH     1024 /* blocks of one turn, at least a chain */

struct sim_fill {
	uint64_t seed;
	uint32_t blocks; /* on each rank */
	uint32_t chain;  /* blocks that follow each other */
	/* as it goes */
	unsigned rank;
	uint32_t made;
	bool full; /* no memory for more; what has users is not taken anyway */
};
/* {"blocks": n, "seed": s, "chain": c}; only blocks is needed. */
bool sim_fill_parse(const struct sim_cfg *cfg, struct cgn_str body, struct sim_fill *out,
	struct sim_refusal *no);
/* The next batch on |rank|, starting anew when that is not the rank of the call before. True when that rank
 * is done. |vocab|: token ids are below that; 0: words of the arithmetic vocabulary. */
bool sim_fill_step(struct sim_fill *f, const struct sim_cfg *cfg, unsigned rank, uint32_t vocab,
	struct enginemodel *m);
