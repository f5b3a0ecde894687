/* SPDX-License-Identifier: Apache-2.0 */
/* split: whether one node computes a request, or a pair of nodes.
 *
 * A shape costs the sum of the terms of policy `predicted` (routing.h) over its legs: time to first token, and
 * the delay of other requests.
 *   one node:  queue + prefill + fetch + slowdown + energy
 *   a pair:    the same for the prompt at the prefill node, + hand-over + queue + slowdown + energy of the answer at
 *              the decode node, + one step there: it draws the first token
 *   a prefill node alone: as one node, + the time that its prompts, those that wait and those that will come,
 *              stall the answer; a prefill node is assumed to compute prompts half of the time
 *   one node of either kind: + the stall of answers that begin there while it computes the prompt. They are not among
 *              its streams yet, so that the slowdown leaves them out: a decode node's share of the prompts that are
 *              at prefill nodes now, at most ROUTE_PRESSURE
 * So a prompt is computed where it delays the fewest running streams, if that saves more than moving its KV
 * costs. Costs within ROUTE_TIE_COST are equal: then one node of the decode nodes does all. */
#include <math.h>

#include "chooser_priv.h"

#define GROUPS 8 /* Kinds of hand-off that are compared, at most. */

static const char *const shapes[CHOOSER_SHAPES] = {"whole", "pair", "continues"};
static const char *const reasons[CHOOSER_REASONS] = {
#define REASON(id, text, help) text,
#include "policy/route/chooser/reasons.def"
#undef REASON
};

const char *chooser_shape_text(enum chooser_shape s)
{
	CGN_MUST((unsigned)s < CHOOSER_SHAPES);
	return shapes[s];
}

const char *chooser_reason_text(enum chooser_reason r)
{
	CGN_MUST((unsigned)r < CHOOSER_REASONS);
	return reasons[r];
}

/* The candidates by role, both ascending by slot. */
struct split_nodes {
	struct route_cand *answer, *prefill;
	size_t n_answer, n_prefill;
	bool priced; /* The power of all of them is known: joules count. */
};

static bool is_prefill(const struct route_cand *c)
{
	return c->role == COGNITORA__V1__ROLE__ROLE_PREFILL;
}

/* Joules of a pair and of one node do not compare when some are unknown. */
static bool power_is_known(const struct chooser *c, size_t n)
{
	struct energy_curve w;
	for (size_t i = 0; c->shared.energy != NULL && i < n; i++) {
		(void)energy_board_get(c->shared.energy, c->cands[i].slot, &w);
		if (!energy_known(&w))
			return false;
	}
	return c->shared.energy != NULL;
}

static struct split_nodes nodes_part(struct chooser *c, size_t n)
{
	size_t answer = 0, prefill = 0;
	for (size_t i = 0; i < n; i++) {
		if (is_prefill(&c->cands[i]))
			c->scratch[prefill++] = c->cands[i];
		else
			c->cands[answer++] = c->cands[i];
	}
	memcpy(c->cands + answer, c->scratch, prefill * sizeof *c->cands);
	return (struct split_nodes){c->cands, c->cands + answer, answer, prefill, power_is_known(c, n)};
}

static size_t group_copy(const struct route_cand *from, size_t n, uint64_t handoff, struct route_cand *out)
{
	size_t k = 0;
	for (size_t i = 0; i < n; i++)
		if (from[i].handoff == handoff)
			out[k++] = from[i];
	return k;
}

/* Pick one node for a part of the request, or for all of it. */
static struct chooser_pick_result part_pick(const struct chooser *c, const struct chooser_ask *whole,
	const struct route_ask *score, bool priced, struct route_cand *cands, size_t n)
{
	struct route_ask ask = *score;
	ask.common = chooser_common(cands, n);
	if (priced)
		chooser_energy_fill(c, whole, &ask, cands, n);
	struct route_pick p = route_pick(&ask, cands, n);
	return (struct chooser_pick_result){p.verdict, p.index, p.score, ask, cands, n};
}

/* Return the cost of a pick by `predicted`, whichever policy picked. */
static double pick_cost(const struct chooser_pick_result *p)
{
	struct route_terms t;
	if (p->verdict != ROUTE_PICKED)
		return (double)INFINITY;
	route_terms(&p->ask, &p->cands[p->index], &t);
	return t.queue_ms + t.prefill_ms + t.fetch_ms + t.slowdown_ms + t.energy_ms;
}

/* Return the part of the cost of a pick, which has a node, that passes before its first token. */
static double pick_ttft(const struct chooser_pick_result *p)
{
	struct route_terms t;
	route_terms(&p->ask, &p->cands[p->index], &t);
	return t.queue_ms + t.prefill_ms + t.fetch_ms;
}

