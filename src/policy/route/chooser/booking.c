/* SPDX-License-Identifier: Apache-2.0 */
/* booking: a pick's load from the pick to the end of the request, and the speeds learned from it. */
#include "base/mix/mix.h"
#include "chooser_priv.h"

#define ANSWERS 64 /* Answers in the moving average of the answer length. */

static uint32_t clamp_u32(double v)
{
	return v > 0 ? (v < 1e9 ? (uint32_t)v : 1000000000U) : 0;
}

static double ms_between(cgn_nsec from, cgn_nsec to)
{
	return to > from ? (double)(to - from) * 1e-6 : 0;
}

static struct node_stats *stats_of(const struct chooser *c, const struct chooser_ticket *t)
{
	return &c->shared.stats[t->slot];
}

/* Streams at the node other than this one. */
static uint32_t streams_beside(const struct node_stats *stats)
{
	uint32_t ours = atomic_load_explicit(&stats->decoding, memory_order_relaxed);
	return (ours > 0 ? ours - 1 : 0) +
		atomic_load_explicit(&stats->others_decoding, memory_order_relaxed);
}

/* The prompt phase of a non-streamed answer is invisible. Return the tokens that are queued on average over
 * the request's time. */
static uint32_t queued_on_average(const struct chooser_pick_result *p, uint32_t tokens)
{
	const struct route_speed *s = &p->cands[p->index].speed;
	double prompt = (double)s->prefill_ms * tokens, answer = (double)(s->step_ms * p->ask.answer_tokens);
	return prompt + answer > 0 ? clamp_u32(tokens * prompt / (prompt + answer)) : tokens;
}

/* Prompts are computed one after the other: this one since the end of the previous one, or since it arrived.
 * Return how long it took. */
static cgn_nsec busy_step(struct node_stats *stats, const struct chooser_ticket *t, cgn_nsec now)
{
	cgn_nsec since = atomic_exchange_explicit(&stats->prefill_since, now, memory_order_relaxed);
	if (since < t->at)
		since = t->at;
	if (since >= now)
		return 0;
	atomic_fetch_add_explicit(&stats->prefill_total, cgn_since(now, since), memory_order_relaxed);
	return cgn_since(now, since);
}

static void load_book(struct node_stats *stats, const struct chooser_pick_result *p,
	struct chooser_ticket *out)
{
	uint64_t others = atomic_load_explicit(&stats->others_tokens, memory_order_relaxed);
	out->queued_tokens = out->whole ? queued_on_average(p, out->new_tokens) : out->new_tokens;
	if (!p->claimed)
		atomic_fetch_add_explicit(&stats->inflight, 1, memory_order_relaxed);
	if (out->whole)
		atomic_fetch_add_explicit(&stats->decoding, 1, memory_order_relaxed);
	uint64_t ours =
		atomic_fetch_add_explicit(&stats->queued_tokens, out->queued_tokens, memory_order_relaxed);
	out->ahead_tokens = clamp_u32((double)(others + ours));
	if (ours == 0)
		atomic_store_explicit(&stats->prefill_since, out->at, memory_order_relaxed);
}

/* The prompt's shared prefix ends where the longest prefix held by a candidate ends. */
static void hotprefix_book(struct chooser *c, const struct chooser_ask *ask,
	const struct chooser_pick_result *p, struct chooser_ticket *out)
{
	uint32_t held = 0;
	for (size_t i = 0; i < p->n; i++)
		held = p->cands[i].held > held ? p->cands[i].held : held;
	if (c->shared.hotprefix == NULL || held == 0 || held > ask->blocks)
		return;
	out->prefix = ask->chain[held - 1];
	out->hot = hotprefix_add(c->shared.hotprefix, out->prefix);
}

static void prompt_book(struct chooser *c, const struct chooser_ask *ask, const struct chooser_pick_result *p,
	struct chooser_ticket *out)
{
	const struct route_cand *w = &p->cands[p->index];
	struct route_terms t;
	if (w->keeps_none)
		return;
	if (!w->fed) {
		route_record_add(c->shared.record, ask->chain, ask->blocks, w->slot);
		return;
	}
	if (c->shared.pending == NULL || w->held >= ask->blocks)
		return;
	route_terms(&p->ask, w, &t);
	double ttft = t.queue_ms + t.prefill_ms + t.fetch_ms;
	cgn_nsec expected = ttft < 1e9 ? (cgn_nsec)(ttft * 1e6) : PENDING_LONGEST;
	out->pending = pending_add(c->shared.pending, ask->chain, ask->blocks, w->held, w->slot, ask->now,
		CHOOSER_LIFE + 2 * expected);
}

