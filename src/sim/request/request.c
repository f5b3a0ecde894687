/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/request/request.h"

#include "base/mix/mix.h"
#include "sim/request/render.h"
#include "sim/request/resumed.h"
#include "sim/text/schema.h"

static bool field_true(const struct sim_fields *f, enum sim_key key)
{
	struct json_val value;
	return sim_field(f, key, &value) && json_bool(value, false);
}

unsigned sim_model_named(const struct sim_cfg *cfg, struct cgn_str name)
{
	unsigned i = 0;
	while (i < cfg->n_models &&
		(cfg->model_state[i] == SIM_MODEL_UNLOADED || !cgn_str_is(name, cfg->models[i])))
		i++;
	return i;
}

/* SGLang knows its adapters as BASE:ADAPTER, and answers for the base model to the adapter's name alone. Return n_models: the
 * name is not of this form. */
static unsigned adapter_named(const struct sim_cfg *cfg, struct cgn_str name)
{
	struct cgn_str rest = name, base = cgn_str_split(&rest, ':');
	unsigned i =
		cgn_str_is(base, cfg->models[0]) && rest.n > 0 ? sim_model_named(cfg, rest) : cfg->n_models;
	return i > 0 ? i : cfg->n_models;
}

bool sim_model_find(const struct sim_request_env *env, const struct sim_fields *root, unsigned *model,
	struct sim_refusal *no)
{
	struct json_val value;
	*model = 0;
	if (!sim_field(root, SIM_KEY_MODEL, &value) || value.type == JSON_NULL)
		return true; /* vLLM uses the first served model. */
	if (value.type != JSON_STRING)
		return sim_refuse(no, 400, "invalid_type", "model", "model must be a string");
	struct cgn_str name = json_str(value, env->arena);
	*model = sim_model_named(env->cfg, name);
	if (*model < env->cfg->n_models && env->cfg->model_state[*model] == SIM_MODEL_AFTER_BASE)
		*model = 0;
	if (*model == env->cfg->n_models)
		*model = adapter_named(env->cfg, name);
	return *model < env->cfg->n_models ||
		sim_refuse(no, 404, "model_not_found", "model", "The model `%.*s` does not exist.",
			(int)(name.n < 128 ? name.n : 128), name.n > 0 ? name.p : "");
}

bool sim_check_context(const struct sim_cfg *cfg, uint64_t prompt, uint64_t answer, struct sim_refusal *no)
{
	if (prompt + answer <= cfg->max_model_len)
		return true;
	return sim_refuse(no, 400, "context_length_exceeded", "messages",
		"This model's maximum context length is %u tokens. However, you requested %llu tokens (%llu in the messages, %llu in the "
		"completion). Please reduce the length of the messages or completion.",
		cfg->max_model_len, (unsigned long long)(prompt + answer), (unsigned long long)prompt,
		(unsigned long long)answer);
}

uint32_t sim_request_natural_tokens(const struct sim_cfg *cfg, uint64_t digest)
{
	uint32_t most = cfg->max_tokens_default, half = most / 2;
	uint32_t n = half + (uint32_t)(mix64(digest ^ 0x6c656e67) % (most - half + 1));
	return n > 0 ? n : 1;
}

/* Read a non-negative integer within bounds; absent and null leave |*out| unchanged. */
static bool take_u32(const struct sim_fields *root, enum sim_key key, uint32_t min, uint32_t max,
	uint32_t *out, struct sim_refusal *no)
{
	struct json_val value;
	uint64_t v = 0;
	if (!sim_field(root, key, &value) || value.type == JSON_NULL)
		return true;
	if (value.type != JSON_NUMBER || !json_u64(value, &v) || v < min || v > max)
		return sim_refuse(no, 400, "invalid_value", sim_key_name(key),
			"%s must be an integer from %u to %u", sim_key_name(key), min, max);
	*out = (uint32_t)v;
	return true;
}

