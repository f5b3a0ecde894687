/* SPDX-License-Identifier: Apache-2.0 */
/* config: the reference page. Each key links the page that describes it, and each table has an example (pages.def). */
#include "policy/config/config_priv.h"

static const struct {
	const char *beginning, *page;
} pages[] = {
#define PAGE(beginning, page) {beginning, page},
#define EXAMPLE(section, text)
#include "policy/config/pages.def"
#undef PAGE
#undef EXAMPLE
};

static const struct {
	const char *section, *text;
} examples[] = {
#define PAGE(beginning, page)
#define EXAMPLE(section, text) {section, text},
#include "policy/config/pages.def"
#undef PAGE
#undef EXAMPLE
};

/* Return the page of docs/ that describes the key, or NULL. */
static const char *page_of_key(const char *section, const char *key)
{
	char path[160];
	size_t longest = 0;
	const char *page = NULL;
	(void)snprintf(path, sizeof path, "%s.%s", section, key);
	for (size_t i = 0; i < CGN_COUNT(pages); i++) {
		size_t n = strlen(pages[i].beginning);
		if (n <= longest || strncmp(path, pages[i].beginning, n) != 0)
			continue;
		longest = n;
		page = pages[i].page;
	}
	return page;
}

/* Return an example of the table in TOML, or NULL. */
static const char *example_of_table(const char *section)
{
	for (size_t i = 0; i < CGN_COUNT(examples); i++)
		if (strcmp(examples[i].section, section) == 0)
			return examples[i].text;
	return NULL;
}

static void put_default(struct cgn_buf *out, const struct config_key *k)
{
	if (k->preset == NULL)
		cgn_buf_putz(out, "unset");
	else if (k->kind == KEY_LIST && *k->preset == '\0')
		cgn_buf_putz(out, "`[]`");
	else if (k->kind == KEY_BOOL || k->kind == KEY_U32 || k->kind == KEY_F64)
		cgn_buf_fmt(out, "`%s`", k->preset);
	else
		cgn_buf_fmt(out, "`\"%s\"`", k->preset);
}

static void put_row(struct cgn_buf *out, const char *section, const struct config_key *k)
{
	struct cgn_buf allowed = {0};
	const char *page = page_of_key(section, k->key);
	config_key_allowed(k, &allowed);
	if (page != NULL)
		cgn_buf_fmt(out, "| [`%s`](../%s) | ", k->key, page);
	else
		cgn_buf_fmt(out, "| `%s` | ", k->key);
	put_default(out, k);
	cgn_buf_fmt(out, " | %s | %s | %s |\n", cgn_buf_z(&allowed), k->live ? "yes" : "restart", k->help);
	cgn_buf_fini(&allowed);
}

static void put_head(struct cgn_buf *out, const char *section, const char *title)
{
	const char *example = example_of_table(section);
	cgn_buf_fmt(out, "\n## %s\n", title);
	if (example != NULL)
		cgn_buf_fmt(out, "\n```toml\n%s\n```\n", example);
	cgn_buf_putz(out, "\n| key | default | allowed | on SIGHUP | meaning |\n|---|---|---|---|---|\n");
}

static void put_introduction(struct cgn_buf *out)
{
	cgn_buf_putz(out,
		"# Configuration\n\n"
		"Generated from the tables in `src/policy/config/` by `scripts/gen-reference`; do not edit.\n\n"
		"One TOML file can hold the sections of every program: `--config FILE`, else `$CGN_CONFIG`, else\n"
		"`/etc/cognitora/cognitora.toml` if it exists. Later beats earlier: default, file, environment, flag.\n\n"
		"- Environment: `COGNITORA__ROUTER__RETRY__ATTEMPTS=5` sets `router.retry.attempts`; `COGNITORA__ENGINES__0__URL` the first\n"
		"  engine's `url`. Models, tenants, roles, prices, claims, BMCs and scrape targets are set in the file or by flag.\n"
		"- Flag: `--set router.retry.attempts=5`, `--set 'models.\"a.b\".aliases=x,y'`. A list is `a,b`, or `[\"a\", \"b\"]` as in TOML.\n"
		"- Durations are `\"250ms\"`, `\"5s\"`, `\"1m\"`, `\"2h\"`; sizes are bytes or `\"64MiB\"`, `\"8GiB\"`, `\"512KB\"`.\n"
		"- An empty text unsets a key whose default is unset.\n"
		"- `--check` prints the effective configuration with the origin of each value. A key that is unknown, of the wrong type or out\n"
		"  of bounds is an error that names its place. SIGHUP applies the keys marked *yes*; the others are named as needing a restart.\n\n"
		"A key links the page that describes it.\n");
}

void config_reference(struct cgn_buf *out)
{
	put_introduction(out);
	const char *section = "";
	for (size_t i = 0; i < config_globals.n; i++) {
		const struct config_key *k = &config_globals.keys[i];
		char title[80];
		(void)snprintf(title, sizeof title, "`[%s]`", k->section);
		if (strcmp(k->section, section) != 0)
			put_head(out, k->section, title);
		section = k->section;
		put_row(out, section, k);
	}
	put_head(out, "engine", "`[engine]`, or `[[engines]]` for several on one node");
	for (size_t i = 0; i < config_engine_keys.n; i++)
		put_row(out, "engine", &config_engine_keys.keys[i]);
	cgn_buf_putz(out,
		"\nThe keys of an engine may also stand in a table named after its kind: `[engine.llama_cpp]`, `[engine.sglang]`.\n");
	for (size_t f = 0; f < CONFIG_FAMILIES; f++) {
		const struct config_family *family = &config_families[f];
		char title[80];
		(void)snprintf(title, sizeof title, "`[%s.\"NAME\"]`", family->section);
		put_head(out, family->section, title);
		for (size_t i = 0; i < family->keys->n; i++)
			put_row(out, family->section, &family->keys->keys[i]);
	}
}
