/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/routing/routing.h"

static uint64_t mix(uint64_t h)
{
	h ^= h >> 33;
	h *= 0xff51afd7ed558ccdULL;
	h ^= h >> 33;
	h *= 0xc4ceb9fe1a85ec53ULL;
	return h ^ h >> 33;
}

uint64_t route_hash(const void *p, size_t n)
{
	const unsigned char *b = p;
	uint64_t h = 0xcbf29ce484222325ULL;
	for (size_t i = 0; i < n; i++)
		h = (h ^ b[i]) * 0x100000001b3ULL;
	h = mix(h);
	return h != 0 ? h : 1;
}

static double demand_of(const struct route_cand *c)
{
	return (double)c->inflight + (double)c->others;
}

static double width_of(const struct route_cand *c)
{
	return c->width == 0 || c->width > ROUTE_WIDTH ? ROUTE_WIDTH : c->width;
}

float route_reuse(const struct route_tiers *w, const uint32_t by_tier[KV_TIERS], double trust)
{
	double sum = 0;
	for (size_t t = 0; t < KV_TIERS; t++)
		sum += (double)w->weight[t] * by_tier[t];
	return (float)(sum * trust);
}

double route_score(const struct route_ask *ask, const struct route_cand *c)
{
	const struct route_weights *w = &ask->weights;
	size_t blocks = ask->blocks < ROUTE_MAX_BLOCKS ? ask->blocks : ROUTE_MAX_BLOCKS;
	double overlap = blocks > 0 ? (double)c->reuse / (double)blocks : 0;
	return w->kv * overlap + w->load * (1 - demand_of(c) / width_of(c)) +
	       w->power * (double)c->power_headroom + w->capacity * (1 - (double)c->kv_usage);
}

static bool has_room(const struct route_ask *ask, const struct route_cand *c)
{
	return c->inflight < ask->max_inflight;
}

/* Of two whose scores are equal, does |a| go before |b|? */
static bool tie_is_better(const struct route_ask *ask, const struct route_cand *a, const struct route_cand *b)
{
	if (a->held != b->held)
		return a->held > b->held;
	if (ask->sticky != 0)
		return mix(ask->sticky ^ a->name_hash) > mix(ask->sticky ^ b->name_hash);
	if (demand_of(a) < demand_of(b) || demand_of(b) < demand_of(a))
		return demand_of(a) < demand_of(b);
	return false;
}

/* Of those as good as |best|, the turn-th. */
static size_t in_turn(
	const struct route_ask *ask, const struct route_cand *cands, size_t n, double floor, size_t best)
{
	size_t equals = 0;
	for (int pass = 0; pass < 2; pass++) {
		size_t nth = pass == 0 ? SIZE_MAX : ask->turn % equals;
		for (size_t i = 0; i < n; i++) {
			const struct route_cand *c = &cands[i];
			if (!has_room(ask, c) || route_score(ask, c) < floor ||
				tie_is_better(ask, &cands[best], c))
				continue;
			if (pass == 0)
				equals++;
			else if (nth-- == 0)
				return i;
		}
	}
	return best;
}

struct route_pick route_pick(const struct route_ask *ask, const struct route_cand *cands, size_t n)
{
	struct route_pick p = {.verdict = n == 0 ? ROUTE_NONE : ROUTE_FULL};
	double top = -1e300;
	for (size_t i = 0; i < n; i++)
		if (has_room(ask, &cands[i]) && route_score(ask, &cands[i]) > top)
			top = route_score(ask, &cands[i]);
	for (size_t i = 0; i < n; i++) {
		const struct route_cand *c = &cands[i];
		if (!has_room(ask, c) || route_score(ask, c) < top - ROUTE_TIE)
			continue;
		if (p.verdict != ROUTE_PICKED || tie_is_better(ask, c, &cands[p.index]))
			p.index = i;
		p.verdict = ROUTE_PICKED;
	}
	if (p.verdict != ROUTE_PICKED)
		return p;
	if (ask->sticky == 0)
		p.index = in_turn(ask, cands, n, top - ROUTE_TIE, p.index);
	p.score = route_score(ask, &cands[p.index]);
	return p;
}
