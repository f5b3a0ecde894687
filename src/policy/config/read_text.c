/* SPDX-License-Identifier: Apache-2.0 */
/* config: the environment and flags: put values given as path and text into slots. */
#include "policy/config/source_priv.h"

#define MAX_STEPS  8
#define ENV_PREFIX "COGNITORA__"

/* engine.KEY means the only engine, engines.N.KEY the engine at N; one more may be added behind the last. */
static cgn_rc pick_engine(struct config *c, const struct toml_step *steps, size_t n, const char *where,
	size_t *out, struct cgn_err *err)
{
	uint64_t at = 0;
	bool numbered = cgn_str_is(steps[0].key, "engines");
	if (numbered && (n < 2 || !cgn_str_u64(steps[1].key, &at) || at > c->n_engines))
		return CGN_FAIL(err, INVALID, "%s: engines are numbered: engines.0.url to engines.%zu.url",
			where, c->n_engines);
	if (!numbered && c->n_engines > 1)
		return CGN_FAIL(err, INVALID, "%s: there are %zu engines: say which, as in engines.0.url",
			where, c->n_engines);
	if (at == c->n_engines)
		CGN_TRY(config_engine_add(c, where, err));
	*out = at;
	return CGN_OK;
}

static cgn_rc pick_row(struct config *c, const struct config_family *f, struct cgn_str name,
	const char *where, size_t *out, struct cgn_err *err)
{
	for (*out = 0; *out < config_row_count(c, f); ++*out)
		if (cgn_str_is(name, config_row_name(c, f, *out)))
			return CGN_OK;
	return config_row_add(c, f, name, where, err);
}

static cgn_rc find_slot(struct config *c, const struct toml_step *steps, size_t n, const char *where,
	struct config_slot *out, struct cgn_err *err)
{
	struct toml_node node = {.path = steps, .depth = n, .type = TOML_STRING};
	const struct config_table *t = &config_globals;
	const struct config_family *f = config_family_find(steps[0].key);
	const struct config_key *k;
	size_t from = 0, at = 0;
	if (cgn_str_is(steps[0].key, "engine") || cgn_str_is(steps[0].key, "engines")) {
		CGN_TRY(pick_engine(c, steps, n, where, &at, err));
		t = &config_engine_keys;
		from = cgn_str_is(steps[0].key, "engine") ? 1 : 2;
		if (n > from + 1 && config_is_kind(&steps[from]))
			CGN_TRY(config_note_kind_table(c, at, steps[from++].key, where, err));
	} else if (f != NULL && n > 2) {
		CGN_TRY(pick_row(c, f, steps[1].key, where, &at, err));
		t = f->keys;
		from = 2;
	}
	if (n <= from || (k = config_key_at(t, &node, from)) == NULL)
		return config_fail_unknown(t, where, steps, n, n < from ? n : from, err);
	*out = t == &config_globals ? config_global_slot(c, k)
		: f != NULL         ? config_row_slot(c, f, at, k)
				    : config_engine_slot(c, at, k);
	out->gib = config_is_gib(&steps[n - 1]);
	return CGN_OK;
}

struct list_reader {
	struct config *c;
	const struct config_slot *slot;
	const char *where;
};

static cgn_rc on_list_node(void *arg, const struct toml_node *n, struct cgn_err *err)
{
	struct list_reader *l = arg;
	struct cgn_arena *a = &l->c->store->arena;
	cgn_rc rc = CGN_RC_OF(CGN_INVALID);
	if (n->depth == 1 && n->type == TOML_ARRAY)
		rc = config_list_begin(a, l->slot, n->n);
	else if (n->depth == 2 && n->type == TOML_STRING)
		rc = config_list_put(a, l->slot, n->path[1].index, n->text);
	if (rc.code == CGN_NO_MEMORY)
		return config_fail_memory(l->where, err);
	return cgn_ok(rc) ? rc
			  : config_fail_value(l->slot->key, l->where, l->slot->key->path,
				    config_type_shown(n->type), err);
}

