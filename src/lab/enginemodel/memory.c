/* SPDX-License-Identifier: Apache-2.0 */
#include "lab/enginemodel/memory.h"

#include <stdlib.h>

#define TIERS_TAG 0x51b71e25U

struct level {
	struct enginemodel_memory *t;
	enum enginemodel_tier tier;
	struct enginemodel_blocks *blocks; /* NULL: there is no such tier. */
};

struct enginemodel_memory {
	uint32_t tag;
	struct enginemodel_memory_cfg cfg;
	struct level at[ENGINEMODEL_TIER_COUNT];
};

const char *enginemodel_tier_name(enum enginemodel_tier t)
{
	static const char *const names[ENGINEMODEL_TIER_COUNT] = {"GPU", "CPU", "STORAGE"};
	CGN_MUST(t < ENGINEMODEL_TIER_COUNT);
	return names[t];
}

static uint32_t note_bytes(const struct enginemodel_memory_cfg *cfg)
{
	switch (cfg->notes) {
	case ENGINEMODEL_NOTE_NONE:
		break;
	case ENGINEMODEL_NOTE_DIGEST:
		return sizeof(uint64_t);
	case ENGINEMODEL_NOTE_FULL:
		return (uint32_t)((sizeof(struct enginemodel_note) + cfg->block_tokens * sizeof(uint32_t) +
					  7) /
			8 * 8);
	}
	return 0;
}

static void note_copy(const struct enginemodel_memory *t, void *to, const void *from)
{
	uint32_t n = note_bytes(&t->cfg);
	if (n > 0)
		memcpy(to, from, n);
	if (t->cfg.notes == ENGINEMODEL_NOTE_FULL)
		(void)enginemodel_salt_ref(((struct enginemodel_note *)to)->salt);
}

static void note_drop(const struct enginemodel_memory *t, void *at)
{
	if (t->cfg.notes == ENGINEMODEL_NOTE_FULL)
		enginemodel_salt_unref(&((struct enginemodel_note *)at)->salt);
}

static void note_write(const struct enginemodel_memory *t, void *at, const struct enginemodel_run *run,
	uint32_t i)
{
	struct enginemodel_note *note = at;
	const struct enginemodel_contents *c = run->contents;
	if (t->cfg.notes == ENGINEMODEL_NOTE_NONE || c == NULL)
		return;
	note->digest = c->digests[i];
	if (t->cfg.notes == ENGINEMODEL_NOTE_DIGEST)
		return;
	note->first = i == 0;
	note->parent = i > 0 ? run->hashes[i - 1] : 0;
	note->model = c->model;
	note->salt = enginemodel_salt_ref(c->salt);
	memcpy(note->tokens, c->tokens + (size_t)i * t->cfg.block_tokens,
		t->cfg.block_tokens * sizeof *note->tokens);
}

/* Make |hash| the most recently used block of |l|. True when it was not there before. */
static bool level_keep(struct level *l, uint64_t hash, const void *note)
{
	uint32_t block = enginemodel_blocks_find(l->blocks, hash);
	bool known = block != ENGINEMODEL_BLOCK_NONE;
	if (!known)
		block = enginemodel_blocks_take(l->blocks);
	if (block == ENGINEMODEL_BLOCK_NONE)
		return false; /* Every block of the level is being read. */
	if (!known) {
		note_copy(l->t, enginemodel_blocks_note(l->blocks, block), note);
		CGN_MUST(enginemodel_blocks_publish(l->blocks, block, hash));
	}
	enginemodel_blocks_release(l->blocks, block);
	return !known;
}

/* Move the evicted block of |arg|, a level, to the next lower tier if there is one. */
static void on_evict(void *arg, uint64_t hash, void *note)
{
	struct level *l = arg;
	const struct enginemodel_listener *to = &l->t->cfg.listener;
	enum enginemodel_tier below = l->tier + 1;
	while (below < ENGINEMODEL_TIER_COUNT && l->t->at[below].blocks == NULL)
		below++;
	if (below < ENGINEMODEL_TIER_COUNT && level_keep(&l->t->at[below], hash, note) && to->moved != NULL)
		to->moved(to->arg, below, hash, l->t->cfg.notes == ENGINEMODEL_NOTE_FULL ? note : NULL);
	note_drop(l->t, note);
	if (to->removed != NULL)
		to->removed(to->arg, l->tier, hash);
}

