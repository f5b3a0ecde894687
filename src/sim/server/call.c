/* SPDX-License-Identifier: Apache-2.0 */
/* call: one HTTP request, from its head to the last byte of its answer. */
#include <stdlib.h>
#include <unistd.h>

#include "sim/reply/vectors.h"
#include "sim/request/resumed.h"
#include "sim/server/gather.h"

#define CALL_TAG 0x51b0ca11U
/* Delay of a cut, so that bytes written before reach the client. */
#define CUT_DELAY (20 * CGN_MSEC)
#define NO_LIMIT  UINT32_MAX

struct sim_call {
	uint32_t tag;
	struct sim_worker *w;
	struct http_exchange *x; /* NULL: closed; the call is freed after this turn. */
	const struct route *route;
	struct cgn_link link; /* In the worker's list of calls. */
	struct cgn_link dirty;
	struct cgn_grave grave;
	struct cgn_buf body;
	struct sim_gather *gather;
	struct sim_load *load; /* Lookup of the prompts in the store; NULL: none. */
	cgn_nsec came;
	bool even_running; /* Parameter of a reset. */
	bool too_large, counted, head_sent, done, struck, truncate, first_seen;
	uint32_t events;
	/* Members of generating calls. */
	struct sim_verdict verdict;
	uint32_t limit; /* Tokens of the first choice at which a fault strikes. */
	struct cgn_timer cut;
	struct sim_reply reply;
	char *strings;          /* Owned: script, tool name and stop string. */
	struct sim_slot *slots; /* Owned, one for each choice; the choices are stored behind them. */
	uint32_t unfinished;    /* Choices that the model still works on. */
};

struct sim_slot {
	struct sim_call *call;
	struct enginemodel_job *job; /* NULL: finished. */
	uint32_t choice;
};

struct route {
	const char *method, *path;
	void (*run)(struct sim_call *c);
	enum sim_api api;
	sim_vector_fn vector;
	bool inference; /* Faults and slow start apply, and requests are counted. */
};

static void call_free(struct cgn_grave *g)
{
	struct sim_call *c = CGN_CONTAINER(g, struct sim_call, grave);
	c->tag = 0;
	free(c->strings);
	free(c->slots);
	cgn_buf_fini(&c->body);
	free(c);
}

struct sim_call *sim_call_of_dirty(struct cgn_link *l)
{
	return CGN_CONTAINER(l, struct sim_call, dirty);
}

static void mark_dirty(struct sim_call *c)
{
	if (cgn_list_empty(&c->dirty))
		cgn_list_push(&c->w->dirty, &c->dirty);
}

/* ---- short answers ---- */

static void answer_now(struct sim_call *c, int status, struct cgn_str body)
{
	static const struct http_field fields[] = {{{"content-type", 12}, {"application/json", 16}},
		{{"retry-after", 11}, {"1", 1}}};
	c->done = true;
	http_exchange_reply(c->x, status, fields, status == 503 || status == 429 ? 2 : 1, body);
}

static void refuse_call(struct sim_call *c, const struct sim_refusal *no)
{
	struct cgn_buf *b = &c->w->scratch;
	b->n = 0;
	sim_error_body(b, no);
	c->w->counts.refused++;
	answer_now(c, no->status, cgn_buf_view(b));
}

static void refuse_as(struct sim_call *c, int status, const char *why)
{
	struct sim_refusal no;
	(void)sim_refuse(&no, status, NULL, NULL, "%s", why);
	refuse_call(c, &no);
}

static void run_health(struct sim_call *c)
{
	answer_now(c, 200, CGN_STR(""));
}

static void run_version(struct sim_call *c)
{
	answer_now(c, 200, CGN_STR("{\"version\":\"" CGN_VERSION "+sim\"}"));
}

static void put_model_card(struct sim_call *c, unsigned i, struct cgn_buf *b)
{
	const struct sim_team *team = c->w->team;
	cgn_buf_putz(b, i > 0 ? ",{\"id\":" : "{\"id\":");
	cgn_buf_str(b, team->models[i]);
	cgn_buf_fmt(b, ",\"object\":\"model\",\"created\":%llu,\"owned_by\":\"vllm\",\"root\":",
		(unsigned long long)c->reply.created);
	cgn_buf_str(b, team->models[i]);
	cgn_buf_fmt(b, ",\"parent\":null,\"max_model_len\":%u,\"permission\":[]}", c->w->cfg->max_model_len);
}