/* A list is a,b or, when an element has a comma, ["a", "b"] as in TOML. */
static cgn_rc set_text(struct config *c, const struct config_slot *s, const char *where, struct cgn_str text,
	struct cgn_err *err)
{
	if (s->key->kind != KEY_LIST || !cgn_str_starts(text, "["))
		return config_settle(c, s, config_value_set(&c->store->arena, s, text), where, s->key->path,
			text, err);
	struct list_reader l = {c, s, where};
	struct cgn_buf doc = {.limit = TOML_MAX_BYTES};
	cgn_buf_putz(&doc, "v = ");
	cgn_buf_str(&doc, text);
	cgn_rc rc = doc.bad ? config_fail_memory(where, err)
			    : toml_parse(where, cgn_buf_view(&doc), on_list_node, &l, err);
	cgn_buf_fini(&doc);
	return cgn_ok(rc) ? config_settle(c, s, rc, where, s->key->path, text, err) : rc;
}

static cgn_rc read_env_one(struct config *c, struct cgn_str name, struct cgn_str value, struct cgn_err *err)
{
	struct config_where w = config_shown(name);
	char path[256];
	if (!cgn_str_copyz(path, sizeof path, name))
		return CGN_FAIL(err, INVALID, "%s: unknown setting in the environment", w.text);
	for (char *p = path; *p != '\0'; p++)
		if (*p >= 'A' && *p <= 'Z')
			*p = (char)(*p | 0x20);
	struct toml_step steps[MAX_STEPS];
	size_t n = 0;
	for (const char *p = path + sizeof ENV_PREFIX - 1, *sep = p; sep != NULL && n < MAX_STEPS;
		p = sep + 2) {
		sep = strstr(p, "__");
		steps[n++].key = (struct cgn_str){p, sep != NULL ? (size_t)(sep - p) : strlen(p)};
		if (sep == NULL)
			break;
	}
	if (config_family_find(steps[0].key) != NULL)
		return CGN_FAIL(err, INVALID,
			"%s: %s cannot be set from the environment, whose names have no case; use the TOML file or --set",
			w.text, config_family_find(steps[0].key)->section);
	struct config_slot s;
	CGN_TRY(find_slot(c, steps, n, w.text, &s, err));
	if (*s.origin != NULL && strncmp(*s.origin, ENV_PREFIX, sizeof ENV_PREFIX - 1) == 0)
		return CGN_FAIL(err, INVALID, "%s: %s is given twice, also by %s", w.text, s.key->path,
			*s.origin);
	return set_text(c, &s, w.text, value, err);
}

CGN_RC config_read_env(struct config *c, const char *const *env, struct cgn_err *err)
{
	for (; env != NULL && *env != NULL; env++) {
		const char *eq = strchr(*env, '=');
		if (eq == NULL || strncmp(*env, ENV_PREFIX, sizeof ENV_PREFIX - 1) != 0)
			continue;
		CGN_TRY(read_env_one(c, (struct cgn_str){*env, (size_t)(eq - *env)}, cgn_str_of(eq + 1),
			err));
	}
	return CGN_OK;
}

/* Split a.b."c.d".e at '='. Returns the number of steps; 0: malformed. */
static size_t split_flag(const char *flag, struct toml_step *steps, const char **value)
{
	for (size_t n = 0; n < MAX_STEPS;) {
		bool quoted = *flag == '"';
		const char *from = flag + quoted, *end = from + strcspn(from, quoted ? "\"" : ".=");
		if (end == from || *end == '\0')
			return 0;
		steps[n++] = (struct toml_step){.key = {from, (size_t)(end - from)}};
		flag = end + quoted;
		if (*flag == '=') {
			*value = flag + 1;
			return n;
		}
		if (*flag++ != '.')
			return 0;
	}
	return 0;
}

CGN_RC config_read_flag(struct config *c, const char *flag, struct cgn_err *err)
{
	struct toml_step steps[MAX_STEPS];
	const char *value;
	size_t n = split_flag(flag, steps, &value);
	if (n == 0)
		return CGN_FAIL(err, INVALID, "--set %s: must be section.key=value",
			config_shown(cgn_str_of(flag)).text);
	struct config_where w;
	snprintf(w.text, sizeof w.text, "--set %.150s", config_path_shown(steps, n).text);
	struct config_slot s;
	CGN_TRY(find_slot(c, steps, n, w.text, &s, err));
	return set_text(c, &s, w.text, cgn_str_of(value), err);
}
