/* SPDX-License-Identifier: Apache-2.0 */
/* explain: the record of decisions, and shadow policies. */
#include "router/request/account/explain.h"

#include <math.h>
#include <stdlib.h>

#include "router/request/bid/bid.h"
#include "router/shared/peers/peers.h"

/* Metric cells of one shadow policy, of one worker. */
struct gw_shadow {
	struct metric_cell *agrees, *differs, *cheaper, *dearer, *its, *ours;
};

CGN_RC gw_explain_open(struct gw_worker *w, size_t bytes, struct cgn_err *err)
{
	uint64_t seed;
	cgn_random(&seed, sizeof seed);
	w->shadows = CGN_NEW_ARRAY(struct gw_shadow, ROUTE_POLICIES);
	if (bytes > 0 && bytes < EXPLAIN_LEAST)
		return CGN_FAIL(err, INVALID,
			"router.explain_size leaves a worker %zu bytes: it needs at least %zu", bytes,
			EXPLAIN_LEAST);
	return bytes > 0 ? explain_ring_new(bytes, seed, &w->explain, err) : CGN_OK;
}

void gw_explain_close(struct gw_worker *w)
{
	explain_ring_free(&w->explain);
	free(w->shadows);
	w->shadows = NULL;
}

/* ---- shadows ---- */

static struct gw_shadow *shadow_cells(struct gw_worker *w, enum route_policy policy)
{
	struct gw_shadow *s = &w->shadows[policy];
	const char *name = route_policy_text(policy);
	if (s->agrees != NULL)
		return s;
	*s = (struct gw_shadow){
		.agrees = METRIC_OF(w->shared->telemetry, SHADOW_DECISIONS, name, "yes"),
		.differs = METRIC_OF(w->shared->telemetry, SHADOW_DECISIONS, name, "no"),
		.cheaper = METRIC_OF(w->shared->telemetry, SHADOW_BELIEVED, name, "shadow"),
		.dearer = METRIC_OF(w->shared->telemetry, SHADOW_BELIEVED, name, "chosen"),
		.its = METRIC_OF(w->shared->telemetry, SHADOW_CACHED_TOKENS, name, "shadow"),
		.ours = METRIC_OF(w->shared->telemetry, SHADOW_CACHED_TOKENS, name, "chosen"),
	};
	return s;
}

static uint64_t tokens_held(const struct gw_worker *w, const struct chooser_ask *ask,
	const struct route_cand *c)
{
	return (uint64_t)(chooser_block_tokens(ask, &w->shared->choice.stats[c->slot]) * (float)c->held +
		0.5F);
}

static void shadow_count(struct gw_worker *w, const struct chooser_ask *ask,
	const struct chooser_pick_result *p, const struct explain_shadow *s, enum route_policy policy,
	size_t index)
{
	struct gw_shadow *cells = shadow_cells(w, policy);
	metric_add(s->agrees ? cells->agrees : cells->differs, 1);
	metric_add(cells->its, tokens_held(w, ask, &p->cands[index]));
	metric_add(cells->ours, tokens_held(w, ask, &p->cands[p->index]));
	if (s->agrees || s->believed_ms == 0 || !isfinite(s->believed_ms))
		return;
	metric_observe(s->believed_ms > 0 ? cells->cheaper : cells->dearer,
		(cgn_nsec)((double)fabsf(s->believed_ms) * 1e6));
}

/* Return true for the configured share of all decisions, evenly spread. */
static bool shadow_due(struct gw_worker *w)
{
	w->shadow_due += w->rules->shadow.sample;
	if (w->shadow_due < 1)
		return false;
	w->shadow_due -= 1;
	return true;
}

