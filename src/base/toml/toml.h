/* SPDX-License-Identifier: Apache-2.0 */
/* toml: TOML 1.0 read into visits, each with the place it was written at. toml++ sits behind toml.cpp; no
 * exception leaves it. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/err.h"
#include "base/core/str.h"

#define TOML_MAX_BYTES ((size_t)1 << 20)
#define TOML_MAX_DEPTH 16 /* steps of a path; deeper is an error with its place */

enum toml_type { TOML_TABLE, TOML_ARRAY, TOML_STRING, TOML_INTEGER, TOML_FLOAT, TOML_BOOL, TOML_DATE };

/* One step of a path: a key, or (key.p == NULL) an index into an array. */
struct toml_step {
	struct cgn_str key;
	size_t index;
};

struct toml_place {
	unsigned line, column; /* 1-based; column counts code points */
};

struct toml_node {
	const struct toml_step *path; /* `[[engines]]\nurl = "x"` gives {"engines"}, {0}, {"url"} */
	size_t depth;                 /* steps in path, at least 1 */
	enum toml_type type;
	/* string: its value; integer: decimal; float: the shortest that reads back, inf, nan; bool: "true",
	 * "false"; date: RFC 3339; else empty */
	struct cgn_str text;
	size_t n;             /* table, array: members */
	struct toml_place at; /* where the value begins; of a table, its header or key */
	/* where the last key of the path begins; for an element of an array the same as |at| */
	struct toml_place key_at;
};

/* Called for each node, a table or array before its members: members of a table in order of their keys
 * (bytewise), elements in order. Everything is borrowed until the call returns. A failure ends the parse and
 * is returned as it is. */
typedef cgn_rc (*toml_visit_fn)(void *arg, const struct toml_node *node, struct cgn_err *err);

/* Parse |text| and visit every node. Nothing is visited when the text is not TOML. INVALID:
 * "FILE:LINE:COLUMN: what"; TOO_LARGE: over TOML_MAX_BYTES; or what |visit| returned. Running out of memory
 * ends the program: a configuration is small and read at start or reload. Any thread. */
CGN_RC toml_parse(const char *file_name, struct cgn_str text, toml_visit_fn visit, void *arg,
	struct cgn_err *err);
