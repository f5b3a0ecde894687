/* SPDX-License-Identifier: Apache-2.0 */
#include "lab/enginemodel/tiers.h"

#include <stdlib.h>

#define TIERS_TAG 0x51b71e25U

struct level {
	struct em_tiers *t;
	enum em_tier tier;
	struct em_blocks *blocks; /* NULL: there is no such tier */
};

struct em_tiers {
	uint32_t tag;
	struct em_tiers_cfg cfg;
	struct level at[EM_TIER_COUNT];
};

const char *em_tier_name(enum em_tier t)
{
	static const char *const names[EM_TIER_COUNT] = {"GPU", "CPU", "STORAGE"};
	CGN_MUST(t < EM_TIER_COUNT);
	return names[t];
}

static uint32_t note_bytes(const struct em_tiers_cfg *cfg)
{
	switch (cfg->notes) {
	case EM_NOTE_NONE:
		break;
	case EM_NOTE_DIGEST:
		return sizeof(uint64_t);
	case EM_NOTE_FULL:
		return (uint32_t)((sizeof(struct em_note) + cfg->block_tokens * sizeof(uint32_t) + 7) / 8 *
			8);
	}
	return 0;
}

static void note_copy(const struct em_tiers *t, void *to, const void *from)
{
	uint32_t n = note_bytes(&t->cfg);
	if (n > 0)
		memcpy(to, from, n);
	if (t->cfg.notes == EM_NOTE_FULL)
		(void)em_salt_ref(((struct em_note *)to)->salt);
}

static void note_drop(const struct em_tiers *t, void *at)
{
	if (t->cfg.notes == EM_NOTE_FULL)
		em_salt_unref(&((struct em_note *)at)->salt);
}

static void note_write(const struct em_tiers *t, void *at, const struct em_run *run, uint32_t i)
{
	struct em_note *note = at;
	const struct em_contents *c = run->contents;
	if (t->cfg.notes == EM_NOTE_NONE || c == NULL)
		return;
	note->digest = c->digests[i];
	if (t->cfg.notes == EM_NOTE_DIGEST)
		return;
	note->first = i == 0;
	note->parent = i > 0 ? run->hashes[i - 1] : 0;
	note->model = c->model;
	note->salt = em_salt_ref(c->salt);
	memcpy(note->tokens, c->tokens + (size_t)i * t->cfg.block_tokens,
		t->cfg.block_tokens * sizeof *note->tokens);
}

/* |hash| is the most recently used block of |l|. True when it came just now. */
static bool level_keep(struct level *l, uint64_t hash, const void *note)
{
	uint32_t block = em_blocks_find(l->blocks, hash);
	bool known = block != EM_BLOCK_NONE;
	if (!known)
		block = em_blocks_take(l->blocks);
	if (block == EM_BLOCK_NONE)
		return false; /* all it has is being read */
	if (!known) {
		note_copy(l->t, em_blocks_note(l->blocks, block), note);
		CGN_MUST(em_blocks_publish(l->blocks, block, hash));
	}
	em_blocks_release(l->blocks, block);
	return !known;
}

/* A block of |arg|, a level, goes: down if there is something below. */
static void on_evict(void *arg, uint64_t hash, void *note)
{
	struct level *l = arg;
	const struct em_listener *to = &l->t->cfg.listener;
	enum em_tier below = l->tier + 1;
	while (below < EM_TIER_COUNT && l->t->at[below].blocks == NULL)
		below++;
	if (below < EM_TIER_COUNT && level_keep(&l->t->at[below], hash, note) && to->moved != NULL)
		to->moved(to->arg, below, hash, l->t->cfg.notes == EM_NOTE_FULL ? note : NULL);
	note_drop(l->t, note);
	if (to->removed != NULL)
		to->removed(to->arg, l->tier, hash);
}

