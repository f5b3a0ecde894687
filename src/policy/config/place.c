/* SPDX-License-Identifier: Apache-2.0 */
/* config: the part that the sources share: places, paths of steps, and error messages. */
#include "policy/config/source_priv.h"

struct config_where config_shown(struct cgn_str s)
{
	struct config_where w;
	size_t n = 0;
	for (; n < s.n && n < 60; n++)
		w.text[n] = (unsigned char)s.p[n] < 0x20 || s.p[n] == 0x7f ? '?' : s.p[n];
	snprintf(w.text + n, sizeof w.text - n, "%s", n < s.n ? "..." : "");
	return w;
}

static void path_join(const struct toml_step *steps, size_t n, struct cgn_buf *out)
{
	for (size_t i = 0; i < n; i++) {
		if (steps[i].key.p == NULL) {
			cgn_buf_fmt(out, "[%zu]", steps[i].index);
			continue;
		}
		cgn_buf_putz(out, i == 0 ? "" : ".");
		bool quoted = memchr(steps[i].key.p, '.', steps[i].key.n) != NULL;
		cgn_buf_putz(out, quoted ? "\"" : "");
		cgn_buf_str(out, steps[i].key);
		cgn_buf_putz(out, quoted ? "\"" : "");
	}
}

struct config_where config_path_shown(const struct toml_step *steps, size_t n)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {.limit = 1024};
	path_join(steps, n, &b);
	return config_shown(cgn_buf_view(&b));
}

static void put_sections(struct cgn_buf *out)
{
	struct cgn_str last = {NULL, 0};
	cgn_buf_putz(out, "; known sections: ");
	for (size_t i = 0; i < config_globals.n; i++) {
		struct cgn_str rest = cgn_str_of(config_globals.keys[i].section),
			       top = cgn_str_split(&rest, '.');
		if (!cgn_str_eq(top, last))
			cgn_buf_fmt(out, "%.*s, ", CGN_STR_ARG(top));
		last = top;
	}
	cgn_buf_putz(out, "engine, engines");
	for (size_t i = 0; i < CONFIG_FAMILIES; i++)
		cgn_buf_fmt(out, ", %s", config_families[i].section);
}

/* Append "known here: a, b": the keys of |t| in the section of an unknown key. */
static void put_siblings(const struct config_table *t, struct cgn_str path, struct cgn_buf *out)
{
	size_t dot = path.n;
	while (dot > 0 && path.p[dot - 1] != '.')
		dot--;
	struct cgn_str section = {path.p, dot > 0 ? dot - 1 : 0};
	const char *before = "; known here: ";
	for (size_t i = 0; i < t->n; i++) {
		if (t == &config_globals && !cgn_str_is(section, t->keys[i].section))
			continue;
		cgn_buf_fmt(out, "%s%s", before, t->keys[i].key);
		before = ", ";
	}
	if (*before == ';')
		put_sections(out);
}

/* Return the advice about a key that was renamed; NULL: it was not. |path|: without the section of a row. */
static const char *renamed_find(const struct config_table *t, struct cgn_str path)
{
	static const struct {
		const char *key, *then;
	} rows[] = {
#define MOVED(key, then) {key, then},
#include "policy/config/renamed.def"
#undef MOVED
	};
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf full = {.limit = 1024};
	if (t != &config_globals)
		cgn_buf_fmt(&full, "%s.", t->keys[0].section);
	cgn_buf_str(&full, path);
	for (size_t i = 0; i < CGN_COUNT(rows) && !full.bad; i++)
		if (cgn_str_is(cgn_buf_view(&full), rows[i].key))
			return rows[i].then;
	return NULL;
}

CGN_RC config_fail_unknown(const struct config_table *t, const char *where, const struct toml_step *steps,
	size_t n, size_t from, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf path = {.limit = 1024}, hint = {.limit = 1024};
	path_join(steps + from, n - from, &path);
	const struct config_key *near = config_key_nearest(t, cgn_buf_view(&path));
	const char *then = renamed_find(t, cgn_buf_view(&path));
	if (then != NULL)
		cgn_buf_fmt(&hint, "; %s", then);
	else if (near != NULL)
		cgn_buf_fmt(&hint, "; did you mean %s?", near->path);
	else
		put_siblings(t, cgn_buf_view(&path), &hint);
	return CGN_FAIL(err, INVALID, "%s: unknown key %s%s", where, config_path_shown(steps, n).text,
		cgn_buf_z(&hint));
}

