/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/who/jwt/jwt.h"

#include <math.h>
#include <string.h>

#include "base/codec/codec.h"

static const char *const alg_texts[JWT_ALGS] = {
	[JWT_RS256] = "RS256",
	[JWT_ES256] = "ES256",
	[JWT_EDDSA] = "EdDSA",
};

const char *jwt_alg_text(enum jwt_alg a)
{
	return alg_texts[a];
}

bool jwt_looks_like(struct cgn_str text)
{
	size_t dots = 0;
	/* "eyJ" stands for {" in base64. */
	for (size_t i = 0; i < text.n; i++)
		dots += text.p[i] == '.';
	return cgn_str_starts(text, "eyJ") && dots >= 2;
}

/* ---- reading ---- */

/* Append the bytes that |part| codes, in the alphabet of URLs and without padding (RFC 7515, 2). */
static bool part_decode(struct cgn_str part, struct cgn_buf *room, size_t *from, size_t *n)
{
	for (size_t i = 0; i < part.n; i++)
		if (part.p[i] == '+' || part.p[i] == '/' || part.p[i] == '=')
			return false;
	*from = room->n;
	if (part.n == 0 || !base64_get(room, part))
		return false;
	*n = room->n - *from;
	return true;
}

static CGN_RC members_check(struct json_val object, size_t most, const char *what, struct cgn_err *err)
{
	return json_is_unique(object, most)
		? CGN_OK
		: CGN_FAIL(err, UNAUTHENTICATED, "the token's %s has more than %zu members, or one twice",
			  what, most);
}

static CGN_RC object_read(struct cgn_str text, const char *what, struct json_val *out, struct cgn_err *err)
{
	if (!cgn_ok(json_parse(text, out, NULL, NULL)) || out->type != JSON_OBJECT)
		return CGN_FAIL(err, UNAUTHENTICATED, "the token's %s is not a JSON object", what);
	return CGN_OK;
}

static CGN_RC alg_read(struct json_val head, struct jwt *out, struct cgn_err *err)
{
	struct json_val alg;
	char text[16] = "";
	struct cgn_buf b = cgn_buf_over(text, sizeof text - 1);
	if (json_get(head, "alg", &alg) && alg.type == JSON_STRING)
		json_str_to(alg, &b);
	for (int i = 0; i < JWT_ALGS; i++)
		if (!b.bad && cgn_str_is(cgn_buf_view(&b), alg_texts[i])) {
			out->alg = (enum jwt_alg)i;
			return CGN_OK;
		}
	return CGN_FAIL(err, UNAUTHENTICATED,
		"the token is not signed with RS256, ES256 or EdDSA, the algorithms that are taken");
}

/* "JWT" and "at+jwt" (RFC 9068) are tokens of the kind that is meant here; others, such as "logout+jwt", are not. */
static CGN_RC type_check(struct json_val head, struct cgn_err *err)
{
	struct json_val typ, crit;
	char text[32] = "";
	struct cgn_buf b = cgn_buf_over(text, sizeof text - 1);
	if (json_get(head, "crit", &crit))
		return CGN_FAIL(err, UNAUTHENTICATED, "the token has \"crit\", which is not supported");
	if (!json_get(head, "typ", &typ))
		return CGN_OK;
	if (typ.type == JSON_STRING)
		json_str_to(typ, &b);
	struct cgn_str type = cgn_buf_view(&b);
	if (b.bad ||
		(!cgn_str_eq_nocase(type, CGN_STR("jwt")) && !cgn_str_eq_nocase(type, CGN_STR("at+jwt")) &&
			!cgn_str_eq_nocase(type, CGN_STR("application/at+jwt"))))
		return CGN_FAIL(err, UNAUTHENTICATED, "the token's type (typ) is neither JWT nor at+jwt");
	return CGN_OK;
}

static CGN_RC kid_read(struct json_val head, struct jwt *out, struct cgn_err *err)
{
	struct json_val kid;
	size_t from = out->room.n;
	if (!json_get(head, "kid", &kid))
		return CGN_OK;
	if (kid.type != JSON_STRING || kid.raw.n > JWT_KID_MAX)
		return CGN_FAIL(err, UNAUTHENTICATED, "the token's kid is not a text of at most %d bytes",
			JWT_KID_MAX);
	json_str_to(kid, &out->room);
	out->kid = (struct cgn_str){out->room.p + from, out->room.n - from};
	return CGN_OK;
}

CGN_RC jwt_read(struct cgn_str text, struct jwt *out, struct cgn_err *err)
{
	struct cgn_str rest = text, part[3];
	size_t from[3], n[3];
	struct json_val head;
	if (text.n > JWT_MAX_BYTES)
		return CGN_FAIL(err, UNAUTHENTICATED, "the token has more than %d bytes", JWT_MAX_BYTES);
	for (size_t i = 0; i < 3; i++)
		part[i] = cgn_str_split(&rest, '.');
	if (rest.p != NULL)
		return CGN_FAIL(err, UNAUTHENTICATED,
			"the token has more than three parts: encrypted tokens are not taken");
	/* All the room at once: what points into it stays where it is. */
	(void)cgn_buf_room(&out->room, 2 * text.n + 1);
	for (size_t i = 0; i < 3; i++)
		if (part[i].p == NULL || !part_decode(part[i], &out->room, &from[i], &n[i]))
			return CGN_FAIL(err, UNAUTHENTICATED,
				"the token does not consist of three parts in base64url");
	CGN_TRY(object_read((struct cgn_str){out->room.p + from[0], n[0]}, "head", &head, err));
	CGN_TRY(members_check(head, JWT_MAX_HEAD, "head", err));
	CGN_TRY(alg_read(head, out, err));
	CGN_TRY(type_check(head, err));
	CGN_TRY(kid_read(head, out, err));
	CGN_TRY(object_read((struct cgn_str){out->room.p + from[1], n[1]}, "text of claims", &out->claims,
		err));
	out->signature = (struct cgn_str){out->room.p + from[2], n[2]};
	out->signed_text = (struct cgn_str){text.p, part[0].n + 1 + part[1].n};
	return CGN_OK;
}

