/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/engine/engine.h"

#include <stdlib.h>

#include "base/json/json.h"
#include "policy/engine/engine_priv.h"
#include "policy/engine/prom.h"

static const struct engine_ops *const kinds[] = {&engine_llama_cpp, &engine_openai_compat, &engine_sim};

const struct engine_ops *engine_ops_of(int kind)
{
	for (size_t i = 0; i < CGN_COUNT(kinds); i++)
		if (kinds[i]->kind == kind)
			return kinds[i];
	return NULL;
}

const struct engine_ops *engine_ops_named(struct cgn_str kind)
{
	for (size_t i = 0; i < CGN_COUNT(kinds); i++)
		if (cgn_str_is(kind, config_enum_text(kinds[i]->kind)))
			return kinds[i];
	return NULL;
}

const struct engine_resume *engine_resume_named(struct cgn_str name)
{
	static const struct engine_resume rows[] = {
		{.name = "sim",
			.shape = ENGINE_RESUME_CONTINUE,
			.events = ENGINE_EVENTS_ARE_TOKENS,
			.text_default = 16},
		{.name = "llama_cpp", .shape = ENGINE_RESUME_PREFILL, .events = ENGINE_EVENTS_MOSTLY},
		{.name = "continue", .shape = ENGINE_RESUME_CONTINUE, .text_default = 16},
		{.name = "prefill", .shape = ENGINE_RESUME_PREFILL, .text_default = 16},
	};
	for (size_t i = 0; i < CGN_COUNT(rows); i++)
		if (cgn_str_is(name, rows[i].name))
			return &rows[i];
	return NULL;
}

bool engine_lacks(const struct engine_ops *ops, struct cgn_str path)
{
	struct cgn_str rest = path, bare = cgn_str_split(&rest, '?');
	for (const char *const *p = ops->lacks; p != NULL && *p != NULL; p++)
		if (cgn_str_is(bare, *p))
			return true;
	return false;
}

enum engine_readiness engine_readiness_plain(int status)
{
	if (status == 503)
		return ENGINE_READINESS_LOADING;
	return status == 200 ? ENGINE_READINESS_UP : ENGINE_READINESS_DOWN;
}

/* ---- argv ---- */
void engine_arg(struct engine_argv *a, const char *z)
{
	if (z == NULL || a->n >= ENGINE_MAX_ARGS) {
		a->bad = true;
		return;
	}
	a->v[a->n++] = z;
	a->v[a->n] = NULL;
}

void engine_arg_pair(struct engine_argv *a, const char *flag, const char *value)
{
	if (value == NULL)
		return;
	engine_arg(a, flag);
	engine_arg(a, cgn_arena_strz(a->arena, cgn_str_of(value)));
}

void engine_arg_u64(struct engine_argv *a, const char *flag, uint64_t value)
{
	engine_arg(a, flag);
	engine_arg(a, cgn_arena_fmt(a->arena, "%llu", (unsigned long long)value));
}

void engine_arg_extra(struct engine_argv *a, const struct config_engine *e)
{
	for (size_t i = 0; i < e->extra_args.n; i++)
		engine_arg(a, cgn_arena_strz(a->arena, cgn_str_of(e->extra_args.v[i])));
}

CGN_RC engine_argv_done(struct engine_argv *a, struct cgn_err *err)
{
	if (a->bad)
		return CGN_FAIL(err, INVALID, "the engine's command line is longer than %d arguments",
			ENGINE_MAX_ARGS);
	return CGN_OK;
}

CGN_RC engine_argv_make(const struct config_engine *e, const struct engine_url *u, struct engine_argv *out,
	struct cgn_err *err)
{
	const struct engine_ops *ops = engine_ops_of(e->kind);
	CGN_MUST(ops != NULL);
	if (u->tls)
		return CGN_FAIL(err, INVALID,
			"engine.url %s: a managed engine is reached over http://, not https://", e->url);
	if (u->base[0] != '\0')
		return CGN_FAIL(err, INVALID, "engine.url %s: a managed engine has no base path", e->url);
	const char *program = e->binary != NULL ? e->binary : ops->binary;
	out->n = 0;
	out->bad = false;
	if (program != NULL)
		engine_arg(out, cgn_arena_strz(out->arena, cgn_str_of(program)));
	return ops->argv(e, u, out, err);
}

/* ---- load ---- */
static void read_u32(struct cgn_str text, const char *name, uint32_t *into)
{
	double v = 0;
	if (prom_sum(text, name, &v) && v >= 0 && v < UINT32_MAX)
		*into = (uint32_t)v;
}

