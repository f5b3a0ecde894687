/* SPDX-License-Identifier: Apache-2.0 */
/* backlog: the blocks that a watcher has yet to learn, and the batch of blocks of one event. A backlog is a list of
 * digests that changed, and a set of ranges to send from their beginning. A list that grows too long becomes the
 * ranges of its digests, so a backlog has a bounded size however much is held. */
#pragma once
#include "policy/kv/holdings/holdings.h"

#define WATCH_MAX_BACKLOG   ((size_t)131072) /* Digests in the list: 1 MiB */
#define WATCH_CHUNK_DIGESTS ((size_t)32768)  /* Digests in an event: 256 KiB, and 32 KiB of tier masks */

/* A set of ranges. */
struct watch_ranges {
	uint64_t bit[BLOCK_RANGES / 64];
};

struct watch_backlog {
	uint64_t *touched; /* Digests that changed; duplicates are harmless */
	size_t n, cap;
	struct watch_ranges due; /* Ranges to send from their beginning */
	struct watch_ranges
		known;       /* Ranges of which something was sent, which the watcher must forget first */
	unsigned next_range; /* No range below is due */
};
/* Add a digest that changed. Returns 0; or, when the list is full, how many digests became ranges. */
size_t watch_backlog_add(struct watch_backlog *b, uint64_t digest);
/* Send the range from its beginning. */
void watch_backlog_range_due(struct watch_backlog *b, unsigned range);
/* Send the range again: the watcher must forget what it knows of the range. */
void watch_backlog_resend(struct watch_backlog *b, unsigned range);
bool watch_backlog_is_empty(struct watch_backlog *b);
void watch_backlog_fini(struct watch_backlog *b);

/* The blocks of an event. Grows to WATCH_CHUNK_DIGESTS, or to one range that is longer. */
struct watch_batch {
	const struct holdings *holdings;
	uint64_t *digests;
	uint8_t *tiers; /* For each digest */
	size_t n, cap;
	uint32_t ranges[BLOCK_RANGES]; /* Ranges to forget first */
	size_t n_ranges;
	bool off_gpu; /* Some block is not in the GPU tier alone */
	bool bad;     /* Memory is short */
};
/* Move the next blocks from the backlog into the batch, which is emptied first. */
void watch_batch_gather(struct watch_batch *batch, struct watch_backlog *b);
void watch_batch_fini(struct watch_batch *batch);
