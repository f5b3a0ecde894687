/* SPDX-License-Identifier: Apache-2.0 */
#include "router/shared/rules/tokenizer_set.h"

#include <stdatomic.h>
#include <stdlib.h>

#include <sys/stat.h>

#include "base/json/json.h"
#include "io/os/disk/disk.h"
#include "policy/route/routing/routing.h"

#define KIT_TAG     0x64617e01U
#define KIT_LIMIT   ((size_t)4 << 20)
#define CONFIG_MAX  ((size_t)16 << 20)
#define CONFIG_FILE "tokenizer_config.json"
#define JINJA_FILE  "chat_template.jinja"

/* ---- files ---- */

static char *path_beside(struct cgn_arena *a, const char *tokenizer, const char *name)
{
	const char *slash = strrchr(tokenizer, '/');
	return slash == NULL ? cgn_arena_strz(a, cgn_str_of(name))
			     : cgn_arena_fmt(a, "%.*s/%s", (int)(slash - tokenizer), tokenizer, name);
}

static bool file_exists(const char *path)
{
	struct stat st;
	return path != NULL && stat(path, &st) == 0;
}

static CGN_RC read_file(const struct config_model *m, const char *key, const char *path, size_t max,
	struct cgn_buf *out, struct cgn_err *err)
{
	struct cgn_err why;
	if (path == NULL)
		return CGN_FAIL(err, NO_MEMORY, "models.\"%s\".%s: out of memory", m->name, key);
	if (!cgn_ok(disk_read_file(path, max, out, &why)))
		return CGN_FAIL(err, INVALID, "models.\"%s\".%s: %s", m->name, key, why.msg);
	return CGN_OK;
}

static uint64_t file_fingerprint(const char *path)
{
	struct stat st;
	if (path == NULL || stat(path, &st) != 0)
		return 0;
	const uint64_t parts[] = {route_hash(path, strlen(path)), (uint64_t)st.st_ino, (uint64_t)st.st_size,
		(uint64_t)st.st_mtim.tv_sec, (uint64_t)st.st_mtim.tv_nsec};
	return route_hash(parts, sizeof parts);
}

uint64_t gw_tokenizer_set_fingerprint(const struct config_model *m)
{
	struct cgn_arena a;
	cgn_arena_init(&a, 65536);
	const uint64_t parts[] = {file_fingerprint(m->tokenizer), file_fingerprint(m->chat_template),
		file_fingerprint(path_beside(&a, m->tokenizer, CONFIG_FILE)),
		file_fingerprint(path_beside(&a, m->tokenizer, JINJA_FILE))};
	cgn_arena_fini(&a);
	return route_hash(parts, sizeof parts);
}

/* ---- template ---- */

static CGN_RC template_compile_source(const struct config_model *m, const char *from, struct cgn_str source,
	struct gw_template *out, struct cgn_err *err)
{
	struct cgn_err why;
	cgn_rc rc = template_compile(source, &out->compiled, &why);
	if (!cgn_ok(rc))
		return CGN_FAIL_AS(err, rc.code == CGN_NO_MEMORY ? rc.code : CGN_INVALID,
			"models.\"%s\".chat_template: %s: %s", m->name, from, why.msg);
	out->format = prompt_format_of(source);
	return CGN_OK;
}

static CGN_RC compile_json(const struct config_model *m, const char *from, struct json_val source,
	struct gw_template *out, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	json_str_to(source, &text);
	if (text.bad)
		return CGN_FAIL(err, NO_MEMORY, "models.\"%s\".chat_template: out of memory", m->name);
	return template_compile_source(m, from, cgn_buf_view(&text), out, err);
}

/* Compile the templates of a list of {"name","template"}. */
static CGN_RC compile_list(struct gw_tokenizer_set *k, const struct config_model *m, const char *from,
	struct json_val list, struct cgn_err *err)
{
	struct json_val row, name, source;
	for (struct json_iter it = json_iter_of(list); json_next_elem(&it, &row);) {
		if (!json_get(row, "name", &name) || !json_get(row, "template", &source) ||
			source.type != JSON_STRING)
			continue;
		if (cgn_str_is(name.raw, "\"default\"") && k->chat.compiled == NULL)
			CGN_TRY(compile_json(m, from, source, &k->chat, err));
		else if (cgn_str_is(name.raw, "\"tool_use\"") && k->tools.compiled == NULL)
			CGN_TRY(compile_json(m, from, source, &k->tools, err));
	}
	return CGN_OK;
}

static CGN_RC compile_file(struct gw_tokenizer_set *k, const struct config_model *m, const char *path,
	struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf source = {0};
	CGN_TRY(read_file(m, "chat_template", path, TEMPLATE_MAX_SOURCE, &source, err));
	k->template_from = cgn_arena_strz(&k->arena, cgn_str_of(path));
	return template_compile_source(m, path, cgn_buf_view(&source), &k->chat, err);
}