static void run_models(struct sim_call *c)
{
	struct cgn_buf *b = &c->w->scratch;
	b->n = 0;
	c->reply.created = cgn_clock_wall_ms() / 1000;
	cgn_buf_putz(b, "{\"object\":\"list\",\"data\":[");
	for (unsigned i = 0; i < c->w->cfg->n_models; i++)
		put_model_card(c, i, b);
	cgn_buf_putz(b, "]}");
	answer_now(c, 200, cgn_buf_view(b));
}

static void run_metrics(struct sim_call *c)
{
	sim_gather_start(c->w, c->x, &(struct sim_gather_task){.kind = SIM_GATHER_METRICS}, &c->gather);
}

static void run_state(struct sim_call *c)
{
	sim_gather_start(c->w, c->x, &(struct sim_gather_task){.kind = SIM_GATHER_STATE}, &c->gather);
}

static void run_reset(struct sim_call *c)
{
	sim_gather_start(c->w, c->x,
		&(struct sim_gather_task){.kind = SIM_GATHER_RESET, .even_running = c->even_running},
		&c->gather);
}

static void run_blocks(struct sim_call *c)
{
	if (sim_keeps_contents(c->w->cfg))
		sim_gather_start(c->w, c->x, &(struct sim_gather_task){.kind = SIM_GATHER_BLOCKS},
			&c->gather);
	else
		refuse_as(c, 404, "no digests are kept: start with --kv-digests, --kv-events or --kv-uds");
}

static void run_fill(struct sim_call *c)
{
	struct sim_gather_task task = {.kind = SIM_GATHER_FILL};
	struct sim_refusal no;
	if (sim_fill_parse(c->w->cfg, cgn_buf_view(&c->body), &task.fill, &no))
		sim_gather_start(c->w, c->x, &task, &c->gather);
	else
		refuse_call(c, &no);
}

/* Parse {"faults": ["http500@0.5", ...]}. */
static bool read_faults(struct sim_call *c, struct sim_faults *out, struct sim_refusal *no)
{
	struct sim_fields f;
	struct json_val list, each;
	struct cgn_err err = {0};
	*out = (struct sim_faults){0};
	if (!sim_body_parse(cgn_buf_view(&c->body), &f, no))
		return false;
	if (!json_get(f.root, "faults", &list) || list.type != JSON_ARRAY)
		return sim_refuse(no, 400, "missing", "faults",
			"faults: a list like [\"http500@0.5\"] is required");
	struct json_iter it = json_iter_of(list);
	while (json_next_elem(&it, &each)) {
		if (out->n == SIM_FAULTS_MAX)
			return sim_refuse(no, 400, "invalid_value", "faults", "faults: at most %d",
				SIM_FAULTS_MAX);
		struct cgn_str text = each.type == JSON_STRING ? json_str(each, &c->w->arena) : CGN_STR("");
		if (!cgn_ok(sim_fault_parse(text, &out->list[out->n++], &err)))
			return sim_refuse(no, 400, "invalid_value", "faults", "%s", err.msg);
	}
	return true;
}

static void run_faults(struct sim_call *c)
{
	struct sim_gather_task task = {.kind = SIM_GATHER_FAULTS};
	struct sim_refusal no;
	bool ok = read_faults(c, &task.faults, &no);
	cgn_arena_reset(&c->w->arena);
	if (ok)
		sim_gather_start(c->w, c->x, &task, &c->gather);
	else
		refuse_call(c, &no);
}

static void run_vector(struct sim_call *c)
{
	struct sim_refusal no;
	struct sim_request_env env = {c->w->cfg, &c->w->arena, c->w->reader, cgn_clock_wall_ms() / 1000};
	struct cgn_buf *b = &c->w->scratch;
	b->n = 0;
	struct sim_vector_call v = {&env, cgn_buf_view(&c->body), c->reply.id, cgn_clock_wall_ms() / 1000};
	bool ok = c->route->vector(&v, b, &no);
	if (ok && b->bad) {
		cgn_buf_fini(b);
		ok = sim_refuse(&no, 500, NULL, NULL, "out of memory");
	}
	cgn_arena_reset(&c->w->arena);
	if (ok)
		answer_now(c, 200, cgn_buf_view(b));
	else
		refuse_call(c, &no);
}

