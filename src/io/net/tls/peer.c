/* SPDX-License-Identifier: Apache-2.0 */
/* peer: which peer is expected, which one it is, and why it was refused; shared by the sessions of TCP and
 * QUIC. */
#include <string.h>

#include <arpa/inet.h>
#include <gnutls/crypto.h>
#include <gnutls/x509.h>

#include "base/codec/codec.h"

#include "tls_priv.h"

#define PEER_MAX_NAMES 64   /* Names of a certificate that are looked at. */
#define PEER_URI_BYTES 512  /* Bytes of one URI name; a longer one is left out. */
#define PEER_MAX_URIS  4096 /* Bytes of all together; with more, none counts. */

void tls_peer_expect(gnutls_session_t s, bool server, const char *name, gnutls_typed_vdata_st expect[2])
{
	static char client_use[] = GNUTLS_KP_TLS_WWW_CLIENT, server_use[] = GNUTLS_KP_TLS_WWW_SERVER;
	unsigned n = 0;
	expect[n++] = (gnutls_typed_vdata_st){GNUTLS_DT_KEY_PURPOSE_OID,
		(unsigned char *)(server ? client_use : server_use), 0};
	if (name != NULL) {
		expect[n] = (gnutls_typed_vdata_st){.type = GNUTLS_DT_DNS_HOSTNAME};
		memcpy(&expect[n++].data, &name, sizeof name); /* GnuTLS only reads it. */
	}
	gnutls_session_set_verify_cert2(s, expect, n, 0);
}

void tls_peer_require(gnutls_session_t s)
{
	gnutls_certificate_server_set_request(s, GNUTLS_CERT_REQUIRE);
	/* Do not list our authorities: a client with a certificate of another authority would send none and
	 * be told the wrong reason. */
	gnutls_certificate_send_x509_rdn_sequence(s, 1);
}

static int shown_verify(gnutls_session_t s)
{
	static char client_use[] = GNUTLS_KP_TLS_WWW_CLIENT;
	gnutls_typed_vdata_st expect = {GNUTLS_DT_KEY_PURPOSE_OID, (unsigned char *)client_use, 0};
	unsigned n = 0, status = 0;
	if (gnutls_certificate_get_peers(s, &n) == NULL || n == 0)
		return 0;
	return gnutls_certificate_verify_peers(s, &expect, 1, &status) == 0 && status == 0
		? 0
		: GNUTLS_E_CERTIFICATE_ERROR;
}

void tls_peer_invite(gnutls_session_t s)
{
	gnutls_certificate_server_set_request(s, GNUTLS_CERT_REQUEST);
	gnutls_session_set_verify_function(s, shown_verify);
}

/* ---- a pinned certificate ---- */

bool tls_pin_read(struct cgn_str text, uint8_t out[TLS_PIN_BYTES])
{
	char digits[2 * TLS_PIN_BYTES];
	size_t n = 0;
	for (size_t i = 0; i < text.n; i++) {
		if (text.p[i] == ':' && n > 0)
			continue;
		if (n == sizeof digits)
			return false;
		digits[n++] = text.p[i];
	}
	char room[TLS_PIN_BYTES];
	struct cgn_buf b = cgn_buf_over(room, sizeof room);
	if (n != sizeof digits || !hex_get(&b, (struct cgn_str){digits, n}))
		return false;
	memcpy(out, room, TLS_PIN_BYTES);
	return true;
}

static bool leaf_digest(gnutls_session_t s, uint8_t out[TLS_PIN_BYTES])
{
	unsigned n = 0;
	const gnutls_datum_t *chain = gnutls_certificate_get_peers(s, &n);
	return chain != NULL && n > 0 &&
		gnutls_hash_fast(GNUTLS_DIG_SHA256, chain[0].data, chain[0].size, out) == 0;
}

static int pin_verify(gnutls_session_t s)
{
	uint8_t seen[TLS_PIN_BYTES];
	const void *pin = gnutls_session_get_ptr(s);
	return leaf_digest(s, seen) && memcmp(seen, pin, sizeof seen) == 0 ? 0 : GNUTLS_E_CERTIFICATE_ERROR;
}

