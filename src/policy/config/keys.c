/* SPDX-License-Identifier: Apache-2.0 */
/* config: the .def tables as data, and the search in them. */
#include "policy/config/config_priv.h"

/* KEY's third column: KIND_##kind turns U32 into KIND_U32 and ENUM(ROLE) into KIND_ENUM(ROLE). */
#define KIND_STR               KEY_STR, NULL
#define KIND_ADDR              KEY_STR, "an address HOST:PORT"
#define KIND_URL               KEY_STR, "a URL"
#define KIND_NAME              KEY_STR, "a name"
#define KIND_PATH              KEY_PATH, NULL
#define KIND_BOOL              KEY_BOOL, NULL
#define KIND_U32               KEY_U32, NULL
#define KIND_F64               KEY_F64, NULL
#define KIND_DUR               KEY_DUR, NULL
#define KIND_SIZE              KEY_SIZE, NULL
#define KIND_LIST              KEY_LIST, NULL
#define KIND_ENUM(enumeration) KEY_ENUM, #enumeration

static const struct config_key global_keys[] = {
#define KEY(section, key, kind, preset, min, max, live, help)                          \
	{#section, #key, #section "." #key, KIND_##kind, preset, min, max, live, help, \
		offsetof(struct config, section.key)},
#include "policy/config/keys.def"
#undef KEY
};

/* An engine is started with its settings, so a change needs a restart; models are looked up at each
 * request. */
static const struct config_key engine_keys[] = {
#define KEY(key, kind, preset, min, max, help)                             \
	{"engine", #key, #key, KIND_##kind, preset, min, max, false, help, \
		offsetof(struct config_engine, key)},
#include "policy/config/engine_keys.def"
#undef KEY
};

