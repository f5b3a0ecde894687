/* SPDX-License-Identifier: Apache-2.0 */
/* launch: the launch plan of a managed engine. */
#include "policy/engine/engine_priv.h"

void engine_arg(struct engine_launch *p, const char *z)
{
	if (z == NULL || p->n_args >= ENGINE_MAX_ARGS) {
		p->bad = true;
		return;
	}
	p->argv[p->n_args++] = z;
	p->argv[p->n_args] = NULL;
}

/* |z| is borrowed and outlives the plan */
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

CGN_RC engine_launch_make(const struct engine_launch_ask *ask, struct engine_launch *out, struct cgn_err *err)
{
	const struct config_engine *e = ask->engine;
	const struct engine_url *u = ask->url;
	const struct engine_ops *ops = engine_ops_of(e->kind);
	CGN_MUST(ops != NULL);
	if (u->tls)
		return CGN_FAIL(err, INVALID,
			"engine.url %s: a managed engine is reached over http://, not https://", e->url);
	if (u->base[0] != '\0')
		return CGN_FAIL(err, INVALID, "engine.url %s: a managed engine has no base path", e->url);
	const char *program = e->binary != NULL ? e->binary : ops->binary;
	*out = (struct engine_launch){.arena = out->arena, .port = u->port, .ranks = e->kv_events_ranks};
	if (program != NULL)
		engine_arg_copy(out, program);
	CGN_TRY(ops->launch(ask, out, err));
	if (ask->gpu_index != NULL)
		engine_env(out, cgn_arena_fmt(out->arena, "CUDA_VISIBLE_DEVICES=%s", ask->gpu_index));
	if (out->bad)
		return CGN_FAIL(err, INVALID, "the engine's command line is longer than %d arguments",
			ENGINE_MAX_ARGS);
	return CGN_OK;
}
