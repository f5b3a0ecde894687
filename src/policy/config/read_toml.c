/* SPDX-License-Identifier: Apache-2.0 */
/* config: a TOML file, node by node, into slots. */
#include "policy/config/source_priv.h"

struct reader {
	struct config *c;
	const char *file_name;
};

static struct config_where where_of(const struct reader *r, struct toml_place at)
{
	struct config_where w;
	snprintf(w.text, sizeof w.text, "%.150s:%u:%u", r->file_name, at.line, at.column);
	return w;
}

static bool type_fits(enum key_kind kind, enum toml_type t)
{
	switch (kind) {
	case KEY_STR:
	case KEY_PATH:
	case KEY_DUR:
	case KEY_ENUM:
		return t == TOML_STRING;
	case KEY_BOOL:
		return t == TOML_BOOL;
	case KEY_U32:
		return t == TOML_INTEGER;
	case KEY_F64:
		return t == TOML_FLOAT || t == TOML_INTEGER;
	case KEY_SIZE:
		return t == TOML_STRING || t == TOML_INTEGER;
	case KEY_LIST:
		return t == TOML_ARRAY;
	}
	return false;
}

static cgn_rc toml_element(struct reader *r, const struct config_slot *s, const struct toml_node *n,
	struct cgn_err *err)
{
	struct config_where w = where_of(r, n->at), name = config_path_shown(n->path, n->depth);
	if (n->type != TOML_STRING)
		return CGN_FAIL(err, INVALID, "%s: %s is %s, must be a text", w.text, name.text,
			config_type_shown(n->type));
	struct config *c = r->c;
	cgn_rc rc = config_list_put(&c->store->arena, s, n->path[n->depth - 1].index, n->text);
	if (rc.code == CGN_INVALID)
		return CGN_FAIL(err, INVALID,
			"%s: %s must be a text of at most %d bytes without control characters", w.text,
			name.text, CONFIG_MAX_TEXT);
	return cgn_ok(rc) ? rc : config_fail_memory(w.text, err);
}

static cgn_rc toml_value(struct reader *r, const struct config_slot *s, const struct toml_node *n,
	struct cgn_err *err)
{
	struct config_where w = where_of(r, n->at), name = config_path_shown(n->path, n->depth);
	if (config_is_element(n))
		return toml_element(r, s, n, err);
	if (!type_fits(s->key->kind, n->type))
		return config_fail_value(s->key, w.text, name.text, config_type_shown(n->type), err);
	if (*s->origin != NULL)
		return CGN_FAIL(err, INVALID, "%s: %s is given twice, also at %s", w.text, name.text,
			*s->origin);
	struct cgn_arena *a = &r->c->store->arena;
	if (n->type != TOML_ARRAY)
		return config_settle(r->c, s, config_value_set(a, s, n->text), w.text, name.text, n->text,
			err);
	cgn_rc rc = config_list_begin(a, s, n->n);
	if (rc.code != CGN_INVALID)
		return config_settle(r->c, s, rc, w.text, name.text, n->text, err);
	char count[40];
	snprintf(count, sizeof count, "a list of %zu", n->n);
	return config_fail_value(s->key, w.text, name.text, count, err);
}

static cgn_rc toml_global(struct reader *r, const struct toml_node *n, struct cgn_err *err)
{
	const struct config_key *k = config_key_at(&config_globals, n, 0);
	if (k != NULL) {
		struct config_slot s = config_global_slot(r->c, k);
		s.gib = config_is_gib(&n->path[n->depth - 1]);
		return toml_value(r, &s, n, err);
	}
	struct config_where name = config_path_shown(n->path, n->depth);
	bool section = config_is_section(cgn_str_of(name.text));
	if (section && n->type == TOML_TABLE)
		return CGN_OK;
	struct config_where w = where_of(r, n->key_at);
	if (section)
		return CGN_FAIL(err, INVALID, "%s: %s is %s, must be a table: [%s]", w.text, name.text,
			config_type_shown(n->type), name.text);
	return config_fail_unknown(&config_globals, w.text, n->path, n->depth, 0, err);
}

