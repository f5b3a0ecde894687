/* SPDX-License-Identifier: Apache-2.0 */
/* config: one block of memory per config: defaults, then the sources in order, then the checks. */
#include <stdlib.h>

#include "policy/config/config_priv.h"

struct config_box {
	struct config pub;
	struct config_store store;
};

static cgn_rc set_presets(struct config *c, const struct config_table *t, void *base)
{
	for (size_t i = 0; i < t->n; i++) {
		struct config_slot s = {&t->keys[i], base, NULL};
		if (t->keys[i].preset == NULL)
			continue; /* Already NULL. */
		cgn_rc rc = config_value_set(&c->store->arena, &s, cgn_str_of(t->keys[i].preset));
		CGN_MUST(rc.code != CGN_INVALID); /* The row's default violates the row's own bounds. */
		CGN_TRY(rc);
	}
	return CGN_OK;
}

static struct config *box_new(void)
{
	struct config_box *b = CGN_NEW(struct config_box);
	struct config *c = &b->pub;
	struct cgn_arena *a = &b->store.arena;
	c->store = &b->store;
	b->store.tag = CONFIG_STORE_TAG;
	cgn_arena_init(a, CONFIG_MAX_BYTES);
	b->store.origins = cgn_arena_zero(a, config_globals.n * sizeof *b->store.origins);
	CGN_MUST(b->store.origins != NULL && cgn_ok(set_presets(c, &config_tenant_keys, &c->any_tenant)) &&
		cgn_ok(set_presets(c, &config_globals, c)));
	return c;
}

/* An engine without a name is named after its kind; the second engine of a kind gets its number. */
static cgn_rc name_engines(struct config *c)
{
	for (size_t i = 0; i < c->n_engines; i++) {
		struct config_engine *e = &c->engines[i];
		size_t nth = 1;
		for (size_t j = 0; j < i; j++)
			nth += c->engines[j].kind == e->kind;
		if (e->name != NULL)
			continue;
		const char *kind = config_enum_text(e->kind);
		e->name = nth == 1 ? kind : cgn_arena_fmt(&c->store->arena, "%s-%zu", kind, nth);
		if (e->name == NULL)
			return CGN_RC_OF(CGN_NO_MEMORY);
	}
	return CGN_OK;
}

/* A port whose address is not set is open to other machines only where callers show certificates or keys, or where that
 * was said to be needless. */
static void narrow_presets(struct config *c)
{
	const bool closed = !c->security.require_mtls && !c->security.insecure;
	const struct {
		const char *path, *here;
		const char **addr;
		bool narrow;
	} rows[] = {{"router.listen", "127.0.0.1:8080", &c->router.listen,
			    !c->auth.enabled && !c->security.insecure},
		{"router.listen_grpc", "127.0.0.1:9090", &c->router.listen_grpc, closed},
		{"agent.listen", "127.0.0.1:7080", &c->agent.listen, closed},
		{"kv.listen", "127.0.0.1:7090", &c->kv.listen, closed},
		{"metrics.listen", "127.0.0.1:9092", &c->metrics.listen,
			!c->security.insecure && c->security.cert_file == NULL}};
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		const struct config_key *k = config_key_find(&config_globals, cgn_str_of(rows[i].path));
		CGN_MUST(k != NULL);
		if (rows[i].narrow && *config_global_slot(c, k).origin == NULL)
			*rows[i].addr = rows[i].here;
	}
}

CGN_RC config_read(const char *file_name, struct cgn_str toml, const char *const *env,
	const char *const *flags, size_t n_flags, struct config **out, struct cgn_err *err)
{
	CGN_ON_EXIT(config_free) struct config *c = box_new();
	CGN_TRY(config_read_toml(c, file_name, toml, err));
	CGN_TRY(config_read_env(c, env, err));
	for (size_t i = 0; i < n_flags; i++)
		CGN_TRY(config_read_flag(c, flags[i], err));
	CGN_TRY(config_credentials(c, env, err));
	cgn_rc rc = name_engines(c);
	if (!cgn_ok(rc))
		return CGN_FAIL_AS(err, rc.code, "no memory for the names of the engines");
	narrow_presets(c);
	CGN_TRY(config_check(c, err));
	*out = CGN_TAKE(&c);
	return CGN_OK;
}

void config_free(struct config **take)
{
	struct config *c = CGN_TAKE(take);
	if (c == NULL)
		return;
	CGN_LIVE(c->store, CONFIG_STORE_TAG);
	cgn_arena_fini(&c->store->arena);
	c->store->tag = 0;
	free(c); /* The config is the first member of its box. */
}

const struct config_model *config_model_find(const struct config *c, const char *name)
{
	for (size_t i = 0; i < c->n_models; i++) {
		const struct config_model *m = &c->models[i];
		if (strcmp(m->name, name) == 0)
			return m;
		for (size_t j = 0; j < m->aliases.n; j++)
			if (strcmp(m->aliases.v[j], name) == 0)
				return m;
	}
	return NULL;
}

