/* SPDX-License-Identifier: Apache-2.0 */
/* energy: the joules of a request at each node, and the nodes that the rules for energy leave out. */
#include "chooser_priv.h"

/* The share of the budget that is kept free, for the error of the curves. */
#define BUDGET_MARGIN 0.03

/* The load of a node over the coming second, as the budget counts it. */
struct draw {
	double streams; /* Prompts too: they are streams next. */
	double prefill; /* Seconds that its prompts took in the last second, and take in the coming one; at most 1 counts. */
};

static double seconds_of(const struct route_speed *s, double tokens)
{
	return tokens > 0 ? s->prefill_ms > 0 ? tokens * (double)s->prefill_ms * 1e-3 : 1 : 0;
}

static struct draw draw_of(const struct chooser_shared *shared, uint32_t slot,
	const struct route_speed *speed, cgn_nsec now)
{
	const struct node_stats *s = &shared->stats[slot];
	uint64_t tokens = atomic_load_explicit(&s->queued_tokens, memory_order_relaxed) +
		atomic_load_explicit(&s->others_tokens, memory_order_relaxed);
	return (struct draw){node_stats_requests(s),
		energy_board_prefill(shared->energy, slot, now) + seconds_of(speed, (double)tokens)};
}

static double draw_watts(const struct chooser_shared *shared, uint32_t slot, const struct draw *d,
	cgn_nsec now)
{
	return energy_board_watts(shared->energy, slot, d->streams, d->prefill < 1 ? d->prefill : 1, now);
}

double chooser_budget(double budget_w)
{
	return budget_w * (1 - BUDGET_MARGIN);
}

double chooser_watts(const struct chooser_shared *shared, cgn_nsec now)
{
	double sum = 0;
	uint32_t top = atomic_load_explicit(&shared->energy->top, memory_order_relaxed);
	for (uint32_t i = 0; i < top; i++) {
		const struct route_speed speed = node_stats_speed(&shared->stats[i]);
		const struct draw d = draw_of(shared, i, &speed, now);
		sum += draw_watts(shared, i, &d, now);
	}
	return sum;
}

/* Return the watts of all nodes without requests. */
static double watts_idle(const struct chooser_shared *shared, cgn_nsec now)
{
	double sum = 0;
	uint32_t top = atomic_load_explicit(&shared->energy->top, memory_order_relaxed);
	for (uint32_t i = 0; i < top; i++)
		sum += energy_board_watts(shared->energy, i, 0, 0, now);
	return sum;
}

/* Return the lower one; |a| 0: |b|. */
static double less_of(double a, double b)
{
	return a > 0 && a < b ? a : b;
}

double chooser_watts_least(const struct chooser_shared *shared, cgn_nsec now)
{
	struct energy_curve c;
	double stream = 0;
	uint32_t top = atomic_load_explicit(&shared->energy->top, memory_order_relaxed);
	for (uint32_t i = 0; i < top; i++) {
		unsigned flags = energy_board_get(shared->energy, i, &c);
		if (energy_known(&c) && (flags & ENERGY_PARKED) == 0)
			stream = less_of(stream,
				energy_board_watts(shared->energy, i, 1, 0, now) -
					energy_board_watts(shared->energy, i, 0, 0, now));
	}
	return stream > 0 ? watts_idle(shared, now) + stream : 0;
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
	if ((flags & (ENERGY_PARKED | ENERGY_LEAVING)) != 0)
		return ROUTE_BAR_PARKED;
	if ((flags & ENERGY_HOT) != 0)
		return ROUTE_BAR_HOT;
	return misses_objective(e, score, c) ? ROUTE_BAR_OBJECTIVE : ROUTE_BAR_NONE;
}

/* Return the watts that a node with the load |is| draws more over the coming second if the request goes there. */
static double watts_more(const struct chooser_shared *shared, const struct route_cand *c,
	const struct draw *is, cgn_nsec now)
{
	const struct draw then = {is->streams + 1,
		is->prefill + seconds_of(&c->speed, (double)c->uncached_tokens)};
	return draw_watts(shared, c->slot, &then, now) - draw_watts(shared, c->slot, is, now);
}

/* Bar the nodes on which the request would exceed the budget, and note what all nodes would draw with it at least. */
static void budget_bar(const struct chooser *c, const struct route_energy *e, struct route_ask *score,
	struct route_cand *cands, size_t n, cgn_nsec now)
{
	const struct draw idle = {.streams = 0};
	struct energy_curve w;
	if (!(e->budget_w > 0))
		return;
	double draw = chooser_watts(&c->shared, now), most = chooser_budget(e->budget_w), alone = 0;
	for (size_t i = 0; i < n; i++) {
		const struct draw is = draw_of(&c->shared, cands[i].slot, &cands[i].speed, now);
		(void)energy_board_get(c->shared.energy, cands[i].slot, &w);
		double more = energy_known(&w) ? watts_more(&c->shared, &cands[i], &is, now) : 0;
		if (cands[i].barred != ROUTE_BAR_NONE || draw + more <= most)
			continue;
		cands[i].barred = ROUTE_BAR_BUDGET;
		score->barred_w = less_of(score->barred_w, draw + more);
		alone = less_of(alone, watts_more(&c->shared, &cands[i], &idle, now));
	}
	score->never_w = score->barred_w > 0 ? watts_idle(&c->shared, now) + alone : 0;
	score->never_w = score->never_w > most ? score->never_w : 0;
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
	budget_bar(c, e, score, cands, n, ask->now);
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

static const struct energy_load stream = {.streams = 1};

/* The load of the node changes. Return the sums before it. */
static struct energy_instant load_change(const struct chooser *c, const struct chooser_ticket *t,
	const struct energy_change *change, cgn_nsec now)
{
	if (c->shared.energy == NULL)
		return (struct energy_instant){.at = 0};
	return energy_board_count(c->shared.energy, t->slot, change, now);
}

/* Return the share of its time in which the prompt of |t| is computed: a whole answer shows its first byte with its last. */
static double computing_of(const struct chooser_ticket *t)
{
	return t->whole && t->new_tokens > 0 ? (double)t->queued_tokens / t->new_tokens : 1;
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
	t->energy.from = load_change(c, t,
		&(struct energy_change){.more = prompt_of(t), .computing = computing_of(t)}, now);
	t->energy.counted = t->energy.from.at != 0;
}

void chooser_energy_begun(const struct chooser *c, struct chooser_ticket *t, cgn_nsec now)
{
	const struct energy_instant to = load_change(c, t,
		&(struct energy_change){.less = prompt_of(t), .more = stream, .computing = -computing_of(t)},
		now);
	phase_add(t, &t->energy, &to);
}

void chooser_energy_left(const struct chooser *c, struct chooser_ticket *t, cgn_nsec now)
{
	const struct energy_change prompt = {.less = prompt_of(t), .computing = -computing_of(t)},
				   answer = {.less = stream};
	const struct energy_instant to = load_change(c, t, t->prefilling ? &prompt : &answer, now);
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
		const struct energy_instant to =
			load_change(c, t, &(struct energy_change){.computing = 0}, now);
		phase_add(t, &e, &to);
	}
	double sum = at_least_0(e.prefill_j + e.decode_j), prefill = at_least_0(e.prefill_j);
	e.prefill_j = prefill < sum ? prefill : sum;
	e.decode_j = sum - e.prefill_j;
	return e;
}
