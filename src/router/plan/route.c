/* SPDX-License-Identifier: Apache-2.0 */
/* route: from a body to a node. */
#include "base/json/json.h"
#include "router/request/gateway.h"

#define BAD_REQUEST  "invalid_request_error"
#define RETRY_AFTER  2
#define BACKOFF_MOST (10 * CGN_SEC)

static const struct gw_refusal no_node = {503, "server_error", "no_node", .reason = "no_node",
	.retry_after = RETRY_AFTER};

static enum gw_step model_missing(struct gw_req *r)
{
	return gw_refuse(r,
		&(struct gw_refusal){400, BAD_REQUEST, "missing_model", .param = "model",
			.reason = "invalid"},
		"model is missing, or no string");
}

/* Names that clients use become names that nodes have; what nobody knows is refused here. */
static enum gw_step model_resolve(struct gw_req *r, struct cgn_str asked, const struct gw_model **row)
{
	*row = gw_rules_model(r->w->rules, asked);
	r->model = asked;
	if (view_model_find(r->w->view, asked) == NULL && *row != NULL)
		r->model = cgn_arena_str(&r->arena, (*row)->name);
	if (r->model.p == NULL)
		return model_missing(r);
	if (*row != NULL || view_model_find(r->w->view, asked) != NULL)
		return STEP_AGAIN;
	r->model = (struct cgn_str){NULL, 0};
	return gw_refuse(r,
		&(struct gw_refusal){404, BAD_REQUEST, "model_not_found", .param = "model",
			.reason = "model"},
		"the model `%.*s` does not exist here", (int)(asked.n < 200 ? asked.n : 200), asked.p);
}

/* "n", "best_of", or a list of prompts. */
static bool is_several(struct json_val body)
{
	static const char *const keys[] = {"n", "best_of", "prompt", "input"};
	struct json_val v[CGN_COUNT(keys)], elem;
	uint64_t n = 0;
	json_pick(body, keys, CGN_COUNT(keys), v);
	for (size_t i = 0; i < 2; i++)
		if (v[i].raw.p != NULL && json_u64(v[i], &n) && n > 1)
			return true;
	for (size_t i = 2; i < CGN_COUNT(keys); i++) {
		if (v[i].raw.p == NULL || v[i].type != JSON_ARRAY)
			continue;
		struct json_iter it = json_iter_of(v[i]);
		if (json_next_elem(&it, &elem) && (elem.type == JSON_STRING || elem.type == JSON_ARRAY))
			return json_next_elem(&it, &elem);
	}
	return false;
}

/* How long the answer may get, by whatever name. */
static uint32_t most_tokens(struct json_val body)
{
	static const char *const keys[] = {"max_completion_tokens", "max_tokens", "max_output_tokens",
		"n_predict"};
	struct json_val v[CGN_COUNT(keys)];
	uint64_t n = 0;
	json_pick(body, keys, CGN_COUNT(keys), v);
	for (size_t i = 0; i < CGN_COUNT(keys); i++)
		if (v[i].raw.p != NULL && json_u64(v[i], &n) && n > 0)
			return n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
	return 0;
}

static enum gw_step body_parse(struct gw_req *r)
{
	struct json_val body, model;
	struct cgn_err err;
	const struct gw_model *row = NULL;
	if (!cgn_ok(json_parse(cgn_buf_view(&r->body), &body, NULL, &err)))
		return gw_refuse(r,
			&(struct gw_refusal){400, BAD_REQUEST, "invalid_json", .reason = "invalid"},
			"the body is no valid JSON: %s", err.msg);
	if (body.type != JSON_OBJECT)
		return gw_refuse(r,
			&(struct gw_refusal){400, BAD_REQUEST, "invalid_json", .reason = "invalid"},
			"the body is no JSON object");
	if (!json_get(body, "model", &model) || model.type != JSON_STRING)
		return model_missing(r);
	struct cgn_str asked = cgn_arena_str(&r->arena,
		json_str(model, &r->work)); /* the body goes before the request does */
	if (asked.p == NULL)
		return model_missing(r);
	(void)model_resolve(r, asked, &row);
	if (r->state != GW_ROUTE)
		return STEP_AGAIN;
	r->stream = json_get_bool(body, "stream", false);
	r->several = is_several(body);
	r->answer_tokens = most_tokens(body);
	if (!gw_resume_open(r, body))
		return STEP_AGAIN;
	r->parsed = true;
	gw_tokens_start(r, body, row);
	return STEP_AGAIN;
}

