/* SPDX-License-Identifier: Apache-2.0 */
/* tiers: KV memory with what lies below it. A block that the GPU gives up moves to the CPU's memory, what that gives up to storage;
 * each tier forgets its least recently used. A block below comes back when a prompt needs it, and stays where it was too. Whoever
 * listens is told of every change, of a block's new place before its old one. Pure.
 * Memory: 40 bytes a block; with digests 8 more, where blocks below are described 40 + 4 * block_tokens more. */
#pragma once
#include "sim/blocks.h"
#include "sim/tokens.h"

enum sim_tier { SIM_TIER_GPU, SIM_TIER_CPU, SIM_TIER_STORAGE, SIM_TIER_COUNT };
const char *sim_tier_name(enum sim_tier t); /* "GPU", "CPU", "STORAGE" */

/* Consecutive full blocks of one sequence: those at [from, from + n) of |hashes| and |contents|. */
struct sim_run {
	const uint64_t *hashes;
	const struct sim_contents *contents; /* NULL: not kept */
	uint32_t from, n;
};
/* One block below the GPU, as far as it is described. */
struct sim_note {
	uint64_t digest;       /* always */
	uint64_t parent;       /* from here on with SIM_NOTE_FULL */
	struct sim_salt *salt; /* a reference */
	uint32_t model;
	bool first;            /* of its sequence: no parent */
	uint32_t tokens[];
};
enum sim_note_kind { SIM_NOTE_NONE, SIM_NOTE_DIGEST, SIM_NOTE_FULL };

struct sim_listener { /* each may be NULL */
	void (*stored)(void *arg, const struct sim_run *run);                                         /* on the GPU */
	void (*moved)(void *arg, enum sim_tier to, uint64_t hash, const struct sim_note *note);       /* |note|: NULL unless full */
	void (*removed)(void *arg, enum sim_tier from, uint64_t hash);
	void (*cleared)(void *arg);
	void *arg;
};

struct sim_tiers_cfg {
	uint32_t blocks[SIM_TIER_COUNT]; /* GPU: at least 1; others: 0 is none */
	uint32_t block_tokens;
	enum sim_note_kind notes;
	struct sim_listener listener;
};
struct sim_tiers;
CGN_RC sim_tiers_new(const struct sim_tiers_cfg *cfg, struct sim_tiers **out);
void sim_tiers_free(struct sim_tiers **take);
struct sim_blocks *sim_tiers_gpu(struct sim_tiers *t); /* borrowed; use sim_tiers_publish there */

/* How many of the leading |hashes| are somewhere. */
struct sim_match {
	uint32_t found, on_gpu; /* on_gpu: of those found */
	uint32_t unused;        /* of those on the GPU: without users */
};
struct sim_match sim_tiers_match(const struct sim_tiers *t, const uint64_t *hashes, uint32_t n);
/* The first |run->n| blocks of a sequence, which sim_tiers_match found, into |blocks|, one user each; the GPU must have room for those
 * below. |restored| counts by tier what had to come up. */
void sim_tiers_fetch(struct sim_tiers *t, const struct sim_run *run, uint32_t *blocks, uint32_t restored[SIM_TIER_COUNT]);
/* The blocks of |run| are in |blocks| (from the first of the run on), full, and known from now on where no other block already is. */
void sim_tiers_publish(struct sim_tiers *t, const struct sim_run *run, const uint32_t *blocks);
/* All tiers are empty; users keep their blocks. Told unless |silently|. */
void sim_tiers_clear(struct sim_tiers *t, bool silently);
uint32_t sim_tiers_known(const struct sim_tiers *t, enum sim_tier tier);
/* Short digests of what a tier holds; needs notes. */
void sim_tiers_digests(struct sim_tiers *t, enum sim_tier tier, void (*fn)(void *arg, uint64_t digest), void *arg);
bool sim_tiers_sound(const struct sim_tiers *t);
