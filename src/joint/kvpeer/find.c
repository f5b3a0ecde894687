/* SPDX-License-Identifier: Apache-2.0 */
/* find: who has a block, for any thread. */
#include "joint/kvpeer/kvpeer_priv.h"

/* There are as many readers as threads that ask, so one is free. */
static struct kvpeer_reader *reader_take(struct kvpeer *kp)
{
	for (unsigned i = 0; i < kp->n_readers; i++)
		if (!atomic_exchange_explicit(&kp->readers[i].taken, true, memory_order_acquire))
			return &kp->readers[i];
	return NULL;
}

static unsigned tiers_of(const struct kvindex_reader *r, uint16_t index_id)
{
	uint32_t by_tier[BLOCK_TIERS];
	unsigned tiers = 0;
	if (kvindex_held(r, index_id, by_tier) == 0)
		return 0;
	for (unsigned t = 0; t < BLOCK_TIERS; t++)
		tiers |= by_tier[t] > 0 ? BLOCK_TIER_BIT(t) : 0;
	return tiers;
}

bool kvpeer_has(struct kvpeer *kp, const struct block_key *k, struct kvpeer_where *out)
{
	const uint64_t block = kvframe_short(k);
	unsigned nearest = KVFETCH_DISTANCES;
	struct kvpeer_reader *r = reader_take(kp);
	*out = (struct kvpeer_where){.node = NULL};
	if (r == NULL)
		return false;
	kvindex_match(r->reader, &block, 1);
	for (size_t i = 0; i < KVPEER_MAX; i++) {
		const uint16_t index_id = atomic_load(&kp->slots[i].index_id);
		const unsigned distance = atomic_load(&kp->slots[i].distance),
			       tiers = index_id != NO_INDEX_ID ? tiers_of(r->reader, index_id) : 0;
		const char *name = atomic_load(&kp->slots[i].name);
		if (tiers == 0 || distance >= nearest)
			continue;
		nearest = distance;
		*out = (struct kvpeer_where){name != NULL ? name : "", tiers};
	}
	atomic_store_explicit(&r->taken, false, memory_order_release);
	return out->tiers != 0;
}
