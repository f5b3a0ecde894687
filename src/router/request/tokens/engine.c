/* SPDX-License-Identifier: Apache-2.0 */
/* engine: a prompt's tokens, as an engine of its model tells them through its agent. Answers are kept in the
 * prompt cache under a digest of the question. */

#include "base/log/log.h"
#include "router/request/permit/permit.h"
#include "router/request/tokens/tokens_priv.h"
#include "router/request/trace/trace.h"

/* Bytes of about a million tokens; a longer prompt has blocks of bytes */
#define ANSWER_MAX ((size_t)8 << 20)
/* Failures in a row after which the model's engines are not asked for QUIET */
#define FAILURES_MAX 3
/* Part of router.tokenize_timeout after which another engine is asked first */
#define PATIENCE_PART 4
#define QUIET         (10 * CGN_SEC)

/* ---- the call ---- */

static void on_message(struct grpc_call *call, void *user, const uint8_t *p, size_t n)
{
	(void)call;
	struct gw_req *r = user;
	struct proto_chunk c;
	CGN_LIVE(r, GW_REQ_TAG);
	struct tokens_ask *a = &r->prompt.tokenizing->ask;
	struct cgn_arena fields; /* only the status is kept */
	cgn_arena_init(&fields, GW_HEAD_ARENA);
	if (!cgn_ok(proto_chunk_read((struct cgn_str){(const char *)p, n}, &fields, &c, NULL)))
		c = (struct proto_chunk){.kind = PROTO_CHUNK_HEAD, .status = 502};
	cgn_arena_fini(&fields);
	if (c.kind == PROTO_CHUNK_HEAD)
		a->status = c.status;
	else if (c.kind == PROTO_CHUNK_DATA)
		cgn_buf_str(&a->answer, c.data);
}

static void on_close(struct grpc_call *call, void *user, const struct cgn_err *why)
{
	(void)call;
	struct gw_req *r = user;
	CGN_LIVE(r, GW_REQ_TAG);
	gw_call_on_close(&r->prompt.tokenizing->ask.call, why);
	gw_wake(r);
}

static const struct grpc_call_ops call_ops = {.on_message = on_message, .on_close = on_close};

/* ---- the call to an engine without an agent ---- */

static void on_http_head(struct http_call *call, void *user, const struct http_head *h)
{
	(void)call;
	struct gw_req *r = user;
	CGN_LIVE(r, GW_REQ_TAG);
	r->prompt.tokenizing->ask.status = h->status;
}

static void on_http_body(struct http_call *call, void *user, const uint8_t *p, size_t n)
{
	(void)call;
	struct gw_req *r = user;
	CGN_LIVE(r, GW_REQ_TAG);
	cgn_buf_add(&r->prompt.tokenizing->ask.answer, p, n);
}

static void on_http_end(struct http_call *call, void *user, const struct http_field *trailers, size_t n)
{
	(void)call;
	(void)trailers;
	(void)n;
	struct gw_req *r = user;
	const struct cgn_err fine = {.code = CGN_FINE};
	CGN_LIVE(r, GW_REQ_TAG);
	gw_call_on_close(&r->prompt.tokenizing->ask.call, &fine);
	gw_wake(r);
}

static void on_http_fail(struct http_call *call, void *user, enum http_fail_stage stage,
	const struct cgn_err *why)
{
	(void)call;
	struct gw_req *r = user;
	struct gw_call *c = &r->prompt.tokenizing->ask.call;
	struct cgn_err said;
	CGN_LIVE(r, GW_REQ_TAG);
	enginecall_failed(c->node_id, stage, why, &said);
	gw_call_on_close(c, &said);
	gw_wake(r);
}

static const struct http_call_ops http_ops = {.on_head = on_http_head,
	.on_body = on_http_body,
	.on_end = on_http_end,
	.on_fail = on_http_fail};

