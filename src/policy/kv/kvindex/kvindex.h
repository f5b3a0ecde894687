/* SPDX-License-Identifier: Apache-2.0 */
/* kvindex: which node holds which block of KV cache, and in which tier. The index is exact and in memory. One
 * thread writes (the router's control loop); many threads read (its workers) without locks, system calls or
 * waiting for the writer. Pure.
 *
 * A node is a small number, the position of its bit in bit sets. A block is the first 8 bytes of its digest
 * (tier.h). Digests must be evenly distributed, as BLAKE3's are: their top bits choose one of 1,024 segments,
 * and each operation touches only the segments of its blocks.
 *
 * Consistency: for each block, kvindex_match sees the holders at some instant between its start and its end.
 * A node that holds a block during the whole match is seen; a node that holds it at no time is not; a tier
 * that changes is seen as the old or the new one. Different blocks may be seen at different instants: a node
 * that drops block 3 and then stores block 7 may be seen with both.
 *
 * Memory never exceeds max_bytes, which includes the allocator's overhead, the readers, and retired memory
 * that readers may still see. When a segment has to grow beyond max_bytes, the segment's blocks that were
 * asked for or reported least recently are shed with all their holders. A node and range that lost a block
 * this way are marked (kvindex_range_was_shed), because their sum is no longer comparable. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/err.h"
#include "policy/kv/block/tier.h"

#define KVINDEX_NODES   4096
#define KVINDEX_READERS 256

struct kvindex;
struct kvindex_reader;

struct kvindex_cfg {
	size_t max_bytes; /* At least kvindex_least_bytes(max_readers). */
	/* At most KVINDEX_READERS. Each takes about 100 KiB of max_bytes from the start. */
	unsigned max_readers;
	uint64_t seed; /* Secret: clients that choose prompts must not choose the buckets of blocks. */
};

struct kvindex_stats {
	/* Distinct blocks, including those of removed nodes until kvindex_tick sweeps them. */
	uint64_t blocks;
	uint64_t memberships;      /* (node, block) pairs of the current nodes. */
	uint64_t nodes;            /* Current nodes. */
	uint64_t bytes, max_bytes; /* bytes: allocated, including overhead and retired memory. */
	uint64_t retired_bytes;    /* The part of |bytes| that waits for readers. */
	uint64_t shed_blocks;      /* Blocks dropped for lack of memory since the start. */
	/* Pairs lost with those blocks or never stored for lack of memory, since the start. */
	uint64_t shed_memberships;
};

size_t kvindex_least_bytes(unsigned max_readers);
/* Fails with INVALID when |cfg| is out of bounds. */
CGN_RC kvindex_new(const struct kvindex_cfg *cfg, struct kvindex **out, struct cgn_err *err);
/* Free all readers before. */
void kvindex_free(struct kvindex **take);

/* ---- the writer's thread ---- */

/* Add a node that holds nothing and set |*node| to its number. Fails with TOO_LARGE when all numbers are
 * taken (the number of a removed node is taken until the sweep is over), and with NO_MEMORY when max_bytes
 * is used up. */
CGN_RC kvindex_node_add(struct kvindex *ix, uint16_t *node, struct cgn_err *err);
/* Remove |node|: a match that starts later does not see it. kvindex_tick frees the node's memory and
 * afterwards its number. A reader that keeps an older match beyond that point must not query it for the
 * number's new node. */
void kvindex_node_remove(struct kvindex *ix, uint16_t node);
/* Set the tiers in which |node| holds block digests[i] to exactly the mask tiers[i]; 0: not held. |tiers|
 * NULL means BLOCK_GPU for each. Idempotent. Batches of a few hundred are fastest. Sheds blocks when
 * max_bytes is used up. */
