/* SPDX-License-Identifier: Apache-2.0 */
#include "base/unlikely/unlikely.h"
#include "chooser_priv.h"

#include <math.h>
#include <stdlib.h>

/* Assumed tokens in a block of bytes until the node's engine has counted some. */
#define BLOCK_TOKENS  64
#define ANSWER_TOKENS 128 /* Assumed tokens of an answer before the first one. */
/* Picks between updates of the fleet's median; the first updates come after 1, 2, 4, ... picks. */
#define FLEET_MOST 256
#define MEDIAN_OF  31 /* Measured nodes, at most, in the median. */
#define SPREAD     16 /* A node counts as at most this many times faster or slower than the median. */

CGN_RC chooser_new(const struct chooser_shared *shared, uint32_t seed, struct chooser **out,
	struct cgn_err *err)
{
	CGN_ON_EXIT(chooser_free) struct chooser *c = CGN_NEW(struct chooser);
	c->tag = CHOOSER_TAG;
	c->shared = *shared;
	c->turns = shared->turns != NULL ? shared->turns : &c->own_turns;
	atomic_fetch_add_explicit(c->turns, seed, memory_order_relaxed);
	c->answer_tokens = ANSWER_TOKENS;
	c->random = route_hash(&seed, sizeof seed);
	CGN_TRY(kvindex_reader_new(shared->index, &c->reader, err));
	*out = CGN_TAKE(&c);
	return CGN_OK;
}

void chooser_free(struct chooser **take)
{
	struct chooser *c = CGN_TAKE_LIVE(take, CHOOSER_TAG);
	if (c == NULL)
		return;
	kvindex_reader_free(&c->reader);
	free(c->cands);
	free(c->scratch);
	c->tag = 0;
	free(c);
}

