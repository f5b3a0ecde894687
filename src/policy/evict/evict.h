/* SPDX-License-Identifier: Apache-2.0 */
/* evict: which block leaves a tier. S3-FIFO (Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023) over nodes of different
 * sizes that their owner embeds in what they stand for. What is new waits in a small queue; who is used there, or comes back soon after it went,
 * moves to the main queue, which gives one more round to whoever was used since the last. What is read once passes through the small queue and
 * disturbs nothing else. Pure.
 *
 * A batch is best added end first: of blocks that are equally good the one that came first goes first, and a prefix is worth nothing without
 * its beginning.
 *
 * Threads: the caller holds one lock (of its shard) around everything but evict_touch, which needs none.
 * Memory: 24 bytes in each node; ghosts (fingerprints of blocks that left unused) take at most 10 bytes for each block of the tier: evict_bytes. */
#pragma once
#include <assert.h>
#include <stdatomic.h>

#include "base/core/err.h"

struct evict_node {
	struct evict_node *next, *prev; /* NULL: in no queue */
	uint32_t bytes;
	_Atomic uint8_t uses;           /* since it was last looked at; saturates */
	uint8_t queue, flags;
	uint8_t spare;
};

struct evict_cfg {
	uint64_t bytes; /* what the nodes may sum up to: the shard's share of the tier. Only to divide it among the queues: the caller says when to evict */
	/* 64 evenly spread bits of the key, the same each time the block comes. Called in evict_add and evict_victim. */
	uint64_t (*hash_of)(struct evict_node *n);
};

struct evict_queue {
	struct evict_node head; /* a ring; first in is next */
	uint64_t bytes;
	uint64_t n;
};
struct ghosts {
	uint32_t *slot; /* owned */
	uint64_t slots; /* a power of two; 0: none yet */
	uint64_t added;
};
struct evict {
	uint32_t tag;
	struct evict_cfg cfg;
	struct evict_queue small, main;
	struct ghosts ghosts;
};

/* |e| must stay where it is. */
void evict_init(struct evict *e, const struct evict_cfg *cfg);
/* Its nodes are forgotten, not touched. */
void evict_fini(struct evict *e);

/* |n| (in no queue) came into the tier and takes |bytes| of it. */
void evict_add(struct evict *e, struct evict_node *n, uint32_t bytes);
/* |n| was used. Any thread, no lock, while |n| lives. */
static inline void evict_touch(struct evict_node *n)
{
	uint8_t uses = atomic_load_explicit(&n->uses, memory_order_relaxed);
	if (uses < 3) /* no write to a line that many read, once it is known to be hot; a use lost to a race is no loss */
		atomic_store_explicit(&n->uses, (uint8_t)(uses + 1), memory_order_relaxed);
}
/* Take the one out that should leave; it is in no queue then. NULL: |may_go| said no to all. One node a call: call until there is room. |may_go|
 * NULL: any may; one that may not go stays as good as it is. Costs O(1) on average. */
struct evict_node *evict_victim(struct evict *e, bool (*may_go)(void *user, struct evict_node *n), void *user);
/* |n| leaves for another reason (removed, replaced, expired). Nothing when it is in no queue. */
void evict_drop(struct evict *e, struct evict_node *n);

/* How good |n| was, at any time from evict_add on, after it was taken out too: an admission to a slower tier asks. */
enum evict_worth {
	EVICT_USED = 1,      /* since it came */
	EVICT_CAME_BACK = 2, /* it had left unused, and was wanted again soon after */
	EVICT_MAIN = 4,      /* it proved itself: used in the small queue, or came back */
};
unsigned evict_worth(const struct evict_node *n);

static inline bool evict_has(const struct evict_node *n)
{
	return n->next != NULL;
}
uint64_t evict_count(const struct evict *e);       /* nodes */
uint64_t evict_held_bytes(const struct evict *e);  /* of the nodes */
size_t evict_bytes(const struct evict *e);         /* memory for ghosts */