void kvindex_set(struct kvindex *ix, uint16_t node, const uint64_t *digests, const uint8_t *tiers, size_t n);
/* Remove all blocks of |range| from |node|, or all of its blocks (BLOCK_RANGES), and reset
 * kvindex_range_was_shed. A range costs a pass over 1/256 of the index, 10 to 40 ns a block; BLOCK_RANGES
 * costs a pass over the whole index. To reset a node without that pause, remove it and add it again. */
void kvindex_clear(struct kvindex *ix, uint16_t node, unsigned range);
/* Return the BLOCK_RANGES sums of the blocks that |node| holds, comparable to holdings_sums. */
const uint64_t *kvindex_sums(const struct kvindex *ix, uint16_t node);
/* Return true when a block of this range was shed since the node was added or the range was cleared. The
 * range's sum is then not comparable. */
bool kvindex_range_was_shed(const struct kvindex *ix, uint16_t node, unsigned range);
/* Count the node's blocks in each tier. A block in several tiers counts in each. */
void kvindex_tier_counts(const struct kvindex *ix, uint16_t node, uint64_t out[BLOCK_TIERS]);
uint64_t kvindex_count(const struct kvindex *ix, uint16_t node); /* Blocks that the node holds. */
unsigned kvindex_tiers(const struct kvindex *ix, uint16_t node, uint64_t digest);
/* Call |fn| for every block of the node, or of one range of it. This is a pass over the index, for debugging
 * and tests. |fn| must not change |ix|. */
void kvindex_each(const struct kvindex *ix, uint16_t node, unsigned range,
	void (*fn)(void *user, uint64_t digest, unsigned tiers), void *user);
/* Call |fn| for every block of part |part| of KVINDEX_PARTS that one of |nodes| (a bit each) holds in any tier, in no
 * order; the blocks of a part are greater than those of the parts before. |fn| must not change |ix|. Return how many
 * places were looked at, about 2 to 20 ns each. */
#define KVINDEX_PARTS 1024
struct kvindex_nodes {
	uint64_t bits[KVINDEX_NODES / 64];
};
size_t kvindex_part(const struct kvindex *ix, const struct kvindex_nodes *nodes, unsigned part,
	void (*fn)(void *user, uint64_t digest), void *user);
/* Sweep about |budget| blocks of removed nodes and free memory that no reader can see. Return true when work
 * is left; it may have to wait for a reader to finish, so call again later, not at once. Call a few times a
 * second; a budget of 10,000 takes less than 1 ms. */
bool kvindex_tick(struct kvindex *ix, size_t budget);
void kvindex_stats(const struct kvindex *ix, struct kvindex_stats *out);

/* ---- readers: one per thread ---- */

/* Any thread. Fails with TOO_LARGE when max_readers exist. */
CGN_RC kvindex_reader_new(struct kvindex *ix, struct kvindex_reader **out, struct cgn_err *err);
void kvindex_reader_free(struct kvindex_reader **take);
/* Look up |chain| (the digests of a prompt's blocks, in order; at most the first 2^31) for all nodes at once.
 * Stops at the first block that no node with the whole prefix before it holds. Never allocates or waits. The
 * blocks it touches are shed later than others. */
void kvindex_match(struct kvindex_reader *r, const uint64_t *chain, size_t n);
/* Like kvindex_match, in leaps: only the last of each KVINDEX_LEAP blocks is looked at. Where the remaining
 * nodes hold that block in the same tiers as the one before, they count as holding the blocks in between.
 * Engines evict the end of a prefix first, so this is usually exact. A node that lost blocks in the middle
 * counts as holding them until a match looks at one; each match begins its leaps elsewhere. Costs an eighth
 * of kvindex_match on a long prefix. */
#define KVINDEX_LEAP 8
void kvindex_leap(struct kvindex_reader *r, const uint64_t *chain, size_t n);
/* Return how many leading blocks |node| holds in any tier, according to the last match, and in |by_tier| (may
 * be NULL) how many of them have each tier as their best. */
uint32_t kvindex_held(const struct kvindex_reader *r, uint16_t node, uint32_t by_tier[BLOCK_TIERS]);
