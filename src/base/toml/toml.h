/* SPDX-License-Identifier: Apache-2.0 */
/* toml: TOML 1.0 read as a series of visits, each with its place in the file. toml++ is behind toml.cpp,
 * which catches all exceptions. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/err.h"
#include "base/core/str.h"

#define TOML_MAX_BYTES ((size_t)1 << 20)
#define TOML_MAX_DEPTH 16 /* Steps of a path; a deeper document is an error with its place. */

enum toml_type { TOML_TABLE, TOML_ARRAY, TOML_STRING, TOML_INTEGER, TOML_FLOAT, TOML_BOOL, TOML_DATE };

/* A step of a path: a key, or an index into an array when key.p is NULL. */
struct toml_step {
	struct cgn_str key;
	size_t index;
};

struct toml_place {
	unsigned line, column; /* From 1; a column counts code points. */
};

struct toml_node {
	const struct toml_step *path; /* `[[engines]]\nurl = "x"` gives {"engines"}, {0}, {"url"} */
	size_t depth;                 /* Steps in |path|, at least 1. */
	enum toml_type type;
	/* The value of a string; an integer in decimal; the shortest form of a float that reads back, inf or
	 * nan; "true" or "false"; a date as in RFC 3339; else empty. */
	struct cgn_str text;
	size_t n;             /* Members of a table or an array. */
	struct toml_place at; /* The place of the value; of a table: its header or key. */
	/* The place of the last key of the path; for an element of an array the same as |at|. */
	struct toml_place key_at;
};

/* Called for each node; a table or array comes before its members, the members of a table in bytewise order
 * of their keys, elements in order. Everything is borrowed until the call returns. A failure ends the parse
 * and is returned unchanged. */
typedef cgn_rc (*toml_visit_fn)(void *arg, const struct toml_node *node, struct cgn_err *err);

/* Parse |text| and visit every node. No node is visited when the text is not TOML. INVALID:
 * "FILE:LINE:COLUMN: what"; TOO_LARGE: over TOML_MAX_BYTES; or the result of |visit|. Running out of memory
 * ends the program: a configuration is small and read at start or reload. Any thread. */
CGN_RC toml_parse(const char *file_name, struct cgn_str text, toml_visit_fn visit, void *arg,
	struct cgn_err *err);
