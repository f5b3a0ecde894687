/* SPDX-License-Identifier: Apache-2.0 */
#include "token.h"

#include <stdio.h>
#include <string.h>

#include <gnutls/abstract.h>
#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>

#include "../world/world.h"
#include "base/codec/codec.h"

#define NUMBER_BYTES 32

static void token_must(int rc)
{
	if (rc < 0)
		world_fail("tokens: %s", gnutls_strerror(rc));
}

/* Append the number with NUMBER_BYTES bytes. */
static void number_put(const gnutls_datum_t *d, struct cgn_buf *out)
{
	static const uint8_t zeros[NUMBER_BYTES];
	size_t skip = d->size > NUMBER_BYTES ? d->size - NUMBER_BYTES : 0, n = d->size - skip;
	cgn_buf_add(out, zeros, NUMBER_BYTES - n);
	cgn_buf_add(out, d->data + skip, n);
}

void token_key_begin(struct token_key *k, const char *kid)
{
	gnutls_privkey_t key;
	gnutls_datum_t x, y;
	*k = (struct token_key){0};
	(void)snprintf(k->kid, sizeof k->kid, "%s", kid);
	token_must(gnutls_privkey_init(&key));
	token_must(gnutls_privkey_generate(key, GNUTLS_PK_ECDSA,
		GNUTLS_CURVE_TO_BITS(GNUTLS_ECC_CURVE_SECP256R1), 0));
	token_must(gnutls_privkey_export_ecc_raw2(key, NULL, &x, &y, NULL, 0));
	number_put(&x, &k->x);
	number_put(&y, &k->y);
	gnutls_free(x.data);
	gnutls_free(y.data);
	k->key = key;
}

void token_keys_put(const struct token_key *const *keys, size_t n, struct cgn_buf *out)
{
	cgn_buf_putz(out, "{\"keys\":[");
	for (size_t i = 0; i < n; i++) {
		cgn_buf_fmt(out,
			"%s{\"kid\":\"%s\",\"use\":\"sig\",\"alg\":\"ES256\",\"kty\":\"EC\",\"crv\":\"P-256\",\"x\":\"",
			i > 0 ? "," : "", keys[i]->kid);
		base64url_put(out, cgn_buf_view(&keys[i]->x));
		cgn_buf_putz(out, "\",\"y\":\"");
		base64url_put(out, cgn_buf_view(&keys[i]->y));
		cgn_buf_putz(out, "\"}");
	}
	cgn_buf_putz(out, "]}");
}

void token_put(const struct token_key *k, const char *claims, bool sign, struct cgn_buf *out)
{
	char head[96];
	size_t from = out->n;
	gnutls_datum_t der, r, s;
	struct cgn_buf numbers = {0};
	(void)snprintf(head, sizeof head, "{\"alg\":\"%s\",\"typ\":\"JWT\",\"kid\":\"%s\"}",
		sign ? "ES256" : "none", k->kid);
	base64url_put(out, cgn_str_of(head));
	cgn_buf_char(out, '.');
	base64url_put(out, cgn_str_of(claims));
	gnutls_datum_t text = {(unsigned char *)out->p + from, (unsigned)(out->n - from)};
	if (sign) {
		token_must(gnutls_privkey_sign_data(k->key, GNUTLS_DIG_SHA256, 0, &text, &der));
		token_must(gnutls_decode_rs_value(&der, &r, &s));
		number_put(&r, &numbers);
		number_put(&s, &numbers);
		gnutls_free(der.data);
		gnutls_free(r.data);
		gnutls_free(s.data);
	}
	cgn_buf_char(out, '.');
	base64url_put(out, cgn_buf_view(&numbers));
	cgn_buf_fini(&numbers);
}
