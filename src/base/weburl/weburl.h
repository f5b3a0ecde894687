/* SPDX-License-Identifier: Apache-2.0 */
/* weburl: the parts of an http:// or https:// URL of a server that is asked: an engine, a store, an identity provider. Pure. */
#pragma once
#include <stdbool.h>

#include "base/core/buf.h"
#include "base/core/err.h"

struct weburl {
	bool tls;
	char addr[300];      /* host:port, always with the port; "[v6]:port" */
	char authority[300]; /* For Host: as |addr|, without the scheme's default port */
	char host[256];      /* Without port and brackets */
	unsigned port;
	char base[256];       /* Path without the final slash; often empty */
	bool base_is_version; /* |base| replaces "/v1" */
};
/* Parse http://host[:port][/base] or https://... CGN_INVALID names the URL and its error. */
CGN_RC weburl_parse(const char *url, struct weburl *out, struct cgn_err *err);
/* Append the path to request. A base that names an API version (a segment such as "v1" or "v1beta", as in an
 * OpenAI base_url) replaces the path's "/v1"; a path that does not begin with /v1 is appended to the base without
 * its version. Any other base is put in front of the path. */
void weburl_path(const struct weburl *u, struct cgn_str path, struct cgn_buf *out);
