/* SPDX-License-Identifier: Apache-2.0 */
/* kvindex: which node holds which block of KV cache, and in which tier. Exact, in memory, one writer (the
 * router's control loop), many readers (its workers) that take no lock, make no system call and never wait
 * for the writer. Pure.
 *
 * A node is a node, a small number that bit sets are indexed by. A block is the first 8 bytes of its digest
 * (tier.h); digests must be spread evenly, as those of BLAKE3 are: their top bits choose one of 1,024
 * segments, and no operation touches more than the segments it is about.
 *
 * What a reader sees while the writer works: for each block that it looks at, the holders at some instant
 * between the start and the end of kvindex_match. So a node that holds a block all that time is seen, one
 * that does not hold it at any time is not seen, and a tier that changes is the old one or the new one.
 * Different blocks may be seen at different instants: a node that drops block 3 and then takes block 7 may be
 * seen with both.
 *
 * Memory never exceeds max_bytes: everything counts, with the allocator's overhead, readers and memory that
 * is retired but may still be read. When a segment would have to grow beyond that, the blocks of this segment
 * that were not asked for or reported for longest are shed, with all who hold them. A node and range that
 * lost a block so is marked (kvindex_range_was_shed): its sum no longer says anything. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/err.h"
#include "policy/block/tier.h"

#define KVINDEX_NODES   4096
#define KVINDEX_READERS 256

struct kvindex;
struct kvindex_reader;

struct kvindex_cfg {
	size_t max_bytes;     /* at least kvindex_least_bytes(max_readers) */
	unsigned max_readers; /* up to KVINDEX_READERS; about 100 KiB each, counted from the start */
	uint64_t seed;        /* secret: keeps those who choose prompts from choosing where blocks lie */
};

struct kvindex_stats {
	/* distinct, with those of removed nodes that kvindex_tick has not swept yet */
	uint64_t blocks;
	uint64_t memberships;      /* (node, block) pairs of nodes that are there */
	uint64_t nodes;            /* that are there */
	uint64_t bytes, max_bytes; /* bytes: allocated, overhead and retired memory included */
	uint64_t retired_bytes;    /* the part of it that waits for readers */
	uint64_t shed_blocks;      /* since the start: dropped for want of memory, with all who held them */
	/* since the start: pairs that went so, or that there was no room to note */
	uint64_t shed_memberships;
};

size_t kvindex_least_bytes(unsigned max_readers);
/* INVALID: |cfg| is out of bounds; NO_MEMORY. */
CGN_RC kvindex_new(const struct kvindex_cfg *cfg, struct kvindex **out, struct cgn_err *err);
/* All readers are freed before. */
void kvindex_free(struct kvindex **take);

/* ---- the writer's thread ---- */

/* A node that holds nothing. TOO_LARGE: all nodes are taken (a removed one is, until it is swept); NO_MEMORY:
 * max_bytes or the system. */
CGN_RC kvindex_node_add(struct kvindex *ix, uint16_t *node, struct cgn_err *err);
/* No match that starts after this counts the node. kvindex_tick gives its memory back, and only then its
 * number is given out again; a reader that keeps the result of an older match for longer than that must not
 * ask it for the new node. */
void kvindex_node_remove(struct kvindex *ix, uint16_t node);
/* The node holds block digests[i] in exactly the tiers of the mask tiers[i] now; 0: not at all; |tiers| NULL:
 * BLOCK_GPU each. Idempotent. Batches of a few hundred are fastest. Takes memory from max_bytes, sheds when
 * there is none. */
void kvindex_set(struct kvindex *ix, uint16_t node, const uint64_t *digests, const uint8_t *tiers, size_t n);
/* The node holds nothing of |range|, or nothing at all (BLOCK_RANGES); takes the mark of kvindex_range_was_shed
 * away. A range costs a pass over 1/256 of the index, some 10 to 40 ns a block; all of them a pass over the
 * whole: to forget a node without a pause, remove it and add it anew. */
void kvindex_clear(struct kvindex *ix, uint16_t node, unsigned range);
/* What is held, as holdings_sums. [BLOCK_RANGES] */
const uint64_t *kvindex_sums(const struct kvindex *ix, uint16_t node);
/* Something of this range was shed since the node was added or the range was cleared: do not compare its
 * sum. */
bool kvindex_range_was_shed(const struct kvindex *ix, uint16_t node, unsigned range);
/* How many of its blocks lie in each tier; one that lies in several counts in each. */
void kvindex_tier_counts(const struct kvindex *ix, uint16_t node, uint64_t out[BLOCK_TIERS]);
uint64_t kvindex_count(const struct kvindex *ix, uint16_t node); /* blocks that the node holds */
unsigned kvindex_tiers(const struct kvindex *ix, uint16_t node, uint64_t digest);
/* Every block of the node, or of one range of it. A pass over the index, for debugging and tests. |fn| must
 * not change |ix|. */
void kvindex_each(const struct kvindex *ix, uint16_t node, unsigned range,
	void (*fn)(void *user, uint64_t digest, unsigned tiers), void *user);
/* Sweep about |budget| blocks for removed nodes, give back memory that no reader can see any more. True:
 * there is more to do (it may be a reader that has to finish first: come back later, not at once). Call it
 * some times a second; a budget of 10,000 takes below 1 ms. */
bool kvindex_tick(struct kvindex *ix, size_t budget);
void kvindex_stats(const struct kvindex *ix, struct kvindex_stats *out);

/* ---- readers: one per thread ---- */

/* Any thread. TOO_LARGE: max_readers exist; NO_MEMORY. */
CGN_RC kvindex_reader_new(struct kvindex *ix, struct kvindex_reader **out, struct cgn_err *err);
void kvindex_reader_free(struct kvindex_reader **take);
/* Look |chain| (the digests of a prompt's blocks, in order) up for all nodes at once; at most the first 2^31
 * blocks. Ends at the first block that no node holds which held all before it. Never allocates, never waits.
 * What it touches is shed later than what it does not. */
void kvindex_match(struct kvindex_reader *r, const uint64_t *chain, size_t n);
/* The same by leaps: of KVINDEX_LEAP blocks the last is looked at, and where the nodes that are left hold it
 * in the tiers of the block before, they count as holding those in between as well. Engines evict ends first,
 * so they do. A node that lost blocks in the middle is thought to hold them until a match looks at one of
 * them: leaps begin elsewhere each time. Costs an eighth of kvindex_match where a long prefix is held. */
#define KVINDEX_LEAP 8
void kvindex_leap(struct kvindex_reader *r, const uint64_t *chain, size_t n);
/* Of the last match: how many leading blocks |node| holds in any tier, and how many of them lie at best in
 * each tier. |by_tier| may be NULL. */
uint32_t kvindex_held(const struct kvindex_reader *r, uint16_t node, uint32_t by_tier[BLOCK_TIERS]);
