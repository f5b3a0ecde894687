/* SPDX-License-Identifier: Apache-2.0 */
/* feed: a snapshot of what the store holds, then its changes, for one watcher. The memory of a feed is fixed,
 * however slow its watcher is. One thread. */
#pragma once
#include "joint/kv/kvstore/kvstore.h"

struct feed_cursor {
	struct kvstore *store;
	uint64_t at, cursor;
	bool begun, scanned, synced;
};
#define FEED_BATCH 256
struct feed_step {
	struct block_change changes[FEED_BATCH];
	size_t n;
	bool reset;  /* forget earlier steps: this is the first one, or changes were lost */
	bool synced; /* with this step the snapshot is complete; set once a snapshot */
};
/* Fill |out| with the next step. Returns false when there is none now. */
bool feed_next(struct feed_cursor *f, struct feed_step *out);
