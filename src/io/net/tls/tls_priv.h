/* SPDX-License-Identifier: Apache-2.0 */
/* tls, inside: the identity that sessions share, and messages for GnuTLS' errors. */
#pragma once
#include <stdatomic.h>

#include <gnutls/gnutls.h>

#include "io/net/tls/crl.h"
#include "io/net/tls/tls.h"

/* Credentials read from the files. Immutable: a reload makes another identity. */
struct tls_identity {
	atomic_uint refs;
	gnutls_certificate_credentials_t cred;
	/* Dropped with the identity, so that a reload ends the sessions that a withdrawn CA had let in. */
	gnutls_datum_t ticket_key;
	struct tls_validity valid; /* Zeros: no certificate. */
	uint8_t seed[32];          /* Derived from the key; the input of tls_ctx_secret. */
};
/* Return a reference; release it with tls_identity_unref. */
struct tls_identity *tls_identity_of(struct tls_ctx *c);
void tls_identity_unref(struct tls_identity **take);

bool tls_ctx_server(const struct tls_ctx *c);
const uint8_t *tls_ctx_pin(const struct tls_ctx *c);      /* NULL: none */
const uint8_t *tls_ctx_ca_pin(const struct tls_ctx *c);   /* NULL: none */
const char *tls_ctx_peer_uri(const struct tls_ctx *c);    /* NULL: any */
const char *tls_ctx_peer_uri_of(const struct tls_ctx *c); /* NULL: always */
bool tls_ctx_mutual(const struct tls_ctx *c);
bool tls_ctx_asks(
	const struct tls_ctx *c); /* A server that asks for a certificate, and serves without one too. */
gnutls_priority_t tls_ctx_priority(const struct tls_ctx *c);
gnutls_priority_t tls_ctx_quic_priority(const struct tls_ctx *c); /* TLS 1.3 only. */
/* Does the context have an identity and authorities of its own? */
bool tls_ctx_proves_both(const struct tls_ctx *c);
/* NULL: there is none. The context keeps it. */
struct tls_crl *tls_ctx_crl(const struct tls_ctx *c);
const gnutls_datum_t *tls_ctx_alpn(const struct tls_ctx *c, unsigned *n);

/* ---- crl.c ---- */
/* Look for the peer's certificates in the lists. CGN_TLS: one is revoked, which is counted and logged. *seen: the
 * generation of the lists that was asked; while tls_crl_generation is the same, the answer is. */
CGN_RC tls_crl_judge(struct tls_crl *c, unsigned *seen, gnutls_session_t s, const char *who,
	struct cgn_err *err);
unsigned tls_crl_generation(const struct tls_crl *c);

/* ---- verdict.c ---- */
/* Return why a peer's certificate was refused: "its issuer is unknown". */
const char *tls_verdict_text(unsigned status);
/* Check our own leaf certificate against the wall clock. */
CGN_RC tls_leaf_check(const char *file, const gnutls_datum_t *pem, int64_t now, struct tls_validity *out,
	struct cgn_err *err);

/* ---- peer.c ---- */
/* Verify within the handshake that the peer is a client (|server|: this side is the server) or a server of
 * that |name|. GnuTLS keeps |expect| and |name| until the handshake is done. */
void tls_peer_expect(gnutls_session_t s, bool server, const char *name, gnutls_typed_vdata_st expect[2]);
/* Client: accept the server with this fingerprint, and no other one. GnuTLS keeps |pin| for the session. */
void tls_peer_pin(gnutls_session_t s, const uint8_t *pin);
/* Client: accept a server whose chain has the authority with this fingerprint, which signed the server's certificate for
 * |expect|. GnuTLS keeps |p| for the session. */
struct tls_ca_pin {
	uint8_t digest[TLS_PIN_BYTES];
	gnutls_typed_vdata_st expect[2];
	unsigned status; /* Verdict on the certificate. */
	bool found;      /* The chain has the authority. */
};
void tls_peer_pin_ca(gnutls_session_t s, struct tls_ca_pin *p);
cgn_rc tls_ca_pin_refusal(const struct tls_ca_pin *p, const char *who, struct cgn_err *err);
/* Describe GNUTLS_E_CERTIFICATE_ERROR of such a session; returns CGN_TLS. */
cgn_rc tls_pin_refusal(gnutls_session_t s, const char *who, struct cgn_err *err);
/* Server: refuse clients without a certificate. */
void tls_peer_require(gnutls_session_t s);
/* Server: ask for a certificate, and refuse one that is not a valid client's. */
void tls_peer_invite(gnutls_session_t s);
int tls_peer_ask_for(gnutls_session_t s, const char *name); /* Client: send SNI if |name| is a host name. */
void tls_peer_note_name(gnutls_session_t s, char *out, size_t cap);
/* Return the URI names of the peer's certificate, with a space between them; free() them. NULL: there are none. */
char *tls_peer_uris_of(gnutls_session_t s);
/* Returns CGN_TLS. |server_name| NULL: the peer is a client. */
cgn_rc tls_peer_refusal(gnutls_session_t s, const char *server_name, int rc, struct cgn_err *err);