/* Compare with the pick that the rules for energy would have made. */
static void energy_ask(struct gw_worker *w, const struct chooser_pick_result *p, struct explain_decision *d)
{
	size_t index = chooser_energy_shadow(p);
	if (index >= p->n)
		return;
	struct explain_shadow *s = &d->shadows[d->n_shadows++];
	explain_other(p, "energy", index, w->view, s);
	metric_add(METRIC_OF(w->shared->telemetry, SHADOW_DECISIONS, "energy", s->agrees ? "yes" : "no"), 1);
	metric_add(METRIC_OF(w->shared->telemetry, SHADOW_JOULES, "shadow"),
		(uint64_t)((double)p->cands[index].joules + gw_random(w)));
	metric_add(METRIC_OF(w->shared->telemetry, SHADOW_JOULES, "chosen"),
		(uint64_t)((double)p->cands[p->index].joules + gw_random(w)));
}

static void shadows_ask(struct gw_worker *w, const struct chooser_ask *ask,
	const struct chooser_pick_result *p, struct explain_decision *d)
{
	const struct gw_rules *rules = w->rules;
	bool energy = rules->route.energy.mode == ROUTE_ENERGY_SHADOW && d->n_shadows < EXPLAIN_SHADOWS;
	if ((rules->shadow.arms.n == 0 && !energy) || p->verdict != ROUTE_PICKED || ask->follows ||
		!shadow_due(w))
		return;
	if (energy)
		energy_ask(w, p, d);
	for (size_t i = 0; i < rules->shadow.arms.n; i++) {
		size_t index;
		struct explain_shadow *s = &d->shadows[d->n_shadows++];
		explain_shadow(p, rules->shadow.arms.shadows[i], w->view, s, &index);
		shadow_count(w, ask, p, s, rules->shadow.arms.shadows[i], index);
	}
}

/* ---- the record ---- */

static uint64_t request_number(struct gw_req *r)
{
	if (r->plan.explain_number == 0)
		r->plan.explain_number = ++r->w->explained;
	return r->plan.explain_number;
}

/* Keep the decision for the client's answer; the last one counts. */
static void brief_keep(struct gw_req *r, const struct explain_decision *d)
{
	char text[EXPLAIN_BRIEF * 2];
	struct cgn_buf b = cgn_buf_over(text, sizeof text);
	explain_brief(d, &b);
	if (b.bad || b.n > EXPLAIN_BRIEF)
		return;
	if (r->plan.explain_room == NULL)
		r->plan.explain_room = cgn_arena_get(&r->arena, EXPLAIN_BRIEF);
	if (r->plan.explain_room == NULL)
		return;
	memcpy(r->plan.explain_room, text, b.n);
	r->plan.explain_text = (struct cgn_str){r->plan.explain_room, b.n};
}

static void peers_fill(const struct gw_req *r, struct explain_decision *d)
{
	const struct gw_bids *bids = r->plan.away.bids;
	for (size_t i = 0; bids != NULL && i < bids->n && d->n_peers < EXPLAIN_PEERS; i++)
		d->peers[d->n_peers++] = (struct explain_peer){.peer = cgn_str_of(bids->v[i].peer->name),
			.by = peer_bid_text(bids->v[i].told.source),
			.left = bids->v[i].peer == r->plan.away.peer,
			.ttft_ms = (float)((double)bids->v[i].told.ttft / 1e6),
			.held = bids->v[i].told.forecast.held,
			.price = bids->v[i].told.cost.priced ? (float)bids->v[i].told.cost.price : -1,
			.joules = bids->v[i].told.cost.powered ? (float)bids->v[i].told.cost.joules : -1};
}

void gw_explain_pick(struct gw_req *r, const struct chooser_ask *ask, const struct chooser_pick_result *p,
	cgn_nsec took)
{
	struct gw_worker *w = r->w;
	struct explain_decision d;
	bool kept = r->client.explain_asked || r->client.trace.sampled;
	if (w->explain == NULL && !kept && w->rules->shadow.arms.n == 0)
		return;
	d.request = request_number(r);
	d.id = r->client.id;
	d.model = r->prompt.model;
	d.at_ms = cgn_clock_wall_ms();
	d.took_ns = took < UINT32_MAX ? (uint32_t)took : UINT32_MAX;
	explain_pick(ask, p, w->view, &d);
	peers_fill(r, &d);
	shadows_ask(w, ask, p, &d);
	if (r->plan.legs.staged && r->plan.split.considered && !r->plan.split_told) {
		explain_split(&r->plan.split, w->view, &d.split);
		r->plan.split_told = true;
	}
	if (w->explain != NULL)
		explain_ring_decide(w->explain, &d);
	if (kept)
		brief_keep(r, &d);
}

