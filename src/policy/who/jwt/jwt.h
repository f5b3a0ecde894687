/* SPDX-License-Identifier: Apache-2.0 */
/* jwt: the tokens of an identity provider (JSON Web Tokens, RFC 7519, as signed texts, RFC 7515) and the provider's
 * public keys (RFC 7517). A token is read in three steps: jwt_read takes it apart and believes nothing, the caller checks
 * the signature with a key that jwt_key_find names (io/net/pki/signature.h), and jwt_check judges the claims. Pure; any
 * thread.
 *
 * What a token may not choose: the algorithm decides the kind of key and a key may limit its algorithm, so that a public
 * key is never taken for a shared secret; "none" and the algorithms with shared secrets do not exist here; keys that the
 * token brings along or points to (jwk, jku, x5c, x5u) are ignored; a token with "crit" is refused; so is one that has a
 * member twice (RFC 7515, 4), because two readers could take different ones. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/core/buf.h"
#include "base/core/err.h"
#include "base/core/str.h"
#include "base/json/json.h"

#define JWT_MAX_BYTES   16384 /* Longest token. */
#define JWT_MAX_HEAD    32    /* Most members of its head. */
#define JWT_MAX_MEMBERS 256   /* Most claims. */
#define JWT_KID_MAX     256
#define JWT_SUBJECT_MAX 255 /* OpenID Connect Core, 2: sub. */

enum jwt_alg { JWT_RS256, JWT_ES256, JWT_EDDSA /* Ed25519 */, JWT_ALGS };
const char *jwt_alg_text(enum jwt_alg a); /* "RS256" */

/* ---- a token ---- */
struct jwt {
	enum jwt_alg alg;
	struct cgn_str kid;         /* p NULL: the token names no key. */
	struct cgn_str signed_text; /* The text that was signed; borrowed from the token. */
	struct cgn_str signature;
	struct json_val claims; /* An object. */
	struct cgn_buf room;    /* Memory of all but |signed_text|. */
};
/* Does |text| look like a token, and not like an API key? */
bool jwt_looks_like(struct cgn_str text);
/* Take |text| apart. CGN_UNAUTHENTICATED names the error. Zero |out| before; call jwt_fini
 * after, also after a failure. */
CGN_RC jwt_read(struct cgn_str text, struct jwt *out, struct cgn_err *err);
void jwt_fini(struct jwt *t);

struct jwt_rules {
	struct cgn_str issuer, audience;
	uint64_t skew_s; /* Clocks may differ by this. */
};
struct jwt_facts {
	char subject[JWT_SUBJECT_MAX + 1];
	uint64_t expires; /* Unix seconds; the skew is not added. */
};
/* Judge the claims at |now| (Unix seconds): none is there twice, iss is the issuer, aud is or has the
 * audience, exp is there and not over, nbf and iat are not in the future, sub is there. CGN_UNAUTHENTICATED
 * names the error. */
CGN_RC jwt_check(const struct jwt *t, const struct jwt_rules *rules, uint64_t now, struct jwt_facts *out,
	struct cgn_err *err);
/* Find a claim by its name, or by a path of names with dots between them ("realm_access.roles"). A claim whose own name
 * has the dots comes first. */
bool jwt_claim(struct json_val claims, struct cgn_str path, struct json_val *out);

/* ---- the keys of an issuer ---- */
#define JWT_MAX_KEYS      64
#define JWT_MAX_KEYS_TEXT ((size_t)256 << 10)
#define JWT_MODULUS_MIN   256 /* Bytes of an RSA modulus: 2048 bits. */
#define JWT_MODULUS_MAX   1024
#define JWT_POINT_BYTES   32

/* Big numbers begin with their highest byte. */
struct jwt_key {
	enum jwt_alg alg; /* The only algorithm for which the key is used. */
	char kid[JWT_KID_MAX + 1];
	uint8_t modulus[JWT_MODULUS_MAX], exponent[8]; /* RS256 */
	size_t n_modulus, n_exponent;
	uint8_t x[JWT_POINT_BYTES], y[JWT_POINT_BYTES]; /* ES256: both; EdDSA: x. */
};
struct jwt_keys {
	struct jwt_key key[JWT_MAX_KEYS];
	size_t n;
	size_t left_out; /* Keys of other kinds, for other uses, or too weak. */
};
/* Read a key set ("keys": [...]). Keys that cannot be used are left out and counted. CGN_INVALID: it is not a
 * key set, has more than JWT_MAX_KEYS keys or no key that can be used. */
CGN_RC jwt_keys_read(struct cgn_str text, struct jwt_keys *out, struct cgn_err *err);
/* Return the key of the token: of its kid and algorithm; of a token without a kid, the only key of its algorithm. NULL:
 * there is none. Among keys of one kid the first counts. */
const struct jwt_key *jwt_key_find(const struct jwt_keys *keys, const struct jwt *t);
