/* SPDX-License-Identifier: Apache-2.0 */
#include "io/net/pki/pki.h"

#include <time.h>

#include <arpa/inet.h>
#include <gnutls/crypto.h>
#include <gnutls/x509.h>

#include "base/codec/codec.h"

#include "io/net/pki/pki_priv.h"

#define SERIAL_BYTES 16 /* 127 random bits: unique without a register of issued numbers */

void pki_pair_fini(struct pki_pair *p)
{
	if (p->key.p != NULL)
		gnutls_memset(p->key.p, 0, p->key.cap);
	cgn_buf_fini(&p->key);
	cgn_buf_fini(&p->cert);
}

/* Translate GnuTLS's result; |doing| completes "cannot ...". */
CGN_RC pki_gnutls(int rc, const char *doing, struct cgn_err *err)
{
	if (rc >= 0)
		return CGN_OK;
	if (rc == GNUTLS_E_MEMORY_ERROR)
		return CGN_FAIL(err, NO_MEMORY, "cannot %s: no memory", doing);
	return CGN_FAIL(err, INVALID, "cannot %s: %s", doing, gnutls_strerror(rc));
}

/* ---- texts out ---- */

CGN_RC pki_put(struct cgn_buf *b, gnutls_datum_t *pem, struct cgn_err *err)
{
	cgn_buf_add(b, pem->data, pem->size);
	(void)cgn_buf_z(b);
	gnutls_memset(pem->data, 0, pem->size);
	gnutls_free(pem->data);
	return b->bad ? CGN_FAIL(err, NO_MEMORY, "no memory for a PEM text") : CGN_OK;
}

static CGN_RC crt_put(gnutls_x509_crt_t crt, struct cgn_buf *out, struct cgn_err *err)
{
	gnutls_datum_t pem;
	CGN_TRY(pki_gnutls(gnutls_x509_crt_export2(crt, GNUTLS_X509_FMT_PEM, &pem), "write a certificate",
		err));
	return pki_put(out, &pem, err);
}

/* Write PKCS#8 with the ECPrivateKey of RFC 5915, whose private key has exactly 32 bytes. GnuTLS writes it as a
 * number: 33 bytes where the first bit is set, fewer where it begins with zeros. False: another kind of key. */
#define P256_DER_BYTES 138
static bool p256_der(gnutls_x509_privkey_t key, uint8_t der[P256_DER_BYTES])
{
	static const uint8_t head[] = {0x30, 0x81, 0x87, 0x02, 0x01, 0x00, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86,
		0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07,
		0x04, 0x6d, 0x30, 0x6b, 0x02, 0x01, 0x01, 0x04, 0x20};
	static const uint8_t middle[] = {0xa1, 0x44, 0x03, 0x42, 0x00, 0x04};
	gnutls_ecc_curve_t curve;
	gnutls_datum_t part[3] = {{NULL, 0}}; /* x, y, k */
	if (gnutls_x509_privkey_export_ecc_raw(key, &curve, &part[0], &part[1], &part[2]) < 0)
		return false;
	memset(der, 0, P256_DER_BYTES);
	memcpy(der, head, sizeof head);
	memcpy(der + sizeof head + 32, middle, sizeof middle);
	static const size_t end[3] = {P256_DER_BYTES - 32, P256_DER_BYTES, sizeof head + 32};
	bool fits = curve == GNUTLS_ECC_CURVE_SECP256R1;
	for (size_t i = 0; i < 3; i++) {
		size_t skip = part[i].size > 32 ? part[i].size - 32 : 0, n = part[i].size - skip;
		fits = fits && skip <= 1 && (skip == 0 || part[i].data[0] == 0);
		memcpy(der + end[i] - n, part[i].data + skip, n);
		gnutls_memset(part[i].data, 0, part[i].size);
		gnutls_free(part[i].data);
	}
	return fits;
}

