/* SPDX-License-Identifier: Apache-2.0 */
/* explain: of each decision of a worker, what is written down, what a client that asks is told, and what
 * other policies would have done. */
#include <math.h>
#include <stdlib.h>

#include "router/request/gateway.h"

/* Cells of one shadow, of one worker. */
struct gw_shadow {
	struct metric_cell *agrees, *differs, *cheaper, *dearer, *its, *ours;
};

CGN_RC gw_explain_open(struct gw_worker *w, size_t bytes, struct cgn_err *err)
{
	uint64_t seed;
	cgn_random(&seed, sizeof seed);
	w->shadows = calloc(ROUTE_POLICIES, sizeof *w->shadows);
	if (w->shadows == NULL)
		return CGN_FAIL(err, NO_MEMORY, "worker %u: out of memory", w->index);
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

static struct gw_shadow *cells_of(struct gw_worker *w, enum route_policy policy)
{
	struct gw_shadow *s = &w->shadows[policy];
	const char *name = route_policy_text(policy);
	if (s->agrees != NULL)
		return s;
	*s = (struct gw_shadow){
		.agrees = METRIC_OF(w->shared->telemetry, SHADOW_DECISIONS, name, "yes"),
		.differs = METRIC_OF(w->shared->telemetry, SHADOW_DECISIONS, name, "no"),
		.cheaper = METRIC_OF(w->shared->telemetry, SHADOW_REGRET, name, "shadow"),
		.dearer = METRIC_OF(w->shared->telemetry, SHADOW_REGRET, name, "chosen"),
		.its = METRIC_OF(w->shared->telemetry, SHADOW_CACHED_TOKENS, name, "shadow"),
		.ours = METRIC_OF(w->shared->telemetry, SHADOW_CACHED_TOKENS, name, "chosen"),
	};
	return s;
}

static uint64_t tokens_held(const struct gw_worker *w, const struct chooser_ask *ask,
	const struct route_cand *c)
{
	return (uint64_t)(chooser_block_tokens(ask, &w->shared->choice.cells[c->slot]) * (float)c->held +
		0.5F);
}

static void shadow_count(struct gw_worker *w, const struct chooser_ask *ask,
	const struct chooser_pick_result *p, const struct explain_shadow *s, enum route_policy policy,
	size_t index)
{
	struct gw_shadow *cells = cells_of(w, policy);
	metric_add(s->agrees ? cells->agrees : cells->differs, 1);
	metric_add(cells->its, tokens_held(w, ask, &p->cands[index]));
	metric_add(cells->ours, tokens_held(w, ask, &p->cands[p->index]));
	if (s->agrees || s->regret_ms == 0 || !isfinite(s->regret_ms))
		return;
	metric_observe(s->regret_ms > 0 ? cells->cheaper : cells->dearer,
		(cgn_nsec)((double)fabsf(s->regret_ms) * 1e6));
}

/* Of all decisions the share that is asked for, evenly. */
static bool shadow_due(struct gw_worker *w)
{
	w->shadow_due += w->rules->shadow_sample;
	if (w->shadow_due < 1)
		return false;
	w->shadow_due -= 1;
	return true;
}

static void shadows_ask(struct gw_worker *w, const struct chooser_ask *ask,
	const struct chooser_pick_result *p, struct explain_decision *d)
{
	const struct gw_rules *rules = w->rules;
	if (rules->n_shadows == 0 || p->verdict != ROUTE_PICKED || !shadow_due(w))
		return;
	for (size_t i = 0; i < rules->n_shadows; i++) {
		size_t index;
		struct explain_shadow *s = &d->shadows[d->n_shadows++];
		explain_shadow(p, rules->shadows[i], w->view, s, &index);
		shadow_count(w, ask, p, s, rules->shadows[i], index);
	}
}

/* ---- the record ---- */

static uint64_t number_of(struct gw_req *r)
{
	if (r->explain_number == 0)
		r->explain_number = ++r->w->explained;
	return r->explain_number;
}

/* The last decision counts. */
static void tell_client(struct gw_req *r, const struct explain_decision *d)
{
	char text[EXPLAIN_BRIEF * 2];
	struct cgn_buf b = cgn_buf_over(text, sizeof text);
	explain_brief(d, &b);
	if (b.bad || b.n > EXPLAIN_BRIEF)
		return;
	if (r->explain_room == NULL)
		r->explain_room = cgn_arena_get(&r->arena, EXPLAIN_BRIEF);
	if (r->explain_room == NULL)
		return;
	memcpy(r->explain_room, text, b.n);
	r->explain_text = (struct cgn_str){r->explain_room, b.n};
}

void gw_explain_pick(struct gw_req *r, const struct chooser_ask *ask, const struct chooser_pick_result *p,
	cgn_nsec took)
{
	struct gw_worker *w = r->w;
	struct explain_decision d;
	if (w->explain == NULL && !r->explain && w->rules->n_shadows == 0)
		return;
	d.request = number_of(r);
	d.id = r->id;
	d.model = r->model;
	d.at_ms = cgn_clock_wall_ms();
	d.took_ns = took < UINT32_MAX ? (uint32_t)took : UINT32_MAX;
	explain_pick(ask, p, w->view, &d);
	shadows_ask(w, ask, p, &d);
	if (w->explain != NULL)
		explain_ring_decide(w->explain, &d);
	if (r->explain)
		tell_client(r, &d);
}

static uint32_t clamp32(uint64_t v)
{
	return v < UINT32_MAX ? (uint32_t)v : UINT32_MAX;
}

/* At least 1: what happens within one turn of the loop took some time. */
static uint32_t microseconds(cgn_nsec from, cgn_nsec to)
{
	return to > from + CGN_USEC ? clamp32((to - from) / CGN_USEC) : 1;
}

/* Strangers fill no record: what was refused before anybody knew who asked, or for what, is not in it. */
void gw_explain_end(struct gw_req *r, int status, const char *outcome, cgn_nsec now)
{
	const struct usage *u = &r->usage;
	if (r->w->explain == NULL || r->model.n == 0)
		return;
	struct explain_end e = {
		.request = number_of(r),
		.id = r->id,
		.model = r->model,
		.node = cgn_str_of(r->t.node_id),
		.outcome = outcome,
		.at_ms = cgn_clock_wall_ms(),
		.status = (uint32_t)status,
		.tries = r->tries,
		.has_cached = u->has_cached,
		.has_prompt = u->has_prompt,
		.cached_predicted = clamp32(r->cached_predicted),
		.cached = clamp32(u->cached_tokens),
		.prompt_tokens = clamp32(u->prompt_tokens),
		.answer_tokens = clamp32(u->completion_tokens),
		.total_us = microseconds(r->started, now),
	};
	if (r->t.head_seen && r->first_byte > 0) {
		e.ttft_us = microseconds(r->started, r->first_byte);
		e.first_us = microseconds(r->t.sent_at, r->first_byte);
	}
	explain_ring_end(r->w->explain, &e);
}
