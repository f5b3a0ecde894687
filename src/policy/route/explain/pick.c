/* SPDX-License-Identifier: Apache-2.0 */
/* pick: describes a decision from the chooser's scores. */
#include "policy/route/explain/explain.h"

#define FULL_LAST 1e20F /* Subtracted from the score of candidates without room, to order them last. */
#define WON_FIRST 1e30F

/* The candidates to keep, by score, best first. */
struct best {
	size_t n, most;
	uint32_t at[EXPLAIN_CANDS];
	float score[EXPLAIN_CANDS];
};

static void best_add(struct best *b, uint32_t at, float score)
{
	if (b->n == b->most && !(score > b->score[b->n - 1]))
		return;
	size_t i = b->n < b->most ? b->n++ : b->n - 1;
	for (; i > 0 && score > b->score[i - 1]; i--) {
		b->at[i] = b->at[i - 1];
		b->score[i] = b->score[i - 1];
	}
	b->at[i] = at;
	b->score[i] = score;
}

static bool is_full(const struct chooser_pick_result *p, size_t i)
{
	return p->cands[i].inflight >= p->ask.max_inflight;
}

static bool is_barred(const struct chooser_pick_result *p, size_t i)
{
	return p->ask.spares && p->cands[i].barred != ROUTE_BAR_NONE;
}

static void best_of(const struct chooser_pick_result *p, struct best *b)
{
	for (size_t i = 0; i < p->n; i++) {
		float score = (float)route_score(&p->ask, &p->cands[i]);
		if (is_full(p, i) || is_barred(p, i))
			score -= FULL_LAST;
		if (p->verdict == ROUTE_PICKED && i == p->index)
			score = WON_FIRST;
		best_add(b, (uint32_t)i, score);
	}
}

static const enum explain_unit units[ROUTE_POLICIES] = {
#define POLICY(id, text, score, pick, unit, help) EXPLAIN_##unit,
#include "policy/config/route_policies.def"
#undef POLICY
};

static struct cgn_str name_of(const struct cluster_view *view, uint16_t slot)
{
	const struct view_node *node = view_node_at(view, slot);
	return node != NULL ? cgn_str_of(node->id) : (struct cgn_str){NULL, 0};
}

static void cand_fill(const struct chooser_pick_result *p, size_t at, const struct cluster_view *view,
	struct explain_cand *out)
{
	const struct route_cand *c = &p->cands[at];
	struct route_terms t;
	double score = route_score(&p->ask, c);
	route_terms(&p->ask, c, &t);
	out->node = name_of(view, c->slot);
	out->why = is_full(p, at) ? EXPLAIN_FULL : is_barred(p, at) ? EXPLAIN_BARRED : EXPLAIN_ELIGIBLE;
	out->v[EXPLAIN_HELD].u = c->held;
	out->v[EXPLAIN_GPU].u = c->by_tier[BLOCK_GPU];
	out->v[EXPLAIN_RAM].u = c->by_tier[BLOCK_RAM];
	out->v[EXPLAIN_SSD].u = c->by_tier[BLOCK_SSD];
	out->v[EXPLAIN_REMOTE].u = c->by_tier[BLOCK_REMOTE];
	out->v[EXPLAIN_REUSE].f = c->reuse;
	out->v[EXPLAIN_INFLIGHT].u = c->inflight;
	out->v[EXPLAIN_OTHERS].u = c->others;
	out->v[EXPLAIN_DECODING].u = c->decoding;
	out->v[EXPLAIN_QUEUED].u = c->queued_tokens < 4e9F ? (uint32_t)c->queued_tokens : UINT32_MAX;
	out->v[EXPLAIN_SCORE].f = (float)(units[p->ask.policy] == EXPLAIN_SCORE_UNIT ? score : -score + 0.0);
	out->v[EXPLAIN_KV].f = (float)t.kv;
	out->v[EXPLAIN_LOAD].f = (float)t.load;
	out->v[EXPLAIN_POWER].f = (float)t.power;
	out->v[EXPLAIN_CAPACITY].f = (float)t.capacity;
	out->v[EXPLAIN_QUEUE_MS].f = (float)(t.queue_ms - c->load_ms);
	out->v[EXPLAIN_LOADING].f = (float)c->load_ms;
	out->v[EXPLAIN_PREFILL].f = (float)t.prefill_ms;
	out->v[EXPLAIN_FETCH].f = (float)t.fetch_ms;
	out->v[EXPLAIN_SLOWDOWN].f = (float)(t.slowdown_ms - c->evict_ms);
	out->v[EXPLAIN_EVICT].f = (float)c->evict_ms;
	out->v[EXPLAIN_ENERGY].f = (float)t.energy_ms;
	out->v[EXPLAIN_JOULES].f = (float)t.joules;
}

static uint32_t least_held(const struct chooser_pick_result *p)
{
	uint32_t least = p->n > 0 ? p->cands[0].held : 0;
	for (size_t i = 1; i < p->n; i++)
		least = p->cands[i].held < least ? p->cands[i].held : least;
	return least;
}

/* Add a node that cannot be chosen; only its name is known. */
static void name_add(struct cgn_str node, enum explain_why why, struct explain_decision *out)
{
	out->n_all++;
	if (out->n == EXPLAIN_CANDS)
		return;
	struct explain_cand *c = &out->cands[out->n++];
	memset(c, 0, sizeof *c);
	c->node = node;
	c->why = why;
}

static bool had_its_try(const struct chooser_ask *ask, uint16_t slot)
{
	for (size_t i = 0; i < ask->n_excluded; i++)
		if (ask->excluded[i] == slot)
			return true;
	return false;
}

