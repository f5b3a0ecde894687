/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/node/engine/engine.h"

#include "policy/node/engine/engine_priv.h"
#include "policy/node/engine/prom.h"

static const struct engine_ops *const kinds[] = {
#define ENGINE(id, name) &engine_##name,
#include "policy/config/engine_kinds.def"
#undef ENGINE
};

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
	for (size_t i = 0; i < CGN_COUNT(kinds); i++)
		for (size_t k = 0; k < kinds[i]->n_resumes; k++)
			if (cgn_str_is(name, kinds[i]->resumes[k].name))
				return &kinds[i]->resumes[k];
	return NULL;
}

const char *engine_resume_of(const struct config_engine *e)
{
	const struct engine_ops *ops = engine_ops_of(e->kind);
	if (ops->n_resumes > 1)
		return e->resume == RESUME_NONE ? "" : config_enum_text(e->resume);
	return ops->n_resumes == 1 ? ops->resumes[0].name : "";
}

/* |path|: with its query. */
static bool path_is_in(const char *const *paths, struct cgn_str path)
{
	struct cgn_str rest = path, bare = cgn_str_split(&rest, '?');
	for (const char *const *p = paths; p != NULL && *p != NULL; p++)
		if (cgn_str_is(bare, *p))
			return true;
	return false;
}

const char *const engine_no_natives[] = {NULL};

/* Is |path| one that only some kinds have? */
static bool is_native(struct cgn_str path)
{
	for (size_t i = 0; i < CGN_COUNT(kinds); i++)
		if (path_is_in(kinds[i]->natives, path))
			return true;
	return false;
}

bool engine_lacks(const struct engine_ops *ops, struct cgn_str path)
{
	return path_is_in(ops->lacks, path) ||
		(ops->natives != NULL && !path_is_in(ops->natives, path) && is_native(path));
}

bool engine_salts(const struct engine_ops *ops, struct cgn_str path)
{
	return path_is_in(ops->salts, path);
}

enum engine_readiness engine_readiness_plain(int status)
{
	if (status == 503)
		return ENGINE_READINESS_LOADING;
	return status == 200 ? ENGINE_READINESS_UP : ENGINE_READINESS_DOWN;
}

/* ---- load ---- */

bool engine_load_restarted(const struct engine_load *before, const struct engine_load *now)
{
	return now->work < before->work;
}

bool engine_load_worked(const struct engine_load *before, const struct engine_load *now)
{
	return now->work > before->work || now->made > before->made;
}

void engine_read_requests(struct cgn_str text, const char *name, uint32_t *into)
{
	double v = 0;
	if (prom_sum(text, name, &v) && v >= 0 && v <= ENGINE_REQUESTS_MOST)
		*into = (uint32_t)v;
}

void engine_read_made(struct cgn_str text, const char *tokens, const char *preempted,
	struct engine_load *into)
{
	double n = 0, made = 0;
	if (prom_sum(text, tokens, &n) && n > 0)
		made += n;
	if (preempted != NULL && prom_sum(text, preempted, &n) && n > 0)
		made += n;
	if (made > 0)
		into->made = made;
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
