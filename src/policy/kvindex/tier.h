/* SPDX-License-Identifier: Apache-2.0 */
/* tier: where a block of KV cache lies, and the sums by which an agent and a router find out that they
 * disagree. Pure; any thread.
 *
 * A block is named by the first 8 bytes of its digest (digest_short). What a node holds is a set of (digest,
 * tiers); tiers is a mask of KV_TIER_BIT, 0 when the node does not hold it. The digests are cut by their top
 * 8 bits into KV_RANGES ranges, and the sum of a range is the XOR of kv_print over what is held in it: equal
 * sums, equal contents (but for 2^-64). */
#pragma once
#include <stdint.h>

enum kv_tier { KV_GPU, KV_RAM, KV_SSD, KV_REMOTE, KV_TIERS };
#define KV_TIER_BIT(t) (1U << (t))
#define KV_TIER_MASK   ((1U << KV_TIERS) - 1)

#define KV_RANGES 256
static inline unsigned kv_range(uint64_t digest)
{
	return (unsigned)(digest >> 56);
}

/* 0 when |tiers| is 0, so that a change from a to b is sum ^= kv_print(d, a) ^ kv_print(d, b). */
static inline uint64_t kv_print(uint64_t digest, unsigned tiers)
{
	if (tiers == 0)
		return 0;
	uint64_t h = digest ^ tiers * 0x9e3779b97f4a7c15ULL;
	h = (h ^ h >> 30) * 0xbf58476d1ce4e5b9ULL;
	h = (h ^ h >> 27) * 0x94d049bb133111ebULL;
	return h ^ h >> 31;
}
