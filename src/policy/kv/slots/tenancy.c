/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/kv/slots/tenancy.h"

#include <stdlib.h>
#include <string.h>

#define TENANCY_TAG 0x51075009U

struct room {
	bool known; /* |owner| is. */
	uint64_t owner;
	uint32_t busy;      /* Requests that were sent there and have not ended. */
	cgn_nsec unsure_to; /* Until then a request that was cut off may begin here. */
	uint64_t used;      /* Number of the last use; 0: never used. */
	size_t n;
	uint64_t chain[SLOT_TENANCY_CHAIN]; /* Blocks of the last prompt. */
};

struct slot_tenancy {
	uint32_t tag;
	uint32_t n;
	uint32_t epoch;     /* Counts changes of |n|. */
	uint32_t strays;    /* Requests in slots that the engine chose. */
	cgn_nsec unsure_to; /* Until then a request that was cut off may begin in any slot. */
	uint64_t uses;
	struct room *rooms;
};

struct slot_tenancy *slot_tenancy_new(void)
{
	struct slot_tenancy *t = CGN_NEW(struct slot_tenancy);
	t->tag = TENANCY_TAG;
	return t;
}

void slot_tenancy_free(struct slot_tenancy **take)
{
	struct slot_tenancy *t = CGN_TAKE_LIVE(take, TENANCY_TAG);
	if (t == NULL)
		return;
	t->tag = 0;
	free(t->rooms);
	free(t);
}

static void tenancy_forget(struct slot_tenancy *t)
{
	for (uint32_t i = 0; i < t->n; i++)
		t->rooms[i].known = false;
}

void slot_tenancy_size(struct slot_tenancy *t, uint32_t n)
{
	CGN_LIVE(t, TENANCY_TAG);
	if (n == t->n || n > SLOTS_MAX)
		return;
	free(t->rooms);
	t->rooms = CGN_NEW_ARRAY(struct room, n);
	t->n = n;
	t->strays = 0;
	t->epoch++;
}

static size_t room_common(const struct room *room, const struct slot_guest *g)
{
	size_t i = 0;
	while (i < room->n && i < g->n && room->chain[i] == g->chain[i])
		i++;
	return i;
}

uint32_t slot_tenancy_choose(const struct slot_tenancy *t, const struct slot_guest *g)
{
	uint32_t best = SLOTS_NONE;
	size_t best_common = 0;
	CGN_LIVE(t, TENANCY_TAG);
	for (uint32_t i = 0; i < t->n; i++) {
		const struct room *room = &t->rooms[i], *other = best != SLOTS_NONE ? &t->rooms[best] : NULL;
		size_t common = room_common(room, g);
		common = common * 10 > (g->n < SLOT_TENANCY_CHAIN ? g->n : SLOT_TENANCY_CHAIN) ? common : 0;
		bool better = other == NULL || room->busy < other->busy ||
			(room->busy == other->busy &&
				(common > best_common ||
					(common == best_common && room->used < other->used)));
		if (!better)
			continue;
		best = i;
		best_common = common;
	}
	return best;
}

static struct room *room_of(struct slot_tenancy *t, const struct slot_guest *g)
{
	return g->slot < t->n ? &t->rooms[g->slot] : NULL;
}

bool slot_tenancy_enter(struct slot_tenancy *t, struct slot_guest *g, bool restored, cgn_nsec now)
{
	CGN_LIVE(t, TENANCY_TAG);
	struct room *room = room_of(t, g);
	g->epoch = t->epoch;
	if (room == NULL) {
		g->slot = SLOTS_NONE;
		t->strays++;
		tenancy_forget(t);
		return false;
	}
	bool sure = t->strays == 0 && now >= t->unsure_to && now >= room->unsure_to;
	bool own = room->known && room->owner == g->owner, alone = room->busy == 0;
	bool reuses = sure && ((restored && alone) || own);
	/* The engine may begin any of the requests that wait for a slot. */
	room->known = sure && (alone || own);
	room->owner = g->owner;
	room->busy++;
	room->used = ++t->uses;
	room->n = g->n < SLOT_TENANCY_CHAIN ? g->n : SLOT_TENANCY_CHAIN;
	if (room->n > 0)
		memcpy(room->chain, g->chain, room->n * sizeof *g->chain);
	return reuses;
}

void slot_tenancy_leave(struct slot_tenancy *t, const struct slot_guest *g, bool cut, cgn_nsec now)
{
	CGN_LIVE(t, TENANCY_TAG);
	if (g->epoch != t->epoch)
		return; /* The engine was another one then. */
	if (g->slot == SLOTS_NONE) {
		t->strays--;
		tenancy_forget(t);
		t->unsure_to = cut ? now + SLOT_TENANCY_CUT : t->unsure_to;
		return;
	}
	CGN_MUST(g->slot < t->n);
	struct room *room = &t->rooms[g->slot];
	room->busy--;
	room->unsure_to = cut ? now + SLOT_TENANCY_CUT : room->unsure_to;
}
