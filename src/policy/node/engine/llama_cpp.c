/* SPDX-License-Identifier: Apache-2.0 */
/* llama_cpp: llama.cpp's llama-server. */
#include <string.h>

#include "base/json/json.h"
#include "policy/node/engine/engine_priv.h"
#include "policy/node/engine/prom.h"

#define RAM_CACHE_OFF "LLAMA_ARG_CACHE_RAM=0"

/* Routes of the gateway that llama-server answers with 404 "File Not Found". */
static const char *const llama_lacks[] = {"/v1/score", "/v1/audio/speech", "/v1/audio/translations",
	"/v1/images/generations", "/v1/images/edits", "/v1/images/variations", "/v1/moderations", NULL};
/* Not relayed: /slots, which shows the prompts of all clients, and /lora-adapters and POST /props, which change the engine. */
static const char *const llama_natives[] = {"/completion", "/completions", "/infill", "/embedding",
	"/embeddings", "/rerank", "/reranking", "/v1/reranking", "/apply-template", "/props", NULL};

/* llama-cpp-python's server, which a python3 runs. It has neither /metrics nor /slots nor saved slots. */
static void python_args(const struct engine_launch_ask *ask, struct engine_launch *out)
{
	const struct config_engine *e = ask->engine;
	engine_arg(out, "-m");
	engine_arg(out, "llama_cpp.server");
	engine_arg_pair(out, "--model", e->model_path);
	engine_arg_pair(out, "--model_alias", e->model);
	engine_arg_pair(out, "--host", ask->url->host);
	engine_arg_u64(out, "--port", ask->url->port);
	if (e->n_ctx > 0)
		engine_arg_u64(out, "--n_ctx", e->n_ctx);
	if (e->n_threads > 0)
		engine_arg_u64(out, "--n_threads", e->n_threads);
	engine_arg_u64(out, "--n_gpu_layers", e->n_gpu_layers);
	engine_arg_pair(out, "--cache", "true");
}

/* The server's own cache of idle slots would hold stored states again, outside of every budget, change slots without the
 * slot manager, and answer a tenant from another one's prompt. */
static bool wants_ram_cache(const struct engine_launch_ask *ask)
{
	bool tenants = ask->cfg->auth.enabled && ask->cfg->security.isolation == CONFIG_ISOLATION_TENANT;
	if (ask->engine->cache_ram != CONFIG_CACHE_RAM_AUTO)
		return ask->engine->cache_ram == CONFIG_CACHE_RAM_ON;
	return !ask->slots_are_kept && !tenants;
}

static void server_args(const struct engine_launch_ask *ask, struct engine_launch *out)
{
	const struct config_engine *e = ask->engine;
	engine_arg_pair(out, "--model", e->model_path);
	engine_arg_pair(out, "--alias", e->model);
	engine_arg_pair(out, "--host", ask->url->host);
	engine_arg_u64(out, "--port", ask->url->port);
	if (e->n_ctx > 0)
		engine_arg_u64(out, "--ctx-size", e->n_ctx);
	if (e->n_threads > 0)
		engine_arg_u64(out, "--threads", e->n_threads);
	engine_arg_u64(out, "--n-gpu-layers", e->n_gpu_layers);
	engine_arg_u64(out, "--parallel", e->slots);
	engine_arg(out, "--metrics");
	engine_arg(out, "--slots");
	engine_arg_pair(out, "--slot-save-path", e->slot_dir);
	engine_arg_pair(out, "--api-key-file", e->api_key_file);
	/* An environment variable, because builds that do not know the setting ignore it and extra_args override
	 * it. */
	if (!wants_ram_cache(ask))
		engine_env(out, RAM_CACHE_OFF);
}

bool engine_caches_in_ram(const struct engine_launch *p)
{
	bool caches = true;
	for (size_t i = 0; i < p->n_env; i++)
		caches = caches && strcmp(p->env[i], RAM_CACHE_OFF) != 0;
	for (size_t i = 0; i + 1 < p->n_args; i++)
		if (strcmp(p->argv[i], "--cache-ram") == 0 || strcmp(p->argv[i], "-cram") == 0)
			caches = strcmp(p->argv[i + 1], "0") != 0;
	return caches;
}

static CGN_RC llama_launch(const struct engine_launch_ask *ask, struct engine_launch *out,
	struct cgn_err *err)
{
	const struct config_engine *e = ask->engine;
	bool python = engine_program_is(e, "python");
	if (e->model_path == NULL)
		return CGN_FAIL(err, INVALID,
			"engine.model_path is missing: a managed llama_cpp needs a GGUF file");
	if (python && e->slot_dir != NULL)
		return CGN_FAIL(err, INVALID,
			"engine.slot_dir does not go with llama-cpp-python (engine.binary %s), which saves no slots; use llama-server",
			e->binary);
	if (python)
		python_args(ask, out);
	else
		server_args(ask, out);
	engine_arg_extra(out, e);
	return CGN_OK;
}

static void llama_read_metrics(struct cgn_str text, struct engine_load *into)
{
	double v = 0;
	engine_read_requests(text, "llamacpp:requests_processing", &into->running);
	engine_read_requests(text, "llamacpp:requests_deferred", &into->waiting);
	(void)prom_sum(text, "llamacpp:prompt_tokens_total", &into->work);
	engine_read_made(text, "llamacpp:n_decode_total", NULL, into);
	/* Missing from 0.7.0 on, so /slots is read too. */
	if (prom_max(text, "llamacpp:kv_cache_usage_ratio", &v) && v >= 0 && v <= 1)
		into->kv_usage = v;
}

