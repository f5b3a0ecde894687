/* SPDX-License-Identifier: Apache-2.0 */
/* config: what an operator wrote, checked. Sections, keys, bounds, defaults and help come from the .def
 * tables; the TOML path of a key is its field path. Pure: texts in, a struct config out; joint/svc reads the
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

struct config_engine; /* one field per row of engine_keys.def */
struct config_model;  /* `const char *name` and one field per row of model_keys.def */
struct config_tenant; /* the same of tenant_keys.def */
/* cfg->router.listen, cfg->router.retry.attempts, ...; cfg->engines[cfg->n_engines] (none unless configured),
 * cfg->models[cfg->n_models], cfg->tenants[cfg->n_tenants], cfg->any_tenant; lists end with a NULL beyond
 * their last */
struct config;
#include "policy/config/config_fields.h"

/* |toml| may be empty. |env| is environ-shaped (COGNITORA__SECTION__KEY=value are read; an unknown such name
 * is an error). |flags| are "section.key=value". Later beats earlier. Errors name file, line, column, key,
 * what is allowed and the nearest known key. INVALID: what was written; NO_MEMORY. Lists in |env| and |flags|
 * are "a,b" or as in TOML. */
CGN_RC config_load(const char *file_name, struct cgn_str toml, const char *const *env,
	const char *const *flags, size_t n_flags, struct config **out, struct cgn_err *err);
void config_free(struct config **take);
/* The effective configuration as TOML with the origin of each value in a comment ("default",
 * "cognitora.toml:12:3", "COGNITORA__ROUTER__LISTEN", "--set router.listen"); secrets are never in it (they
 * are *_file paths). */
void config_print(const struct config *c, struct cgn_buf *out);
/* Keys that differ and need a restart, as "router.listen, agent.role"; empty when a reload can apply
 * everything. */
void config_needs_restart(const struct config *old_cfg, const struct config *new_cfg, struct cgn_buf *out);
/* docs/reference/configuration.md */
void config_reference(struct cgn_buf *out);
const struct config_model *config_model_find(const struct config *c,
	const char *name); /* by name or alias; NULL */
const char *config_enum_text(int value);
/* "250ms", "5s", "2m", "1h", as DUR keys take it; false on anything else. */
bool config_duration(struct cgn_str text, cgn_nsec *out);
