/* SPDX-License-Identifier: Apache-2.0 */
/* config: the effective configuration with origins, and the keys that need a restart. */
#include "base/json/json.h"
#include "policy/config/config_priv.h"

/* Hide only the password of "redis://ann:secret@host". */
static void hide_password(struct cgn_buf *out, size_t from)
{
	char *text = out->p + from, *end = out->p + out->n;
	char *scheme = out->bad ? NULL : memmem(text, out->n - from, "://", 3);
	char *at = scheme != NULL ? memrchr(scheme, '@', (size_t)(end - scheme)) : NULL;
	char *colon = at != NULL ? memchr(scheme + 3, ':', (size_t)(at - scheme) - 3) : NULL;
	if (colon == NULL)
		return;
	size_t stars = at - colon - 1 < 3 ? (size_t)(at - colon - 1) : 3;
	memset(colon + 1, '*', stars);
	memmove(colon + 1 + stars, at, (size_t)(end - at));
	out->n -= (size_t)(at - colon - 1) - stars;
}

/* |lead|: text at the beginning of the line. */
static void put_line(struct cgn_buf *out, const char *lead, const struct config_slot *s)
{
	const char *from = *s->origin != NULL ? *s->origin : "default";
	size_t start = out->n;
	cgn_buf_fmt(out, "%s%s = ", lead, s->key->key);
	if (!config_value_text(s->key, s->base, out)) {
		out->n = start;
		cgn_buf_fmt(out, "%s%s is unset", lead[0] != '\0' ? lead : "# ", s->key->key);
		from = *s->origin;
	}
	hide_password(out, start);
	if (from != NULL)
		cgn_buf_fmt(out, "%*s# %s", (int)(out->n - start < 48 ? 48 - (out->n - start) : 1), "", from);
	cgn_buf_char(out, '\n');
}

static void put_slot(struct cgn_buf *out, const struct config_slot *s)
{
	put_line(out, "", s);
}

/* Put the slot that runs, and |next|, the same slot of the newest configuration, where it waits for a restart. */
static void put_both(struct cgn_buf *out, const struct config_slot *runs, const struct config_slot *next)
{
	bool waits = !runs->key->live && !config_value_same(runs->key, runs->base, next->base);
	put_line(out, "", runs->key->live ? next : runs);
	if (waits)
		put_line(out, "# PENDING until restart: ", next);
}

static void put_rows(const struct config *c, const struct config_family *f, struct cgn_buf *out)
{
	for (size_t r = 0; r < config_row_count(c, f); r++) {
		cgn_buf_fmt(out, "\n[%s.", f->section);
		config_put_quoted(out, config_row_name(c, f, r));
		cgn_buf_putz(out, "]\n");
		for (size_t i = 0; i < f->keys->n; i++) {
			struct config_slot s = config_row_slot(c, f, r, &f->keys->keys[i]);
			put_slot(out, &s);
		}
	}
}

void config_print(const struct config *c, struct cgn_buf *out)
{
	const char *section = "";
	for (size_t i = 0; i < config_globals.n; i++) {
		struct config_slot s = config_global_slot(c, &config_globals.keys[i]);
		if (strcmp(s.key->section, section) != 0)
			cgn_buf_fmt(out, "%s[%s]\n", i == 0 ? "" : "\n", s.key->section);
		section = s.key->section;
		put_slot(out, &s);
	}
	for (size_t e = 0; e < c->n_engines; e++) {
		cgn_buf_putz(out, "\n[[engines]]\n");
		for (size_t i = 0; i < config_engine_keys.n; i++) {
			struct config_slot s = config_engine_slot(c, e, &config_engine_keys.keys[i]);
			put_slot(out, &s);
		}
	}
	for (size_t f = 0; f < CONFIG_FAMILIES; f++)
		put_rows(c, &config_families[f], out);
}

static void put_engines(const struct config *boot, const struct config *loaded, struct cgn_buf *out)
{
	bool same = boot->n_engines == loaded->n_engines;
	for (size_t e = 0; e < boot->n_engines; e++) {
		cgn_buf_putz(out, "\n[[engines]]\n");
		for (size_t i = 0; i < config_engine_keys.n; i++) {
			struct config_slot runs = config_engine_slot(boot, e, &config_engine_keys.keys[i]);
			struct config_slot next =
				same ? config_engine_slot(loaded, e, &config_engine_keys.keys[i]) : runs;
			put_both(out, &runs, &next);
		}
	}
	if (!same)
		cgn_buf_fmt(out, "\n# PENDING until restart: %zu engines instead of %zu\n", loaded->n_engines,
			boot->n_engines);
}

