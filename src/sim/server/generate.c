/* SPDX-License-Identifier: Apache-2.0 */
/* generate: answers of the simulated model: planned, submitted to the device, sent as tokens come. */
#include <stdlib.h>
#include <unistd.h>

#include <stdatomic.h>

#include "sim/request/resumed.h"
#include "sim/server/call_priv.h"
#include "sim/text/skill.h"

/* Delay of a cut, so that bytes written before reach the client. */
#define CUT_DELAY (20 * CGN_MSEC)

struct sim_call *sim_call_of_dirty(struct cgn_link *l)
{
	return CGN_CONTAINER(l, struct sim_call, dirty);
}

void sim_call_mark_dirty(struct sim_call *c)
{
	if (cgn_list_empty(&c->dirty))
		cgn_list_push(&c->w->dirty, &c->dirty);
}

void sim_call_cut(struct cgn_timer *t)
{
	struct sim_call *c = CGN_CONTAINER(t, struct sim_call, cut);
	CGN_LIVE(c, SIM_CALL_TAG);
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
	double s = (double)cgn_since(cgn_loop_now(c->w->loop), c->came) / 1e9;
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
	CGN_LIVE(c, SIM_CALL_TAG);
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
	sim_call_mark_dirty(c);
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
		sim_call_mark_dirty(c);
	}
}

/* The prompt is computed: another engine may fetch it from now on. */
static void prompt_give(struct sim_call *c, const struct sim_handoff_ask *ask)
{
	struct sim_worker *w = c->w;
	const struct sim_handoff_self self = {.host = w->team->host,
		.engine = sim_handoff_engine(w->handoff),
		.port = w->team->port,
		.blocks = (uint32_t)(c->reply.prompt_tokens / w->cfg->block_tokens)};
	sim_offer_ready(w->handoff, c->given, cgn_loop_now(w->loop));
	sim_handoff_params_put(w->cfg, ask, &self, &c->handed);
	c->reply.handed = cgn_buf_view(&c->handed);
	c->reply.handed_in_choice = w->cfg->handoff.kind == HANDOFF_TRTLLM;
}

