/* SPDX-License-Identifier: Apache-2.0 */
/* evict: choose the block that leaves a tier. Pure. S3-FIFO (Yang et al., "FIFO queues are all you need for cache
 * eviction", SOSP 2023) over nodes of different sizes that their owner embeds in what they stand for: what is
 * new waits in a small queue; who is used there, or comes back soon after it left, moves to the main queue,
 * which gives another round to each node that was used since the last. What is read once passes through the small
 * queue and disturbs nothing else. Beyond what was published: how much of the tier the small queue may fill
 * follows from what comes back (docs/adr/0013).
 *
 * A batch is best added end first: of blocks that are equally good the one that came first goes first, and a
 * prefix is worth nothing without its beginning.
 *
 * Threads: the caller holds one lock (of its shard) around everything but evict_touch and evict_worth, which
 * need none. Memory: 24 bytes in each node; fingerprints of those that left ("ghosts"), two and a half for
 * each node that is there, in 20 to 25 bytes for each node that was ever there at once (at least 2 KiB, at
 * most 8 GiB): evict_bytes. */
#pragma once
#include <assert.h>
#include <stdatomic.h>

#include "base/core/err.h"

#define EVICT_MAX_USES 2

struct evict_node {
	struct evict_node *next, *prev; /* NULL: in no queue */
	uint32_t bytes;
	_Atomic uint8_t uses; /* since it was last looked at; saturates */
	_Atomic uint8_t worth;
	uint8_t queue;
};
static_assert(sizeof(struct evict_node) == 24, "what each block pays");

enum evict_queue { EVICT_SMALL, EVICT_MAIN, EVICT_QUEUES };

struct evict_cfg {
	/* what the nodes may sum up to: the shard's share of the tier. Only to divide it among the queues;
	 * the caller says when to evict */
	uint64_t bytes;
	/* 64 evenly spread bits of the key, the same each time the block comes. Called in evict_add and
	 * evict_victim. */
	uint64_t (*hash_of)(struct evict_node *n);
};

/* Fields are the noun's own. */
struct evict_ghosts {
	uint32_t *slot;
	uint64_t slots; /* 0: none yet */
	uint64_t left[EVICT_QUEUES];
};
struct evict_ring {
	struct evict_node head; /* first in is next */
	uint64_t bytes, n;
};
struct evict {
	uint32_t tag;
	struct evict_cfg cfg;
	struct evict_ring ring[EVICT_QUEUES];
	uint64_t small_bytes; /* bytes that the small queue may fill before the main queue has to evict */
	struct evict_ghosts ghosts;
};

/* |e| must stay where it is. */
void evict_init(struct evict *e, const struct evict_cfg *cfg);
/* The nodes are not touched. NULL-safe; an object of zeroes is fine. */
void evict_fini(struct evict *e);

/* |n| (in no queue) came into the tier and takes |bytes| of it. What |n| was before is forgotten. */
void evict_add(struct evict *e, struct evict_node *n, uint32_t bytes);
/* |n| was used. Any thread, no lock, while |n| lives. */
static inline void evict_touch(struct evict_node *n)
{
	uint8_t uses = atomic_load_explicit(&n->uses, memory_order_relaxed);
	/* no write to what many read, once it is known to be hot; a use lost to a race is no loss */
	if (uses < EVICT_MAX_USES)
		atomic_store_explicit(&n->uses, (uint8_t)(uses + 1), memory_order_relaxed);
}
/* Take the one out that should leave; it is in no queue then. NULL: none, |may_go| said no to all. One node a
 * call: call until there is room.
 * |may_go| NULL: any may. One that may not go when its turn comes gets another round. O(1) on average. */
struct evict_node *evict_victim(struct evict *e, bool (*may_go)(void *user, struct evict_node *n),
	void *user);
/* |n| leaves for another reason (removed, replaced, expired): no ghost. Nothing when it is in no queue. */
void evict_drop(struct evict *e, struct evict_node *n);

/* What is known of |n|, from evict_add until it is added again, also after it was taken out: for an admission
 * to a slower tier. */
enum evict_worth {
	EVICT_USED = 1,      /* since it came */
	EVICT_USED_MORE = 2, /* at least twice (not every second use is seen) */
	EVICT_CAME_BACK = 4, /* the node came back soon after it was evicted */
};
unsigned evict_worth(const struct evict_node *n);

static inline bool evict_has(const struct evict_node *n)
{
	return n->next != NULL;
}
uint64_t evict_count(const struct evict *e); /* nodes */
size_t evict_bytes(const struct evict *e);   /* memory for ghosts */
/* O(n): rings, counts and sums agree. For tests. */
bool evict_sound(const struct evict *e);
