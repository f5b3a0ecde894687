/* SPDX-License-Identifier: Apache-2.0 */
/* cascade: which model is asked, and the bodies of legs that are held back. */
#include "router/request/cascade/cascade.h"

#include <stdlib.h>

#include "base/log/log.h"
#include "base/mix/mix.h"
#include "io/wire/http/head.h"
#include "router/request/calibration/calibration.h"
#include "router/request/tokens/tokens.h"
#include "router/shared/pregate/pregate.h"

void gw_cascade_note(struct gw_req *r, const char *outcome, const char *why)
{
	struct gw_cascade *c = r->plan.cascade;
	char step[8];
	(void)snprintf(step, sizeof step, "%u", c->step + 1);
	metric_add(METRIC_OF(r->w->shared->telemetry, CASCADE, step, outcome), 1);
	c->outcome = outcome;
	c->why = why;
	c->noted = true;
}

/* ---- the beginning ---- */

static bool header_refuse(struct gw_req *r)
{
	struct cgn_str asked = r->client.cascade_asked;
	(void)gw_refuse(r,
		&(struct gw_refusal){400, "invalid_request_error", "invalid_header", .param = "X-Cgn-Cascade",
			.reason = "invalid"},
		"X-Cgn-Cascade is off (no smaller model is asked) or only-small (no larger one is), not \"%.*s\"",
		(int)(asked.n < 40 ? asked.n : 40), asked.p);
	return false;
}

/* Copy the chain: a leg may live longer than the rules. */
static struct gw_cascade *cascade_new(struct gw_req *r, const struct gw_chain *chain)
{
	struct gw_cascade *c = cgn_arena_zero(&r->arena, sizeof *c);
	if (c == NULL)
		return NULL;
	c->chain = *chain;
	for (unsigned i = 0; i < chain->n; i++) {
		c->chain.models[i] = cgn_arena_str(&r->arena, chain->models[i]);
		if (c->chain.models[i].p == NULL)
			return NULL;
	}
	return c;
}

/* Ask the model at |step| of the chain, whose answer is shown. */
static void straight_to(struct gw_req *r, unsigned step, const char *outcome, const char *why)
{
	struct gw_cascade *c = r->plan.cascade;
	c->step = step;
	r->prompt.model = plan_leg(&r->plan.legs)->model = c->chain.models[step];
	gw_cascade_note(r, outcome, why);
}

/* Return the place in the chain of the model whose calls of tools this request answers; the chain's length: it answers none. */
static unsigned caller_step(const struct gw_req *r)
{
	const struct gw_chain *chain = &r->plan.cascade->chain;
	const struct session_turn *turn = &r->client.turn;
	unsigned i = 0;
	while (i < chain->n &&
		(!turn->returned || turn->model != route_hash(chain->models[i].p, chain->models[i].n)))
		i++;
	return i;
}

static void cascade_begin(struct gw_req *r)
{
	struct gw_cascade *c = r->plan.cascade;
	unsigned last = c->chain.n - 1, caller = caller_step(r);
	enum prompt_api api = prompt_api_of(r->client.target);
	const char *why = cascade_passes(api, r->prompt.facts.json, r->prompt.several, &c->own_logprobs);
	if (cgn_str_is(r->client.cascade_asked, "only-small")) {
		straight_to(r, 0, "only_small", NULL);
	} else if (r->client.cascade_asked.n > 0) {
		straight_to(r, last, "off", NULL);
	} else if (caller <= last) {
		straight_to(r, caller, "passed",
			"tool_loop"); /* another model would not know what the call was for */
	} else if (why != NULL) {
		straight_to(r, last, "passed", why);
	} else {
		gw_calibration_draw(r);
		plan_cascade(&r->plan.legs, c->chain.models, c->chain.n);
		r->prompt.model = c->chain.models[0];
	}
}

bool gw_cascade_open(struct gw_req *r)
{
	const struct gw_chain *chain = gw_cascade_chain(&r->w->rules->cascade, r->prompt.model);
	struct cgn_str asked = r->client.cascade_asked;
	if (asked.n > 0 && !cgn_str_is(asked, "off") && !cgn_str_is(asked, "only-small"))
		return header_refuse(r);
	if (chain == NULL || r->client.pin.n > 0)
		return true;
	if (r->identity.cascade != NULL) /* goes before what the client asks for */
		r->client.cascade_asked = cgn_str_of(r->identity.cascade);
	r->plan.cascade = cascade_new(r, chain);
	if (r->plan.cascade != NULL)
		cascade_begin(r);
	return true; /* Without memory the model that was asked for answers. */
}

/* ---- the legs ---- */

bool gw_cascade_is_held(const struct gw_req *r)
{
	return plan_is_held(&r->plan.legs);
}

bool gw_cascade_is_barred(const struct gw_req *r)
{
	const struct view_model *m = view_model_find(r->w->view, r->prompt.model);
	for (size_t i = 0; m != NULL && i < m->n_ready; i++) {
		const struct engine_ops *kind = m->kinds[i];
		if (kind == NULL || kind->no_logprobs == NULL)
			continue;
		cgn_log_limited(WARN, "gateway.cascade_barred", F_STRN("model", m->name),
			F_STR("node", m->ready[i]->id), F_STR("engine", config_enum_text(kind->kind)),
			F_STR("why", kind->no_logprobs),
			F_STR("then", "the model is asked for no larger one"));
		return true;
	}
	return false;
}

