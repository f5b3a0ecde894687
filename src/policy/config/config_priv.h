/* SPDX-License-Identifier: Apache-2.0 */
/* config inside: the tables as data, and slots: one key of one object, which every source and every printer works on. */
#pragma once
#include "base/core/arena.h"
#include "base/core/str.h"
#include "policy/config/config.h"

#define CONFIG_MAX_ENGINES 64
#define CONFIG_MAX_MODELS  1024
#define CONFIG_MAX_BYTES   ((size_t)8 << 20) /* of all strings together: a TOML file is at most 1 MiB */
#define CONFIG_MAX_TEXT    4096              /* a text without bounds of its own */

enum key_kind { KEY_STR, KEY_PATH, KEY_BOOL, KEY_U32, KEY_F64, KEY_DUR, KEY_SIZE, KEY_LIST, KEY_ENUM };

struct config_key {
	const char *section, *key,
		*path; /* "router.retry", "attempts", both with a dot; in engines and models path is the key */
	enum key_kind kind;
	const char *enumeration; /* ENUM: as in enums.def */
	const char *preset;      /* default as text; NULL: unset */
	double min, max;
	bool live;
	const char *help;
	size_t offset; /* in struct config, config_engine or config_model */
};
struct config_table {
	const struct config_key *keys;
	size_t n;
};
extern const struct config_table config_globals, config_engine_keys, config_model_keys;

/* One key of one object and where its value came from (NULL: nobody set it). */
struct config_slot {
	const struct config_key *key;
	void *base;
	const char **origin;
};

#define CONFIG_STORE_TAG 0xc0f15703U
struct config_store {
	uint32_t tag;
	struct cgn_arena arena;
	const char **origins;        /* [config_globals.n] */
	const char **engine_origins; /* [CONFIG_MAX_ENGINES][config_engine_keys.n] */
	const char **model_origins;  /* [CONFIG_MAX_MODELS][config_model_keys.n] */
	struct {
		int kind; /* of its [engine.KIND] table; CONFIG_ENUM_START_: it has none */
		const char *place;
	} engine_tables[CONFIG_MAX_ENGINES];
};

/* keys.c */
const struct config_key *config_key_find(const struct config_table *t, struct cgn_str path);
/* The known key that was probably meant; NULL when none is close. */
const struct config_key *config_key_nearest(const struct config_table *t, struct cgn_str path);
bool config_is_section(struct cgn_str path);                         /* "router", "router.retry" */
int config_enum_value(const char *enumeration, struct cgn_str text); /* CONFIG_ENUM_START_: no such value */
void config_key_allowed(const struct config_key *k, struct cgn_buf *out); /* "a whole number from 1 to 16" */

/* value.c: |text| as in the environment, on a command line, or inside TOML's quotes. INVALID without a message: not allowed. */
CGN_RC config_value_set(struct cgn_arena *a, const struct config_slot *s, struct cgn_str text);
CGN_RC config_list_begin(struct cgn_arena *a, const struct config_slot *s, size_t n);
/* Element |i| of the list that was begun. */
CGN_RC config_list_put(struct cgn_arena *a, const struct config_slot *s, size_t i, struct cgn_str text);
/* The value as TOML; false (and nothing written) when unset. */
bool config_value_text(const struct config_key *k, const void *base, struct cgn_buf *out);
void config_put_quoted(struct cgn_buf *out, const char *z);
bool config_text_clean(struct cgn_str s); /* UTF-8 without control characters */
bool config_value_same(const struct config_key *k, const void *one, const void *other);

/* read_toml.c, read_text.c */
CGN_RC config_read_toml(struct config *c, const char *file_name, struct cgn_str toml, struct cgn_err *err);
CGN_RC config_read_env(struct config *c, const char *const *env, struct cgn_err *err);
CGN_RC config_read_flag(struct config *c, const char *flag, struct cgn_err *err);

/* config.c: slots; a new engine or model has the presets. |where| is for the error. */
struct config_slot config_global_slot(const struct config *c, const struct config_key *k);
struct config_slot config_engine_slot(const struct config *c, size_t engine, const struct config_key *k);
struct config_slot config_model_slot(const struct config *c, size_t model, const struct config_key *k);
CGN_RC config_engine_add(struct config *c, const char *where, struct cgn_err *err);
CGN_RC config_model_add(struct config *c, struct cgn_str name, const char *where, struct cgn_err *err);

/* check.c: what no single row can say. */
CGN_RC config_check(struct config *c, struct cgn_err *err);
