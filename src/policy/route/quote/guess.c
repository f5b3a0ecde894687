/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/route/quote/guess.h"

#define MOST_MS 1e9

static double candidate_ms(const struct chooser_pick_result *p, const struct route_cand *c)
{
	struct route_terms t;
	route_terms(&p->ask, c, &t);
	double ms = t.queue_ms + t.prefill_ms + t.fetch_ms;
	return ms < MOST_MS ? ms : MOST_MS;
}

const struct route_cand *quote_candidate(const struct chooser_pick_result *p)
{
	const struct route_cand *best = NULL;
	if (p->verdict == ROUTE_PICKED)
		return &p->cands[p->index];
	for (size_t i = 0; i < p->n; i++)
		if (best == NULL || candidate_ms(p, &p->cands[i]) < candidate_ms(p, best))
			best = &p->cands[i];
	return best;
}

static double step_ms(const struct route_cand *c)
{
	double beside = (double)route_demand(c);
	if (c->width > 0 && beside > c->width - 1)
		beside = c->width - 1;
	return (double)c->speed.step_ms + (double)c->speed.batch_ms * beside;
}

/* Return the request's share of the node's energy, as the node's meter will share it out (policy/power/energy/meter.h). */
static struct quote_line joules_line(const struct energy_curve *w, const struct route_cand *c, double step)
{
	double streams = (double)c->decoding, prefill = (double)(c->uncached_tokens * c->speed.prefill_ms);
	if (!energy_known(w))
		return (struct quote_line){.known = false};
	return (struct quote_line){true,
		prefill / 1e3 * (double)w->prefill * ENERGY_PROMPT_SHARES / (ENERGY_PROMPT_SHARES + streams),
		step / 1e3 * energy_decode_watts(w, streams + 1) / (streams + 1)};
}

void quote_guess_fill(const struct chooser_ask *ask, const struct chooser_pick_result *p,
	const struct route_cand *c, const struct quote_inputs *in, struct quote_guess *out)
{
	double step = step_ms(c), here = candidate_ms(p, c);
	if (in->pair_ms > 0 && in->pair_ms < here)
		here = in->pair_ms;
	double first = in->before_ms + here + (ask->embeds ? 0 : step);
	*out = (struct quote_guess){.answer_limit = ask->answer_tokens, .answers = !ask->embeds};
	out->v[QUOTE_FINISH] = (struct quote_line){true, first, step};
	out->v[QUOTE_TTFT] = (struct quote_line){true, first, ask->whole ? step : 0};
	out->v[QUOTE_COST] = in->cost;
	out->v[QUOTE_JOULES] = joules_line(in->curve, c, step);
}

uint64_t quote_family(const struct chooser_ask *ask)
{
	return ask->blocks > 0 ? ask->chain[0] : 0;
}

uint64_t quote_cached(const struct chooser_ask *ask, const struct route_cand *c, uint64_t input)
{
	double length = ask->length > (double)ask->blocks ? ask->length : (double)ask->blocks;
	double part = length > 0 ? (double)c->held / length : 0;
	return input > 0 ? (uint64_t)((double)(input - 1) * (part < 1 ? part : 1)) : 0;
}