/* PKCS#8, which every tool reads. */
CGN_RC pki_put_key(gnutls_x509_privkey_t key, struct cgn_buf *out, struct cgn_err *err)
{
	gnutls_datum_t pem;
	uint8_t der[P256_DER_BYTES];
	if (p256_der(key, der)) {
		int rc = gnutls_pem_base64_encode2("PRIVATE KEY", &(gnutls_datum_t){der, sizeof der}, &pem);
		gnutls_memset(der, 0, sizeof der);
		CGN_TRY(pki_gnutls(rc, "write a key", err));
		return pki_put(out, &pem, err);
	}
	CGN_TRY(pki_gnutls(gnutls_x509_privkey_export2_pkcs8(key, GNUTLS_X509_FMT_PEM, NULL,
				   GNUTLS_PKCS_PLAIN, &pem),
		"write a key", err));
	return pki_put(out, &pem, err);
}

static CGN_RC export_pair(gnutls_x509_crt_t crt, gnutls_x509_privkey_t key, struct pki_pair *out,
	struct cgn_err *err)
{
	CGN_ON_EXIT(pki_pair_fini) struct pki_pair p = {0};
	CGN_TRY(crt_put(crt, &p.cert, err));
	CGN_TRY(pki_put_key(key, &p.key, err));
	*out = p;
	p = (struct pki_pair){0};
	return CGN_OK;
}

/* ---- making ---- */

CGN_RC pki_new_key(gnutls_x509_privkey_t *out, struct cgn_err *err)
{
	CGN_TRY(pki_gnutls(gnutls_x509_privkey_init(out), "make a key", err));
	unsigned bits = GNUTLS_CURVE_TO_BITS(GNUTLS_ECC_CURVE_SECP256R1);
	return pki_gnutls(gnutls_x509_privkey_generate(*out, GNUTLS_PK_ECDSA, bits, 0), "make a key", err);
}

static int crt_set_serial(gnutls_x509_crt_t crt)
{
	uint8_t serial[SERIAL_BYTES];
	int rc = gnutls_rnd(GNUTLS_RND_NONCE, serial, sizeof serial);
	serial[0] = (uint8_t)((serial[0] & 0x7f) | 0x40); /* positive, and as long as it looks */
	return rc < 0 ? rc : gnutls_x509_crt_set_serial(crt, serial, sizeof serial);
}

/* Set the extension |oid|, also where the certificate has it already, to |id| (at most 64 bytes) as the DER of a
 * key identifier: with |named| of RFC 5280's AuthorityKeyIdentifier, else of SubjectKeyIdentifier. */
static int crt_set_id(gnutls_x509_crt_t crt, const char *oid, bool named, const uint8_t *id, size_t n)
{
	uint8_t der[80] = {0x30, (uint8_t)(n + 2), 0x80, (uint8_t)n};
	size_t skip = named ? 0 : 2;
	if (!named)
		der[2] = 0x04;
	memcpy(der + 4, id, n);
	return gnutls_x509_crt_set_extension_by_oid(crt, oid, der + skip, (unsigned)(n + 4 - skip), 0);
}

static int crt_set_key_id(gnutls_x509_crt_t crt)
{
	uint8_t id[32];
	size_t n = sizeof id;
	int rc = gnutls_x509_crt_get_key_id(crt, 0, id, &n);
	return rc < 0 ? rc : crt_set_id(crt, "2.5.29.14", false, id, n);
}

/* The key that a certificate is for: one of them is NULL. */
struct subject_key {
	gnutls_x509_privkey_t own;
	gnutls_pubkey_t public;
};

/* Set the fields that differ in every certificate that is signed. */
static CGN_RC crt_set_fresh(gnutls_x509_crt_t crt, struct pki_validity when, struct subject_key key,
	struct cgn_err *err)
{
	CGN_TRY(pki_gnutls(gnutls_x509_crt_set_version(crt, 3), "make a certificate", err));
	CGN_TRY(pki_gnutls(crt_set_serial(crt), "draw a serial number", err));
	CGN_TRY(pki_gnutls(gnutls_x509_crt_set_activation_time(crt, (time_t)when.from), "set the first day",
		err));
	CGN_TRY(pki_gnutls(gnutls_x509_crt_set_expiration_time(crt, (time_t)when.to), "set the last day",
		err));
	CGN_TRY(pki_gnutls(key.own != NULL ? gnutls_x509_crt_set_key(crt, key.own)
					   : gnutls_x509_crt_set_pubkey(crt, key.public),
		"set the key", err));
	return pki_gnutls(crt_set_key_id(crt), "set the key id", err);
}

