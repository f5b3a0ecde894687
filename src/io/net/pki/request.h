/* SPDX-License-Identifier: Apache-2.0 */
/* request: certificate requests (PKCS#10, RFC 2986): a machine makes its key itself and asks for a certificate. */
#pragma once
#include "base/crypto/crypto.h"
#include "io/net/pki/pki.h"

#define PKI_MAX_REQUEST ((size_t)16 << 10) /* Bytes of a request. */

/* Make a new key (PKCS#8, PEM). */
CGN_RC pki_make_key(struct cgn_buf *out, struct cgn_err *err);
/* Make a request (DER) for |key| (PEM) with the subject CN=|common_name| and the URI name |uri|. */
CGN_RC pki_make_request(struct cgn_str key, const char *common_name, const char *uri, struct cgn_buf *out,
	struct cgn_err *err);

struct pki_request_info {
	char subject[256]; /* Common name. */
	char uri[512];     /* The one URI name. */
	struct sha256 key; /* Hash of the public key (SubjectPublicKeyInfo). */
};
/* Read a request (DER) from outside. CGN_INVALID: no request; not signed by its own key; a weak key (RSA below 2048 bits,
 * other curves than P-256, P-384, P-521 and Ed25519); another number of URI names than one. */
CGN_RC pki_request_read(struct cgn_str der, struct pki_request_info *out, struct cgn_err *err);
/* Sign a certificate (PEM) for the request's key. Subject and names are the caller's, as in pki_make_leaf: those of the
 * request do not count. */
CGN_RC pki_request_sign(const struct pki_pair *ca, struct cgn_str der, const char *common_name,
	const char *const *names, struct pki_validity when, struct cgn_buf *out, struct cgn_err *err);
/* Is the certificate (PEM) for the key (PEM)? */
bool pki_is_pair(struct cgn_str cert, struct cgn_str key);
/* Hash the first certificate of a PEM text (its DER). */
CGN_RC pki_fingerprint(struct cgn_str pem, struct sha256 *out, struct cgn_err *err);
