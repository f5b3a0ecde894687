/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/power/energy/board.h"

#include <stdlib.h>
#include <string.h>

static void float_store(_Atomic uint32_t *to, float v)
{
	uint32_t bits;
	memcpy(&bits, &v, sizeof bits);
	atomic_store_explicit(to, bits, memory_order_relaxed);
}

static float float_load(const _Atomic uint32_t *from)
{
	uint32_t bits = atomic_load_explicit(from, memory_order_relaxed);
	float v;
	memcpy(&v, &bits, sizeof v);
	return v;
}

static void seat_set(struct energy_seat *s, const struct energy_curve *c, unsigned flags)
{
	for (size_t k = 0; k < ENERGY_KNOTS; k++)
		float_store(&s->decode[k], c->decode[k]);
	float_store(&s->prefill, c->prefill);
	float_store(&s->most, c->most);
	atomic_store_explicit(&s->parts, c->measured, memory_order_relaxed);
	atomic_store_explicit(&s->flags, flags, memory_order_relaxed);
}

struct energy_board *energy_board_new(uint32_t n)
{
	struct energy_board *b = CGN_NEW(struct energy_board);
	b->seat = CGN_NEW_ARRAY(struct energy_seat, n);
	b->n = n;
	energy_board_price(b, 1);
	return b;
}

void energy_board_price(struct energy_board *b, double times)
{
	float_store(&b->price, (float)times);
}

double energy_board_price_of(const struct energy_board *b)
{
	return (double)float_load(&b->price);
}

void energy_board_free(struct energy_board **take)
{
	if (*take != NULL)
		free((*take)->seat);
	free(*take);
	*take = NULL;
}

void energy_board_set(struct energy_board *b, uint32_t slot, const struct energy_curve *c, unsigned flags)
{
	CGN_MUST(slot < b->n);
	seat_set(&b->seat[slot], c, flags);
	if (slot >= atomic_load_explicit(&b->top, memory_order_relaxed))
		atomic_store_explicit(&b->top, slot + 1, memory_order_relaxed);
}

unsigned energy_board_get(const struct energy_board *b, uint32_t slot, struct energy_curve *out)
{
	CGN_MUST(slot < b->n);
	const struct energy_seat *s = &b->seat[slot];
	for (size_t k = 0; k < ENERGY_KNOTS; k++)
		out->decode[k] = float_load(&s->decode[k]);
	out->prefill = float_load(&s->prefill);
	out->most = float_load(&s->most);
	out->measured = atomic_load_explicit(&s->parts, memory_order_relaxed);
	return atomic_load_explicit(&s->flags, memory_order_relaxed);
}

double energy_prompt_watts(const struct energy_board *b, uint32_t slot)
{
	struct energy_curve curve;
	if (b == NULL)
		return 0;
	(void)energy_board_get(b, slot, &curve);
	return energy_known(&curve) ? (double)(curve.prefill - curve.decode[0]) : 0;
}

/* ---- the sums ---- */

static struct energy_tally *tally_lock(const struct energy_board *b, uint32_t slot)
{
	CGN_MUST(slot < b->n);
	struct energy_tally *t = &b->seat[slot].tally;
	while (atomic_flag_test_and_set_explicit(&t->locked, memory_order_acquire))
		continue; /* For the time of a few additions. */
	return t;
}

static void tally_unlock(struct energy_tally *t)
{
	atomic_flag_clear_explicit(&t->locked, memory_order_release);
}

static bool is_told(const struct energy_tally *t, cgn_nsec now)
{
	return t->told.at != 0 && now <= t->told.at + ENERGY_STOP;
}

static struct energy_load load_sum(const struct energy_load *a, const struct energy_load *b)
{
	return (struct energy_load){.streams = a->streams + b->streams,
		.prompts = a->prompts + b->prompts,
		.prompt_tokens = a->prompt_tokens + b->prompt_tokens,
		.wholes = a->wholes + b->wholes,
		.prompt_s = a->prompt_s + b->prompt_s};
}