/* The configuration is in labels of a sample that is always 1. */
static void read_vllm_cache(struct cgn_str text, struct engine_load *into)
{
	struct prom_reader r = prom_reader_of(text);
	struct prom_sample s;
	uint64_t total = 0;
	while (prom_next(&r, &s)) {
		struct cgn_str label;
		uint64_t v = 0;
		if (!cgn_str_is(s.name, "vllm:cache_config_info"))
			continue;
		if (prom_label(&s, "num_gpu_blocks", &label) && cgn_str_u64(label, &v) &&
			!__builtin_add_overflow(total, v, &total))
			into->kv_blocks_total = total;
		if (prom_label(&s, "block_size", &label) && cgn_str_u64(label, &v) && v <= UINT32_MAX)
			into->kv_block_tokens = (uint32_t)v;
	}
}

void engine_read_vllm(struct cgn_str text, struct engine_load *into)
{
	double v = 0;
	read_u32(text, "vllm:num_requests_running", &into->running);
	read_u32(text, "vllm:num_requests_waiting", &into->waiting);
	(void)prom_sum(text, "vllm:prompt_tokens_total", &into->work);
	/* Renamed with vLLM's V1 engine; "perc" is a share of one in both. */
	if ((prom_max(text, "vllm:kv_cache_usage_perc", &v) ||
		    prom_max(text, "vllm:gpu_cache_usage_perc", &v)) &&
		v >= 0 && v <= 1)
		into->kv_usage = v;
	read_vllm_cache(text, into);
}

bool engine_load_restarted(const struct engine_load *before, const struct engine_load *now)
{
	return now->work < before->work;
}

size_t engine_chain_capacity(const struct engine_load *l, uint32_t block_bytes, size_t fallback)
{
	uint64_t bytes = 0;
	if (l->kv_blocks_total == 0 || l->kv_block_tokens == 0 || block_bytes == 0)
		return fallback;
	if (__builtin_mul_overflow(l->kv_blocks_total, (uint64_t)l->kv_block_tokens * ENGINE_TOKEN_BYTES,
		    &bytes))
		return fallback;
	uint64_t blocks = bytes / block_bytes;
	if (blocks == 0)
		return 1;
	return blocks < fallback ? (size_t)blocks : fallback;
}

/* ---- models ---- */
struct model_list {
	struct cgn_arena *a;
	const char **v;
	size_t n, max;
	bool bad;
};

static void model_add(struct model_list *l, struct json_val v)
{
	if (v.type != JSON_STRING || l->bad)
		return;
	struct cgn_str name = json_str(v, l->a);
	if (name.n == 0 || memchr(name.p, '\0', name.n) != NULL)
		return;
	for (size_t i = 0; i < l->n; i++)
		if (cgn_str_is(name, l->v[i]))
			return;
	if (l->n == l->max)
		return;
	const char *z = cgn_arena_strz(l->a, name);
	l->bad = z == NULL;
	if (z != NULL)
		l->v[l->n++] = z;
}

static void model_entry(struct model_list *l, struct json_val entry)
{
	struct json_val id, aliases, alias;
	if (json_get(entry, "id", &id))
		model_add(l, id);
	if (!json_get(entry, "aliases", &aliases) || aliases.type != JSON_ARRAY)
		return;
	for (struct json_iter it = json_iter_of(aliases); json_next_elem(&it, &alias);)
		model_add(l, alias);
}

CGN_RC engine_models_read(struct cgn_str body, struct cgn_arena *a, size_t max, const char ***out, size_t *n,
	struct cgn_err *err)
{
	struct json_val doc, data, entry;
	struct cgn_err why = {0};
	struct model_list l = {.a = a, .v = cgn_arena_get(a, max * sizeof(char *)), .max = max};
	if (l.v == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no room for %zu model names", max);
	if (!cgn_ok(json_parse(body, &doc, NULL, &why)))
		return CGN_FAIL(err, BAD_GATEWAY, "/v1/models is not JSON: %.200s", why.msg);
	if (!json_get(doc, "data", &data) || data.type != JSON_ARRAY)
		return CGN_FAIL(err, BAD_GATEWAY, "/v1/models has no \"data\" list");
	for (struct json_iter it = json_iter_of(data); json_next_elem(&it, &entry);)
		model_entry(&l, entry);
	if (l.bad)
		return CGN_FAIL(err, NO_MEMORY, "no room for the model names");
	*out = l.v;
	*n = l.n;
	return CGN_OK;
}
