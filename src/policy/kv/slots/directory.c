/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/kv/slots/directory.h"

#include "base/table/table.h"

#include <stdlib.h>
#include <string.h>

#define SLOT_DIRECTORY_TAG 0x5e1f0001U
#define NO_TIER            BLOCK_TIERS

struct state {
	uint64_t id;
	struct slot_entry entry; /* chain NULL: the entry is not known */
	uint64_t *copies;        /* The entry's sums and chain */
	uint8_t *piece;          /* Mask of tiers, for each segment */
	uint32_t n_piece;
	enum block_tier tier;
};

struct slot_directory {
	uint32_t tag;
	slot_directory_changed held;
	void *user;
	struct state *all; /* Without holes: the last one takes the place of one that goes */
	size_t cap, n_whole;
	struct table by_id, by_block; /* Indices of |all|; by_block: under each block of the chain */
};

struct slot_directory *slot_directory_new(slot_directory_changed held, void *user)
{
	struct slot_directory *s = CGN_NEW(struct slot_directory);
	s->tag = SLOT_DIRECTORY_TAG;
	s->held = held;
	s->user = user;
	return s;
}

/* ---- states ---- */

static struct state *state_find(const struct slot_directory *s, uint64_t id)
{
	uint32_t i = table_find(&s->by_id, id, (const uint64_t *)(const void *)s->all, sizeof *s->all);
	return i != TABLE_NONE ? &s->all[i] : NULL;
}

/* Return the state of |id|, which is new if there was none; NULL: the directory is full. */
static struct state *state_get(struct slot_directory *s, uint64_t id)
{
	struct state *t = state_find(s, id);
	if (t != NULL || s->by_id.n == SLOT_DIRECTORY_MAX_STATES)
		return t;
	if (s->by_id.n == s->cap) {
		s->cap = s->cap > 0 ? 2 * s->cap : 64;
		s->all = CGN_GROWN(s->all, s->cap);
	}
	t = &s->all[s->by_id.n];
	*t = (struct state){.id = id, .tier = NO_TIER};
	table_put(&s->by_id, id, (uint32_t)(t - s->all));
	return t;
}

static void directory_report(struct slot_directory *s, const struct state *t, bool held)
{
	for (size_t i = 0; s->held != NULL && i < t->entry.n; i++)
		s->held(s->user, t->entry.chain[i], t->tier, held);
}

static enum block_tier tier_of(const struct state *t)
{
	enum block_tier tier = BLOCK_RAM;
	uint32_t pieces = t->entry.chain != NULL ? slot_entry_pieces(&t->entry) : 0;
	if (pieces == 0 || t->n_piece <= pieces)
		return NO_TIER;
	for (uint32_t i = 0; i <= pieces; i++) {
		if (t->piece[i] == 0)
			return NO_TIER;
		if (i > 0 && (t->piece[i] & BLOCK_TIER_BIT(BLOCK_RAM)) == 0)
			tier = BLOCK_SSD;
	}
	return tier;
}

/* Set the tier of the whole state, and report a change. */
static void state_settle(struct slot_directory *s, struct state *t)
{
	enum block_tier now = tier_of(t);
	if (now == t->tier)
		return;
	if (t->tier != NO_TIER)
		directory_report(s, t, false);
	s->n_whole += (size_t)(now != NO_TIER) - (size_t)(t->tier != NO_TIER);
	t->tier = now;
	if (now != NO_TIER)
		directory_report(s, t, true);
}

static void entry_forget(struct slot_directory *s, struct state *t)
{
	if (t->tier != NO_TIER) {
		directory_report(s, t, false);
		s->n_whole--;
	}
	t->tier = NO_TIER;
	for (size_t i = 0; i < t->entry.n; i++)
		table_drop(&s->by_block, t->entry.chain[i], (uint32_t)(t - s->all));
	free(t->copies);
	t->copies = NULL;
	t->entry = (struct slot_entry){.chain = NULL};
}

