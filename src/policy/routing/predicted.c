/* SPDX-License-Identifier: Apache-2.0 */
/* predicted: what a request costs in milliseconds, itself and those that are there. */
#include "routing_priv.h"

static double slowdown(const struct route_ask *ask, const struct route_cand *c)
{
	const struct route_speed *s = &c->speed;
	float stall = c->uncached_tokens * s->prefill_ms * s->interference, steps = 2 * ask->answer_tokens * s->batch_ms;
	return (double)((float)c->decoding * (stall + steps));
}

double route_score_predicted(const struct route_ask *ask, const struct route_cand *c)
{
	return -((double)((c->queued_tokens + c->uncached_tokens) * c->speed.prefill_ms + c->fetch_ms) + slowdown(ask, c));
}

struct route_pick route_pick_predicted(const struct route_ask *ask, const struct route_cand *cands, size_t n)
{
	return route_best(ask, cands, n, route_score_predicted, 0, (float)ROUTE_TIE_COST);
}

void route_terms_predicted(const struct route_ask *ask, const struct route_cand *c, struct route_terms *out)
{
	out->queue_ms = (double)(c->queued_tokens * c->speed.prefill_ms);
	out->prefill_ms = (double)(c->uncached_tokens * c->speed.prefill_ms);
	out->fetch_ms = (double)c->fetch_ms;
	out->slowdown_ms = slowdown(ask, c);
	out->measured = c->speed.measured;
}
