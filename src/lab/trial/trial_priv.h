/* SPDX-License-Identifier: Apache-2.0 */
/* State shared by the files of trial. trial.c: requests. policies.c: eviction. offline.c: the optimum. */
#pragma once
#include "base/core/list.h"
#include "lab/trial/trial.h"
#include "policy/kv/evict/evict.h"

struct trial_block {
	uint64_t digest;
	struct evict_node node; /* EVICT only. */
	struct cgn_link link;   /* All other policies. */
	/* S3_FIFO: sequence number of its eviction from the small queue without use; 0: none. */
	uint64_t left;
	uint8_t queue, uses; /* S3_FIFO only. */
	bool held;
};

/* A part of the cache. */
struct trial_shard {
	uint32_t blocks;
	struct evict evict;
	struct cgn_link ring[2]; /* The next victim is first; small queue, main queue. */
	uint32_t n[2];
	uint64_t left;
};

struct trial_ops {
	void (*touch)(struct trial_shard *s, struct trial_block *b);
	/* Add |b| and return the evicted block; NULL when none was evicted. */
	struct trial_block *(*add)(struct trial_shard *s, struct trial_block *b);
};
extern const struct trial_ops trial_evict, trial_lru, trial_fifo, trial_s3_fifo;

void trial_shard_init(struct trial_shard *s, uint32_t blocks);
void trial_shard_fini(struct trial_shard *s);
/* offline.c; |of| gives the number of each of the trace's ids. */
CGN_RC trial_offline(const struct trace *t, const uint32_t *of, uint32_t distinct, uint32_t blocks,
	struct trial_result *out, struct cgn_err *err);