/* ---- generating ---- */

static void cut_now(struct cgn_timer *t)
{
	struct sim_call *c = CGN_CONTAINER(t, struct sim_call, cut);
	CGN_LIVE(c, CALL_TAG);
	if (c->verdict.die_after != SIM_NEVER && c->limit == c->verdict.die_after)
		_exit(1);
	if (c->x != NULL)
		http_exchange_abort(c->x, CGN_INTERNAL);
}

/* Apply the fault that was due at this number of tokens. */
static void strike_fault(struct sim_call *c)
{
	if (c->struck)
		return;
	c->struck = true;
	c->w->counts.faulted++;
	bool stall = !c->truncate && c->limit == c->verdict.stall_after;
	if (!stall)
		cgn_timer_set(&c->cut, CUT_DELAY);
}

static bool is_full(void *arg)
{
	struct sim_call *c = arg;
	return c->x == NULL || c->struck || http_exchange_over_mark(c->x);
}

static void emit_event(void *arg, struct cgn_str event)
{
	struct sim_call *c = arg;
	if (c->x == NULL || (c->truncate && c->struck))
		return;
	struct iovec iov = {(char *)(uintptr_t)event.p, event.n};
	if (c->truncate && ++c->events > 2) {
		iov.iov_len = event.n / 2;
		strike_fault(c);
	}
	http_exchange_body(c->x, &iov, 1);
}

static void observe_first(struct sim_call *c)
{
	static const double bounds[SIM_TTFT_N] = SIM_TTFT_BUCKETS;
	struct sim_counts *n = &c->w->counts;
	double s = (double)(cgn_loop_now(c->w->loop) - c->came) / 1e9;
	unsigned k = 0;
	while (k < SIM_TTFT_N && s > bounds[k])
		k++;
	n->ttft_bucket[k]++;
	n->ttft_n++;
	n->ttft_sum += s;
	c->first_seen = true;
}

void sim_call_progress(const struct enginemodel_progress *g)
{
	struct sim_slot *slot = g->user;
	struct sim_call *c = slot->call;
	CGN_LIVE(c, CALL_TAG);
	struct sim_choice *choice = &c->reply.choices[slot->choice];
	bool limited = slot->choice == 0 && g->given >= c->limit;
	choice->given = limited ? c->limit : g->given;
	if (choice->given > choice->plan.n_tokens)
		choice->given = choice->plan.n_tokens;
	if (g->given == 1)
		c->reply.cached_tokens += slot->choice == 0 && !c->verdict.uncached ? g->cached : 0;
	if (!c->first_seen)
		observe_first(c);
	if (g->finished) {
		slot->job = NULL;
		c->unfinished--;
		c->w->counts.success[choice->plan.finish]++;
	} else if (limited) {
		enginemodel_hold(c->w->model, slot->job);
	}
	mark_dirty(c);
}

static bool limit_reached(const struct sim_call *c)
{
	const struct sim_choice *first = &c->reply.choices[0];
	return (c->reply.stream ? first->sent : first->given) >= c->limit;
}

static bool has_more(const struct sim_reply *r)
{
	for (uint32_t i = 0; i < r->n_choices; i++) {
		if (r->choices[i].sent < r->choices[i].given)
			return true;
	}
	return false;
}

static void pump_stream(struct sim_call *c)
{
	static const struct http_field type = {{"content-type", 12},
		{"text/event-stream; charset=utf-8", 32}};
	struct sim_worker *w = c->w;
	if (!c->head_sent)
		http_exchange_head(c->x, 200, &type, 1, -1);
	c->head_sent = true;
	struct sim_sink sink = {.b = w->scratch, .emit = emit_event, .arg = c};
	sink.b.n = 0;
	bool all = sim_reply_pump(&c->reply, w->cfg->chunk_per_write ? 1 : UINT64_MAX, &sink, is_full);
	w->scratch = sink.b;
	if (c->x == NULL || c->struck)
		return;
	if (all) {
		c->done = true;
		http_exchange_end(c->x, NULL, 0);
	} else if (limit_reached(c)) {
		strike_fault(c);
	} else if (w->cfg->chunk_per_write && has_more(&c->reply) && !is_full(c)) {
		mark_dirty(c);
	}
}