static void state_remove(struct slot_directory *s, struct state *t)
{
	uint32_t i = (uint32_t)(t - s->all), end = s->by_id.n - 1;
	const struct state *last = &s->all[end];
	entry_forget(s, t);
	free(t->piece);
	table_drop(&s->by_id, t->id, i);
	if (t == last)
		return;
	table_replace(&s->by_id, last->id, end, i);
	for (size_t k = 0; k < last->entry.n; k++)
		table_replace(&s->by_block, last->entry.chain[k], end, i);
	*t = *last;
}

void slot_directory_clear(struct slot_directory *s)
{
	CGN_LIVE(s, SLOT_DIRECTORY_TAG);
	while (s->by_id.n > 0)
		state_remove(s, &s->all[s->by_id.n - 1]);
}

void slot_directory_free(struct slot_directory **take)
{
	struct slot_directory *s = CGN_TAKE_LIVE(take, SLOT_DIRECTORY_TAG);
	if (s == NULL)
		return;
	s->held = NULL;
	slot_directory_clear(s);
	table_fini(&s->by_id);
	table_fini(&s->by_block);
	free(s->all);
	s->tag = 0;
	free(s);
}

/* ---- the store's reports ---- */

static void piece_room(struct state *t, uint32_t segment)
{
	if (segment < t->n_piece)
		return;
	t->piece = CGN_GROWN(t->piece, segment + 1);
	memset(t->piece + t->n_piece, 0, segment + 1 - t->n_piece);
	t->n_piece = segment + 1;
}

static void drop_if_gone(struct slot_directory *s, uint64_t id)
{
	struct state *t = state_find(s, id);
	for (uint32_t i = 0; t != NULL && i < t->n_piece; i++)
		if (t->piece[i] != 0)
			return;
	if (t != NULL)
		state_remove(s, t);
}

bool slot_directory_piece_told(struct slot_directory *s, uint64_t id, uint32_t segment, unsigned tiers)
{
	CGN_LIVE(s, SLOT_DIRECTORY_TAG);
	if (segment > SLOT_ENTRY_MAX_PIECES)
		return false;
	tiers &= BLOCK_TIER_BIT(BLOCK_RAM) | BLOCK_TIER_BIT(BLOCK_SSD);
	struct state *t = tiers != 0 ? state_get(s, id) : state_find(s, id);
	if (t == NULL)
		return false;
	piece_room(t, segment);
	t->piece[segment] = (uint8_t)tiers;
	state_settle(s, t);
	/* The entry may be another one when it returns: other engines with the same fingerprint save under
	 * the same key. */
	if (segment == 0 && tiers == 0)
		entry_forget(s, t);
	bool wanted = segment == 0 && tiers != 0 && t->entry.chain == NULL;
	drop_if_gone(s, id);
	return wanted;
}

/* The copies of sums and chain share one allocation. */
static CGN_RC entry_take(struct slot_directory *s, struct state *t, const struct slot_entry *c,
	struct cgn_err *err)
{
	size_t pieces = slot_entry_pieces(c);
	if (s->by_block.n + c->n > SLOT_DIRECTORY_MAX_BLOCKS)
		return CGN_FAIL(err, TOO_LARGE, "the states that the store has are of more than %zu blocks",
			SLOT_DIRECTORY_MAX_BLOCKS);
	t->copies = malloc((c->n + pieces) * sizeof *t->copies);
	if (t->copies == NULL || !table_reserve(&s->by_block, s->by_block.n + c->n)) {
		free(t->copies);
		t->copies = NULL;
		return CGN_FAIL(err, NO_MEMORY, "no memory for a slot entry");
	}
	uint64_t *chain = t->copies + pieces;
	memcpy(t->copies, c->sums, pieces * sizeof *t->copies);
	memcpy(chain, c->chain, c->n * sizeof *chain);
	t->entry = *c;
	t->entry.sums = t->copies;
	t->entry.chain = chain;
	for (size_t i = 0; i < c->n; i++)
		table_put(&s->by_block, chain[i], (uint32_t)(t - s->all));
	return CGN_OK;
}

