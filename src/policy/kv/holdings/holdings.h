/* SPDX-License-Identifier: Apache-2.0 */
/* holdings: the blocks that one node holds, as its agent knows them: digest -> references in each tier.
 * Several engines, data-parallel ranks, cache groups and offload copies may hold the same block; the block
 * leaves a tier with the last reference. Pure; one thread.
 *
 * At most 65,535 references of one block in one tier are counted. A block with more leaves the tier that many
 * drops too early, but never stays for ever. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/err.h"
#include "policy/kv/block/tier.h"

struct holdings;
/* The tiers of |digest| changed; holdings_tiers returns the new ones. */
typedef void (*holdings_changed)(void *user, uint64_t digest);

/* Create holdings of at most |max_blocks| digests: 20 to 25 bytes each while their number grows, at most 64
 * after most were dropped (beyond the first few thousand). |changed| may be NULL; it is called after each
 * change and must not change |h|. */
struct holdings *holdings_new(size_t max_blocks, holdings_changed changed, void *user);
void holdings_free(struct holdings **take);
/* Add one reference. Fails with CGN_TOO_LARGE when |max_blocks| digests are held; nothing changed then. */
CGN_RC holdings_add(struct holdings *h, uint64_t digest, enum block_tier tier);
/* Drop one reference. Return false, with nothing changed, when there was none. */
bool holdings_drop(struct holdings *h, uint64_t digest, enum block_tier tier);
unsigned holdings_tiers(const struct holdings *h, uint64_t digest); /* Mask of BLOCK_TIER_BIT; 0: not held. */
size_t holdings_count(const struct holdings *h);                    /* Digests held. */
/* The sums of all BLOCK_RANGES ranges, always current. */
const uint64_t *holdings_sums(const struct holdings *h);
/* Call |fn| for every digest of |range|, or of all ranges (BLOCK_RANGES). |fn| must not change |h|. */
void holdings_each(const struct holdings *h, unsigned range,
	void (*fn)(void *user, uint64_t digest, unsigned tiers), void *user);
