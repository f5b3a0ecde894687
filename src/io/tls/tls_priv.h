/* SPDX-License-Identifier: Apache-2.0 */
/* tls, inside: the identity that sessions share, and sentences for GnuTLS's findings. */
#pragma once
#include <stdatomic.h>

#include <gnutls/gnutls.h>

#include "io/tls/tls.h"

/* What was read from the files once. Never changes; a reload makes another one. */
struct tls_identity {
	atomic_uint refs;
	gnutls_certificate_credentials_t cred;
	gnutls_datum_t ticket_key; /* goes with the identity: a reload ends the sessions that a withdrawn CA let in */
	uint64_t expiry;
};
struct tls_identity *tls_identity_of(struct tls_ctx *c); /* a reference, for tls_identity_unref */
void tls_identity_unref(struct tls_identity **take);

bool tls_ctx_server(const struct tls_ctx *c);
bool tls_ctx_mutual(const struct tls_ctx *c);
gnutls_priority_t tls_ctx_priority(const struct tls_ctx *c);
const gnutls_datum_t *tls_ctx_alpn(const struct tls_ctx *c, unsigned *n);

/* ---- verdict.c ---- */
/* Why a peer's certificate was refused: "its issuer is unknown". */
const char *tls_verdict_text(unsigned status);
/* Check an own leaf against the wall clock. */
CGN_RC tls_leaf_check(const char *file, const gnutls_datum_t *pem, int64_t now, uint64_t *expiry, struct cgn_err *err);
