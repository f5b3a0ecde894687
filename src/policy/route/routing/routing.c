/* SPDX-License-Identifier: Apache-2.0 */
#include "base/mix/mix.h"
#include "routing_priv.h"

static const struct route_ops {
	const char *text, *help;
	double (*score)(const struct route_ask *ask, const struct route_cand *c);
	struct route_pick (*pick)(const struct route_ask *ask, const struct route_cand *cands, size_t n);
} ops[ROUTE_POLICIES] = {
#define POLICY(id, text, score, pick, unit, help) {text, help, route_score_##score, route_pick_##pick},
#include "policy/config/route_policies.def"
#undef POLICY
};

uint64_t route_hash(const void *p, size_t n)
{
	uint64_t h = mix_murmur(mix_fnv1a(MIX_FNV1A, p, n));
	return h != 0 ? h : 1;
}

uint32_t route_room(uint32_t max, uint32_t width, uint32_t inflight, uint32_t others)
{
	uint64_t wide = (uint64_t)width + (width + 3) / 4, limit = width > 0 && wide < max ? wide : max;
	uint64_t used = (uint64_t)inflight + others, own = (limit + 4) / 5;
	uint64_t left = used < limit ? limit - used : 0, least = inflight < own ? own - inflight : 0;
	return (uint32_t)(left > least ? left : least);
}

float route_reuse(const struct route_tiers *w, const uint32_t by_tier[BLOCK_TIERS], double trust)
{
	double sum = 0;
	for (size_t t = 0; t < BLOCK_TIERS; t++)
		sum += (double)w->weight[t] * by_tier[t];
	return (float)(sum * trust);
}

bool route_policy_find(struct cgn_str text, enum route_policy *out)
{
	if (cgn_str_is(text, "kv")) {
		*out = ROUTE_KV;
		return true;
	}
	for (size_t i = 0; i < ROUTE_POLICIES; i++) {
		if (!cgn_str_is(text, ops[i].text))
			continue;
		*out = (enum route_policy)i;
		return true;
	}
	return false;
}

const char *route_policy_text(enum route_policy p)
{
	CGN_MUST((unsigned)p < ROUTE_POLICIES);
	return ops[p].text;
}

const char *route_policy_help(enum route_policy p)
{
	CGN_MUST((unsigned)p < ROUTE_POLICIES);
	return ops[p].help;
}

double route_score(const struct route_ask *ask, const struct route_cand *c)
{
	CGN_MUST((unsigned)ask->policy < ROUTE_POLICIES);
	return ops[ask->policy].score(ask, c);
}

struct route_pick route_pick(const struct route_ask *ask, const struct route_cand *cands, size_t n)
{
	CGN_MUST((unsigned)ask->policy < ROUTE_POLICIES && n <= ROUTE_MAX_NODES);
	return ops[ask->policy].pick(ask, cands, n);
}

/* Return the key that orders equal nodes that hold equally much; 0: none. */
static uint64_t tie_key(const struct route_ask *ask, uint32_t held)
{
	if (ask->session != 0 || ask->chain == NULL)
		return ask->session;
	return held < ask->blocks ? ask->chain[held] : 0;
}

/* Return the turn-th of the nodes with the least demand. */
static size_t in_turn(const struct route_ask *ask, const struct route_cand *cands, const float *scores,
	size_t n, float floor, uint32_t held)
{
	uint64_t least = UINT64_MAX;
	size_t equals = 0, best = 0;
	for (int pass = 0; pass < 2; pass++) {
		size_t nth = pass == 0 ? SIZE_MAX : route_turn(ask, equals);
		for (size_t i = 0; i < n; i++) {
			uint64_t demand = route_demand(&cands[i]);
			if (scores[i] < floor || cands[i].held != held || demand > least)
				continue;
			if (pass == 1 && nth-- == 0)
				return i;
			equals = demand < least ? 1 : equals + 1;
			least = demand;
			best = i;
		}
	}
	return best;
}

size_t route_tie(const struct route_ask *ask, const struct route_cand *cands, const float *scores, size_t n,
	float floor)
{
	uint32_t held = 0;
	size_t best = 0;
	uint64_t top = 0;
	for (size_t i = 0; i < n; i++)
		if (scores[i] >= floor && cands[i].held > held)
			held = cands[i].held;
	uint64_t key = tie_key(ask, held);
	if (key == 0)
		return in_turn(ask, cands, scores, n, floor, held);
	for (size_t i = 0; i < n; i++) {
		if (scores[i] < floor || cands[i].held != held)
			continue;
		uint64_t rank = mix_murmur(key ^ cands[i].node_id_hash) | 1;
		if (rank <= top)
			continue;
		top = rank;
		best = i;
	}
	return best;
}
