/* SPDX-License-Identifier: Apache-2.0 */
/* tier: the tiers of KV cache, and the sums that an agent and a router compare to detect that they disagree.
 * Pure; any thread.
 *
 * A block is named by the first 8 bytes of its digest (digest_short). A node holds a set of (digest, tiers);
 * tiers is a mask of BLOCK_TIER_BIT, 0 when the node does not hold the block. The top 8 bits of a digest
 * choose one of BLOCK_RANGES ranges. The sum of a range is the XOR of block_fingerprint over its blocks:
 * equal sums mean equal contents (but for 2^-64). */
#pragma once
#include <stdint.h>

#include "base/mix/mix.h"

enum block_tier { BLOCK_GPU, BLOCK_RAM, BLOCK_SSD, BLOCK_REMOTE, BLOCK_TIERS };
#define BLOCK_TIER_BIT(t) (1U << (t))
#define BLOCK_TIER_MASK   ((1U << BLOCK_TIERS) - 1)

#define BLOCK_RANGES 256
static inline unsigned block_range(uint64_t digest)
{
	return (unsigned)(digest >> 56);
}

/* Return 0 when |tiers| is 0, so that a change from a to b is sum ^= block_fingerprint(d, a) ^
 * block_fingerprint(d, b). */
static inline uint64_t block_fingerprint(uint64_t digest, unsigned tiers)
{
	if (tiers == 0)
		return 0;
	return mix64(digest ^ tiers * MIX_GOLDEN);
}
