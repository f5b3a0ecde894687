/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/chooser/chooser.h"

#include <stdlib.h>

#define CHOOSER_TAG 0xc4005e01U
/* tokens in a block of bytes, about, until the node's engine has counted some */
#define BLOCK_TOKENS 64

struct chooser {
	uint32_t tag;
	struct chooser_shared shared;
	struct kvindex_reader *reader;
	struct route_cand *cands;
	size_t cap;
	uint32_t turn;
};

CGN_RC chooser_new(const struct chooser_shared *shared, uint32_t seed, struct chooser **out, struct cgn_err *err)
{
	struct chooser *c = calloc(1, sizeof *c);
	if (c == NULL)
		return CGN_FAIL(err, NO_MEMORY, "chooser: out of memory");
	c->tag = CHOOSER_TAG;
	c->shared = *shared;
	c->turn = seed;
	cgn_rc rc = kvindex_reader_new(shared->index, &c->reader, err);
	if (!cgn_ok(rc)) {
		free(c);
		return rc;
	}
	*out = c;
	return CGN_OK;
}

void chooser_free(struct chooser **take)
{
	struct chooser *c = *take;
	*take = NULL;
	if (c == NULL)
		return;
	CGN_LIVE(c, CHOOSER_TAG);
	kvindex_reader_free(&c->reader);
	free(c->cands);
	c->tag = 0;
	free(c);
}

static bool room(struct chooser *c, size_t n)
{
	if (n <= c->cap)
		return true;
	struct route_cand *v = realloc(c->cands, n * sizeof *v);
	if (v == NULL)
		return false;
	c->cands = v;
	c->cap = n;
	return true;
}

/* A pinned request has one candidate or none. */
static size_t pin_apply(struct route_cand *cands, size_t n, uint32_t pin)
{
	if (pin == CHOOSER_NO_PIN)
		return n;
	for (size_t i = 0; i < n; i++) {
		if (cands[i].slot != pin)
			continue;
		cands[0] = cands[i];
		return 1;
	}
	return 0;
}

/* Of each candidate: what it holds, from its engines' own events or from what was sent there, and what that is worth. Events name blocks of
 * tokens: a chain of bytes is in nobody's index, and so the record is all there is for it. */
static void held_fill(struct chooser *c, const struct choose_ask *ask, size_t n)
{
	bool fed = false, guessed = false;
	for (size_t i = 0; i < n; i++) {
		c->cands[i].fed &= ask->block_tokens > 0;
		fed |= c->cands[i].fed;
		guessed |= !c->cands[i].fed;
	}
	if (guessed)
		route_record_match(c->shared.record, ask->chain, ask->blocks, c->cands, n);
	if (fed)
		kvindex_match(c->reader, ask->chain, ask->blocks);
	for (size_t i = 0; i < n; i++) {
		struct route_cand *to = &c->cands[i];
		uint32_t by_tier[KV_TIERS] = {[KV_GPU] = to->held};
		if (to->fed)
			to->held = kvindex_held(c->reader, to->lane, by_tier);
		to->reuse = route_reuse(
			&ask->rules->tiers, by_tier, cluster_cell_trust(&c->shared.cells[to->slot]));
	}
}

struct choose_pick chooser_pick(struct chooser *c, const struct choose_ask *ask)
{
	CGN_LIVE(c, CHOOSER_TAG);
	const struct view_model *m = ask->model;
	struct route_ask score = {.weights = ask->rules->weights,
		.max_inflight = ask->rules->max_inflight,
		.turn = c->turn,
		.blocks = ask->blocks};
	if (m == NULL || !room(c, m->n_ready + 1))
		return (struct choose_pick){.verdict = ROUTE_NONE};
	size_t n = view_candidates(m, c->shared.cells, ask->excluded, ask->n_excluded, c->cands);
	n = pin_apply(c->cands, n, ask->pin);
	score.sticky = ask->session != 0 ? ask->session : ask->blocks > 0 ? ask->chain[0] : 0;
	held_fill(c, ask, n);
	struct route_pick p = route_pick(&score, c->cands, n);
	return (struct choose_pick){p.verdict, p.index, p.score, c->cands, n};
}

static uint32_t clamp32(double v)
{
	return v <= 0 ? 0 : v < 1e9 ? (uint32_t)v : 1000000000U;
}

/* Tokens of the prompt that the node does not hold. */
static uint32_t new_tokens(const struct choose_ask *ask, const struct cluster_cell *cell, uint32_t held)
{
	double block = ask->block_tokens > 0 ? ask->block_tokens : cluster_cell_block_tokens(cell);
	if (!(block > 0))
		block = BLOCK_TOKENS;
	double length = ask->length > 0 ? ask->length : (double)ask->blocks;
	double all = ask->prompt_tokens > 0 ? (double)ask->prompt_tokens : block * length;
	return clamp32(all - block * held);
}

void chooser_book(struct chooser *c, const struct choose_ask *ask, const struct choose_pick *p, struct choose_ticket *out)
{
	CGN_LIVE(c, CHOOSER_TAG);
	CGN_MUST(p->verdict == ROUTE_PICKED && !out->booked);
	const struct route_cand *w = &p->cands[p->index];
	struct cluster_cell *cell = &c->shared.cells[w->slot];
	*out = (struct choose_ticket){.booked = true,
		.prefilling = true,
		.slot = w->slot,
		.node = w->name_hash,
		.held = w->held,
		.blocks = (uint32_t)ask->blocks,
		.new_tokens = new_tokens(ask, cell, w->held),
		.at = ask->now};
	atomic_fetch_add_explicit(&cell->inflight, 1, memory_order_relaxed);
	out->ahead_tokens = clamp32((double)atomic_fetch_add_explicit(
		&cell->queued_tokens, out->new_tokens, memory_order_relaxed));
	if (!w->fed)
		route_record_add(c->shared.record, ask->chain, ask->blocks, w->slot);
	c->turn++;
}

void chooser_begun(struct chooser *c, struct choose_ticket *t, cgn_nsec now)
{
	CGN_LIVE(c, CHOOSER_TAG);
	(void)now;
	if (!t->booked || !t->prefilling)
		return;
	struct cluster_cell *cell = &c->shared.cells[t->slot];
	t->prefilling = false;
	atomic_fetch_sub_explicit(&cell->queued_tokens, t->new_tokens, memory_order_relaxed);
	atomic_fetch_add_explicit(&cell->decoding, 1, memory_order_relaxed);
}

void chooser_release(struct chooser *c, struct choose_ticket *t)
{
	CGN_LIVE(c, CHOOSER_TAG);
	if (!t->booked)
		return;
	struct cluster_cell *cell = &c->shared.cells[t->slot];
	if (t->prefilling)
		atomic_fetch_sub_explicit(&cell->queued_tokens, t->new_tokens, memory_order_relaxed);
	else
		atomic_fetch_sub_explicit(&cell->decoding, 1, memory_order_relaxed);
	atomic_fetch_sub_explicit(&cell->inflight, 1, memory_order_relaxed);
	t->booked = false;
}
