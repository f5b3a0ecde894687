/* SPDX-License-Identifier: Apache-2.0 */
#include "io/net/pki/request.h"

#include <string.h>

#include <gnutls/crypto.h>

#include "io/net/pki/pki_priv.h"

static void crq_fini(gnutls_x509_crq_t *c)
{
	if (*c != NULL)
		gnutls_x509_crq_deinit(*c);
}

static void pubkey_fini(gnutls_pubkey_t *k)
{
	if (*k != NULL)
		gnutls_pubkey_deinit(*k);
}

/* ---- making ---- */

CGN_RC pki_make_key(struct cgn_buf *out, struct cgn_err *err)
{
	CGN_ON_EXIT(pki_key_fini) gnutls_x509_privkey_t key = NULL;
	CGN_TRY(pki_new_key(&key, err));
	return pki_put_key(key, out, err);
}

CGN_RC pki_make_request(struct cgn_str key, const char *common_name, const char *uri, struct cgn_buf *out,
	struct cgn_err *err)
{
	CGN_ON_EXIT(pki_key_fini) gnutls_x509_privkey_t own = NULL;
	CGN_ON_EXIT(crq_fini) gnutls_x509_crq_t crq = NULL;
	gnutls_datum_t der;
	CGN_TRY(pki_read_key(key, "read the key", &own, err));
	CGN_TRY(pki_gnutls(gnutls_x509_crq_init(&crq), "make a request", err));
	CGN_TRY(pki_gnutls(gnutls_x509_crq_set_version(crq, 1), "make a request", err));
	CGN_TRY(pki_gnutls(gnutls_x509_crq_set_dn_by_oid(crq, GNUTLS_OID_X520_COMMON_NAME, 0, common_name,
				   (unsigned)strlen(common_name)),
		"set the common name", err));
	CGN_TRY(pki_gnutls(gnutls_x509_crq_set_subject_alt_name(crq, GNUTLS_SAN_URI, uri,
				   (unsigned)strlen(uri), GNUTLS_FSAN_SET),
		"set the name", err));
	CGN_TRY(pki_gnutls(gnutls_x509_crq_set_key(crq, own), "set the key", err));
	CGN_TRY(pki_gnutls(gnutls_x509_crq_sign2(crq, own, GNUTLS_DIG_SHA256, 0), "sign the request", err));
	CGN_TRY(pki_gnutls(gnutls_x509_crq_export2(crq, GNUTLS_X509_FMT_DER, &der), "write the request",
		err));
	cgn_buf_add(out, der.data, der.size);
	gnutls_free(der.data);
	return out->bad ? CGN_FAIL(err, NO_MEMORY, "no memory for a request") : CGN_OK;
}

/* ---- reading ---- */

static CGN_RC crq_import(struct cgn_str der, gnutls_x509_crq_t *out, gnutls_pubkey_t *key,
	struct cgn_err *err)
{
	const gnutls_datum_t d = pki_datum(der);
	if (der.n > PKI_MAX_REQUEST || der.n == 0)
		return CGN_FAIL(err, INVALID, "a certificate request has 1 to %zu bytes, not %zu",
			PKI_MAX_REQUEST, der.n);
	CGN_TRY(pki_gnutls(gnutls_x509_crq_init(out), "read a certificate request", err));
	CGN_TRY(pki_gnutls(gnutls_x509_crq_import(*out, &d, GNUTLS_X509_FMT_DER),
		"read a certificate request", err));
	CGN_TRY(pki_gnutls(gnutls_pubkey_init(key), "read the request's key", err));
	CGN_TRY(pki_gnutls(gnutls_pubkey_import_x509_crq(*key, *out, 0), "read the request's key", err));
	return pki_gnutls(gnutls_x509_crq_verify(*out, 0),
		"trust the request: it is not signed by its own key", err);
}

static bool key_is_strong(gnutls_pubkey_t key)
{
	unsigned bits = 0;
	gnutls_ecc_curve_t curve = GNUTLS_ECC_CURVE_INVALID;
	switch (gnutls_pubkey_get_pk_algorithm(key, &bits)) {
	case GNUTLS_PK_RSA:
		return bits >= 2048 && bits <= 8192;
	case GNUTLS_PK_EDDSA_ED25519:
		return true;
	case GNUTLS_PK_ECDSA:
		return gnutls_pubkey_export_ecc_raw2(key, &curve, NULL, NULL, 0) >= 0 &&
			(curve == GNUTLS_ECC_CURVE_SECP256R1 || curve == GNUTLS_ECC_CURVE_SECP384R1 ||
				curve == GNUTLS_ECC_CURVE_SECP521R1);
	default:
		return false;
	}
}

