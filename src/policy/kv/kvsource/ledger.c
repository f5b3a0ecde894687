/* SPDX-License-Identifier: Apache-2.0 */
/* Two arrays without holes, each with a table of its indices: the last entry takes the place of one that goes. */
#include <stdlib.h>
#include <string.h>

#include "kvsource_priv.h"

#define MIN_CAP 64

void ledger_init(struct ledger *l, struct holdings *h, size_t max_blocks)
{
	*l = (struct ledger){.holdings = h, .max_blocks = max_blocks};
}

/* ---- spots: the engine's reports of one of our blocks ---- */

static struct ledger_spot *spot_at(const struct ledger *l, size_t i)
{
	return (struct ledger_spot *)(void *)(l->spots + i * l->spot_bytes);
}

static struct ledger_spot *spot_find(const struct ledger *l, uint64_t digest)
{
	uint32_t i = table_find(&l->spot_of, digest, (const uint64_t *)(const void *)l->spots, l->spot_bytes);
	return i != TABLE_NONE ? spot_at(l, i) : NULL;
}

/* Replace the spots by |cap| of |groups| rows each. */
static bool spots_rebuild(struct ledger *l, size_t cap, unsigned groups)
{
	struct ledger bigger = *l;
	bigger.cap_spots = cap;
	bigger.groups_cap = groups;
	bigger.spot_bytes = sizeof(struct ledger_spot) + sizeof(uint16_t) * BLOCK_TIERS * groups;
	bigger.spot_bytes = (bigger.spot_bytes + 7) & ~(size_t)7;
	bigger.spots = calloc(cap, bigger.spot_bytes);
	if (bigger.spots == NULL)
		return false;
	for (size_t i = 0; i < l->n_spots; i++)
		memcpy(spot_at(&bigger, i), spot_at(l, i), l->spot_bytes);
	free(l->spots);
	*l = bigger;
	return true;
}

/* Double |cap| until |n| fit; at least MIN_CAP. */
static size_t cap_for(size_t cap, size_t n)
{
	cap = cap > 0 ? cap : MIN_CAP;
	while (cap < n)
		cap *= 2;
	return cap;
}

static bool spots_make_room(struct ledger *l, size_t more)
{
	size_t n = l->n_spots + more, cap = cap_for(l->cap_spots, n);
	return table_reserve(&l->spot_of, n) &&
		(cap == l->cap_spots || spots_rebuild(l, cap, l->groups_cap > 0 ? l->groups_cap : 1));
}

static unsigned spot_tiers(const struct ledger *l, const struct ledger_spot *s)
{
	unsigned tiers = 0;
	for (unsigned t = 0; t < BLOCK_TIERS; t++) {
		uint32_t groups = 0;
		for (unsigned g = 0; g < l->groups_cap; g++)
			groups |= s->refs[g * BLOCK_TIERS + t] > 0 ? 1U << g : 0;
		if (l->required != 0 && (groups & l->required) == l->required)
			tiers |= BLOCK_TIER_BIT(t);
	}
	return tiers;
}

/* Update the holdings with the changes of |s|. */
static CGN_RC spot_judge(struct ledger *l, struct ledger_spot *s)
{
	unsigned now = spot_tiers(l, s);
	for (unsigned t = 0; t < BLOCK_TIERS; t++) {
		unsigned bit = BLOCK_TIER_BIT(t);
		if ((now & bit) != 0 && (s->told & bit) == 0) {
			CGN_TRY(holdings_add(l->holdings, s->digest, (enum block_tier)t));
			s->told |= (uint8_t)bit;
		} else if ((now & bit) == 0 && (s->told & bit) != 0) {
			CGN_MUST(holdings_drop(l->holdings, s->digest, (enum block_tier)t));
			s->told &= (uint8_t)~bit;
		}
	}
	return CGN_OK;
}

static CGN_RC judge_all(struct ledger *l)
{
	for (size_t i = 0; i < l->n_spots; i++)
		CGN_TRY(spot_judge(l, spot_at(l, i)));
	return CGN_OK;
}

/* spots_make_room made room for the spot. */
static struct ledger_spot *spot_make(struct ledger *l, uint64_t digest)
{
	CGN_MUST(l->n_spots < l->cap_spots);
	table_put(&l->spot_of, digest, (uint32_t)l->n_spots);
	struct ledger_spot *s = spot_at(l, l->n_spots++);
	s->digest = digest;
	return s;
}

static CGN_RC spot_ref(struct ledger *l, uint64_t digest, unsigned group, enum block_tier tier)
{
	struct ledger_spot *s = spot_find(l, digest);
	if (s == NULL)
		s = spot_make(l, digest);
	uint16_t *refs = &s->refs[group * BLOCK_TIERS + tier];
	if (*refs < UINT16_MAX)
		++*refs;
	return spot_judge(l, s);
}