static void cands_reserve(struct chooser *c, size_t n)
{
	if (n <= c->cap)
		return;
	c->cands = CGN_GROWN(c->cands, n);
	c->scratch = CGN_GROWN(c->scratch, n);
	c->cap = n;
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

bool chooser_role_fits(const struct chooser_ask *ask, int role)
{
	if (ask->prefill || ask->continues)
		return role == COGNITORA__V1__ROLE__ROLE_PREFILL;
	return role != (ask->embeds ? COGNITORA__V1__ROLE__ROLE_DECODE : COGNITORA__V1__ROLE__ROLE_PREFILL);
}

size_t chooser_roles(const struct chooser_ask *ask, struct route_cand *cands, size_t n)
{
	size_t fit = 0;
	for (size_t i = 0; i < n; i++)
		fit += chooser_role_fits(ask, cands[i].role);
	if (fit == 0 || fit == n)
		return n;
	size_t kept = 0;
	for (size_t i = 0; i < n; i++)
		if (chooser_role_fits(ask, cands[i].role))
			cands[kept++] = cands[i];
	return kept;
}

/* Remove the nodes whose engines answer only requests that another engine computed, unless there are no others. */
static size_t alone_apply(struct route_cand *cands, size_t n)
{
	size_t fit = 0, kept = 0;
	for (size_t i = 0; i < n; i++)
		fit += cands[i].alone;
	if (fit == 0 || fit == n)
		return n;
	for (size_t i = 0; i < n; i++)
		if (cands[i].alone)
			cands[kept++] = cands[i];
	return kept;
}

/* Remove the candidates that can't be the other end of the hand-off. */
static size_t handoff_apply(struct route_cand *cands, size_t n, uint64_t handoff)
{
	size_t kept = 0;
	if (handoff == 0)
		return n;
	for (size_t i = 0; i < n; i++)
		if (cands[i].handoff == handoff)
			cands[kept++] = cands[i];
	return kept;
}

/* Return true if the blocks that the node reports may be those of the prompt. */
static bool reports_count(const struct chooser_ask *ask, const struct route_cand *cand)
{
	if (!cand->fed || cand->fed_bytes)
		return cand->fed;
	return ask->block_tokens > 0 && (cand->chain_tokens == 0 || cand->chain_tokens == ask->block_tokens);
}

/* Fill in the blocks that each candidate holds, from its engines' events or from the record of sent prompts.
 * Events name blocks of tokens, so a chain of bytes is only in the record. */
static void held_fill(struct chooser *c, const struct chooser_ask *ask, size_t n)
{
	bool fed = false, guessed = false;
	for (size_t i = 0; i < n; i++) {
		c->cands[i].fed = reports_count(ask, &c->cands[i]);
		fed |= c->cands[i].fed;
		guessed |= !c->cands[i].fed || c->cands[i].fed_lately;
	}
	if (guessed)
		route_record_match(c->shared.record, ask->chain, ask->blocks, c->cands, n);
	if (fed)
		kvindex_leap(c->reader, ask->chain, ask->blocks);
	for (size_t i = 0; i < n; i++) {
		struct route_cand *to = &c->cands[i];
		uint32_t recorded = to->held;
		to->held = to->fed ? kvindex_held(c->reader, to->index_id, to->by_tier) : 0;
		if (recorded > to->held)
			to->by_tier[BLOCK_GPU] += recorded - to->held;
		to->held = recorded > to->held ? recorded : to->held;
	}
	if (fed && c->shared.pending != NULL)
		pending_match(c->shared.pending, ask->chain, ask->blocks, c->cands, n, ask->now);
}

static int float_order(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;
	return (x > y) - (x < y);
}

/* Return the median of |v|, or |otherwise| when |n| is 0. */
static float median_of(float *v, size_t n, float otherwise)
{
	qsort(v, n, sizeof v[0], float_order);
	return n > 0 ? v[n / 2] : otherwise;
}

/* Return the fleet's median speeds, from a sample of nodes. */
static struct route_speed fleet_of(const struct route_cand *cands, size_t n)
{
	const struct route_speed none = ROUTE_SPEED_DEFAULT;
	float prefill[MEDIAN_OF], step[MEDIAN_OF], batch[MEDIAN_OF], interference[MEDIAN_OF];
	size_t n_prefill = 0, n_step = 0, stride = n / MEDIAN_OF + 1;
	for (size_t i = 0; i < n; i += stride) {
		const struct route_speed *s = &cands[i].speed;
		if (s->prefill_ms > 0)
			prefill[n_prefill++] = s->prefill_ms;
		if (!(s->step_ms > 0))
			continue;
		batch[n_step] = s->batch_ms / s->step_ms;
		interference[n_step] = s->interference;
		step[n_step++] = s->step_ms;
	}
	return (struct route_speed){.prefill_ms = median_of(prefill, n_prefill, none.prefill_ms),
		.step_ms = median_of(step, n_step, none.step_ms),
		.batch_ms = median_of(batch, n_step, none.batch_ms / none.step_ms),
		.interference = median_of(interference, n_step, none.interference)};
}

/* Limit the distance from the median: a node whose first prompt took minutes, or whose engine miscounts
 * tokens, must not be excluded or preferred for ever. It is tried again once the other nodes have that much
 * work. */
static float near_middle(float own, float middle)
{
	if (!(own > 0))
		return middle;
	return own > middle * SPREAD ? middle * SPREAD : own < middle / SPREAD ? middle / SPREAD : own;
}

/* Return the median of the tokens in a block of bytes, from a sample of nodes; 0: none has counted some. */
static float fleet_blocks(const struct chooser *c, size_t n)
{
	float block[MEDIAN_OF];
	size_t k = 0, stride = n / MEDIAN_OF + 1;
	for (size_t i = 0; i < n; i += stride) {
		double own = node_stats_block_tokens(&c->shared.stats[c->cands[i].slot]);
		if (own > 0)
			block[k++] = (float)own;
	}
	return median_of(block, k, 0);
}

/* Nodes without measurements get the median. The effect of further streams or prompts on a step, as a share,
 * depends on the engine rather than the node and is hard to measure: it is the median's for all nodes,
 * because otherwise the node with the luckiest error would get the most requests. */
static void speeds_fill(struct chooser *c, const struct chooser_ask *ask, size_t n)
{
	if (n == 0) /* ask->model may be NULL. */
		return;
	if (c->fleet_left == 0 || c->fleet_key != ask->model->key || unlikely_way(UNLIKELY_speeds_again)) {
		c->fleet = fleet_of(c->cands, n);
		c->fleet_block_tokens = fleet_blocks(c, n);
		c->fleet_span = c->fleet_key != ask->model->key ? 1
			: c->fleet_span < FLEET_MOST            ? 2 * c->fleet_span
								: FLEET_MOST;
		c->fleet_key = ask->model->key;
		c->fleet_left = c->fleet_span;
	}
	c->fleet_left--;
	for (size_t i = 0; i < n; i++) {
		struct route_speed *s = &c->cands[i].speed;
		s->prefill_ms = near_middle(s->prefill_ms, c->fleet.prefill_ms);
		s->step_ms = near_middle(s->step_ms, c->fleet.step_ms);
		s->batch_ms = c->fleet.batch_ms * s->step_ms;
		s->interference = c->fleet.interference;
	}
}

float chooser_block_tokens(const struct chooser_ask *ask, const struct node_stats *stats)
{
	double block = ask->block_tokens > 0 ? ask->block_tokens : node_stats_block_tokens(stats);
	return block > 0 ? (float)block : BLOCK_TOKENS;
}

/* A prefill node answers nothing, so that its engine never counts a prompt. */
float chooser_tokens_a_block(const struct chooser *c, const struct chooser_ask *ask,
	const struct node_stats *stats)
{
	bool known = ask->block_tokens > 0 || node_stats_block_tokens(stats) > 0;
	return known || !(c->fleet_block_tokens > 0) ? chooser_block_tokens(ask, stats)
						     : c->fleet_block_tokens;
}

/* The weight of a tier is the share of computing that a block there saves; the rest is the time to fetch
 * it. */
static float fetch_ms(const struct route_tiers *w, const struct route_cand *c, float block)
{
	float blocks = 0;
	for (size_t t = BLOCK_RAM; t < BLOCK_TIERS; t++)
		blocks += (float)c->by_tier[t] * (1 - w->weight[t]);
	return blocks * block * c->speed.prefill_ms;
}

/* Fill in reuse, uncached tokens and fetch time. */
static void worth_fill(struct chooser *c, const struct chooser_ask *ask, size_t n)
{
	double length = ask->length > 0 ? ask->length : (double)ask->blocks;
	for (size_t i = 0; i < n; i++) {
		struct route_cand *to = &c->cands[i];
		const struct node_stats *stats = &c->shared.stats[to->slot];
		float trust = (float)node_stats_trust(stats), block = chooser_tokens_a_block(c, ask, stats);
		float all = ask->prompt_tokens > 0 ? (float)ask->prompt_tokens : block * (float)length;
		float rest = all - block * (float)to->held * trust;
		to->reuse = route_reuse(&ask->rules->tiers, to->by_tier, (double)trust);
		to->uncached_tokens = rest > 0 ? rest : 0;
		to->fetch_ms = fetch_ms(&ask->rules->tiers, to, block);
	}
}

/* Spare further holders of a hot prefix a part of its cost (routing.h). */
static void tokens_spare(struct chooser *c, const struct chooser_ask *ask, size_t n, uint32_t held,
	float part)
{
	for (size_t i = 0; i < n; i++) {
		struct route_cand *to = &c->cands[i];
		float missing = part * (float)(held - to->held),
		      block = chooser_tokens_a_block(c, ask, &c->shared.stats[to->slot]);
		to->spared_tokens =
			missing * block < to->uncached_tokens ? missing * block : to->uncached_tokens;
		to->reuse += missing * ask->rules->tiers.weight[BLOCK_GPU];
	}
}

/* Check whether more requests want the longest held prefix than its holders have width for. */
static void hotprefix_fill(struct chooser *c, const struct chooser_ask *ask, size_t n)
{
	uint32_t held = 0, width = 0;
	for (size_t i = 0; i < n; i++)
		held = c->cands[i].held > held ? c->cands[i].held : held;
	if (c->shared.hotprefix == NULL || held == 0 || held > ask->blocks)
		return;
	uint32_t wanted = hotprefix_count(c->shared.hotprefix, ask->chain[held - 1]) + 1;
	for (size_t i = 0; i < n; i++)
		if (c->cands[i].held == held)
			width += route_width(&c->cands[i]);
	if (wanted > width)
		tokens_spare(c, ask, n, held,
			wanted < 2 * width ? (float)(wanted - width) / (float)width : 1);
}

float chooser_common(const struct route_cand *cands, size_t n)
{
	float common = n > 0 ? cands[0].reuse : 0;
	for (size_t i = 1; i < n; i++)
		common = cands[i].reuse < common ? cands[i].reuse : common;
	return common;
}

/* Return the answer length that the client expects, else the average; at most the request's maximum. */
static float answer_expected(const struct chooser *c, const struct chooser_ask *ask)
{
	double most = (double)ask->answer_tokens;
	double usual = ask->answer_hint > 0 ? (double)ask->answer_hint : c->answer_tokens;
	if (ask->embeds)
		return 0;
	return (float)(most > 0 && most < usual ? most : usual);
}

/* Return the tokens that move before those of a prompt that comes from |from| to the node of |slot|. */
static double tokens_moving(const struct chooser *c, const struct chooser_source *from, uint16_t slot)
{
	const struct node_stats *s = c->shared.stats;
	uint64_t out = atomic_load_explicit(&s[from->slot].moving_tokens, memory_order_relaxed),
		 in = atomic_load_explicit(&s[slot].moving_tokens, memory_order_relaxed);
	return (double)(out > in ? out : in);
}

void chooser_hand_over(const struct chooser *c, const struct chooser_ask *ask, const struct chooser_way *way,
	struct route_cand *cands, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		struct route_cand *to = &cands[i];
		const struct transfer_path path = {way->from.node, to->node_id_hash, way->handoff};
		if (to->handoff != way->handoff || to->node_id_hash == way->from.node)
			continue;
		const struct transfer_speed s =
			transfer_speed_of(c->shared.transfer, &path, &ask->rules->disagg.prior, ask->now);
		double ahead = tokens_moving(c, &way->from, to->slot) + way->ahead_tokens;
		double wait = ahead * (double)s.token_ms - way->until_ms;
		to->handed_tokens = to->uncached_tokens;
		to->fetch_ms += (float)(transfer_ms(&s, (double)to->uncached_tokens) + (wait > 0 ? wait : 0));
		to->uncached_tokens = to->spared_tokens = 0;
		float done = (float)way->until_ms /
			to->speed.prefill_ms; /* Tokens that the node computes until then. */
		to->queued_tokens = done < to->queued_tokens ? to->queued_tokens - done : 0;
	}
}