CGN_RC enginemodel_memory_new(const struct enginemodel_memory_cfg *cfg, struct enginemodel_memory **out)
{
	CGN_MUST(cfg->blocks[ENGINEMODEL_TIER_GPU] > 0);
	struct enginemodel_memory *t = CGN_NEW(struct enginemodel_memory);
	t->tag = TIERS_TAG;
	t->cfg = *cfg;
	for (enum enginemodel_tier i = 0; i < ENGINEMODEL_TIER_COUNT; i++) {
		t->at[i] = (struct level){.t = t, .tier = i};
		const struct enginemodel_blocks_cfg b = {.n = cfg->blocks[i],
			.note_bytes = note_bytes(cfg),
			.evict = on_evict,
			.arg = &t->at[i]};
		if (b.n > 0 && !cgn_ok(enginemodel_blocks_new(&b, &t->at[i].blocks))) {
			enginemodel_memory_free(&t);
			return CGN_RC_OF(CGN_NO_MEMORY);
		}
	}
	*out = t;
	return CGN_OK;
}

static void drop_one(void *arg, uint64_t hash, void *note)
{
	(void)hash;
	note_drop(arg, note);
}

static void memory_drop_all(struct enginemodel_memory *t)
{
	for (enum enginemodel_tier i = 0; i < ENGINEMODEL_TIER_COUNT; i++) {
		if (t->at[i].blocks == NULL)
			continue;
		if (t->cfg.notes == ENGINEMODEL_NOTE_FULL)
			enginemodel_blocks_each(t->at[i].blocks, drop_one, t);
		enginemodel_blocks_forget_all(t->at[i].blocks);
	}
}

void enginemodel_memory_free(struct enginemodel_memory **take)
{
	struct enginemodel_memory *t = CGN_TAKE_LIVE(take, TIERS_TAG);
	if (t == NULL)
		return;
	memory_drop_all(t);
	for (enum enginemodel_tier i = 0; i < ENGINEMODEL_TIER_COUNT; i++)
		enginemodel_blocks_free(&t->at[i].blocks);
	t->tag = 0;
	free(t);
}

struct enginemodel_blocks *enginemodel_memory_gpu(struct enginemodel_memory *t)
{
	CGN_LIVE(t, TIERS_TAG);
	return t->at[ENGINEMODEL_TIER_GPU].blocks;
}

static bool is_below(const struct enginemodel_memory *t, uint64_t hash)
{
	for (enum enginemodel_tier i = ENGINEMODEL_TIER_CPU; i < ENGINEMODEL_TIER_COUNT; i++) {
		if (t->at[i].blocks != NULL && enginemodel_blocks_has(t->at[i].blocks, hash))
			return true;
	}
	return false;
}

struct enginemodel_match enginemodel_memory_match(const struct enginemodel_memory *t, const uint64_t *hashes,
	uint32_t n)
{
	CGN_LIVE(t, TIERS_TAG);
	const struct enginemodel_blocks *gpu = t->at[ENGINEMODEL_TIER_GPU].blocks;
	struct enginemodel_match m = {0};
	for (; m.found < n; m.found++) {
		bool here = enginemodel_blocks_has(gpu, hashes[m.found]);
		if (!here && !is_below(t, hashes[m.found]))
			break;
		m.on_gpu += here;
		m.unused += here && enginemodel_blocks_idle(gpu, hashes[m.found]);
	}
	return m;
}

/* Add a user to |hash| in the highest tier below the GPU that has it. */
static uint32_t hold_below(struct enginemodel_memory *t, uint64_t hash, enum enginemodel_tier *where)
{
	for (*where = ENGINEMODEL_TIER_CPU; *where < ENGINEMODEL_TIER_COUNT; ++*where) {
		struct enginemodel_blocks *b = t->at[*where].blocks;
		uint32_t block = b != NULL ? enginemodel_blocks_find(b, hash) : ENGINEMODEL_BLOCK_NONE;
		if (block != ENGINEMODEL_BLOCK_NONE)
			return block;
	}
	cgn_must_failed("a matched block is somewhere", CGN_HERE);
}

/* Restore the blocks of |run| that are ENGINEMODEL_BLOCK_NONE. All of them get a user first, because making
 * room for one block moves another block down, which could evict a block of the run. */
