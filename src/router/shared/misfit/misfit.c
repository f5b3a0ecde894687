/* SPDX-License-Identifier: Apache-2.0 */
#include "router/shared/misfit/misfit.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mix/mix.h"

#define MISFITS_TAG   0x64e40e31U
#define MODEL_SHOWN   64 /* bytes of the names that are told */
#define PATH_SHOWN    48
#define FAILURES_MOST 5 /* where failures in a row open no breaker */

/* A node with the requests that it refuses. */
struct misfit_row {
	uint64_t node, what; /* hashes; node 0: the row is free */
	uint16_t slot;
	int status;
	uint32_t refused; /* requests in a row */
	uint64_t word;    /* as of a breaker */
	cgn_nsec at;      /* instant of the last one */
	char model[MODEL_SHOWN + 1], path[PATH_SHOWN + 1];
};

struct gw_misfits {
	uint32_t tag;
	_Atomic uint32_t n; /* rows in use: while there is none, the lock is not taken */
	_Atomic bool doubted[ROUTE_MAX_NODES];
	pthread_mutex_t lock;
	struct misfit_row rows[GW_MISFITS];
	_Atomic uint64_t
		unjudged_bits; /* witness_bits of |unjudged|: without a source's bit the lock is not taken */
	struct witness_book unjudged;
};

struct gw_misfits *gw_misfits_new(void)
{
	struct gw_misfits *f = CGN_NEW(struct gw_misfits);
	f->tag = MISFITS_TAG;
	CGN_MUST(pthread_mutex_init(&f->lock, NULL) == 0);
	return f;
}

void gw_misfits_free(struct gw_misfits **take)
{
	struct gw_misfits *f = CGN_TAKE_LIVE(take, MISFITS_TAG);
	if (f == NULL)
		return;
	f->tag = 0;
	CGN_MUST(pthread_mutex_destroy(&f->lock) == 0);
	free(f);
}

bool gw_misfits_any(const struct gw_misfits *f)
{
	return f != NULL && atomic_load_explicit(&f->n, memory_order_relaxed) > 0;
}

static bool misfits_lock(struct gw_misfits *f)
{
	if (!gw_misfits_any(f))
		return false;
	CGN_LIVE(f, MISFITS_TAG);
	CGN_MUST(pthread_mutex_lock(&f->lock) == 0);
	return true;
}

static void misfits_unlock(struct gw_misfits *f)
{
	CGN_MUST(pthread_mutex_unlock(&f->lock) == 0);
}

/* ---- rows ---- */

static struct cgn_str path_of(const struct gw_misfit_kind *k)
{
	struct cgn_str rest = k->path;
	return cgn_str_split(&rest, '?');
}

static uint64_t kind_hash(const struct gw_misfit_kind *k)
{
	struct cgn_str path = path_of(k);
	uint64_t h = mix_fnv1a(mix_fnv1a(MIX_FNV1A, k->model.p, k->model.n), "", 1);
	return mix_fnv1a(h, path.p, path.n);
}

static struct misfit_row *row_find(struct gw_misfits *f, uint16_t slot, uint64_t node, uint64_t what)
{
	for (size_t i = 0; i < GW_MISFITS; i++) {
		struct misfit_row *row = &f->rows[i];
		if (row->node == node && row->what == what && row->slot == slot)
			return row;
	}
	return NULL;
}

static struct misfit_row *row_oldest(struct gw_misfits *f)
{
	struct misfit_row *oldest = &f->rows[0];
	for (size_t i = 0; i < GW_MISFITS && oldest->node != 0; i++)
		if (f->rows[i].node == 0 || f->rows[i].at < oldest->at)
			oldest = &f->rows[i];
	return oldest;
}

static void row_free(struct gw_misfits *f, struct misfit_row *row)
{
	*row = (struct misfit_row){.node = 0};
	atomic_fetch_sub_explicit(&f->n, 1, memory_order_relaxed);
}

static struct misfit_row *row_take(struct gw_misfits *f, const struct gw_suspect *s,
	const struct gw_misfit_kind *k)
{
	uint64_t what = kind_hash(k);
	struct misfit_row *row = row_find(f, s->slot, s->node, what);
	if (row != NULL)
		return row;
	row = row_oldest(f);
	if (row->node != 0)
		row_free(f, row);
	*row = (struct misfit_row){.node = s->node, .what = what, .slot = s->slot};
	(void)snprintf(row->model, sizeof row->model, "%.*s", CGN_STR_ARG(k->model));
	(void)snprintf(row->path, sizeof row->path, "%.*s", CGN_STR_ARG(path_of(k)));
	atomic_fetch_add_explicit(&f->n, 1, memory_order_relaxed);
	return row;
}

void gw_misfit_blame(struct gw_misfits *f, const struct gw_suspect *s, const struct gw_misfit_kind *k,
	const struct breaker_rules *rules, cgn_nsec now, double jitter)
{
	struct breaker_rules own = *rules;
	own.failures = own.failures > 0 ? own.failures : FAILURES_MOST;
	if (f == NULL)
		return;
	CGN_LIVE(f, MISFITS_TAG);
	CGN_MUST(pthread_mutex_lock(&f->lock) == 0);
	struct misfit_row *row = row_take(f, s, k);
	bool closed = breaker_state(row->word, now) == BREAKER_CLOSED;
	const struct breaker_input in = {.event = closed ? BREAKER_FAILED : BREAKER_TRIP,
		.reason = BREAKER_FOR_FAILURES,
		.now = now,
		.jitter = jitter};
	row->word = breaker_step(row->word, &own, &in);
	row->status = s->status;
	row->at = now;
	row->refused++;
	misfits_unlock(f);
}

