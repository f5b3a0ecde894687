/* SPDX-License-Identifier: Apache-2.0 */
/* config: the operator's settings, checked. Sections, keys, bounds, defaults and help come from the .def
 * tables; the TOML path of a key is its field path. Pure: texts in, a struct config out; joint/daemon/svc reads the
 * files. A config is immutable and owns its strings. */
#pragma once
#include <stdbool.h>

#include "base/core/buf.h"
#include "base/core/err.h"

struct config_list {
	const char *const *v;
	size_t n;
};

/* Values of each ENUM kind: enums.def. */
enum config_enum_value {
	CONFIG_ENUM_START_ = -1,
#define ENUM_VALUE(enumeration, id, text) id,
#include "policy/config/enums.def"
#undef ENUM_VALUE
};

struct config_engine;         /* Has one field per row of engine_keys.def. */
struct config_model;          /* Has `const char *name` and one field per row of model_keys.def. */
struct config_tenant;         /* Has `const char *name` and one field per row of tenant_keys.def. */
struct config_scrape_target;  /* The same of scrape_target_keys.def. */
struct config_role;           /* The same of role_keys.def. */
struct config_price;          /* The same of price_keys.def. */
struct config_claim;          /* The same of claim_keys.def. */
struct config_peer;           /* The same of peer_keys.def. */
struct config_engine_node;    /* The same of engine_node_keys.def. */
struct config_inference_pool; /* The same of inference_pool_keys.def. */
struct config_kv_site;        /* The same of kv_site_keys.def. */
struct config_bmc;            /* Has `const char *name` and one field per row of bmc_keys.def. */
/* Fields: cfg->router.listen, cfg->router.retry.attempts, ...; cfg->engines[cfg->n_engines] (empty unless
 * configured), cfg->models[cfg->n_models], cfg->tenants[cfg->n_tenants], cfg->bmcs[cfg->n_bmcs], cfg->scrape_targets[cfg->n_scrape_targets], cfg->roles[cfg->n_roles], cfg->prices[cfg->n_prices], cfg->claims[cfg->n_claims], cfg->peers[cfg->n_peers], cfg->engine_nodes[cfg->n_engine_nodes], cfg->inference_pools[cfg->n_inference_pools], cfg->kv_sites[cfg->n_kv_sites], cfg->any_tenant. Lists end with a
 * NULL behind the last element. */
struct config;
#include "policy/config/config_fields.h"

/* Read a configuration; policy/fleet/settings also checks it by the rules of the rooms. |toml| may be empty. |env| has the shape of environ; COGNITORA__SECTION__KEY=value
 * entries are read, and an unknown such name is an error. |flags| are "section.key=value". Later sources
 * override earlier ones. Lists in |env| and |flags| are "a,b" or as in TOML. CGN_INVALID: the message names
 * file, line, column, key, the allowed values and the nearest known key. CGN_NO_MEMORY. */
CGN_RC config_read(const char *file_name, struct cgn_str toml, const char *const *env,
	const char *const *flags, size_t n_flags, struct config **out, struct cgn_err *err);
void config_free(struct config **take);
/* Print the effective configuration as TOML, with the origin of each value in a comment ("default",
 * "cognitora.toml:12:3", "COGNITORA__ROUTER__LISTEN", "--set router.listen"). It contains no secrets (they
 * are *_file paths). */
void config_print(const struct config *c, struct cgn_buf *out);
/* Print the configuration that runs: keys that a reload applies have the value of |loaded|, others that of |boot|,
 * the start's, followed by a line "# PENDING until restart: KEY = VALUE" where |loaded| has another value. The
 * first line lists the pending keys. */
void config_print_running(const struct config *boot, const struct config *loaded, struct cgn_buf *out);
/* The same as JSON: {"pending": [KEY...], "settings": [{"key", "value", "origin"}, ...]}; a setting that waits for
 * a restart has "pending" and "pending_origin" too. An unset value is null. */
void config_json_running(const struct config *boot, const struct config *loaded, struct cgn_buf *out);
/* List the keys that differ and need a restart, as "router.listen, agent.role"; empty when a reload can apply
 * every change. */
void config_needs_restart(const struct config *old_cfg, const struct config *new_cfg, struct cgn_buf *out);
/* Write docs/reference/configuration.md. */
void config_reference(struct cgn_buf *out);
/* Return |c| of an engine's name as names of its files have it. Two engines whose names become equal are refused. */
char config_file_char(char c);
/* True if the engine is loaded when requests ask for its model, and unloaded for others: agent.max_loaded or agent.memory
 * is set, or its keep_alive. */
bool config_is_on_demand(const struct config *c, const struct config_engine *e);
const struct config_model *config_model_find(const struct config *c,
	const char *name); /* Find a model by name or alias; NULL: unknown. */
/* Does a source set the key |path|, or a key of the section |path| or below it? False: all have their defaults. */
bool config_is_set(const struct config *c, const char *path);
const char *config_enum_text(int value);
/* Parse "250ms", "5s", "2m" or "1h" as DUR keys do; returns false for anything else. */
bool config_duration(struct cgn_str text, cgn_nsec *out);
/* Split an element of peers.NAME.models into our name of the model and the peer's. False: a name is missing. */
bool config_peer_model_read(struct cgn_str text, struct cgn_str *ours, struct cgn_str *theirs);
/* Parse "LEAST-MOST", as of models.NAME.replicas. False: |text| is not that, or the most is 0 or less than the least. */
struct config_replicas {
	uint32_t least, most;
};
bool config_replicas_read(struct cgn_str text, struct config_replicas *out);

/* ---- for the rooms that check their settings ---- */

/* Say where the value of the key |path| comes from: "cognitora.toml:12:3", "COGNITORA__ROUTER__LISTEN", "default". The text
 * lives as long as |c|. The key exists. */
const char *config_origin(const struct config *c, const char *path);
const char *config_engine_origin(const struct config *c, size_t engine, const char *key);
const char *config_model_origin(const struct config *c, size_t model, const char *key);
/* http://... or https://... */
bool config_is_http_url(const char *url);
/* https://, or http:// at an address of this machine. */
bool config_is_safe_url(const char *url);
/* tcp://host:port or ipc:///path; io/wire/zmtp checks again with the system's means. */
bool config_is_zmq_endpoint(const char *text);
/* CGN_INVALID: |url|, the value of the key |path|, is set and is neither http:// nor https://. */
CGN_RC config_check_url(const struct config *c, const char *path, const char *url, struct cgn_err *err);
