/* SPDX-License-Identifier: Apache-2.0 */
/* launch: the launch plan of a managed engine. */
#include "base/weburl/weburl.h"
#include "policy/node/engine/engine_priv.h"

void engine_arg(struct engine_launch *p, const char *z)
{
	/* Errors are kept in |bad|, so that a kind's launch function needs no checks; engine_launch_make
	 * reports them. */
	if (z == NULL || p->n_args >= ENGINE_MAX_ARGS) {
		p->bad = true;
		return;
	}
	p->argv[p->n_args++] = z;
	p->argv[p->n_args] = NULL;
}

/* For a |z| that may end before the plan does. */
static void engine_arg_copy(struct engine_launch *p, const char *z)
{
	engine_arg(p, cgn_arena_strz(p->arena, cgn_str_of(z)));
}

void engine_arg_pair(struct engine_launch *p, const char *flag, const char *value)
{
	if (value == NULL)
		return;
	engine_arg(p, flag);
	engine_arg_copy(p, value);
}

void engine_arg_u64(struct engine_launch *p, const char *flag, uint64_t value)
{
	engine_arg(p, flag);
	engine_arg(p, cgn_arena_fmt(p->arena, "%llu", (unsigned long long)value));
}

void engine_arg_loras(const struct config_engine *e, const char *flag, struct engine_launch *p)
{
	if (e->loras.n == 0)
		return;
	engine_arg(p, "--enable-lora");
	engine_arg(p, flag);
	for (size_t i = 0; i < e->loras.n; i++)
		engine_arg_copy(p, e->loras.v[i]);
}

void engine_arg_extra(struct engine_launch *p, const struct config_engine *e)
{
	for (size_t i = 0; i < e->extra_args.n; i++)
		engine_arg_copy(p, e->extra_args.v[i]);
}

void engine_env(struct engine_launch *p, const char *assignment)
{
	CGN_MUST(p->n_env < ENGINE_MAX_ENV);
	p->bad |= assignment == NULL;
	p->env[p->n_env++] = assignment;
	p->env[p->n_env] = NULL;
}

const char *engine_file_put(struct engine_launch *p, const char *prefix, const char *suffix,
	const struct cgn_buf *text)
{
	CGN_MUST(p->n_files < ENGINE_MAX_FILES);
	struct engine_file f = {cgn_arena_fmt(p->arena, "%s%s", prefix, suffix),
		cgn_arena_strz(p->arena, cgn_buf_view(text))};
	p->bad |= f.path == NULL || f.text == NULL || text->bad;
	p->files[p->n_files++] = f;
	return f.path;
}

uint32_t engine_tp(const struct engine_launch_ask *ask)
{
	const struct config_model *m =
		ask->engine->model != NULL ? config_model_find(ask->cfg, ask->engine->model) : NULL;
	if (ask->engine->tp > 0)
		return ask->engine->tp;
	return m != NULL ? m->tp : 1;
}

void engine_arg_sizes(const struct engine_launch_ask *ask, const struct engine_size_flags *flags,
	struct engine_launch *p)
{
	const struct config_engine *e = ask->engine;
	engine_arg_u64(p, flags->tp, engine_tp(ask));
	if (e->pp > 1)
		engine_arg_u64(p, flags->pp, e->pp);
	if (e->dp > 1)
		engine_arg_u64(p, flags->dp, e->dp);
	if (e->n_ctx > 0)
		engine_arg_u64(p, flags->context, e->n_ctx);
	if (e->memory_fraction > 0)
		engine_arg_pair(p, flags->memory, cgn_arena_fmt(p->arena, "%.4g", e->memory_fraction));
}

const char *engine_weights(const struct config_engine *e)
{
	return e->model_path != NULL ? e->model_path : e->model;
}

CGN_RC engine_weights_check(const struct config_engine *e, struct cgn_err *err)
{
	if (engine_weights(e) != NULL)
		return CGN_OK;
	return CGN_FAIL(err, INVALID,
		"engine.model_path is missing: a managed %s needs a folder of weights or a name on the model hub",
		config_enum_text(e->kind));
}

bool engine_program_is(const struct config_engine *e, const char *name)
{
	if (e->binary == NULL)
		return false;
	const char *slash = strrchr(e->binary, '/'), *base = slash != NULL ? slash + 1 : e->binary;
	return strncmp(base, name, strlen(name)) == 0;
}

void engine_launch_put(const struct engine_launch *p, struct json_out *o)
{
	json_open(o, '{');
	json_key_open(o, "argv", '[');
	for (size_t i = 0; i < p->n_args; i++)
		json_put_z(o, p->argv[i]);
	json_close(o, ']');
	json_key_open(o, "env", '{');
	for (size_t i = 0; i < p->n_env; i++) {
		struct cgn_str rest = cgn_str_of(p->env[i]), name = cgn_str_split(&rest, '=');
		char key[64] = "";
		(void)cgn_str_copyz(key, sizeof key, name);
		json_key_str(o, key, rest);
	}
	json_close(o, '}');
	json_key_open(o, "files", '{');
	for (size_t i = 0; i < p->n_files; i++)
		json_key_z(o, p->files[i].path, p->files[i].text);
	json_close(o, '}');
	json_close(o, '}');
}

CGN_RC engine_launch_make(const struct engine_launch_ask *ask, struct engine_launch *out, struct cgn_err *err)
{
	const struct config_engine *e = ask->engine;
	const struct weburl *u = ask->url;
	const struct engine_ops *ops = engine_ops_of(e->kind);
	CGN_MUST(ops != NULL);
	if (u->tls)
		return CGN_FAIL(err, INVALID,
			"engine.url %s: a managed engine is reached over http://, not https://", e->url);
	if (u->base[0] != '\0')
		return CGN_FAIL(err, INVALID, "engine.url %s: a managed engine has no base path", e->url);
	CGN_TRY(engine_offload_check(e, ask->cfg->agent.role, err));
	const char *program = e->binary != NULL ? e->binary : ops->binary;
	*out = (struct engine_launch){.arena = out->arena,
		.port = u->port,
		.ranks = e->dp > 1 ? e->dp : e->kv_events_ranks};
	if (program != NULL)
		engine_arg_copy(out, program);
	CGN_TRY(ops->launch(ask, out, err));
	if (ask->cfg->agent.gpu_index != NULL)
		engine_env(out,
			cgn_arena_fmt(out->arena, "CUDA_VISIBLE_DEVICES=%s", ask->cfg->agent.gpu_index));
	for (size_t i = 0; i < e->env.n; i++) {
		if (strchr(e->env.v[i], '=') == NULL || e->env.v[i][0] == '=')
			return CGN_FAIL(err, INVALID, "engine.env has \"%.100s\", must be NAME=VALUE",
				e->env.v[i]);
		engine_env(out, cgn_arena_strz(out->arena, cgn_str_of(e->env.v[i])));
	}
	if (out->bad)
		return CGN_FAIL(err, INVALID, "the engine's command line is longer than %d arguments",
			ENGINE_MAX_ARGS);
	return CGN_OK;
}
