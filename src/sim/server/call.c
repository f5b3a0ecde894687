/* SPDX-License-Identifier: Apache-2.0 */
/* call: one HTTP request, from its head to the last byte of its answer. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "sim/server/call_priv.h"

static void call_free(struct cgn_grave *g)
{
	struct sim_call *c = CGN_CONTAINER(g, struct sim_call, grave);
	c->tag = 0;
	free(c->strings);
	free(c->slots);
	cgn_buf_fini(&c->body);
	cgn_buf_fini(&c->handed);
	free(c);
}

static const struct sim_route routes[] = {
	{"POST", "/v1/chat/completions", sim_route_generate, SIM_CHAT, NULL, true},
	{"POST", "/v1/completions", sim_route_generate, SIM_COMPLETIONS, NULL, true},
	{"POST", "/v1/responses", sim_route_generate, SIM_RESPONSES, NULL, true},
	{"POST", "/v1/messages", sim_route_generate, SIM_MESSAGES, NULL, true},
	{"POST", "/v1/embeddings", sim_route_vector, SIM_API_COUNT, sim_embeddings, true},
	{"POST", "/v1/rerank", sim_route_vector, SIM_API_COUNT, sim_rerank, true},
	{"POST", "/rerank", sim_route_vector, SIM_API_COUNT, sim_rerank, true},
	{"POST", "/v1/score", sim_route_vector, SIM_API_COUNT, sim_score, true},
	{"POST", "/score", sim_route_vector, SIM_API_COUNT, sim_score, true},
	{"POST", "/tokenize", sim_route_vector, SIM_API_COUNT, sim_tokenize, true},
	{"POST", "/detokenize", sim_route_vector, SIM_API_COUNT, sim_detokenize, true},
	{"POST", "/apply-template", sim_route_vector, SIM_API_COUNT, sim_apply_template, true},
	{"POST", "/v1/load_lora_adapter", sim_route_lora_load, SIM_API_COUNT, NULL, false},
	{"POST", "/v1/unload_lora_adapter", sim_route_lora_unload, SIM_API_COUNT, NULL, false},
	{"POST", "/load_lora_adapter", sim_route_lora_load, SIM_API_COUNT, NULL, false},
	{"POST", "/unload_lora_adapter", sim_route_lora_unload, SIM_API_COUNT, NULL, false},
	{"POST", "/sleep", sim_route_sleep, SIM_API_COUNT, NULL, false},
	{"POST", "/wake_up", sim_route_wake, SIM_API_COUNT, NULL, false},
	{"POST", "/release_memory_occupation", sim_route_sleep, SIM_API_COUNT, NULL, false},
	{"POST", "/resume_memory_occupation", sim_route_wake, SIM_API_COUNT, NULL, false},
	{"GET", "/v1/models", sim_route_models, SIM_API_COUNT, NULL, false},
	{"GET", "/health", sim_route_health, SIM_API_COUNT, NULL, false},
	{"GET", "/version", sim_route_version, SIM_API_COUNT, NULL, false},
	{"GET", "/get_server_info", sim_route_version, SIM_API_COUNT, NULL, false},
	{"POST", "/sim/handoff", sim_route_handoff, SIM_API_COUNT, NULL, false},
	{"GET", HANDOFF_RANKS_PATH, sim_route_ranks, SIM_API_COUNT, NULL, false},
	{"GET", "/metrics", sim_route_metrics, SIM_API_COUNT, NULL, false},
	{"POST", "/reset_prefix_cache", sim_route_reset, SIM_API_COUNT, NULL, false},
	{"GET", "/sim/state", sim_route_state, SIM_API_COUNT, NULL, false},
	{"GET", "/sim/blocks", sim_route_blocks, SIM_API_COUNT, NULL, false},
	{"POST", "/sim/fill", sim_route_fill, SIM_API_COUNT, NULL, false},
	{"POST", "/sim/clock", sim_route_clock, SIM_API_COUNT, NULL, false},
	{"POST", "/sim/faults", sim_route_faults, SIM_API_COUNT, NULL, false},
};

static const struct sim_route *find_route(struct cgn_str method, struct cgn_str path, bool *path_known)
{
	struct cgn_str bare = cgn_str_split(&path, '?');
	*path_known = false;
	for (size_t i = 0; i < CGN_COUNT(routes); i++) {
		if (!cgn_str_is(bare, routes[i].path))
			continue;
		*path_known = true;
		if (cgn_str_is(method, routes[i].method))
			return &routes[i];
	}
	return NULL;
}

/* Make the client's X-Request-Id part of the id, as vLLM does, unless it would need escapes. */
static void take_id(struct sim_call *c, const struct http_head *h)
{
	struct cgn_str given = http_head_get(h, "x-request-id");
	char fresh[33];
	bool plain = given.n > 0 && given.n <= 96;
	for (size_t i = 0; plain && i < given.n; i++)
		plain = given.p[i] > ' ' && given.p[i] < 0x7f && given.p[i] != '"' && given.p[i] != '\\';
	sim_worker_new_id(c->w, fresh);
	const char *prefix = c->route != NULL && c->route->run == sim_route_generate
		? sim_reply_ops_of(c->route->api)->id_prefix
		: "";
	struct cgn_str id = plain ? given : (struct cgn_str){fresh, 32};
	(void)snprintf(c->reply.id, sizeof c->reply.id, "%s%.*s", prefix, CGN_STR_ARG(id));
	(void)snprintf(c->reply.msg_id, sizeof c->reply.msg_id, "%s_%.24s", "msg", fresh);
	(void)snprintf(c->reply.call_id, sizeof c->reply.call_id, "%s_%.24s", "call", fresh);
}

