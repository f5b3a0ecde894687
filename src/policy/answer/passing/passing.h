/* SPDX-License-Identifier: Apache-2.0 */
/* passing: routes (router.extra_routes) and header fields (router.pass_headers) that the operator names, and
 * that pass from clients to engines beside those that the gateway knows. Pure. */
#pragma once
#include "base/core/err.h"
#include "base/core/str.h"

struct config;

/* True if |path|, without a query, matches |pattern|: a segment "*" stands for one segment, a last segment "**" for one
 * or more; none of them is empty. */
bool passing_path_matches(struct cgn_str path, const char *pattern);

/* True if |pattern| matches all paths that the pattern |other| matches. */
bool passing_pattern_covers(const char *pattern, struct cgn_str other);

/* Return the part of |path|, without a query, that servers read in different ways, so that one may find
 * another path in it than the router: segments . and .. (with a parameter too), coded slashes, backslashes
 * and control bytes, all of them plain or percent-coded up to PASSING_CODED times, and bytes that are coded
 * more often. NULL: nothing. |slash_is_fine|: coded slashes are allowed. |room|: path.n bytes. */
#define PASSING_CODED 3
const char *passing_path_trick(struct cgn_str path, bool slash_is_fine, char *room);

enum passing_scope { PASSING_CHAT, PASSING_EMBED, PASSING_ADMIN };
struct passing_route {
	const char *method, *path; /* |method|: a literal. |path|: the end of the text that was read. */
	enum passing_scope scope;
};
/* Read "METHOD SCOPE /path" or "METHOD /path", whose scope is chat. CGN_INVALID: |text| is neither, or its
 * path covers one by which engines are administrated, without the scope admin. */
CGN_RC passing_route_read(const char *text, struct passing_route *out, struct cgn_err *err);

/* CGN_INVALID: |name| is not the name of a field in lower case, or one that never passes: of a connection or
 * a body's framing, one whose words say that it carries a credential, or one that the router itself sends.
 * "_" counts as "-". */
CGN_RC passing_header_check(const char *name, struct cgn_err *err);

/* Check the settings. CGN_INVALID: |err| names the key and what it must be. */
CGN_RC passing_check_config(const struct config *c, struct cgn_err *err);
