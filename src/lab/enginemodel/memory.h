/* SPDX-License-Identifier: Apache-2.0 */
/* tiers: KV memory with what lies below it. A block that the GPU gives up moves to the CPU's memory, what
 * that gives up to storage; each tier forgets its least recently used. A block below comes back when a prompt
 * needs it, and stays where it was too. Whoever listens is told of every change, of a block's new place
 * before its old one. Pure. Memory: 40 bytes a block; with digests 8 more, where blocks below are described
 * 40 + 4 * block_tokens more. */
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

/* Consecutive full blocks of one sequence: those at [from, from + n) of |hashes| and |contents|. */
struct enginemodel_run {
	const uint64_t *hashes;
	const struct enginemodel_contents *contents; /* NULL: not kept */
	uint32_t from, n;
};
/* One block below the GPU, as far as it is described. */
struct enginemodel_note {
	uint64_t digest;               /* always */
	uint64_t parent;               /* from here on with ENGINEMODEL_NOTE_FULL */
	struct enginemodel_salt *salt; /* a reference */
	uint32_t model;
	bool first; /* of its sequence: no parent */
	uint32_t tokens[];
};
enum enginemodel_note_kind { ENGINEMODEL_NOTE_NONE, ENGINEMODEL_NOTE_DIGEST, ENGINEMODEL_NOTE_FULL };

struct enginemodel_listener { /* each may be NULL */
	/* on the GPU */
	void (*stored)(void *arg, const struct enginemodel_run *run);
	/* |note|: NULL unless full */
	void (*moved)(void *arg, enum enginemodel_tier to, uint64_t hash,
		const struct enginemodel_note *note);
	void (*removed)(void *arg, enum enginemodel_tier from, uint64_t hash);
	void (*cleared)(void *arg);
	void *arg;
};

struct enginemodel_memory_cfg {
	uint32_t blocks[ENGINEMODEL_TIER_COUNT]; /* GPU: at least 1; others: 0 is none */
	uint32_t block_tokens;
	enum enginemodel_note_kind notes;
	struct enginemodel_listener listener;
};
struct enginemodel_memory;
CGN_RC enginemodel_memory_new(const struct enginemodel_memory_cfg *cfg, struct enginemodel_memory **out);
void enginemodel_memory_free(struct enginemodel_memory **take);
struct enginemodel_blocks *enginemodel_memory_gpu(
	struct enginemodel_memory *t); /* borrowed; use enginemodel_memory_publish there */

/* How many of the leading |hashes| are somewhere. */
struct enginemodel_match {
	uint32_t found, on_gpu; /* on_gpu: of those found */
	uint32_t unused;        /* of those on the GPU: without users */
};
struct enginemodel_match enginemodel_memory_match(const struct enginemodel_memory *t, const uint64_t *hashes,
	uint32_t n);
/* The first |run->n| blocks of a sequence, which enginemodel_memory_match found, into |blocks|, one user each; the GPU
 * must have room for those below. |restored| counts by tier what had to come up. */
void enginemodel_memory_fetch(struct enginemodel_memory *t, const struct enginemodel_run *run,
	uint32_t *blocks, uint32_t restored[ENGINEMODEL_TIER_COUNT]);
/* The blocks of |run| are in |blocks| (from the first of the run on), full, and known from now on where no
 * other block already is. */
void enginemodel_memory_publish(struct enginemodel_memory *t, const struct enginemodel_run *run,
	const uint32_t *blocks);
/* All tiers are empty; users keep their blocks. Told unless |silently|. */
void enginemodel_memory_clear(struct enginemodel_memory *t, bool silently);
uint32_t enginemodel_memory_known(const struct enginemodel_memory *t, enum enginemodel_tier tier);
/* Short digests of what a tier holds; needs notes. */
void enginemodel_memory_digests(struct enginemodel_memory *t, enum enginemodel_tier tier,
	void (*fn)(void *arg, uint64_t digest), void *arg);
bool enginemodel_memory_sound(const struct enginemodel_memory *t);