static void pump_whole(struct sim_call *c)
{
	static const struct http_field type = {{"content-type", 12}, {"application/json", 16}};
	if (c->unfinished > 0) {
		if (limit_reached(c))
			strike_fault(c);
		return;
	}
	struct cgn_buf *b = &c->w->scratch;
	b->n = 0;
	sim_reply_ops_of(c->reply.api)->whole(&c->reply, b);
	if (c->truncate) {
		struct iovec iov = {b->p, b->n / 2};
		http_exchange_head(c->x, 200, &type, 1, (int64_t)b->n);
		http_exchange_body(c->x, &iov, 1);
		strike_fault(c);
		return;
	}
	answer_now(c, 200, cgn_buf_view(b));
}

void sim_call_pump(struct sim_call *c)
{
	CGN_LIVE(c, CALL_TAG);
	if (c->x == NULL || c->done || c->struck || c->slots == NULL)
		return;
	if (c->reply.stream)
		pump_stream(c);
	else
		pump_whole(c);
}

static void drop_jobs(struct sim_call *c)
{
	for (uint32_t i = 0; c->slots != NULL && i < c->reply.n_choices; i++) {
		if (c->slots[i].job == NULL)
			continue;
		enginemodel_abort(c->w->model, &c->slots[i].job);
		c->w->counts.success[SIM_FINISH_ABORT]++;
	}
	c->unfinished = 0;
}

/* Copy the strings of the answer, which outlives the request's arena and buffers. */
static bool keep_strings(struct sim_call *c, const struct sim_request *request, struct cgn_str *script)
{
	struct cgn_str stop = {0};
	if (c->reply.choices[0].plan.stop_index >= 0)
		stop = request->limits.stops[c->reply.choices[0].plan.stop_index];
	size_t n = request->script.n + request->tool_name.n + stop.n;
	c->strings = malloc(n > 0 ? n : 1);
	if (c->strings == NULL)
		return false;
	char *at = c->strings;
	*script = (struct cgn_str){at, request->script.n};
	c->reply.tool = (struct cgn_str){at + script->n, request->is_tool ? request->tool_name.n : 0};
	c->reply.stop = (struct cgn_str){c->reply.tool.p + c->reply.tool.n, stop.n};
	if (request->script.n > 0)
		memcpy(at, request->script.p, request->script.n);
	if (c->reply.tool.n > 0)
		memcpy(at + script->n, request->tool_name.p, c->reply.tool.n);
	if (stop.n > 0)
		memcpy(at + script->n + c->reply.tool.n, stop.p, stop.n);
	return true;
}

static bool alloc_choices(struct sim_call *c, uint32_t n)
{
	c->slots = calloc(1, n * (sizeof *c->slots + sizeof *c->reply.choices));
	if (c->slots == NULL)
		return false;
	c->reply.choices = (struct sim_choice *)(void *)(c->slots + n);
	c->reply.n_choices = n;
	return true;
}

