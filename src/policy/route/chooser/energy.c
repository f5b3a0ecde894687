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

static struct route_speed speed_known(const struct node_stats *stats)
{
	struct route_speed s = node_stats_speed(stats);
	const struct route_speed usual = ROUTE_SPEED_DEFAULT;
	s.prefill_ms = s.prefill_ms > 0 ? s.prefill_ms : usual.prefill_ms;
	return s;
}

static struct draw draw_of(const struct chooser_shared *shared, uint32_t slot,
	const struct route_speed *speed, cgn_nsec now)
{
	const struct node_stats *s = &shared->stats[slot];
	uint64_t tokens = atomic_load_explicit(&s->queued_tokens, memory_order_relaxed) +
		atomic_load_explicit(&s->others_tokens, memory_order_relaxed);
	return (struct draw){node_stats_requests(s),
		energy_board_prefill(shared->energy, slot, (double)tokens, (double)speed->prefill_ms, now)};
}

static double share_of(double seconds)
{
	return seconds < 1 ? seconds : 1;
}

static double draw_watts(const struct chooser_shared *shared, uint32_t slot, const struct draw *d,
	cgn_nsec now)
{
	return energy_board_watts(shared->energy, slot, d->streams, share_of(d->prefill), now);
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
		const struct route_speed speed = speed_known(&shared->stats[i]);
		const struct draw d = draw_of(shared, i, &speed, now);
		sum += draw_watts(shared, i, &d, now);
	}
	return sum;
}

double chooser_watts_measured(const struct chooser_shared *shared, cgn_nsec now)
{
	double sum = 0;
	uint32_t top = atomic_load_explicit(&shared->energy->top, memory_order_relaxed);
	for (uint32_t i = 0; i < top; i++)
		sum += energy_board_measured_watts(shared->energy, i, now);
	return sum;
}

/* Return the watts of all nodes without requests; 0: of some node they were not measured. */
static double watts_idle(const struct chooser_shared *shared, cgn_nsec now)
{
	struct energy_curve c;
	double sum = 0;
	uint32_t top = atomic_load_explicit(&shared->energy->top, memory_order_relaxed);
	for (uint32_t i = 0; i < top; i++) {
		unsigned flags = energy_board_get(shared->energy, i, &c);
		bool guessed = energy_known(&c)
			? (c.measured & ENERGY_MEASURED_ALONE) == 0 && (flags & ENERGY_PARKED) == 0
			: energy_board_node_watts(shared->energy, i, now) > 0;
		if (guessed)
			return 0;
		sum += energy_board_expected(shared->energy, i, 0, 0, now);
	}
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
				energy_board_expected(shared->energy, i, 1, 0, now) -
					energy_board_expected(shared->energy, i, 0, 0, now));
	}
	double idle = watts_idle(shared, now);
	return stream > 0 && idle > 0 ? idle + stream : 0;
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

/* Return the load of the node with the request. */
static struct draw draw_with(const struct route_cand *c, const struct draw *is)
{
	return (struct draw){is->streams + 1,
		is->prefill + (double)(c->uncached_tokens * c->speed.prefill_ms) * 1e-3};
}

/* Return the watts that a node draws more over the coming second if the request goes there. */
static double watts_more(const struct chooser_shared *shared, const struct route_cand *c, cgn_nsec now)
{
	const struct draw is = draw_of(shared, c->slot, &c->speed, now), then = draw_with(c, &is);
	return draw_watts(shared, c->slot, &then, now) - draw_watts(shared, c->slot, &is, now);
}

/* Is the time that the node's prompts take a guess, or the watts of that? */
static bool prompts_are_guessed(const struct chooser_shared *shared, uint32_t slot,
	const struct energy_curve *w)
{
	return !(node_stats_speed(&shared->stats[slot]).prefill_ms > 0) ||
		(w->measured & (ENERGY_MEASURED_PREFILL | ENERGY_LIMITED)) == 0;
}

/* The same of the node if it has no other request. The prompt counts only where neither its time nor its watts are a guess. */
static double watts_alone(const struct chooser_shared *shared, const struct route_cand *c,
	const struct energy_curve *w, cgn_nsec now)
{
	struct draw then = draw_with(c, &(struct draw){.streams = 0});
	if (prompts_are_guessed(shared, c->slot, w))
		then.prefill = 0;
	return energy_board_expected(shared->energy, c->slot, then.streams, share_of(then.prefill), now) -
		energy_board_expected(shared->energy, c->slot, 0, 0, now);
}

/* Return the requests at all nodes whose power is known. */
static uint64_t requests_running(const struct chooser_shared *shared)
{
	uint64_t n = 0;
	uint32_t top = atomic_load_explicit(&shared->energy->top, memory_order_relaxed);
	for (uint32_t i = 0; i < top; i++)
		n += node_stats_requests(&shared->stats[i]);
	return n;
}

