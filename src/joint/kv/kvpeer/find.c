/* SPDX-License-Identifier: Apache-2.0 */
/* find: the index of what peers hold. kvpeer_has may be called on any thread. */
#include "joint/kv/kvpeer/kvpeer_priv.h"

/* The number of readers is the number of threads that ask, so one is free. */
static struct kvpeer_reader *find_reader_take(struct kvpeer *kp)
{
	for (unsigned i = 0; i < kp->n_readers; i++)
		if (!atomic_exchange_explicit(&kp->readers[i].taken, true, memory_order_acquire))
			return &kp->readers[i];
	return NULL;
}

static unsigned find_tiers(const struct kvindex_reader *r, uint16_t index_id)
{
	uint32_t by_tier[BLOCK_TIERS];
	unsigned tiers = 0;
	if (kvindex_held(r, index_id, by_tier) == 0)
		return 0;
	for (unsigned t = 0; t < BLOCK_TIERS; t++)
		tiers |= by_tier[t] > 0 ? BLOCK_TIER_BIT(t) : 0;
	return tiers;
}

/* May stores of the site be asked for a block that may be asked for at |sites|? */
static bool may_ask(unsigned site, uint16_t sites)
{
	return site == KVPEER_HERE || (sites & 1U << site) != 0;
}

bool kvpeer_has(struct kvpeer *kp, const struct block_key *k, uint16_t sites, struct kvpeer_where *out)
{
	const uint64_t block = kvframe_short(k);
	unsigned nearest = KVFETCH_DISTANCES;
	struct kvpeer_reader *r = find_reader_take(kp);
	*out = (struct kvpeer_where){.node = NULL};
	if (r == NULL)
		return false;
	kvindex_match(r->reader, &block, 1);
	for (size_t i = 0; i < KVPEER_MAX; i++) {
		const uint16_t index_id = atomic_load(&kp->slots[i].index_id);
		const unsigned distance = atomic_load(&kp->slots[i].distance),
			       site = atomic_load(&kp->slots[i].site),
			       tiers = index_id != NO_INDEX_ID && may_ask(site, sites)
			? find_tiers(r->reader, index_id)
			: 0;
		const char *name = atomic_load(&kp->slots[i].name);
		if (tiers == 0 || distance >= nearest)
			continue;
		nearest = distance;
		*out = (struct kvpeer_where){name != NULL ? name : "", tiers};
	}
	atomic_store_explicit(&r->taken, false, memory_order_release);
	return out->tiers != 0;
}

void kvpeer_forget(struct kvpeer_peer *p)
{
	atomic_store(&p->kp->slots[p->slot].index_id, NO_INDEX_ID);
	if (p->index_id != NO_INDEX_ID)
		kvindex_node_remove(p->kp->index, p->index_id);
	p->index_id = NO_INDEX_ID;
	p->synced = false;
}

CGN_RC kvpeer_index_begin(struct kvpeer_peer *p, struct cgn_err *err)
{
	uint16_t index_id;
	kvpeer_forget(p);
	CGN_TRY(kvindex_node_add(p->kp->index, &index_id, err));
	p->index_id = index_id;
	atomic_store(&p->kp->slots[p->slot].index_id, index_id);
	return CGN_OK;
}

void kvpeer_holds_apply(struct kvpeer_peer *p, const struct kvframe_holds *h)
{
	static _Thread_local uint64_t blocks[KVFRAME_MAX_HOLDS];
	static _Thread_local uint8_t tiers[KVFRAME_MAX_HOLDS];
	for (size_t i = 0; i < h->n; i++) {
		struct kvframe_hold hold = kvframe_hold_at(h, i);
		blocks[i] = hold.block;
		tiers[i] = hold.tiers;
	}
	kvindex_set(p->kp->index, p->index_id, blocks, tiers, h->n);
}

void kvpeer_has_not(struct kvpeer_peer *p, const struct block_key *k)
{
	const uint64_t block = kvframe_short(k);
	const uint8_t none = 0;
	if (p->index_id != NO_INDEX_ID)
		kvindex_set(p->kp->index, p->index_id, &block, &none, 1);
}

bool kvpeer_peer_has(struct kvpeer *kp, const struct kvpeer_peer *p, const struct block_key *k,
	unsigned *tiers)
{
	*tiers = p->state == PEER_READY && p->index_id != NO_INDEX_ID
		? kvindex_tiers(kp->index, p->index_id, kvframe_short(k))
		: 0;
	return *tiers != 0;
}
