/* SPDX-License-Identifier: Apache-2.0 */
/* A set-associative table of {fingerprint 16, when 16}; 0 is free. |when| counts additions in steps of 1/128 of the table, so that what is too old
 * is told from what is not without a queue. A fingerprint that is also another key's (one look in some eight thousand) puts a block into the
 * better queue, no more. The table doubles, and forgets, when there is more to remember than it was made for: while a tier fills, that is, when
 * there is little to remember yet. */
#include <stdlib.h>

#include "policy/evict/evict_priv.h"

#define WAYS  8
#define STEPS 128
#define LEAST ((uint64_t)128) /* slots */
#define MOST  ((uint64_t)1 << 31)

static uint32_t *bucket_of(const struct ghosts *g, uint64_t hash)
{
	return &g->slot[(hash & (g->slots / WAYS - 1)) * WAYS];
}

static uint32_t print_of(uint64_t hash)
{
	uint32_t print = (uint32_t)(hash >> 48);
	return print > 0 ? print : 1;
}

static uint32_t when(const struct ghosts *g)
{
	return (uint32_t)(g->added / (g->slots / STEPS)) & 0xffff;
}

static uint32_t age(const struct ghosts *g, uint32_t slot)
{
	return (when(g) - slot) & 0xffff;
}

/* A quarter more slots than ghosts: buckets are not evenly full. */
static void grow(struct ghosts *g, uint64_t limit)
{
	uint64_t slots = LEAST;
	while (slots < limit + limit / 4 && slots < MOST)
		slots *= 2;
	if (slots <= g->slots)
		return;
	uint32_t *slot = calloc(slots, sizeof *slot);
	if (slot == NULL)
		return; /* it remembers less */
	free(g->slot);
	*g = (struct ghosts){.slot = slot, .slots = slots};
}

void ghosts_add(struct ghosts *g, uint64_t hash, uint64_t limit)
{
	grow(g, limit);
	if (g->slot == NULL)
		return;
	uint32_t *b = bucket_of(g, hash), *oldest = b;
	for (uint32_t *s = b; s < b + WAYS && *oldest != 0; s++) {
		if (*s == 0 || age(g, *s) > age(g, *oldest))
			oldest = s;
	}
	*oldest = print_of(hash) << 16 | when(g);
	g->added++;
}

bool ghosts_take(struct ghosts *g, uint64_t hash, uint64_t limit)
{
	if (g->slot == NULL)
		return false;
	uint32_t *b = bucket_of(g, hash);
	for (uint32_t *s = b; s < b + WAYS; s++) {
		if (*s == 0 || *s >> 16 != print_of(hash))
			continue;
		bool young = (uint64_t)age(g, *s) * (g->slots / STEPS) <= limit;
		*s = 0;
		return young;
	}
	return false;
}

void ghosts_fini(struct ghosts *g)
{
	free(g->slot);
	*g = (struct ghosts){0};
}

size_t ghosts_bytes(const struct ghosts *g)
{
	return g->slots * sizeof *g->slot;
}