/* Return the stall of answers that begin at the picked node while it computes this prompt too. */
static double beginning_ms(const struct chooser_pick_result *p, const struct split_nodes *s)
{
	double coming = 0;
	if (p->verdict != ROUTE_PICKED)
		return 0;
	for (size_t i = 0; i < s->n_prefill; i++)
		coming += (double)route_demand(&s->prefill[i]) / (double)s->n_answer;
	const struct route_cand *c = &p->cands[p->index];
	return (coming < ROUTE_PRESSURE ? coming : ROUTE_PRESSURE) *
		(double)(c->speed.interference * c->uncached_tokens * c->speed.prefill_ms);
}

static uint16_t pick_slot(const struct chooser_pick_result *p)
{
	return p->verdict == ROUTE_PICKED ? p->cands[p->index].slot : CHOOSER_NO_SLOT;
}

/* Return the answer node of |handoff| that holds the longest prefix; NULL: there is none. */
static const struct route_cand *longest_held(const struct split_nodes *s, uint64_t handoff)
{
	const struct route_cand *best = NULL;
	for (size_t i = 0; i < s->n_answer; i++)
		if (s->answer[i].handoff == handoff && (best == NULL || s->answer[i].held > best->held))
			best = &s->answer[i];
	return best;
}

/* Let prefill nodes fetch what a decode node computed in earlier turns, where that is possible and takes less time
 * than computing it again. */
static void pulls_fill(const struct chooser *c, const struct chooser_ask *ask,
	const struct route_cand *source, struct route_cand *cands, size_t n)
{
	for (size_t i = 0; source != NULL && i < n; i++) {
		struct route_cand *to = &cands[i];
		if (!to->pulls || to->held >= source->held)
			continue;
		float tokens = (float)(source->held - to->held) *
			chooser_tokens_a_block(c, ask, &c->shared.stats[to->slot]);
		const struct transfer_path path = {source->node_id_hash, to->node_id_hash, to->handoff};
		const struct transfer_speed s =
			transfer_speed_of(c->shared.transfer, &path, &ask->rules->disagg.prior, ask->now);
		tokens = tokens < to->uncached_tokens ? tokens : to->uncached_tokens;
		float ms = (float)transfer_ms(&s, (double)tokens);
		if (ms >= tokens * to->speed.prefill_ms)
			continue;
		to->fetch_ms += ms;
		to->uncached_tokens -= tokens;
		to->spared_tokens =
			to->spared_tokens < to->uncached_tokens ? to->spared_tokens : to->uncached_tokens;
	}
}

/* Return the way of a prompt from the picked prefill node. While the node computes the prompts before this one, it
 * moves their KV. */
static struct chooser_way way_from(const struct chooser_pick_result *p, uint64_t handoff)
{
	const struct route_cand *c = &p->cands[p->index];
	return (struct chooser_way){.handoff = handoff,
		.from = {c->node_id_hash, c->slot},
		.ahead_tokens = (double)c->queued_tokens,
		.until_ms = pick_ttft(p)};
}

/* Pick the best pair of nodes for hand-offs of the kind |handoff|, and keep it if it costs less than out->pair_ms.
 * Uses c->scratch. */
static void pair_try(struct chooser *c, const struct chooser_ask *ask, const struct route_ask *score,
	const struct split_nodes *s, uint64_t handoff, struct chooser_split *out)
{
	struct route_ask prompt = *score;
	prompt.answer_tokens = 0;
	size_t n = group_copy(s->prefill, s->n_prefill, handoff, c->scratch);
	pulls_fill(c, ask, longest_held(s, handoff), c->scratch, n);
	struct chooser_pick_result p = part_pick(c, ask, &prompt, s->priced, c->scratch, n);
	if (p.verdict != ROUTE_PICKED)
		return;
	const struct chooser_way way = way_from(&p, handoff);
	struct route_cand *decode = c->scratch + n;
	size_t n_decode = group_copy(s->answer, s->n_answer, handoff, decode);
	chooser_hand_over(c, ask, &way, decode, n_decode);
	struct chooser_pick_result d = part_pick(c, ask, score, s->priced, decode, n_decode);
	if (d.verdict != ROUTE_PICKED)
		return;
	const struct route_cand *to = &d.cands[d.index];
	double ms = pick_cost(&p) + pick_cost(&d) + (double)to->speed.step_ms;
	if (!(ms < out->pair_ms))
		return;
	out->pair_ms = ms;
	out->prefill = pick_slot(&p);
	out->decode = to->slot;
	out->handoff = handoff;
	out->moved_tokens =
		to->handed_tokens > 0 && to->handed_tokens < 4e9F ? (uint32_t)to->handed_tokens : 0;
	out->transfer_ms = (double)to->fetch_ms;
	out->ttft_ms = pick_ttft(&p) + pick_ttft(&d) + (double)to->speed.step_ms;
	out->first = p;
	out->from = way.from;
}

static bool is_listed(const uint64_t *v, size_t n, uint64_t x)
{
	for (size_t i = 0; i < n; i++)
		if (v[i] == x)
			return true;
	return false;
}

