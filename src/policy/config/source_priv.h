/* SPDX-License-Identifier: Apache-2.0 */
/* config: shared by the readers of TOML and of texts (environment, flags). */
#pragma once
#include "base/toml/toml.h"
#include "policy/config/config_priv.h"

/* Where something was written, for errors and origins: "cognitora.toml:12:3", "COGNITORA__ROUTER__LISTEN",
 * "--set router.listen". */
struct config_where {
	char text[200];
};

/* A foreign text for a sentence: short, and nothing a terminal would obey. */
struct config_where config_shown(struct cgn_str s);
struct config_where config_path_shown(const struct toml_step *steps, size_t n);
const char *config_type_shown(enum toml_type t); /* "a whole number" */
/* INVALID: |t| has no key at the steps from |from| on; says the nearest, or what is known there. */
CGN_RC config_fail_unknown(const struct config_table *t, const char *where, const struct toml_step *steps,
	size_t n, size_t from, struct cgn_err *err);
/* INVALID: key |name| is |value| and must be what |k| allows. */
CGN_RC config_fail_value(const struct config_key *k, const char *where, const char *name, const char *value,
	struct cgn_err *err);
CGN_RC config_fail_memory(const char *where, struct cgn_err *err);
/* Say what is wrong with |text| when |rc| says that something is; else note where the value came from. */
CGN_RC config_settle(struct config *c, const struct config_slot *s, cgn_rc rc, const char *where,
	const char *name, struct cgn_str text, struct cgn_err *err);
/* [engine.KIND] is read like [engine]; that KIND is the engine's kind can only be checked when all sources
 * were read. */
CGN_RC config_note_kind_table(struct config *c, size_t engine, struct cgn_str kind_text, const char *where,
	struct cgn_err *err);
bool config_is_kind(const struct toml_step *s);
bool config_is_gib(const struct toml_step *s);     /* the alias of a SIZE, in GiB */
bool config_is_element(const struct toml_node *n); /* of a list */
/* The key that the steps from |from| on name; a list's element names its list. NULL: there is none. */
const struct config_key *config_key_at(const struct config_table *t, const struct toml_node *n, size_t from);