/* What the chooser is asked. Borrows from the request. */
static struct chooser_ask ask_of(struct gw_req *r)
{
	size_t n_excluded = r->tries;
	const uint16_t *excluded = r->head_sent ? gw_resume_excluded(r, &n_excluded) : r->excluded;
	const struct gw_worker *w = r->w;
	const struct view_node *pinned = r->pin.n > 0 ? view_node_find(w->view, r->pin) : NULL;
	return (struct chooser_ask){
		.rules = &w->rules->route,
		.model = r->pin.n > 0 && pinned == NULL ? NULL : view_model_find(w->view, r->model),
		.chain = r->chain.short_digests,
		.blocks = r->chain.n,
		.length = r->chain.length,
		.block_tokens = r->block_tokens,
		.prompt_tokens = r->prompt_tokens,
		.answer_tokens = r->answer_tokens,
		.whole = !r->stream,
		.embeds = r->route->scope == AUTH_EMBED,
		.stored = r->prefill_node != NULL ? (uint32_t)r->chain.n : 0,
		.session = r->session.n > 0 ? route_hash(r->session.p, r->session.n) : 0,
		.pin = pinned != NULL ? pinned->slot : CHOOSER_NO_PIN,
		.excluded = excluded,
		.n_excluded = n_excluded,
		.now = cgn_loop_now(w->loop),
	};
}

bool gw_can_retry(struct gw_req *r)
{
	if (r->tries >= r->w->rules->attempts || r->tries >= GW_MAX_ATTEMPTS)
		return false;
	struct chooser_ask ask = ask_of(r);
	enum route_verdict v = chooser_pick(r->w->chooser, &ask).verdict;
	/* an answer that is at hand, however bad, is not kept from the client for a place in a queue */
	return v == ROUTE_PICKED || (!r->t.head_seen && gw_queue_must(r, v));
}

static enum gw_step nobody(struct gw_req *r, enum route_verdict verdict)
{
	gw_queue_end(r);
	if (verdict == ROUTE_FULL)
		return gw_refuse(r,
			&(struct gw_refusal){503, "server_error", "overloaded", .reason = "concurrency",
				.retry_after = 1},
			"every node that serves %.*s has all the requests that it may have",
			CGN_STR_ARG(r->model));
	if (r->pin.n > 0)
		return gw_refuse(r, &no_node,
			"the node of X-Cgn-Node is not known, not ready, or does not serve %.*s",
			CGN_STR_ARG(r->model));
	return gw_refuse(r, &no_node, "no node that serves %.*s is ready%s", CGN_STR_ARG(r->model),
		r->tries > 0 ? " beside those that failed" : "");
}

/* What the end of the request is compared with. The chain itself goes with the first byte; of a guess the
 * held part is kept, to be corrected. */
static void guess_keep(struct gw_req *r, const struct route_cand *c, const struct view_node *node)
{
	size_t n = r->chain.n;
	r->guess = (struct gw_guess){.node = c->node_id_hash,
		.fed = c->fed && !c->fed_bytes,
		.kv_block = node->kv_block};
	if (n == 0)
		return;
	r->guess.length = r->chain.length > 0 ? r->chain.length : (double)n;
	r->guess.last = r->chain.short_digests[n - 1];
	if ((c->fed && !c->fed_bytes) || c->held == 0)
		return;
	r->guess.tail =
		prompttail_get(r->w->shared->tails, r->chain.short_digests[c->held - 1], c->node_id_hash);
	uint64_t *copy = cgn_arena_get(&r->arena, c->held * sizeof *copy);
	if (copy != NULL)
		memcpy(copy, r->chain.short_digests, c->held * sizeof *copy);
	r->guess.chain = copy;
}

static enum gw_step send_to(struct gw_req *r, const struct chooser_ask *ask,
	const struct chooser_pick_result *p, enum breaker_gate gate, cgn_nsec began)
{
	struct gw_worker *w = r->w;
	const struct route_cand *c = &p->cands[p->index];
	const struct view_node *node = view_node_at(w->view, c->slot);
	struct chooser_ticket ticket = {.booked = false};
	CGN_MUST(node != NULL);
	if (r->head_sent && !gw_resume_send(r, node))
		return gw_refuse(r, &(struct gw_refusal){503, "server_error", "no_memory", .retry_after = 1},
			"out of memory");
	chooser_book(w->chooser, ask, p, &ticket);
	gw_queue_end(r);
	r->held = c->held;
	r->blocks = (uint32_t)r->chain.n;
	guess_keep(r, c, node);
	r->took = cgn_clock_now() - began;
	metric_observe(w->pick_seconds, r->took);
	gw_explain_pick(r, ask, p, r->took);
	r->excluded[r->tries++] = c->slot;
	r->backed_off = false;
	w->asked++;
	gw_try_start(r, node, &ticket, gate);
	gw_goto(r, GW_DISPATCH);
	return STEP_AGAIN;
}

