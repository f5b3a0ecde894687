/* SPDX-License-Identifier: Apache-2.0 */
/* energy: the joules of a request at each node, and the nodes that the rules for energy leave out. */
#include "chooser_priv.h"

/* The share of the budget that is kept free, for the error of the curves. */
#define BUDGET_MARGIN 0.03

/* The load as the budget counts it: a node that computes a prompt draws what prefill draws. */
static struct energy_load budget_load(const struct node_stats *s)
{
	return (struct energy_load){.streams = atomic_load_explicit(&s->decoding, memory_order_relaxed) +
			atomic_load_explicit(&s->others_decoding, memory_order_relaxed),
		.prompt_tokens = atomic_load_explicit(&s->queued_tokens, memory_order_relaxed) +
			atomic_load_explicit(&s->others_tokens, memory_order_relaxed)};
}

static double watts_expected(const struct energy_curve *w, const struct node_stats *s)
{
	const struct energy_load load = budget_load(s);
	return load.prompt_tokens > 0 ? (double)w->prefill : energy_decode_watts(w, load.streams);
}

double chooser_watts(const struct chooser_shared *shared, cgn_nsec now)
{
	double sum = 0;
	uint32_t top = atomic_load_explicit(&shared->energy->top, memory_order_relaxed);
	for (uint32_t i = 0; i < top; i++) {
		const struct energy_load load = budget_load(&shared->stats[i]);
		sum += energy_board_watts(shared->energy, i, &load, now);
	}
	return sum;
}

static double joules_of(const struct energy_curve *w, const struct route_ask *score,
	const struct route_cand *c)
{
	const struct energy_ask a = {.streams = (double)c->inflight + c->others,
		.prefill_ms = (double)(c->uncached_tokens * c->speed.prefill_ms),
		.answer_tokens = (double)score->answer_tokens,
		.step_ms = (double)c->speed.step_ms,
		.batch_ms = (double)c->speed.batch_ms};
	return energy_marginal(w, &a);
}

static bool misses_objective(const struct route_energy *e, const struct route_ask *score,
	const struct route_cand *c)
{
	struct route_terms t;
	route_terms(score, c, &t);
	double step = (double)(c->speed.step_ms + c->speed.batch_ms * (float)(c->inflight + c->others));
	return (e->ttft_ms > 0 && t.queue_ms + t.prefill_ms + t.fetch_ms > (double)e->ttft_ms) ||
		(e->itl_ms > 0 && score->answer_tokens > 0 && step > (double)e->itl_ms);
}

/* Let nodes in again that are barred for |why|, unless a node with room is left without them. */
static void bar_lift(const struct route_ask *score, struct route_cand *cands, size_t n, enum route_bar why)
{
	for (size_t i = 0; i < n; i++)
		if (cands[i].barred == ROUTE_BAR_NONE &&
			route_room(score->max_inflight, cands[i].width, cands[i].inflight, cands[i].others) >
				0)
			return;
	for (size_t i = 0; i < n; i++)
		if (cands[i].barred == why)
			cands[i].barred = ROUTE_BAR_NONE;
}

static enum route_bar bar_of(const struct route_energy *e, const struct route_ask *score,
	const struct route_cand *c, unsigned flags)
{
	if ((flags & ENERGY_PARKED) != 0)
		return ROUTE_BAR_PARKED;
	if ((flags & ENERGY_HOT) != 0)
		return ROUTE_BAR_HOT;
	return misses_objective(e, score, c) ? ROUTE_BAR_OBJECTIVE : ROUTE_BAR_NONE;
}

static void budget_bar(const struct chooser *c, const struct route_energy *e, struct route_cand *cands,
	size_t n, cgn_nsec now)
{
	struct energy_curve w;
	double room =
		e->budget_w > 0 ? e->budget_w * (1 - BUDGET_MARGIN) - chooser_watts(&c->shared, now) : 0;
	for (size_t i = 0; e->budget_w > 0 && i < n; i++) {
		(void)energy_board_get(c->shared.energy, cands[i].slot, &w);
		double before = watts_expected(&w, &c->shared.stats[cands[i].slot]);
		double then = cands[i].uncached_tokens > 0
			? (double)w.prefill
			: energy_decode_watts(&w, (double)cands[i].decoding + 1);
		if (energy_known(&w) && then > before && then - before > room)
			cands[i].barred = ROUTE_BAR_BUDGET;
	}
}

