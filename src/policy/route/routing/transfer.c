/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/route/routing/transfer.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/mix/mix.h"

#define WAYS    4
#define LONGEST 3.6e6  /* Milliseconds. */
#define UNIT    1024.0 /* Tokens that weigh as much as the fixed part when the error is divided. */
#define HALF    60.0   /* Seconds without samples in which pessimism halves. */

struct path_entry {
	_Atomic uint64_t key; /* 0: free. */
	_Atomic uint64_t speed;
	_Atomic uint64_t at;
};

struct transfer {
	struct path_entry entries[TRANSFER_PATHS];
};
_Static_assert(sizeof(struct transfer) == TRANSFER_BYTES, "the size is stated in the header");

struct transfer *transfer_new(void)
{
	return CGN_NEW(struct transfer);
}

void transfer_free(struct transfer **take)
{
	free(*take);
	*take = NULL;
}

static uint64_t key_of_pair(const struct transfer_path *p)
{
	return mix_murmur(p->from ^ mix_murmur(p->to ^ mix_murmur(p->kind))) | 1;
}

static uint64_t key_of_kind(const struct transfer_path *p)
{
	return mix_murmur(p->kind + MIX_GOLDEN) | 1;
}

static const struct path_entry *entry_find(const struct transfer *t, uint64_t key)
{
	const struct path_entry *row = &t->entries[key / 2 % (TRANSFER_PATHS / WAYS) * WAYS];
	for (size_t i = 0; i < WAYS; i++)
		if (atomic_load_explicit(&row[i].key, memory_order_relaxed) == key)
			return &row[i];
	return NULL;
}

/* Return the entry of |key|, else a free one of its row, else the one that learned longest ago. */
static struct path_entry *entry_make(struct transfer *t, uint64_t key)
{
	struct path_entry *row = &t->entries[key / 2 % (TRANSFER_PATHS / WAYS) * WAYS], *oldest = row;
	for (size_t i = 0; i < WAYS; i++) {
		uint64_t has = atomic_load_explicit(&row[i].key, memory_order_relaxed);
		if (has == key)
			return &row[i];
		if (atomic_load_explicit(&row[i].at, memory_order_relaxed) <
			atomic_load_explicit(&oldest->at, memory_order_relaxed))
			oldest = &row[i];
	}
	return oldest;
}

static struct transfer_speed speed_unpack(uint64_t bits)
{
	struct transfer_speed s = {0};
	uint32_t fixed = (uint32_t)(bits >> 32), token = (uint32_t)bits;
	memcpy(&s.fixed_ms, &fixed, sizeof fixed);
	memcpy(&s.token_ms, &token, sizeof token);
	return s;
}

static uint64_t speed_pack(const struct transfer_speed *s)
{
	uint32_t fixed, token;
	memcpy(&fixed, &s->fixed_ms, sizeof fixed);
	memcpy(&token, &s->token_ms, sizeof token);
	return (uint64_t)fixed << 32 | token;
}

/* Let an estimate that is slower than |prior| approach it with age. */
static float value_aged(float own, float prior, double keep)
{
	return own > prior ? prior + (own - prior) * (float)keep : own;
}

static struct transfer_speed entry_speed(const struct path_entry *e, const struct transfer_speed *prior,
	cgn_nsec now)
{
	struct transfer_speed s = speed_unpack(atomic_load_explicit(&e->speed, memory_order_relaxed));
	cgn_nsec at = atomic_load_explicit(&e->at, memory_order_relaxed);
	double keep = now > at ? exp2(-(double)cgn_since(now, at) * 1e-9 / HALF) : 1;
	return (struct transfer_speed){.fixed_ms = value_aged(s.fixed_ms, prior->fixed_ms, keep),
		.token_ms = value_aged(s.token_ms, prior->token_ms, keep)};
}

struct transfer_speed transfer_speed_of(const struct transfer *t, const struct transfer_path *path,
	const struct transfer_speed *prior, cgn_nsec now)
{
	const struct path_entry *e = t != NULL ? entry_find(t, key_of_pair(path)) : NULL;
	bool measured = e != NULL;
	if (e == NULL && t != NULL)
		e = entry_find(t, key_of_kind(path));
	struct transfer_speed s = e != NULL ? entry_speed(e, prior, now) : *prior;
	s.measured = measured;
	return s;
}

static double clamp_within(double v, double lo, double hi)
{
	return v > lo ? (v < hi ? v : hi) : lo; /* NaN becomes lo. */
}

static void speed_correct(struct transfer_speed *s, double tokens, double ms)
{
	double expected = transfer_ms(s, tokens), x = tokens / UNIT;
	double error = clamp_within(ms, expected / TRANSFER_TRUST, expected * TRANSFER_TRUST) - expected;
	double share = TRANSFER_GAIN * error / (1 + x * x);
	s->fixed_ms = (float)clamp_within((double)s->fixed_ms + share, 0.01, LONGEST);
	s->token_ms = (float)clamp_within((double)s->token_ms + share * x / UNIT, 1e-6, 1e3);
}

static void entry_learn(struct transfer *t, uint64_t key, struct transfer_speed s, double tokens, double ms,
	cgn_nsec now)
{
	struct path_entry *e = entry_make(t, key);
	speed_correct(&s, tokens, ms);
	atomic_store_explicit(&e->speed, speed_pack(&s), memory_order_relaxed);
	atomic_store_explicit(&e->at, now, memory_order_relaxed);
	atomic_store_explicit(&e->key, key, memory_order_relaxed);
}

void transfer_learn(struct transfer *t, const struct transfer_path *path, const struct transfer_speed *prior,
	double tokens, double ms, cgn_nsec now)
{
	const struct path_entry *kind = entry_find(t, key_of_kind(path));
	if (!(ms >= 0) || ms > LONGEST || !(tokens >= TRANSFER_LEAST) || tokens > 1e9)
		return;
	struct transfer_speed pair = transfer_speed_of(t, path, prior, now);
	struct transfer_speed all = kind != NULL ? entry_speed(kind, prior, now) : *prior;
	entry_learn(t, key_of_pair(path), pair, tokens, ms, now);
	entry_learn(t, key_of_kind(path), all, tokens, ms, now);
}