CGN_RC em_tiers_new(const struct em_tiers_cfg *cfg, struct em_tiers **out)
{
	CGN_MUST(cfg->blocks[EM_TIER_GPU] > 0);
	struct em_tiers *t = calloc(1, sizeof *t);
	if (t == NULL)
		return CGN_RC_OF(CGN_NO_MEMORY);
	t->tag = TIERS_TAG;
	t->cfg = *cfg;
	for (enum em_tier i = 0; i < EM_TIER_COUNT; i++) {
		t->at[i] = (struct level){.t = t, .tier = i};
		const struct em_blocks_cfg b = {.n = cfg->blocks[i],
			.note_bytes = note_bytes(cfg),
			.evict = on_evict,
			.arg = &t->at[i]};
		if (b.n > 0 && !cgn_ok(em_blocks_new(&b, &t->at[i].blocks))) {
			em_tiers_free(&t);
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

static void empty(struct em_tiers *t)
{
	for (enum em_tier i = 0; i < EM_TIER_COUNT; i++) {
		if (t->at[i].blocks == NULL)
			continue;
		if (t->cfg.notes == EM_NOTE_FULL)
			em_blocks_each(t->at[i].blocks, drop_one, t);
		em_blocks_forget_all(t->at[i].blocks);
	}
}

void em_tiers_free(struct em_tiers **take)
{
	struct em_tiers *t = *take;
	*take = NULL;
	if (t == NULL)
		return;
	CGN_LIVE(t, TIERS_TAG);
	empty(t);
	for (enum em_tier i = 0; i < EM_TIER_COUNT; i++)
		em_blocks_free(&t->at[i].blocks);
	t->tag = 0;
	free(t);
}

struct em_blocks *em_tiers_gpu(struct em_tiers *t)
{
	CGN_LIVE(t, TIERS_TAG);
	return t->at[EM_TIER_GPU].blocks;
}

static bool is_below(const struct em_tiers *t, uint64_t hash)
{
	for (enum em_tier i = EM_TIER_CPU; i < EM_TIER_COUNT; i++) {
		if (t->at[i].blocks != NULL && em_blocks_has(t->at[i].blocks, hash))
			return true;
	}
	return false;
}

struct em_match em_tiers_match(const struct em_tiers *t, const uint64_t *hashes, uint32_t n)
{
	CGN_LIVE(t, TIERS_TAG);
	const struct em_blocks *gpu = t->at[EM_TIER_GPU].blocks;
	struct em_match m = {0};
	for (; m.found < n; m.found++) {
		bool here = em_blocks_has(gpu, hashes[m.found]);
		if (!here && !is_below(t, hashes[m.found]))
			break;
		m.on_gpu += here;
		m.unused += here && em_blocks_idle(gpu, hashes[m.found]);
	}
	return m;
}

/* The highest tier below the GPU that has |hash|, held there by one user more. */
static uint32_t hold_below(struct em_tiers *t, uint64_t hash, enum em_tier *where)
{
	for (*where = EM_TIER_CPU; *where < EM_TIER_COUNT; ++*where) {
		struct em_blocks *b = t->at[*where].blocks;
		uint32_t block = b != NULL ? em_blocks_find(b, hash) : EM_BLOCK_NONE;
		if (block != EM_BLOCK_NONE)
			return block;
	}
	cgn_must_failed("a matched block is somewhere", CGN_HERE);
}

/* Those blocks of |run| that are EM_BLOCK_NONE come up. All are held first: what makes room for one goes
 * down, and could push out another. */
static void fetch_below(struct em_tiers *t, const struct em_run *run, uint32_t *blocks,
	uint32_t restored[EM_TIER_COUNT])
{
	enum em_tier where;
	for (uint32_t i = 0; i < run->n; i++) {
		if (blocks[i] == EM_BLOCK_NONE)
			(void)hold_below(t, run->hashes[i], &where);
	}
	for (uint32_t i = 0; i < run->n; i++) {
		if (blocks[i] != EM_BLOCK_NONE)
			continue;
		uint32_t below = hold_below(t, run->hashes[i], &where);
		blocks[i] = em_blocks_take(em_tiers_gpu(t));
		CGN_MUST(blocks[i] != EM_BLOCK_NONE);
		em_tiers_publish(t, &(struct em_run){run->hashes, run->contents, i, 1}, &blocks[i]);
		em_blocks_release(t->at[where].blocks, below);
		em_blocks_release(t->at[where].blocks, below);
		restored[where]++;
	}
}

void em_tiers_fetch(struct em_tiers *t, const struct em_run *run, uint32_t *blocks,
	uint32_t restored[EM_TIER_COUNT])
{
	CGN_LIVE(t, TIERS_TAG);
	CGN_MUST(run->from == 0);
	bool all = true;
	/* first those on the GPU: room for the others must not cost one of these */
	for (uint32_t i = 0; i < run->n; i++) {
		blocks[i] = em_blocks_find(t->at[EM_TIER_GPU].blocks, run->hashes[i]);
		all &= blocks[i] != EM_BLOCK_NONE;
	}
	if (!all)
		fetch_below(t, run, blocks, restored);
}

void em_tiers_publish(struct em_tiers *t, const struct em_run *run, const uint32_t *blocks)
{
	CGN_LIVE(t, TIERS_TAG);
	struct em_blocks *gpu = t->at[EM_TIER_GPU].blocks;
	const struct em_listener *to = &t->cfg.listener;
	struct em_run fresh = {run->hashes, run->contents, run->from, 0};
	for (uint32_t k = 0; k <= run->n; k++) {
		uint32_t i = run->from + k;
		bool known = k < run->n && em_blocks_publish(gpu, blocks[k], run->hashes[i]);
		if (known) {
			note_write(t, em_blocks_note(gpu, blocks[k]), run, i);
			fresh.n++;
			continue;
		}
		if (fresh.n > 0 && to->stored != NULL)
			to->stored(to->arg, &fresh);
		fresh.from = i + 1;
		fresh.n = 0;
	}
}

void em_tiers_clear(struct em_tiers *t, bool silently)
{
	CGN_LIVE(t, TIERS_TAG);
	empty(t);
	if (!silently && t->cfg.listener.cleared != NULL)
		t->cfg.listener.cleared(t->cfg.listener.arg);
}

uint32_t em_tiers_known(const struct em_tiers *t, enum em_tier tier)
{
	CGN_LIVE(t, TIERS_TAG);
	return t->at[tier].blocks != NULL ? em_blocks_known(t->at[tier].blocks) : 0;
}

struct each_digest {
	void (*fn)(void *arg, uint64_t digest);
	void *arg;
};

static void tell_digest(void *arg, uint64_t hash, void *note)
{
	(void)hash;
	const struct each_digest *e = arg;
	e->fn(e->arg, ((const struct em_note *)note)->digest);
}

void em_tiers_digests(struct em_tiers *t, enum em_tier tier, void (*fn)(void *arg, uint64_t digest),
	void *arg)
{
	CGN_LIVE(t, TIERS_TAG);
	CGN_MUST(t->cfg.notes != EM_NOTE_NONE);
	if (t->at[tier].blocks != NULL)
		em_blocks_each(t->at[tier].blocks, tell_digest, &(struct each_digest){fn, arg});
}

bool em_tiers_sound(const struct em_tiers *t)
{
	CGN_LIVE(t, TIERS_TAG);
	bool sound = true;
	for (enum em_tier i = 0; i < EM_TIER_COUNT; i++)
		sound &= t->at[i].blocks == NULL || em_blocks_sound(t->at[i].blocks);
	for (enum em_tier i = EM_TIER_CPU; i < EM_TIER_COUNT; i++) /* nobody stays below */
		sound &= t->at[i].blocks == NULL || em_blocks_used(t->at[i].blocks) == 0;
	return sound;
}
