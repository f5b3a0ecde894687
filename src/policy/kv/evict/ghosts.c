/* SPDX-License-Identifier: Apache-2.0 */
/* ghosts: a set-associative table of {fingerprint 15 bits, queue 1 bit, time 16 bits}; 0 is a free slot. The
 * time counts the nodes that left the same queue, in steps of 1/512 of the table: a ghost's age needs no
 * list. When two keys share a fingerprint (one look-up in two thousand), a block is put into the better queue
 * by mistake. A bucket that overflows costs more, because a lost ghost can make a hole in a prefix. Therefore
 * a bucket is a cache line, and half of the table is empty: two and a half ghosts a node matter. The table is
 * replaced by a larger, empty one when the tier has more nodes than the table was made for. This happens
 * while a tier fills, when there is little history. */
#include <stdlib.h>
#include <string.h>

#include "base/mix/mix.h"
#include "policy/kv/evict/evict_priv.h"

#define WAYS     ((uint64_t)16)
#define A_NODE   5 /* Least number of slots a node; a new table has a quarter more. */
#define STEPS    512
#define MOST     ((uint64_t)1 << 31) /* A multiple of STEPS, and so of WAYS. */
#define MAIN_BIT 0x10000U

/* Spread |hash|: all keys of a shard may have some bits in common. */
static uint64_t hash_spread(uint64_t hash)
{
	return mix_golden(hash ^ hash >> 32);
}

static uint32_t *bucket_of(const struct evict_ghosts *g, uint64_t hash)
{
	return &g->slot[((hash_spread(hash) >> 16 & UINT32_MAX) * (g->slots / WAYS) >> 32) * WAYS];
}

static uint32_t fingerprint_of(uint64_t hash)
{
	uint32_t fingerprint = (uint32_t)(hash_spread(hash) >> 49);
	return fingerprint > 0 ? fingerprint : 1;
}

static enum evict_queue queue_of(uint32_t slot)
{
	return (slot & MAIN_BIT) != 0 ? EVICT_MAIN : EVICT_SMALL;
}

static uint32_t ghost_time(const struct evict_ghosts *g, enum evict_queue q)
{
	return (uint32_t)(g->left[q] / (g->slots / STEPS)) & 0xffff;
}

static uint32_t ghost_age(const struct evict_ghosts *g, uint32_t slot)
{
	return (ghost_time(g, queue_of(slot)) - slot) & 0xffff;
}

/* The ghosts of the main queue matter for a quarter of the time. */
static uint32_t ghost_staleness(const struct evict_ghosts *g, uint32_t slot)
{
	return slot == 0 ? UINT32_MAX : ghost_age(g, slot) * (queue_of(slot) == EVICT_MAIN ? 4 : 1);
}

static void ghosts_grow(struct evict_ghosts *g, uint64_t nodes)
{
	if (g->slots >= A_NODE * nodes || g->slots == MOST)
		return;
	uint64_t slots = (A_NODE * (nodes + nodes / 4) + STEPS) / STEPS * STEPS;
	slots = slots < MOST ? slots : MOST;
	uint32_t *slot = aligned_alloc(WAYS * sizeof *slot, slots * sizeof *slot);
	if (slot == NULL)
		return; /* The old table stays: it remembers less than it should. */
	memset(slot, 0, slots * sizeof *slot);
	free(g->slot);
	*g = (struct evict_ghosts){.slot = slot, .slots = slots};
}

void ghosts_add(struct evict_ghosts *g, uint64_t hash, enum evict_queue from, uint64_t nodes)
{
	ghosts_grow(g, nodes);
	if (g->slot == NULL)
		return;
	uint32_t *b = bucket_of(g, hash), *at = b;
	for (uint32_t *s = b + 1; s < b + WAYS; s++) {
		if (ghost_staleness(g, *s) > ghost_staleness(g, *at))
			at = s;
	}
	*at = fingerprint_of(hash) << 17 | (from == EVICT_MAIN ? MAIN_BIT : 0) | ghost_time(g, from);
	g->left[from]++;
}

bool ghosts_take(struct evict_ghosts *g, uint64_t hash, enum evict_queue *from, uint64_t *ago)
{
	if (g->slot == NULL)
		return false;
	uint32_t *b = bucket_of(g, hash);
	for (uint32_t *s = b; s < b + WAYS; s++) {
		if (*s >> 17 != fingerprint_of(hash))
			continue;
		*from = queue_of(*s);
		*ago = (uint64_t)ghost_age(g, *s) * (g->slots / STEPS);
		*s = 0;
		return true;
	}
	return false;
}

void ghosts_fini(struct evict_ghosts *g)
{
	free(g->slot);
	*g = (struct evict_ghosts){0};
}

size_t ghosts_bytes(const struct evict_ghosts *g)
{
	return g->slots * sizeof *g->slot;
}