/* Make a certificate with everything that an authority and a leaf have in common. */
static CGN_RC crt_new(const char *cn, struct pki_validity when, struct subject_key key,
	gnutls_x509_crt_t *out, struct cgn_err *err)
{
	size_t n = strlen(cn);
	if (n == 0 || n > 64)
		return CGN_FAIL(err, INVALID, "common name \"%.80s\": 1 to 64 bytes are allowed", cn);
	if (when.from >= when.to)
		return CGN_FAIL(err, INVALID, "certificate for %s: it would end before it begins", cn);
	CGN_TRY(pki_gnutls(gnutls_x509_crt_init(out), "make a certificate", err));
	CGN_TRY(pki_gnutls(gnutls_x509_crt_set_dn_by_oid(*out, GNUTLS_OID_X520_COMMON_NAME, 0, cn,
				   (unsigned)n),
		"set the common name", err));
	return crt_set_fresh(*out, when, key, err);
}

CGN_RC pki_make_ca(const char *common_name, struct pki_validity when, struct pki_pair *out,
	struct cgn_err *err)
{
	CGN_ON_EXIT(pki_key_fini) gnutls_x509_privkey_t key = NULL;
	CGN_ON_EXIT(pki_crt_fini) gnutls_x509_crt_t crt = NULL;
	CGN_TRY(pki_new_key(&key, err));
	CGN_TRY(crt_new(common_name, when, (struct subject_key){.own = key}, &crt, err));
	CGN_TRY(pki_gnutls(gnutls_x509_crt_set_basic_constraints(crt, 1, 0), "make it an authority", err));
	CGN_TRY(pki_gnutls(gnutls_x509_crt_set_key_usage(crt, GNUTLS_KEY_KEY_CERT_SIGN | GNUTLS_KEY_CRL_SIGN),
		"set the usage", err));
	CGN_TRY(pki_gnutls(gnutls_x509_crt_sign2(crt, crt, key, GNUTLS_DIG_SHA256, 0), "sign the authority",
		err));
	return export_pair(crt, key, out, err);
}

static bool is_dns_name(struct cgn_str s)
{
	if (s.n == 0 || s.n > 253 || s.p[0] == '-' || s.p[0] == '.')
		return false;
	if (cgn_str_starts(s, "*."))
		s = (struct cgn_str){s.p + 2, s.n - 2};
	for (size_t i = 0; i < s.n; i++) {
		char c = s.p[i];
		bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
		if (!letter && c != '-' && c != '.')
			return false;
	}
	return s.n > 0;
}

static CGN_RC crt_add_name(gnutls_x509_crt_t crt, const char *name, struct cgn_err *err)
{
	uint8_t ip[16];
	unsigned n = 0;
	if (inet_pton(AF_INET, name, ip) == 1)
		n = 4;
	else if (inet_pton(AF_INET6, name, ip) == 1)
		n = 16;
	if (n > 0)
		return pki_gnutls(gnutls_x509_crt_set_subject_alt_name(crt, GNUTLS_SAN_IPADDRESS, ip, n,
					  GNUTLS_FSAN_APPEND),
			"add an address", err);
	if (strstr(name, "://") != NULL)
		return pki_gnutls(gnutls_x509_crt_set_subject_alt_name(crt, GNUTLS_SAN_URI, name,
					  (unsigned)strlen(name), GNUTLS_FSAN_APPEND),
			"add a URI", err);
	if (!is_dns_name(cgn_str_of(name)))
		return CGN_FAIL(err, INVALID, "\"%.200s\" is neither a DNS name nor an IP address", name);
	return pki_gnutls(gnutls_x509_crt_set_subject_alt_name(crt, GNUTLS_SAN_DNSNAME, name,
				  (unsigned)strlen(name), GNUTLS_FSAN_APPEND),
		"add a name", err);
}