/* Prompts are computed one after the other: first those of |ours|. */
static void loads_pass(struct energy_tally *t, double seconds)
{
	double ours_s = t->ours.prompt_s < seconds ? t->ours.prompt_s : seconds;
	energy_load_pass(&t->ours, seconds);
	energy_load_pass(&t->others, seconds - ours_s);
}

/* Begin the turn of |at|, and forget those of a second before. */
static void turn_begin(struct energy_tally *t, cgn_nsec at)
{
	uint64_t turn = at / ENERGY_TURN,
		 first = turn > t->turn + ENERGY_LATELY ? turn - ENERGY_LATELY : t->turn;
	for (uint64_t i = first + 1; i <= turn; i++)
		t->computed_s[i % ENERGY_LATELY] = 0;
	t->turn = turn > t->turn ? turn : t->turn;
}

/* Prompts were computed from |from| to |to|. */
static void computed_add(struct energy_tally *t, cgn_nsec from, cgn_nsec to)
{
	if (to - from > 2 * CGN_SEC)
		from = to - 2 * CGN_SEC;
	for (cgn_nsec end; from < to; from = end) {
		end = (from / ENERGY_TURN + 1) * ENERGY_TURN;
		end = end < to ? end : to;
		turn_begin(t, from);
		t->computed_s[t->turn % ENERGY_LATELY] += (float)(end - from) * 1e-9F;
	}
}

static double computed_lately(const struct energy_tally *t)
{
	double sum = 0;
	for (size_t i = 0; i < ENERGY_LATELY; i++)
		sum += (double)t->computed_s[i];
	return sum;
}

/* Give out what |load| has used in |span|, as the curve |c| expects. */
static void phase_pass(struct energy_tally *t, const struct energy_curve *c, double pace,
	const struct energy_load *load, cgn_nsec span)
{
	double seconds = (double)span * 1e-9;
	if (energy_load_computes(load))
		computed_add(t, t->sums.at, t->sums.at + span);
	t->sums.at += span;
	loads_pass(t, seconds);
	if (is_told(t, t->sums.at))
		(void)energy_share(load, pace * energy_load_watts(c, load) * seconds, &t->sums.stream_j,
			&t->sums.token_j);
}

/* Give out what the load has used until |now|. */
static void tally_pass(const struct energy_board *b, uint32_t slot, struct energy_tally *t, cgn_nsec now)
{
	struct energy_curve c;
	if (now <= t->sums.at)
		return;
	(void)energy_board_get(b, slot, &c);
	double pace = (double)float_load(&b->seat[slot].pace);
	while (t->sums.at < now) {
		const struct energy_load load = load_sum(&t->ours, &t->others);
		phase_pass(t, &c, pace, &load, energy_load_lasts(&load, cgn_since(now, t->sums.at)));
	}
}

void energy_board_sums(struct energy_board *b, uint32_t slot, const struct energy_report *r)
{
	struct energy_tally *t = tally_lock(b, slot);
	const struct energy_instant *told = &r->sums;
	tally_pass(b, slot, t, told->at);
	bool begins = t->told.at == 0 || told->stream_j < t->told.stream_j || told->token_j < t->told.token_j;
	if (begins) /* The sums of a meter never fall: this is another one. */
		t->base = (struct energy_instant){t->sums.stream_j - told->stream_j,
			t->sums.token_j - told->token_j, told->at};
	t->told = *told;
	t->sums = (struct energy_instant){told->stream_j + t->base.stream_j, told->token_j + t->base.token_j,
		told->at};
	double ours_s = t->ours.prompt_s;
	t->others = r->others;
	t->others.prompt_s = r->others.prompt_s > ours_s ? r->others.prompt_s - ours_s : 0;
	float_store(&b->seat[slot].scale, (float)r->scale);
	float_store(&b->seat[slot].pace, (float)r->pace);
	tally_unlock(t);
	atomic_store_explicit(&b->seat[slot].reported, told->at, memory_order_relaxed);
}

