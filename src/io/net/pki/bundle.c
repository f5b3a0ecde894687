/* SPDX-License-Identifier: Apache-2.0 */
#include "io/net/pki/bundle.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "io/net/pki/crl.h"

struct cgn_str pki_first(struct cgn_str text)
{
	static const char end[] = "-----END ";
	const char *at = text.n > 0 ? memmem(text.p, text.n, end, sizeof end - 1) : NULL;
	const char *line = at != NULL ? memchr(at, '\n', text.n - (size_t)(at - text.p)) : NULL;
	return line != NULL ? (struct cgn_str){text.p, (size_t)(line + 1 - text.p)} : text;
}

/* Take the next certificate of |rest|; false: there is none. */
static bool next_take(struct cgn_str *rest, struct cgn_str *out)
{
	static const char begin[] = "-----BEGIN ";
	const char *at = rest->n > 0 ? memmem(rest->p, rest->n, begin, sizeof begin - 1) : NULL;
	if (at == NULL)
		return false;
	struct cgn_str left = {at, rest->n - (size_t)(at - rest->p)};
	*out = pki_first(left);
	*rest = (struct cgn_str){left.p + out->n, left.n - out->n};
	return true;
}

/* Does |bundle| have the first certificate of |pem|? */
static bool bundle_has(struct cgn_str bundle, struct cgn_str pem)
{
	struct pki_info want, have;
	struct cgn_str one;
	if (!cgn_ok(pki_inspect(pem, &want, NULL)))
		return false;
	while (next_take(&bundle, &one))
		if (cgn_ok(pki_inspect(one, &have, NULL)) && strcmp(have.fingerprint, want.fingerprint) == 0)
			return true;
	return false;
}

bool pki_bundle_signed(struct cgn_str bundle, struct cgn_str pem)
{
	struct cgn_str one;
	bool is = false;
	while (!is && next_take(&bundle, &one))
		if (!cgn_ok(pki_signed_by(one, pem, &is, NULL)))
			is = false;
	return is;
}

CGN_RC pki_bundle_add(struct cgn_buf *bundle, struct cgn_str text, int64_t now, struct cgn_err *err)
{
	struct pki_info in;
	struct cgn_str one, had = cgn_buf_view(bundle);
	size_t n = 0;
	while (next_take(&had, &one))
		n++;
	for (; n < PKI_BUNDLE_MAX && next_take(&text, &one);) {
		if (!cgn_ok(pki_inspect(one, &in, NULL)) || !in.is_ca || in.when.to <= now ||
			bundle_has(cgn_buf_view(bundle), one))
			continue;
		cgn_buf_str(bundle, one);
		if (one.p[one.n - 1] != '\n')
			cgn_buf_char(bundle, '\n');
		n++;
	}
	return bundle->bad ? CGN_FAIL(err, NO_MEMORY, "no memory for a bundle of authorities") : CGN_OK;
}

void pki_next_name(const char *was, char *out, size_t cap)
{
	size_t n = strlen(was), digits = n;
	unsigned long number = 1;
	while (digits > 0 && isdigit((unsigned char)was[digits - 1]))
		digits--;
	if (digits < n && digits > 0 && was[digits - 1] == ' ' && sscanf(was + digits, "%lu", &number) == 1)
		n = digits - 1;
	(void)snprintf(out, cap, "%.*s %lu", (int)(n < 50 ? n : 50), was, number + 1);
}
