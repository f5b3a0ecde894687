/* SPDX-License-Identifier: Apache-2.0 */
#include "joint/web/webclient/webclient.h"

#include "base/weburl/weburl.h"
#include "io/net/tls/tls.h"

CGN_RC webclient_check(const struct webclient_cfg *cfg, struct cgn_err *err)
{
	struct weburl url;
	uint8_t pin[TLS_PIN_BYTES];
	CGN_TRY(weburl_parse(cfg->url, &url, err));
	if (cfg->fingerprint != NULL && !tls_pin_read(cgn_str_of(cfg->fingerprint), pin))
		return CGN_FAIL(err, INVALID,
			"\"%s\" is not a SHA-256 fingerprint of a certificate: 64 hexadecimal digits",
			cfg->fingerprint);
	if (!url.tls && (cfg->ca_file != NULL || cfg->fingerprint != NULL))
		return CGN_FAIL(err, INVALID,
			"%s has no certificate to check: it does not begin with https://", cfg->url);
	return CGN_OK;
}

CGN_RC webclient_tls(const struct webclient_cfg *cfg, struct tls_ctx **out, struct cgn_err *err)
{
	static const char *const alpn[] = {"http/1.1", NULL};
	const struct tls_cfg tls_cfg = {.ca_file = cfg->ca_file,
		.cert_file = cfg->cert_file,
		.key_file = cfg->key_file,
		.pin = cfg->fingerprint,
		.peer_uri = cfg->peer_uri,
		.peer_uri_of = cfg->peer_uri_of,
		.alpn = alpn};
	return tls_ctx_new(&tls_cfg, out, err);
}

CGN_RC webclient_open(struct cgn_loop *l, const struct webclient_cfg *cfg, struct weburl *url,
	struct http_client **out, struct cgn_err *err)
{
	CGN_ON_EXIT(tls_ctx_free) struct tls_ctx *own = NULL;
	CGN_TRY(webclient_check(cfg, err));
	CGN_TRY(weburl_parse(cfg->url, url, err));
	if (url->tls && cfg->tls == NULL)
		CGN_TRY(webclient_tls(cfg, &own, err));
	const struct http_client_cfg client = {.addr = url->addr,
		.authority = url->authority,
		.server_name = url->host,
		.tls = !url->tls           ? NULL
			: cfg->tls != NULL ? cfg->tls
					   : own,
		.proto = HTTP_1,
		.max_conns = cfg->max_conns,
		.connect_timeout = cfg->connect_timeout,
		.idle_timeout = cfg->idle_timeout};
	return http_client_new(l, &client, out, err);
}
