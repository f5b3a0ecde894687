/* SPDX-License-Identifier: Apache-2.0 */
/* pki, inside: what its files share. */
#pragma once
#include <gnutls/abstract.h>
#include <gnutls/x509.h>

#include "io/net/pki/pki.h"

static inline void pki_crt_fini(gnutls_x509_crt_t *c)
{
	if (*c != NULL)
		gnutls_x509_crt_deinit(*c);
}

static inline void pki_key_fini(gnutls_x509_privkey_t *k)
{
	if (*k != NULL)
		gnutls_x509_privkey_deinit(*k);
}

/* View bytes that GnuTLS only reads; its type has no const. A text of more than 2 GiB counts as empty. */
static inline gnutls_datum_t pki_datum(struct cgn_str s)
{
	bool fits = s.p != NULL && s.n <= INT32_MAX;
	return (gnutls_datum_t){(unsigned char *)(uintptr_t)(fits ? s.p : ""), fits ? (unsigned)s.n : 0};
}

/* Translate GnuTLS's result |rc|; |doing| completes "cannot ...". */
CGN_RC pki_gnutls(int rc, const char *doing, struct cgn_err *err);
/* Append a text that GnuTLS has made, and a NUL that is not counted; wipes and frees the text. */
CGN_RC pki_put(struct cgn_buf *b, gnutls_datum_t *take, struct cgn_err *err);
CGN_RC pki_put_key(gnutls_x509_privkey_t key, struct cgn_buf *out, struct cgn_err *err);
CGN_RC pki_read_crt(struct cgn_str pem, gnutls_x509_crt_t *out, struct cgn_err *err);
/* |doing| completes the error, as in pki_gnutls. */
CGN_RC pki_read_key(struct cgn_str pem, const char *doing, gnutls_x509_privkey_t *out, struct cgn_err *err);
/* CGN_INVALID also when the certificate is not an authority's. */
CGN_RC pki_read_ca(const struct pki_pair *ca, gnutls_x509_crt_t *crt, gnutls_x509_privkey_t *key,
	struct cgn_err *err);
CGN_RC pki_new_key(gnutls_x509_privkey_t *out, struct cgn_err *err);
/* As pki_make_leaf, for a key that is not ours. */
CGN_RC pki_sign_public(const struct pki_pair *ca, const char *common_name, const char *const *names,
	struct pki_validity when, gnutls_pubkey_t public, struct cgn_buf *out, struct cgn_err *err);
