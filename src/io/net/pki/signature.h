/* SPDX-License-Identifier: Apache-2.0 */
/* signature: check signatures of texts by public keys that come as numbers, as in tokens of identity providers
 * (RFC 7518, RFC 8037). Any thread. */
#pragma once
#include "base/core/err.h"
#include "base/core/str.h"

enum pki_scheme {
	PKI_RS256, /* RSASSA-PKCS1-v1_5 with SHA-256. */
	PKI_ES256, /* ECDSA on P-256 with SHA-256; the signature is R and S, 32 bytes each. */
	PKI_EDDSA  /* Ed25519; the signature has 64 bytes. */
};
/* A public key. Numbers begin with their highest byte; what a scheme does not need is empty. */
struct pki_numbers {
	struct cgn_str modulus, exponent; /* PKI_RS256 */
	struct cgn_str x, y; /* PKI_ES256; PKI_EDDSA has x only: the key as RFC 8032 encodes it. */
};
/* Is |signature| one of |text| by that key? CGN_UNAUTHENTICATED: it is not. CGN_INVALID: the numbers do not
 * make a key of that scheme. */
CGN_RC pki_signature_check(enum pki_scheme scheme, const struct pki_numbers *key, struct cgn_str text,
	struct cgn_str signature, struct cgn_err *err);
