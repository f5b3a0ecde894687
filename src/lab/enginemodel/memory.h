/* SPDX-License-Identifier: Apache-2.0 */
/* memory: the KV memory tiers. A block evicted from the GPU moves to CPU memory, a block evicted from there
 * to storage; each tier evicts its least recently used block. A prompt restores its blocks from lower tiers,
 * which keep their copies. The listener is called for every change; for a moved block, first about the new
 * place, then about the old one. Pure. Memory: 35 to 45 bytes a block, 8 more with digests, 40 + 4 * block_tokens
 * more where lower tiers keep full notes. */
#pragma once
#include "lab/enginemodel/blocks.h"
#include "lab/enginemodel/contents.h"

enum enginemodel_tier {
	ENGINEMODEL_TIER_GPU,
	ENGINEMODEL_TIER_CPU,
	ENGINEMODEL_TIER_STORAGE,
	ENGINEMODEL_TIER_COUNT
};
const char *enginemodel_tier_name(enum enginemodel_tier t); /* "GPU", "CPU", "STORAGE" */

/* Consecutive full blocks of one sequence: entries [from, from + n) of |hashes| and |contents|. */
struct enginemodel_run {
	const uint64_t *hashes;
	const struct enginemodel_contents *contents; /* NULL: contents are not kept. */
	uint32_t from, n;
};
/* Note of one block in a lower tier. */
struct enginemodel_note {
	uint64_t digest; /* Always set. */
	/* This and all further members are set with ENGINEMODEL_NOTE_FULL only. */
	uint64_t parent;
	struct enginemodel_salt *salt; /* A reference. */
	uint32_t model;
	bool first; /* First block of its sequence, without a parent. */
	uint32_t tokens[];
};
enum enginemodel_note_kind { ENGINEMODEL_NOTE_NONE, ENGINEMODEL_NOTE_DIGEST, ENGINEMODEL_NOTE_FULL };

struct enginemodel_listener { /* Each may be NULL. */
	/* Blocks were cached on the GPU. */
	void (*stored)(void *arg, const struct enginemodel_run *run);
	/* |note| is NULL unless notes are full. */
	void (*moved)(void *arg, enum enginemodel_tier to, uint64_t hash,
		const struct enginemodel_note *note);
	void (*removed)(void *arg, enum enginemodel_tier from, uint64_t hash);
	void (*cleared)(void *arg);
	void *arg;
};

struct enginemodel_memory_cfg {
	uint32_t blocks[ENGINEMODEL_TIER_COUNT]; /* At least 1 for the GPU; 0 for the others: no such tier. */
	uint32_t block_tokens;
	bool keeps_none; /* Nothing is cached: every prompt is computed whole. */
	enum enginemodel_note_kind notes;
	struct enginemodel_listener listener;
};
struct enginemodel_memory;
CGN_RC enginemodel_memory_new(const struct enginemodel_memory_cfg *cfg, struct enginemodel_memory **out);
void enginemodel_memory_free(struct enginemodel_memory **take);
struct enginemodel_blocks *enginemodel_memory_gpu(
	struct enginemodel_memory *t); /* Borrowed; publish with enginemodel_memory_publish. */

/* The number of leading hashes found in some tier. */
struct enginemodel_match {
	uint32_t found, on_gpu; /* |on_gpu|: the part of |found| on the GPU. */
	uint32_t unused;        /* The part of |on_gpu| without users. */
};
struct enginemodel_match enginemodel_memory_match(const struct enginemodel_memory *t, const uint64_t *hashes,
	uint32_t n);
/* Fill |blocks| with the first |run->n| blocks of a sequence, which enginemodel_memory_match found, and add a
 * user to each. The GPU must have room for the blocks in lower tiers. |restored| counts the restored blocks
 * by tier. */
void enginemodel_memory_fetch(struct enginemodel_memory *t, const struct enginemodel_run *run,
	uint32_t *blocks, uint32_t restored[ENGINEMODEL_TIER_COUNT]);
/* Cache the blocks of |run|, which are full and stand in |blocks| from the run's first on. A hash that is
 * cached already keeps its block. */
void enginemodel_memory_publish(struct enginemodel_memory *t, const struct enginemodel_run *run,
	const uint32_t *blocks);
/* Empty all tiers; users keep their blocks. Calls the listener unless |silently|. */
void enginemodel_memory_clear(struct enginemodel_memory *t, bool silently);
uint32_t enginemodel_memory_known(const struct enginemodel_memory *t, enum enginemodel_tier tier);
/* Call |fn| with the short digest of each block of |tier|. Needs notes. */
void enginemodel_memory_digests(struct enginemodel_memory *t, enum enginemodel_tier tier,
	void (*fn)(void *arg, uint64_t digest), void *arg);
bool enginemodel_memory_sound(const struct enginemodel_memory *t);
