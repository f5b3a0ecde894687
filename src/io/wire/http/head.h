/* SPDX-License-Identifier: Apache-2.0 */
/* head: the head of a request or of an answer. Field names are lower-case everywhere. */
/* http, the room: HTTP/1.1 (llhttp) and HTTP/2 (nghttp2), server and client, with one interface for both. */
#pragma once
#include <stdbool.h>

#include "base/core/str.h"

struct http_field {
	struct cgn_str name, value;
};

struct http_head {
	struct cgn_str method, path, scheme, authority; /* In requests; the path has its query. */
	int status;                                     /* In responses. */
	const struct http_field *fields; /* Without pseudo fields; the host field is in |authority| only. */
	size_t n_fields;
	int64_t content_length; /* -1: unknown. */
	uint8_t version;        /* 10, 11 or 20. */
};
/* Return the first field of that (lower-case) name; {NULL, 0} when absent. */
struct cgn_str http_head_get(const struct http_head *h, const char *name);
/* Return the value of |key| in the query of |path|, not decoded; p is NULL without such a key. */
struct cgn_str http_query_get(struct cgn_str path, const char *key);
/* Return the value of the first cookie of that name (RFC 6265, 4.2.1); {NULL, 0} when absent. */
struct cgn_str http_head_cookie(const struct http_head *h, struct cgn_str name);
/* Is it a hop-by-hop field (connection, transfer-encoding, keep-alive, te, trailer, upgrade, proxy-*)? Such a
 * field belongs to one connection and is never relayed. |name| may be in any case. */
bool http_name_is_hop(struct cgn_str name);