void tls_peer_pin(gnutls_session_t s, const uint8_t *pin)
{
	union {
		const uint8_t *in;
		void *out;
	} kept = {.in = pin}; /* Only pin_verify reads it */
	gnutls_session_set_ptr(s, kept.out);
	gnutls_session_set_verify_function(s, pin_verify);
}

/* Name the fingerprint to pin, for the operator who has just replaced a certificate. */
cgn_rc tls_pin_refusal(gnutls_session_t s, const char *who, struct cgn_err *err)
{
	uint8_t seen[TLS_PIN_BYTES] = {0};
	char room[2 * TLS_PIN_BYTES + 1];
	struct cgn_buf b = cgn_buf_over(room, sizeof room);
	(void)leaf_digest(s, seen);
	hex_put(&b, (struct cgn_str){(const char *)seen, sizeof seen});
	return CGN_FAIL(err, TLS,
		"TLS with %s: the peer's certificate is not the pinned one; its fingerprint is %s", who,
		cgn_buf_z(&b));
}

/* ---- a pinned authority ---- */

/* Find the authority in the chain: its place, or |n|. */
static unsigned chain_find(const gnutls_datum_t *chain, unsigned n, const uint8_t *digest)
{
	uint8_t seen[TLS_PIN_BYTES];
	for (unsigned i = 0; i < n; i++)
		if (gnutls_hash_fast(GNUTLS_DIG_SHA256, chain[i].data, chain[i].size, seen) == 0 &&
			memcmp(seen, digest, sizeof seen) == 0)
			return i;
	return n;
}

static bool leaf_verify(struct tls_ca_pin *p, const gnutls_datum_t *leaf, const gnutls_datum_t *authority)
{
	gnutls_x509_trust_list_t trust = NULL;
	gnutls_x509_crt_t crt = NULL;
	bool asked = gnutls_x509_trust_list_init(&trust, 0) == 0 && gnutls_x509_crt_init(&crt) == 0 &&
		gnutls_x509_crt_import(crt, leaf, GNUTLS_X509_FMT_DER) == 0 &&
		gnutls_x509_trust_list_add_trust_mem(trust, authority, NULL, GNUTLS_X509_FMT_DER, 0, 0) ==
			1 &&
		gnutls_x509_trust_list_verify_crt2(trust, &crt, 1, p->expect, 2, 0, &p->status, NULL) == 0;
	if (crt != NULL)
		gnutls_x509_crt_deinit(crt);
	if (trust != NULL)
		gnutls_x509_trust_list_deinit(trust, 1);
	return asked && p->status == 0;
}

static int ca_pin_verify(gnutls_session_t s)
{
	unsigned n = 0;
	struct tls_ca_pin *p = gnutls_session_get_ptr(s);
	const gnutls_datum_t *chain = gnutls_certificate_get_peers(s, &n);
	unsigned at = chain != NULL ? chain_find(chain, n, p->digest) : 0;
	p->found = chain != NULL && at < n;
	return p->found && leaf_verify(p, &chain[0], &chain[at]) ? 0 : GNUTLS_E_CERTIFICATE_ERROR;
}

void tls_peer_pin_ca(gnutls_session_t s, struct tls_ca_pin *p)
{
	gnutls_session_set_ptr(s, p);
	gnutls_session_set_verify_function(s, ca_pin_verify);
}

cgn_rc tls_ca_pin_refusal(const struct tls_ca_pin *p, const char *who, struct cgn_err *err)
{
	if (!p->found)
		return CGN_FAIL(err, TLS,
			"TLS with %s: it does not show the pinned authority: it is another cluster", who);
	return CGN_FAIL(err, TLS, "TLS with %s: the peer's certificate is refused: %s", who,
		tls_verdict_text(p->status));
}

static bool is_ip(const char *name)
{
	struct in6_addr any;
	return inet_pton(AF_INET, name, &any) == 1 || inet_pton(AF_INET6, name, &any) == 1;
}