struct energy_instant energy_board_count(struct energy_board *b, uint32_t slot,
	const struct energy_change *change, cgn_nsec now)
{
	struct energy_tally *t = tally_lock(b, slot);
	tally_pass(b, slot, t, now);
	t->ours = load_sum(&t->ours, &change->more);
	t->ours.streams -= change->less.streams;
	t->ours.prompts -= change->less.prompts;
	t->ours.prompt_tokens -= change->less.prompt_tokens;
	t->ours.wholes -= change->less.wholes;
	t->ours.prompt_s = t->ours.wholes > 0 ? t->ours.prompt_s : 0;
	t->whole_tokens = t->ours.wholes > 0 ? t->whole_tokens + change->whole_tokens : 0;
	struct energy_instant is = t->sums;
	is.at = is_told(t, now) ? now : 0;
	tally_unlock(t);
	return is;
}

double energy_board_prefill(const struct energy_board *b, uint32_t slot, double queued_tokens,
	double token_ms, cgn_nsec now)
{
	struct energy_tally *t = tally_lock(b, slot);
	tally_pass(b, slot, t, now);
	double streamed = queued_tokens > t->whole_tokens ? queued_tokens - t->whole_tokens : 0;
	turn_begin(t, now);
	double share =
		computed_lately(t) + t->ours.prompt_s + t->others.prompt_s + streamed * token_ms * 1e-3;
	tally_unlock(t);
	return share;
}

void energy_board_clear(struct energy_board *b, uint32_t slot)
{
	const struct energy_curve none = {.prefill = 0};
	energy_board_set(b, slot, &none, 0);
	energy_board_measured(b, slot, &(struct energy_measured){0}, 0);
	float_store(&b->seat[slot].most_w, 0);
	atomic_store_explicit(&b->seat[slot].reported, 0, memory_order_relaxed);
	struct energy_tally *t = tally_lock(b, slot);
	t->told.at = 0;
	t->others = (struct energy_load){0};
	tally_unlock(t);
}

/* The curve of a node of which nothing was measured. */
static struct energy_curve usual_curve(void)
{
	struct energy_model m;
	energy_model_init(&m, 0);
	m.curve.most = 0;
	return m.curve;
}

/* Return the watts of the usual curve at the node's load. */
static double usual_load_watts(const struct energy_board *b, uint32_t slot)
{
	struct energy_tally *t = tally_lock(b, slot);
	const struct energy_load load = load_sum(&t->ours, &t->others);
	tally_unlock(t);
	const struct energy_curve c = usual_curve();
	return energy_decode_watts(&c, (double)load.streams + load.prompts);
}

void energy_board_measured(struct energy_board *b, uint32_t slot, const struct energy_measured *m,
	cgn_nsec at)
{
	CGN_MUST(slot < b->n);
	struct energy_seat *s = &b->seat[slot];
	double known_w = energy_board_node_watts(b, slot, at), change = known_w - m->node_w;
	bool is_new = !(known_w > 0) || change > 1e-3 * known_w || change < -1e-3 * known_w;
	if (is_new) /* Agents tell a reading again when the load changes. */
		float_store(&s->load_w, (float)usual_load_watts(b, slot));
	float_store(&s->node_w, (float)m->node_w);
	float_store(&s->extra_w, (float)m->extra_w);
	float_store(&s->counted_w, (float)m->counted_w);
	float_store(&s->short_w, (float)m->short_w);
	if (m->counted_w > (double)float_load(&s->most_w))
		float_store(&s->most_w, (float)m->counted_w);
	atomic_store_explicit(&s->measured, at, memory_order_relaxed);
}

static bool is_lately(const _Atomic uint64_t *at, cgn_nsec now)
{
	cgn_nsec then = atomic_load_explicit(at, memory_order_relaxed);
	return then != 0 && now <= then + ENERGY_STOP;
}

