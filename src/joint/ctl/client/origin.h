/* SPDX-License-Identifier: Apache-2.0 */
/* origin: an http_client for an http:// or https:// URL. */
#pragma once
#include "base/core/buf.h"
#include "io/wire/http/client.h"

struct ctl_origin {
	struct http_client *client;
	struct tls_ctx *tls;
	char base[256]; /* Path before /v1, without a trailing slash. */
	char addr[300], authority[300];
	cgn_nsec timeout; /* ctl_origin_get and ctl_origin_post end without a whole answer after this time. */
};
/* Open a client on |l| with the files of |files|; ca_file NULL: the system's CAs. */
CGN_RC ctl_origin_open(struct cgn_loop *l, const char *url, const struct tls_cfg *files, uint32_t max_conns,
	struct ctl_origin *out, struct cgn_err *err);
void ctl_origin_close(struct ctl_origin *o);
/* GET |path| and append the answer, at most 4 MiB, to |body|; runs the loop until the answer is complete.
 * CGN_BAD_GATEWAY for a status other than 200, DEADLINE when it takes longer than |timeout|, TOO_LARGE. */
CGN_RC ctl_origin_get(struct cgn_loop *l, struct ctl_origin *o, const char *path, const char *bearer,
	struct cgn_buf *body, struct cgn_err *err);
/* The same, but POST |payload|. */
CGN_RC ctl_origin_post(struct cgn_loop *l, struct ctl_origin *o, const char *path, const char *bearer,
	struct cgn_str payload, struct cgn_buf *body, struct cgn_err *err);
/* Read the API key in the file |path|, of at most 512 bytes, with a NUL behind it. INVALID: it is empty; or as disk_read_file. */
CGN_RC ctl_origin_key(const char *path, struct cgn_buf *out, struct cgn_err *err);
/* Fill the fields of a request: content-type, and authorization with |bearer|. Returns their number; |fields|
 * has room for 2. */
size_t ctl_origin_fields(const char *bearer, char *authorization, size_t cap, struct http_field *fields);