void chooser_energy_fill(const struct chooser *c, const struct chooser_ask *ask, struct route_ask *score,
	struct route_cand *cands, size_t n)
{
	const struct route_energy *e = &ask->rules->energy;
	struct energy_curve w;
	bool known = true;
	if (e->mode == ROUTE_ENERGY_OFF || c->shared.energy == NULL)
		return;
	score->spares = e->mode == ROUTE_ENERGY_ON;
	score->ms_per_joule = e->ms_per_joule * energy_board_price_of(c->shared.energy);
	for (size_t i = 0; i < n; i++) {
		unsigned flags = energy_board_get(c->shared.energy, cands[i].slot, &w);
		cands[i].joules = energy_known(&w) ? (float)joules_of(&w, score, &cands[i]) : 0;
		cands[i].barred = (uint8_t)bar_of(e, score, &cands[i], flags);
		known &= energy_known(&w);
		score->most_joules =
			cands[i].joules > score->most_joules ? cands[i].joules : score->most_joules;
	}
	for (size_t i = 0; i < n && !known; i++) /* Joules of some nodes do not compare with nothing. */
		cands[i].joules = score->most_joules = 0;
	bar_lift(score, cands, n, ROUTE_BAR_OBJECTIVE);
	bar_lift(score, cands, n, ROUTE_BAR_HOT);
	budget_bar(c, e, cands, n, ask->now);
}

size_t chooser_energy_shadow(const struct chooser_pick_result *p)
{
	struct route_ask other = p->ask;
	if (p->verdict != ROUTE_PICKED || !(p->ask.most_joules > 0))
		return p->n;
	other.spares = true;
	const struct route_pick q = route_pick(&other, p->cands, p->n);
	return q.verdict == ROUTE_PICKED ? q.index : p->n;
}

/* ---- the joules of a request ---- */

static struct energy_load prompt_of(const struct chooser_ticket *t)
{
	return (struct energy_load){.prompts = 1, .prompt_tokens = t->new_tokens};
}

static const struct energy_load nothing, stream = {.streams = 1};

/* The load of the node changes from |less| to |more|. Return the sums before it. */
static struct energy_instant load_change(const struct chooser *c, const struct chooser_ticket *t,
	const struct energy_load *less, const struct energy_load *more, cgn_nsec now)
{
	if (c->shared.energy == NULL)
		return (struct energy_instant){.at = 0};
	return energy_board_count(c->shared.energy, t->slot, less, more, now);
}

/* Add the joules until |to| of the phase that |t| is in. A report may say less than was expected before it, so a
 * phase may have less than nothing. */
static void phase_add(const struct chooser_ticket *t, struct chooser_energy *e,
	const struct energy_instant *to)
{
	if (!e->counted || to->at == 0)
		return;
	if (t->prefilling)
		e->prefill_j += (to->token_j - e->from.token_j) * (t->new_tokens + 1.0);
	else
		e->decode_j += to->stream_j - e->from.stream_j;
	e->from = *to;
}

void chooser_energy_booked(const struct chooser *c, struct chooser_ticket *t, cgn_nsec now)
{
	const struct energy_load prompt = prompt_of(t);
	t->energy.from = load_change(c, t, &nothing, &prompt, now);
	t->energy.counted = t->energy.from.at != 0;
}

void chooser_energy_begun(const struct chooser *c, struct chooser_ticket *t, cgn_nsec now)
{
	const struct energy_load prompt = prompt_of(t);
	const struct energy_instant to = load_change(c, t, &prompt, &stream, now);
	phase_add(t, &t->energy, &to);
}

void chooser_energy_left(const struct chooser *c, struct chooser_ticket *t, cgn_nsec now)
{
	const struct energy_load prompt = prompt_of(t);
	const struct energy_instant to = load_change(c, t, t->prefilling ? &prompt : &stream, &nothing, now);
	phase_add(t, &t->energy, &to);
}

static double at_least_0(double v)
{
	return v > 0 ? v : 0;
}

struct chooser_energy chooser_joules(const struct chooser *c, const struct chooser_ticket *t, cgn_nsec now)
{
	struct chooser_energy e = t->energy;
	if (t->booked && e.counted) {
		const struct energy_instant to = load_change(c, t, &nothing, &nothing, now);
		phase_add(t, &e, &to);
	}
	double sum = at_least_0(e.prefill_j + e.decode_j), prefill = at_least_0(e.prefill_j);
	e.prefill_j = prefill < sum ? prefill : sum;
	e.decode_j = sum - e.prefill_j;
	return e;
}
