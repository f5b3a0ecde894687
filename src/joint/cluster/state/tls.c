/* SPDX-License-Identifier: Apache-2.0 */
/* tls: the TLS contexts of [security] for gRPC between programs. */
#include "io/net/tls/tls.h"
#include "joint/cluster/state/state.h"
#include "policy/config/config.h"

static const char *const alpn[] = {"h2", NULL};

CGN_RC state_tls_server(const struct config *cfg, struct tls_ctx **out, struct cgn_err *err)
{
	const struct tls_cfg tls = {
		.server = true,
		.ca_file = cfg->security.ca_file,
		.cert_file = cfg->security.cert_file,
		.key_file = cfg->security.key_file,
		.crl_file = cfg->security.crl_file,
		.require_peer_cert = cfg->security.require_mtls,
		.alpn = alpn,
	};
	*out = NULL;
	return tls.cert_file != NULL ? tls_ctx_new(&tls, out, err) : CGN_OK;
}

static CGN_RC client_new(const struct config *cfg, const char *role, struct tls_ctx **out,
	struct cgn_err *err)
{
	const struct tls_cfg tls = {
		.peer_uri = role,
		.peer_uri_of = "cognitora://",
		.ca_file = cfg->security.ca_file,
		.cert_file = cfg->security.cert_file,
		.key_file = cfg->security.key_file,
		.crl_file = cfg->security.crl_file,
		.alpn = alpn,
	};
	*out = NULL;
	return tls.ca_file != NULL ? tls_ctx_new(&tls, out, err) : CGN_OK;
}

CGN_RC state_tls_client(const struct config *cfg, struct tls_ctx **out, struct cgn_err *err)
{
	return client_new(cfg, NULL, out, err);
}

CGN_RC state_tls_to_router(const struct config *cfg, struct tls_ctx **out, struct cgn_err *err)
{
	return client_new(cfg, "/router/", out, err);
}