static bool take_stop(struct json_val value, const char *key, struct cgn_arena *a, struct sim_limits *lim,
	struct sim_refusal *no)
{
	if (value.type != JSON_STRING)
		return sim_refuse(no, 400, "invalid_type", key, "%s must be a string or a list of strings",
			key);
	if (lim->n_stops == SIM_STOPS_MAX)
		return sim_refuse(no, 400, "invalid_value", key, "%s: at most %d strings", key,
			SIM_STOPS_MAX);
	struct cgn_str s = json_str(value, a);
	if (s.n == 0 || s.n > 1024)
		return sim_refuse(no, 400, "invalid_value", key, "%s: a string of 1 to 1024 bytes", key);
	lim->stops[lim->n_stops++] = s;
	return true;
}

static bool take_stops(const struct sim_fields *root, enum sim_key which, struct cgn_arena *a,
	struct sim_limits *lim, struct sim_refusal *no)
{
	struct json_val value, each;
	const char *key = sim_key_name(which);
	if (!sim_field(root, which, &value) || value.type == JSON_NULL)
		return true;
	if (value.type != JSON_ARRAY)
		return take_stop(value, key, a, lim, no);
	struct json_iter it = json_iter_of(value);
	while (json_next_elem(&it, &each)) {
		if (!take_stop(each, key, a, lim, no))
			return false;
	}
	return true;
}

/* Read logprobs. Chat: logprobs is a switch and top_logprobs the count; completions: logprobs is the
 * count. */
static bool take_logprobs(const struct sim_fields *root, const struct sim_cfg *cfg, struct sim_request *out,
	struct sim_refusal *no)
{
	uint32_t top = UINT32_MAX;
	out->logprobs = -1;
	if (cfg->no_logprobs)
		return true;
	if (out->api == SIM_COMPLETIONS) {
		if (!take_u32(root, SIM_KEY_LOGPROBS, 0, SIM_TOP_MAX, &top, no))
			return false;
		out->logprobs = top == UINT32_MAX ? -1 : (int)top;
		return true;
	}
	if (out->api != SIM_CHAT || !field_true(root, SIM_KEY_LOGPROBS))
		return true;
	if (!take_u32(root, SIM_KEY_TOP_LOGPROBS, 0, SIM_TOP_MAX, &top, no))
		return false;
	out->logprobs = top == UINT32_MAX ? 0 : (int)top;
	return true;
}

static bool take_max_tokens(const struct sim_fields *root, struct sim_request *out, struct sim_refusal *no)
{
	enum sim_key key = out->api == SIM_RESPONSES ? SIM_KEY_MAX_OUTPUT_TOKENS : SIM_KEY_MAX_TOKENS;
	if (!take_u32(root, key, 1, UINT32_MAX - 1, &out->limits.max_tokens, no))
		return false;
	if (out->api == SIM_CHAT &&
		!take_u32(root, SIM_KEY_MAX_COMPLETION_TOKENS, 1, UINT32_MAX - 1, &out->limits.max_tokens,
			no))
		return false;
	if (out->api == SIM_COMPLETIONS && out->limits.max_tokens == 0)
		out->limits.max_tokens = 16; /* Default of the completions API. */
	if (out->api == SIM_MESSAGES && out->limits.max_tokens == 0)
		return sim_refuse(no, 400, "missing", "max_tokens", "max_tokens: field required");
	return true;
}

static bool take_seed(const struct sim_fields *root, const struct sim_cfg *cfg, struct sim_request *out,
	struct sim_refusal *no)
{
	struct json_val value;
	out->seed = cfg->seed;
	if (!sim_field(root, SIM_KEY_SEED, &value) || value.type == JSON_NULL)
		return true;
	if (value.type != JSON_NUMBER)
		return sim_refuse(no, 400, "invalid_type", "seed", "seed must be an integer");
	if (!json_u64(value, &out->seed))
		out->seed = sim_hash(value.raw); /* A negative number is legal and a seed like any other. */
	return true;
}

