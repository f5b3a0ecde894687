/* SPDX-License-Identifier: Apache-2.0 */
/* webclient: an HTTP/1.1 client of one server that settings name by URL, CA file or fingerprint. One loop, its thread. */
#pragma once
#include "base/weburl/weburl.h"
#include "io/wire/http/client.h"
#include "policy/node/engine/engine.h"

struct webclient_cfg {
	const char *url;       /* http[s]://HOST[:PORT][/PATH] */
	const char *ca_file;   /* NULL: the system's authorities */
	const char *cert_file; /* Certificate to show, where the server asks for one; NULL: none. */
	const char *key_file;
	const char *peer_uri, *peer_uri_of; /* As tls_cfg; NULL: any */
	const char *fingerprint;            /* As tls_cfg.pin; NULL: authorities judge */
	/* Made by webclient_tls for several clients, which take references; NULL: the client makes one of the files */
	struct tls_ctx *tls;
	uint32_t max_conns;       /* As http_client_cfg */
	cgn_nsec connect_timeout; /* As http_client_cfg */
	cgn_nsec idle_timeout;    /* As http_client_cfg */
};
/* Check the settings that need neither network nor files. The message names the error. */
CGN_RC webclient_check(const struct webclient_cfg *cfg, struct cgn_err *err);
/* Make the TLS context of a client with the files of |cfg|, which are read now. */
CGN_RC webclient_tls(const struct webclient_cfg *cfg, struct tls_ctx **out, struct cgn_err *err);
/* Make the client; |url| is filled in. Fails as webclient_check does, and for a CA file that cannot be used. */
CGN_RC webclient_open(struct cgn_loop *l, const struct webclient_cfg *cfg, struct weburl *url,
	struct http_client **out, struct cgn_err *err);