bool config_is_set(const struct config *c, const char *path)
{
	size_t n = strlen(path);
	for (size_t i = 0; i < config_globals.n; i++) {
		const struct config_key *k = &config_globals.keys[i];
		if (strncmp(k->path, path, n) == 0 && (k->path[n] == '.' || k->path[n] == '\0') &&
			*config_global_slot(c, k).origin != NULL)
			return true;
	}
	return false;
}

/* A slot is written only while the config is being loaded; afterwards it is read. */
struct config_slot config_global_slot(const struct config *c, const struct config_key *k)
{
	struct config_box *b = CGN_CONTAINER(c->store, struct config_box, store);
	return (struct config_slot){k, &b->pub, &b->store.origins[k - config_globals.keys]};
}

struct config_slot config_engine_slot(const struct config *c, size_t engine, const struct config_key *k)
{
	CGN_MUST(engine < c->n_engines);
	size_t at = engine * config_engine_keys.n + (size_t)(k - config_engine_keys.keys);
	return (struct config_slot){k, &c->engines[engine], &c->store->engine_origins[at]};
}

static size_t *row_count(const struct config *c, const struct config_family *f)
{
	struct config_box *b = CGN_CONTAINER(c->store, struct config_box, store);
	return (void *)((char *)&b->pub + f->count_at);
}

/* The field that points at the rows has another type in each family, so it is copied. */
static char *rows_of(const struct config *c, const struct config_family *f)
{
	char *rows;
	memcpy(&rows, (const char *)c + f->rows_at, sizeof rows);
	return rows;
}

size_t config_row_count(const struct config *c, const struct config_family *f)
{
	return *row_count(c, f);
}

const char *config_row_name(const struct config *c, const struct config_family *f, size_t row)
{
	const char *name;
	CGN_MUST(row < *row_count(c, f));
	memcpy(&name, rows_of(c, f) + row * f->row_bytes, sizeof name);
	return name;
}

struct config_slot config_row_slot(const struct config *c, const struct config_family *f, size_t row,
	const struct config_key *k)
{
	CGN_MUST(row < *row_count(c, f));
	size_t at = row * f->keys->n + (size_t)(k - f->keys->keys);
	return (struct config_slot){k, rows_of(c, f) + row * f->row_bytes,
		&c->store->row_origins[f - config_families][at]};
}

CGN_RC config_engine_add(struct config *c, const char *where, struct cgn_err *err)
{
	struct config_store *st = c->store;
	if (c->n_engines == CONFIG_MAX_ENGINES)
		return CGN_FAIL(err, INVALID, "%s: more than %d engines on one node", where,
			CONFIG_MAX_ENGINES);
	if (c->engines == NULL) {
		c->engines = cgn_arena_zero(&st->arena, CONFIG_MAX_ENGINES * sizeof *c->engines);
		st->engine_origins = cgn_arena_zero(&st->arena,
			CONFIG_MAX_ENGINES * config_engine_keys.n * sizeof *st->engine_origins);
	}
	if (c->engines == NULL || st->engine_origins == NULL)
		return CGN_FAIL(err, NO_MEMORY, "%s: no memory for engines", where);
	st->engine_tables[c->n_engines].kind = CONFIG_ENUM_START_;
	cgn_rc rc = set_presets(c, &config_engine_keys, &c->engines[c->n_engines]);
	if (!cgn_ok(rc))
		return CGN_FAIL_AS(err, rc.code, "%s: no memory for an engine", where);
	c->n_engines++;
	return CGN_OK;
}

/* Allocates room for all possible rows when the first one comes. */
static char *rows_make(struct config *c, const struct config_family *f)
{
	struct cgn_arena *a = &c->store->arena;
	char *rows = cgn_arena_zero(a, f->max * f->row_bytes);
	const char **origins = cgn_arena_zero(a, f->max * f->keys->n * sizeof *origins);
	if (rows == NULL || origins == NULL)
		return NULL;
	memcpy((char *)c + f->rows_at, &rows, sizeof rows);
	c->store->row_origins[f - config_families] = origins;
	return rows;
}

CGN_RC config_row_add(struct config *c, const struct config_family *f, struct cgn_str name, const char *where,
	struct cgn_err *err)
{
	size_t *n = row_count(c, f);
	if (*n == f->max)
		return CGN_FAIL(err, INVALID, "%s: more than %zu %s", where, f->max, f->section);
	if (name.n == 0 || name.n > f->name_max || !config_text_clean(name))
		return CGN_FAIL(err, INVALID, "%s: a %s's name has 1 to %zu bytes and no control characters",
			where, f->noun, f->name_max);
	char *rows = rows_of(c, f);
	if (rows == NULL)
		rows = rows_make(c, f);
	const char *copy = cgn_arena_strz(&c->store->arena, name);
	if (rows == NULL || copy == NULL || !cgn_ok(set_presets(c, f->keys, rows + *n * f->row_bytes)))
		return CGN_FAIL(err, NO_MEMORY, "%s: no memory for a %s", where, f->noun);
	memcpy(rows + *n * f->row_bytes, &copy, sizeof copy);
	++*n;
	return CGN_OK;
}