static void on_request(struct http_exchange *x, const struct http_head *h, void *user)
{
	struct sim_worker *w = user;
	struct sim_call *c = CGN_NEW(struct sim_call);
	bool path_known;
	c->tag = SIM_CALL_TAG;
	c->w = w;
	c->x = x;
	c->limit = SIM_NO_LIMIT;
	c->came = cgn_loop_now(w->loop);
	c->body.limit = SIM_BODY_MAX;
	c->too_large = h->content_length > (int64_t)SIM_BODY_MAX;
	cgn_list_init(&c->dirty);
	cgn_list_push(&w->calls, &c->link);
	cgn_timer_init(&c->cut, w->loop, sim_call_cut);
	http_exchange_user(x, c);
	c->route = find_route(h->method, h->path, &path_known);
	take_id(c, h);
	c->even_running = memmem(h->path.p, h->path.n, "reset_running_requests=true", 27) != NULL;
	if (c->route == NULL)
		sim_call_refuse_as(c, path_known ? 405 : 404,
			path_known ? "Method Not Allowed" : "Not Found");
	else if (c->too_large)
		sim_call_refuse_as(c, 413, "the body is larger than 64 MiB");
}

static void on_body(struct http_exchange *x, void *user, const uint8_t *p, size_t n)
{
	(void)x;
	struct sim_call *c = user;
	if (c->done)
		return;
	cgn_buf_add(&c->body, p, n);
	if (c->body.bad)
		sim_call_refuse_as(c, 413, "the body is larger than 64 MiB");
}

/* Apply faults that strike before an answer. True when the request ends here. */
static bool struck_before(struct sim_call *c)
{
	sim_faults_judge(&c->w->faults, &c->verdict);
	if (!c->verdict.refuse && !c->verdict.hang && c->verdict.status == 0)
		return false;
	c->w->counts.faulted++;
	if (c->verdict.refuse)
		http_exchange_abort(c->x, CGN_UNAVAILABLE);
	else if (c->verdict.status == 200 && !c->verdict.hang)
		sim_call_answer(c, 200,
			CGN_STR("{\"error\":{\"message\":\"injected by --fault error-200\",\"code\":500}}"));
	else if (c->verdict.status != 0 && !c->verdict.hang)
		sim_call_refuse_as(c, c->verdict.status, "injected by --fault http");
	return true;
}

static bool is_starting(const struct sim_call *c)
{
	cgn_nsec slow = sim_faults_slow_start(&c->w->cfg->faults);
	return slow > 0 && cgn_since(cgn_loop_now(c->w->loop), c->w->team->started) < slow;
}

