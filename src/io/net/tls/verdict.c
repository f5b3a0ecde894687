/* SPDX-License-Identifier: Apache-2.0 */
/* verdict: describe the faults of a certificate. */
#include <time.h>

#include <gnutls/x509.h>

#include "base/core/utc.h"
#include "tls_priv.h"

/* The most specific bit comes first; GNUTLS_CERT_INVALID accompanies all others. */
static const struct verdict {
	unsigned bit;
	const char *text;
} verdicts[] = {
	{GNUTLS_CERT_EXPIRED, "it has expired"},
	{GNUTLS_CERT_NOT_ACTIVATED, "it is not valid yet"},
	{GNUTLS_CERT_REVOKED, "it was revoked"},
	{GNUTLS_CERT_UNEXPECTED_OWNER, "it is for another name"},
	{GNUTLS_CERT_PURPOSE_MISMATCH, "it is not meant for this use (extended key usage)"},
	{GNUTLS_CERT_SIGNER_NOT_CA, "its issuer is not a certificate authority"},
	{GNUTLS_CERT_SIGNER_NOT_FOUND, "its issuer is unknown"},
	{GNUTLS_CERT_SIGNER_CONSTRAINTS_FAILURE, "its issuer may not vouch for it"},
	{GNUTLS_CERT_SIGNATURE_FAILURE, "its signature is wrong"},
	{GNUTLS_CERT_INSECURE_ALGORITHM, "its algorithm is insecure"},
};

const char *tls_verdict_text(unsigned status)
{
	for (size_t i = 0; i < CGN_COUNT(verdicts); i++)
		if ((status & verdicts[i].bit) != 0)
			return verdicts[i].text;
	return "it is not trusted";
}

static const char *day_text(time_t t, char *out, size_t cap)
{
	return cgn_utc_text(t, "%Y-%m-%d %H:%M:%S UTC", out, cap) ? out : "an unknown date";
}

static CGN_RC check_dates(const char *file, gnutls_x509_crt_t crt, int64_t now, struct tls_validity *out,
	struct cgn_err *err)
{
	char text[40];
	time_t from = gnutls_x509_crt_get_activation_time(crt), to = gnutls_x509_crt_get_expiration_time(crt);
	if (to == (time_t)-1 || from == (time_t)-1)
		return CGN_FAIL(err, TLS, "%s: the certificate has no readable dates", file);
	if (to < now)
		return CGN_FAIL(err, TLS, "%s: the certificate expired on %s", file,
			day_text(to, text, sizeof text));
	if (from > now)
		return CGN_FAIL(err, TLS, "%s: the certificate is not valid before %s; is the clock right?",
			file, day_text(from, text, sizeof text));
	*out = (struct tls_validity){(uint64_t)from, (uint64_t)to};
	return CGN_OK;
}

CGN_RC tls_leaf_check(const char *file, const gnutls_datum_t *pem, int64_t now, struct tls_validity *out,
	struct cgn_err *err)
{
	gnutls_x509_crt_t *chain = NULL;
	unsigned n = 0;
	int rc = gnutls_x509_crt_list_import2(&chain, &n, pem, GNUTLS_X509_FMT_PEM, 0);
	if (rc < 0 || n == 0)
		return CGN_FAIL(err, TLS, "%s: no PEM certificate in it: %s", file, gnutls_strerror(rc));
	cgn_rc done = check_dates(file, chain[0], now, out, err);
	for (unsigned i = 0; i < n; i++)
		gnutls_x509_crt_deinit(chain[i]);
	gnutls_free(chain);
	return done;
}
