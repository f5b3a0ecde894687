/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/kv/slots/directory.h"

#include "base/mix/mix.h"

#include <stdlib.h>
#include <string.h>

#define SLOT_DIRECTORY_TAG 0x5e1f0001U
#define NO_TIER            BLOCK_TIERS

struct state;
struct block {
	uint64_t digest;
	struct state *state;
	struct block *next; /* Next in the bucket */
};

struct state {
	uint64_t id;
	struct state *next;      /* Next in the bucket */
	struct slot_entry entry; /* chain NULL: the entry is not known */
	struct block *blocks;
	uint8_t *piece; /* Mask of tiers, for each segment */
	uint32_t n_piece;
	enum block_tier tier;
};

struct slot_directory {
	uint32_t tag;
	slot_directory_changed held;
	void *user;
	struct state **by_id;
	struct block **by_block;
	size_t id_mask, block_mask, n_states, n_whole, n_blocks;
};

static size_t bucket_of(uint64_t digest, size_t mask)
{
	return (size_t)(mix_golden(digest) >> 20) & mask;
}

struct slot_directory *slot_directory_new(slot_directory_changed held, void *user)
{
	struct slot_directory *s = CGN_NEW(struct slot_directory);
	const size_t ids = 4096, blocks = 65536;
	*s = (struct slot_directory){.tag = SLOT_DIRECTORY_TAG,
		.held = held,
		.user = user,
		.by_id = CGN_NEW_ARRAY(struct state *, ids),
		.by_block = CGN_NEW_ARRAY(struct block *, blocks),
		.id_mask = ids - 1,
		.block_mask = blocks - 1};
	return s;
}

/* ---- states ---- */

static struct state **state_place(const struct slot_directory *s, uint64_t id)
{
	struct state **at = &s->by_id[bucket_of(id, s->id_mask)];
	while (*at != NULL && (*at)->id != id)
		at = &(*at)->next;
	return at;
}

static struct state *state_get(struct slot_directory *s, uint64_t id)
{
	struct state **at = state_place(s, id);
	if (*at != NULL || s->n_states == SLOT_DIRECTORY_MAX_STATES)
		return *at;
	struct state *t = CGN_NEW(struct state);
	t->id = id;
	t->tier = NO_TIER;
	*at = t;
	s->n_states++;
	return t;
}

static void state_free(struct state *t)
{
	free(t->blocks);
	free(t->piece);
	free(t);
}

/* ---- blocks ---- */

/* Double the buckets once there are more blocks than buckets. Without memory the lists grow longer
 * instead. */
static void blocks_grow(struct slot_directory *s)
{
	size_t n = 2 * (s->block_mask + 1);
	struct block **wide = s->n_blocks > s->block_mask ? calloc(n, sizeof(void *)) : NULL;
	if (wide == NULL)
		return;
	for (size_t i = 0; i <= s->block_mask; i++)
		for (struct block *b = s->by_block[i], *next; b != NULL; b = next) {
			struct block **to = &wide[bucket_of(b->digest, n - 1)];
			next = b->next;
			b->next = *to;
			*to = b;
		}
	free(s->by_block);
	s->by_block = wide;
	s->block_mask = n - 1;
}

static void block_drop(struct slot_directory *s, struct block *b)
{
	struct block **at = &s->by_block[bucket_of(b->digest, s->block_mask)];
	while (*at != b)
		at = &(*at)->next;
	*at = b->next;
	s->n_blocks--;
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
		block_drop(s, &t->blocks[i]);
	free(t->blocks);
	t->blocks = NULL;
	t->entry = (struct slot_entry){.chain = NULL};
}

void slot_directory_clear(struct slot_directory *s)
{
	CGN_LIVE(s, SLOT_DIRECTORY_TAG);
	for (size_t i = 0; i <= s->id_mask; i++)
		for (struct state *t; (t = s->by_id[i]) != NULL;) {
			entry_forget(s, t);
			s->by_id[i] = t->next;
			state_free(t);
		}
	s->n_states = 0;
}

void slot_directory_free(struct slot_directory **take)
{
	struct slot_directory *s = *take;
	*take = NULL;
	if (s == NULL)
		return;
	CGN_LIVE(s, SLOT_DIRECTORY_TAG);
	s->held = NULL;
	if (s->by_id != NULL && s->by_block != NULL)
		slot_directory_clear(s);
	free(s->by_id);
	free(s->by_block);
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
	struct state **at = state_place(s, id), *t = *at;
	for (uint32_t i = 0; t != NULL && i < t->n_piece; i++)
		if (t->piece[i] != 0)
			return;
	if (t == NULL)
		return;
	entry_forget(s, t);
	*at = t->next;
	s->n_states--;
	state_free(t);
}

bool slot_directory_piece_told(struct slot_directory *s, uint64_t id, uint32_t segment, unsigned tiers)
{
	CGN_LIVE(s, SLOT_DIRECTORY_TAG);
	if (segment > SLOT_ENTRY_MAX_PIECES)
		return false;
	tiers &= BLOCK_TIER_BIT(BLOCK_RAM) | BLOCK_TIER_BIT(BLOCK_SSD);
	struct state *t = tiers != 0 ? state_get(s, id) : *state_place(s, id);
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

/* Blocks and the copies of sums and chain share one allocation. */
static CGN_RC entry_take(struct slot_directory *s, struct state *t, const struct slot_entry *c,
	struct cgn_err *err)
{
	size_t pieces = slot_entry_pieces(c);
	if (s->n_blocks + c->n > SLOT_DIRECTORY_MAX_BLOCKS)
		return CGN_FAIL(err, TOO_LARGE, "the states that the store has are of more than %zu blocks",
			SLOT_DIRECTORY_MAX_BLOCKS);
	t->blocks = malloc(c->n * sizeof *t->blocks + (c->n + pieces) * sizeof(uint64_t));
	if (t->blocks == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for a slot entry");
	uint64_t *sums = (uint64_t *)(void *)(t->blocks + c->n), *chain = sums + pieces;
	memcpy(sums, c->sums, pieces * sizeof *sums);
	memcpy(chain, c->chain, c->n * sizeof *chain);
	t->entry = *c;
	t->entry.sums = sums;
	t->entry.chain = chain;
	for (size_t i = 0; i < c->n; i++) {
		struct block **to = &s->by_block[bucket_of(chain[i], s->block_mask)];
		t->blocks[i] = (struct block){.digest = chain[i], .state = t, .next = *to};
		*to = &t->blocks[i];
	}
	s->n_blocks += c->n;
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
	blocks_grow(s);
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
	return s->n_blocks;
}

/* ---- finding ---- */

static bool is_better(const struct state *t, const struct state *than)
{
	if (than == NULL || t->tier != than->tier)
		return than == NULL || t->tier < than->tier;
	return slot_entry_bytes(&t->entry) < slot_entry_bytes(&than->entry);
}

static const struct state *best_with(const struct slot_directory *s, uint64_t digest)
{
	const struct state *best = NULL;
	for (const struct block *b = s->by_block[bucket_of(digest, s->block_mask)]; b != NULL; b = b->next)
		if (b->digest == digest && b->state->tier != NO_TIER && is_better(b->state, best))
			best = b->state;
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
		const struct state *t = best_with(s, chain[mid - 1]);
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
	const struct state *t = *state_place(s, id);
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
		const struct state *t = *state_place(s, c->chain[i - 1]);
		if (t == NULL || t->entry.n != i || t->tier == NO_TIER)
			continue;
		*out = (struct slot_directory_find){.entry = t->entry,
			.tier = t->tier,
			.common = (uint32_t)i};
		return true;
	}
	return false;
}
