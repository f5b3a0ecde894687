/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/chooser/chooser.h"

#include <math.h>
#include <stdlib.h>

#define CHOOSER_TAG 0xc4005e01U
/* tokens in a block of bytes, about, until the node's engine has counted some */
#define BLOCK_TOKENS 64
#define ANSWER_TOKENS 128
/* of a node that nobody measured */
#define PREFILL_MS   0.1F
#define STEP_MS      20.0F
#define BATCH_MS     0.2F
#define INTERFERENCE 1.0F

struct chooser {
	uint32_t tag;
	struct chooser_shared shared;
	struct kvindex_reader *reader;
	struct route_cand *cands;
	size_t cap;
	uint32_t turn;
	uint64_t random; /* of the generator: Weyl's sequence, which route_pick mixes */
};

CGN_RC chooser_new(const struct chooser_shared *shared, uint32_t seed, struct chooser **out, struct cgn_err *err)
{
	struct chooser *c = calloc(1, sizeof *c);
	if (c == NULL)
		return CGN_FAIL(err, NO_MEMORY, "chooser: out of memory");
	c->tag = CHOOSER_TAG;
	c->shared = *shared;
	c->turn = seed;
	c->random = route_hash(&seed, sizeof seed);
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

/* Of each candidate: what it holds, from its engines' own events or from what was sent there. Events name blocks of tokens: a chain of bytes is
 * in nobody's index, and so the record is all there is for it. */
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
		if (to->fed)
			to->held = kvindex_held(c->reader, to->lane, to->by_tier);
		else
			to->by_tier[KV_GPU] = to->held;
	}
}

float chooser_block_tokens(const struct choose_ask *ask, const struct cluster_cell *cell)
{
	double block = ask->block_tokens > 0 ? ask->block_tokens : cluster_cell_block_tokens(cell);
	return block > 0 ? (float)block : BLOCK_TOKENS;
}

/* What a token below the GPU saves is the weight of its tier: the rest of its computing is what fetching it takes. */
static float fetch_ms(const struct route_tiers *w, const struct route_cand *c, float block)
{
	float blocks = 0;
	for (size_t t = KV_RAM; t < KV_TIERS; t++)
		blocks += (float)c->by_tier[t] * (1 - w->weight[t]);
	return blocks * block * c->speed.prefill_ms;
}

/* What that is worth: shares and milliseconds. */
static float worth_fill(struct chooser *c, const struct choose_ask *ask, size_t n)
{
	const struct route_tiers *tiers = &ask->rules->tiers;
	double length = ask->length > 0 ? ask->length : (double)ask->blocks;
	float common = n > 0 ? HUGE_VALF : 0;
	for (size_t i = 0; i < n; i++) {
		struct route_cand *to = &c->cands[i];
		const struct cluster_cell *cell = &c->shared.cells[to->slot];
		double trust = cluster_cell_trust(cell);
		float block = chooser_block_tokens(ask, cell);
		float all = ask->prompt_tokens > 0 ? (float)ask->prompt_tokens : block * (float)length;
		float rest = all - block * (float)to->held * (float)trust;
		to->speed = (struct route_speed){PREFILL_MS, STEP_MS, BATCH_MS, INTERFERENCE, false};
		to->reuse = route_reuse(tiers, to->by_tier, trust);
		to->uncached_tokens = rest > 0 ? rest : 0;
		to->fetch_ms = fetch_ms(tiers, to, block);
		common = to->reuse < common ? to->reuse : common;
	}
	return common;
}

struct choose_pick chooser_pick(struct chooser *c, const struct choose_ask *ask)
{
	CGN_LIVE(c, CHOOSER_TAG);
	const struct view_model *m = ask->model;
	struct route_ask score = {.policy = ask->rules->policy,
		.weights = ask->rules->weights,
		.chain = ask->chain,
		.blocks = ask->blocks,
		.session = ask->session,
		.turn = c->turn,
		.max_inflight = ask->rules->max_inflight,
		.random = c->random,
		.session_bound = ask->rules->session_bound,
		.answer_tokens = ANSWER_TOKENS};
	if (m == NULL || !room(c, m->n_ready + 1))
		return (struct choose_pick){.verdict = ROUTE_NONE};
	const struct view_ask who = {ask->excluded, ask->n_excluded, .all = ask->pin != CHOOSER_NO_PIN, .now = ask->now};
	size_t n = view_candidates(m, c->shared.cells, &who, c->cands);
	n = pin_apply(c->cands, n, ask->pin);
	held_fill(c, ask, n);
	score.common = worth_fill(c, ask, n);
	struct route_pick p = route_pick(&score, c->cands, n);
	return (struct choose_pick){p.verdict, p.index, p.score, score, c->cands, n};
}

static uint32_t clamp32(double v)
{
	return v <= 0 ? 0 : v < 1e9 ? (uint32_t)v : 1000000000U;
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
		.new_tokens = clamp32((double)w->uncached_tokens),
		.at = ask->now};
	atomic_fetch_add_explicit(&cell->inflight, 1, memory_order_relaxed);
	out->ahead_tokens = clamp32((double)atomic_fetch_add_explicit(
		&cell->queued_tokens, out->new_tokens, memory_order_relaxed));
	if (!w->fed)
		route_record_add(c->shared.record, ask->chain, ask->blocks, w->slot);
	c->turn++;
	c->random += 0x9e3779b97f4a7c15ULL;
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