static CGN_RC crt_add_names(gnutls_x509_crt_t crt, const char *const *names, struct cgn_err *err)
{
	for (size_t i = 0; names != NULL && names[i] != NULL; i++) {
		if (i == PKI_MAX_NAMES)
			return CGN_FAIL(err, INVALID, "a certificate takes at most %d names", PKI_MAX_NAMES);
		CGN_TRY(crt_add_name(crt, names[i], err));
	}
	return CGN_OK;
}

CGN_RC pki_read_crt(struct cgn_str pem, gnutls_x509_crt_t *out, struct cgn_err *err)
{
	const gnutls_datum_t d = pki_datum(pem);
	CGN_TRY(pki_gnutls(gnutls_x509_crt_init(out), "read a certificate", err));
	return pki_gnutls(gnutls_x509_crt_import(*out, &d, GNUTLS_X509_FMT_PEM), "read a PEM certificate",
		err);
}

CGN_RC pki_read_key(struct cgn_str pem, const char *doing, gnutls_x509_privkey_t *out, struct cgn_err *err)
{
	const gnutls_datum_t d = pki_datum(pem);
	CGN_TRY(pki_gnutls(gnutls_x509_privkey_init(out), "read a key", err));
	return pki_gnutls(gnutls_x509_privkey_import2(*out, &d, GNUTLS_X509_FMT_PEM, NULL, 0), doing, err);
}

CGN_RC pki_read_ca(const struct pki_pair *ca, gnutls_x509_crt_t *crt, gnutls_x509_privkey_t *key,
	struct cgn_err *err)
{
	CGN_TRY(pki_read_crt(cgn_buf_view(&ca->cert), crt, err));
	CGN_TRY(pki_read_key(cgn_buf_view(&ca->key), "read the authority's key", key, err));
	if (gnutls_x509_crt_get_ca_status(*crt, NULL) <= 0)
		return CGN_FAIL(err, INVALID, "the signing certificate is not an authority's");
	return CGN_OK;
}

static CGN_RC validity_check(struct pki_validity when, gnutls_x509_crt_t ca, struct cgn_err *err)
{
	if (when.from < gnutls_x509_crt_get_activation_time(ca) ||
		when.to > gnutls_x509_crt_get_expiration_time(ca))
		return CGN_FAIL(err, INVALID,
			"the certificate would be valid at a time when its authority is not");
	return CGN_OK;
}

static CGN_RC leaf_set_usage(gnutls_x509_crt_t crt, struct cgn_err *err)
{
	CGN_TRY(pki_gnutls(gnutls_x509_crt_set_basic_constraints(crt, 0, -1), "make it a leaf", err));
	CGN_TRY(pki_gnutls(gnutls_x509_crt_set_key_usage(crt, GNUTLS_KEY_DIGITAL_SIGNATURE), "set the usage",
		err));
	CGN_TRY(pki_gnutls(gnutls_x509_crt_set_key_purpose_oid(crt, GNUTLS_KP_TLS_WWW_SERVER, 0),
		"set the purpose", err));
	return pki_gnutls(gnutls_x509_crt_set_key_purpose_oid(crt, GNUTLS_KP_TLS_WWW_CLIENT, 0),
		"set the purpose", err);
}

static CGN_RC leaf_sign(gnutls_x509_crt_t crt, gnutls_x509_crt_t ca, gnutls_x509_privkey_t ca_key,
	struct cgn_err *err)
{
	uint8_t id[64];
	size_t n = sizeof id;
	if (gnutls_x509_crt_get_subject_key_id(ca, id, &n, NULL) == 0)
		CGN_TRY(pki_gnutls(crt_set_id(crt, "2.5.29.35", true, id, n), "name the authority", err));
	return pki_gnutls(gnutls_x509_crt_sign2(crt, ca, ca_key, GNUTLS_DIG_SHA256, 0),
		"sign the certificate", err);
}