static bool take_difficulty(const struct sim_fields *root, struct sim_request *out, struct sim_refusal *no)
{
	struct json_val value;
	out->difficulty = -1;
	if (!sim_field(root, SIM_KEY_DIFFICULTY, &value) || value.type == JSON_NULL)
		return true;
	if (!json_f64(value, &out->difficulty) || !(out->difficulty >= 0 && out->difficulty <= 1))
		return sim_refuse(no, 400, "invalid_value", "difficulty",
			"difficulty must be a number from 0 to 1");
	return true;
}

static bool take_params(const struct sim_request_env *env, const struct sim_fields *root,
	struct sim_request *out, struct sim_refusal *no)
{
	struct json_val options;
	out->n = 1;
	out->stream = field_true(root, SIM_KEY_STREAM);
	out->include_usage = sim_field(root, SIM_KEY_STREAM_OPTIONS, &options) &&
		json_get_bool(options, "include_usage", false);
	out->limits.ignore_eos = field_true(root, SIM_KEY_IGNORE_EOS);
	out->limits.keep_stop = field_true(root, SIM_KEY_KEEP_STOP);
	bool many = out->api == SIM_CHAT || out->api == SIM_COMPLETIONS;
	enum sim_key stop = out->api == SIM_MESSAGES ? SIM_KEY_STOP_SEQUENCES : SIM_KEY_STOP;
	return take_max_tokens(root, out, no) &&
		take_u32(root, SIM_KEY_MIN_TOKENS, 0, UINT32_MAX - 1, &out->limits.min_tokens, no) &&
		(!many || take_u32(root, SIM_KEY_N, 1, 128, &out->n, no)) &&
		take_stops(root, stop, env->arena, &out->limits, no) &&
		take_logprobs(root, env->cfg, out, no) && take_seed(root, env->cfg, out, no) &&
		take_difficulty(root, out, no);
}

static bool take_resumed(const struct sim_request_env *env, struct cgn_str resumed, struct sim_request *out,
	struct sim_refusal *no)
{
	out->origin = sim_chain_digest(&out->prompts[0]);
	if (out->n > 1)
		return resumed.n == 0 || sim_render_string(env, resumed, false, &out->prompts[0], no);
	if (!sim_resumed_add(env, resumed, out->seed, &out->prompts[0], &out->resumed_tokens, no))
		return false;
	if (out->resumed_tokens > 0)
		out->resumed = out->limits.resumed = resumed;
	return true;
}

/* Read the prompts of a completion. A text that ends with the beginning of its own answer is resumed
 * there. */
static bool take_texts(const struct sim_request_env *env, const struct sim_fields *root,
	struct sim_request *out, struct sim_refusal *no)
{
	struct json_val prompt;
	bool one = sim_field(root, SIM_KEY_PROMPT, &prompt) && !sim_is_prompts(prompt) &&
		prompt.type == JSON_STRING && out->n == 1;
	if (!one || env->reader != NULL)
		return sim_render_prompts(env, root, out->prompts, &out->n_prompts, no);
	struct cgn_str text = json_str(prompt, env->arena),
		       resumed = sim_resumed_find(text, out->seed, &out->prompts[0]);
	if (resumed.n == 0)
		return sim_render_prompts(env, root, out->prompts, &out->n_prompts, no);
	out->n_prompts = 1;
	sim_chain_text(&out->prompts[0], (struct cgn_str){text.p, text.n - resumed.n});
	return take_resumed(env, resumed, out, no);
}