static CGN_RC crq_name(gnutls_x509_crq_t crq, struct pki_request_info *out, struct cgn_err *err)
{
	size_t found = 0;
	for (unsigned i = 0; i < PKI_MAX_NAMES; i++) {
		char name[sizeof out->uri];
		size_t n = sizeof name;
		unsigned type = 0;
		int rc = gnutls_x509_crq_get_subject_alt_name(crq, i, name, &n, &type, NULL);
		if (rc == GNUTLS_E_REQUESTED_DATA_NOT_AVAILABLE)
			break;
		if (rc < 0 || type != GNUTLS_SAN_URI)
			continue;
		if (found++ > 0 || !cgn_str_copyz(out->uri, sizeof out->uri, (struct cgn_str){name, n}) ||
			strlen(out->uri) != n)
			return CGN_FAIL(err, INVALID, "a certificate request has one URI name");
	}
	return found == 1 ? CGN_OK : CGN_FAIL(err, INVALID, "the certificate request has no URI name");
}

static CGN_RC pubkey_hash(gnutls_pubkey_t key, struct sha256 *out, struct cgn_err *err)
{
	gnutls_datum_t der;
	CGN_TRY(pki_gnutls(gnutls_pubkey_export2(key, GNUTLS_X509_FMT_DER, &der), "read the request's key",
		err));
	*out = crypto_sha256((struct cgn_str){(const char *)der.data, der.size});
	gnutls_free(der.data);
	return CGN_OK;
}

CGN_RC pki_request_read(struct cgn_str der, struct pki_request_info *out, struct cgn_err *err)
{
	CGN_ON_EXIT(crq_fini) gnutls_x509_crq_t crq = NULL;
	CGN_ON_EXIT(pubkey_fini) gnutls_pubkey_t key = NULL;
	size_t n = sizeof out->subject;
	*out = (struct pki_request_info){.uri = ""};
	CGN_TRY(crq_import(der, &crq, &key, err));
	if (!key_is_strong(key))
		return CGN_FAIL(err, INVALID,
			"the certificate request's key is of a weak or unknown kind: use EC P-256, Ed25519 or RSA with 2048 bits");
	if (gnutls_x509_crq_get_dn_by_oid(crq, GNUTLS_OID_X520_COMMON_NAME, 0, 0, out->subject, &n) < 0)
		return CGN_FAIL(err, INVALID, "the certificate request has no common name");
	CGN_TRY(crq_name(crq, out, err));
	return pubkey_hash(key, &out->key, err);
}

CGN_RC pki_request_sign(const struct pki_pair *ca, struct cgn_str der, const char *common_name,
	const char *const *names, struct pki_validity when, struct cgn_buf *out, struct cgn_err *err)
{
	CGN_ON_EXIT(crq_fini) gnutls_x509_crq_t crq = NULL;
	CGN_ON_EXIT(pubkey_fini) gnutls_pubkey_t key = NULL;
	CGN_TRY(crq_import(der, &crq, &key, err));
	return pki_sign_public(ca, common_name, names, when, key, out, err);
}

/* ---- certificates ---- */

bool pki_is_pair(struct cgn_str cert, struct cgn_str key)
{
	CGN_ON_EXIT(pki_crt_fini) gnutls_x509_crt_t crt = NULL;
	CGN_ON_EXIT(pki_key_fini) gnutls_x509_privkey_t own = NULL;
	uint8_t a[32], b[32];
	size_t n = sizeof a, m = sizeof b;
	return cgn_ok(pki_read_crt(cert, &crt, NULL)) &&
		cgn_ok(pki_read_key(key, "read the key", &own, NULL)) &&
		gnutls_x509_crt_get_key_id(crt, GNUTLS_KEYID_USE_SHA256, a, &n) == 0 &&
		gnutls_x509_privkey_get_key_id(own, GNUTLS_KEYID_USE_SHA256, b, &m) == 0 && n == m &&
		memcmp(a, b, n) == 0;
}

CGN_RC pki_fingerprint(struct cgn_str pem, struct sha256 *out, struct cgn_err *err)
{
	CGN_ON_EXIT(pki_crt_fini) gnutls_x509_crt_t crt = NULL;
	size_t n = sizeof out->b;
	CGN_TRY(pki_read_crt(pem, &crt, err));
	return pki_gnutls(gnutls_x509_crt_get_fingerprint(crt, GNUTLS_DIG_SHA256, out->b, &n),
		"make the fingerprint", err);
}
