/* SPDX-License-Identifier: Apache-2.0 */
/* config: shared by the readers of TOML and of texts (environment, flags). */
#pragma once
#include "base/toml/toml.h"
#include "policy/config/config_priv.h"

/* The place of a value, for errors and origins: "cognitora.toml:12:3", "COGNITORA__ROUTER__LISTEN", "--set
 * router.listen". */
struct config_where {
	char text[200];
};

/* Prepare a foreign text for a message: short, without terminal control characters. */
struct config_where config_shown(struct cgn_str s);
struct config_where config_path_shown(const struct toml_step *steps, size_t n);
const char *config_type_shown(enum toml_type t); /* For example "a whole number". */
/* CGN_INVALID: |t| has no key at the steps from |from| on; the message has the nearest key, or the keys of
 * that section. */
CGN_RC config_fail_unknown(const struct config_table *t, const char *where, const struct toml_step *steps,
	size_t n, size_t from, struct cgn_err *err);
/* CGN_INVALID: the value |value| of key |name| is not what |k| allows. */
CGN_RC config_fail_value(const struct config_key *k, const char *where, const char *name, const char *value,
	struct cgn_err *err);
CGN_RC config_fail_memory(const char *where, struct cgn_err *err);
/* If |rc| is a failure, report the error in |text|; otherwise note the origin of the value. */
CGN_RC config_settle(struct config *c, const struct config_slot *s, cgn_rc rc, const char *where,
	const char *name, struct cgn_str text, struct cgn_err *err);
/* [engine.KIND] is read like [engine]. Whether KIND is the engine's kind can be checked only after all
 * sources were read. */
CGN_RC config_note_kind_table(struct config *c, size_t engine, struct cgn_str kind_text, const char *where,
	struct cgn_err *err);
bool config_is_kind(const struct toml_step *s);
bool config_is_gib(const struct toml_step *s);     /* Is it the alias of a SIZE in GiB? */
bool config_is_element(const struct toml_node *n); /* Is the node an element of a list? */
/* Return the key that the steps from |from| on name (for a list's element, the list); NULL: unknown. */
const struct config_key *config_key_at(const struct config_table *t, const struct toml_node *n, size_t from);
