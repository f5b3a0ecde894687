/* SPDX-License-Identifier: Apache-2.0 */
/* predicted: the cost of a request in milliseconds, for itself and for the requests on the node. */
#include "routing_priv.h"

/* Return the wait for a place when all places are taken. */
static float place_ms(const struct route_ask *ask, const struct route_cand *c)
{
	uint64_t demand = route_demand(c);
	if (c->width == 0 || demand < c->width)
		return 0;
	float width = (float)c->width,
	      stream = ask->answer_tokens * (c->speed.step_ms + c->speed.batch_ms * width);
	return stream * ((float)(demand - c->width) + 1) / width;
}

static float queue_ms(const struct route_ask *ask, const struct route_cand *c)
{
	return c->queued_tokens * c->speed.prefill_ms + place_ms(ask, c) + (float)c->load_ms;
}

/* Return the delay of others: the streams that run now, and those that will run when this prompt's turn
 * comes. */
static float slowdown_ms(const struct route_ask *ask, const struct route_cand *c)
{
	const struct route_speed *s = &c->speed;
	bool answers = ask->answer_tokens > 0;
	float there = answers ? (float)route_demand(c) : (float)c->decoding,
	      charged = c->uncached_tokens - c->spared_tokens;
	float prompt =
		((ROUTE_PRESSURE + there * s->interference) * charged - c->spared_tokens) * s->prefill_ms;
	return prompt + 2 * there * ask->answer_tokens * s->batch_ms + (float)c->evict_ms;
}

static double energy_ms(const struct route_ask *ask, const struct route_cand *c)
{
	return ask->spares ? ask->ms_per_joule * (double)c->joules : 0;
}

double route_score_predicted(const struct route_ask *ask, const struct route_cand *c)
{
	return (double)-(queue_ms(ask, c) + c->uncached_tokens * c->speed.prefill_ms + c->fetch_ms +
		       slowdown_ms(ask, c)) -
		energy_ms(ask, c);
}

struct route_pick route_pick_predicted(const struct route_ask *ask, const struct route_cand *cands, size_t n)
{
	return route_best(ask, cands, n, route_score_predicted, 0, (float)ROUTE_TIE_COST);
}

void route_terms_predicted(const struct route_ask *ask, const struct route_cand *c, struct route_terms *out)
{
	out->queue_ms = (double)queue_ms(ask, c);
	out->prefill_ms = (double)(c->uncached_tokens * c->speed.prefill_ms);
	out->fetch_ms = (double)c->fetch_ms;
	out->slowdown_ms = (double)slowdown_ms(ask, c);
	out->energy_ms = energy_ms(ask, c);
	out->joules = (double)c->joules;
	out->measured = c->speed.measured;
}