/* A node of which no request was measured yet, or whose prompts are a guess, is tried with one while nothing else runs. */
static bool is_tried(const struct chooser_shared *shared, uint32_t slot, const struct energy_curve *w,
	double draw, double most)
{
	bool guessed = w->most < 2 ||
		((w->measured & ENERGY_MEASURED_PREFILL) == 0 && prompts_are_guessed(shared, slot, w));
	return w->most > 0 && guessed && draw <= most && requests_running(shared) == 0;
}

/* Bar the nodes on which the request would exceed the budget, and note what all nodes would draw with it at least. */
static void budget_bar(const struct chooser *c, const struct route_energy *e, struct route_ask *score,
	struct route_cand *cands, size_t n, cgn_nsec now)
{
	const struct chooser_shared *shared = &c->shared;
	struct energy_curve w;
	if (!(e->budget_w > 0))
		return;
	double draw = chooser_watts(shared, now), most = chooser_budget(e->budget_w), alone = 0;
	for (size_t i = 0; i < n; i++) {
		double with = draw + watts_more(shared, &cands[i], now);
		(void)energy_board_get(shared->energy, cands[i].slot, &w);
		if (cands[i].barred != ROUTE_BAR_NONE || with <= most ||
			is_tried(shared, cands[i].slot, &w, draw, most))
			continue;
		cands[i].barred = ROUTE_BAR_BUDGET;
		score->barred_w = less_of(score->barred_w, with);
		alone = less_of(alone, watts_alone(shared, &cands[i], &w, now));
	}
	double idle = score->barred_w > 0 ? watts_idle(shared, now) : 0;
	score->never_w = idle > 0 && idle + alone > most ? idle + alone : 0;
}

bool chooser_energy_claimed(const struct chooser *c, const struct chooser_ask *ask)
{
	const struct route_energy *e = &ask->rules->energy;
	bool counts = e->mode == ROUTE_ENERGY_ON && c->shared.energy != NULL && e->budget_w > 0;
	return !counts || requests_running(&c->shared) <= 1 ||
		chooser_watts(&c->shared, ask->now) <= chooser_budget(e->budget_w);
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
	return (struct energy_load){.prompts = 1,
		.prompt_tokens = t->new_tokens,
		.wholes = t->whole,
		.prompt_s = t->prompt_us * 1e-6};
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

static double whole_tokens(const struct chooser_ticket *t)
{
	return t->whole ? t->queued_tokens : 0;
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
		&(struct energy_change){.more = prompt_of(t), .whole_tokens = whole_tokens(t)}, now);
	t->energy.counted = t->energy.from.at != 0;
}

void chooser_energy_begun(const struct chooser *c, struct chooser_ticket *t, cgn_nsec now)
{
	const struct energy_instant to = load_change(c, t,
		&(struct energy_change){.less = prompt_of(t),
			.more = stream,
			.whole_tokens = -whole_tokens(t)},
		now);
	phase_add(t, &t->energy, &to);
}

void chooser_energy_left(const struct chooser *c, struct chooser_ticket *t, cgn_nsec now)
{
	const struct energy_change prompt = {.less = prompt_of(t), .whole_tokens = -whole_tokens(t)},
				   answer = {.less = stream};
	const struct energy_instant to = load_change(c, t, t->prefilling ? &prompt : &answer, now);
	phase_add(t, &t->energy, &to);
}

/* Return |v|, at least 0 and at most |most|. */
static double value_within(double v, double most)
{
	return v > 0 ? (v < most ? v : most) : 0;
}

/* Return the joules that the request can have used at most. A report corrects the sum of a token, which the request multiplies by
 * its own tokens: where the report meant another request's, that would be more than the node drew. */
static double joules_most(const struct chooser *c, const struct chooser_ticket *t,
	const struct chooser_energy *e)
{
	return c->shared.energy != NULL && e->from.at > t->at
		? energy_board_most_watts(c->shared.energy, t->slot) * (double)(e->from.at - t->at) * 1e-9
		: 0;
}

struct chooser_energy chooser_joules(const struct chooser *c, const struct chooser_ticket *t, cgn_nsec now)
{
	struct chooser_energy e = t->energy;
	if (t->booked && e.counted) {
		const struct energy_instant to =
			load_change(c, t, &(struct energy_change){.whole_tokens = 0}, now);
		phase_add(t, &e, &to);
	}
	double most = joules_most(c, t, &e), prefill = value_within(e.prefill_j, most),
	       sum = value_within(e.prefill_j + e.decode_j, most);
	e.prefill_j = prefill < sum ? prefill : sum;
	e.decode_j = sum - e.prefill_j;
	return e;
}
