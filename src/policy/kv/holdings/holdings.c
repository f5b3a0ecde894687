/* SPDX-License-Identifier: Apache-2.0 */
/* Each range has a table of its own, so that listing or growing one range does not touch the others. Open
 * addressing with linear probing, 16 bytes an entry, 60 to 80 % full. Removing an entry moves its followers
 * back, so there are no tombstones and a table never degrades. */
#include "policy/kv/holdings/holdings.h"

#include "base/mix/mix.h"

#include <stdlib.h>
#include <string.h>

#define HOLDINGS_TAG 0x484f4c44U
#define MIN_CAP      8

struct entry {
	uint64_t digest;
	uint16_t refs[BLOCK_TIERS]; /* All 0: empty. */
};
_Static_assert(sizeof(struct entry) == 16, "an entry is 16 bytes");

struct table {
	struct entry *slots;
	uint32_t cap, used;
};

struct holdings {
	uint32_t tag;
	size_t max_blocks, count;
	holdings_changed changed;
	void *user;
	uint64_t sums[BLOCK_RANGES];
	struct table tables[BLOCK_RANGES];
};

struct holdings *holdings_new(size_t max_blocks, holdings_changed changed, void *user)
{
	struct holdings *h = CGN_NEW(struct holdings);
	h->tag = HOLDINGS_TAG;
	h->max_blocks = max_blocks;
	h->changed = changed;
	h->user = user;
	return h;
}

void holdings_free(struct holdings **take)
{
	struct holdings *h = *take;
	if (h == NULL)
		return;
	CGN_LIVE(h, HOLDINGS_TAG);
	for (size_t i = 0; i < BLOCK_RANGES; i++)
		free(h->tables[i].slots);
	h->tag = 0;
	free(h);
	*take = NULL;
}

static unsigned tiers_of(const struct entry *e)
{
	unsigned mask = 0;
	for (unsigned t = 0; t < BLOCK_TIERS; t++)
		mask |= e->refs[t] > 0 ? BLOCK_TIER_BIT(t) : 0;
	return mask;
}

static uint32_t home_of(const struct table *t, uint64_t digest)
{
	/* All digests of a table share the range's bits; the multiplication spreads the lower bits over the
	 * table. */
	uint64_t spread = mix_golden(digest);
	return (uint32_t)((spread >> 32) * t->cap >> 32);
}

static uint32_t slot_after(const struct table *t, uint32_t i)
{
	return i + 1 < t->cap ? i + 1 : 0;
}

/* Return the entry of |digest|, or the empty slot for it. The table has at least one empty slot. */
static struct entry *entry_seek(const struct table *t, uint64_t digest)
{
	uint32_t i = home_of(t, digest);
	while (tiers_of(&t->slots[i]) != 0 && t->slots[i].digest != digest)
		i = slot_after(t, i);
	return &t->slots[i];
}

static void table_resize(struct table *t, uint32_t cap)
{
	struct table old = *t;
	t->slots = CGN_NEW_ARRAY(struct entry, cap);
	t->cap = cap;
	for (uint32_t i = 0; i < old.cap; i++)
		if (tiers_of(&old.slots[i]) != 0)
			*entry_seek(t, old.slots[i].digest) = old.slots[i];
	free(old.slots);
}

static void put_back(struct table *t, uint32_t hole)
{
	for (uint32_t i = slot_after(t, hole); tiers_of(&t->slots[i]) != 0; i = slot_after(t, i)) {
		uint32_t home = home_of(t, t->slots[i].digest);
		/* The entry may move into the hole unless its home lies cyclically in (hole, i]. */
		bool stays = hole < i ? home > hole && home <= i : home > hole || home <= i;
		if (stays)
			continue;
		t->slots[hole] = t->slots[i];
		hole = i;
	}
	t->slots[hole] = (struct entry){0};
}

static void change_report(struct holdings *h, uint64_t digest, unsigned before, unsigned now)
{
	h->sums[block_range(digest)] ^= block_fingerprint(digest, before) ^ block_fingerprint(digest, now);
	if (h->changed != NULL)
		h->changed(h->user, digest);
}

static CGN_RC take_in(struct holdings *h, struct table *t, uint64_t digest, enum block_tier tier)
{
	if (h->count >= h->max_blocks)
		return CGN_RC_OF(CGN_TOO_LARGE);
	if ((uint64_t)(t->used + 1) * 5 > (uint64_t)t->cap * 4)
		table_resize(t, t->cap < MIN_CAP ? MIN_CAP : t->cap + t->cap / 4);
	struct entry *e = entry_seek(t, digest);
	e->digest = digest;
	e->refs[tier] = 1;
	t->used++;
	h->count++;
	change_report(h, digest, 0, BLOCK_TIER_BIT(tier));
	return CGN_OK;
}

CGN_RC holdings_add(struct holdings *h, uint64_t digest, enum block_tier tier)
{
	CGN_LIVE(h, HOLDINGS_TAG);
	CGN_MUST(tier < BLOCK_TIERS);
	struct table *t = &h->tables[block_range(digest)];
	struct entry *e = t->cap > 0 ? entry_seek(t, digest) : NULL;
	unsigned before = e != NULL ? tiers_of(e) : 0;
	if (before == 0)
		return take_in(h, t, digest, tier);
	if (e->refs[tier] < UINT16_MAX)
		e->refs[tier]++;
	if ((before & BLOCK_TIER_BIT(tier)) == 0)
		change_report(h, digest, before, before | BLOCK_TIER_BIT(tier));
	return CGN_OK;
}

bool holdings_drop(struct holdings *h, uint64_t digest, enum block_tier tier)
{
	CGN_LIVE(h, HOLDINGS_TAG);
	CGN_MUST(tier < BLOCK_TIERS);
	struct table *t = &h->tables[block_range(digest)];
	struct entry *e = t->cap > 0 ? entry_seek(t, digest) : NULL;
	unsigned before = e != NULL ? tiers_of(e) : 0;
	if ((before & BLOCK_TIER_BIT(tier)) == 0)
		return false;
	if (--e->refs[tier] > 0)
		return true;
	unsigned now = tiers_of(e);
	if (now == 0) {
		put_back(t, (uint32_t)(e - t->slots));
		t->used--;
		h->count--;
		if (t->cap > MIN_CAP && t->used < t->cap / 4)
			table_resize(t, t->cap / 2);
	}
	change_report(h, digest, before, now);
	return true;
}

unsigned holdings_tiers(const struct holdings *h, uint64_t digest)
{
	CGN_LIVE(h, HOLDINGS_TAG);
	const struct table *t = &h->tables[block_range(digest)];
	return t->cap > 0 ? tiers_of(entry_seek(t, digest)) : 0;
}

size_t holdings_count(const struct holdings *h)
{
	CGN_LIVE(h, HOLDINGS_TAG);
	return h->count;
}

const uint64_t *holdings_sums(const struct holdings *h)
{
	CGN_LIVE(h, HOLDINGS_TAG);
	return h->sums;
}

void holdings_each(const struct holdings *h, unsigned range,
	void (*fn)(void *user, uint64_t digest, unsigned tiers), void *user)
{
	CGN_LIVE(h, HOLDINGS_TAG);
	CGN_MUST(range <= BLOCK_RANGES);
	for (unsigned r = range < BLOCK_RANGES ? range : 0;
		r < (range < BLOCK_RANGES ? range + 1 : BLOCK_RANGES); r++)
		for (uint32_t i = 0; i < h->tables[r].cap; i++) {
			const struct entry *e = &h->tables[r].slots[i];
			if (tiers_of(e) != 0)
				fn(user, e->digest, tiers_of(e));
		}
}
