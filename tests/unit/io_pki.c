/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <gnutls/x509.h>

#include "base/codec/codec.h"
#include "io/net/pki/bundle.h"
#include "io/net/pki/crl.h"
#include "io/net/pki/pki.h"
#include "io/net/pki/request.h"
#include "io/net/pki/signature.h"

#define NOW  ((int64_t)1700000000)
#define YEAR ((int64_t)365 * 86400)
static const struct pki_validity ten_years = {NOW, NOW + 10 * YEAR};
static const struct pki_validity one_year = {NOW, NOW + YEAR};

static struct pki_pair ca;

static int make_ca(void **state)
{
	(void)state;
	return cgn_ok(pki_make_ca("cognitora test CA", ten_years, &ca, NULL)) ? 0 : -1;
}

static int drop_ca(void **state)
{
	(void)state;
	pki_pair_fini(&ca);
	return 0;
}

static void an_authority_says_what_it_is(void **state)
{
	(void)state;
	struct pki_info in;
	assert_true(cgn_ok(pki_inspect(cgn_buf_view(&ca.cert), &in, NULL)));
	assert_string_equal(in.subject, "cognitora test CA");
	assert_string_equal(in.issuer, "cognitora test CA");
	assert_true(in.is_ca);
	assert_int_equal(in.n_names, 0);
	assert_true(in.when.from == NOW && in.when.to == NOW + 10 * YEAR);
	assert_int_equal(strlen(in.serial), 32);
	assert_int_equal(strlen(in.fingerprint), 64);
	assert_non_null(strstr(ca.key.p, "BEGIN PRIVATE KEY"));
}

/* RFC 5915: a key of P-256 has 32 bytes, whatever its first bits are; some of 400 begin with a zero byte. */
static void a_private_key_has_32_bytes(void **state)
{
	(void)state;
	size_t zeros = 0;
	for (size_t i = 0; i < 400; i++) {
		struct pki_pair p;
		gnutls_x509_privkey_t key;
		gnutls_x509_crt_t crt;
		gnutls_datum_t der;
		uint8_t of_key[32], of_crt[32];
		size_t n = sizeof of_key, m = sizeof of_crt;
		assert_true(cgn_ok(pki_make_ca("a", one_year, &p, NULL)));
		const gnutls_datum_t pem = {(unsigned char *)p.key.p, (unsigned)p.key.n},
				     cert = {(unsigned char *)p.cert.p, (unsigned)p.cert.n};
		assert_int_equal(gnutls_pem_base64_decode2("PRIVATE KEY", &pem, &der), 0);
		assert_int_equal(der.size, 138);
		assert_true(der.data[34] == 0x04 && der.data[35] == 32);
		zeros += der.data[36] == 0;
		assert_int_equal(gnutls_x509_privkey_init(&key), 0);
		assert_int_equal(gnutls_x509_privkey_import(key, &der, GNUTLS_X509_FMT_DER), 0);
		assert_int_equal(gnutls_x509_privkey_get_key_id(key, GNUTLS_KEYID_USE_SHA256, of_key, &n), 0);
		assert_int_equal(gnutls_x509_crt_init(&crt), 0);
		assert_int_equal(gnutls_x509_crt_import(crt, &cert, GNUTLS_X509_FMT_PEM), 0);
		assert_int_equal(gnutls_x509_crt_get_key_id(crt, GNUTLS_KEYID_USE_SHA256, of_crt, &m), 0);
		assert_memory_equal(of_key, of_crt, sizeof of_key);
		gnutls_x509_crt_deinit(crt);
		gnutls_x509_privkey_deinit(key);
		gnutls_free(der.data);
		pki_pair_fini(&p);
	}
	assert_true(zeros < 20);
}

static void crt_import(const struct cgn_buf *pem, gnutls_x509_crt_t *out)
{
	const gnutls_datum_t d = {(unsigned char *)pem->p, (unsigned)pem->n};
	assert_int_equal(gnutls_x509_crt_init(out), 0);
	assert_int_equal(gnutls_x509_crt_import(*out, &d, GNUTLS_X509_FMT_PEM), 0);
}