/* Send |g| to |node|, by its agent if it has one. A call that cannot be started is a closed call with a reason. */
static void question_start(struct gw_req *r, const struct view_node *node, const struct proto_generate *g)
{
	struct gw_call *c = &r->prompt.tokenizing->ask.call;
	if (node->direct.door == NULL) {
		gw_call_start(c, r->w, node, &r->arena, g, &call_ops, r);
		return;
	}
	if (!gw_call_link(c, r->w, node, &r->arena))
		return;
	cgn_rc rc = gw_link_engine(r->w, c->link, node)
		? gw_call_by_engine(c, g, &http_ops, r, &c->why)
		: CGN_FAIL(&c->why, UNAVAILABLE, "node %s: its engine is at another address now", node->id);
	c->closed = !cgn_ok(rc);
}

static struct teller *teller_of(const struct gw_req *r, uint16_t slot)
{
	return &r->w->shared->choice.stats[slot].teller;
}

static void question_over(struct tokens_ask *a)
{
	if (a->teller != NULL)
		teller_ended(a->teller);
	a->teller = NULL;
}

void tokens_ask_end(struct gw_req *r)
{
	struct tokens_ask *a = &r->prompt.tokenizing->ask;
	question_over(a);
	gw_call_end(&a->call, r->w);
	cgn_buf_fini(&a->body);
	cgn_buf_fini(&a->answer);
	cgn_buf_fini(&a->before);
}

/* Return true if the node may answer: an open breaker could cost the prompt all of
 * router.tokenize_timeout. */
static bool node_is_well(const struct gw_req *r, const struct view_node *node)
{
	uint64_t word =
		atomic_load_explicit(&r->w->shared->choice.stats[node->slot].breaker, memory_order_relaxed);
	return breaker_gate(word, cgn_loop_now(r->w->loop)) == BREAKER_PASS;
}

/* Return true if the node failed this request, or did not answer this question. */
static bool has_failed(const struct gw_req *r, uint16_t slot)
{
	const struct tokens_ask *a = &r->prompt.tokenizing->ask;
	return plan_has_tried(&r->plan.legs, slot) || (a->again && a->call.slot == slot);
}

/* Return true if the engine of m->ready[at] may be asked. */
static bool may_ask(const struct gw_req *r, const struct view_model *m, size_t at)
{
	const struct engine_tokens_ops *ops = m->tokens[at];
	return ops != NULL && (!ops->guess || r->prompt.tokenizing->guess) && node_is_well(r, m->ready[at]) &&
		!teller_rests(teller_of(r, m->ready[at]->slot), cgn_loop_now(r->w->loop)) &&
		!has_failed(r, m->ready[at]->slot) && !(r->client.if_available && view_load_ms(m, at) > 0);
}

/* Return how little the engine of m->ready[at] is wanted: one that has to be loaded least. 0: it is as good as any. */
static unsigned engine_rank(const struct gw_req *r, const struct view_model *m, size_t at)
{
	bool hesitates = teller_hesitates(teller_of(r, m->ready[at]->slot), cgn_loop_now(r->w->loop),
		r->w->rules->timeout.tokenize / PATIENCE_PART);
	return (view_load_ms(m, at) > 0 ? 2U : 0U) + (hesitates ? 1U : 0U);
}

/* Return a ready node whose engine tells tokens, the next one in turn of those of the best rank; NULL: there is none. */
static const struct view_node *engine_choose(const struct gw_req *r, const struct engine_tokens_ops **ops)
{
	const struct view_model *m = view_model_find(r->w->view, r->prompt.model);
	size_t best = SIZE_MAX;
	unsigned rank = 0;
	for (size_t i = 0; m != NULL && i < m->n_ready; i++) {
		size_t at = (r->w->sent + i) % m->n_ready;
		if (!may_ask(r, m, at) || (best != SIZE_MAX && engine_rank(r, m, at) >= rank))
			continue;
		best = at;
		rank = engine_rank(r, m, at);
		if (rank == 0)
			break;
	}
	if (best == SIZE_MAX)
		return NULL;
	*ops = m->tokens[best];
	return m->ready[best];
}