/* Count handed blocks as held, after the pick: among equal nodes, the one with a longer prefix of its own wins. */
static void handed_credit(const struct chooser_ask *ask, struct route_cand *cands, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		struct route_cand *to = &cands[i];
		if (!(to->handed_tokens > 0) || to->held >= ask->blocks)
			continue;
		to->by_tier[BLOCK_REMOTE] += (uint32_t)ask->blocks - to->held;
		to->held = (uint32_t)ask->blocks;
	}
}

static size_t cands_find(struct chooser *c, const struct chooser_ask *ask)
{
	CGN_LIVE(c, CHOOSER_TAG);
	const struct view_model *m = ask->model;
	if (m == NULL)
		return 0;
	cands_reserve(c, m->n_ready + 1);
	const struct view_ask who = {ask->excluded, ask->n_excluded, .all = ask->pin != CHOOSER_NO_PIN,
		.now = ask->now};
	return handoff_apply(c->cands, view_candidates(m, c->shared.stats, &who, c->cands), ask->handoff);
}

size_t chooser_match_all(struct chooser *c, const struct chooser_ask *ask)
{
	size_t n = cands_find(c, ask);
	held_fill(c, ask, n);
	return n;
}

size_t chooser_match(struct chooser *c, const struct chooser_ask *ask)
{
	size_t n = cands_find(c, ask);
	n = ask->pin == CHOOSER_NO_PIN ? chooser_roles(ask, c->cands, n) : pin_apply(c->cands, n, ask->pin);
	if (ask->pin == CHOOSER_NO_PIN && !ask->prefill && ask->handoff == 0)
		n = alone_apply(c->cands, n);
	held_fill(c, ask, n);
	return n;
}

