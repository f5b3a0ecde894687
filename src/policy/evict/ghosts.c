/* SPDX-License-Identifier: Apache-2.0 */
/* A set-associative table of {fingerprint 15, queue 1, when 16}; 0 is free. |ghost_time| counts who left that
 * queue, in steps of 1/512 of the table, so that age is known without a list. A fingerprint that is also
 * another key's (one look in two thousand) costs a block in the better queue. A ghost that finds its bucket
 * full costs more than one block: a hole in a prefix; so buckets are a cache line, and half empty: two and a
 * half ghosts a node are of interest. The table is made anew, and forgets, when nodes are more than it was
 * made for: while a tier fills, when there is little to remember. */
#include <stdlib.h>
#include <string.h>

#include "base/mix/mix.h"
#include "policy/evict/evict_priv.h"

#define WAYS     ((uint64_t)16)
#define A_NODE   5 /* slots, at least; and a quarter more */
#define STEPS    512
#define MOST     ((uint64_t)1 << 31) /* a multiple of STEPS, and that of WAYS */
#define MAIN_BIT 0x10000U

/* All keys of a shard may have some bits in common. */
static uint64_t mix(uint64_t hash)
{
	return mix_golden(hash ^ hash >> 32);
}

static uint32_t *bucket_of(const struct evict_ghosts *g, uint64_t hash)
{
	return &g->slot[((mix(hash) >> 16 & UINT32_MAX) * (g->slots / WAYS) >> 32) * WAYS];
}

static uint32_t print_of(uint64_t hash)
{
	uint32_t print = (uint32_t)(mix(hash) >> 49);
	return print > 0 ? print : 1;
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

/* Who left the main queue is of interest for a quarter of the time. */
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
		return; /* it remembers less */
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
	*at = print_of(hash) << 17 | (from == EVICT_MAIN ? MAIN_BIT : 0) | ghost_time(g, from);
	g->left[from]++;
}

bool ghosts_take(struct evict_ghosts *g, uint64_t hash, enum evict_queue *from, uint64_t *ago)
{
	if (g->slot == NULL)
		return false;
	uint32_t *b = bucket_of(g, hash);
	for (uint32_t *s = b; s < b + WAYS; s++) {
		if (*s >> 17 != print_of(hash))
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