/* Return true if the engine at |node| has to be loaded before it answers. */
static bool is_unloaded(const struct gw_req *r, const struct view_node *node)
{
	const struct view_model *m = view_model_find(r->w->view, r->prompt.model);
	for (size_t i = 0; m != NULL && i < m->n_ready; i++)
		if (m->ready[i] == node)
			return view_load_ms(m, i) > 0;
	return false;
}

/* Return the name under which |node| serves the request's model. A node that is not ready any more is asked by the
 * model's own name. */
static struct cgn_str name_at(const struct gw_req *r, const struct view_node *node)
{
	const struct view_model *m = view_model_find(r->w->view, r->prompt.model);
	for (size_t i = 0; m != NULL && i < m->n_ready; i++)
		if (m->ready[i] == node)
			return m->served[i].text;
	return r->prompt.model;
}

static void question_send(struct gw_req *r, const struct view_node *node)
{
	struct tokens_ask *a = &r->prompt.tokenizing->ask;
	gw_trace_leg(r, GW_TRACE_TOKENS);
	const struct proto_header *trace = r->client.traceparent;
	const struct proto_header headers[] = {{CGN_STR("content-type"), CGN_STR("application/json")},
		{CGN_STR("x-request-id"), r->client.name},
		trace != NULL ? *trace : (struct proto_header){CGN_STR(""), CGN_STR("")}};
	const struct proto_generate g = {
		.request_id = r->client.name,
		.method = CGN_STR("POST"),
		.path = cgn_str_of(a->steps[a->step].path),
		.headers = headers,
		.n_headers = CGN_COUNT(headers) - (trace == NULL),
		.facts = {.model = name_at(r, node),
			.attempt = 1,
			.router = r->w->shared->instance,
			.keep_alive = r->prompt.keep_alive,
			.keep_bounded = !gw_permit_change(r, r->prompt.model)},
		.body = cgn_buf_view(&a->body),
	};
	a->status = 0;
	a->loads = a->loads || is_unloaded(r, node);
	a->answer.limit = ANSWER_MAX;
	question_over(a);
	a->teller = teller_of(r, node->slot);
	teller_asked(a->teller, cgn_loop_now(r->w->loop));
	question_start(r, node, &g);
}

/* ---- whether engines work ---- */

static void engine_works(struct gw_req *r)
{
	struct tokens_model *m = tokens_model_of(r->w, r->prompt.model);
	if (m->failures > 0)
		cgn_log_limited(INFO, "gateway.tokens_again", F_STRN("model", r->prompt.model),
			F_STR("node", r->prompt.tokenizing->ask.call.node_id));
	m->failures = 0;
	m->quiet_until = 0;
}

/* Log the first failure in a row. */
static void engine_fails(struct gw_req *r, const char *reason, const char *why)
{
	struct tokens_model *m = tokens_model_of(r->w, r->prompt.model);
	if (m->failures == 0)
		cgn_log_limited(WARN, "gateway.tokens_fallback", F_STRN("model", r->prompt.model),
			F_STR("node", r->prompt.tokenizing->ask.call.node_id),
			F_I64("status", r->prompt.tokenizing->ask.status), F_STR("reason", reason),
			F_STR("why", why), F_STR("then", "blocks of bytes for such requests"));
	if (++m->failures >= FAILURES_MAX)
		m->quiet_until = cgn_loop_now(r->w->loop) + QUIET;
}

static enum gw_step tokens_failed(struct gw_req *r, const char *reason, const char *why)
{
	engine_fails(r, reason, why);
	tokens_fall_back(r, reason);
	tokens_leave(r);
	return STEP_AGAIN;
}

/* ---- from question to answer ---- */

/* Write the question of the current step with |model| as the model's name. */
static void question_write(struct gw_req *r, struct cgn_str model)
{
	struct tokens_ask *a = &r->prompt.tokenizing->ask;
	a->body.n = 0;
	a->steps[a->step].ask(model, &r->prompt.tokenizing->p, cgn_buf_view(&a->before), &a->body);
}

/* Return the cache key of the prompt: its root, and its first question, which contains everything that its
 * tokens depend on. */
