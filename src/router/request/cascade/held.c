/* SPDX-License-Identifier: Apache-2.0 */
/* held: the answer of a smaller model, until it is judged, and its bytes afterwards. */
#include "router/request/account/account.h"
#include "router/request/calibration/calibration.h"
#include "router/request/cascade/cascade.h"

void gw_cascade_drop(struct gw_req *r)
{
	struct gw_cascade *c = r->plan.cascade;
	if (c == NULL)
		return;
	atomic_fetch_sub_explicit(&r->w->shared->body_bytes, c->booked, memory_order_relaxed);
	c->booked = 0;
	cgn_buf_fini(&c->held);
	if (c->reading)
		cascade_answer_fini(&c->answer);
	c->reading = false;
}

void gw_cascade_begin(struct gw_req *r)
{
	struct gw_cascade *c = r->plan.cascade;
	cascade_answer_init(&c->answer, r->w->rules->cascade.tokens);
	(void)gw_calibrations_get(r->w->shared->calibrations, c->chain.models[c->step],
		c->chain.models[c->chain.n - 1], &c->curve);
	c->held = (struct cgn_buf){.limit = GW_CASCADE_HELD};
	c->reading = true;
}

void gw_cascade_add(struct gw_req *r, struct cgn_str data)
{
	struct gw_cascade *c = r->plan.cascade;
	_Atomic uint64_t *used = &r->w->shared->body_bytes;
	if (atomic_load_explicit(used, memory_order_relaxed) + data.n > r->w->rules->max_inflight_body)
		c->held.bad = true;
	cgn_buf_str(&c->held, data);
	atomic_fetch_add_explicit(used, c->held.cap - c->booked, memory_order_relaxed);
	c->booked = c->held.cap;
	if (r->attempt.events && !c->held.bad)
		cascade_answer_feed(&c->answer, data);
}

enum cascade_verdict gw_cascade_judge(struct gw_req *r)
{
	struct gw_cascade *c = r->plan.cascade;
	const struct gw_cascade_rules *rules = &r->w->rules->cascade;
	const struct cascade_gate g = {c->chain.thresholds[c->step],
		gw_cascade_is_calibrated(r) ? &c->curve : NULL, rules->max_error};
	bool whole = r->attempt.call.closed;
	if (c->held.bad)
		return CASCADE_ESCALATE;
	if (whole && r->attempt.events)
		cascade_answer_end(&c->answer);
	else if (whole && c->answer.seen == 0)
		cascade_answer_document(&c->answer, cgn_buf_view(&c->held));
	return cascade_judge(&g, &c->answer, whole);
}

static void judged_keep(struct gw_cascade *c)
{
	c->confidence = cascade_confidence(&c->answer);
	c->threshold = c->chain.thresholds[c->step];
	c->doubt = cascade_doubt(&c->answer);
	c->tokens = c->answer.n;
	c->error = c->curve.n > 0 ? calibration_error_of(&c->curve, c->doubt) : -1;
}

/* The engine's own numbers count, else the prompt as it was expected and the tokens that came. */
void gw_cascade_reject(struct gw_req *r)
{
	struct gw_cascade *c = r->plan.cascade;
	struct usage u = {0};
	judged_keep(c);
	(void)usagescan_usage(cgn_buf_view(&c->held), &u);
	if (gw_used_bound(r, &u, c->held.n))
		gw_used_untrue(r);
	uint64_t input = u.has_prompt ? u.prompt_tokens : r->plan.prompt_tokens;
	uint64_t cached = u.has_completion ? u.cached_tokens : gw_used_cached(r, input);
	c->wasted[c->step] = (struct gw_wasted){
		.input = input,
		.cached = cached < input ? cached : input,
		.output = u.has_completion ? u.completion_tokens : c->answer.seen,
	};
	gw_cascade_drop(r);
}

/* llama.cpp leaves the member out of chats where others write null; of text completions, which say null, it does not. */
static enum cascade_blank blank_of(struct gw_req *r)
{
	const struct view_model *m = view_model_find(r->w->view, r->prompt.model);
	if (prompt_api_of(r->client.target) != PROMPT_CHAT)
		return CASCADE_BLANK_NULL;
	for (size_t i = 0; m != NULL && i < m->n_ready; i++)
		if (m->ready[i]->slot == r->attempt.call.slot && m->kinds[i] != NULL &&
			m->kinds[i]->kind == ENGINE_LLAMA_CPP)
			return CASCADE_BLANK_GONE;
	return CASCADE_BLANK_NULL;
}

void gw_cascade_release(struct gw_req *r, struct cgn_buf *out)
{
	struct gw_cascade *c = r->plan.cascade;
	judged_keep(c);
	*out = c->held;
	c->held = (struct cgn_buf){0};
	gw_cascade_drop(r);
	c->strips = !c->own_logprobs;
	cascade_strip_init(&c->strip, blank_of(r), r->attempt.events);
}

struct cgn_str gw_cascade_stripped(struct gw_req *r, struct cgn_str data, struct cgn_buf *out)
{
	struct gw_cascade *c = r->plan.cascade;
	if (c == NULL || !c->strips)
		return data;
	cascade_strip_feed(&c->strip, data, out);
	return cgn_buf_view(out);
}

void gw_cascade_flush(struct gw_req *r, struct cgn_buf *out)
{
	struct gw_cascade *c = r->plan.cascade;
	if (c != NULL && c->strips)
		cascade_strip_end(&c->strip, out);
}
