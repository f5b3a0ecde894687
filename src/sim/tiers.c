/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/tiers.h"

#include <stdlib.h>

#define TIERS_TAG 0x51b71e25U

struct level {
	struct sim_tiers *t;
	enum sim_tier tier;
	struct sim_blocks *blocks; /* NULL: there is no such tier */
};

struct sim_tiers {
	uint32_t tag;
	struct sim_tiers_cfg cfg;
	struct level at[SIM_TIER_COUNT];
};

const char *sim_tier_name(enum sim_tier t)
{
	static const char *const names[SIM_TIER_COUNT] = {"GPU", "CPU", "STORAGE"};
	CGN_MUST(t < SIM_TIER_COUNT);
	return names[t];
}

static uint32_t note_bytes(const struct sim_tiers_cfg *cfg)
{
	switch (cfg->notes) {
	case SIM_NOTE_NONE:
		break;
	case SIM_NOTE_DIGEST:
		return sizeof(uint64_t);
	case SIM_NOTE_FULL:
		return (uint32_t)((sizeof(struct sim_note) + cfg->block_tokens * sizeof(uint32_t) + 7) / 8 * 8);
	}
	return 0;
}

static void note_copy(const struct sim_tiers *t, void *to, const void *from)
{
	uint32_t n = note_bytes(&t->cfg);
	if (n > 0)
		memcpy(to, from, n);
	if (t->cfg.notes == SIM_NOTE_FULL)
		(void)sim_salt_ref(((struct sim_note *)to)->salt);
}

static void note_drop(const struct sim_tiers *t, void *at)
{
	if (t->cfg.notes == SIM_NOTE_FULL)
		sim_salt_unref(&((struct sim_note *)at)->salt);
}

static void note_write(const struct sim_tiers *t, void *at, const struct sim_run *run, uint32_t i)
{
	struct sim_note *note = at;
	const struct sim_contents *c = run->contents;
	if (t->cfg.notes == SIM_NOTE_NONE || c == NULL)
		return;
	note->digest = c->digests[i];
	if (t->cfg.notes == SIM_NOTE_DIGEST)
		return;
	note->first = i == 0;
	note->parent = i > 0 ? run->hashes[i - 1] : 0;
	note->model = c->model;
	note->salt = sim_salt_ref(c->salt);
	memcpy(note->tokens, c->tokens + (size_t)i * t->cfg.block_tokens, t->cfg.block_tokens * sizeof *note->tokens);
}

/* |hash| is the most recently used block of |l|. True when it came just now. */
static bool level_keep(struct level *l, uint64_t hash, const void *note)
{
	uint32_t block = sim_blocks_find(l->blocks, hash);
	bool known = block != SIM_BLOCK_NONE;
	if (!known)
		block = sim_blocks_take(l->blocks);
	if (block == SIM_BLOCK_NONE)
		return false; /* all it has is being read */
	if (!known) {
		note_copy(l->t, sim_blocks_note(l->blocks, block), note);
		CGN_MUST(sim_blocks_publish(l->blocks, block, hash));
	}
	sim_blocks_release(l->blocks, block);
	return !known;
}

/* A block of |arg|, a level, goes: down if there is something below. */
static void on_evict(void *arg, uint64_t hash, void *note)
{
	struct level *l = arg;
	const struct sim_listener *to = &l->t->cfg.listener;
	enum sim_tier below = l->tier + 1;
	while (below < SIM_TIER_COUNT && l->t->at[below].blocks == NULL)
		below++;
	if (below < SIM_TIER_COUNT && level_keep(&l->t->at[below], hash, note) && to->moved != NULL)
		to->moved(to->arg, below, hash, l->t->cfg.notes == SIM_NOTE_FULL ? note : NULL);
	note_drop(l->t, note);
	if (to->removed != NULL)
		to->removed(to->arg, l->tier, hash);
}