int tls_peer_ask_for(gnutls_session_t s, const char *name)
{
	return is_ip(name) ? 0 : gnutls_server_name_set(s, GNUTLS_NAME_DNS, name, strlen(name));
}

/* Write the CN, or the first DNS name, of the peer's leaf certificate. */
static void leaf_name(gnutls_x509_crt_t crt, char *out, size_t cap)
{
	size_t n = cap;
	if (gnutls_x509_crt_get_dn_by_oid(crt, GNUTLS_OID_X520_COMMON_NAME, 0, 0, out, &n) == 0 &&
		out[0] != '\0')
		return;
	n = cap;
	if (gnutls_x509_crt_get_subject_alt_name(crt, 0, out, &n, NULL) != GNUTLS_SAN_DNSNAME || n >= cap)
		n = 0;
	out[n] = '\0';
}

/* Append the URI names of the leaf certificate, with a space between them. One with a space, or another byte that no URI
 * has, is left out. */
static void leaf_uris(gnutls_x509_crt_t crt, struct cgn_buf *out)
{
	for (unsigned i = 0; i < PEER_MAX_NAMES; i++) {
		char name[PEER_URI_BYTES];
		size_t n = sizeof name, good = 0;
		int kind = gnutls_x509_crt_get_subject_alt_name(crt, i, name, &n, NULL);
		if (kind == GNUTLS_E_REQUESTED_DATA_NOT_AVAILABLE)
			return;
		if (kind != GNUTLS_SAN_URI)
			continue;
		while (good < n && name[good] > ' ' && name[good] <= '~')
			good++;
		if (good == n && n > 0)
			cgn_buf_fmt(out, "%s%.*s", out->n > 0 ? " " : "", (int)n, name);
	}
}

char *tls_peer_uris_of(gnutls_session_t s)
{
	unsigned n = 0;
	gnutls_x509_crt_t crt;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf uris = {.limit = PEER_MAX_URIS};
	const gnutls_datum_t *chain = gnutls_certificate_get_peers(s, &n);
	if (chain == NULL || n == 0 || gnutls_x509_crt_init(&crt) != 0)
		return NULL;
	if (gnutls_x509_crt_import(crt, &chain[0], GNUTLS_X509_FMT_DER) == 0)
		leaf_uris(crt, &uris);
	gnutls_x509_crt_deinit(crt);
	return uris.n > 0 && !uris.bad ? cgn_str_dupz(cgn_buf_view(&uris)) : NULL;
}

void tls_peer_note_name(gnutls_session_t s, char *out, size_t cap)
{
	unsigned n = 0;
	gnutls_x509_crt_t crt;
	const gnutls_datum_t *chain = gnutls_certificate_get_peers(s, &n);
	if (chain == NULL || n == 0 || gnutls_x509_crt_init(&crt) != 0)
		return;
	if (gnutls_x509_crt_import(crt, &chain[0], GNUTLS_X509_FMT_DER) == 0)
		leaf_name(crt, out, cap);
	gnutls_x509_crt_deinit(crt);
}

cgn_rc tls_peer_refusal(gnutls_session_t s, const char *server_name, int rc, struct cgn_err *err)
{
	const char *who = server_name != NULL ? server_name : "the client";
	if (rc == GNUTLS_E_FATAL_ALERT_RECEIVED)
		return CGN_FAIL(err, TLS, "TLS with %s: the peer refused with the alert \"%s\"", who,
			gnutls_alert_get_name(gnutls_alert_get(s)));
	if (rc == GNUTLS_E_CERTIFICATE_VERIFICATION_ERROR)
		return CGN_FAIL(err, TLS, "TLS with %s: the peer's certificate is refused: %s", who,
			tls_verdict_text(gnutls_session_get_verify_cert_status(s)));
	if (rc == GNUTLS_E_NO_CERTIFICATE_FOUND || rc == GNUTLS_E_CERTIFICATE_REQUIRED)
		return CGN_FAIL(err, TLS, "TLS with %s: the peer gave no certificate, and one is required",
			who);
	return CGN_FAIL(err, TLS, "TLS with %s: %s", who, gnutls_strerror(rc));
}
