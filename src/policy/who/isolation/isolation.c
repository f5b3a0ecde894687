/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/who/isolation/isolation.h"

#include "base/codec/codec.h"

static bool is_blank(char c)
{
	return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

CGN_RC isolation_secret_read(struct cgn_str text, struct digest *out, struct cgn_err *err)
{
	char room[DIGEST_BYTES + 1];
	struct cgn_buf bytes = cgn_buf_over(room, sizeof room);
	while (text.n > 0 && is_blank(text.p[text.n - 1]))
		text.n--;
	while (text.n > 0 && is_blank(text.p[0]))
		text = (struct cgn_str){text.p + 1, text.n - 1};
	if (text.n != 2 * sizeof out->b || !hex_get(&bytes, text))
		return CGN_FAIL(err, INVALID,
			"it does not hold %zu hex digits, as cgn-ctl pki isolation writes them",
			2 * sizeof out->b);
	memcpy(out->b, bytes.p, sizeof out->b);
	return CGN_OK;
}

void isolation_secret_put(const struct digest *secret, struct cgn_buf *out)
{
	hex_put(out, (struct cgn_str){(const char *)secret->b, sizeof secret->b});
	cgn_buf_char(out, '\n');
}

void isolation_salt(const struct digest *secret, const struct isolation_owner *who, const struct digest *own,
	char out[ISOLATION_SALT])
{
	bool shared = who->group.n > 0;
	/* Each step is keyed by the one before, so that no name can be chosen to look like two parts. */
	struct digest d = digest_keyed(secret,
		shared ? CGN_STR("cognitora.isolation.v1 group") : CGN_STR("cognitora.isolation.v1 tenant"));
	d = digest_keyed(&d, shared ? who->group : who->tenant);
	d = digest_keyed(&d,
		own != NULL ? (struct cgn_str){(const char *)own->b, sizeof own->b} : CGN_STR(""));
	struct cgn_buf text = cgn_buf_over(out, ISOLATION_SALT);
	hex_put(&text, (struct cgn_str){(const char *)d.b, ISOLATION_SALT / 2});
}
