/* SPDX-License-Identifier: Apache-2.0 */
/* jwks: the key set of an issuer. */
#include <string.h>

#include "base/codec/codec.h"
#include "policy/who/jwt/jwt.h"

static bool member_is(struct json_val key, const char *name, const char *want)
{
	struct json_val v;
	char room[64];
	struct cgn_buf b = cgn_buf_over(room, sizeof room);
	if (!json_get(key, name, &v) || v.type != JSON_STRING)
		return false;
	json_str_to(v, &b);
	return !b.bad && cgn_str_is(cgn_buf_view(&b), want);
}

static bool has_member(struct json_val key, const char *name)
{
	struct json_val v;
	return json_get(key, name, &v);
}

/* Decode a number into |out|, without its leading zeros; 0: it is missing or too long. */
static size_t number_read(struct json_val key, const char *name, uint8_t *out, size_t cap)
{
	struct json_val v;
	char text[2 * JWT_MODULUS_MAX], bytes[JWT_MODULUS_MAX + 8];
	struct cgn_buf t = cgn_buf_over(text, sizeof text), b = cgn_buf_over(bytes, sizeof bytes);
	size_t zeros = 0;
	if (!json_get(key, name, &v) || v.type != JSON_STRING)
		return 0;
	json_str_to(v, &t);
	if (t.bad || t.n == 0 || !base64_get(&b, cgn_buf_view(&t)))
		return 0;
	while (zeros < b.n && bytes[zeros] == 0)
		zeros++;
	if (b.n - zeros > cap)
		return 0;
	memcpy(out, bytes + zeros, b.n - zeros);
	return b.n - zeros;
}

/* Decode a coordinate, which has JWT_POINT_BYTES bytes with its leading zeros (RFC 7518, 6.2.1.2; RFC 8037, 2). */
static bool coordinate_read(struct json_val key, const char *name, uint8_t out[JWT_POINT_BYTES])
{
	struct json_val v;
	char text[64], bytes[JWT_POINT_BYTES + 1];
	struct cgn_buf t = cgn_buf_over(text, sizeof text), b = cgn_buf_over(bytes, sizeof bytes);
	if (!json_get(key, name, &v) || v.type != JSON_STRING)
		return false;
	json_str_to(v, &t);
	if (t.bad || t.n == 0 || !base64_get(&b, cgn_buf_view(&t)) || b.n != JWT_POINT_BYTES)
		return false;
	memcpy(out, bytes, JWT_POINT_BYTES);
	return true;
}

/* Does the member |name| allow to check signatures, or is it absent? */
static bool operations_allow(struct json_val key)
{
	struct json_val ops, elem;
	if (!json_get(key, "key_ops", &ops))
		return true;
	if (ops.type != JSON_ARRAY)
		return false;
	for (struct json_iter it = json_iter_of(ops); json_next_elem(&it, &elem);)
		if (elem.type == JSON_STRING && cgn_str_is(elem.raw, "\"verify\""))
			return true;
	return false;
}

/* Is it a modulus of at least 8 * JWT_MODULUS_MIN bits and an exponent that encrypts? With an exponent of 1 every text is
 * its own signature, and no key that works has an even exponent or modulus. */
static bool rsa_is_ok(const struct jwt_key *k)
{
	bool is_large = k->n_modulus > JWT_MODULUS_MIN ||
		(k->n_modulus == JWT_MODULUS_MIN && (k->modulus[0] & 0x80) != 0);
	return is_large && (k->modulus[k->n_modulus - 1] & 1) != 0 && k->n_exponent > 0 &&
		(k->exponent[k->n_exponent - 1] & 1) != 0 && (k->n_exponent > 1 || k->exponent[0] >= 3);
}

