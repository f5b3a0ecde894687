/* SPDX-License-Identifier: Apache-2.0 */
/* holdings: what one node holds, as its agent knows it: digest -> references in each tier. Several engines,
 * data-parallel ranks, cache groups and offload copies may hold the same block; it is gone from a tier with
 * the last of them. Pure; one thread.
 *
 * References beyond 65,535 of one block in one tier are not counted: it is then taken for gone that many
 * drops early, never stuck for ever. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/err.h"
#include "policy/block/tier.h"

struct holdings;
/* The tiers of |digest| changed; holdings_tiers tells to what. */
typedef void (*holdings_changed)(void *user, uint64_t digest);

/* At most |max_blocks| digests: 20 to 25 bytes each while they grow in number, at most 64 when most of them
 * went again (beyond the first few thousand).
 * |changed| may be NULL; it is called after the change and must not change |h|. */
CGN_RC holdings_new(size_t max_blocks, holdings_changed changed, void *user, struct holdings **out,
	struct cgn_err *err);
void holdings_free(struct holdings **take);
/* One reference more. CGN_TOO_LARGE: |max_blocks| are held; CGN_NO_MEMORY. Nothing changed then. */
CGN_RC holdings_add(struct holdings *h, uint64_t digest, enum block_tier tier);
/* One reference less; false, and nothing changed, when there was none. */
bool holdings_drop(struct holdings *h, uint64_t digest, enum block_tier tier);
unsigned holdings_tiers(const struct holdings *h, uint64_t digest); /* mask; 0: not held */
size_t holdings_count(const struct holdings *h);                    /* digests held */
size_t holdings_bytes(const struct holdings *h);                    /* memory in use */
/* The sums of all ranges, always at hand. */
const uint64_t *holdings_sums(const struct holdings *h); /* [BLOCK_RANGES] */
/* Every digest held of one range, or of all (range BLOCK_RANGES). |fn| must not change |h|. */
void holdings_each(const struct holdings *h, unsigned range,
	void (*fn)(void *user, uint64_t digest, unsigned tiers), void *user);