static bool take_prompts(const struct sim_request_env *env, const struct sim_fields *root,
	struct sim_request *out, struct sim_refusal *no)
{
	const struct sim_cfg *cfg = env->cfg;
	struct sim_chain_cfg chain = {.model = cgn_str_of(cfg->models[out->model]),
		.model_index = out->model,
		.block_tokens = cfg->block_tokens,
		.max_tokens = cfg->max_model_len,
		.keep = sim_keeps_contents(cfg)};
	struct json_val value;
	struct sim_chain blank;
	if (sim_field(root, SIM_KEY_CACHE_SALT, &value) && value.type == JSON_STRING)
		chain.salt = json_str(value, env->arena);
	if (chain.salt.n > ENGINEMODEL_SALT_MAX)
		return sim_refuse(no, 400, "invalid_value", "cache_salt", "cache_salt: at most %d bytes",
			ENGINEMODEL_SALT_MAX);
	sim_chain_init(&blank, &chain);
	for (size_t i = 0; i < SIM_PROMPTS_MAX; i++)
		out->prompts[i] = blank;
	if (out->api == SIM_COMPLETIONS)
		return take_texts(env, root, out, no);
	out->n_prompts = 1;
	struct cgn_str resumed = {NULL, 0};
	return sim_render_chat(env, out->api, root, &out->prompts[0], &resumed, no) &&
		take_resumed(env, resumed, out, no);
}

/* Set the answer's length to what the longest prompt leaves. */
static bool settle_length(const struct sim_request_env *env, struct sim_request *out, struct sim_refusal *no)
{
	uint64_t longest = 0;
	for (uint32_t i = 0; i < out->n_prompts; i++)
		longest = out->prompts[i].n_tokens > longest ? out->prompts[i].n_tokens : longest;
	if (!sim_check_context(env->cfg, longest, out->limits.max_tokens > 0 ? out->limits.max_tokens : 1,
		    no))
		return false;
	if (out->limits.max_tokens == 0)
		out->limits.max_tokens = env->cfg->max_model_len - (uint32_t)longest;
	return true;
}

/* Prepare the script of an answer that is JSON: arguments of a tool, or response_format (Responses:
 * text.format). */
static bool settle_script(const struct sim_request_env *env, const struct sim_fields *root,
	struct sim_request *out, struct sim_refusal *no)
{
	struct json_val schema = {0};
	uint64_t rng = sim_chain_digest(&out->prompts[0]) ^ mix64(out->seed);
	out->script.limit = 1 << 20;
	out->is_tool = sim_pick_tool(root, env->arena, &out->tool_name, &schema);
	if (!out->is_tool && !sim_pick_format(root, env->arena, &schema))
		return true;
	struct json_out o = json_out_to(&out->script);
	if (schema.type == JSON_OBJECT) {
		sim_schema_fill(schema, &rng, env->arena, &o);
	} else {
		json_open(&o, '{');
		json_key_z(&o, "answer", "yes");
		json_close(&o, '}');
	}
	return out->script.bad
		? sim_refuse(no, 400, "invalid_value", NULL, "the schema asks for more than 1 MiB")
		: true;
}

bool sim_request_parse(const struct sim_request_env *env, enum sim_api api, struct cgn_str body,
	struct sim_request *out, struct sim_refusal *no)
{
	struct sim_fields root;
	*out = (struct sim_request){.api = api};
	if (!sim_body_parse(body, &root, no) || !sim_model_find(env, &root, &out->model, no) ||
		!take_params(env, &root, out, no) ||
		!sim_handoff_ask_read(env->cfg, &root, &out->handoff, no) ||
		!take_prompts(env, &root, out, no))
		return false;
	if ((uint64_t)out->n_prompts * out->n > SIM_CHOICES_MAX)
		return sim_refuse(no, 400, "invalid_value", "n", "prompts times n must not exceed %d",
			SIM_CHOICES_MAX);
	return settle_length(env, out, no) && settle_script(env, &root, out, no);
}

void sim_request_fini(struct sim_request *a)
{
	for (size_t i = 0; i < SIM_PROMPTS_MAX; i++)
		sim_chain_fini(&a->prompts[i]);
	cgn_buf_fini(&a->script);
}