CGN_RC sim_tiers_new(const struct sim_tiers_cfg *cfg, struct sim_tiers **out)
{
	CGN_MUST(cfg->blocks[SIM_TIER_GPU] > 0);
	struct sim_tiers *t = calloc(1, sizeof *t);
	if (t == NULL)
		return CGN_RC_OF(CGN_NO_MEMORY);
	t->tag = TIERS_TAG;
	t->cfg = *cfg;
	for (enum sim_tier i = 0; i < SIM_TIER_COUNT; i++) {
		t->at[i] = (struct level){.t = t, .tier = i};
		const struct sim_blocks_cfg b = {
			.n = cfg->blocks[i], .note_bytes = note_bytes(cfg), .evict = on_evict, .arg = &t->at[i]};
		if (b.n > 0 && !cgn_ok(sim_blocks_new(&b, &t->at[i].blocks))) {
			sim_tiers_free(&t);
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

static void empty(struct sim_tiers *t)
{
	for (enum sim_tier i = 0; i < SIM_TIER_COUNT; i++) {
		if (t->at[i].blocks == NULL)
			continue;
		if (t->cfg.notes == SIM_NOTE_FULL)
			sim_blocks_each(t->at[i].blocks, drop_one, t);
		sim_blocks_forget_all(t->at[i].blocks);
	}
}

void sim_tiers_free(struct sim_tiers **take)
{
	struct sim_tiers *t = *take;
	*take = NULL;
	if (t == NULL)
		return;
	CGN_LIVE(t, TIERS_TAG);
	empty(t);
	for (enum sim_tier i = 0; i < SIM_TIER_COUNT; i++)
		sim_blocks_free(&t->at[i].blocks);
	t->tag = 0;
	free(t);
}

struct sim_blocks *sim_tiers_gpu(struct sim_tiers *t)
{
	CGN_LIVE(t, TIERS_TAG);
	return t->at[SIM_TIER_GPU].blocks;
}

static bool is_below(const struct sim_tiers *t, uint64_t hash)
{
	for (enum sim_tier i = SIM_TIER_CPU; i < SIM_TIER_COUNT; i++) {
		if (t->at[i].blocks != NULL && sim_blocks_has(t->at[i].blocks, hash))
			return true;
	}
	return false;
}

struct sim_match sim_tiers_match(const struct sim_tiers *t, const uint64_t *hashes, uint32_t n)
{
	CGN_LIVE(t, TIERS_TAG);
	const struct sim_blocks *gpu = t->at[SIM_TIER_GPU].blocks;
	struct sim_match m = {0};
	for (; m.found < n; m.found++) {
		bool here = sim_blocks_has(gpu, hashes[m.found]);
		if (!here && !is_below(t, hashes[m.found]))
			break;
		m.on_gpu += here;
		m.unused += here && sim_blocks_idle(gpu, hashes[m.found]);
	}
	return m;
}

/* The highest tier below the GPU that has |hash|, held there by one user more. */
static uint32_t hold_below(struct sim_tiers *t, uint64_t hash, enum sim_tier *where)
{
	for (*where = SIM_TIER_CPU; *where < SIM_TIER_COUNT; ++*where) {
		struct sim_blocks *b = t->at[*where].blocks;
		uint32_t block = b != NULL ? sim_blocks_find(b, hash) : SIM_BLOCK_NONE;
		if (block != SIM_BLOCK_NONE)
			return block;
	}
	cgn_must_failed("a matched block is somewhere", CGN_HERE);
}

/* Those blocks of |run| that are SIM_BLOCK_NONE come up. All are held first: what makes room for one goes down, and could push out
 * another. */
static void fetch_below(struct sim_tiers *t, const struct sim_run *run, uint32_t *blocks, uint32_t restored[SIM_TIER_COUNT])
{
	enum sim_tier where;
	for (uint32_t i = 0; i < run->n; i++) {
		if (blocks[i] == SIM_BLOCK_NONE)
			(void)hold_below(t, run->hashes[i], &where);
	}
	for (uint32_t i = 0; i < run->n; i++) {
		if (blocks[i] != SIM_BLOCK_NONE)
			continue;
		uint32_t below = hold_below(t, run->hashes[i], &where);
		blocks[i] = sim_blocks_take(sim_tiers_gpu(t));
		CGN_MUST(blocks[i] != SIM_BLOCK_NONE);
		sim_tiers_publish(t, &(struct sim_run){run->hashes, run->contents, i, 1}, &blocks[i]);
		sim_blocks_release(t->at[where].blocks, below);
		sim_blocks_release(t->at[where].blocks, below);
		restored[where]++;
	}
}

void sim_tiers_fetch(struct sim_tiers *t, const struct sim_run *run, uint32_t *blocks, uint32_t restored[SIM_TIER_COUNT])
{
	CGN_LIVE(t, TIERS_TAG);
	CGN_MUST(run->from == 0);
	bool all = true;
	for (uint32_t i = 0; i < run->n; i++) { /* first those on the GPU: room for the others must not cost one of these */
		blocks[i] = sim_blocks_find(t->at[SIM_TIER_GPU].blocks, run->hashes[i]);
		all &= blocks[i] != SIM_BLOCK_NONE;
	}
	if (!all)
		fetch_below(t, run, blocks, restored);
}

void sim_tiers_publish(struct sim_tiers *t, const struct sim_run *run, const uint32_t *blocks)
{
	CGN_LIVE(t, TIERS_TAG);
	struct sim_blocks *gpu = t->at[SIM_TIER_GPU].blocks;
	const struct sim_listener *to = &t->cfg.listener;
	struct sim_run fresh = {run->hashes, run->contents, run->from, 0};
	for (uint32_t k = 0; k <= run->n; k++) {
		uint32_t i = run->from + k;
		bool known = k < run->n && sim_blocks_publish(gpu, blocks[k], run->hashes[i]);
		if (known) {
			note_write(t, sim_blocks_note(gpu, blocks[k]), run, i);
			fresh.n++;
			continue;
		}
		if (fresh.n > 0 && to->stored != NULL)
			to->stored(to->arg, &fresh);
		fresh.from = i + 1;
		fresh.n = 0;
	}
}

void sim_tiers_clear(struct sim_tiers *t, bool silently)
{
	CGN_LIVE(t, TIERS_TAG);
	empty(t);
	if (!silently && t->cfg.listener.cleared != NULL)
		t->cfg.listener.cleared(t->cfg.listener.arg);
}

uint32_t sim_tiers_known(const struct sim_tiers *t, enum sim_tier tier)
{
	CGN_LIVE(t, TIERS_TAG);
	return t->at[tier].blocks != NULL ? sim_blocks_known(t->at[tier].blocks) : 0;
}

struct each_digest {
	void (*fn)(void *arg, uint64_t digest);
	void *arg;
};

static void tell_digest(void *arg, uint64_t hash, void *note)
{
	(void)hash;
	const struct each_digest *e = arg;
	e->fn(e->arg, ((const struct sim_note *)note)->digest);
}

void sim_tiers_digests(struct sim_tiers *t, enum sim_tier tier, void (*fn)(void *arg, uint64_t digest), void *arg)
{
	CGN_LIVE(t, TIERS_TAG);
	CGN_MUST(t->cfg.notes != SIM_NOTE_NONE);
	if (t->at[tier].blocks != NULL)
		sim_blocks_each(t->at[tier].blocks, tell_digest, &(struct each_digest){fn, arg});
}

bool sim_tiers_sound(const struct sim_tiers *t)
{
	CGN_LIVE(t, TIERS_TAG);
	bool sound = true;
	for (enum sim_tier i = 0; i < SIM_TIER_COUNT; i++)
		sound &= t->at[i].blocks == NULL || sim_blocks_sound(t->at[i].blocks);
	for (enum sim_tier i = SIM_TIER_CPU; i < SIM_TIER_COUNT; i++) /* nobody stays below */
		sound &= t->at[i].blocks == NULL || sim_blocks_used(t->at[i].blocks) == 0;
	return sound;
}