static cgn_rc toml_engine_member(struct reader *r, size_t engine, const struct toml_node *n, size_t from,
	struct cgn_err *err)
{
	if (config_is_kind(&n->path[from]) && (n->depth > from + 1 || n->type == TOML_TABLE)) {
		CGN_TRY(config_note_kind_table(r->c, engine, n->path[from].key, where_of(r, n->key_at).text,
			err));
		if (n->depth == ++from)
			return CGN_OK;
	}
	const struct config_key *k = config_key_at(&config_engine_keys, n, from);
	if (k == NULL)
		return config_fail_unknown(&config_engine_keys, where_of(r, n->key_at).text, n->path,
			n->depth, from, err);
	struct config_slot s = config_engine_slot(r->c, engine, k);
	return toml_value(r, &s, n, err);
}

static cgn_rc toml_want(struct reader *r, const struct toml_node *n, enum toml_type want,
	const char *spelling, struct cgn_err *err)
{
	if (n->type == want)
		return CGN_OK;
	return CGN_FAIL(err, INVALID, "%s: %s is %s, must be written %s", where_of(r, n->key_at).text,
		config_path_shown(n->path, n->depth).text, config_type_shown(n->type), spelling);
}

static cgn_rc toml_engine(struct reader *r, const struct toml_node *n, struct cgn_err *err)
{
	if (n->depth > 1)
		return toml_engine_member(r, 0, n, 1, err);
	CGN_TRY(toml_want(r, n, TOML_TABLE, "[engine]; several: [[engines]]", err));
	return config_engine_add(r->c, where_of(r, n->key_at).text, err);
}

static cgn_rc toml_engines(struct reader *r, const struct toml_node *n, struct cgn_err *err)
{
	if (n->depth > 2)
		return toml_engine_member(r, n->path[1].index, n, 2, err);
	if (n->depth == 2) {
		CGN_TRY(toml_want(r, n, TOML_TABLE, "[[engines]]", err));
		return config_engine_add(r->c, where_of(r, n->key_at).text, err);
	}
	CGN_TRY(toml_want(r, n, TOML_ARRAY, "[[engines]]", err));
	if (r->c->n_engines > 0) /* "engine" is visited before "engines" */
		return CGN_FAIL(err, INVALID,
			"%s: [engine] and [[engines]] exclude each other: move [engine] into an [[engines]]",
			where_of(r, n->key_at).text);
	return CGN_OK;
}

/* Are the rows engines without an agent? */
static bool family_is_bare(const struct config_family *f)
{
	return f == &config_families[CONFIG_ENGINE_NODES] || f == &config_families[CONFIG_INFERENCE_POOLS];
}

static cgn_rc toml_rows(struct reader *r, const struct config_family *f, const struct toml_node *n,
	struct cgn_err *err)
{
	char spelling[40];
	(void)snprintf(spelling, sizeof spelling, "[%s.\"NAME\"]", f->section);
	if (n->depth <= 2)
		CGN_TRY(toml_want(r, n, TOML_TABLE, spelling, err));
	if (n->depth == 1)
		return CGN_OK;
	if (n->depth == 2)
		return config_row_add(r->c, f, n->path[1].key, where_of(r, n->key_at).text, err);
	const struct config_key *k = config_key_at(f->keys, n, 2);
	if (k == NULL && family_is_bare(f) && config_key_at(&config_engine_keys, n, 2) != NULL)
		return CGN_FAIL(err, INVALID,
			"%s: %s needs a cgn-agent beside the engine: an engine without one is not started, kept or handed over (docs/fleet/engines/engine-nodes.md)",
			where_of(r, n->key_at).text, config_path_shown(n->path, n->depth).text);
	if (k == NULL)
		return config_fail_unknown(f->keys, where_of(r, n->key_at).text, n->path, n->depth, 2, err);
	struct config_slot s =
		config_row_slot(r->c, f, config_row_count(r->c, f) - 1, k); /* Members follow their table. */
	return toml_value(r, &s, n, err);
}

static cgn_rc on_node(void *arg, const struct toml_node *n, struct cgn_err *err)
{
	struct reader *r = arg;
	if (cgn_str_is(n->path[0].key, "engine"))
		return toml_engine(r, n, err);
	if (cgn_str_is(n->path[0].key, "engines"))
		return toml_engines(r, n, err);
	const struct config_family *f = config_family_find(n->path[0].key);
	return f != NULL ? toml_rows(r, f, n, err) : toml_global(r, n, err);
}

CGN_RC config_read_toml(struct config *c, const char *file_name, struct cgn_str toml, struct cgn_err *err)
{
	struct reader r = {c, file_name};
	return toml_parse(file_name, toml, on_node, &r, err);
}
