/* SPDX-License-Identifier: Apache-2.0 */
/* plain: policies that use the load only, or nothing. */
#include "base/mix/mix.h"
#include "routing_priv.h"

static size_t count_room(const struct route_ask *ask, const struct route_cand *cands, size_t n)
{
	size_t room = 0;
	for (size_t i = 0; i < n; i++)
		room += route_has_room(ask, &cands[i]);
	return room;
}

/* Return the nth candidate with room, from 0. There are more than |nth|. */
static size_t nth_with_room(const struct route_ask *ask, const struct route_cand *cands, size_t nth)
{
	for (size_t i = 0;; i++)
		if (route_has_room(ask, &cands[i]) && nth-- == 0)
			return i;
}

static struct route_pick pick_made(const struct route_ask *ask, const struct route_cand *cands, size_t index)
{
	return (struct route_pick){ROUTE_PICKED, index, route_score(ask, &cands[index])};
}

/* Map |random| to 0..n-1. */
static size_t random_draw(uint64_t random, size_t n)
{
	return (size_t)((random >> 32) * n >> 32);
}

double route_score_least_loaded(const struct route_ask *ask, const struct route_cand *c)
{
	(void)ask;
	return -(double)route_demand(c);
}

struct route_pick route_pick_round_robin(const struct route_ask *ask, const struct route_cand *cands,
	size_t n)
{
	size_t room = count_room(ask, cands, n);
	return room > 0 ? pick_made(ask, cands, nth_with_room(ask, cands, ask->turn % room))
			: route_nobody(n);
}

struct route_pick route_pick_random(const struct route_ask *ask, const struct route_cand *cands, size_t n)
{
	size_t room = count_room(ask, cands, n);
	return room > 0
		? pick_made(ask, cands, nth_with_room(ask, cands, random_draw(mix_murmur(ask->random), room)))
		: route_nobody(n);
}

struct route_pick route_pick_power_of_two(const struct route_ask *ask, const struct route_cand *cands,
	size_t n)
{
	size_t room = count_room(ask, cands, n);
	if (room == 0)
		return route_nobody(n);
	uint64_t random = mix_murmur(ask->random);
	size_t nth = random_draw(random, room), a = nth_with_room(ask, cands, nth);
	if (room == 1)
		return pick_made(ask, cands, a);
	size_t b = nth_with_room(ask, cands, (nth + 1 + random_draw(random << 32, room - 1)) % room);
	return pick_made(ask, cands, route_demand(&cands[b]) < route_demand(&cands[a]) ? b : a);
}

/* This policy ignores held blocks, so equal nodes take turns. */
struct route_pick route_pick_least_loaded(const struct route_ask *ask, const struct route_cand *cands,
	size_t n)
{
	uint64_t least = UINT64_MAX;
	size_t equals = 0;
	for (size_t i = 0; i < n; i++) {
		uint64_t demand = route_demand(&cands[i]);
		if (!route_has_room(ask, &cands[i]) || demand > least)
			continue;
		equals = demand < least ? 1 : equals + 1;
		least = demand;
	}
	if (equals == 0)
		return route_nobody(n);
	size_t nth = route_turn(ask, equals);
	for (size_t i = 0;; i++)
		if (route_has_room(ask, &cands[i]) && route_demand(&cands[i]) == least && nth-- == 0)
			return pick_made(ask, cands, i);
}
