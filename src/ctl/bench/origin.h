/* SPDX-License-Identifier: Apache-2.0 */
/* origin: an http:// or https:// URL as an http_client on a loop. */
#pragma once
#include "base/core/buf.h"
#include "io/http/http.h"

struct ctl_origin {
	struct http_client *client;
	struct tls_ctx *tls;
	char base[256]; /* path in front of /v1, without a trailing slash */
	char addr[300], authority[300];
};
/* |ca_file| NULL: the system's trust. */
CGN_RC ctl_origin_open(struct cgn_loop *l, const char *url, const char *ca_file, uint32_t max_conns,
	struct ctl_origin *out, struct cgn_err *err);
void ctl_origin_close(struct ctl_origin *o);
/* GET |path|, whole answer into |body| (bounded to 4 MiB); runs the loop until it came. CGN_BAD_GATEWAY for a
 * status other than 200. */
CGN_RC ctl_origin_get(struct cgn_loop *l, struct ctl_origin *o, const char *path, const char *bearer,
	struct cgn_buf *body, struct cgn_err *err);
/* The fields of a request: content-type, and authorization when |bearer|. Returns how many; |fields| has room
 * for 2. */
size_t ctl_origin_fields(const char *bearer, char *authorization, size_t cap, struct http_field *fields);