void config_print_running(const struct config *boot, const struct config *loaded, struct cgn_buf *out)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf waits = {0};
	const char *section = "";
	config_needs_restart(boot, loaded, &waits);
	if (waits.n > 0)
		cgn_buf_fmt(out, "# PENDING until restart: %s\n", cgn_buf_z(&waits));
	for (size_t i = 0; i < config_globals.n; i++) {
		struct config_slot runs = config_global_slot(boot, &config_globals.keys[i]),
				   next = config_global_slot(loaded, &config_globals.keys[i]);
		if (strcmp(runs.key->section, section) != 0)
			cgn_buf_fmt(out, "%s[%s]\n", i == 0 ? "" : "\n", runs.key->section);
		section = runs.key->section;
		put_both(out, &runs, &next);
	}
	put_engines(boot, loaded, out);
	for (size_t f = 0; f < CONFIG_FAMILIES; f++) /* A reload applies them. */
		put_rows(loaded, &config_families[f], out);
}

/* ---- as JSON ---- */

/* Append a value: TOML's texts, numbers and lists are JSON's. */
static void put_value(struct json_out *o, const struct config_slot *s)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	if (!config_value_text(s->key, s->base, &text)) {
		json_put_null(o);
		return;
	}
	hide_password(&text, 0);
	json_put_raw(o, cgn_buf_view(&text));
}

static void json_both(struct json_out *o, const char *prefix, const struct config_slot *runs,
	const struct config_slot *next)
{
	char name[512];
	const struct config_slot *now = runs->key->live ? next : runs;
	(void)snprintf(name, sizeof name, "%s%s", prefix, runs->key->path);
	json_open(o, '{');
	json_key_z(o, "key", name);
	json_key(o, "value");
	put_value(o, now);
	json_key_z(o, "origin", *now->origin != NULL ? *now->origin : "default");
	if (!runs->key->live && !config_value_same(runs->key, runs->base, next->base)) {
		json_key(o, "pending");
		put_value(o, next);
		json_key_z(o, "pending_origin", *next->origin != NULL ? *next->origin : "default");
	}
	json_close(o, '}');
}

static void json_engines(const struct config *boot, const struct config *loaded, struct json_out *o)
{
	for (size_t e = 0; e < boot->n_engines; e++)
		for (size_t i = 0; i < config_engine_keys.n; i++) {
			char prefix[40];
			struct config_slot runs = config_engine_slot(boot, e, &config_engine_keys.keys[i]);
			struct config_slot next = boot->n_engines == loaded->n_engines
				? config_engine_slot(loaded, e, &config_engine_keys.keys[i])
				: runs;
			(void)snprintf(prefix, sizeof prefix, "engines.%zu.", e);
			json_both(o, prefix, &runs, &next);
		}
}

static void json_rows(const struct config *c, const struct config_family *f, struct json_out *o)
{
	for (size_t r = 0; r < config_row_count(c, f); r++)
		for (size_t i = 0; i < f->keys->n; i++) {
			char prefix[400];
			struct config_slot s = config_row_slot(c, f, r, &f->keys->keys[i]);
			(void)snprintf(prefix, sizeof prefix, "%s.%.256s.", f->section,
				config_row_name(c, f, r));
			json_both(o, prefix, &s, &s);
		}
}

void config_json_running(const struct config *boot, const struct config *loaded, struct cgn_buf *out)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf waits = {0};
	struct json_out o = json_out_to(out);
	config_needs_restart(boot, loaded, &waits);
	json_open(&o, '{');
	json_key_open(&o, "pending", '[');
	struct cgn_str rest = cgn_buf_view(&waits);
	while (rest.n > 0)
		json_put_str(&o, cgn_str_trim(cgn_str_split(&rest, ',')));
	json_close(&o, ']');
	json_key_open(&o, "settings", '[');
	for (size_t i = 0; i < config_globals.n; i++) {
		struct config_slot runs = config_global_slot(boot, &config_globals.keys[i]),
				   next = config_global_slot(loaded, &config_globals.keys[i]);
		json_both(&o, "", &runs, &next);
	}
	json_engines(boot, loaded, &o);
	for (size_t f = 0; f < CONFIG_FAMILIES; f++)
		json_rows(loaded, &config_families[f], &o);
	json_close(&o, ']');
	json_close(&o, '}');
	cgn_buf_char(out, '\n');
}

static void add_name(struct cgn_buf *out, const char *prefix, const char *name)
{
	cgn_buf_fmt(out, "%s%s%s", out->n > 0 ? ", " : "", prefix, name);
}

void config_needs_restart(const struct config *old_cfg, const struct config *new_cfg, struct cgn_buf *out)
{
	for (size_t i = 0; i < config_globals.n; i++) {
		const struct config_key *k = &config_globals.keys[i];
		if (!k->live && !config_value_same(k, old_cfg, new_cfg))
			add_name(out, "", k->path);
	}
	if (old_cfg->n_engines != new_cfg->n_engines) {
		add_name(out, "", "engines");
		return;
	}
	for (size_t e = 0; e < new_cfg->n_engines; e++) {
		char prefix[40];
		snprintf(prefix, sizeof prefix, "engines.%zu.", e);
		for (size_t i = 0; i < config_engine_keys.n; i++)
			if (!config_value_same(&config_engine_keys.keys[i], &old_cfg->engines[e],
				    &new_cfg->engines[e]))
				add_name(out, prefix, config_engine_keys.keys[i].key);
	}
}