static uint64_t text_hash(struct cgn_str s)
{
	return mix_fnv1a(MIX_FNV1A, s.p, s.n);
}

/* The name of a model is part of its prompts' digests: the prefix is compared within a pair only. */
bool gw_cascade_is_hopeless(struct gw_req *r)
{
	struct gw_cascade *c = r->plan.cascade;
	const struct prefix_chain *chain = &r->prompt.chain;
	cascade_group_of(&(struct cascade_request){.pair = mix64(text_hash(r->prompt.model)) ^
					 text_hash(c->chain.models[c->chain.n - 1]),
				 .key = text_hash(
					 cgn_str_of(r->identity.key_id != NULL ? r->identity.key_id : "")),
				 .route = text_hash(r->client.target),
				 .prefix = chain->n > 0 ? chain->short_digests[0] : 0,
				 .tokens = r->plan.prompt_tokens},
		&c->group);
	c->grouped = true;
	return gw_pregate_is_hopeless(r->w->shared->pregate, &c->group, r->w->rules->cascade.pregate,
		gw_random(r->w));
}

bool gw_cascade_is_calibrated(const struct gw_req *r)
{
	return r->w->shared->calibrations != NULL || r->w->rules->cascade.share > 0;
}

const char *gw_cascade_distrust(struct gw_req *r)
{
	static const char *const why[] = {NULL, "learns", "drift", "unseen"};
	struct gw_cascade *c = r->plan.cascade;
	if (!gw_cascade_is_calibrated(r))
		return NULL;
	return why[gw_calibrations_get(r->w->shared->calibrations, c->chain.models[c->step],
		c->chain.models[c->chain.n - 1], &c->curve)];
}

void gw_cascade_learn(struct gw_req *r, bool escalated)
{
	const struct gw_cascade *c = r->plan.cascade;
	gw_calibrations_saw(r->w->shared->calibrations, c->chain.models[c->step],
		c->chain.models[c->chain.n - 1], cascade_doubt(&c->answer), !escalated);
	if (c->grouped)
		gw_pregate_learn(r->w->shared->pregate, &c->group, escalated);
}

/* The prompt is cut again: its digests contain the model's name. */
static void model_take(struct gw_req *r)
{
	const struct plan_leg *leg = plan_leg(&r->plan.legs);
	struct gw_cascade *c = r->plan.cascade;
	c->step = leg->step;
	c->noted = c->grouped = false;
	r->prompt.model = leg->model;
	gw_tokens_end(r);
	cgn_arena_reset(&r->scratch);
	r->prompt.chain = (struct prefix_chain){NULL, 0};
	r->prompt.uncut = true;
}

void gw_cascade_skip(struct gw_req *r, const char *why)
{
	gw_cascade_note(r, "skipped", why);
	plan_skip(&r->plan.legs);
	model_take(r);
}

static void leg_body_drop(struct gw_req *r)
{
	size_t cap = r->body.leg.cap;
	cgn_buf_fini(&r->body.leg);
	CGN_MUST(cap <= r->body.booked);
	r->body.booked -= cap;
	atomic_fetch_sub_explicit(&r->w->shared->body_bytes, cap, memory_order_relaxed);
}

void gw_cascade_write(struct gw_req *r, struct proto_generate *g)
{
	if (!gw_cascade_is_held(r) || r->plan.cascade->own_logprobs)
		return;
	leg_body_drop(r);
	cascade_body(prompt_api_of(r->client.target), g->body, r->prompt.facts.json, &r->body.leg);
	if (r->body.leg.bad) {
		cgn_buf_fini(
			&r->body.leg); /* The gate finds no log-probabilities then, and asks the next model. */
		return;
	}
	r->body.booked += r->body.leg.cap;
	atomic_fetch_add_explicit(&r->w->shared->body_bytes, r->body.leg.cap, memory_order_relaxed);
	g->body = cgn_buf_view(&r->body.leg);
}

void gw_cascade_follow(struct gw_req *r)
{
	struct gw_cascade *c = r->plan.cascade;
	if (c == NULL || plan_leg(&r->plan.legs)->step == c->step)
		return;
	if (!c->noted)
		gw_cascade_note(r, "failed", NULL);
	gw_cascade_drop(r);
	leg_body_drop(r);
	model_take(r);
}

/* ---- the field of the answer ---- */

size_t gw_cascade_field(struct gw_req *r, struct http_field *f)
{
	const struct gw_cascade *c = r->plan.cascade;
	const struct gw_cascade_rules *rules = &r->w->rules->cascade;
	if (c == NULL)
		return 0;
	const char *outcome = c->outcome != NULL ? c->outcome : "none";
	const char *text = cgn_arena_fmt(&r->arena, "%u/%u; outcome=%s%s%s", c->step + 1, c->chain.n, outcome,
		c->why != NULL ? "; why=" : "", c->why != NULL ? c->why : "");
	if (text != NULL && c->tokens > 0)
		text = cgn_arena_fmt(&r->arena, "%s; tokens=%u; confidence=%.3f; threshold=%.3f; doubt=%.3f",
			text, c->tokens, c->confidence, c->threshold, c->doubt);
	if (text != NULL && c->tokens > 0 && c->error >= 0)
		text = cgn_arena_fmt(&r->arena, "%s; error=%.3f; max_error=%.3f", text, c->error,
			rules->max_error);
	if (text == NULL)
		return 0;
	*f = (struct http_field){CGN_STR("x-cgn-cascade-step"), cgn_str_of(text)};
	return 1;
}