void chooser_weigh(struct chooser *c, const struct chooser_ask *ask, size_t n)
{
	speeds_fill(c, ask, n);
	worth_fill(c, ask, n);
	hotprefix_fill(c, ask, n);
}

struct route_ask chooser_route_ask(const struct chooser *c, const struct chooser_ask *ask)
{
	return (struct route_ask){.policy = chooser_policy(ask),
		.weights = ask->rules->weights,
		.chain = ask->chain,
		.blocks = ask->blocks,
		.session = ask->session,
		.turn = atomic_load_explicit(c->turns, memory_order_relaxed),
		.max_inflight = ask->rules->max_inflight,
		.random = c->random,
		.session_bound = ask->rules->session_bound,
		.answer_tokens = answer_expected(c, ask)};
}

struct chooser_pick_result chooser_choose(struct chooser *c, const struct chooser_ask *ask, size_t n)
{
	CGN_LIVE(c, CHOOSER_TAG);
	struct route_ask score = chooser_route_ask(c, ask);
	chooser_weigh(c, ask, n);
	if (ask->from.node != 0) {
		const struct chooser_way way = {.handoff = ask->handoff, .from = ask->from};
		chooser_hand_over(c, ask, &way, c->cands, n);
	}
	score.common = chooser_common(c->cands, n);
	chooser_energy_fill(c, ask, &score, c->cands, n);
	struct route_pick p = route_pick(&score, c->cands, n);
	if (ask->from.node != 0)
		handed_credit(ask, c->cands, n);
	return (struct chooser_pick_result){p.verdict, p.index, p.score, score, c->cands, n, false};
}

struct chooser_pick_result chooser_pick(struct chooser *c, const struct chooser_ask *ask)
{
	return chooser_choose(c, ask, chooser_match(c, ask));
}