/* Sign a leaf for |key|. The arguments are those of pki_make_leaf. */
static CGN_RC leaf_make(const struct pki_pair *ca, const char *common_name, const char *const *names,
	struct pki_validity when, struct subject_key key, gnutls_x509_crt_t *out, struct cgn_err *err)
{
	CGN_ON_EXIT(pki_key_fini) gnutls_x509_privkey_t ca_key = NULL;
	CGN_ON_EXIT(pki_crt_fini) gnutls_x509_crt_t ca_crt = NULL;
	CGN_TRY(pki_read_ca(ca, &ca_crt, &ca_key, err));
	CGN_TRY(validity_check(when, ca_crt, err));
	CGN_TRY(crt_new(common_name, when, key, out, err));
	CGN_TRY(crt_add_names(*out, names, err));
	CGN_TRY(leaf_set_usage(*out, err));
	return leaf_sign(*out, ca_crt, ca_key, err);
}

CGN_RC pki_make_leaf(const struct pki_pair *ca, const char *common_name, const char *const *names,
	struct pki_validity when, struct pki_pair *out, struct cgn_err *err)
{
	CGN_ON_EXIT(pki_key_fini) gnutls_x509_privkey_t key = NULL;
	CGN_ON_EXIT(pki_crt_fini) gnutls_x509_crt_t crt = NULL;
	CGN_TRY(pki_new_key(&key, err));
	CGN_TRY(leaf_make(ca, common_name, names, when, (struct subject_key){.own = key}, &crt, err));
	return export_pair(crt, key, out, err);
}

CGN_RC pki_sign_public(const struct pki_pair *ca, const char *common_name, const char *const *names,
	struct pki_validity when, gnutls_pubkey_t public, struct cgn_buf *out, struct cgn_err *err)
{
	CGN_ON_EXIT(pki_crt_fini) gnutls_x509_crt_t crt = NULL;
	CGN_TRY(leaf_make(ca, common_name, names, when, (struct subject_key){.public = public}, &crt, err));
	return crt_put(crt, out, err);
}

/* ---- inspecting ---- */

/* Write as many of the bytes as |out| has room for. */
static void hex_write(const uint8_t *p, size_t n, char *out, size_t cap)
{
	struct cgn_buf hex = cgn_buf_over(out, cap);
	size_t most = (cap - 1) / 2;
	hex_put(&hex, (struct cgn_str){(const char *)p, n < most ? n : most});
	(void)cgn_buf_z(&hex);
}

/* Write the common name of the subject or of the issuer; "" when it is absent or too long. */
static void crt_common_name(gnutls_x509_crt_t crt, bool issuer, char *out, size_t cap)
{
	size_t n = cap;
	int rc = issuer
		? gnutls_x509_crt_get_issuer_dn_by_oid(crt, GNUTLS_OID_X520_COMMON_NAME, 0, 0, out, &n)
		: gnutls_x509_crt_get_dn_by_oid(crt, GNUTLS_OID_X520_COMMON_NAME, 0, 0, out, &n);
	if (rc != 0)
		out[0] = '\0';
}

static bool crt_name_at(gnutls_x509_crt_t crt, unsigned i, char *out, size_t cap)
{
	char raw[256];
	size_t n = sizeof raw;
	int type = gnutls_x509_crt_get_subject_alt_name(crt, i, raw, &n, NULL);
	if (type == GNUTLS_SAN_DNSNAME || type == GNUTLS_SAN_URI)
		return cgn_str_copyz(out, cap, (struct cgn_str){raw, n});
	if (type == GNUTLS_SAN_IPADDRESS && (n == 4 || n == 16))
		return inet_ntop(n == 4 ? AF_INET : AF_INET6, raw, out, (socklen_t)cap) != NULL;
	return false; /* another kind of name */
}