static const struct config_key model_keys[] = {
#define KEY(key, kind, preset, min, max, help) \
	{"models", #key, #key, KIND_##kind, preset, min, max, true, help, offsetof(struct config_model, key)},
#include "policy/config/model_keys.def"
#undef KEY
};

static const struct config_key tenant_keys[] = {
#define KEY(key, kind, preset, min, max, help)                             \
	{"tenants", #key, #key, KIND_##kind, preset, min, max, true, help, \
		offsetof(struct config_tenant, key)},
#include "policy/config/tenant_keys.def"
#undef KEY
};

static const struct config_key bmc_keys[] = {
#define KEY(key, kind, preset, min, max, help) \
	{"bmcs", #key, #key, KIND_##kind, preset, min, max, true, help, offsetof(struct config_bmc, key)},
#include "policy/config/bmc_keys.def"
#undef KEY
};

static const struct config_key scrape_target_keys[] = {
#define KEY(key, kind, preset, min, max, help)                                    \
	{"scrape_targets", #key, #key, KIND_##kind, preset, min, max, true, help, \
		offsetof(struct config_scrape_target, key)},
#include "policy/config/scrape_target_keys.def"
#undef KEY
};

static const struct config_key price_keys[] = {
#define KEY(key, kind, preset, min, max, help) \
	{"prices", #key, #key, KIND_##kind, preset, min, max, true, help, offsetof(struct config_price, key)},
#include "policy/config/price_keys.def"
#undef KEY
};

static const struct config_key claim_keys[] = {
#define KEY(key, kind, preset, min, max, help) \
	{"claims", #key, #key, KIND_##kind, preset, min, max, true, help, offsetof(struct config_claim, key)},
#include "policy/config/claim_keys.def"
#undef KEY
};

/* The clients of peers are made at the start. */
static const struct config_key peer_keys[] = {
#define KEY(key, kind, preset, min, max, help) \
	{"peers", #key, #key, KIND_##kind, preset, min, max, false, help, offsetof(struct config_peer, key)},
#include "policy/config/peer_keys.def"
#undef KEY
};

/* The nodes are made at the start. */
static const struct config_key engine_node_keys[] = {
#define KEY(key, kind, preset, min, max, help)                                   \
	{"engine_nodes", #key, #key, KIND_##kind, preset, min, max, false, help, \
		offsetof(struct config_engine_node, key)},
#include "policy/config/engine_node_keys.def"
#undef KEY
};

static const struct config_key inference_pool_keys[] = {
#define KEY(key, kind, preset, min, max, help)                                      \
	{"inference_pools", #key, #key, KIND_##kind, preset, min, max, false, help, \
		offsetof(struct config_inference_pool, key)},
#include "policy/config/inference_pool_keys.def"
#undef KEY
};

/* Connections to sites are made at the start, and what the labels of blocks say of them. */
static const struct config_key kv_site_keys[] = {
#define KEY(key, kind, preset, min, max, help)                               \
	{"kv_sites", #key, #key, KIND_##kind, preset, min, max, false, help, \
		offsetof(struct config_kv_site, key)},
#include "policy/config/kv_site_keys.def"
#undef KEY
};

static const struct config_key role_keys[] = {
#define KEY(key, kind, preset, min, max, help) \
	{"roles", #key, #key, KIND_##kind, preset, min, max, true, help, offsetof(struct config_role, key)},
#include "policy/config/role_keys.def"
#undef KEY
};

const struct config_table config_globals = {global_keys, CGN_COUNT(global_keys)};
const struct config_table config_engine_keys = {engine_keys, CGN_COUNT(engine_keys)};
const struct config_table config_model_keys = {model_keys, CGN_COUNT(model_keys)};
static const struct config_table bmc_table = {bmc_keys, CGN_COUNT(bmc_keys)};
static const struct config_table scrape_target_table = {scrape_target_keys, CGN_COUNT(scrape_target_keys)};
static const struct config_table role_table = {role_keys, CGN_COUNT(role_keys)};
static const struct config_table claim_table = {claim_keys, CGN_COUNT(claim_keys)};
static const struct config_table peer_table = {peer_keys, CGN_COUNT(peer_keys)};
static const struct config_table engine_node_table = {engine_node_keys, CGN_COUNT(engine_node_keys)};
static const struct config_table inference_pool_table = {inference_pool_keys, CGN_COUNT(inference_pool_keys)};
static const struct config_table kv_site_table = {kv_site_keys, CGN_COUNT(kv_site_keys)};
static const struct config_table price_table = {price_keys, CGN_COUNT(price_keys)};
const struct config_table config_tenant_keys = {tenant_keys, CGN_COUNT(tenant_keys)};

const struct config_family config_families[CONFIG_FAMILIES] = {
	[CONFIG_MODELS] = {"models", "model", &config_model_keys, CONFIG_MAX_MODELS, 256,
		sizeof(struct config_model), offsetof(struct config, models),
		offsetof(struct config, n_models)},
	[CONFIG_TENANTS] = {"tenants", "tenant", &config_tenant_keys, CONFIG_MAX_TENANTS, 64,
		sizeof(struct config_tenant), offsetof(struct config, tenants),
		offsetof(struct config, n_tenants)},
	[CONFIG_BMCS] = {"bmcs", "BMC", &bmc_table, CONFIG_MAX_BMCS, 63, sizeof(struct config_bmc),
		offsetof(struct config, bmcs), offsetof(struct config, n_bmcs)},
	[CONFIG_SCRAPE_TARGETS] = {"scrape_targets", "target", &scrape_target_table,
		CONFIG_MAX_SCRAPE_TARGETS, 255, sizeof(struct config_scrape_target),
		offsetof(struct config, scrape_targets), offsetof(struct config, n_scrape_targets)},
	[CONFIG_ROLES] = {"roles", "role", &role_table, CONFIG_MAX_ROLES, 64, sizeof(struct config_role),
		offsetof(struct config, roles), offsetof(struct config, n_roles)},
	[CONFIG_PRICES] = {"prices", "model", &price_table, CONFIG_MAX_MODELS, 256,
		sizeof(struct config_price), offsetof(struct config, prices),
		offsetof(struct config, n_prices)},
	[CONFIG_CLAIMS] = {"claims", "rule", &claim_table, CONFIG_MAX_CLAIMS, 64, sizeof(struct config_claim),
		offsetof(struct config, claims), offsetof(struct config, n_claims)},
	[CONFIG_PEERS] = {"peers", "peer", &peer_table, CONFIG_MAX_PEERS, 40, sizeof(struct config_peer),
		offsetof(struct config, peers), offsetof(struct config, n_peers)},
	[CONFIG_ENGINE_NODES] = {"engine_nodes", "engine", &engine_node_table, CONFIG_MAX_ENGINE_NODES, 128,
		sizeof(struct config_engine_node), offsetof(struct config, engine_nodes),
		offsetof(struct config, n_engine_nodes)},
	[CONFIG_INFERENCE_POOLS] = {"inference_pools", "pool", &inference_pool_table,
		CONFIG_MAX_INFERENCE_POOLS, 253, sizeof(struct config_inference_pool),
		offsetof(struct config, inference_pools), offsetof(struct config, n_inference_pools)},
	[CONFIG_KV_SITES] = {"kv_sites", "site", &kv_site_table, CONFIG_MAX_KV_SITES, 40,
		sizeof(struct config_kv_site), offsetof(struct config, kv_sites),
		offsetof(struct config, n_kv_sites)},
};

static const struct {
	const char *enumeration;
	int value;
	const char *text;
} enum_rows[] = {
#define ENUM_VALUE(enumeration, id, text) {#enumeration, id, text},
#include "policy/config/enums.def"
#undef ENUM_VALUE
};

static const struct {
	const char *alias, *path;
} aliases[] = {
	{"router.listen_http", "router.listen"},
	{"kv.ram_gib", "kv.ram"},
	{"kv.ssd_gib", "kv.ssd"},
};

const struct config_key *config_key_find(const struct config_table *t, struct cgn_str path)
{
	for (size_t i = 0; i < CGN_COUNT(aliases); i++)
		if (t == &config_globals && cgn_str_is(path, aliases[i].alias))
			path = cgn_str_of(aliases[i].path);
	for (size_t i = 0; i < t->n; i++)
		if (cgn_str_is(path, t->keys[i].path))
			return &t->keys[i];
	return NULL;
}

static struct cgn_str last_part(struct cgn_str path)
{
	while (memchr(path.p, '.', path.n) != NULL)
		cgn_str_split(&path, '.');
	return path;
}

const struct config_key *config_key_nearest(const struct config_table *t, struct cgn_str path)
{
	const struct config_key *best = NULL;
	if (path.n == 0)
		return NULL;
	/* A word that shares less than half of its letters is not similar. */
	size_t half = last_part(path).n / 2, most = path.n < 12 ? 3 : path.n / 4;
	size_t least = 1 + (half < most ? half : most);
	for (size_t i = 0; i < t->n; i++) {
		size_t d = cgn_str_distance(path, cgn_str_of(t->keys[i].path), least);
		if (d < least) {
			least = d;
			best = &t->keys[i];
		}
	}
	for (size_t i = 0; best == NULL && i < t->n; i++) /* Accept the right key in the wrong section. */
		if (cgn_str_is(last_part(path), t->keys[i].key))
			best = &t->keys[i];
	return best;
}

bool config_is_section(struct cgn_str path)
{
	for (size_t i = 0; i < config_globals.n; i++) {
		const char *s = config_globals.keys[i].section;
		if (strncmp(s, path.p, path.n) == 0 && (s[path.n] == '\0' || s[path.n] == '.'))
			return true;
	}
	return false;
}

const struct config_family *config_family_find(struct cgn_str section)
{
	for (size_t i = 0; i < CONFIG_FAMILIES; i++)
		if (cgn_str_is(section, config_families[i].section))
			return &config_families[i];
	return NULL;
}

int config_enum_value(const char *enumeration, struct cgn_str text)
{
	for (size_t i = 0; i < CGN_COUNT(enum_rows); i++)
		if (strcmp(enum_rows[i].enumeration, enumeration) == 0 && cgn_str_is(text, enum_rows[i].text))
			return enum_rows[i].value;
	return CONFIG_ENUM_START_;
}

const char *config_enum_text(int value)
{
	for (size_t i = 0; i < CGN_COUNT(enum_rows); i++)
		if (enum_rows[i].value == value)
			return enum_rows[i].text;
	return "?";
}

static void enum_allowed(const char *enumeration, struct cgn_buf *out)
{
	const char *before = "one of ";
	for (size_t i = 0; i < CGN_COUNT(enum_rows); i++) {
		if (strcmp(enum_rows[i].enumeration, enumeration) != 0)
			continue;
		cgn_buf_fmt(out, "%s\"%s\"", before, enum_rows[i].text);
		before = ", ";
	}
}

/* Print bounds in the spelling of the key's values. */
static void put_bounds(const struct config_key *k, struct cgn_buf *out)
{
	struct config_key plain = {.kind = k->kind};
	union {
		cgn_nsec dur;
		uint64_t size;
	} min = {(uint64_t)k->min * (k->kind == KEY_DUR ? CGN_MSEC : 1)},
	  max = {(uint64_t)k->max * (k->kind == KEY_DUR ? CGN_MSEC : 1)};
	cgn_buf_putz(out, " from ");
	config_value_text(&plain, &min, out);
	cgn_buf_putz(out, " to ");
	config_value_text(&plain, &max, out);
}

static void text_allowed(const struct config_key *k, struct cgn_buf *out)
{
	double max = k->max > 0 ? k->max : CONFIG_MAX_TEXT;
	cgn_buf_putz(out, k->enumeration != NULL ? k->enumeration : "a text");
	if (k->min == max)
		cgn_buf_fmt(out, " of %.0f bytes", max);
	else if (k->min > 1)
		cgn_buf_fmt(out, " of %.0f to %.0f bytes", k->min, max);
	else
		cgn_buf_fmt(out, " of at most %.0f bytes%s", max, k->min < 1 ? ", or empty" : "");
}

void config_key_allowed(const struct config_key *k, struct cgn_buf *out)
{
	switch (k->kind) {
	case KEY_STR:
		text_allowed(k, out);
		break;
	case KEY_PATH:
		cgn_buf_putz(out, "a file path");
		break;
	case KEY_BOOL:
		cgn_buf_putz(out, "true or false");
		break;
	case KEY_U32:
		cgn_buf_fmt(out, "a whole number from %.0f to %.0f", k->min, k->max);
		break;
	case KEY_F64:
		cgn_buf_fmt(out, "a number from %g to %g", k->min, k->max);
		break;
	case KEY_DUR:
		cgn_buf_putz(out, "a duration");
		put_bounds(k, out);
		break;
	case KEY_SIZE:
		cgn_buf_putz(out, "a size");
		put_bounds(k, out);
		break;
	case KEY_LIST:
		cgn_buf_fmt(out, "a list of %s%.0f texts", k->min > 0 ? "1 to " : "at most ", k->max);
		break;
	case KEY_ENUM:
		enum_allowed(k->enumeration, out);
		break;
	}
}