/* Plan one choice and submit it to the device. */
static bool start_choice(struct sim_call *c, const struct sim_request *request, uint32_t i,
	struct cgn_str script, struct sim_refusal *no)
{
	const struct sim_chain *prompt = &request->prompts[i / request->n];
	struct sim_choice *choice = &c->reply.choices[i];
	struct sim_limits lim = request->limits;
	struct sim_chain chain;
	uint32_t resumed = request->resumed_tokens;
	choice->seed = sim_answer_seed(resumed > 0 ? request->origin : sim_chain_digest(prompt),
		request->seed, i % request->n);
	lim.natural_tokens = sim_request_natural_tokens(c->w->cfg, choice->seed);
	lim.natural_tokens -= resumed < lim.natural_tokens ? resumed : lim.natural_tokens;
	if (script.n > 0)
		sim_text_script(&choice->start, script);
	else
		sim_text_words(&choice->start, choice->seed);
	if (resumed > 0 && script.n == 0)
		CGN_MUST(sim_text_skip(&choice->start, request->resumed, NULL, NULL, &resumed));
	choice->text = choice->start;
	if (!sim_chain_copy(&chain, prompt))
		return sim_refuse(no, 500, NULL, NULL, "out of memory");
	bool planned = sim_plan_make(choice->start, &lim, c->w->reader, &chain, &choice->plan);
	if (request->is_tool && choice->plan.finish == SIM_FINISH_STOP && choice->plan.stop_index < 0)
		choice->plan.finish = SIM_FINISH_TOOL;
	struct enginemodel_job_spec spec = {
		.prompt_tokens = (uint32_t)prompt->n_tokens,
		/* Even an empty answer takes one step. */
		.answer_tokens = choice->plan.n_tokens > 0 ? choice->plan.n_tokens : 1,
		.hashes = chain.hashes,
		.n_hashes = chain.n,
		.user = &c->slots[i],
		.contents = chain.contents != NULL ? &chain.contents : NULL,
	};
	c->slots[i] = (struct sim_slot){.call = c, .choice = i};
	cgn_rc rc =
		planned ? enginemodel_submit(c->w->model, &spec, &c->slots[i].job) : CGN_RC_OF(CGN_NO_MEMORY);
	sim_chain_fini(&chain);
	if (rc.code == CGN_OVERLOADED)
		return sim_refuse(no, 503, "queue_full", NULL, "%u sequences wait already (--max-queue)",
			c->w->cfg->max_queue);
	/* Flags bound max_model_len by the KV memory, so only rounding leads here. */
	if (rc.code == CGN_TOO_LARGE)
		return sim_refuse(no, 400, "context_length_exceeded", NULL,
			"the KV memory can't hold this request");
	c->unfinished++;
	return cgn_ok(rc) || sim_refuse(no, 500, NULL, NULL, "out of memory");
}

static uint32_t fault_limit(const struct sim_verdict *v)
{
	uint64_t least = v->die_after < v->cut_after ? v->die_after : v->cut_after;
	least = v->stall_after < least ? v->stall_after : least;
	return least < NO_LIMIT ? (uint32_t)least : NO_LIMIT;
}

static bool start_answer(struct sim_call *c, const struct sim_request *request, struct sim_refusal *no)
{
	struct sim_reply *r = &c->reply;
	struct cgn_str script = cgn_buf_view(&request->script);
	r->api = request->api;
	r->stream = request->stream;
	r->include_usage = request->include_usage;
	r->logprobs = request->logprobs;
	r->created = cgn_clock_wall_ms() / 1000;
	r->model = c->w->team->models[request->model];
	c->limit = fault_limit(&c->verdict);
	c->truncate = c->verdict.truncate;
	if (!alloc_choices(c, request->n_prompts * request->n))
		return sim_refuse(no, 500, NULL, NULL, "out of memory");
	for (uint32_t i = 0; i < request->n_prompts; i++)
		r->prompt_tokens += request->prompts[i].n_tokens;
	/* Plans walk the request's script, answers a copy that stays. */
	for (uint32_t i = 0; i < r->n_choices; i++) {
		if (!start_choice(c, request, i, script, no))
			return false;
	}
	struct cgn_str kept;
	if (!keep_strings(c, request, &kept))
		return sim_refuse(no, 500, NULL, NULL, "out of memory");
	for (uint32_t i = 0; i < r->n_choices && script.n > 0; i++)
		r->choices[i].start.script = r->choices[i].text.script = kept;
	return true;
}

/* ---- loading from the block store ---- */

static void run_generate(struct sim_call *c);

static void on_loaded(void *user)
{
	struct sim_call *c = user;
	CGN_LIVE(c, CALL_TAG);
	run_generate(c); /* Parse the body again: chains are not kept while the store is asked. */
}