static bool spot_empty(const struct ledger *l, const struct ledger_spot *s)
{
	for (unsigned i = 0; i < l->groups_cap * BLOCK_TIERS; i++)
		if (s->refs[i] > 0)
			return false;
	return true;
}

static void spot_remove(struct ledger *l, struct ledger_spot *s)
{
	struct ledger_spot *last = spot_at(l, --l->n_spots);
	uint32_t i = (uint32_t)((size_t)((char *)s - l->spots) / l->spot_bytes);
	table_drop(&l->spot_of, s->digest, i);
	if (s != last) {
		table_replace(&l->spot_of, last->digest, (uint32_t)l->n_spots, i);
		memcpy(s, last, l->spot_bytes);
	}
	memset(last, 0, l->spot_bytes);
}

static void spot_unref(struct ledger *l, uint64_t digest, unsigned group, enum block_tier tier)
{
	struct ledger_spot *s = spot_find(l, digest);
	CGN_MUST(s != NULL);
	uint16_t *refs = &s->refs[group * BLOCK_TIERS + tier];
	CGN_MUST(*refs > 0);
	if (*refs < UINT16_MAX)
		--*refs;
	cgn_rc rc = spot_judge(l, s); /* Dropping a reference adds nothing, so this does not fail. */
	CGN_MUST(cgn_ok(rc));
	if (spot_empty(l, s))
		spot_remove(l, s);
}

/* ---- groups and shapes ---- */

/* Only the first event of a group tells its kind. Later events may omit it, since defaults are left out, and
 * change nothing. */
CGN_RC ledger_see_group(struct ledger *l, unsigned group, bool windowed)
{
	uint32_t bit = 1U << group,
		 full = windowed         ? l->full & ~bit
		: (l->groups & bit) == 0 ? l->full | bit
					 : l->full;
	if ((l->groups & bit) != 0 && full == l->full)
		return CGN_OK;
	if (group >= l->groups_cap && !spots_rebuild(l, cap_for(l->cap_spots, 0), group + 1))
		return CGN_RC_OF(CGN_NO_MEMORY);
	l->groups |= bit;
	l->full = full;
	l->required = l->full != 0 ? l->full : l->groups;
	return judge_all(l);
}

CGN_RC ledger_shape(struct ledger *l, uint32_t kind, unsigned *out)
{
	for (*out = 0; *out < l->n_shapes; ++*out)
		if (l->shapes[*out] == kind)
			return CGN_OK;
	if (l->n_shapes == LEDGER_MAX_SHAPES)
		return CGN_RC_OF(CGN_TOO_LARGE);
	l->shapes[l->n_shapes++] = kind;
	return CGN_OK;
}

/* ---- blocks ---- */

static bool in_use(const struct ledger_block *b)
{
	uint64_t refs;
	_Static_assert(sizeof refs == sizeof b->refs, "four counts of 16 bits");
	memcpy(&refs, b->refs, sizeof refs);
	return refs != 0;
}

static uint64_t block_hash(unsigned group, unsigned shape, uint64_t hash)
{
	return hash + MIX_GOLDEN * (group * LEDGER_MAX_SHAPES + shape);
}

struct ledger_block *ledger_find(const struct ledger *l, unsigned group, unsigned shape, uint64_t hash)
{
	table_each (at, &l->block_of, block_hash(group, shape, hash)) {
		struct ledger_block *b = &l->blocks[at.number];
		if (b->hash == hash && b->group == group && b->shape == shape)
			return b;
	}
	return NULL;
}

struct ledger_block *ledger_find_any(const struct ledger *l, unsigned group, uint64_t hash)
{
	for (unsigned shape = 0; shape < l->n_shapes; shape++) {
		struct ledger_block *b = ledger_find(l, group, shape, hash);
		if (b != NULL)
			return b;
	}
	return NULL;
}

static bool blocks_make_room(struct ledger *l)
{
	size_t cap = cap_for(l->cap_blocks, l->n_blocks + 1);
	if (cap > l->cap_blocks) {
		struct ledger_block *blocks = reallocarray(l->blocks, cap, sizeof *blocks);
		if (blocks == NULL)
			return false;
		l->blocks = blocks;
		l->cap_blocks = cap;
	}
	return table_reserve(&l->block_of, l->n_blocks + 1);
}

static void block_fini(const struct ledger *l, struct ledger_block *b)
{
	if (ledger_pages(l, b->shape) == 0)
		free(b->earlier);
}