void jwt_fini(struct jwt *t)
{
	cgn_buf_fini(&t->room);
}

/* ---- claims ---- */

static bool text_is(struct json_val v, struct cgn_str want)
{
	char room[1024];
	struct cgn_buf b = cgn_buf_over(room, sizeof room);
	if (v.type != JSON_STRING)
		return false;
	json_str_to(v, &b);
	return !b.bad && cgn_str_eq(cgn_buf_view(&b), want);
}

static bool audience_has(struct json_val aud, struct cgn_str want)
{
	struct json_val elem;
	if (aud.type != JSON_ARRAY)
		return text_is(aud, want);
	for (struct json_iter it = json_iter_of(aud); json_next_elem(&it, &elem);)
		if (text_is(elem, want))
			return true;
	return false;
}

/* Read a time in Unix seconds, which may have a fraction; false: it is there and is none. 0: it is not there. */
static bool time_read(struct json_val claims, const char *name, uint64_t *out)
{
	struct json_val v;
	double seconds;
	*out = 0;
	if (!json_get(claims, name, &v))
		return true;
	if (!json_f64(v, &seconds) || !(seconds >= 1) || seconds > 1e15)
		return false;
	*out = (uint64_t)floor(seconds);
	return true;
}

static CGN_RC times_check(const struct jwt *t, const struct jwt_rules *rules, uint64_t now,
	struct jwt_facts *out, struct cgn_err *err)
{
	uint64_t from, issued;
	if (!time_read(t->claims, "exp", &out->expires) || !time_read(t->claims, "nbf", &from) ||
		!time_read(t->claims, "iat", &issued))
		return CGN_FAIL(err, UNAUTHENTICATED,
			"a time of the token (exp, nbf, iat) is not a number of seconds");
	if (out->expires == 0)
		return CGN_FAIL(err, UNAUTHENTICATED,
			"the token never ends (it has no exp), so it is not taken");
	if (now >= out->expires + rules->skew_s)
		return CGN_FAIL(err, UNAUTHENTICATED, "the token has expired %llu s ago",
			(unsigned long long)(now - out->expires));
	if (from > now + rules->skew_s)
		return CGN_FAIL(err, UNAUTHENTICATED,
			"the token is valid only in %llu s (nbf): compare the clocks",
			(unsigned long long)(from - now));
	if (issued > now + rules->skew_s)
		return CGN_FAIL(err, UNAUTHENTICATED,
			"the token was issued %llu s in the future (iat): compare the clocks",
			(unsigned long long)(issued - now));
	return CGN_OK;
}

static CGN_RC subject_read(const struct jwt *t, struct jwt_facts *out, struct cgn_err *err)
{
	struct json_val sub;
	struct cgn_buf b = cgn_buf_over(out->subject, JWT_SUBJECT_MAX);
	if (!json_get(t->claims, "sub", &sub) || sub.type != JSON_STRING || sub.raw.n <= 2)
		return CGN_FAIL(err, UNAUTHENTICATED, "the token names no subject (sub)");
	json_str_to(sub, &b);
	if (b.bad || memchr(out->subject, '\0', b.n) != NULL)
		return CGN_FAIL(err, UNAUTHENTICATED,
			"the token's subject (sub) is longer than %d bytes, or has a zero byte",
			JWT_SUBJECT_MAX);
	out->subject[b.n] = '\0';
	return CGN_OK;
}

CGN_RC jwt_check(const struct jwt *t, const struct jwt_rules *rules, uint64_t now, struct jwt_facts *out,
	struct cgn_err *err)
{
	struct json_val v;
	*out = (struct jwt_facts){.expires = 0};
	/* Not in jwt_read: who has no key of the provider shall not make us compare so much. */
	CGN_TRY(members_check(t->claims, JWT_MAX_MEMBERS, "text of claims", err));
	if (!json_get(t->claims, "iss", &v) || !text_is(v, rules->issuer))
		return CGN_FAIL(err, UNAUTHENTICATED, "the token is of another issuer (iss) than %.*s",
			(int)(rules->issuer.n < 200 ? rules->issuer.n : 200), rules->issuer.p);
	if (!json_get(t->claims, "aud", &v) || !audience_has(v, rules->audience))
		return CGN_FAIL(err, UNAUTHENTICATED, "the token is for another audience (aud) than %.*s",
			(int)(rules->audience.n < 200 ? rules->audience.n : 200), rules->audience.p);
	CGN_TRY(times_check(t, rules, now, out, err));
	return subject_read(t, out, err);
}

static bool member_find(struct json_val object, struct cgn_str name, struct json_val *out)
{
	struct cgn_str key;
	char room[JSON_KEY_MAX];
	if (object.type != JSON_OBJECT)
		return false;
	for (struct json_iter it = json_iter_of(object); json_next_member(&it, &key, out);)
		if (cgn_str_eq(json_key_plain(key, room), name))
			return true;
	return false;
}

bool jwt_claim(struct json_val claims, struct cgn_str path, struct json_val *out)
{
	struct json_val at = claims;
	if (member_find(claims, path, out))
		return true;
	for (struct cgn_str rest = path; rest.p != NULL;) {
		if (!member_find(at, cgn_str_split(&rest, '.'), out))
			return false;
		at = *out;
	}
	return true;
}