/* Return how many of the prompt's blocks the device can use; the last token is always computed. */
static uint32_t usable_blocks(const struct sim_call *c, const struct sim_chain *prompt)
{
	uint64_t most = prompt->n_tokens > 0 ? (prompt->n_tokens - 1) / c->w->cfg->block_tokens : 0;
	return most < prompt->n ? (uint32_t)most : prompt->n;
}

/* Ask the store for the blocks that the device lacks. True when |c| waits for the answer. */
static bool wait_for_store(struct sim_call *c, const struct sim_request *request)
{
	struct sim_load_range wants[SIM_PROMPTS_MAX];
	if (c->w->store == NULL || c->load != NULL)
		return false;
	for (uint32_t i = 0; i < request->n_prompts; i++) {
		const struct sim_chain *p = &request->prompts[i];
		uint32_t n = usable_blocks(c, p),
			 found = enginemodel_memory_match(enginemodel_memory_of(c->w->model), p->hashes, n)
					 .found;
		wants[i] = (struct sim_load_range){n > 0 ? p->contents->names : NULL, found, n - found};
	}
	return sim_load_new(c->w->store, wants, request->n_prompts, on_loaded, c, &c->load);
}

/* Put loaded blocks into the device's cache, as if computed except for the time. */
static void use_loaded(struct sim_call *c, const struct sim_request *request)
{
	struct sim_worker *w = c->w;
	uint32_t from = 0, filled = 0;
	w->filling = true;
	for (uint32_t i = 0; c->load != NULL && i < request->n_prompts; i++) {
		const struct sim_chain *p = &request->prompts[i];
		uint32_t n = sim_load_got(c->load, i, &from);
		/* Otherwise blocks before these were evicted meanwhile, which leaves a gap. */
		if (n > 0 &&
			enginemodel_memory_match(enginemodel_memory_of(w->model), p->hashes, from).found ==
				from)
			filled += enginemodel_fill(w->model,
				&(struct enginemodel_run){p->hashes, p->contents, from, n});
	}
	w->filling = false;
	enginemodel_delay(w->model, (cgn_nsec)(filled * w->cfg->kv_load_us * 1e3));
}

static void run_generate(struct sim_call *c)
{
	struct sim_request request;
	struct sim_refusal no;
	struct sim_request_env env = {c->w->cfg, &c->w->arena, c->w->reader, cgn_clock_wall_ms() / 1000};
	bool ok = sim_request_parse(&env, c->route->api, cgn_buf_view(&c->body), &request, &no),
	     wait = ok && wait_for_store(c, &request);
	if (wait) {
		sim_request_fini(&request);
		cgn_arena_reset(&c->w->arena);
		return;
	}
	if (ok) {
		use_loaded(c, &request);
		ok = start_answer(c, &request, &no);
	}
	sim_request_fini(&request);
	cgn_arena_reset(&c->w->arena);
	cgn_buf_fini(&c->body);
	if (ok) {
		sim_worker_run(c->w);
		return;
	}
	drop_jobs(c);
	refuse_call(c, &no);
}

/* ---- HTTP ---- */

static const struct route routes[] = {
	{"POST", "/v1/chat/completions", run_generate, SIM_CHAT, NULL, true},
	{"POST", "/v1/completions", run_generate, SIM_COMPLETIONS, NULL, true},
	{"POST", "/v1/responses", run_generate, SIM_RESPONSES, NULL, true},
	{"POST", "/v1/messages", run_generate, SIM_MESSAGES, NULL, true},
	{"POST", "/v1/embeddings", run_vector, SIM_API_COUNT, sim_embeddings, true},
	{"POST", "/v1/rerank", run_vector, SIM_API_COUNT, sim_rerank, true},
	{"POST", "/rerank", run_vector, SIM_API_COUNT, sim_rerank, true},
	{"POST", "/v1/score", run_vector, SIM_API_COUNT, sim_score, true},
	{"POST", "/score", run_vector, SIM_API_COUNT, sim_score, true},
	{"POST", "/tokenize", run_vector, SIM_API_COUNT, sim_tokenize, true},
	{"POST", "/detokenize", run_vector, SIM_API_COUNT, sim_detokenize, true},
	{"POST", "/apply-template", run_vector, SIM_API_COUNT, sim_apply_template, true},
	{"GET", "/v1/models", run_models, SIM_API_COUNT, NULL, false},
	{"GET", "/health", run_health, SIM_API_COUNT, NULL, false},
	{"GET", "/version", run_version, SIM_API_COUNT, NULL, false},
	{"GET", "/metrics", run_metrics, SIM_API_COUNT, NULL, false},
	{"POST", "/reset_prefix_cache", run_reset, SIM_API_COUNT, NULL, false},
	{"GET", "/sim/state", run_state, SIM_API_COUNT, NULL, false},
	{"GET", "/sim/blocks", run_blocks, SIM_API_COUNT, NULL, false},
	{"POST", "/sim/fill", run_fill, SIM_API_COUNT, NULL, false},
	{"POST", "/sim/faults", run_faults, SIM_API_COUNT, NULL, false},
};