static void pairs_fill(struct chooser *c, const struct chooser_ask *ask, const struct route_ask *score,
	const struct split_nodes *s, struct chooser_split *out)
{
	uint64_t groups[GROUPS];
	size_t n = 0;
	for (size_t i = 0; i < s->n_prefill && n < GROUPS; i++) {
		uint64_t handoff = s->prefill[i].handoff;
		if (handoff == 0 || is_listed(groups, n, handoff))
			continue;
		groups[n++] = handoff;
		pair_try(c, ask, score, s, handoff, out);
	}
	if (n < 2 || out->handoff == 0 || out->handoff == groups[n - 1])
		return;
	out->pair_ms = (double)INFINITY; /* The picks of the best pair were overwritten: make them again. */
	pair_try(c, ask, score, s, out->handoff, out);
}

/* Pick among the nodes that can answer a whole request. Uses c->scratch. */
static struct chooser_pick_result alone_pick(struct chooser *c, const struct chooser_ask *ask,
	const struct route_ask *score, bool priced, const struct route_cand *cands, size_t n)
{
	size_t k = 0;
	for (size_t i = 0; i < n; i++)
		if (cands[i].alone)
			c->scratch[k++] = cands[i];
	return part_pick(c, ask, score, priced, c->scratch, k);
}

/* Return how long the prompts of a prefill node stall an answer that it gives itself. */
static double stall_ms(const struct route_ask *ask, const struct route_cand *c)
{
	return (double)(c->speed.interference *
		(c->queued_tokens * c->speed.prefill_ms + ask->answer_tokens * c->speed.step_ms));
}

static void continues_fill(struct chooser *c, const struct chooser_ask *ask, const struct route_ask *score,
	const struct split_nodes *s, struct chooser_split *out)
{
	struct chooser_pick_result p = alone_pick(c, ask, score, s->priced, s->prefill, s->n_prefill);
	if (p.verdict != ROUTE_PICKED)
		return;
	out->continues = pick_slot(&p);
	out->continues_ms = pick_cost(&p) + stall_ms(&p.ask, &p.cands[p.index]) + beginning_ms(&p, s);
}

/* Return true if |ms| is less than |than| by more than the predictions' accuracy. */
static bool costs_less(double ms, double than)
{
	return isfinite(ms) && (!isfinite(than) || ms < than * (1 - ROUTE_TIE_COST));
}

/* |computed|: tokens that the best single decode node would compute. */
static void shape_choose(const struct route_disagg *rules, float computed, struct chooser_split *out)
{
	bool has_pair = isfinite(out->pair_ms), continues = costs_less(out->continues_ms, out->whole_ms);
	double single = continues ? out->continues_ms : out->whole_ms;
	out->shape = continues ? CHOOSER_CONTINUES : CHOOSER_WHOLE;
	out->why = has_pair ? CHOOSER_BY_COST : CHOOSER_BY_NO_PAIR;
	if (rules->colocate_below > 0 && isfinite(out->whole_ms)) {
		bool below = computed < (float)rules->colocate_below;
		out->shape = has_pair && !below ? CHOOSER_PAIR : CHOOSER_WHOLE;
		out->why = has_pair ? CHOOSER_BY_TOKENS : CHOOSER_BY_NO_PAIR;
	} else if (costs_less(out->pair_ms, single)) {
		out->shape = CHOOSER_PAIR;
	}
}

void chooser_split(struct chooser *c, const struct chooser_ask *ask, struct chooser_split *out)
{
	CGN_LIVE(c, CHOOSER_TAG);
	*out = (struct chooser_split){.why = CHOOSER_BY_NO_PAIR,
		.whole_ms = (double)INFINITY,
		.pair_ms = (double)INFINITY,
		.continues_ms = (double)INFINITY,
		.whole = CHOOSER_NO_SLOT,
		.prefill = CHOOSER_NO_SLOT,
		.decode = CHOOSER_NO_SLOT,
		.continues = CHOOSER_NO_SLOT};
	size_t n = chooser_match_all(c, ask);
	chooser_weigh(c, ask, n);
	const struct split_nodes s = nodes_part(c, n);
	const struct route_ask score = chooser_route_ask(c, ask);
	struct chooser_pick_result whole = alone_pick(c, ask, &score, s.priced, s.answer, s.n_answer);
	float computed = whole.verdict == ROUTE_PICKED ? whole.cands[whole.index].uncached_tokens : 0;
	out->whole = pick_slot(&whole);
	out->whole_ms = pick_cost(&whole) + beginning_ms(&whole, &s);
	if (s.n_answer == 0 || s.n_prefill == 0)
		return; /* Nodes of one role do all the work, whatever it is. */
	out->considered = true;
	continues_fill(c, ask, &score, &s, out);
	pairs_fill(c, ask, &score, &s, out);
	shape_choose(&ask->rules->disagg, computed, out);
}
