/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/power/energy/board.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LATELY_S 1.0

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
	return (struct energy_load){a->streams + b->streams, a->prompts + b->prompts,
		a->prompt_tokens + b->prompt_tokens};
}

/* Give out what the load has used until |now|, as the node's curve expects. */
static void tally_pass(const struct energy_board *b, uint32_t slot, struct energy_tally *t, cgn_nsec now)
{
	struct energy_curve c;
	cgn_nsec was = t->sums.at;
	if (now <= was)
		return;
	const struct energy_load load = load_sum(&t->ours, &t->others);
	double seconds = (double)cgn_since(now, was) * 1e-9, computing = t->computing + t->others.prompts;
	t->lately += ((computing < 1 ? computing : 1) - t->lately) * (1 - exp(-seconds / LATELY_S));
	t->sums.at = now;
	if (!is_told(t, now))
		return;
	(void)energy_board_get(b, slot, &c);
	double watts = (double)float_load(&b->seat[slot].pace) * energy_load_watts(&c, &load);
	(void)energy_share(&load, watts * seconds, &t->sums.stream_j, &t->sums.token_j);
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
	t->others = r->others;
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
	t->computing = t->ours.prompts > 0 ? t->computing + change->computing : 0;
	struct energy_instant is = t->sums;
	is.at = is_told(t, now) ? now : 0;
	tally_unlock(t);
	return is;
}

double energy_board_prefill(const struct energy_board *b, uint32_t slot, cgn_nsec now)
{
	struct energy_tally *t = tally_lock(b, slot);
	tally_pass(b, slot, t, now);
	double share = t->lately;
	tally_unlock(t);
	return share;
}

void energy_board_clear(struct energy_board *b, uint32_t slot)
{
	const struct energy_curve none = {.prefill = 0};
	energy_board_set(b, slot, &none, 0);
	energy_board_measured(b, slot, 0, 0, 0);
	atomic_store_explicit(&b->seat[slot].reported, 0, memory_order_relaxed);
	struct energy_tally *t = tally_lock(b, slot);
	t->told.at = 0;
	t->others = (struct energy_load){0};
	tally_unlock(t);
}

void energy_board_measured(struct energy_board *b, uint32_t slot, double node_w, double extra_w, cgn_nsec at)
{
	CGN_MUST(slot < b->n);
	struct energy_seat *s = &b->seat[slot];
	float_store(&s->node_w, (float)node_w);
	float_store(&s->extra_w, (float)extra_w);
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

double energy_board_watts(const struct energy_board *b, uint32_t slot, double streams, double prefill,
	cgn_nsec now)
{
	CGN_MUST(slot < b->n);
	const struct energy_seat *s = &b->seat[slot];
	struct energy_curve c;
	unsigned flags = energy_board_get(b, slot, &c);
	if (!energy_known(&c))
		return energy_board_node_watts(b, slot, now);
	bool parked = (flags & ENERGY_PARKED) != 0;
	double decode = energy_decode_watts(&c, parked ? 0 : streams);
	double watts = parked ? decode : decode + ((double)c.prefill - decode) * prefill;
	double scale = is_lately(&s->reported, now) ? (double)float_load(&s->scale) : 1;
	return watts * scale + (is_lately(&s->measured, now) ? (double)float_load(&s->extra_w) : 0);
}