static struct promptcache_key question_key(const struct gw_tokenizing *p)
{
	struct promptcache_key key;
	const struct digest root = tokens_cache_root(p, 0);
	struct digest d = digest_keyed(&root, cgn_buf_view(&p->ask.body));
	memcpy(key.b, d.b, sizeof key.b);
	return key;
}

static bool tokens_cached(struct gw_req *r)
{
	struct gw_tokenizing *p = r->prompt.tokenizing;
	size_t at = 0;
	const struct promptcache_entry *e = promptcache_find(r->w->tokens->cache, &p->ask.key, 1, &at);
	if (e == NULL)
		return false;
	tokens_take_cached(r, e);
	return true;
}

static const char *prompt_parse(struct gw_req *r, const struct engine_tokens_ops *ops)
{
	const char *lacks = NULL;
	const struct prompt_ask ask = {
		.api = prompt_api_of(r->client.target),
		.format = ops->format,
		.max_ids = ROUTE_MAX_BLOCKS * (size_t)r->prompt.tokenizing->block_tokens,
	};
	return prompt_read(&ask, r->prompt.facts.json, &r->prompt.tokenizing->p, &lacks) ? NULL : lacks;
}

/* Read the prompt and write the question. Any thread. */
static void ask_run(struct gw_req *r)
{
	struct gw_tokenizing *p = r->prompt.tokenizing;
	p->root = prefix_root(r->prompt.model, r->prompt.salt, r->prompt.facts.json);
	p->ask.lacks = prompt_parse(r, p->ask.ops);
	if (p->ask.lacks != NULL || p->p.kind == PROMPT_IS_IDS)
		return;
	p->ask.steps = p->p.kind == PROMPT_IS_CHAT ? p->ask.ops->chat : p->ask.ops->text;
	question_write(r, r->prompt.model);
	p->ask.key = question_key(p); /* the same for all nodes, whatever they call the model */
	if (p->ask.body.bad)
		p->ask.lacks = PROMPT_LACKS_MEMORY;
}

/* Return why no engine can be asked. */
static const char *nobody_text(const struct gw_req *r)
{
	const struct view_model *m = view_model_find(r->w->view, r->prompt.model);
	for (size_t i = 0; m != NULL && i < m->n_ready; i++)
		if (m->tokens[i] != NULL &&
			teller_rests(teller_of(r, m->ready[i]->slot), cgn_loop_now(r->w->loop)))
			return "paused";
	return "no_node";
}

/* Ask a node, which is chosen again: nodes may have come and gone while the pool read the prompt. */
static void ask_send(struct gw_req *r)
{
	struct gw_tokenizing *p = r->prompt.tokenizing;
	struct tokens_model *m = tokens_model_of(r->w, r->prompt.model);
	const struct engine_tokens_ops *ops = NULL;
	const struct view_node *node = engine_choose(r, &ops);
	if (node == NULL || ops != p->ask.ops) {
		tokens_fall_back(r, nobody_text(r));
		return;
	}
	if (m->quiet_until > cgn_loop_now(r->w->loop)) {
		tokens_fall_back(r, "paused");
		return;
	}
	if (!cgn_str_eq(name_at(r, node), r->prompt.model))
		question_write(r, name_at(r, node));
	question_send(r, node);
	gw_goto(r, GW_TOKENS);
}

static void ask_then(struct gw_req *r)
{
	struct gw_tokenizing *p = r->prompt.tokenizing;
	if (p->ask.lacks != NULL)
		tokens_fall_back(r, p->ask.lacks);
	else if (p->p.kind == PROMPT_IS_IDS)
		tokens_take(r, p->p.ids, p->p.n_ids, NULL);
	else if (!tokens_cached(r))
		ask_send(r);
}

void tokens_ask_start(struct gw_req *r)
{
	if (engine_choose(r, &r->prompt.tokenizing->ask.ops) == NULL)
		tokens_fall_back(r, nobody_text(r));
	else
		gw_body_work(r, ask_run, ask_then);
}

/* Return true if the engine refuses this one prompt, which says nothing of the next one. */
static bool is_refusal(int status)
{
	return status == 400 || status == 413 || status == 422;
}

