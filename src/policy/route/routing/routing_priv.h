/* SPDX-License-Identifier: Apache-2.0 */
/* routing, inside: functions that the policies share. */
#pragma once
#include "base/mix/mix.h"
#include "policy/route/routing/routing.h"

#define ROUTE_WORST (-1e30F) /* A score worse than any, also for NaN. */

#define POLICY(id, text, score, pick, unit, help)                                                        \
	double route_score_##score(const struct route_ask *ask, const struct route_cand *c);             \
	struct route_pick route_pick_##pick(const struct route_ask *ask, const struct route_cand *cands, \
		size_t n);
#include "policy/config/route_policies.def"
#undef POLICY

/* Return whose turn it is among |n| equal nodes: each once in a round of n turns, and each round begins
 * elsewhere. Routers start at different turns, so they are in step for at most a round. */
static inline size_t route_turn(const struct route_ask *ask, size_t n)
{
	return (size_t)((ask->turn + mix_murmur(ask->turn / n)) % n);
}

static inline bool route_has_room(const struct route_ask *ask, const struct route_cand *c)
{
	return !(ask->spares && c->barred != ROUTE_BAR_NONE) &&
		route_room(ask->max_inflight, c->width, c->inflight, c->others) > 0;
}

static inline struct route_pick route_nobody(size_t n)
{
	return (struct route_pick){.verdict = n == 0 ? ROUTE_NONE : ROUTE_FULL};
}

void route_terms_predicted(const struct route_ask *ask, const struct route_cand *c, struct route_terms *out);

/* Return the first in order of the candidates with room that score at least |floor|. |scores|: of all
 * candidates, ROUTE_WORST without room. */
size_t route_tie(const struct route_ask *ask, const struct route_cand *cands, const float *scores, size_t n,
	float floor);

/* Pick the best by |score|, called once per candidate. Scores within |slack| or the share |share| of the best
 * are equal. Inlined, so that |score| is inlined too. */
static inline __attribute__((always_inline)) struct route_pick route_best(const struct route_ask *ask,
	const struct route_cand *cands, size_t n,
	double (*score)(const struct route_ask *, const struct route_cand *), float slack, float share)
{
	float scores[ROUTE_MAX_NODES], top = ROUTE_WORST;
	struct route_pick p = route_nobody(n);
	for (size_t i = 0; i < n; i++) {
		scores[i] = ROUTE_WORST;
		if (!route_has_room(ask, &cands[i]))
			continue;
		float s = (float)score(ask, &cands[i]);
		scores[i] = s > ROUTE_WORST / 2 ? s : ROUTE_WORST / 2; /* NaN fails the comparison, too. */
		top = scores[i] > top ? scores[i] : top;
		p.verdict = ROUTE_PICKED;
	}
	if (p.verdict != ROUTE_PICKED)
		return p;
	p.index = route_tie(ask, cands, scores, n, top - slack - (top < 0 ? -top : top) * share);
	p.score = (double)scores[p.index];
	return p;
}
