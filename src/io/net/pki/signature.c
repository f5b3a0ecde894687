/* SPDX-License-Identifier: Apache-2.0 */
#include "io/net/pki/signature.h"

#include <gnutls/crypto.h>

#include "io/net/pki/pki_priv.h"

#define P256_BYTES    32
#define ED25519_BYTES 64 /* A signature has as many. */

static gnutls_datum_t datum_of(struct cgn_str s)
{
	return (gnutls_datum_t){(unsigned char *)(uintptr_t)s.p,
		(unsigned)s.n}; /* GnuTLS does not write to it. */
}

static void public_fini(gnutls_pubkey_t *k)
{
	if (*k != NULL)
		gnutls_pubkey_deinit(*k);
}

static CGN_RC key_import(enum pki_scheme scheme, const struct pki_numbers *key, gnutls_pubkey_t to,
	struct cgn_err *err)
{
	gnutls_datum_t m = datum_of(key->modulus), e = datum_of(key->exponent), x = datum_of(key->x),
		       y = datum_of(key->y);
	int rc = scheme == PKI_RS256  ? gnutls_pubkey_import_rsa_raw(to, &m, &e)
		: scheme == PKI_ES256 ? gnutls_pubkey_import_ecc_raw(to, GNUTLS_ECC_CURVE_SECP256R1, &x, &y)
				      : gnutls_pubkey_import_ecc_raw(to, GNUTLS_ECC_CURVE_ED25519, &x, NULL);
	if (rc < 0)
		return CGN_FAIL(err, INVALID, "the numbers of a public key do not make a key: %s",
			gnutls_strerror(rc));
	return CGN_OK;
}

static int signature_verify(gnutls_pubkey_t key, gnutls_sign_algorithm_t algorithm, struct cgn_str text,
	gnutls_datum_t signature)
{
	gnutls_datum_t data = datum_of(text);
	return gnutls_pubkey_verify_data2(key, algorithm, 0, &data, &signature);
}

/* GnuTLS wants R and S in the form of certificates. */
static int pair_verify(gnutls_pubkey_t key, struct cgn_str text, struct cgn_str signature)
{
	gnutls_datum_t r = datum_of((struct cgn_str){signature.p, P256_BYTES}),
		       s = datum_of((struct cgn_str){signature.p + P256_BYTES, P256_BYTES}), der;
	int rc = gnutls_encode_rs_value(&der, &r, &s);
	if (rc < 0)
		return rc;
	rc = signature_verify(key, GNUTLS_SIGN_ECDSA_SHA256, text, der);
	gnutls_free(der.data);
	return rc;
}

CGN_RC pki_signature_check(enum pki_scheme scheme, const struct pki_numbers *key, struct cgn_str text,
	struct cgn_str signature, struct cgn_err *err)
{
	CGN_ON_EXIT(public_fini) gnutls_pubkey_t public = NULL;
	int rc = gnutls_pubkey_init(&public);
	if (rc < 0)
		return pki_gnutls(rc, "check a signature", err);
	CGN_TRY(key_import(scheme, key, public, err));
	rc = GNUTLS_E_PK_SIG_VERIFY_FAILED;
	if (scheme == PKI_RS256)
		rc = signature_verify(public, GNUTLS_SIGN_RSA_SHA256, text, datum_of(signature));
	else if (scheme == PKI_ES256 && signature.n == 2 * P256_BYTES)
		rc = pair_verify(public, text, signature);
	else if (scheme == PKI_EDDSA && signature.n == ED25519_BYTES)
		rc = signature_verify(public, GNUTLS_SIGN_EDDSA_ED25519, text, datum_of(signature));
	return rc < 0 ? CGN_FAIL(err, UNAUTHENTICATED, "the signature is wrong") : CGN_OK;
}