static uint32_t u32_saturate(uint64_t v)
{
	return v < UINT32_MAX ? (uint32_t)v : UINT32_MAX;
}

/* Return at least 1: steps within one turn of the loop have the same time. */
static uint32_t us_between(cgn_nsec from, cgn_nsec to)
{
	return to > from + CGN_USEC ? u32_saturate((to - from) / CGN_USEC) : 1;
}

/* Sum the times by phase. Choosing a node takes no time by the loop's clock, which stands still within a turn. */
static void phases_fill(const struct gw_req *r, uint32_t out[EXPLAIN_PHASES])
{
	const uint32_t *us = r->times.us;
	uint32_t pick = u32_saturate(r->plan.pick_took / CGN_USEC);
	uint32_t choose = us[GW_ROUTE] + us[GW_READ];
	out[EXPLAIN_PHASE_RECEIVE] = us[GW_AUTH] + us[GW_BODY] + us[GW_HOOK];
	out[EXPLAIN_PHASE_CHOOSE] = choose > pick ? choose : pick;
	out[EXPLAIN_PHASE_LIMIT] = us[GW_LIMIT];
	out[EXPLAIN_PHASE_TOKENS] = us[GW_TOKENS];
	out[EXPLAIN_PHASE_QUEUE] = us[GW_QUEUE];
	out[EXPLAIN_PHASE_PREFILL] = us[GW_PREFILL];
	out[EXPLAIN_PHASE_FIRST_BYTE] = us[GW_DISPATCH] + us[GW_GATE];
	out[EXPLAIN_PHASE_STREAM] = us[GW_STREAM] + us[GW_CHECK] + us[GW_ANSWER];
}

static void quoted_fill(const struct gw_req *r, struct explain_quoted out[QUOTE_FIGURES])
{
	const struct gw_quoted *q = r->plan.quoted;
	for (unsigned f = 0; f < QUOTE_FIGURES; f++) {
		out[f] = (struct explain_quoted){-1, -1, -1, -1};
		if (q == NULL || !q->quote.known[f])
			continue;
		const struct quote_range *v = &q->quote.v[f];
		out[f] = (struct explain_quoted){(float)v->low, (float)v->expected, (float)v->high,
			(float)q->actual[f]};
	}
}

/* Requests without a known model are not recorded, so that unauthenticated clients can't fill the record. */
void gw_explain_end(struct gw_req *r, int status, const char *outcome, cgn_nsec now)
{
	const struct usage *u = &r->answer.usage;
	const struct gw_used *used = &r->answer.used;
	if (r->w->explain == NULL || r->prompt.model.n == 0 || r->client.quotes)
		return;
	struct explain_end e = {
		.request = request_number(r),
		.id = r->client.id,
		.model = r->prompt.model,
		.node = cgn_str_of(r->attempt.call.node_id),
		.session = r->client.session.id,
		.turn = r->client.turn.number,
		.outcome = outcome,
		.at_ms = cgn_clock_wall_ms(),
		.status = (uint32_t)status,
		.tries = plan_attempts(&r->plan.legs),
		.has_cached = u->has_cached,
		.has_prompt = u->has_prompt || used->input > 0,
		.direct = r->attempt.by_engine,
		.stream = r->answer.event_stream,
		.cached_predicted = u32_saturate(r->plan.prediction.cached),
		.cached = u32_saturate(u->cached_tokens),
		.prompt_tokens = u32_saturate(used->input),
		.answer_tokens = u32_saturate(used->output),
		.total_us = us_between(r->client.started, now),
	};
	if (r->attempt.head_seen && r->answer.first_byte > 0) {
		e.ttft_us = us_between(r->client.started, r->answer.first_byte);
		e.first_us = us_between(r->attempt.sent_at, r->answer.first_byte);
	}
	phases_fill(r, e.phase_us);
	quoted_fill(r, e.quoted);
	explain_ring_end(r->w->explain, &e);
}
