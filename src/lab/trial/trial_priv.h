/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of trial share. trial.c: requests · policies.c: who leaves · offline.c: the optimum. */
#pragma once
#include "base/core/list.h"
#include "lab/trial/trial.h"
#include "policy/evict/evict.h"

struct trial_block {
	uint64_t digest;
	struct evict_node node; /* EVICT */
	struct cgn_link link;   /* the others */
	/* S3_FIFO: the how manieth it was to leave the small queue unused; 0: never did */
	uint64_t left;
	uint8_t queue, uses; /* S3_FIFO */
	bool held;
};

/* A share of the cache. */
struct trial_shard {
	uint32_t blocks;
	struct evict evict;
	struct cgn_link ring[2]; /* who leaves first is first; small, main */
	uint32_t n[2];
	uint64_t left;
};

struct trial_ops {
	void (*touch)(struct trial_shard *s, struct trial_block *b);
	/* NULL: nobody had to leave */
	struct trial_block *(*add)(struct trial_shard *s, struct trial_block *b);
};
extern const struct trial_ops trial_evict, trial_lru, trial_fifo, trial_s3_fifo;

void trial_shard_init(struct trial_shard *s, uint32_t blocks);
void trial_shard_fini(struct trial_shard *s);
/* offline.c; |of| says by number what each of the trace's ids is. */
CGN_RC trial_offline(const struct trace *t, const uint32_t *of, uint32_t distinct, uint32_t blocks,
	struct trial_result *out, struct cgn_err *err);
