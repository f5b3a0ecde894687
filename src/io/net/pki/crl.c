/* SPDX-License-Identifier: Apache-2.0 */
#include "io/net/pki/crl.h"

#include <string.h>

#include "base/codec/codec.h"

#include "io/net/pki/pki_priv.h"

/* The lists of a text. */
struct crl_lists {
	gnutls_x509_crl_t *crl;
	unsigned n;
};

static void lists_fini(struct crl_lists *l)
{
	for (unsigned i = 0; i < l->n; i++)
		gnutls_x509_crl_deinit(l->crl[i]);
	gnutls_free(l->crl);
}

static void crl_fini(gnutls_x509_crl_t *c)
{
	if (*c != NULL)
		gnutls_x509_crl_deinit(*c);
}

static CGN_RC lists_import(struct cgn_str pem, struct crl_lists *out, struct cgn_err *err)
{
	const gnutls_datum_t text = pki_datum(pem);
	if (pem.n == 0)
		return CGN_OK;
	return pki_gnutls(gnutls_x509_crl_list_import2(&out->crl, &out->n, &text, GNUTLS_X509_FMT_PEM, 0),
		"read a PEM revocation list", err);
}

/* ---- reading ---- */

static uint64_t crl_number(gnutls_x509_crl_t crl)
{
	uint8_t bytes[32];
	size_t n = sizeof bytes;
	uint64_t number = 0;
	if (gnutls_x509_crl_get_number(crl, bytes, &n, NULL) < 0)
		return 0;
	for (size_t i = 0; i < n; i++)
		number = number << 8 | bytes[i];
	return number;
}

/* Call |each| for the serial number of each entry, |n| bytes. */
static CGN_RC crl_each(gnutls_x509_crl_t crl,
	CGN_RC (*each)(void *arg, const uint8_t *serial, size_t n, time_t when, struct cgn_err *err),
	void *arg, struct cgn_err *err)
{
	gnutls_x509_crl_iter_t iter = NULL;
	cgn_rc rc = CGN_OK;
	while (cgn_ok(rc)) {
		uint8_t serial[64];
		size_t n = sizeof serial;
		time_t when = 0;
		int got = gnutls_x509_crl_iter_crt_serial(crl, &iter, serial, &n, &when);
		if (got == GNUTLS_E_REQUESTED_DATA_NOT_AVAILABLE)
			break;
		rc = got < 0 ? pki_gnutls(got, "read an entry of a revocation list", err)
			     : each(arg, serial, n, when, err);
	}
	gnutls_x509_crl_iter_deinit(iter);
	return rc;
}

static CGN_RC entry_tell(void *arg, const uint8_t *serial, size_t n, time_t when, struct cgn_err *err)
{
	const struct pki_crl_reader *reader = arg;
	char room[2 * 64 + 1];
	struct cgn_buf hex = cgn_buf_over(room, sizeof room);
	hex_put(&hex, (struct cgn_str){(const char *)serial, n});
	return reader->entry(reader->user, cgn_buf_z(&hex), when, err);
}

static CGN_RC list_tell(gnutls_x509_crl_t crl, const struct pki_crl_reader *reader, struct cgn_err *err)
{
	struct pki_crl_info in = {.number = crl_number(crl)};
	size_t n = sizeof in.issuer;
	if (gnutls_x509_crl_get_issuer_dn_by_oid(crl, GNUTLS_OID_X520_COMMON_NAME, 0, 0, in.issuer, &n) < 0)
		in.issuer[0] = '\0';
	in.when = (struct pki_validity){gnutls_x509_crl_get_this_update(crl),
		gnutls_x509_crl_get_next_update(crl)};
	int count = gnutls_x509_crl_get_crt_count(crl);
	in.n = count > 0 ? (size_t)count : 0;
	CGN_TRY(reader->list(reader->user, &in, err));
	struct pki_crl_reader copy = *reader;
	return reader->entry != NULL ? crl_each(crl, entry_tell, &copy, err) : CGN_OK;
}

CGN_RC pki_crl_read(struct cgn_str pem, const struct pki_crl_reader *reader, struct cgn_err *err)
{
	CGN_ON_EXIT(lists_fini) struct crl_lists lists = {0};
	CGN_TRY(lists_import(pem, &lists, err));
	for (unsigned i = 0; i < lists.n; i++)
		CGN_TRY(list_tell(lists.crl[i], reader, err));
	return CGN_OK;
}

bool pki_crl_is_signed(unsigned status)
{
	const unsigned dates =
		GNUTLS_CERT_REVOCATION_DATA_SUPERSEDED | GNUTLS_CERT_REVOCATION_DATA_ISSUED_IN_FUTURE;
	return status == 0 || ((status & dates) != 0 && (status & ~(dates | GNUTLS_CERT_INVALID)) == 0);
}