static void on_body_end(struct http_exchange *x, void *user)
{
	(void)x;
	struct sim_call *c = user;
	if (c->done)
		return;
	bool control = cgn_str_starts(cgn_str_of(c->route->path), "/sim/");
	if (!control && is_starting(c)) {
		sim_call_refuse_as(c, 503, "the engine is starting (--fault slow-start)");
		return;
	}
	if (c->route->inference) {
		c->counted = true;
		c->w->counts.requests++;
		c->w->counts.open++;
		if (struck_before(c))
			return;
	}
	c->route->run(c);
}

static void on_drain(struct http_exchange *x, void *user)
{
	(void)x;
	struct sim_call *c = user;
	if (!cgn_list_empty(&c->dirty))
		return;
	sim_call_mark_dirty(c);
	sim_worker_run(c->w);
}

/* Append the tokens that were computed for the request, in one write, so that workers do not mix. */
static void books_write(const struct sim_call *c, const char *how)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf line = {0};
	struct json_out o = json_out_to(&line);
	uint64_t tokens = 0;
	if (c->w->team->books < 0 || c->slots == NULL)
		return;
	for (uint32_t i = 0; i < c->reply.n_choices; i++)
		tokens += c->reply.choices[i].given;
	json_open(&o, '{');
	json_key_str(&o, "id", cgn_str_of(c->reply.id));
	json_key(&o, "model");
	json_put_raw(&o, c->reply.model);
	json_key_str(&o, "how", cgn_str_of(how));
	json_key_u64(&o, "prompt", c->reply.prompt_tokens);
	json_key_u64(&o, "cached", c->reply.cached_tokens);
	json_key_u64(&o, "tokens", tokens);
	json_close(&o, '}');
	cgn_buf_char(&line, '\n');
	if (!line.bad && write(c->w->team->books, line.p, line.n) != (ssize_t)line.n)
		fprintf(stderr, "cgn-sim: --books %s: not written\n", c->w->cfg->books);
}

static void record_end(struct sim_call *c, const struct cgn_err *why)
{
	struct sim_worker *w = c->w;
	bool completed = why->code == CGN_FINE && c->done;
	struct sim_finished_request *p = &w->recent[w->n_past++ % SIM_RECENT];
	w->counts.open--;
	w->counts.completed += completed;
	w->counts.aborted += !completed && !c->struck;
	memcpy(p->id, c->reply.id, sizeof p->id);
	p->how = completed ? "completed" : c->struck ? "cut" : "aborted";
	p->ended_ms = cgn_clock_wall_ms();
	p->after_us = cgn_since(cgn_clock_now(), c->came) / CGN_USEC;
	p->tokens = c->slots != NULL
		? (c->reply.stream ? sim_tokens_sent(&c->reply) : c->reply.choices[0].given)
		: 0;
	books_write(c, p->how);
}

static void on_close(struct http_exchange *x, void *user, const struct cgn_err *why)
{
	(void)x;
	struct sim_call *c = user;
	CGN_LIVE(c, SIM_CALL_TAG);
	struct sim_worker *w = c->w;
	bool jobs = c->unfinished > 0;
	c->x = NULL;
	if (c->gather != NULL)
		sim_gather_forget(c->gather);
	sim_load_free(&c->load);
	sim_fetch_free(&c->fetch);
	if (c->given[0] != '\0' && !c->done && w->handoff != NULL)
		sim_offer_drop(w->handoff, c->given);
	if (c->counted)
		record_end(c, why);
	sim_call_drop_jobs(c);
	cgn_timer_cancel(&c->cut);
	cgn_list_drop(&c->dirty);
	cgn_list_drop(&c->link);
	cgn_loop_bury(w->loop, &c->grave, call_free);
	if (jobs) /* Other calls may have room now. */
		sim_worker_run(w);
}

const struct http_server_ops sim_call_ops = {
	.on_request = on_request,
	.on_body = on_body,
	.on_body_end = on_body_end,
	.on_drain = on_drain,
	.on_close = on_close,
};