/* Note the hand-over that the first byte of a decode leg waits for. */
static void move_book(struct chooser *c, const struct chooser_ask *ask, const struct chooser_pick_result *p,
	struct chooser_ticket *out)
{
	struct node_stats *stats = c->shared.stats;
	const struct route_cand *w = &p->cands[p->index];
	struct route_terms t;
	if (!(w->handed_tokens > 0))
		return;
	route_terms(&p->ask, w, &t);
	uint32_t tokens = clamp_u32((double)w->handed_tokens);
	uint64_t sends =
		atomic_fetch_add_explicit(&stats[ask->from.slot].moving_tokens, tokens, memory_order_relaxed);
	uint64_t takes =
		atomic_fetch_add_explicit(&stats[w->slot].moving_tokens, tokens, memory_order_relaxed);
	out->move = (struct chooser_move){.path = {ask->from.node, w->node_id_hash, ask->handoff},
		.prior = ask->rules->disagg.prior,
		.tokens = tokens,
		.ahead = clamp_u32((double)(sends > takes ? sends : takes)),
		.from = ask->from.slot,
		.to = w->slot,
		.counted = true,
		.other_ms = (float)t.queue_ms + w->speed.step_ms,
		.since = ask->now};
}

static void move_end(struct chooser *c, struct chooser_move *m)
{
	if (!m->counted)
		return;
	m->counted = false;
	atomic_fetch_sub_explicit(&c->shared.stats[m->from].moving_tokens, m->tokens, memory_order_relaxed);
	atomic_fetch_sub_explicit(&c->shared.stats[m->to].moving_tokens, m->tokens, memory_order_relaxed);
}

/* Learn from the first byte of a decode leg how long the hand-over took. */
static void move_learn(const struct chooser *c, const struct chooser_ticket *t, cgn_nsec now)
{
	const struct chooser_move *m = &t->move;
	double ms = ms_between(m->since, now) - (double)m->other_ms;
	if (m->tokens == 0 || t->crowded || t->whole || c->shared.transfer == NULL)
		return;
	transfer_learn(c->shared.transfer, &m->path, &m->prior, (double)m->tokens + (double)m->ahead,
		ms > 0 ? ms : 0, now);
}

void chooser_moving(struct chooser_ticket *t, cgn_nsec now)
{
	t->move.since = now;
}

bool chooser_claim(struct chooser *c, const struct chooser_ask *ask, struct chooser_pick_result *p)
{
	const struct route_cand *w = &p->cands[p->index];
	struct node_stats *stats = &c->shared.stats[w->slot];
	uint32_t max = ask->rules->max_inflight,
		 now = atomic_load_explicit(&stats->inflight, memory_order_relaxed);
	bool had_room = route_room(max, w->width, w->inflight, w->others) > 0;
	CGN_MUST(p->verdict == ROUTE_PICKED && !p->claimed);
	do
		if (had_room && route_room(max, w->width, now, w->others) == 0)
			return false;
	while (!atomic_compare_exchange_weak_explicit(&stats->inflight, &now, now + 1, memory_order_relaxed,
		memory_order_relaxed));
	p->claimed = true;
	if (!chooser_energy_claimed(c, ask))
		chooser_unclaim(c, p);
	return p->claimed;
}

void chooser_unclaim(struct chooser *c, struct chooser_pick_result *p)
{
	if (p->claimed)
		atomic_fetch_sub_explicit(&c->shared.stats[p->cands[p->index].slot].inflight, 1,
			memory_order_relaxed);
	p->claimed = false;
}

/* Count the tokens of the prompt that would be computed if the picked node were not there. A lone candidate saves all that
 * it holds. */
static void saved_count(const struct chooser *c, const struct chooser_ask *ask,
	const struct chooser_pick_result *p)
{
	const struct route_cand *w = &p->cands[p->index];
	struct node_stats *stats = &c->shared.stats[w->slot];
	float least = w->uncached_tokens + (float)w->held * chooser_tokens_a_block(c, ask, stats);
	for (size_t i = 0; i < p->n && least > w->uncached_tokens; i++)
		if (i != p->index && p->cands[i].barred != ROUTE_BAR_PARKED &&
			p->cands[i].uncached_tokens < least)
			least = p->cands[i].uncached_tokens;
	if (least > w->uncached_tokens)
		atomic_fetch_add_explicit(&stats->saved_tokens,
			clamp_u32((double)(least - w->uncached_tokens)), memory_order_relaxed);
}