static enum gw_step question_answered(struct gw_req *r)
{
	struct gw_tokenizing *p = r->prompt.tokenizing;
	struct tokens_ask *a = &p->ask;
	struct cgn_err err = {0};
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf out = {0};
	bool last = a->step + 1 == ENGINE_TOKENS_STEPS || a->steps[a->step + 1].path == NULL;
	size_t max = ROUTE_MAX_BLOCKS * (size_t)p->block_tokens;
	if (!cgn_ok(a->steps[a->step].read(cgn_buf_view(&a->answer), max, &out, &err)))
		return tokens_failed(r, "answer", err.msg);
	if (last) {
		engine_works(r);
		tokens_take(r, (const uint32_t *)(const void *)out.p, out.n / sizeof(uint32_t), &a->key);
		tokens_leave(r);
		return STEP_AGAIN;
	}
	a->step++;
	cgn_buf_fini(&a->before);
	a->before = out;
	out = (struct cgn_buf){0};
	cgn_buf_fini(&a->answer);
	const struct view_node *node = view_node_at(r->w->view, a->call.link->slot);
	if (node == NULL || a->call.link->retired)
		return tokens_failed(r, "unreachable", "the node left");
	question_write(r, name_at(r, node));
	question_send(r, node);
	return STEP_AGAIN;
}

/* Ask another engine from the beginning: an engine that has just died is still marked as ready. */
static enum gw_step question_repeat(struct gw_req *r)
{
	struct tokens_ask *a = &r->prompt.tokenizing->ask;
	const struct engine_tokens_ops *ops = NULL;
	bool first = !a->again;
	a->again = true;
	const struct view_node *node = first ? engine_choose(r, &ops) : NULL;
	if (node == NULL || (a->steps != ops->chat && a->steps != ops->text))
		return tokens_failed(r, "unreachable", a->call.why.msg);
	question_over(a);
	gw_call_end(&a->call, r->w);
	cgn_buf_fini(&a->before);
	cgn_buf_fini(&a->answer);
	a->step = 0;
	question_write(r, name_at(r, node));
	question_send(r, node);
	return STEP_AGAIN;
}

/* An engine that answered others meanwhile is slow with this prompt only. */
static enum gw_step question_late(struct gw_req *r, cgn_nsec limit)
{
	struct tokens_ask *a = &r->prompt.tokenizing->ask;
	cgn_nsec now = cgn_loop_now(r->w->loop);
	if (!a->loads && a->teller != NULL && teller_hesitates(a->teller, now, limit / 2))
		teller_was_late(a->teller, now);
	return tokens_failed(r, "timeout", "no tokens in time (router.tokenize_timeout)");
}

enum gw_step tokens_ask_step(struct gw_req *r)
{
	struct tokens_ask *a = &r->prompt.tokenizing->ask;
	cgn_nsec waited = cgn_since(cgn_clock_now(), r->prompt.tokenizing->began),
		 limit = a->loads ? r->w->rules->timeout.first_byte : r->w->rules->timeout.tokenize;
	if (a->call.closed && a->call.why.code != CGN_FINE)
		return question_repeat(r);
	if (a->call.closed && a->teller != NULL)
		teller_answered(a->teller, cgn_loop_now(r->w->loop));
	if (a->call.closed && a->answer.bad)
		return tokens_failed(r, "too_large", "the answer is longer than 8 MiB");
	if (a->call.closed && is_refusal(a->status)) {
		tokens_fall_back(r, "refused");
		tokens_leave(r);
		return STEP_AGAIN;
	}
	if (a->call.closed && a->status != 200)
		return tokens_failed(r, "status", "the engine's answer to a tokenize request is an error");
	if (a->call.closed)
		return question_answered(r);
	if (waited >= limit && !a->loads &&
		(a->loads = is_unloaded(r, view_node_at(r->w->view, a->call.slot))))
		return STEP_AGAIN; /* The engine was unloaded after it was asked. */
	if (waited < limit)
		return gw_park(r, WAIT_TOKENS, limit - waited);
	return question_late(r, limit);
}