static void block_remove(struct ledger *l, struct ledger_block *b)
{
	struct ledger_block *last = &l->blocks[--l->n_blocks];
	uint32_t i = (uint32_t)(b - l->blocks);
	block_fini(l, b);
	table_drop(&l->block_of, block_hash(b->group, b->shape, b->hash), i);
	if (b == last)
		return;
	table_replace(&l->block_of, block_hash(last->group, last->shape, last->hash), (uint32_t)l->n_blocks,
		i);
	*b = *last;
}

/* Return how many blocks of ours |b| stands for. The last page of a block stands for the block, because
 * engines drop the end of a prefix first. */
static uint32_t stands_for(const struct ledger *l, const struct ledger_block *b)
{
	uint32_t pages = ledger_pages(l, b->shape);
	if (pages == 0)
		return l->shapes[b->shape];
	return b->place + 1U == pages ? 1 : 0;
}

static CGN_RC blocks_ref(struct ledger *l, const struct ledger_block *b, enum block_tier tier)
{
	uint32_t n = stands_for(l, b);
	for (uint32_t i = 0; i + 1 < n; i++)
		CGN_TRY(spot_ref(l, b->earlier[i], b->group, tier));
	return n > 0 ? spot_ref(l, digest_short(&b->last), b->group, tier) : CGN_OK;
}

static uint64_t *copy_earlier(const struct digest *digests, uint32_t split)
{
	uint64_t *v = CGN_NEW_ARRAY(uint64_t, split - 1);
	for (uint32_t i = 0; i + 1 < split; i++)
		v[i] = digest_short(&digests[i]);
	return v;
}

/* When the holdings fail half way, blocks and references still agree; the caller demotes the source. */
static CGN_RC block_insert(struct ledger *l, const struct ledger_block *fresh, enum block_tier tier)
{
	uint64_t hash = block_hash(fresh->group, fresh->shape, fresh->hash);
	CGN_MUST(l->n_blocks < l->cap_blocks);
	table_put(&l->block_of, hash, (uint32_t)l->n_blocks);
	struct ledger_block *b = &l->blocks[l->n_blocks++];
	*b = *fresh;
	b->refs[tier] = 1;
	return blocks_ref(l, b, tier);
}

static CGN_RC make_room(struct ledger *l, uint32_t spots)
{
	if (l->n_spots + spots > l->max_blocks || l->n_blocks >= l->max_blocks)
		return CGN_RC_OF(CGN_TOO_LARGE);
	return spots_make_room(l, spots) && blocks_make_room(l) ? CGN_OK : CGN_RC_OF(CGN_NO_MEMORY);
}

CGN_RC ledger_add(struct ledger *l, unsigned group, unsigned shape, uint64_t hash,
	const struct digest *digests, enum block_tier tier)
{
	uint32_t split = l->shapes[shape];
	CGN_TRY(make_room(l, split));
	struct ledger_block fresh = {.hash = hash,
		.last = digests[split - 1],
		.group = (uint8_t)group,
		.shape = (uint8_t)shape};
	if (split > 1)
		fresh.earlier = copy_earlier(digests, split);
	return block_insert(l, &fresh, tier);
}

CGN_RC ledger_add_page(struct ledger *l, const struct ledger_block *page, enum block_tier tier)
{
	CGN_TRY(make_room(l, stands_for(l, page)));
	return block_insert(l, page, tier);
}

CGN_RC ledger_ref(struct ledger *l, struct ledger_block *b, enum block_tier tier)
{
	if (b->refs[tier] < UINT16_MAX)
		b->refs[tier]++;
	if (b->refs[tier] > 1)
		return CGN_OK;
	return blocks_ref(l, b, tier);
}

void ledger_unref(struct ledger *l, struct ledger_block *b, enum block_tier tier)
{
	if (b->refs[tier] == 0 || b->refs[tier] == UINT16_MAX || --b->refs[tier] > 0)
		return;
	uint32_t n = stands_for(l, b);
	for (uint32_t i = 0; i + 1 < n; i++)
		spot_unref(l, b->earlier[i], b->group, tier);
	if (n > 0)
		spot_unref(l, digest_short(&b->last), b->group, tier);
	if (!in_use(b))
		block_remove(l, b);
}

void ledger_clear(struct ledger *l)
{
	for (size_t i = 0; i < l->n_spots; i++)
		for (unsigned t = 0; t < BLOCK_TIERS; t++)
			if ((spot_at(l, i)->told & BLOCK_TIER_BIT(t)) != 0)
				CGN_MUST(holdings_drop(l->holdings, spot_at(l, i)->digest,
					(enum block_tier)t));
	for (size_t i = 0; i < l->n_blocks; i++)
		block_fini(l, &l->blocks[i]);
	table_fini(&l->spot_of);
	table_fini(&l->block_of);
	free(l->blocks);
	free(l->spots);
	ledger_init(l, l->holdings, l->max_blocks);
}