/* Return the fingerprint of the hand-offs of a ready node; 0: none. */
static uint64_t handoff_of(const struct view_model *m, uint16_t slot)
{
	const struct handoff_end *end = view_handoff(m, slot);
	return end != NULL ? end->fingerprint : 0;
}

/* A node that is ready but neither offered nor tried has another role or hand-off, or an open breaker. */
static enum explain_why why_outside(const struct chooser_ask *ask, const struct chooser_pick_result *p,
	const struct view_node *node)
{
	bool roles_count = p->n > 0 && chooser_role_fits(ask, p->cands[0].role);
	if (roles_count && !chooser_role_fits(ask, node->role))
		return EXPLAIN_ROLE;
	return ask->handoff != 0 && handoff_of(ask->model, node->slot) != ask->handoff ? EXPLAIN_HANDOFF
										       : EXPLAIN_BREAKER;
}

static void outside_fill(const struct chooser_ask *ask, const struct chooser_pick_result *p,
	struct explain_decision *out)
{
	const struct view_model *m = ask->model;
	for (size_t i = 0, at = 0; m != NULL && i < m->n_ready && m->n_ready > p->n; i++) {
		uint16_t slot = m->ready[i]->slot;
		while (at < p->n && p->cands[at].slot < slot)
			at++;
		if ((at == p->n || p->cands[at].slot != slot) && !had_its_try(ask, slot))
			name_add(cgn_str_of(m->ready[i]->id), why_outside(ask, p, m->ready[i]), out);
	}
}

/* Add nodes that cannot be chosen; a few places are reserved for them. */
static void others_fill(const struct chooser_ask *ask, const struct chooser_pick_result *p,
	const struct cluster_view *view, struct explain_decision *out)
{
	for (size_t i = 0; i < ask->n_excluded; i++)
		name_add(name_of(view, ask->excluded[i]), EXPLAIN_TRIED, out);
	if (ask->pin == CHOOSER_NO_PIN)
		outside_fill(ask, p, out);
}

static size_t places_kept(const struct chooser_ask *ask, const struct chooser_pick_result *p)
{
	size_t ready = ask->model != NULL && ask->pin == CHOOSER_NO_PIN ? ask->model->n_ready : 0;
	size_t outside = ready > p->n ? ready - p->n : 0;
	if (outside < ask->n_excluded)
		outside = ask->n_excluded;
	return outside < EXPLAIN_CANDS / 4 ? outside : EXPLAIN_CANDS / 4;
}

void explain_pick(const struct chooser_ask *ask, const struct chooser_pick_result *p,
	const struct cluster_view *view, struct explain_decision *out)
{
	struct best b = {.most = EXPLAIN_CANDS - places_kept(ask, p)};
	best_of(p, &b);
	out->policy = route_policy_text(chooser_policy(ask));
	out->attempt = ask->prefill ? 0 : (uint32_t)ask->n_excluded + 1;
	out->verdict = p->verdict;
	out->unit = units[chooser_policy(ask)];
	out->blocks = (uint32_t)ask->blocks;
	out->chain = ask->blocks > 0 ? ask->chain[ask->blocks - 1] : 0;
	out->common = least_held(p);
	out->block_tokens = ask->block_tokens;
	out->prompt_tokens = ask->prompt_tokens < UINT32_MAX ? (uint32_t)ask->prompt_tokens : UINT32_MAX;
	out->n_all = (uint32_t)p->n;
	out->n = b.n;
	out->n_shadows = 0;
	out->split.shape = NULL;
	out->n_peers = 0;
	out->margin = 0;
	for (size_t i = 0; i < b.n; i++)
		cand_fill(p, b.at[i], view, &out->cands[i]);
	if (p->verdict == ROUTE_PICKED && b.n > 1)
		out->margin = (float)(p->score - (double)b.score[1]);
	others_fill(ask, p, view, out);
}

void explain_split(const struct chooser_split *s, const struct cluster_view *view, struct explain_split *out)
{
	*out = (struct explain_split){.shape = chooser_shape_text(s->shape),
		.why = chooser_reason_text(s->why),
		.whole = name_of(view, s->whole),
		.prefill = name_of(view, s->prefill),
		.decode = name_of(view, s->decode),
		.continues = name_of(view, s->continues),
		.whole_ms = (float)s->whole_ms,
		.pair_ms = (float)s->pair_ms,
		.continues_ms = (float)s->continues_ms,
		.transfer_ms = (float)s->transfer_ms,
		.moved_tokens = s->moved_tokens};
}

/* Return the cost of |c| by the predicted policy, whichever policy is asked. */
static double cost_ms(const struct route_ask *ask, const struct route_cand *c)
{
	struct route_terms t;
	route_terms(ask, c, &t);
	return t.queue_ms + t.prefill_ms + t.fetch_ms + t.slowdown_ms;
}

void explain_other(const struct chooser_pick_result *p, const char *policy, size_t index,
	const struct cluster_view *view, struct explain_shadow *out)
{
	*out = (struct explain_shadow){.policy = policy};
	if (index >= p->n || p->verdict != ROUTE_PICKED)
		return;
	out->node = name_of(view, p->cands[index].slot);
	out->agrees = index == p->index;
	out->held = p->cands[index].held;
	if (!out->agrees)
		out->believed_ms =
			(float)(cost_ms(&p->ask, &p->cands[p->index]) - cost_ms(&p->ask, &p->cands[index]));
}

void explain_shadow(const struct chooser_pick_result *p, enum route_policy policy,
	const struct cluster_view *view, struct explain_shadow *out, size_t *index)
{
	struct route_ask ask = p->ask;
	ask.policy = policy;
	struct route_pick s = route_pick(&ask, p->cands, p->n);
	*index = s.index;
	explain_other(p, route_policy_text(policy), s.verdict == ROUTE_PICKED ? s.index : p->n, view, out);
}