static const struct route *find_route(struct cgn_str method, struct cgn_str path, bool *path_known)
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
	const char *prefix = c->route != NULL && c->route->run == run_generate
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
	struct sim_call *c = calloc(1, sizeof *c);
	if (c == NULL) {
		http_exchange_abort(x, CGN_NO_MEMORY);
		return;
	}
	bool path_known;
	c->tag = CALL_TAG;
	c->w = w;
	c->x = x;
	c->limit = NO_LIMIT;
	c->came = cgn_loop_now(w->loop);
	c->body.limit = SIM_BODY_MAX;
	c->too_large = h->content_length > (int64_t)SIM_BODY_MAX;
	cgn_list_init(&c->dirty);
	cgn_list_push(&w->calls, &c->link);
	cgn_timer_init(&c->cut, w->loop, cut_now);
	http_exchange_user(x, c);
	c->route = find_route(h->method, h->path, &path_known);
	take_id(c, h);
	c->even_running = memmem(h->path.p, h->path.n, "reset_running_requests=true", 27) != NULL;
	if (c->route == NULL)
		refuse_as(c, path_known ? 405 : 404, path_known ? "Method Not Allowed" : "Not Found");
	else if (c->too_large)
		refuse_as(c, 413, "the body is larger than 64 MiB");
}

static void on_body(struct http_exchange *x, void *user, const uint8_t *p, size_t n)
{
	(void)x;
	struct sim_call *c = user;
	if (c == NULL || c->done)
		return;
	cgn_buf_add(&c->body, p, n);
	if (c->body.bad)
		refuse_as(c, 413, "the body is larger than 64 MiB");
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
	else if (c->verdict.status != 0 && !c->verdict.hang)
		refuse_as(c, c->verdict.status, "injected by --fault http");
	return true;
}

static bool is_starting(const struct sim_call *c)
{
	cgn_nsec slow = sim_faults_slow_start(&c->w->cfg->faults);
	return slow > 0 && cgn_loop_now(c->w->loop) - c->w->team->started < slow;
}

static void on_body_end(struct http_exchange *x, void *user)
{
	(void)x;
	struct sim_call *c = user;
	if (c == NULL || c->done)
		return;
	bool control = cgn_str_starts(cgn_str_of(c->route->path), "/sim/");
	if (!control && is_starting(c)) {
		refuse_as(c, 503, "the engine is starting (--fault slow-start)");
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
	if (c == NULL || !cgn_list_empty(&c->dirty))
		return;
	mark_dirty(c);
	sim_worker_run(c->w);
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
	p->after_us = (cgn_clock_now() - c->came) / CGN_USEC;
	p->tokens = c->slots != NULL
		? (c->reply.stream ? sim_tokens_sent(&c->reply) : c->reply.choices[0].given)
		: 0;
}

static void on_close(struct http_exchange *x, void *user, const struct cgn_err *why)
{
	(void)x;
	struct sim_call *c = user;
	if (c == NULL) /* There was no memory for the call. */
		return;
	CGN_LIVE(c, CALL_TAG);
	struct sim_worker *w = c->w;
	bool jobs = c->unfinished > 0;
	c->x = NULL;
	if (c->gather != NULL)
		sim_gather_forget(c->gather);
	sim_load_free(&c->load);
	if (c->counted)
		record_end(c, why);
	drop_jobs(c);
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