CGN_RC slot_directory_add(struct slot_directory *s, const struct slot_entry *c, struct cgn_err *err)
{
	CGN_LIVE(s, SLOT_DIRECTORY_TAG);
	CGN_MUST(c->n > 0);
	struct state *t = state_get(s, slot_entry_id(c));
	if (t == NULL)
		return CGN_FAIL(err, TOO_LARGE, "the store has more than %d states",
			SLOT_DIRECTORY_MAX_STATES);
	entry_forget(s, t);
	cgn_rc rc = entry_take(s, t, c, err);
	state_settle(s, t);
	drop_if_gone(s, slot_entry_id(c));
	return rc;
}

size_t slot_directory_states(const struct slot_directory *s)
{
	CGN_LIVE(s, SLOT_DIRECTORY_TAG);
	return s->n_whole;
}

size_t slot_directory_blocks(const struct slot_directory *s)
{
	CGN_LIVE(s, SLOT_DIRECTORY_TAG);
	return s->by_block.n;
}

/* ---- finding ---- */

static bool is_better(const struct state *t, const struct state *than)
{
	if (than == NULL || t->tier != than->tier)
		return than == NULL || t->tier < than->tier;
	return slot_entry_bytes(&t->entry) < slot_entry_bytes(&than->entry);
}

/* Return the best state whose block |at| is that of |chain|. */
static const struct state *best_with(const struct slot_directory *s, const uint64_t *chain, size_t at)
{
	const struct state *best = NULL;
	table_each (i, &s->by_block, chain[at]) {
		const struct state *t = &s->all[i.number];
		if (t->entry.n > at && t->entry.chain[at] == chain[at] && t->tier != NO_TIER &&
			is_better(t, best))
			best = t;
	}
	return best;
}

/* A state that has a block has all blocks before it, so the number of common blocks is found by bisection. */
struct slot_directory_find slot_directory_find(const struct slot_directory *s, const uint64_t *chain,
	size_t n)
{
	struct slot_directory_find f = {.common = 0};
	const struct state *best = NULL;
	size_t low = 0, high = n;
	CGN_LIVE(s, SLOT_DIRECTORY_TAG);
	while (low < high) {
		size_t mid = low + (high - low + 1) / 2;
		const struct state *t = best_with(s, chain, mid - 1);
		if (t != NULL)
			best = t;
		if (t != NULL)
			low = mid;
		else
			high = mid - 1;
	}
	if (best != NULL)
		f = (struct slot_directory_find){.entry = best->entry,
			.tier = best->tier,
			.common = (uint32_t)low};
	return f;
}

bool slot_directory_get(const struct slot_directory *s, uint64_t id, struct slot_directory_find *out)
{
	CGN_LIVE(s, SLOT_DIRECTORY_TAG);
	const struct state *t = state_find(s, id);
	if (t == NULL || t->entry.chain == NULL || t->tier == NO_TIER)
		return false;
	*out = (struct slot_directory_find){.entry = t->entry,
		.tier = t->tier,
		.common = (uint32_t)t->entry.n};
	return true;
}

bool slot_directory_find_prefix(const struct slot_directory *s, const struct slot_entry *c,
	struct slot_directory_find *out)
{
	CGN_LIVE(s, SLOT_DIRECTORY_TAG);
	for (size_t i = c->n - 1; i > 0; i--) {
		const struct state *t = state_find(s, c->chain[i - 1]);
		if (t == NULL || t->entry.n != i || t->tier == NO_TIER)
			continue;
		*out = (struct slot_directory_find){.entry = t->entry,
			.tier = t->tier,
			.common = (uint32_t)i};
		return true;
	}
	return false;
}