CGN_RC config_fail_value(const struct config_key *k, const char *where, const char *name, const char *value,
	struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf allowed = {.limit = 1024};
	config_key_allowed(k, &allowed);
	const char *example = k->kind == KEY_DUR ? ", such as \"250ms\""
		: k->kind == KEY_SIZE            ? ", such as \"64MiB\""
						 : "";
	return CGN_FAIL(err, INVALID, "%s: %s is %s, must be %s%s", where, name, value, cgn_buf_z(&allowed),
		example);
}

CGN_RC config_fail_memory(const char *where, struct cgn_err *err)
{
	return CGN_FAIL(err, NO_MEMORY, "%s: no memory for it, or over %zu MiB of configuration", where,
		CONFIG_MAX_BYTES >> 20);
}

CGN_RC config_settle(struct config *c, const struct config_slot *s, cgn_rc rc, const char *where,
	const char *name, struct cgn_str text, struct cgn_err *err)
{
	if (rc.code == CGN_INVALID) {
		struct config_where value;
		snprintf(value.text, sizeof value.text, "\"%.150s\"", config_shown(text).text);
		return config_fail_value(s->key, where, name, value.text, err);
	}
	if (cgn_ok(rc))
		*s->origin = cgn_arena_strz(&c->store->arena, cgn_str_of(where));
	return cgn_ok(rc) && *s->origin != NULL ? CGN_OK : config_fail_memory(where, err);
}

CGN_RC config_note_kind_table(struct config *c, size_t engine, struct cgn_str kind_text, const char *where,
	struct cgn_err *err)
{
	int kind = config_enum_value("ENGINE_KIND", kind_text);
	if (c->store->engine_tables[engine].kind == kind)
		return CGN_OK;
	if (c->store->engine_tables[engine].kind != CONFIG_ENUM_START_)
		return CGN_FAIL(err, INVALID, "%s: [engine.%s] and [engine.%s]: an engine has one kind",
			where, config_enum_text(kind),
			config_enum_text(c->store->engine_tables[engine].kind));
	c->store->engine_tables[engine].kind = kind;
	c->store->engine_tables[engine].place = cgn_arena_strz(&c->store->arena, cgn_str_of(where));
	return c->store->engine_tables[engine].place != NULL ? CGN_OK : config_fail_memory(where, err);
}

bool config_is_kind(const struct toml_step *s)
{
	return s->key.p != NULL && config_enum_value("ENGINE_KIND", s->key) != CONFIG_ENUM_START_;
}

bool config_is_gib(const struct toml_step *s)
{
	return s->key.n > 4 && memcmp(s->key.p + s->key.n - 4, "_gib", 4) == 0;
}

bool config_is_element(const struct toml_node *n)
{
	return n->path[n->depth - 1].key.p == NULL;
}

const struct config_key *config_key_at(const struct config_table *t, const struct toml_node *n, size_t from)
{
	size_t end = n->depth - config_is_element(n);
	for (size_t i = from; i < end; i++) /* A quoted key "router.listen" is not the path router.listen. */
		if (n->path[i].key.p == NULL || memchr(n->path[i].key.p, '.', n->path[i].key.n) != NULL)
			return NULL;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf path = {.limit = 1024};
	path_join(n->path + from, end - from, &path);
	return path.bad ? NULL : config_key_find(t, cgn_buf_view(&path));
}

const char *config_type_shown(enum toml_type t)
{
	static const char *const names[] = {[TOML_TABLE] = "a table",
		[TOML_ARRAY] = "a list",
		[TOML_STRING] = "a text",
		[TOML_INTEGER] = "a whole number",
		[TOML_FLOAT] = "a number",
		[TOML_BOOL] = "true or false",
		[TOML_DATE] = "a date"};
	return names[t];
}
