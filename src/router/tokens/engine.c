/* SPDX-License-Identifier: Apache-2.0 */
/* ask: a prompt's tokens as an engine of its model tells them, through its agent. The answers are kept under
 * the question. */
#include <stdlib.h>

#include "base/log/log.h"
#include "router/tokens/tokens_priv.h"

#define ANSWER_MAX   ((size_t)8 << 20) /* a million tokens; a longer prompt has blocks of bytes */
#define FAILURES_MAX 3                 /* one after the other, and then: */
#define QUIET        (10 * CGN_SEC)

/* ---- the call ---- */

static void on_message(struct grpc_call *call, void *user, const uint8_t *p, size_t n)
{
	(void)call;
	struct gw_req *r = user;
	struct proto_chunk c;
	CGN_LIVE(r, GW_REQ_TAG);
	struct tokens_ask *a = &r->prompt->ask;
	if (!cgn_ok(proto_chunk_read((struct cgn_str){(const char *)p, n}, &r->work, &c, NULL)))
		c = (struct proto_chunk){.kind = PROTO_CHUNK_HEAD, .status = 502};
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
	struct tokens_ask *a = &r->prompt->ask;
	a->call = NULL;
	a->closed = true;
	a->why = *why;
	gw_wake(r);
}

static const struct grpc_call_ops call_ops = {.on_message = on_message, .on_close = on_close};

static void call_end(struct gw_req *r)
{
	struct tokens_ask *a = &r->prompt->ask;
	if (a->call != NULL)
		grpc_cancel(&a->call);
	if (a->link != NULL)
		gw_link_release(r->w, &a->link);
}

void tokens_ask_end(struct gw_req *r)
{
	struct tokens_ask *a = &r->prompt->ask;
	call_end(r);
	cgn_buf_fini(&a->body);
	cgn_buf_fini(&a->answer);
	cgn_buf_fini(&a->before);
}

/* Nobody is asked who may not answer: that would cost the prompt the whole of router.tokenize_timeout. */
static bool is_well(const struct gw_req *r, const struct view_node *node)
{
	uint64_t word =
		atomic_load_explicit(&r->w->shared->choice.cells[node->slot].breaker, memory_order_relaxed);
	return breaker_gate(word, cgn_loop_now(r->w->loop)) == BREAKER_PASS;
}

/* It was tried with this request and failed, or did not answer this question. */
static bool has_failed(const struct gw_req *r, uint16_t slot)
{
	for (uint32_t i = 0; i < r->tries; i++)
		if (r->excluded[i] == slot)
			return true;
	return r->prompt->ask.again && r->prompt->ask.slot == slot;
}

/* A ready node whose engine tells tokens; each in its turn. */
static const struct view_node *node_of(const struct gw_req *r, const struct engine_tokens_ops **ops)
{
	const struct view_model *m = view_model_find(r->w->view, r->model);
	for (size_t i = 0; m != NULL && i < m->n_ready; i++) {
		size_t at = (r->w->asked + i) % m->n_ready;
		*ops = m->tokens[at];
		if (*ops != NULL && (!(*ops)->guess || r->prompt->guess) && is_well(r, m->ready[at]) &&
			!has_failed(r, m->ready[at]->slot))
			return m->ready[at];
	}
	return NULL;
}

static void send_question(struct gw_req *r)
{
	struct tokens_ask *a = &r->prompt->ask;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf prefix = {0};
	const struct proto_header headers[] = {{CGN_STR("content-type"), CGN_STR("application/json")},
		{CGN_STR("x-request-id"), r->id}};
	const struct proto_generate g = {
		.request_id = r->id,
		.method = CGN_STR("POST"),
		.path = cgn_str_of(a->steps[a->step].path),
		.headers = headers,
		.n_headers = CGN_COUNT(headers),
		.facts = {.model = r->model, .attempt = 1, .router = r->w->shared->instance},
		.body = cgn_buf_view(&a->body),
	};
	proto_generate_prefix(&g, &prefix);
	if (prefix.bad) {
		grpc_cancel(&a->call);
		a->closed = true;
		a->why = (struct cgn_err){.code = CGN_NO_MEMORY, .msg = "out of memory"};
		return;
	}
	const struct iovec iov[] = {{prefix.p, prefix.n}, {a->body.p, a->body.n}};
	grpc_send(a->call, iov, 2);
	if (a->call != NULL)
		grpc_half_close(a->call);
}