static bool is_signed_by(const struct cgn_buf *leaf_pem, const struct cgn_buf *ca_pem)
{
	gnutls_x509_crt_t leaf, authority;
	unsigned status = 0;
	crt_import(leaf_pem, &leaf);
	crt_import(ca_pem, &authority);
	assert_int_equal(gnutls_x509_crt_list_verify(&leaf, 1, &authority, 1, NULL, 0,
				 GNUTLS_VERIFY_DISABLE_TIME_CHECKS |
					 GNUTLS_VERIFY_DISABLE_TRUSTED_TIME_CHECKS,
				 &status),
		0);
	gnutls_x509_crt_deinit(leaf);
	gnutls_x509_crt_deinit(authority);
	return status == 0;
}

static void a_leaf_carries_names_and_the_authority_signed_it(void **state)
{
	(void)state;
	static const char *const names[] = {"node-1.example", "*.pods.example", "127.0.0.1", "::1", NULL};
	struct pki_pair leaf = {0}, other = {0};
	struct pki_info in, again;
	assert_true(cgn_ok(pki_make_leaf(&ca, "node-1", names, one_year, &leaf, NULL)));
	assert_true(cgn_ok(pki_inspect(cgn_buf_view(&leaf.cert), &in, NULL)));
	assert_string_equal(in.subject, "node-1");
	assert_string_equal(in.issuer, "cognitora test CA");
	assert_false(in.is_ca);
	assert_int_equal(in.n_names, 4);
	for (size_t i = 0; i < 4; i++)
		assert_string_equal(in.names[i], names[i]);
	assert_true(in.when.to == one_year.to);
	assert_true(is_signed_by(&leaf.cert, &ca.cert));
	/* Same name, other key: not the same authority. */
	assert_true(cgn_ok(pki_make_ca("cognitora test CA", ten_years, &other, NULL)));
	assert_false(is_signed_by(&leaf.cert, &other.cert));
	pki_pair_fini(&other);
	assert_true(cgn_ok(pki_make_leaf(&ca, "node-1", names, one_year, &other, NULL)));
	assert_true(cgn_ok(pki_inspect(cgn_buf_view(&other.cert), &again, NULL)));
	assert_string_not_equal(in.serial, again.serial);
	assert_string_not_equal(leaf.key.p, other.key.p);
	pki_pair_fini(&leaf);
	pki_pair_fini(&other);
}

/* Verifiers find the issuer of a certificate by these ids. */
static void the_key_ids_name_the_authority(const struct cgn_buf *leaf_pem)
{
	gnutls_x509_crt_t leaf, authority;
	uint8_t own[64], issuers[64], its[64];
	size_t own_n = sizeof own, issuers_n = sizeof issuers, its_n = sizeof its;
	crt_import(leaf_pem, &leaf);
	crt_import(&ca.cert, &authority);
	assert_int_equal(gnutls_x509_crt_get_subject_key_id(leaf, own, &own_n, NULL), 0);
	assert_int_equal(gnutls_x509_crt_get_authority_key_id(leaf, issuers, &issuers_n, NULL), 0);
	assert_int_equal(gnutls_x509_crt_get_subject_key_id(authority, its, &its_n, NULL), 0);
	assert_int_equal(issuers_n, its_n);
	assert_memory_equal(issuers, its, its_n);
	assert_true(own_n > 0 && (own_n != its_n || memcmp(own, its, its_n) != 0));
	gnutls_x509_crt_deinit(leaf);
	gnutls_x509_crt_deinit(authority);
}

