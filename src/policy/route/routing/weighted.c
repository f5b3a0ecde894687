/* SPDX-License-Identifier: Apache-2.0 */
/* weighted: the weighted sum of a node's merits, with the configured weights. */
#include "routing_priv.h"

/* 1 / width for each width in use. */
static const double per_width[ROUTE_WIDTH + 1] = {0, 1.0 / 1, 1.0 / 2, 1.0 / 3, 1.0 / 4, 1.0 / 5, 1.0 / 6,
	1.0 / 7, 1.0 / 8, 1.0 / 9, 1.0 / 10, 1.0 / 11, 1.0 / 12, 1.0 / 13, 1.0 / 14, 1.0 / 15, 1.0 / 16};

static double load_of(const struct route_cand *c)
{
	return 1 - (double)route_demand(c) * per_width[route_width(c)];
}

/* Return the weight of one block that others do not hold. */
static double block_weight(const struct route_ask *ask)
{
	size_t blocks = ask->blocks < ROUTE_MAX_BLOCKS ? ask->blocks : ROUTE_MAX_BLOCKS;
	return blocks > 0 ? ask->weights.kv / (double)blocks : 0;
}

static double power_of(const struct route_ask *ask, const struct route_cand *c)
{
	return ask->spares && ask->most_joules > 0 ? 1 - (double)(c->joules / ask->most_joules)
						   : (double)c->power_headroom;
}

static double weighted_sum(const struct route_ask *ask, const struct route_cand *c, double a_block)
{
	const struct route_weights *w = &ask->weights;
	return a_block * (double)(c->reuse - ask->common) + w->load * load_of(c) +
		w->power * power_of(ask, c) + w->capacity * (1 - (double)c->kv_usage) - (c->load_ms > 0) -
		(c->evict_ms > 0);
}

double route_score_weighted(const struct route_ask *ask, const struct route_cand *c)
{
	return weighted_sum(ask, c, block_weight(ask));
}

/* Divide once: kv is the weight of a block meanwhile. */
static double score_prepared(const struct route_ask *ask, const struct route_cand *c)
{
	return weighted_sum(ask, c, ask->weights.kv);
}

struct route_pick route_pick_weighted(const struct route_ask *ask, const struct route_cand *cands, size_t n)
{
	struct route_ask prepared = *ask;
	const struct route_weights *w = &ask->weights;
	prepared.weights.kv = block_weight(ask);
	return route_best(&prepared, cands, n, score_prepared,
		(float)(ROUTE_TIE * (w->kv + w->load + w->power + w->capacity)), 0);
}

void route_terms(const struct route_ask *ask, const struct route_cand *c, struct route_terms *out)
{
	const struct route_weights *w = &ask->weights;
	out->kv = block_weight(ask) * (double)(c->reuse - ask->common);
	out->load = w->load * load_of(c);
	out->power = w->power * power_of(ask, c);
	out->capacity = w->capacity * (1 - (double)c->kv_usage);
	route_terms_predicted(ask, c, out);
}