void gw_misfit_clear(struct gw_misfits *f, uint16_t slot, uint64_t node, const struct gw_misfit_kind *k)
{
	if (!misfits_lock(f))
		return;
	struct misfit_row *row = row_find(f, slot, node, kind_hash(k));
	if (row != NULL)
		row_free(f, row);
	misfits_unlock(f);
}

/* ---- questions ---- */

size_t gw_misfits_add(struct gw_misfits *f, const struct view_model *m, const struct gw_misfit_kind *k,
	cgn_nsec now, uint16_t *slots, size_t n, size_t cap)
{
	size_t at = n, out = 0;
	if (!misfits_lock(f))
		return n;
	uint64_t what = kind_hash(k);
	for (size_t i = 0; i < m->n_ready && at < cap; i++) {
		const struct misfit_row *row =
			row_find(f, m->ready[i]->slot, m->ready[i]->node_id_hash, what);
		bool is_out = row != NULL && breaker_state(row->word, now) == BREAKER_OPEN;
		if (is_out)
			slots[at++] = m->ready[i]->slot;
		out += is_out;
	}
	misfits_unlock(f);
	return out < m->n_ready ? at : n;
}

static const char *row_advice(const struct misfit_row *row)
{
	switch (row->status) {
	case 401:
	case 403:
		return "look at its engine's key";
	case 402:
		return "look at the account that its engine's key belongs to";
	case 404:
	case 410:
		return "look at which models its engine serves";
	case 405:
	case 501:
		return "look at which routes its engine has";
	default:
		return "look at its engine's address, and at what stands before the engine";
	}
}

static int row_print(const struct misfit_row *row, cgn_nsec now, char *out, size_t cap)
{
	cgn_nsec left = breaker_left(row->word, now);
	char then[64] = "";
	if (left > 0)
		(void)snprintf(then, sizeof then, ", and gets none for %llu s",
			(unsigned long long)((left + CGN_SEC - 1) / CGN_SEC));
	return snprintf(out, cap,
		"misconfigured: it answered %d to %u request%s for %s at %s that another node answered%s; %s",
		row->status, row->refused, row->refused > 1 ? "s" : "", row->model, row->path, then,
		row_advice(row));
}

void gw_misfit_text(struct gw_misfits *f, uint16_t slot, uint64_t node, cgn_nsec now,
	char out[GW_MISFIT_TEXT])
{
	size_t at = 0, told = 0;
	out[0] = '\0';
	if (!misfits_lock(f))
		return;
	for (size_t i = 0; i < GW_MISFITS && told < GW_MISFIT_MODELS && at < GW_MISFIT_TEXT; i++) {
		const struct misfit_row *row = &f->rows[i];
		if (row->node != node || row->slot != slot || cgn_since(now, row->at) >= GW_MISFIT_SHOWN)
			continue;
		if (told++ > 0)
			at += (size_t)snprintf(out + at, GW_MISFIT_TEXT - at, "; ");
		if (at < GW_MISFIT_TEXT)
			at += (size_t)row_print(row, now, out + at, GW_MISFIT_TEXT - at);
	}
	misfits_unlock(f);
}

/* ---- failures that no other node has judged ---- */

bool gw_misfit_unjudged(struct gw_misfits *f, const struct witness_failure *failure)
{
	if (f == NULL)
		return true;
	CGN_LIVE(f, MISFITS_TAG);
	CGN_MUST(pthread_mutex_lock(&f->lock) == 0);
	bool counts = witness_failed(&f->unjudged, failure);
	atomic_store_explicit(&f->unjudged_bits, witness_bits(&f->unjudged), memory_order_relaxed);
	misfits_unlock(f);
	return counts;
}

void gw_misfit_answered(struct gw_misfits *f, uint64_t source, uint64_t node, cgn_nsec now)
{
	if (f == NULL ||
		(atomic_load_explicit(&f->unjudged_bits, memory_order_relaxed) & witness_bit(source)) == 0)
		return;
	CGN_LIVE(f, MISFITS_TAG);
	CGN_MUST(pthread_mutex_lock(&f->lock) == 0);
	witness_answered(&f->unjudged, source, node, now);
	atomic_store_explicit(&f->unjudged_bits, witness_bits(&f->unjudged), memory_order_relaxed);
	misfits_unlock(f);
}

/* ---- lists ---- */

void gw_misfit_doubt(struct gw_misfits *f, uint16_t slot)
{
	CGN_MUST(slot < ROUTE_MAX_NODES);
	if (f == NULL)
		return;
	atomic_store_explicit(&f->doubted[slot], true, memory_order_relaxed);
}

bool gw_misfit_doubted(struct gw_misfits *f, uint16_t slot)
{
	return atomic_load_explicit(&f->doubted[slot], memory_order_relaxed) &&
		atomic_exchange_explicit(&f->doubted[slot], false, memory_order_relaxed);
}