static void a_renewed_leaf_keeps_its_names(void **state)
{
	(void)state;
	static const char *const names[] = {"node-1.example", "127.0.0.1", NULL};
	static const char *const more[] = {"127.0.0.1", "::1", "node-1.example", NULL};
	static const char *const want[] = {"node-1.example", "127.0.0.1", "::1"};
	const struct pki_validity later = {one_year.from + 60, one_year.to + 60};
	struct pki_pair old = {0}, renewed = {0};
	struct pki_info was, is;
	struct cgn_err err = {0};
	assert_true(cgn_ok(pki_make_leaf(&ca, "node-1", names, one_year, &old, NULL)));
	the_key_ids_name_the_authority(&old.cert);
	assert_true(cgn_ok(pki_renew_leaf(&ca, cgn_buf_view(&old.cert), more, later, &renewed, NULL)));
	the_key_ids_name_the_authority(&renewed.cert);
	assert_true(is_signed_by(&renewed.cert, &ca.cert));
	assert_true(cgn_ok(pki_inspect(cgn_buf_view(&old.cert), &was, NULL)));
	assert_true(cgn_ok(pki_inspect(cgn_buf_view(&renewed.cert), &is, NULL)));
	assert_string_equal(is.subject, "node-1");
	assert_int_equal(is.n_names, CGN_COUNT(want));
	for (size_t i = 0; i < CGN_COUNT(want); i++)
		assert_string_equal(is.names[i], want[i]);
	assert_true(is.when.from == later.from && is.when.to == later.to);
	assert_string_not_equal(is.serial, was.serial);
	assert_string_not_equal(renewed.key.p, old.key.p);
	pki_pair_fini(&renewed);
	assert_int_equal(pki_renew_leaf(&ca, cgn_buf_view(&ca.cert), NULL, later, &renewed, &err).code,
		CGN_INVALID);
	assert_int_equal(pki_renew_leaf(&ca, CGN_STR("no certificate"), NULL, later, &renewed, &err).code,
		CGN_INVALID);
	pki_pair_fini(&old);
}

static void refuse_leaf(const char *cn, const char *name, struct pki_validity when, const char *expect)
{
	struct pki_pair leaf = {0};
	struct cgn_err err = {0};
	const char *names[] = {name, NULL};
	assert_int_equal(pki_make_leaf(&ca, cn, names, when, &leaf, &err).code, CGN_INVALID);
	assert_null(leaf.cert.p);
	assert_non_null(strstr(err.msg, expect));
}

static void what_makes_no_sense_is_refused(void **state)
{
	(void)state;
	refuse_leaf("", "a.example", one_year, "common name");
	refuse_leaf("a-name-that-is-longer-than-the-sixty-four-bytes-that-x509-gives-it", "a", one_year,
		"common name");
	refuse_leaf("n", "", one_year, "neither a DNS name");
	refuse_leaf("n", "a b", one_year, "\"a b\"");
	refuse_leaf("n", "*.", one_year, "neither a DNS name");
	refuse_leaf("n", "-a", one_year, "neither a DNS name");
	refuse_leaf("n", "*.a_", one_year, "neither a DNS name");
	refuse_leaf("n", "a.example", (struct pki_validity){NOW, NOW}, "end before");
	refuse_leaf("n", "a.example", (struct pki_validity){NOW, NOW + 11 * YEAR}, "authority is not");
	refuse_leaf("n", "a.example", (struct pki_validity){NOW - 1, NOW + YEAR}, "authority is not");
}

static void too_many_names_are_refused(void **state)
{
	(void)state;
	const char *names[PKI_MAX_NAMES + 2] = {NULL};
	struct pki_pair leaf = {0};
	struct cgn_err err = {0};
	for (size_t i = 0; i <= PKI_MAX_NAMES; i++)
		names[i] = "a.example";
	assert_int_equal(pki_make_leaf(&ca, "n", names, one_year, &leaf, &err).code, CGN_INVALID);
	names[PKI_MAX_NAMES] = NULL;
	assert_true(cgn_ok(pki_make_leaf(&ca, "n", names, one_year, &leaf, &err)));
	pki_pair_fini(&leaf);
}

static void a_leaf_signs_nothing(void **state)
{
	(void)state;
	struct pki_pair leaf = {0}, child = {0};
	struct cgn_err err = {0};
	assert_true(cgn_ok(pki_make_leaf(&ca, "node", NULL, one_year, &leaf, NULL)));
	assert_int_equal(pki_make_leaf(&leaf, "child", NULL, one_year, &child, &err).code, CGN_INVALID);
	assert_non_null(strstr(err.msg, "is not an authority's"));
	pki_pair_fini(&leaf);
}