/* A failure to start is an answer that failed. */
static void call_start(struct gw_req *r, const struct view_node *node)
{
	struct tokens_ask *a = &r->prompt->ask;
	a->closed = false;
	a->status = 0;
	a->answer.limit = ANSWER_MAX;
	a->slot = node->slot;
	a->node_id = cgn_arena_strz(&r->arena, cgn_str_of(node->id));
	cgn_rc rc = CGN_OK;
	if (a->link == NULL)
		rc = gw_link_get(r->w, node, &a->link, &a->why);
	if (cgn_ok(rc))
		rc = grpc_call_start(a->link->channel, PROTO_AGENT_GENERATE, 0, &call_ops, r, &a->call,
			&a->why);
	if (cgn_ok(rc)) {
		send_question(r);
		return;
	}
	a->call = NULL;
	a->closed = true;
}

/* ---- the engine's standing ---- */

static void stand_well(struct gw_req *r)
{
	struct tokens_model *m = tokens_model_of(r->w, r->model);
	if (m == NULL)
		return;
	if (m->failures > 0)
		cgn_log(INFO, "gateway.tokens_again", F_STRN("model", r->model),
			F_STR("node", r->prompt->ask.node_id));
	m->failures = 0;
	m->quiet_until = 0;
}

/* Said once, until it works again. */
static void stand_badly(struct gw_req *r, const char *reason, const char *why)
{
	struct tokens_model *m = tokens_model_of(r->w, r->model);
	if (m == NULL)
		return;
	if (m->failures == 0)
		cgn_log(WARN, "gateway.tokens_fallback", F_STRN("model", r->model),
			F_STR("node", r->prompt->ask.node_id), F_I64("status", r->prompt->ask.status),
			F_STR("reason", reason), F_STR("why", why),
			F_STR("then", "blocks of bytes for such requests"));
	if (++m->failures >= FAILURES_MAX)
		m->quiet_until = cgn_loop_now(r->w->loop) + QUIET;
}

static enum gw_step failed(struct gw_req *r, const char *reason, const char *why)
{
	stand_badly(r, reason, why);
	tokens_fall_back(r, reason);
	gw_goto(r, GW_ROUTE);
	return STEP_AGAIN;
}

/* ---- from question to answer ---- */

static void question_write(struct gw_req *r)
{
	struct tokens_ask *a = &r->prompt->ask;
	a->body.n = 0;
	a->steps[a->step].ask(r->model, &r->prompt->p, cgn_buf_view(&a->before), &a->body);
}

/* Its first question says all that its tokens depend on; the root, whose they are. */
static struct promptcache_key key_of(const struct gw_prompt *p)
{
	struct promptcache_key key;
	const struct digest root = tokens_kept_root(p, 0);
	struct digest d = digest_keyed(&root, cgn_buf_view(&p->ask.body));
	memcpy(key.b, d.b, sizeof key.b);
	return key;
}

static bool known(struct gw_req *r)
{
	struct gw_prompt *p = r->prompt;
	size_t at = 0;
	const struct promptcache_entry *e = promptcache_find(r->w->tokens->cache, &p->ask.key, 1, &at);
	if (e == NULL)
		return false;
	tokens_take_kept(r, e);
	return true;
}

static const char *read_body(struct gw_req *r, const struct engine_tokens_ops *ops)
{
	const char *lacks = NULL;
	const struct prompt_ask ask = {
		.api = prompt_api_of(r->path),
		.format = ops->format,
		.max_ids = ROUTE_MAX_BLOCKS * (size_t)r->prompt->block_tokens,
	};
	return prompt_read(&ask, r->prompt->body, &r->prompt->p, &lacks) ? NULL : lacks;
}