static void fetch_below(struct enginemodel_memory *t, const struct enginemodel_run *run, uint32_t *blocks,
	uint32_t restored[ENGINEMODEL_TIER_COUNT])
{
	enum enginemodel_tier where;
	for (uint32_t i = 0; i < run->n; i++) {
		if (blocks[i] == ENGINEMODEL_BLOCK_NONE)
			(void)hold_below(t, run->hashes[i], &where);
	}
	for (uint32_t i = 0; i < run->n; i++) {
		if (blocks[i] != ENGINEMODEL_BLOCK_NONE)
			continue;
		uint32_t below = hold_below(t, run->hashes[i], &where);
		blocks[i] = enginemodel_blocks_take(enginemodel_memory_gpu(t));
		CGN_MUST(blocks[i] != ENGINEMODEL_BLOCK_NONE);
		enginemodel_memory_publish(t, &(struct enginemodel_run){run->hashes, run->contents, i, 1},
			&blocks[i]);
		enginemodel_blocks_release(t->at[where].blocks, below);
		enginemodel_blocks_release(t->at[where].blocks, below);
		restored[where]++;
	}
}

void enginemodel_memory_fetch(struct enginemodel_memory *t, const struct enginemodel_run *run,
	uint32_t *blocks, uint32_t restored[ENGINEMODEL_TIER_COUNT])
{
	CGN_LIVE(t, TIERS_TAG);
	CGN_MUST(run->from == 0);
	bool all = true;
	/* Take the blocks on the GPU first, so that making room for the others does not evict them. */
	for (uint32_t i = 0; i < run->n; i++) {
		blocks[i] = enginemodel_blocks_find(t->at[ENGINEMODEL_TIER_GPU].blocks, run->hashes[i]);
		all &= blocks[i] != ENGINEMODEL_BLOCK_NONE;
	}
	if (!all)
		fetch_below(t, run, blocks, restored);
}

void enginemodel_memory_publish(struct enginemodel_memory *t, const struct enginemodel_run *run,
	const uint32_t *blocks)
{
	CGN_LIVE(t, TIERS_TAG);
	struct enginemodel_blocks *gpu = t->at[ENGINEMODEL_TIER_GPU].blocks;
	const struct enginemodel_listener *to = &t->cfg.listener;
	struct enginemodel_run fresh = {run->hashes, run->contents, run->from, 0};
	if (t->cfg.keeps_none)
		return;
	for (uint32_t k = 0; k <= run->n; k++) {
		uint32_t i = run->from + k;
		bool known = k < run->n && enginemodel_blocks_publish(gpu, blocks[k], run->hashes[i]);
		if (known) {
			note_write(t, enginemodel_blocks_note(gpu, blocks[k]), run, i);
			fresh.n++;
			continue;
		}
		if (fresh.n > 0 && to->stored != NULL)
			to->stored(to->arg, &fresh);
		fresh.from = i + 1;
		fresh.n = 0;
	}
}

void enginemodel_memory_clear(struct enginemodel_memory *t, bool silently)
{
	CGN_LIVE(t, TIERS_TAG);
	memory_drop_all(t);
	if (!silently && t->cfg.listener.cleared != NULL)
		t->cfg.listener.cleared(t->cfg.listener.arg);
}

uint32_t enginemodel_memory_known(const struct enginemodel_memory *t, enum enginemodel_tier tier)
{
	CGN_LIVE(t, TIERS_TAG);
	return t->at[tier].blocks != NULL ? enginemodel_blocks_known(t->at[tier].blocks) : 0;
}

struct each_digest {
	void (*fn)(void *arg, uint64_t digest);
	void *arg;
};

static void tell_digest(void *arg, uint64_t hash, void *note)
{
	(void)hash;
	const struct each_digest *e = arg;
	e->fn(e->arg, ((const struct enginemodel_note *)note)->digest);
}

void enginemodel_memory_digests(struct enginemodel_memory *t, enum enginemodel_tier tier,
	void (*fn)(void *arg, uint64_t digest), void *arg)
{
	CGN_LIVE(t, TIERS_TAG);
	CGN_MUST(t->cfg.notes != ENGINEMODEL_NOTE_NONE);
	if (t->at[tier].blocks != NULL)
		enginemodel_blocks_each(t->at[tier].blocks, tell_digest, &(struct each_digest){fn, arg});
}

bool enginemodel_memory_sound(const struct enginemodel_memory *t)
{
	CGN_LIVE(t, TIERS_TAG);
	bool sound = true;
	for (enum enginemodel_tier i = 0; i < ENGINEMODEL_TIER_COUNT; i++)
		sound &= t->at[i].blocks == NULL || enginemodel_blocks_sound(t->at[i].blocks);
	for (enum enginemodel_tier i = ENGINEMODEL_TIER_CPU; i < ENGINEMODEL_TIER_COUNT;
		i++) /* Remove the users of the blocks below. */
		sound &= t->at[i].blocks == NULL || enginemodel_blocks_used(t->at[i].blocks) == 0;
	return sound;
}