static void garbage_is_no_certificate(void **state)
{
	(void)state;
	struct pki_info in;
	struct cgn_err err = {0};
	struct pki_pair bad = {0}, out = {0};
	assert_int_equal(pki_inspect(CGN_STR(""), &in, &err).code, CGN_INVALID);
	assert_int_equal(
		pki_inspect(CGN_STR("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"), &in,
			&err)
			.code,
		CGN_INVALID);
	/* Every truncation of a real certificate, up to its last line. */
	for (size_t n = 0; n < ca.cert.n - sizeof "-----END CERTIFICATE-----"; n++)
		assert_false(cgn_ok(pki_inspect((struct cgn_str){ca.cert.p, n}, &in, &err)));
	assert_false(cgn_ok(pki_make_leaf(&bad, "n", NULL, one_year, &out, &err)));
	cgn_buf_str(&bad.cert, cgn_buf_view(&ca.cert));
	cgn_buf_putz(&bad.key, "no key");
	assert_false(cgn_ok(pki_make_leaf(&bad, "n", NULL, one_year, &out, &err)));
	assert_non_null(strstr(err.msg, "key"));
	pki_pair_fini(&bad);
}

/* ---- revocation lists ---- */

struct seen_lists {
	size_t n, entries;
	struct pki_crl_info info[4];
	char serial[8][48];
};

static CGN_RC list_see(void *user, const struct pki_crl_info *info, struct cgn_err *err)
{
	struct seen_lists *s = user;
	(void)err;
	s->info[s->n++] = *info;
	return CGN_OK;
}

static CGN_RC entry_see(void *user, const char *serial, int64_t when, struct cgn_err *err)
{
	struct seen_lists *s = user;
	(void)err;
	assert_true(when >= NOW);
	(void)cgn_str_copyz(s->serial[s->entries++], sizeof s->serial[0], cgn_str_of(serial));
	return CGN_OK;
}

static struct seen_lists lists_of(const struct cgn_buf *pem)
{
	struct seen_lists seen = {0};
	const struct pki_crl_reader reader = {list_see, entry_see, &seen};
	assert_true(cgn_ok(pki_crl_read(cgn_buf_view(pem), &reader, NULL)));
	return seen;
}

static void a_list_grows_and_keeps_others(void **state)
{
	(void)state;
	static const char *const first[] = {"5c01", "7fffff", "5c01", NULL},
				 *const second[] = {"5C01", "9a", NULL};
	struct cgn_buf a = {0}, b = {0}, both = {0};
	struct pki_pair other = {0};
	size_t added = 0;
	assert_true(cgn_ok(pki_crl_make(&ca, CGN_STR(""), first, one_year, &a, &added, NULL)));
	assert_int_equal(added, 2);
	struct seen_lists seen = lists_of(&a);
	assert_true(seen.n == 1 && seen.entries == 2 && seen.info[0].number == 1 && seen.info[0].n == 2);
	assert_true(seen.info[0].when.to == one_year.to);
	/* The same name, another key: another authority. */
	assert_true(cgn_ok(pki_make_ca("cognitora test CA", ten_years, &other, NULL)));
	assert_true(cgn_ok(pki_crl_make(&other, cgn_buf_view(&a), NULL, one_year, &both, &added, NULL)));
	assert_int_equal(added, 0);
	assert_true(cgn_ok(pki_crl_make(&ca, cgn_buf_view(&both), second, one_year, &b, &added, NULL)));
	assert_int_equal(added, 1);
	seen = lists_of(&b);
	assert_true(
		seen.n == 2 && seen.info[0].number == 2 && seen.info[0].n == 3 && seen.info[1].number == 1);
	assert_string_equal(seen.serial[2], "009a"); /* Positive, as certificates have it. */
	assert_true(pki_crl_signed_by(cgn_buf_view(&ca.cert), cgn_buf_view(&a)));
	assert_false(pki_crl_signed_by(cgn_buf_view(&other.cert), cgn_buf_view(&a)));
	assert_true(pki_crl_signed_by(cgn_buf_view(&other.cert), cgn_buf_view(&both)));
	assert_false(pki_crl_signed_by(CGN_STR("none"), cgn_buf_view(&a)));
	assert_false(pki_crl_signed_by(cgn_buf_view(&ca.cert), CGN_STR("none")));
	pki_pair_fini(&other);
	cgn_buf_fini(&a);
	cgn_buf_fini(&b);
	cgn_buf_fini(&both);
}