/* Each slot has n_ctx tokens of the cache; the tokens of a past prompt stay until the slot is used again. */
static void llama_read_slots(struct cgn_str text, struct engine_load *into)
{
	struct json_val slots, slot;
	uint64_t total = 0, used = 0;
	uint32_t n = 0;
	if (!cgn_ok(json_parse(text, &slots, NULL, NULL)) || slots.type != JSON_ARRAY)
		return;
	for (struct json_iter it = json_iter_of(slots); json_next_elem(&it, &slot); n++) {
		uint64_t ctx = json_get_u64(slot, "n_ctx", 0),
			 held = json_get_u64(slot, "n_prompt_tokens", 0);
		if (__builtin_add_overflow(total, ctx, &total) ||
			__builtin_add_overflow(used, held < ctx ? held : ctx, &used))
			return;
	}
	into->slots = n;
	if (total == 0)
		return;
	into->kv_blocks_total = total;
	into->kv_block_tokens = 1;
	into->kv_usage = (double)used / (double)total;
}

/* Build 11669 sleeps after --sleep-idle-seconds while /health, /props, /v1/models and /metrics are asked; /slots is a request to
 * it. In router mode the list has the state of each model, and /props how many models are held at once. */
static bool llama_read_props(struct cgn_str text, struct engine_models *into)
{
	struct json_val doc;
	if (!cgn_ok(json_parse(text, &doc, NULL, NULL)) || doc.type != JSON_OBJECT)
		return false;
	uint64_t most = json_get_u64(doc, "max_instances", 0);
	into->holds = most < UINT32_MAX ? (uint32_t)most : 0;
	for (size_t i = 0; json_get_bool(doc, "is_sleeping", false) && i < into->n; i++)
		into->v[i].state = ENGINE_MODEL_ASLEEP;
	return true;
}

static void llama_ask_template(struct cgn_str model, const struct prompt *p, struct cgn_str before,
	struct cgn_buf *body)
{
	struct json_out j = json_out_to(body);
	(void)model;
	(void)before;
	json_open(&j, '{');
	json_key_bool(&j, "add_generation_prompt", p->add_generation_prompt);
	engine_put_member(&j, "messages", p->messages);
	engine_put_member(&j, "tools", p->tools);
	engine_put_member(&j, "chat_template_kwargs", p->kwargs);
	json_close(&j, '}');
}

static CGN_RC llama_read_template(struct cgn_str answer, size_t max_ids, struct cgn_buf *out,
	struct cgn_err *err)
{
	struct json_val doc, prompt;
	(void)max_ids;
	if (!cgn_ok(json_parse(answer, &doc, NULL, NULL)) || !json_get(doc, "prompt", &prompt) ||
		prompt.type != JSON_STRING)
		return CGN_FAIL(err, BAD_GATEWAY, "the engine's answer to /apply-template has no prompt");
	json_str_to(prompt, out);
	return out->bad ? CGN_FAIL(err, NO_MEMORY, "no room for the rendered prompt") : CGN_OK;
}

/* Tokenize as the server does for a prompt: with a BOS token, and with special tokens recognized in the text. */
static void llama_ask_text(struct cgn_str model, const struct prompt *p, struct cgn_str before,
	struct cgn_buf *body)
{
	struct json_out j = json_out_to(body);
	(void)model;
	json_open(&j, '{');
	json_key_bool(&j, "add_special", true);
	json_key_bool(&j, "parse_special", true);
	json_key_str(&j, "content", p->kind == PROMPT_IS_CHAT ? before : p->text);
	json_close(&j, '}');
}

static const struct engine_tokens_ops llama_tokens = {
	.format = PROMPT_RAW,
	.chat = {{"/apply-template", llama_ask_template, llama_read_template},
		{"/tokenize", llama_ask_text, engine_read_tokens}},
	.text = {{"/tokenize", llama_ask_text, engine_read_tokens}},
};

static const struct engine_resume llama_resumes[] = {
	{.name = "llama_cpp", .shape = ENGINE_RESUME_PREFILL, .events = ENGINE_EVENTS_MOSTLY},
};

/* llama-server knows no salt: the agent reads it and chooses slots by it (policy/kv/slots). */
static const char *const llama_cpp_salts[] = {"/v1/chat/completions", "/v1/completions", "/v1/responses",
	"/completion", "/completions", "/infill", NULL};

const struct engine_ops engine_llama_cpp = {
	.kind = ENGINE_LLAMA_CPP,
	.read_at = "llama.cpp 0.7.0 (build 11669)",
	.binary = "llama-server",
	.launch = llama_launch,
	.ready_path = "/health",
	.check_every = 2 * CGN_SEC,
	.readiness = engine_readiness_plain,
	.sources = {{"/metrics", llama_read_metrics}, {"/slots", llama_read_slots, true}},
	.loaded = {{"/props", llama_read_props}},
	.lacks = llama_lacks,
	.natives = llama_natives,
	.salts = llama_cpp_salts,
	.counts_streams = true,
	.tokens = &llama_tokens,
	.resumes = llama_resumes,
	.n_resumes = CGN_COUNT(llama_resumes),
};