CGN_RC pki_signed_by(struct cgn_str ca, struct cgn_str pem, bool *out, struct cgn_err *err)
{
	CGN_ON_EXIT(pki_crt_fini) gnutls_x509_crt_t crt = NULL, authority = NULL;
	unsigned status = 0;
	CGN_TRY(pki_read_crt(ca, &authority, err));
	CGN_TRY(pki_read_crt(pem, &crt, err));
	int rc = gnutls_x509_crt_verify(crt, &authority, 1, GNUTLS_VERIFY_DISABLE_TIME_CHECKS, &status);
	*out = rc == 0 && status == 0;
	return CGN_OK;
}

static bool crl_verify(gnutls_x509_crl_t crl, struct cgn_str bundle)
{
	const gnutls_datum_t text = pki_datum(bundle);
	gnutls_x509_crt_t *authorities = NULL;
	unsigned n = 0, status = 0;
	if (gnutls_x509_crt_list_import2(&authorities, &n, &text, GNUTLS_X509_FMT_PEM, 0) < 0)
		return false;
	int rc = gnutls_x509_crl_verify(crl, authorities, n, GNUTLS_VERIFY_DISABLE_TIME_CHECKS, &status);
	for (unsigned i = 0; i < n; i++)
		gnutls_x509_crt_deinit(authorities[i]);
	gnutls_free(authorities);
	return rc >= 0 && pki_crl_is_signed(status);
}

bool pki_crl_signed_by(struct cgn_str bundle, struct cgn_str list)
{
	const gnutls_datum_t text = pki_datum(list);
	gnutls_x509_crl_t crl = NULL;
	if (gnutls_x509_crl_init(&crl) < 0)
		return false;
	bool is = gnutls_x509_crl_import(crl, &text, GNUTLS_X509_FMT_PEM) >= 0 && crl_verify(crl, bundle);
	gnutls_x509_crl_deinit(crl);
	return is;
}

/* ---- making ---- */

struct crl_making {
	gnutls_x509_crl_t crl;
	time_t now;
	size_t added;
};

static CGN_RC entry_copy(void *arg, const uint8_t *serial, size_t n, time_t when, struct cgn_err *err)
{
	struct crl_making *m = arg;
	return pki_gnutls(gnutls_x509_crl_set_crt_serial(m->crl, serial, n, when), "add a certificate", err);
}

/* Copy a list whole, because GnuTLS adds an entry in a time that grows with the list. To a list of version 1, which
 * other tools make, it cannot add extensions. */
static CGN_RC crl_copy(gnutls_x509_crl_t from, struct crl_making *m, struct cgn_err *err)
{
	gnutls_datum_t der;
	if (gnutls_x509_crl_get_version(from) < 2 || crl_number(from) == 0)
		return crl_each(from, entry_copy, m, err);
	CGN_TRY(pki_gnutls(gnutls_x509_crl_export2(from, GNUTLS_X509_FMT_DER, &der), "copy the list", err));
	int rc = gnutls_x509_crl_import(m->crl, &der, GNUTLS_X509_FMT_DER);
	gnutls_free(der.data);
	return pki_gnutls(rc, "copy the list", err);
}

struct crl_search {
	const uint8_t *serial;
	size_t n;
	bool found;
};

static CGN_RC entry_compare(void *arg, const uint8_t *serial, size_t n, time_t when, struct cgn_err *err)
{
	struct crl_search *s = arg;
	(void)when;
	(void)err;
	s->found = s->found || (n == s->n && memcmp(serial, s->serial, n) == 0);
	return CGN_OK;
}

/* A serial number is positive: other tools leave out the zero byte that says so. */
static CGN_RC serial_read(const char *text, char room[PKI_MAX_SERIAL + 1], size_t *n, struct cgn_err *err)
{
	struct cgn_buf b = cgn_buf_over(room + 1, PKI_MAX_SERIAL);
	if (text[0] == '\0' || !hex_get(&b, cgn_str_of(text)) || b.bad)
		return CGN_FAIL(err, INVALID,
			"\"%.80s\" is not a serial number: 2 to %d hexadecimal digits, an even number of them, as cgn-ctl pki show -o wide tells them",
			text, 2 * PKI_MAX_SERIAL);
	room[0] = 0;
	bool negative = (room[1] & 0x80) != 0;
	*n = b.n + (negative ? 1 : 0);
	if (!negative)
		memmove(room, room + 1, b.n);
	return CGN_OK;
}

static CGN_RC making_add(struct crl_making *m, gnutls_x509_crl_t old, const char *text, struct cgn_err *err)
{
	char room[PKI_MAX_SERIAL + 1];
	struct crl_search s = {.serial = (const uint8_t *)room};
	CGN_TRY(serial_read(text, room, &s.n, err));
	if (old != NULL)
		CGN_TRY(crl_each(old, entry_compare, &s, err));
	if (s.found)
		return CGN_OK;
	m->added++;
	return entry_copy(m, s.serial, s.n, m->now, err);
}