static void bad_serials_and_lists_are_refused(void **state)
{
	(void)state;
	static const char *const bad[] = {"", "x", "abc", "1234567890123456789012345678901234567890ab"};
	struct cgn_buf out = {0};
	struct cgn_err err = {0};
	size_t added = 0;
	for (size_t i = 0; i < CGN_COUNT(bad); i++) {
		const char *const serials[] = {bad[i], NULL};
		assert_int_equal(pki_crl_make(&ca, CGN_STR(""), serials, one_year, &out, &added, &err).code,
			CGN_INVALID);
		assert_non_null(strstr(err.msg, "not a serial number"));
	}
	assert_int_equal(pki_crl_make(&ca, CGN_STR("no list"), NULL, one_year, &out, &added, &err).code,
		CGN_INVALID);
	cgn_buf_fini(&out);
}

/* ---- requests ---- */

#define AGENT "cognitora://-/agent/n1"

static void a_request_is_signed_for_its_key_and_our_names(void **state)
{
	(void)state;
	static const char *const names[] = {"cognitora://c/agent/n1", "127.0.0.1", NULL};
	struct cgn_buf key = {0}, other = {0}, der = {0}, cert = {0};
	struct pki_request_info rq;
	struct pki_info in;
	assert_true(cgn_ok(pki_make_key(&key, NULL)) && cgn_ok(pki_make_key(&other, NULL)));
	assert_true(cgn_ok(pki_make_request(cgn_buf_view(&key), "n1", AGENT, &der, NULL)));
	assert_true(cgn_ok(pki_request_read(cgn_buf_view(&der), &rq, NULL)));
	assert_string_equal(rq.subject, "n1");
	assert_string_equal(rq.uri, AGENT);
	assert_true(cgn_ok(pki_request_sign(&ca, cgn_buf_view(&der), "n1", names, one_year, &cert, NULL)));
	assert_true(pki_is_pair(cgn_buf_view(&cert), cgn_buf_view(&key)));
	assert_false(pki_is_pair(cgn_buf_view(&cert), cgn_buf_view(&other)));
	assert_true(is_signed_by(&cert, &ca.cert));
	the_key_ids_name_the_authority(&cert);
	assert_true(cgn_ok(pki_inspect(cgn_buf_view(&cert), &in, NULL)));
	assert_false(in.is_ca);
	assert_int_equal(in.n_names, 2);
	assert_string_equal(in.names[0], names[0]); /* The request's own name does not count. */
	cgn_buf_fini(&key);
	cgn_buf_fini(&other);
	cgn_buf_fini(&der);
	cgn_buf_fini(&cert);
}

static void bad_requests_are_refused(void **state)
{
	(void)state;
	struct cgn_buf key = {0}, der = {0};
	struct pki_request_info rq;
	assert_true(cgn_ok(pki_make_key(&key, NULL)));
	assert_true(cgn_ok(pki_make_request(cgn_buf_view(&key), "n1", AGENT, &der, NULL)));
	for (size_t n = 0; n < der.n; n++)
		assert_int_equal(pki_request_read((struct cgn_str){der.p, n}, &rq, NULL).code, CGN_INVALID);
	for (size_t i = 0; i < der.n; i++) { /* A changed byte: no request, or not signed by its key. */
		der.p[i] ^= 1;
		assert_int_equal(pki_request_read(cgn_buf_view(&der), &rq, NULL).code, CGN_INVALID);
		der.p[i] ^= 1;
	}
	assert_true(cgn_ok(pki_request_read(cgn_buf_view(&der), &rq, NULL)));
	cgn_buf_fini(&key);
	cgn_buf_fini(&der);
}

/* ---- signatures ---- */

