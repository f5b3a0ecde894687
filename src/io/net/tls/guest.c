/* SPDX-License-Identifier: Apache-2.0 */
/* guest: a GnuTLS session with a context's identity, for QUIC, which carries the handshake's messages
 * itself. */
#include <stdlib.h>
#include <string.h>

#include <gnutls/crypto.h>

#include "tls_priv.h"

#define TLS_GUEST_TAG 0x71569e57U

struct tls_guest {
	uint32_t tag;
	gnutls_session_t gnutls;
	struct tls_identity *identity;
	char *server_name; /* NULL: this side is the server. */
	gnutls_typed_vdata_st expect[2];
	char alpn[32], peer_name[128];
	char *peer_uris;     /* NULL: none. */
	struct tls_crl *crl; /* NULL: the peer cannot be revoked. */
	unsigned crl_seen;   /* Generation of the lists that the peer was looked for in. */
	bool shaken, judged; /* judged: looked for in the lists at least once. */
};

static int guest_configure(struct tls_guest *g, const struct tls_ctx *c)
{
	gnutls_datum_t alpn = {(unsigned char *)g->alpn, (unsigned)strlen(g->alpn)};
	gnutls_handshake_set_timeout(g->gnutls, GNUTLS_INDEFINITE_TIMEOUT);
	int rc = gnutls_priority_set(g->gnutls, tls_ctx_quic_priority(c));
	if (rc == 0)
		rc = gnutls_credentials_set(g->gnutls, GNUTLS_CRD_CERTIFICATE, g->identity->cred);
	if (rc == 0)
		rc = gnutls_alpn_set_protocols(g->gnutls, &alpn, 1, GNUTLS_ALPN_MANDATORY);
	if (rc == 0 && g->server_name != NULL)
		rc = tls_peer_ask_for(g->gnutls, g->server_name);
	return rc;
}

static CGN_RC guest_fill(struct tls_guest *g, struct tls_ctx *c, const char *alpn, const char *server_name,
	struct cgn_err *err)
{
	g->identity = tls_identity_of(c);
	if (tls_ctx_crl(c) != NULL)
		tls_crl_ref(g->crl = tls_ctx_crl(c));
	if (!cgn_str_copyz(g->alpn, sizeof g->alpn, cgn_str_of(alpn)))
		return CGN_FAIL(err, INVALID, "the protocol's name \"%s\" is too long", alpn);
	g->server_name = cgn_str_dup_maybe(server_name);
	unsigned flags = (server_name == NULL ? GNUTLS_SERVER : GNUTLS_CLIENT) | GNUTLS_NO_TICKETS |
		GNUTLS_NO_SIGNAL | GNUTLS_NONBLOCK;
	int rc = gnutls_init(&g->gnutls, flags);
	if (rc == 0)
		rc = guest_configure(g, c);
	if (rc != 0)
		return CGN_FAIL(err, TLS, "cannot set up TLS: %s", gnutls_strerror(rc));
	tls_peer_expect(g->gnutls, server_name == NULL, g->server_name, g->expect);
	if (server_name == NULL)
		tls_peer_require(g->gnutls);
	return CGN_OK;
}

CGN_RC tls_guest_new(struct tls_ctx *c, const char *alpn, const char *server_name, struct tls_guest **out,
	struct cgn_err *err)
{
	if (!tls_ctx_proves_both(c))
		return CGN_FAIL(err, TLS, "mutual TLS needs a CA file, a certificate and its key");
	CGN_ON_EXIT(tls_guest_free) struct tls_guest *g = CGN_NEW(struct tls_guest);
	g->tag = TLS_GUEST_TAG;
	CGN_TRY(guest_fill(g, c, alpn, server_name, err));
	*out = CGN_TAKE(&g);
	return CGN_OK;
}

void tls_guest_free(struct tls_guest **take)
{
	struct tls_guest *g = CGN_TAKE_LIVE(take, TLS_GUEST_TAG);
	if (g == NULL)
		return;
	if (g->gnutls != NULL)
		gnutls_deinit(g->gnutls);
	tls_identity_unref(&g->identity);
	tls_crl_free(&g->crl);
	free(g->server_name);
	free(g->peer_uris);
	g->tag = 0;
	free(g);
}

struct gnutls_session_int *tls_guest_gnutls(struct tls_guest *g)
{
	CGN_LIVE(g, TLS_GUEST_TAG);
	return g->gnutls;
}

CGN_RC tls_guest_shaken(struct tls_guest *g, struct cgn_err *err)
{
	gnutls_datum_t chosen;
	CGN_LIVE(g, TLS_GUEST_TAG);
	/* GnuTLS' own check accepts a peer that names no protocol at all. */
	if (gnutls_alpn_get_selected_protocol(g->gnutls, &chosen) != 0 ||
		!cgn_str_is((struct cgn_str){(const char *)chosen.data, chosen.size}, g->alpn))
		return CGN_FAIL(err, TLS, "TLS with %s: the peer does not speak %s",
			g->server_name != NULL ? g->server_name : "the client", g->alpn);
	tls_peer_note_name(g->gnutls, g->peer_name, sizeof g->peer_name);
	free(g->peer_uris);
	g->peer_uris = tls_peer_uris_of(g->gnutls);
	g->shaken = true;
	return CGN_OK;
}

CGN_RC tls_guest_recheck(struct tls_guest *g, struct cgn_err *err)
{
	CGN_LIVE(g, TLS_GUEST_TAG);
	if (!g->shaken || g->crl == NULL || (g->judged && tls_crl_generation(g->crl) == g->crl_seen))
		return CGN_OK;
	g->judged = true;
	return tls_crl_judge(g->crl, &g->crl_seen, g->gnutls,
		g->server_name != NULL ? g->server_name : "the client", err);
}

cgn_rc tls_guest_refusal(struct tls_guest *g, int gnutls_error, struct cgn_err *err)
{
	CGN_LIVE(g, TLS_GUEST_TAG);
	if (gnutls_error == GNUTLS_E_NO_APPLICATION_PROTOCOL)
		return CGN_FAIL(err, TLS, "TLS with %s: the peer does not speak %s",
			g->server_name != NULL ? g->server_name : "the client", g->alpn);
	return tls_peer_refusal(g->gnutls, g->server_name, gnutls_error, err);
}

struct cgn_str tls_guest_peer_name(const struct tls_guest *g)
{
	CGN_LIVE(g, TLS_GUEST_TAG);
	return cgn_str_of(g->peer_name);
}

struct cgn_str tls_guest_peer_uris(const struct tls_guest *g)
{
	CGN_LIVE(g, TLS_GUEST_TAG);
	return cgn_str_of(g->peer_uris);
}

bool tls_ctx_secret(struct tls_ctx *c, const char *label, uint8_t out[32])
{
	CGN_ON_EXIT(tls_identity_unref) struct tls_identity *id = tls_identity_of(c);
	return id->valid.to != 0 &&
		gnutls_hmac_fast(GNUTLS_MAC_SHA256, id->seed, sizeof id->seed, label, strlen(label), out) ==
		0;
}