void chooser_book(struct chooser *c, const struct chooser_ask *ask, const struct chooser_pick_result *p,
	struct chooser_ticket *out)
{
	CGN_LIVE(c, CHOOSER_TAG);
	CGN_MUST(p->verdict == ROUTE_PICKED && !out->booked);
	const struct route_cand *w = &p->cands[p->index];
	struct node_stats *stats = &c->shared.stats[w->slot];
	*out = (struct chooser_ticket){.booked = true,
		.prefilling = true,
		.whole = ask->whole && !ask->embeds,
		.crowded = w->width > 0 && (uint64_t)w->inflight + w->others >= w->width,
		.cold = w->load_ms > 0,
		.slot = w->slot,
		.node = w->node_id_hash,
		.held = w->held,
		.blocks = (uint32_t)ask->blocks,
		.new_tokens = clamp_u32((double)w->uncached_tokens),
		.at = ask->now};
	if (w->load_ms > 0)
		warm_note(&stats->warm, ask->model->name, ask->now);
	if (out->whole)
		out->prompt_us = clamp_u32((double)(w->uncached_tokens * w->speed.prefill_ms) * 1e3) + 1;
	load_book(stats, p, out);
	chooser_energy_booked(c, out, ask->now);
	hotprefix_book(c, ask, p, out);
	move_book(c, ask, p, out);
	prompt_book(c, ask, p, out);
	if (ask->rules->counts_saved)
		saved_count(c, ask, p);
	atomic_fetch_add_explicit(c->turns, 1, memory_order_relaxed);
	c->random += MIX_GOLDEN;
}

void chooser_begun(struct chooser *c, struct chooser_ticket *t, cgn_nsec now)
{
	CGN_LIVE(c, CHOOSER_TAG);
	if (!t->booked || !t->prefilling)
		return;
	struct node_stats *stats = stats_of(c, t);
	chooser_energy_begun(c, t, now);
	t->prefilling = false;
	t->begun_at = t->whole ? 0 : now;
	atomic_fetch_sub_explicit(&stats->queued_tokens, t->queued_tokens, memory_order_relaxed);
	if (!t->whole)
		atomic_fetch_add_explicit(&stats->decoding, 1, memory_order_relaxed);
	t->beside_then = streams_beside(stats);
	cgn_nsec took = busy_step(stats, t, now);
	t->busy_then = atomic_load_explicit(&stats->prefill_total, memory_order_relaxed);
	if (!t->crowded && !t->whole && !t->cold)
		node_stats_prefill(stats, (double)took * 1e-6, (double)t->new_tokens);
	move_learn(c, t, now);
	move_end(c, &t->move);
	if (t->pending != 0)
		pending_limit(c->shared.pending, t->pending, now, CHOOSER_CONFIRM);
}

void chooser_release(struct chooser *c, struct chooser_ticket *t, cgn_nsec now)
{
	CGN_LIVE(c, CHOOSER_TAG);
	if (!t->booked)
		return;
	struct node_stats *stats = stats_of(c, t);
	chooser_energy_left(c, t, now);
	t->beside_last = streams_beside(stats);
	t->busy_last = node_stats_busy(stats, now);
	if (t->prefilling)
		atomic_fetch_sub_explicit(&stats->queued_tokens, t->queued_tokens, memory_order_relaxed);
	if (!t->prefilling || t->whole)
		atomic_fetch_sub_explicit(&stats->decoding, 1, memory_order_relaxed);
	atomic_fetch_sub_explicit(&stats->inflight, 1, memory_order_relaxed);
	if (t->hot)
		hotprefix_drop(c->shared.hotprefix, t->prefix);
	if (t->prefilling && t->pending != 0)
		pending_drop(c->shared.pending, t->pending);
	move_end(c, &t->move);
	t->booked = t->hot = false;
}

void chooser_done(struct chooser *c, struct chooser_ticket *t, const struct chooser_outcome *o, cgn_nsec now)
{
	CGN_LIVE(c, CHOOSER_TAG);
	chooser_release(c, t, now);
	if (o->answer_tokens > 0 && o->answer_tokens <= UINT32_MAX)
		c->answer_tokens += ((double)o->answer_tokens - c->answer_tokens) / ANSWERS;
	if (t->begun_at == 0 || o->answer_tokens == 0 || o->answer_tokens > UINT32_MAX)
		return;
	struct node_stats *stats = stats_of(c, t);
	double others = ((double)t->beside_then + (double)t->beside_last) / 2;
	node_stats_decode(stats, ms_between(t->begun_at, now), (double)(o->answer_tokens - 1), others,
		ms_between(t->busy_then, t->busy_last));
}