static CGN_RC template_load(struct gw_tokenizer_set *k, const struct config_model *m, const char *from,
	struct json_val config, struct cgn_err *err)
{
	struct json_val v;
	const char *jinja = path_beside(&k->arena, m->tokenizer, JINJA_FILE);
	if (m->chat_template != NULL)
		return compile_file(k, m, m->chat_template, err);
	if (file_exists(jinja))
		return compile_file(k, m, jinja, err);
	if (!json_get(config, "chat_template", &v))
		return CGN_OK;
	k->template_from = from;
	if (v.type == JSON_STRING)
		return compile_json(m, from, v, &k->chat, err);
	return v.type == JSON_ARRAY ? compile_list(k, m, from, v, err) : CGN_OK;
}

/* ---- tokenizer_config.json ---- */

/* Return a special token: a string, or an added token with its text in "content". */
static struct cgn_str special_token(struct gw_tokenizer_set *k, struct json_val config, const char *key)
{
	struct json_val v;
	if (!json_get(config, key, &v))
		return (struct cgn_str){NULL, 0};
	if (v.type == JSON_OBJECT && !json_get(v, "content", &v))
		return (struct cgn_str){NULL, 0};
	return v.type == JSON_STRING ? cgn_arena_str(&k->arena, json_str(v, &k->arena))
				     : (struct cgn_str){NULL, 0};
}

static CGN_RC config_file_load(struct gw_tokenizer_set *k, const struct config_model *m, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	struct json_val config = {0};
	struct cgn_err why;
	const char *path = path_beside(&k->arena, m->tokenizer, CONFIG_FILE);
	if (file_exists(path)) {
		CGN_TRY(read_file(m, "tokenizer", path, CONFIG_MAX, &text, err));
		if (!cgn_ok(json_parse(cgn_buf_view(&text), &config, NULL, &why)))
			return CGN_FAIL(err, INVALID, "models.\"%s\".tokenizer: %s: %s", m->name, path,
				why.msg);
	}
	k->bos = special_token(k, config, "bos_token");
	k->eos = special_token(k, config, "eos_token");
	k->unk = special_token(k, config, "unk_token");
	k->pad = special_token(k, config, "pad_token");
	return template_load(k, m, path, config, err);
}

static CGN_RC tokenizer_file_load(struct gw_tokenizer_set *k, const struct config_model *m,
	struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	struct cgn_err why;
	CGN_TRY(read_file(m, "tokenizer", m->tokenizer, TOKENIZER_MAX_FILE, &text, err));
	cgn_rc rc = tokenizer_load(cgn_buf_view(&text), &k->tokenizer, &why);
	if (cgn_ok(rc))
		return CGN_OK;
	return CGN_FAIL_AS(err, rc.code == CGN_NO_MEMORY ? rc.code : CGN_INVALID,
		"models.\"%s\".tokenizer: %s: %s", m->name, m->tokenizer, why.msg);
}

/* ---- tokenizer set ---- */

CGN_RC gw_tokenizer_set_load(const struct config_model *m, struct gw_tokenizer_set **out, struct cgn_err *err)
{
	CGN_ON_EXIT(gw_tokenizer_set_unref) struct gw_tokenizer_set *k = CGN_NEW(struct gw_tokenizer_set);
	k->tag = KIT_TAG;
	atomic_init(&k->refs, 1);
	cgn_arena_init(&k->arena, KIT_LIMIT);
	/* Taken first: a change of the files during the read is seen at the next reload. */
	k->fingerprint = gw_tokenizer_set_fingerprint(m);
	k->tokenizer_from = cgn_arena_str(&k->arena, cgn_str_of(m->tokenizer));
	CGN_TRY(tokenizer_file_load(k, m, err));
	CGN_TRY(config_file_load(k, m, err));
	*out = CGN_TAKE(&k);
	return CGN_OK;
}

void gw_tokenizer_set_ref(struct gw_tokenizer_set *k)
{
	CGN_LIVE(k, KIT_TAG);
	atomic_fetch_add_explicit(&k->refs, 1, memory_order_relaxed);
}

void gw_tokenizer_set_unref(struct gw_tokenizer_set **take)
{
	struct gw_tokenizer_set *k = CGN_TAKE_LIVE(take, KIT_TAG);
	if (k == NULL)
		return;
	if (atomic_fetch_sub_explicit(&k->refs, 1, memory_order_acq_rel) != 1)
		return;
	k->tag = 0;
	template_free(&k->chat.compiled);
	template_free(&k->tools.compiled);
	tokenizer_free(&k->tokenizer);
	cgn_arena_fini(&k->arena);
	free(k);
}