struct signed_text {
	enum pki_scheme scheme;
	const char *modulus, *x, *y; /* base64url; NULL: none */
	const char *text, *signature;
};
/* RFC 7515, A.2 and A.3; RFC 8037, A.4. */
static const struct signed_text signed_texts[] = {
	{PKI_RS256,
		"ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yRT-SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ",
		NULL, NULL,
		"eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ",
		"cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5jujGbds9uJdbF9CUAr7t1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_eSN9383LcOLn6_dO--xi12jzDwusC-eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw"},
	{PKI_ES256, NULL, "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",
		"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0",
		"eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ",
		"DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q"},
	{PKI_EDDSA, NULL, "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo", NULL,
		"eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc",
		"hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg"},
};

static struct cgn_str text_decode(struct cgn_buf *b, const char *text)
{
	if (text != NULL)
		assert_true(base64_get(b, cgn_str_of(text)));
	return cgn_buf_view(b);
}

/* Check the text of |t| by the scheme |scheme|, with bit |bit| of the signature turned (-1: none). */
static cgn_rc signature_try(const struct signed_text *t, enum pki_scheme scheme, struct cgn_str text, int bit)
{
	struct cgn_buf m = {0}, x = {0}, y = {0}, s = {0};
	const struct pki_numbers key = {text_decode(&m, t->modulus), {"\1\0\1", 3}, text_decode(&x, t->x),
		text_decode(&y, t->y)};
	(void)text_decode(&s, t->signature);
	if (bit >= 0)
		s.p[bit / 8] = (char)(s.p[bit / 8] ^ 1 << bit % 8);
	cgn_rc rc = pki_signature_check(scheme, &key, text, cgn_buf_view(&s), NULL);
	cgn_buf_fini(&m);
	cgn_buf_fini(&x);
	cgn_buf_fini(&y);
	cgn_buf_fini(&s);
	return rc;
}

static void signatures_of_the_standards_are_right(void **state)
{
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(signed_texts); i++) {
		const struct signed_text *t = &signed_texts[i];
		struct cgn_str text = cgn_str_of(t->text), cut = {text.p, text.n - 1};
		assert_int_equal(signature_try(t, t->scheme, text, -1).code, CGN_FINE);
		assert_int_equal(signature_try(t, t->scheme, cut, -1).code, CGN_UNAUTHENTICATED);
		for (int bit = 0; bit < 500; bit += 61)
			assert_int_equal(signature_try(t, t->scheme, text, bit).code, CGN_UNAUTHENTICATED);
	}
}

static void a_key_of_another_kind_checks_nothing(void **state)
{
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(signed_texts); i++)
		for (int scheme = PKI_RS256; scheme <= PKI_EDDSA; scheme++) {
			const struct signed_text *t = &signed_texts[i];
			cgn_rc rc = signature_try(t, (enum pki_scheme)scheme, cgn_str_of(t->text), -1);
			assert_true(cgn_ok(rc) == (scheme == (int)t->scheme));
		}
}

static void a_signature_of_another_length_is_wrong(void **state)
{
	(void)state;
	struct signed_text t = signed_texts[1];
	static const char *const lengths[] = {"", "AA", "AAAA"};
	for (size_t i = 0; i < CGN_COUNT(lengths); i++) {
		t.signature = lengths[i];
		for (int scheme = PKI_RS256; scheme <= PKI_EDDSA; scheme++)
			assert_false(
				cgn_ok(signature_try(&t, (enum pki_scheme)scheme, cgn_str_of(t.text), -1)));
	}
	/* R and S of zero: the signature that a careless check takes for any text. */
	t.signature =
		"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
	assert_int_equal(signature_try(&t, PKI_ES256, cgn_str_of(t.text), -1).code, CGN_UNAUTHENTICATED);
}