/* Pick, and become the probe of a node that waits for one. If its breaker was shut, another request has just
 * done so, and then the next pick does not offer it; or every breaker is shut, and it is offered although. */
static struct chooser_pick_result pick_open(struct gw_req *r, const struct chooser_ask *ask,
	enum breaker_gate *gate)
{
	struct chooser_pick_result p = {.verdict = ROUTE_NONE};
	for (unsigned i = 0; i < 3; i++) {
		p = chooser_pick(r->w->chooser, ask);
		if (p.verdict != ROUTE_PICKED)
			break;
		*gate = gw_breaker_claim(r->w, view_node_at(r->w->view, p.cands[p.index].slot));
		if (*gate != BREAKER_SHUT)
			break;
	}
	return p;
}

/* That nobody had room is a decision too, and the last one if the request is never sent. Told once: it may be
 * looked at often while it waits. */
static void explain_wait(struct gw_req *r, const struct chooser_ask *ask, const struct chooser_pick_result *p)
{
	if (p->verdict != ROUTE_PICKED && r->explain_number == 0)
		gw_explain_pick(r, ask, p, 0);
}

/* Before anything is claimed for it: does it wait behind others, or ask for what cannot be had? */
static bool is_held_up(struct gw_req *r, const struct chooser_ask *ask)
{
	struct chooser_pick_result p = chooser_pick(r->w->chooser, ask);
	bool waits = gw_queue_must(r, p.verdict);
	gw_queue_predict(r, &p);
	if (waits) {
		explain_wait(r, ask, &p);
		gw_queue_enter(r, p.verdict);
	}
	return waits || (p.verdict == ROUTE_PICKED && gw_queue_refuses(r));
}

/* Twice as long each time, and never in step with others that failed at the same moment. */
static cgn_nsec backoff(struct gw_req *r)
{
	cgn_nsec d = r->w->rules->retry_backoff;
	for (uint32_t i = 2; i < r->tries && d < BACKOFF_MOST; i++)
		d *= 2;
	return (cgn_nsec)((double)(d < BACKOFF_MOST ? d : BACKOFF_MOST) * (0.5 + gw_random(r->w)));
}

enum gw_step gw_route(struct gw_req *r)
{
	cgn_nsec began = cgn_clock_now();
	if (!r->parsed)
		(void)body_parse(r);
	if (r->state != GW_ROUTE)
		return STEP_AGAIN; /* refused, or its tokens are made elsewhere */
	if (!r->limited) {
		gw_goto(r, GW_LIMIT);
		return STEP_AGAIN;
	}
	if (r->tries >= 2 && !r->backed_off && r->w->rules->retry_backoff > 0) {
		r->backed_off = true;
		/* nothing else wakes it but a client that goes */
		return gw_park(r, WAIT_BACKOFF, backoff(r));
	}
	if (!r->counted)
		retry_budget_add(&r->w->budget, r->w->rules->retry_budget);
	r->counted = true;
	struct chooser_ask ask = ask_of(r);
	enum breaker_gate gate = BREAKER_PASS;
	if (gw_queue_looks(r) && is_held_up(r, &ask))
		return STEP_AGAIN;
	if (gw_disagg_begin(r, &ask))
		return STEP_AGAIN;
	struct chooser_pick_result p = pick_open(r, &ask, &gate);
	/* picked, it goes: a probe may be claimed for it, and who began to wait meanwhile is no older than
	 * this one */
	if (p.verdict != ROUTE_PICKED && gw_queue_must(r, p.verdict)) {
		gw_queue_predict(r, &p);
		explain_wait(r, &ask, &p);
		gw_queue_enter(r, p.verdict);
		return STEP_AGAIN;
	}
	if (p.verdict != ROUTE_PICKED) {
		gw_explain_pick(r, &ask, &p, cgn_clock_now() - began);
		return nobody(r, p.verdict);
	}
	return send_to(r, &ask, &p, gate, began);
}
