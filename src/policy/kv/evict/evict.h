/* SPDX-License-Identifier: Apache-2.0 */
/* evict: choose the block that leaves a tier. Pure. The algorithm is S3-FIFO (Yang et al., "FIFO queues are
 * all you need for cache eviction", SOSP 2023) over nodes of different sizes, which the caller embeds in its
 * entries. A new node waits in a small queue. A node that is used there, or that comes back soon after it
 * left, moves to the main queue. The main queue gives another round to each node that was used since its last
 * round. Data that is read only once passes through the small queue and does not disturb the main queue. An
 * addition to the publication: the share of the small queue adapts to the nodes that come back
 * (docs/change/adr/0013).
 *
 * Add a batch in reverse order, its last block first: among equally good blocks the first one added is
 * evicted first, and a prefix is useless without its beginning.
 *
 * Threads: the caller holds one lock (of its shard) around everything except evict_touch and evict_worth,
 * which need no lock. Memory: 24 bytes in each node, and a table of fingerprints of evicted nodes ("ghosts"),
 * two and a half for each node in the tier: 20 to 25 bytes for each node of the largest number of nodes so
 * far (at least 2 KiB, at most 8 GiB); see evict_bytes. */
#pragma once
#include <assert.h>
#include <stdatomic.h>

#include "base/core/err.h"

#define EVICT_MAX_USES 2

struct evict_node {
	struct evict_node *next, *prev; /* NULL: in no queue. */
	uint32_t bytes;
	_Atomic uint8_t uses; /* Uses since the node was last examined; saturates. */
	_Atomic uint8_t worth;
	uint8_t queue;
	_Atomic uint8_t mark; /* The owner's; evict does not touch it. */
};
static_assert(sizeof(struct evict_node) == 24, "what each block pays");

enum evict_queue { EVICT_SMALL, EVICT_MAIN, EVICT_QUEUES };

struct evict_cfg {
	/* The tier's size (a shard's share of it), used only to divide the tier among the queues. The caller
	 * decides when to evict. */
	uint64_t bytes;
	/* 64 evenly spread bits of the key, the same each time that the block is added. Called in evict_add
	 * and evict_victim. */
	uint64_t (*hash_of)(struct evict_node *n);
};

/* Private to evict. */
struct evict_ghosts {
	uint32_t *slot;
	uint64_t slots; /* 0: no table yet. */
	uint64_t left[EVICT_QUEUES];
};
struct evict_ring {
	struct evict_node head; /* The next node is the oldest. */
	uint64_t bytes, n;
};
struct evict {
	uint32_t tag;
	struct evict_cfg cfg;
	struct evict_ring ring[EVICT_QUEUES];
	uint64_t small_bytes; /* Bytes that the small queue may hold before the main queue must evict. */
	struct evict_ghosts ghosts;
};

/* |e| must not move in memory. */
void evict_init(struct evict *e, const struct evict_cfg *cfg);
/* Free the table of ghosts; the nodes are not touched. NULL-safe; a zeroed object is fine. */
void evict_fini(struct evict *e);

/* Add |n|, which is in no queue and takes |bytes| of the tier. The node's earlier history is forgotten. */
void evict_add(struct evict *e, struct evict_node *n, uint32_t bytes);
/* Count a use of |n|. Any thread, no lock, while |n| lives. */
static inline void evict_touch(struct evict_node *n)
{
	uint8_t uses = atomic_load_explicit(&n->uses, memory_order_relaxed);
	/* A node that is known to be hot is not written: many threads read it. A use that a race loses does
	 * no harm. */
	if (uses < EVICT_MAX_USES)
		atomic_store_explicit(&n->uses, (uint8_t)(uses + 1), memory_order_relaxed);
}
/* Take the node that should leave out of its queue and return it; NULL: |may_go| refused every node. One node
 * a call: call until there is room.
 * |may_go| NULL: every node may go. A node that |may_go| refuses gets another round. O(1) on average. */
struct evict_node *evict_victim(struct evict *e, bool (*may_go)(void *user, struct evict_node *n),
	void *user);
/* Take |n| out for another reason (removed, replaced, expired); leaves no ghost. Does nothing if |n| is in no
 * queue. */
void evict_drop(struct evict *e, struct evict_node *n);

/* The history of |n| for the admission to a slower tier. Valid from evict_add until the next evict_add, also
 * after |n| was taken out. */
enum evict_worth {
	EVICT_USED = 1,      /* Used since it was added. */
	EVICT_USED_MORE = 2, /* Used at least twice (not every second use is noticed). */
	EVICT_CAME_BACK = 4, /* The node came back soon after it was evicted. */
};
unsigned evict_worth(const struct evict_node *n);

static inline bool evict_has(const struct evict_node *n)
{
	return n->next != NULL;
}
uint64_t evict_count(const struct evict *e); /* Nodes in the queues. */
size_t evict_bytes(const struct evict *e);   /* Bytes of the table of ghosts. */
/* O(n): check that rings, counts and sums agree. For tests. */
bool evict_sound(const struct evict *e);