static CGN_RC crl_number_set(gnutls_x509_crl_t crl, uint64_t number, struct cgn_err *err)
{
	uint8_t bytes[9] = {0}; /* The first byte keeps the number positive. */
	for (size_t i = 0; i < 8; i++)
		bytes[8 - i] = (uint8_t)(number >> (8 * i));
	size_t skip = 0;
	while (skip < 8 && bytes[skip] == 0 && bytes[skip + 1] < 0x80)
		skip++;
	return pki_gnutls(gnutls_x509_crl_set_number(crl, bytes + skip, sizeof bytes - skip),
		"number the list", err);
}

static CGN_RC crl_finish(gnutls_x509_crl_t crl, gnutls_x509_crt_t ca, gnutls_x509_privkey_t key,
	struct pki_validity when, struct cgn_err *err)
{
	uint8_t id[64];
	size_t n = sizeof id;
	CGN_TRY(pki_gnutls(gnutls_x509_crl_set_version(crl, 2), "make a list", err));
	CGN_TRY(pki_gnutls(gnutls_x509_crl_set_this_update(crl, (time_t)when.from), "set its date", err));
	CGN_TRY(pki_gnutls(gnutls_x509_crl_set_next_update(crl, (time_t)when.to), "set its end", err));
	bool named = gnutls_x509_crl_get_authority_key_id(crl, id, &n, NULL) >= 0;
	n = sizeof id;
	if (!named && gnutls_x509_crt_get_subject_key_id(ca, id, &n, NULL) == 0)
		CGN_TRY(pki_gnutls(gnutls_x509_crl_set_authority_key_id(crl, id, n), "name the authority",
			err));
	return pki_gnutls(gnutls_x509_crl_sign2(crl, ca, key, GNUTLS_DIG_SHA256, 0), "sign the list", err);
}

static CGN_RC crl_put(gnutls_x509_crl_t crl, struct cgn_buf *out, struct cgn_err *err)
{
	gnutls_datum_t pem;
	CGN_TRY(pki_gnutls(gnutls_x509_crl_export2(crl, GNUTLS_X509_FMT_PEM, &pem), "write a list", err));
	return pki_put(out, &pem, err);
}

static bool crl_is_of(gnutls_x509_crl_t crl, gnutls_x509_crt_t ca)
{
	unsigned status = 0;
	return gnutls_x509_crl_verify(crl, &ca, 1, GNUTLS_VERIFY_DISABLE_TIME_CHECKS, &status) == 0 &&
		pki_crl_is_signed(status);
}

/* Build the list in |m| from our |old| one (NULL: none) and |serials|. */
static CGN_RC making_fill(struct crl_making *m, gnutls_x509_crl_t old, const char *const *serials,
	struct cgn_err *err)
{
	CGN_TRY(pki_gnutls(gnutls_x509_crl_init(&m->crl), "make a list", err));
	if (old != NULL)
		CGN_TRY(crl_copy(old, m, err));
	for (size_t i = 0; serials != NULL && serials[i] != NULL; i++) {
		bool again = false;
		for (size_t j = 0; j < i && !again; j++)
			again = strcmp(serials[i], serials[j]) == 0;
		if (!again)
			CGN_TRY(making_add(m, old, serials[i], err));
	}
	return crl_number_set(m->crl, old != NULL ? crl_number(old) + 1 : 1, err);
}

static void making_fini(struct crl_making *m)
{
	crl_fini(&m->crl);
}

CGN_RC pki_crl_make(const struct pki_pair *ca, struct cgn_str old, const char *const *serials,
	struct pki_validity when, struct cgn_buf *out, size_t *added, struct cgn_err *err)
{
	CGN_ON_EXIT(pki_key_fini) gnutls_x509_privkey_t key = NULL;
	CGN_ON_EXIT(pki_crt_fini) gnutls_x509_crt_t crt = NULL;
	CGN_ON_EXIT(lists_fini) struct crl_lists lists = {0};
	CGN_ON_EXIT(making_fini) struct crl_making m = {.now = (time_t)when.from};
	gnutls_x509_crl_t own = NULL;
	CGN_TRY(pki_read_ca(ca, &crt, &key, err));
	CGN_TRY(lists_import(old, &lists, err));
	for (unsigned i = 0; i < lists.n && own == NULL; i++)
		own = crl_is_of(lists.crl[i], crt) ? lists.crl[i] : NULL;
	CGN_TRY(making_fill(&m, own, serials, err));
	CGN_TRY(crl_finish(m.crl, crt, key, when, err));
	CGN_TRY(crl_put(m.crl, out, err));
	for (unsigned i = 0; i < lists.n; i++)
		if (lists.crl[i] != own)
			CGN_TRY(crl_put(lists.crl[i], out, err));
	*added = m.added;
	return CGN_OK;
}
