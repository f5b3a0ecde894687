/* SPDX-License-Identifier: Apache-2.0 */
/* tiers: KV memory with what lies below it. A block that the GPU gives up moves to the CPU's memory, what
 * that gives up to storage; each tier forgets its least recently used. A block below comes back when a prompt
 * needs it, and stays where it was too. Whoever listens is told of every change, of a block's new place
 * before its old one. Pure. Memory: 40 bytes a block; with digests 8 more, where blocks below are described
 * 40 + 4 * block_tokens more. */
#pragma once
#include "lab/enginemodel/blocks.h"
#include "lab/enginemodel/contents.h"

enum em_tier { EM_TIER_GPU, EM_TIER_CPU, EM_TIER_STORAGE, EM_TIER_COUNT };
const char *em_tier_name(enum em_tier t); /* "GPU", "CPU", "STORAGE" */

/* Consecutive full blocks of one sequence: those at [from, from + n) of |hashes| and |contents|. */
struct em_run {
	const uint64_t *hashes;
	const struct em_contents *contents; /* NULL: not kept */
	uint32_t from, n;
};
/* One block below the GPU, as far as it is described. */
struct em_note {
	uint64_t digest;      /* always */
	uint64_t parent;      /* from here on with EM_NOTE_FULL */
	struct em_salt *salt; /* a reference */
	uint32_t model;
	bool first; /* of its sequence: no parent */
	uint32_t tokens[];
};
enum em_note_kind { EM_NOTE_NONE, EM_NOTE_DIGEST, EM_NOTE_FULL };

struct em_listener { /* each may be NULL */
	/* on the GPU */
	void (*stored)(void *arg, const struct em_run *run);
	/* |note|: NULL unless full */
	void (*moved)(void *arg, enum em_tier to, uint64_t hash, const struct em_note *note);
	void (*removed)(void *arg, enum em_tier from, uint64_t hash);
	void (*cleared)(void *arg);
	void *arg;
};

struct em_tiers_cfg {
	uint32_t blocks[EM_TIER_COUNT]; /* GPU: at least 1; others: 0 is none */
	uint32_t block_tokens;
	enum em_note_kind notes;
	struct em_listener listener;
};
struct em_tiers;
CGN_RC em_tiers_new(const struct em_tiers_cfg *cfg, struct em_tiers **out);
void em_tiers_free(struct em_tiers **take);
struct em_blocks *em_tiers_gpu(struct em_tiers *t); /* borrowed; use em_tiers_publish there */

/* How many of the leading |hashes| are somewhere. */
struct em_match {
	uint32_t found, on_gpu; /* on_gpu: of those found */
	uint32_t unused;        /* of those on the GPU: without users */
};
struct em_match em_tiers_match(const struct em_tiers *t, const uint64_t *hashes, uint32_t n);
/* The first |run->n| blocks of a sequence, which em_tiers_match found, into |blocks|, one user each; the GPU
 * must have room for those below. |restored| counts by tier what had to come up. */
void em_tiers_fetch(struct em_tiers *t, const struct em_run *run, uint32_t *blocks,
	uint32_t restored[EM_TIER_COUNT]);
/* The blocks of |run| are in |blocks| (from the first of the run on), full, and known from now on where no
 * other block already is. */
void em_tiers_publish(struct em_tiers *t, const struct em_run *run, const uint32_t *blocks);
/* All tiers are empty; users keep their blocks. Told unless |silently|. */
void em_tiers_clear(struct em_tiers *t, bool silently);
uint32_t em_tiers_known(const struct em_tiers *t, enum em_tier tier);
/* Short digests of what a tier holds; needs notes. */
void em_tiers_digests(struct em_tiers *t, enum em_tier tier, void (*fn)(void *arg, uint64_t digest),
	void *arg);
bool em_tiers_sound(const struct em_tiers *t);