static void crt_collect_names(gnutls_x509_crt_t crt, struct pki_info *out)
{
	char probe[256];
	for (unsigned i = 0; out->n_names < PKI_MAX_NAMES; i++) {
		size_t n = sizeof probe;
		if (gnutls_x509_crt_get_subject_alt_name(crt, i, probe, &n, NULL) ==
			GNUTLS_E_REQUESTED_DATA_NOT_AVAILABLE)
			return;
		if (crt_name_at(crt, i, out->names[out->n_names], sizeof out->names[0]))
			out->n_names++;
	}
}

CGN_RC pki_inspect(struct cgn_str pem, struct pki_info *out, struct cgn_err *err)
{
	CGN_ON_EXIT(pki_crt_fini) gnutls_x509_crt_t crt = NULL;
	uint8_t bytes[64];
	size_t n = sizeof bytes;
	*out = (struct pki_info){0};
	CGN_TRY(pki_read_crt(pem, &crt, err));
	crt_common_name(crt, false, out->subject, sizeof out->subject);
	crt_common_name(crt, true, out->issuer, sizeof out->issuer);
	CGN_TRY(pki_gnutls(gnutls_x509_crt_get_serial(crt, bytes, &n), "read the serial number", err));
	hex_write(bytes, n, out->serial, sizeof out->serial);
	n = sizeof bytes;
	CGN_TRY(pki_gnutls(gnutls_x509_crt_get_fingerprint(crt, GNUTLS_DIG_SHA256, bytes, &n),
		"make the fingerprint", err));
	hex_write(bytes, n, out->fingerprint, sizeof out->fingerprint);
	crt_collect_names(crt, out);
	out->when.from = gnutls_x509_crt_get_activation_time(crt);
	out->when.to = gnutls_x509_crt_get_expiration_time(crt);
	out->is_ca = gnutls_x509_crt_get_ca_status(crt, NULL) > 0;
	return CGN_OK;
}

/* ---- renewing ---- */

bool pki_info_has(const struct pki_info *in, const char *name)
{
	for (size_t i = 0; i < in->n_names; i++)
		if (strcmp(in->names[i], name) == 0)
			return true;
	return false;
}

static CGN_RC crt_add_missing(gnutls_x509_crt_t crt, const char *const *names, struct cgn_err *err)
{
	struct pki_info have = {0};
	crt_collect_names(crt, &have);
	size_t n = have.n_names;
	for (size_t i = 0; names != NULL && names[i] != NULL; i++) {
		if (pki_info_has(&have, names[i]))
			continue;
		if (n++ == PKI_MAX_NAMES)
			return CGN_FAIL(err, INVALID, "a certificate takes at most %d names", PKI_MAX_NAMES);
		CGN_TRY(crt_add_name(crt, names[i], err));
	}
	return CGN_OK;
}

CGN_RC pki_renew_leaf(const struct pki_pair *ca, struct cgn_str old, const char *const *more,
	struct pki_validity when, struct pki_pair *out, struct cgn_err *err)
{
	CGN_ON_EXIT(pki_key_fini) gnutls_x509_privkey_t ca_key = NULL, key = NULL;
	CGN_ON_EXIT(pki_crt_fini) gnutls_x509_crt_t ca_crt = NULL, crt = NULL;
	CGN_TRY(pki_read_ca(ca, &ca_crt, &ca_key, err));
	CGN_TRY(validity_check(when, ca_crt, err));
	CGN_TRY(pki_read_crt(old, &crt, err));
	if (gnutls_x509_crt_get_ca_status(crt, NULL) > 0)
		return CGN_FAIL(err, INVALID, "it is an authority's certificate, not a leaf");
	CGN_TRY(crt_add_missing(crt, more, err));
	CGN_TRY(pki_new_key(&key, err));
	CGN_TRY(crt_set_fresh(crt, when, (struct subject_key){.own = key}, err));
	CGN_TRY(leaf_sign(crt, ca_crt, ca_key, err));
	return export_pair(crt, key, out, err);
}