static void a_bundle_has_each_living_authority_once(void **state)
{
	CGN_ON_EXIT(pki_pair_fini) struct pki_pair second = {0}, leaf = {0};
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf bundle = {0}, text = {0};
	(void)state;
	assert_true(cgn_ok(pki_make_ca("cognitora test CA 2", one_year, &second, NULL)));
	assert_true(cgn_ok(pki_make_leaf(&ca, "x", NULL, one_year, &leaf, NULL)));
	cgn_buf_fmt(&text, "some words\n%s%s%s", ca.cert.p, leaf.cert.p, second.cert.p);
	assert_true(cgn_ok(pki_bundle_add(&bundle, cgn_buf_view(&text), NOW, NULL)));
	size_t n = bundle.n;
	assert_true(n == ca.cert.n + second.cert.n); /* The leaf is not an authority. */
	assert_true(cgn_ok(pki_bundle_add(&bundle, cgn_buf_view(&text), NOW, NULL)));
	assert_int_equal(bundle.n, n);
	assert_true(pki_bundle_signed(cgn_buf_view(&bundle), cgn_buf_view(&leaf.cert)));
	assert_false(pki_bundle_signed(cgn_buf_view(&second.cert), cgn_buf_view(&leaf.cert)));
	bundle.n = 0;
	assert_true(cgn_ok(pki_bundle_add(&bundle, cgn_buf_view(&text), NOW + 2 * YEAR, NULL)));
	assert_int_equal(bundle.n, ca.cert.n); /* The other one is over. */
}

static void a_key_that_is_anothers_does_not_fit(void **state)
{
	CGN_ON_EXIT(pki_pair_fini) struct pki_pair leaf = {0}, mixed = {0};
	(void)state;
	assert_true(cgn_ok(pki_make_leaf(&ca, "x", NULL, one_year, &leaf, NULL)));
	assert_true(pki_is_pair(cgn_buf_view(&leaf.cert), cgn_buf_view(&leaf.key)));
	cgn_buf_str(&mixed.cert, cgn_buf_view(&leaf.cert));
	cgn_buf_str(&mixed.key, cgn_buf_view(&ca.key));
	(void)cgn_buf_z(&mixed.key);
	assert_false(pki_is_pair(cgn_buf_view(&mixed.cert), cgn_buf_view(&mixed.key)));
	mixed.key.n = 10;
	assert_false(pki_is_pair(cgn_buf_view(&mixed.cert), cgn_buf_view(&mixed.key)));
	mixed.cert.n = mixed.key.n = 0;
	cgn_buf_str(&mixed.cert, cgn_buf_view(&leaf.cert));
	cgn_buf_str(&mixed.key, (struct cgn_str){leaf.key.p, 10});
	assert_false(pki_is_pair(cgn_buf_view(&mixed.cert), cgn_buf_view(&mixed.key)));
}

static void the_next_authority_has_another_name(void **state)
{
	static const char *const rows[][2] = {{"prod cluster CA", "prod cluster CA 2"},
		{"prod cluster CA 2", "prod cluster CA 3"}, {"prod cluster CA 9", "prod cluster CA 10"},
		{"", " 2"}, {"7", "7 2"}};
	char name[80];
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		pki_next_name(rows[i][0], name, sizeof name);
		assert_string_equal(name, rows[i][1]);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_authority_says_what_it_is),
		cmocka_unit_test(a_private_key_has_32_bytes),
		cmocka_unit_test(a_leaf_carries_names_and_the_authority_signed_it),
		cmocka_unit_test(a_renewed_leaf_keeps_its_names),
		cmocka_unit_test(what_makes_no_sense_is_refused),
		cmocka_unit_test(too_many_names_are_refused),
		cmocka_unit_test(a_leaf_signs_nothing),
		cmocka_unit_test(garbage_is_no_certificate),
		cmocka_unit_test(a_list_grows_and_keeps_others),
		cmocka_unit_test(bad_serials_and_lists_are_refused),
		cmocka_unit_test(a_request_is_signed_for_its_key_and_our_names),
		cmocka_unit_test(bad_requests_are_refused),
		cmocka_unit_test(signatures_of_the_standards_are_right),
		cmocka_unit_test(a_key_of_another_kind_checks_nothing),
		cmocka_unit_test(a_signature_of_another_length_is_wrong),
		cmocka_unit_test(a_bundle_has_each_living_authority_once),
		cmocka_unit_test(a_key_that_is_anothers_does_not_fit),
		cmocka_unit_test(the_next_authority_has_another_name),
	};
	return cmocka_run_group_tests(tests, make_ca, drop_ca);
}
