/* SPDX-License-Identifier: Apache-2.0 */
/* kvstore stats: what a store holds, and what it did since it was created. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "policy/kv/block/block.h"

struct kvstore;

struct kvstore_tier_stats {
	uint64_t blocks, bytes, value_bytes, budget, hits, evictions;
};
#define KVSTORE_WHY 200
struct kvstore_stats {
	struct kvstore_tier_stats tier[BLOCK_TIERS];
	uint64_t misses, corrupt, index_bytes, pinned_bytes;
	struct kvstore_ssd_stats {
		/* blocks that wait to be written; they stay in RAM until then */
		uint64_t queue_blocks, queue_bytes;
		/* Bytes of values; of values that were written again to make room; of everything that was
		 * written. */
		uint64_t put_bytes, carried_bytes, written_bytes;
		uint64_t queue_full, index_full, failed; /* blocks that were not written */
		/* As in struct kvdisk_stats. */
		uint64_t reopened, aside;
		uint64_t budget_left; /* KVSTORE_WRITE_AUTO: bytes that may be written now */
		bool refusing;
		char why[KVSTORE_WHY];
	} ssd;
};
void kvstore_stats(struct kvstore *s, struct kvstore_stats *out);