void tokens_ask_start(struct gw_req *r)
{
	struct gw_prompt *p = r->prompt;
	struct tokens_model *m = tokens_model_of(r->w, r->model);
	const struct engine_tokens_ops *ops = NULL;
	const struct view_node *node = node_of(r, &ops);
	const char *lacks = node == NULL ? "no_node" : read_body(r, ops);
	if (lacks != NULL) {
		tokens_fall_back(r, lacks);
		return;
	}
	if (p->p.kind == PROMPT_IS_IDS) {
		tokens_take(r, p->p.ids, p->p.n_ids, NULL);
		return;
	}
	p->ask.steps = p->p.kind == PROMPT_IS_CHAT ? ops->chat : ops->text;
	question_write(r);
	p->ask.key = key_of(p);
	if (p->ask.body.bad)
		tokens_fall_back(r, PROMPT_LACKS_MEMORY);
	else if (!known(r)) {
		if (m != NULL && m->quiet_until > cgn_loop_now(r->w->loop)) {
			tokens_fall_back(r, "paused");
			return;
		}
		call_start(r, node);
		gw_goto(r, GW_TOKENS);
	}
}

/* The engine does not like this one request; that says nothing of the next. */
static bool is_refusal(int status)
{
	return status == 400 || status == 413 || status == 422;
}

static enum gw_step answered(struct gw_req *r)
{
	struct gw_prompt *p = r->prompt;
	struct tokens_ask *a = &p->ask;
	struct cgn_err err = {0};
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf out = {0};
	bool last = a->step + 1 == ENGINE_TOKENS_STEPS || a->steps[a->step + 1].path == NULL;
	size_t max = ROUTE_MAX_BLOCKS * (size_t)p->block_tokens;
	if (!cgn_ok(a->steps[a->step].read(cgn_buf_view(&a->answer), max, &out, &err)))
		return failed(r, "answer", err.msg);
	if (last) {
		stand_well(r);
		tokens_take(r, (const uint32_t *)(const void *)out.p, out.n / sizeof(uint32_t), &a->key);
		gw_goto(r, GW_ROUTE);
		return STEP_AGAIN;
	}
	a->step++;
	cgn_buf_fini(&a->before);
	a->before = out;
	out = (struct cgn_buf){0};
	cgn_buf_fini(&a->answer);
	question_write(r);
	const struct view_node *node = view_node_at(r->w->view, a->link->slot);
	if (node == NULL || a->link->retired)
		return failed(r, "unreachable", "the node left");
	call_start(r, node);
	return STEP_AGAIN;
}

/* An engine that died a moment ago is still thought to be ready: the question goes to another one, from its
 * beginning. */
static enum gw_step unreachable(struct gw_req *r)
{
	struct tokens_ask *a = &r->prompt->ask;
	const struct engine_tokens_ops *ops = NULL;
	bool first = !a->again;
	a->again = true;
	const struct view_node *node = first ? node_of(r, &ops) : NULL;
	if (node == NULL || (a->steps != ops->chat && a->steps != ops->text))
		return failed(r, "unreachable", a->why.msg);
	call_end(r);
	cgn_buf_fini(&a->before);
	cgn_buf_fini(&a->answer);
	a->step = 0;
	a->why = (struct cgn_err){0};
	question_write(r);
	call_start(r, node);
	return STEP_AGAIN;
}

enum gw_step tokens_ask_step(struct gw_req *r)
{
	struct tokens_ask *a = &r->prompt->ask;
	cgn_nsec waited = cgn_clock_now() - r->prompt->began, limit = r->w->rules->tokenize_timeout;
	if (a->closed && a->why.code != CGN_FINE)
		return unreachable(r);
	if (a->closed && a->answer.bad)
		return failed(r, "too_large", "the answer is longer than 8 MiB");
	if (a->closed && is_refusal(a->status)) {
		tokens_fall_back(r, "refused");
		gw_goto(r, GW_ROUTE);
		return STEP_AGAIN;
	}
	if (a->closed && a->status != 200)
		return failed(r, "status", "the engine's answer to a tokenize request is an error");
	if (a->closed)
		return answered(r);
	if (waited < limit)
		return gw_park(r, WAIT_TOKENS, limit - waited);
	return failed(r, "timeout", "no tokens in time (router.tokenize_timeout)");
}