/* Is it the y coordinate of a point of small order, in any of its codings? Signatures of such a key fit many texts. */
static bool point_is_small(const uint8_t y[JWT_POINT_BYTES])
{
	static const uint8_t last[] = {0xec, 0xed,
		0xee}; /* p - 1, and p and p + 1, which stand for 0 and 1. */
	static const uint8_t order_8[2][JWT_POINT_BYTES] = {{0x26, 0xe8, 0x95, 0x8f, 0xc2, 0xb2, 0x27, 0xb0,
								    0x45, 0xc3, 0xf4, 0x89, 0xf2, 0xef, 0x98,
								    0xf0, 0xd5, 0xdf, 0xac, 0x05, 0xd3, 0xc6,
								    0x33, 0x39, 0xb1, 0x38, 0x02, 0x88, 0x6d,
								    0x53, 0xfc, 0x05},
		{0xc7, 0x17, 0x6a, 0x70, 0x3d, 0x4d, 0xd8, 0x4f, 0xba, 0x3c, 0x0b, 0x76, 0x0d, 0x10, 0x67,
			0x0f, 0x2a, 0x20, 0x53, 0xfa, 0x2c, 0x39, 0xcc, 0xc6, 0x4e, 0xc7, 0xfd, 0x77, 0x92,
			0xac, 0x03, 0x7a}};
	uint8_t plain[JWT_POINT_BYTES], all_0 = 0, all_1 = 0xff;
	memcpy(plain, y, sizeof plain);
	plain[JWT_POINT_BYTES - 1] &= 0x7f; /* The sign of x. */
	for (size_t i = 1; i < JWT_POINT_BYTES; i++) {
		all_0 |= plain[i];
		all_1 &= i + 1 < JWT_POINT_BYTES ? plain[i] : plain[i] | 0x80;
	}
	return (all_0 == 0 && plain[0] <= 1) ||
		(all_1 == 0xff && memchr(last, plain[0], sizeof last) != NULL) ||
		memcmp(plain, order_8[0], sizeof plain) == 0 || memcmp(plain, order_8[1], sizeof plain) == 0;
}

static bool key_read(struct json_val v, struct jwt_key *out)
{
	struct json_val kid;
	struct cgn_buf b = cgn_buf_over(out->kid, JWT_KID_MAX);
	memset(out, 0, sizeof *out); /* With its padding: keys are compared byte by byte. */
	out->alg = JWT_ALGS;
	if (v.type != JSON_OBJECT || (has_member(v, "use") && !member_is(v, "use", "sig")) ||
		!operations_allow(v))
		return false;
	if (json_get(v, "kid", &kid)) {
		if (kid.type != JSON_STRING)
			return false;
		json_str_to(kid, &b);
		if (b.bad || memchr(out->kid, '\0', b.n) != NULL)
			return false;
	}
	if (member_is(v, "kty", "RSA")) {
		out->alg = JWT_RS256;
		out->n_modulus = number_read(v, "n", out->modulus, JWT_MODULUS_MAX);
		out->n_exponent = number_read(v, "e", out->exponent, sizeof out->exponent);
		if (!rsa_is_ok(out))
			return false;
	} else if (member_is(v, "kty", "EC") && member_is(v, "crv", "P-256")) {
		out->alg = JWT_ES256;
		if (!coordinate_read(v, "x", out->x) || !coordinate_read(v, "y", out->y))
			return false;
	} else if (member_is(v, "kty", "OKP") && member_is(v, "crv", "Ed25519")) {
		out->alg = JWT_EDDSA;
		if (!coordinate_read(v, "x", out->x) || point_is_small(out->x))
			return false;
	} else {
		return false;
	}
	return !has_member(v, "alg") || member_is(v, "alg", jwt_alg_text(out->alg));
}

CGN_RC jwt_keys_read(struct cgn_str text, struct jwt_keys *out, struct cgn_err *err)
{
	struct json_val doc, list, elem;
	size_t seen = 0;
	out->n = out->left_out = 0;
	if (!cgn_ok(json_parse(text, &doc, NULL, NULL)) || !json_get(doc, "keys", &list) ||
		list.type != JSON_ARRAY)
		return CGN_FAIL(err, INVALID, "it is not a key set: a JSON object with the array \"keys\"");
	if (!json_is_unique(doc, JSON_UNIQUE_MAX))
		return CGN_FAIL(err, INVALID, "the key set has a member twice");
	for (struct json_iter it = json_iter_of(list); json_next_elem(&it, &elem);) {
		if (++seen > JWT_MAX_KEYS)
			return CGN_FAIL(err, INVALID, "the key set has more than %d keys", JWT_MAX_KEYS);
		if (key_read(elem, &out->key[out->n]))
			out->n++;
		else
			out->left_out++;
	}
	if (out->n == 0)
		return CGN_FAIL(err, INVALID,
			"the key set has no key for RS256 (2048 bits or more, with an odd exponent from 3), ES256 or EdDSA; %zu of other kinds",
			out->left_out);
	return CGN_OK;
}

const struct jwt_key *jwt_key_find(const struct jwt_keys *keys, const struct jwt *t)
{
	const struct jwt_key *found = NULL;
	for (size_t i = 0; i < keys->n; i++) {
		const struct jwt_key *k = &keys->key[i];
		if (k->alg != t->alg)
			continue;
		if (t->kid.p != NULL && cgn_str_is(t->kid, k->kid))
			return k;
		if (t->kid.p == NULL) {
			if (found != NULL)
				return NULL;
			found = k;
		}
	}
	return found;
}
