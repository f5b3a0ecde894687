/* SPDX-License-Identifier: Apache-2.0 */
/* passing: what passes from clients to engines beside what the gateway knows: routes (router.extra_routes) and header
 * fields (router.pass_headers) that the operator names. Pure. */
#pragma once
#include "base/core/err.h"
#include "base/core/str.h"

/* True if |path|, without a query, matches |pattern|: a segment "*" stands for one segment, a last segment "**" for one
 * or more; none of them is empty. */
bool passing_path_matches(struct cgn_str path, const char *pattern);

enum passing_scope { PASSING_CHAT, PASSING_EMBED, PASSING_ADMIN };
struct passing_route {
	const char *method, *path; /* |method|: a literal. |path|: the end of the text that was read. */
	enum passing_scope scope;
};
/* Read "METHOD SCOPE /path" or "METHOD /path", whose scope is chat. CGN_INVALID: |text| is no such thing, or its path covers
 * one by which engines are administrated, without the scope admin. */
CGN_RC passing_route_read(const char *text, struct passing_route *out, struct cgn_err *err);

/* CGN_INVALID: |name| is no name of a field in lower case, or one that never passes: of a connection or a body's framing, a
 * credential, or one that the router itself sends. */
CGN_RC passing_header_check(const char *name, struct cgn_err *err);
