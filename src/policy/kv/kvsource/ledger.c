/* SPDX-License-Identifier: Apache-2.0 */
/* Two open-addressing tables with linear probing; removing an entry moves its followers back. */
#include <stdlib.h>
#include <string.h>

#include "base/mix/mix.h"
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

static size_t spot_home(const struct ledger *l, uint64_t digest)
{
	return (size_t)mix64(digest) & (l->cap_spots - 1);
}

/* Return the slot of |digest|, or the empty slot for it. */
static size_t spot_seek(const struct ledger *l, uint64_t digest)
{
	size_t i = spot_home(l, digest);
	while (spot_at(l, i)->used && spot_at(l, i)->digest != digest)
		i = (i + 1) & (l->cap_spots - 1);
	return i;
}

/* Replace the table with one of |cap| slots of |groups| rows each, and copy the spots. */
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
	for (size_t i = 0; i < l->cap_spots; i++)
		if (spot_at(l, i)->used)
			memcpy(spot_at(&bigger, spot_seek(&bigger, spot_at(l, i)->digest)), spot_at(l, i),
				l->spot_bytes);
	free(l->spots);
	*l = bigger;
	return true;
}

static bool spots_make_room(struct ledger *l, size_t more)
{
	size_t cap = l->cap_spots > 0 ? l->cap_spots : MIN_CAP;
	while ((l->n_spots + more) * 4 > cap * 3)
		cap *= 2;
	return cap == l->cap_spots || spots_rebuild(l, cap, l->groups_cap > 0 ? l->groups_cap : 1);
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
	for (size_t i = 0; i < l->cap_spots; i++)
		if (spot_at(l, i)->used)
			CGN_TRY(spot_judge(l, spot_at(l, i)));
	return CGN_OK;
}

static CGN_RC spot_ref(struct ledger *l, uint64_t digest, unsigned group, enum block_tier tier)
{
	struct ledger_spot *s = spot_at(l, spot_seek(l, digest));
	if (!s->used) {
		s->used = true;
		s->digest = digest;
		l->n_spots++;
	}
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

/* Close the hole at |i|: each follower moves there unless its home lies behind the hole. */
static void spot_remove(struct ledger *l, size_t i)
{
	size_t mask = l->cap_spots - 1;
	for (size_t j = (i + 1) & mask; spot_at(l, j)->used; j = (j + 1) & mask) {
		size_t home = spot_home(l, spot_at(l, j)->digest);
		if (((j - home) & mask) >= ((j - i) & mask)) {
			memcpy(spot_at(l, i), spot_at(l, j), l->spot_bytes);
			i = j;
		}
	}
	memset(spot_at(l, i), 0, l->spot_bytes);
	l->n_spots--;
}

static void spot_unref(struct ledger *l, uint64_t digest, unsigned group, enum block_tier tier)
{
	size_t i = spot_seek(l, digest);
	struct ledger_spot *s = spot_at(l, i);
	uint16_t *refs = &s->refs[group * BLOCK_TIERS + tier];
	CGN_MUST(s->used && *refs > 0);
	if (*refs < UINT16_MAX)
		--*refs;
	cgn_rc rc = spot_judge(l, s); /* Dropping a reference adds nothing, so this does not fail. */
	CGN_MUST(cgn_ok(rc));
	if (spot_empty(l, s))
		spot_remove(l, i);
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
	if (group >= l->groups_cap && !spots_rebuild(l, l->cap_spots > 0 ? l->cap_spots : MIN_CAP, group + 1))
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

static size_t block_home(const struct ledger *l, unsigned group, unsigned shape, uint64_t hash)
{
	return (size_t)mix64(hash + MIX_GOLDEN * (group * LEDGER_MAX_SHAPES + shape)) & (l->cap_blocks - 1);
}

static size_t block_seek(const struct ledger *l, unsigned group, unsigned shape, uint64_t hash)
{
	size_t i = block_home(l, group, shape, hash);
	const struct ledger_block *b = &l->blocks[i];
	while (in_use(b) && !(b->hash == hash && b->group == group && b->shape == shape)) {
		i = (i + 1) & (l->cap_blocks - 1);
		b = &l->blocks[i];
	}
	return i;
}

struct ledger_block *ledger_find(const struct ledger *l, unsigned group, unsigned shape, uint64_t hash)
{
	if (l->cap_blocks == 0)
		return NULL;
	struct ledger_block *b = &l->blocks[block_seek(l, group, shape, hash)];
	return in_use(b) ? b : NULL;
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
	size_t cap = l->cap_blocks > 0 ? l->cap_blocks : MIN_CAP;
	while ((l->n_blocks + 1) * 4 > cap * 3)
		cap *= 2;
	if (cap == l->cap_blocks)
		return true;
	struct ledger bigger = *l;
	bigger.cap_blocks = cap;
	bigger.blocks = calloc(cap, sizeof *bigger.blocks);
	if (bigger.blocks == NULL)
		return false;
	for (size_t i = 0; i < l->cap_blocks; i++) {
		const struct ledger_block *b = &l->blocks[i];
		if (in_use(b))
			bigger.blocks[block_seek(&bigger, b->group, b->shape, b->hash)] = *b;
	}
	free(l->blocks);
	*l = bigger;
	return true;
}

static void block_fini(const struct ledger *l, struct ledger_block *b)
{
	if (b->earlier != NULL && ledger_pages(l, b->shape) == 0) /* An empty slot is all zeros. */
		free(b->earlier);
}

static void block_remove(struct ledger *l, size_t i)
{
	size_t mask = l->cap_blocks - 1;
	block_fini(l, &l->blocks[i]);
	for (size_t j = (i + 1) & mask; in_use(&l->blocks[j]); j = (j + 1) & mask) {
		const struct ledger_block *b = &l->blocks[j];
		size_t home = block_home(l, b->group, b->shape, b->hash);
		if (((j - home) & mask) >= ((j - i) & mask)) {
			l->blocks[i] = *b;
			i = j;
		}
	}
	l->blocks[i] = (struct ledger_block){0};
	l->n_blocks--;
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
	uint64_t *v = malloc((split - 1) * sizeof *v);
	for (uint32_t i = 0; v != NULL && i + 1 < split; i++)
		v[i] = digest_short(&digests[i]);
	return v;
}

/* When the holdings fail half way, blocks and references still agree; the caller demotes the source. */
static CGN_RC block_insert(struct ledger *l, const struct ledger_block *fresh, enum block_tier tier)
{
	struct ledger_block *b = &l->blocks[block_seek(l, fresh->group, fresh->shape, fresh->hash)];
	*b = *fresh;
	b->refs[tier] = 1;
	l->n_blocks++;
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
	if (split > 1 && (fresh.earlier = copy_earlier(digests, split)) == NULL)
		return CGN_RC_OF(CGN_NO_MEMORY);
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
		block_remove(l, (size_t)(b - l->blocks));
}

void ledger_clear(struct ledger *l)
{
	for (size_t i = 0; i < l->cap_spots; i++)
		for (unsigned t = 0; t < BLOCK_TIERS; t++)
			if (spot_at(l, i)->used && (spot_at(l, i)->told & BLOCK_TIER_BIT(t)) != 0)
				CGN_MUST(holdings_drop(l->holdings, spot_at(l, i)->digest,
					(enum block_tier)t));
	for (size_t i = 0; i < l->cap_blocks; i++)
		block_fini(l, &l->blocks[i]);
	free(l->blocks);
	free(l->spots);
	ledger_init(l, l->holdings, l->max_blocks);
}
