/* SPDX-License-Identifier: Apache-2.0 */
/* config, inside: the tables as data, and slots: one key of one object, on which every source and every
 * printer works. */
#pragma once
#include "base/core/arena.h"
#include "base/core/str.h"
#include "policy/config/config.h"

#define CONFIG_MAX_ENGINES         64
#define CONFIG_MAX_MODELS          1024
#define CONFIG_MAX_TENANTS         4096
#define CONFIG_MAX_BMCS            1024
#define CONFIG_MAX_SCRAPE_TARGETS  4096
#define CONFIG_MAX_ROLES           56
#define CONFIG_MAX_CLAIMS          256
#define CONFIG_MAX_PEERS           32
#define CONFIG_MAX_ENGINE_NODES    4096
#define CONFIG_MAX_INFERENCE_POOLS 16
#define CONFIG_MAX_KV_SITES        16
/* Bytes of all strings together; a TOML file has at most 1 MiB. */
#define CONFIG_MAX_BYTES ((size_t)8 << 20)
#define CONFIG_MAX_TEXT  4096 /* Bound of texts without their own. */

enum key_kind { KEY_STR, KEY_PATH, KEY_BOOL, KEY_U32, KEY_F64, KEY_DUR, KEY_SIZE, KEY_LIST, KEY_ENUM };

struct config_key {
	/* "router.retry", "attempts", and both with a dot; in engines and named rows the path is the key. */
	const char *section, *key, *path;
	enum key_kind kind;
	/* ENUM: the name in enums.def. STR: the kind of text, such as "an address", or NULL. */
	const char *enumeration;
	const char *preset; /* The default as text; NULL: unset. */
	double min, max;
	bool live;
	const char *help;
	/* The field's offset in struct config, config_engine, config_model, config_tenant or config_bmc. */
	size_t offset;
};
struct config_table {
	const struct config_key *keys;
	size_t n;
};
extern const struct config_table config_globals, config_engine_keys, config_model_keys, config_tenant_keys;

/* Tables of rows with names: [models."NAME"], [tenants."NAME"], [bmcs."NAME"]. A row begins with its name. */
struct config_family {
	const char *section, *noun; /* "models" and "model". */
	const struct config_table *keys;
	size_t max, name_max, row_bytes;
	size_t rows_at, count_at; /* Offsets of the two fields in struct config. */
};
enum config_family_index {
	CONFIG_MODELS,
	CONFIG_TENANTS,
	CONFIG_BMCS,
	CONFIG_SCRAPE_TARGETS,
	CONFIG_ROLES,
	CONFIG_PRICES,
	CONFIG_CLAIMS,
	CONFIG_PEERS,
	CONFIG_ENGINE_NODES,
	CONFIG_INFERENCE_POOLS,
	CONFIG_KV_SITES,
	CONFIG_FAMILIES
};
extern const struct config_family config_families[CONFIG_FAMILIES];

/* A key of an object, and the origin of its value (NULL: not set). */
struct config_slot {
	const struct config_key *key;
	void *base;
	const char **origin;
	bool gib; /* The SIZE is set by its alias in GiB: a number without a unit counts GiB. */
};

#define CONFIG_STORE_TAG 0xc0f15703U
struct config_store {
	uint32_t tag;
	struct cgn_arena arena;
	const char **origins;                      /* [config_globals.n] */
	const char **engine_origins;               /* [CONFIG_MAX_ENGINES][config_engine_keys.n] */
	const char **row_origins[CONFIG_FAMILIES]; /* [family.max][family.keys->n] */
	struct {
		int kind; /* The kind of its [engine.KIND] table; CONFIG_ENUM_START_: it has none. */
		const char *place;
	} engine_tables[CONFIG_MAX_ENGINES];
};

/* keys.c */
const struct config_key *config_key_find(const struct config_table *t, struct cgn_str path);
/* Return the most similar known key; NULL when none is similar. */
const struct config_key *config_key_nearest(const struct config_table *t, struct cgn_str path);
/* Is the path a section, such as "router" or "router.retry"? */
bool config_is_section(struct cgn_str path);
const struct config_family *config_family_find(struct cgn_str section); /* NULL: no such family. */
int config_enum_value(const char *enumeration, struct cgn_str text); /* CONFIG_ENUM_START_: no such value. */
/* Append the allowed values: "a whole number from 1 to 16". */
void config_key_allowed(const struct config_key *k, struct cgn_buf *out);

/* value.c: parse |text| as in the environment, on a command line, or inside TOML's quotes. CGN_INVALID
 * without a message: the value is not allowed. */
CGN_RC config_value_set(struct cgn_arena *a, const struct config_slot *s, struct cgn_str text);
CGN_RC config_list_begin(struct cgn_arena *a, const struct config_slot *s, size_t n);
/* Set element |i| of the list that config_list_begin began. */
CGN_RC config_list_put(struct cgn_arena *a, const struct config_slot *s, size_t i, struct cgn_str text);
/* Append the value as TOML; returns false, with nothing written, when it is unset. */
bool config_value_text(const struct config_key *k, const void *base, struct cgn_buf *out);
void config_put_quoted(struct cgn_buf *out, const char *z);
bool config_text_clean(struct cgn_str s); /* UTF-8 without control characters. */
bool config_value_same(const struct config_key *k, const void *one, const void *other);

/* read_toml.c, read_text.c */
CGN_RC config_read_toml(struct config *c, const char *file_name, struct cgn_str toml, struct cgn_err *err);
CGN_RC config_read_env(struct config *c, const char *const *env, struct cgn_err *err);
CGN_RC config_read_flag(struct config *c, const char *flag, struct cgn_err *err);

/* config.c: slots; a new engine or row has the defaults. |where| is for the error. */
struct config_slot config_global_slot(const struct config *c, const struct config_key *k);
struct config_slot config_engine_slot(const struct config *c, size_t engine, const struct config_key *k);
struct config_slot config_row_slot(const struct config *c, const struct config_family *f, size_t row,
	const struct config_key *k);
size_t config_row_count(const struct config *c, const struct config_family *f);
const char *config_row_name(const struct config *c, const struct config_family *f, size_t row);
CGN_RC config_engine_add(struct config *c, const char *where, struct cgn_err *err);
CGN_RC config_row_add(struct config *c, const struct config_family *f, struct cgn_str name, const char *where,
	struct cgn_err *err);

/* credential.c: replace each path "credential:NAME" by the file NAME in the folder that CREDENTIALS_DIRECTORY of |env|
 * names. */
CGN_RC config_credentials(struct config *c, const char *const *env, struct cgn_err *err);

/* check.c: the checks that no single row can express. */
CGN_RC config_check(const struct config *c, struct cgn_err *err);