static void pump_whole(struct sim_call *c)
{
	static const struct http_field type = {{"content-type", 12}, {"application/json", 16}};
	if (c->unfinished > 0) {
		if (limit_reached(c))
			strike_fault(c);
		return;
	}
	if (c->given[0] != '\0') {
		struct sim_handoff_ask ask = {.what = SIM_HANDOFF_GIVES};
		(void)cgn_str_copyz(ask.id, sizeof ask.id, cgn_str_of(c->given));
		prompt_give(c, &ask);
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
	sim_call_answer(c, 200, cgn_buf_view(b));
}

void sim_call_pump(struct sim_call *c)
{
	CGN_LIVE(c, SIM_CALL_TAG);
	if (c->x == NULL || c->done || c->struck || c->slots == NULL)
		return;
	if (c->reply.stream)
		pump_stream(c);
	else
		pump_whole(c);
}

void sim_call_drop_jobs(struct sim_call *c)
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
static void keep_strings(struct sim_call *c, const struct sim_request *request, struct cgn_str *script)
{
	struct cgn_str stop = {0};
	if (c->reply.choices[0].plan.stop_index >= 0)
		stop = request->limits.stops[c->reply.choices[0].plan.stop_index];
	size_t n = request->script.n + request->tool_name.n + stop.n;
	c->strings = CGN_NEW_ARRAY(char, n);
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
}

static void alloc_choices(struct sim_call *c, uint32_t n)
{
	c->slots = cgn_zeroed(n, sizeof *c->slots + sizeof *c->reply.choices, CGN_HERE);
	c->reply.choices = (struct sim_choice *)(void *)(c->slots + n);
	c->reply.n_choices = n;
}

/* A wrong answer has a text of its model's own. An answer that another engine began is continued as it is. */
static void choice_skill(const struct sim_call *c, const struct sim_request *request, uint64_t prompt,
	struct sim_choice *choice)
{
	const struct sim_cfg *cfg = c->w->cfg;
	uint64_t model = sim_hash(cgn_str_of(cfg->models[request->model]));
	choice->sure = -1;
	if (cfg->skill <= 0)
		return;
	struct sim_skill s = sim_skill_of(cfg->skill, request->difficulty, prompt, model);
	choice->sure = s.sure;
	if (!s.right && request->resumed_tokens == 0)
		choice->seed ^= mix64(model);
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
	choice_skill(c, request, sim_chain_digest(prompt), choice);
	lim.natural_tokens = sim_request_natural_tokens(c->w->cfg, choice->seed);
	lim.natural_tokens -= resumed < lim.natural_tokens ? resumed : lim.natural_tokens;
	if (script.n > 0)
		sim_text_script(&choice->start, script);
	else
		sim_text_words(&choice->start, choice->seed);
	if (resumed > 0 && script.n == 0)
		CGN_MUST(sim_text_skip(&choice->start, request->resumed, NULL, NULL, &resumed));
	choice->text = choice->start;
	sim_chain_copy(&chain, prompt);
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
	return least < SIM_NO_LIMIT ? (uint32_t)least : SIM_NO_LIMIT;
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
	alloc_choices(c, request->n_prompts * request->n);
	for (uint32_t i = 0; i < request->n_prompts; i++)
		r->prompt_tokens += request->prompts[i].n_tokens;
	/* Plans walk the request's script, answers a copy that stays. */
	for (uint32_t i = 0; i < r->n_choices; i++) {
		if (!start_choice(c, request, i, script, no))
			return false;
	}
	struct cgn_str kept;
	keep_strings(c, request, &kept);
	for (uint32_t i = 0; i < r->n_choices && script.n > 0; i++)
		r->choices[i].start.script = r->choices[i].text.script = kept;
	return true;
}

/* ---- loading from the block store ---- */

static void on_loaded(void *user)
{
	struct sim_call *c = user;
	CGN_LIVE(c, SIM_CALL_TAG);
	sim_route_generate(c); /* Parse the body again: chains are not kept while the store is asked. */
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

/* ---- from another engine ---- */

/* Fetch the prompt from the engine that computed it. True when |c| waits for it. A request of several prompts takes
 * over the first. */
static bool wait_for_prompt(struct sim_call *c, const struct sim_request *request)
{
	const struct sim_chain *p = &request->prompts[0];
	if (request->handoff.what != SIM_HANDOFF_TAKES || c->fetch != NULL)
		return false;
	uint32_t n = usable_blocks(c, p),
		 found = enginemodel_memory_match(enginemodel_memory_of(c->w->model), p->hashes, n).found;
	const struct sim_fetch_ask ask = {.from = &request->handoff,
		.wants = {p->contents != NULL ? p->contents->names : NULL, found, n - found},
		.blocks = n};
	c->fetch = sim_fetch_new(c->w->handoff, &ask, on_loaded, c);
	return true;
}

/* Count a prompt that is computed here though another engine should have computed it. False: the engine refuses. */
static bool prompt_recompute(struct sim_call *c, const struct sim_request *request, struct sim_refusal *no)
{
	const struct sim_cfg *cfg = c->w->cfg;
	if (request->handoff.what == SIM_HANDOFF_TAKES && cfg->handoff.kind == HANDOFF_SGLANG)
		return sim_refuse(no, 500, NULL, NULL, "KVTransferError: the prompt did not come");
	if (request->handoff.what == SIM_HANDOFF_TAKES)
		sim_handoff_recomputed(c->w->handoff, "the prompt did not come");
	else if (request->handoff.what == SIM_HANDOFF_NOTHING && cfg->handoff.role == SIM_ROLE_DECODE)
		sim_handoff_recomputed(c->w->handoff, "the request has no hand-off");
	return true;
}

/* Put the blocks that another engine computed into the device's cache. False: the request is refused. */
static bool use_prompt(struct sim_call *c, const struct sim_request *request, struct sim_refusal *no)
{
	struct sim_worker *w = c->w;
	const struct sim_chain *p = &request->prompts[0];
	uint32_t from = 0, n = 0;
	if (w->handoff == NULL)
		return true;
	if (c->fetch == NULL || !sim_fetch_got(c->fetch, &from, &n))
		return prompt_recompute(c, request, no);
	w->filling = true;
	if (n > 0 && enginemodel_memory_match(enginemodel_memory_of(w->model), p->hashes, from).found == from)
		(void)enginemodel_fill(w->model, &(struct enginemodel_run){p->hashes, p->contents, from, n});
	w->filling = false;
	enginemodel_delay(w->model, (cgn_nsec)(n * w->cfg->kv_load_us * 1e3));
	return true;
}

/* Note that the prompt is computed for another engine, under the id that the request or this engine chooses. */
static bool offer_prompt(struct sim_call *c, const struct sim_request *request, struct sim_refusal *no)
{
	if (request->handoff.what != SIM_HANDOFF_GIVES)
		return true;
	(void)cgn_str_copyz(c->given, sizeof c->given,
		cgn_str_of(request->handoff.id[0] != '\0' ? request->handoff.id : c->reply.id));
	return sim_offer_begin(c->w->handoff, c->given, &request->prompts[0]) ||
		sim_refuse(no, 503, "queue_full", NULL, "too many prompts wait to be fetched");
}

void sim_route_generate(struct sim_call *c)
{
	struct sim_request request;
	struct sim_refusal no;
	struct sim_request_env env = {c->w->cfg, &c->w->arena, c->w->reader, cgn_clock_wall_ms() / 1000};
	if (atomic_load(&c->w->team->asleep)) {
		sim_call_refuse_as(c, 500, "the engine sleeps");
		return;
	}
	bool ok = sim_request_parse(&env, c->route->api, cgn_buf_view(&c->body), &request, &no),
	     wait = ok && (wait_for_prompt(c, &request) || wait_for_store(c, &request));
	if (wait) {
		sim_request_fini(&request);
		cgn_arena_reset(&c->w->arena);
		return;
	}
	if (ok) {
		use_loaded(c, &request);
		ok = use_prompt(c, &request, &no) && offer_prompt(c, &request, &no) &&
			start_answer(c, &request, &no);
	}
	sim_request_fini(&request);
	cgn_arena_reset(&c->w->arena);
	cgn_buf_fini(&c->body);
	if (ok) {
		sim_worker_run(c->w);
		return;
	}
	sim_call_drop_jobs(c);
	sim_call_refuse(c, &no);
}