double energy_board_node_watts(const struct energy_board *b, uint32_t slot, cgn_nsec now)
{
	CGN_MUST(slot < b->n);
	const struct energy_seat *s = &b->seat[slot];
	return is_lately(&s->measured, now) ? (double)float_load(&s->node_w) : 0;
}

static double at_least(double v, double least)
{
	return v > least ? v : least;
}

/* Return the watts of the curve |c| at a load; |scale| is of those beyond idle time. */
static double curve_watts(const struct energy_curve *c, double scale, double streams, double prefill)
{
	double idle = (double)c->decode[0], most = (double)c->prefill,
	       decode = energy_decode_watts(c, streams);
	if (c->most > 0 && streams > (double)c->most)
		decode = at_least(decode, most);
	double base = streams > 0 ? at_least(decode * scale, idle) : idle;
	return base * (1 - prefill) + at_least(most * scale, idle) * prefill;
}

double energy_board_most_watts(const struct energy_board *b, uint32_t slot)
{
	struct energy_curve c;
	(void)energy_board_get(b, slot, &c);
	double curve = at_least((double)c.prefill, (double)c.decode[ENERGY_KNOTS - 1]);
	return at_least(curve, (double)float_load(&b->seat[slot].most_w));
}

static double extra_of(const struct energy_seat *s, cgn_nsec now)
{
	return is_lately(&s->measured, now) ? (double)float_load(&s->extra_w) : 0;
}

double energy_board_measured_watts(const struct energy_board *b, uint32_t slot, cgn_nsec now)
{
	CGN_MUST(slot < b->n);
	const struct energy_seat *s = &b->seat[slot];
	double counted = is_lately(&s->measured, now) ? (double)float_load(&s->counted_w) : 0;
	return counted > 0 ? counted + extra_of(s, now) : energy_board_node_watts(b, slot, now);
}

/* Return the watts of the node's own curve, without |extra_w|. */
static double seat_expected(const struct energy_seat *s, const struct energy_curve *c, double streams,
	double prefill, cgn_nsec now)
{
	double scale = is_lately(&s->reported, now) ? (double)float_load(&s->scale) : 1;
	return curve_watts(c, scale, streams, prefill);
}

double energy_board_expected(const struct energy_board *b, uint32_t slot, double streams, double prefill,
	cgn_nsec now)
{
	struct energy_curve c;
	unsigned flags = energy_board_get(b, slot, &c);
	const struct energy_seat *s = &b->seat[slot];
	if (!energy_known(&c))
		return energy_board_node_watts(b, slot, now);
	if ((flags & ENERGY_PARKED) != 0)
		return (double)c.decode[0] + extra_of(s, now);
	return seat_expected(s, &c, streams, prefill, now) + extra_of(s, now);
}

/* Return the watts of a node without a curve. */
static double unknown_watts(const struct energy_seat *s, double measured, double streams, double prefill)
{
	const struct energy_curve c = usual_curve();
	double more = curve_watts(&c, 1, streams, prefill) - (double)float_load(&s->load_w);
	return measured > 0 ? measured + at_least(more, 0) : 0;
}

double energy_board_watts(const struct energy_board *b, uint32_t slot, double streams, double prefill,
	cgn_nsec now)
{
	struct energy_curve c;
	unsigned flags = energy_board_get(b, slot, &c);
	const struct energy_seat *s = &b->seat[slot];
	double expected = energy_board_expected(b, slot, streams, prefill, now);
	if (!is_lately(&s->measured, now))
		return expected;
	double measured = energy_board_measured_watts(b, slot, now);
	if ((flags & ENERGY_PARKED) != 0)
		return at_least(expected, measured); /* The node may be waking. */
	if (!energy_known(&c))
		return unknown_watts(s, measured, streams, prefill);
	return at_least(expected + (double)float_load(&s->short_w), measured);
}
