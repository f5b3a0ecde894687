/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/codec/codec.h"
#include "policy/who/jwt/jwt.h"

#define NOW 1700000000

/* Make a token of that head and those claims; its signature is "sig". */
static const char *token_of(const char *head, const char *claims)
{
	static struct cgn_buf b;
	b.n = 0;
	base64url_put(&b, cgn_str_of(head));
	cgn_buf_char(&b, '.');
	base64url_put(&b, cgn_str_of(claims));
	cgn_buf_putz(&b, ".c2ln");
	return cgn_buf_z(&b);
}

static void assert_unread(const char *token, const char *why)
{
	struct jwt t = {0};
	struct cgn_err err = {0};
	cgn_rc rc = jwt_read(cgn_str_of(token), &t, &err);
	jwt_fini(&t);
	assert_int_equal(rc.code, CGN_UNAUTHENTICATED);
	if (strstr(err.msg, why) == NULL)
		fail_msg("%s: %s", token, err.msg);
}

static void test_a_token_comes_apart(void **state)
{
	(void)state;
	struct jwt t = {0};
	const char *token =
		token_of("{\"alg\":\"ES256\",\"typ\":\"JWT\",\"kid\":\"k\\u0031\"}", "{\"sub\":\"ann\"}");
	assert_true(jwt_looks_like(cgn_str_of(token)));
	assert_true(cgn_ok(jwt_read(cgn_str_of(token), &t, NULL)));
	assert_int_equal(t.alg, JWT_ES256);
	assert_true(cgn_str_is(t.kid, "k1") && cgn_str_is(t.signature, "sig"));
	assert_ptr_equal(t.signed_text.p, token);
	assert_int_equal(t.signed_text.n, strlen(token) - strlen(".c2ln"));
	assert_true(cgn_str_is(json_get_str(t.claims, "sub", NULL), "ann"));
	jwt_fini(&t);
	assert_false(jwt_looks_like(CGN_STR("cgn_abcdef")));
	assert_false(jwt_looks_like(CGN_STR("eyJhbGciOiJFUzI1NiJ9")));
	assert_false(jwt_looks_like((struct cgn_str){NULL, 0}));
}

static void test_the_token_does_not_choose_how_it_is_checked(void **state)
{
	(void)state;
	static const char *const algs[] = {"none", "None", "", "HS256", "HS384", "RS1", "RS256 ", "rs256",
		"ES256K", "dir", "A128KW", "RS256\\u0000"};
	char head[100];
	for (size_t i = 0; i < CGN_COUNT(algs); i++) {
		(void)snprintf(head, sizeof head, "{\"alg\":\"%s\"}", algs[i]);
		assert_unread(token_of(head, "{}"), "not signed with RS256");
	}
	assert_unread(token_of("{}", "{}"), "not signed with RS256");
	assert_unread(token_of("{\"alg\":[\"RS256\"]}", "{}"), "not signed with RS256");
	assert_unread(token_of("{\"alg\":\"RS256\",\"crit\":[]}", "{}"), "crit");
	assert_unread(token_of("{\"alg\":\"RS256\",\"typ\":\"logout+jwt\"}", "{}"), "typ");
	assert_unread(token_of("{\"alg\":\"RS256\",\"typ\":7}", "{}"), "typ");
	assert_unread(token_of("{\"alg\":\"RS256\",\"kid\":7}", "{}"), "kid");
	struct jwt t = {0};
	assert_true(cgn_ok(
		jwt_read(cgn_str_of(token_of("{\"alg\":\"EdDSA\",\"typ\":\"at+JWT\"}", "{}")), &t, NULL)));
	assert_null(t.kid.p);
	jwt_fini(&t);
}

static void test_what_two_readers_could_read_in_two_ways_is_refused(void **state)
{
	(void)state;
	assert_unread(token_of("{\"alg\":\"RS256\",\"alg\":\"ES256\"}", "{}"), "twice");
	assert_unread(token_of("{\"alg\":\"RS256\"}", "{\"sub\":\"a\"} x"), "not a JSON object");
	assert_unread(token_of("{\"alg\":\"RS256\"}", "[]"), "not a JSON object");
	assert_unread(token_of("\"RS256\"", "{}"), "not a JSON object");
}

static void test_texts_that_are_no_tokens(void **state)
{
	(void)state;
	static const char *const bad[] = {"", ".", "..", "a.b", "eyJ.eyJ", "eyJhbGciOiJFUzI1NiJ9..c2ln",
		"eyJhbGciOiJFUzI1NiJ9.e30.", "eyJhbGciOiJFUzI1NiJ9.e30=.c2ln",
		"eyJhbGciOiJFUzI1NiJ9.e30.c2 ln", "eyJhbGciOiJFUzI1NiJ9.e3+0.c2ln"};
	for (size_t i = 0; i < CGN_COUNT(bad); i++)
		assert_unread(bad[i], "three parts");
	assert_unread("eyJhbGciOiJFUzI1NiJ9.e30.c2ln.c2ln.c2ln", "encrypted");
	char *huge = malloc(JWT_MAX_BYTES + 2);
	memset(huge, 'A', JWT_MAX_BYTES + 1);
	huge[JWT_MAX_BYTES + 1] = '\0';
	assert_unread(huge, "more than 16384 bytes");
	free(huge);
	struct cgn_buf many = {0};
	cgn_buf_putz(&many, "{\"alg\":\"RS256\"");
	for (int i = 0; i < JWT_MAX_HEAD; i++)
		cgn_buf_fmt(&many, ",\"m%d\":1", i);
	cgn_buf_char(&many, '}');
	assert_unread(token_of(cgn_buf_z(&many), "{}"), "members");
	cgn_buf_fini(&many);
}

static const struct jwt_rules rules = {{"https://id.example", 18}, {"cognitora", 9}, 60};

static cgn_rc claims_check(const char *claims, struct jwt_facts *out, struct cgn_err *err)
{
	struct jwt t = {0};
	assert_true(cgn_ok(jwt_read(cgn_str_of(token_of("{\"alg\":\"RS256\"}", claims)), &t, err)));
	cgn_rc rc = jwt_check(&t, &rules, NOW, out, err);
	jwt_fini(&t);
	return rc;
}

#define GOOD "\"iss\":\"https://id.example\",\"aud\":\"cognitora\",\"sub\":\"ann\""

static void test_claims_that_hold(void **state)
{
	(void)state;
	static const char *const good[] = {"{" GOOD ",\"exp\":1700000001}", "{" GOOD ",\"exp\":1699999941}",
		"{" GOOD ",\"exp\":1.7000001e9,\"nbf\":1700000060,\"iat\":1700000060.5}",
		"{\"iss\":\"https://id.example\",\"aud\":[\"other\",\"cognitora\"],\"sub\":\"ann\",\"exp\":1800000000}"};
	struct jwt_facts facts;
	struct cgn_err err = {0};
	for (size_t i = 0; i < CGN_COUNT(good); i++) {
		if (!cgn_ok(claims_check(good[i], &facts, &err)))
			fail_msg("%s: %s", good[i], err.msg);
		assert_string_equal(facts.subject, "ann");
	}
	assert_int_equal(facts.expires, 1800000000);
}

static void test_claims_that_do_not_hold(void **state)
{
	(void)state;
	static const struct {
		const char *claims, *why;
	} bad[] = {
		{"{\"aud\":\"cognitora\",\"sub\":\"ann\",\"exp\":1800000000}", "another issuer"},
		{"{\"iss\":\"https://id.example/\",\"aud\":\"cognitora\",\"sub\":\"ann\",\"exp\":1800000000}",
			"another issuer"},
		{"{\"iss\":[\"https://id.example\"],\"aud\":\"cognitora\",\"sub\":\"ann\",\"exp\":1800000000}",
			"another issuer"},
		{"{\"iss\":\"https://id.example\",\"sub\":\"ann\",\"exp\":1800000000}", "another audience"},
		{"{\"iss\":\"https://id.example\",\"aud\":\"cognitora2\",\"sub\":\"ann\",\"exp\":1800000000}",
			"another audience"},
		{"{\"iss\":\"https://id.example\",\"aud\":[],\"sub\":\"ann\",\"exp\":1800000000}",
			"another audience"},
		{"{\"iss\":\"https://id.example\",\"aud\":{\"cognitora\":1},\"sub\":\"ann\",\"exp\":1800000000}",
			"another audience"},
		{"{" GOOD "}", "never ends"},
		{"{" GOOD ",\"exp\":1699999940}", "expired 60 s ago"},
		{"{" GOOD ",\"exp\":\"1800000000\"}", "not a number"},
		{"{" GOOD ",\"exp\":-1}", "not a number"},
		{"{" GOOD ",\"exp\":0}", "not a number"},
		{"{" GOOD ",\"exp\":1e300}", "not a number"},
		{"{" GOOD ",\"exp\":1800000000,\"nbf\":1700000061}", "valid only in 61 s"},
		{"{" GOOD ",\"exp\":1800000000,\"iat\":1700000061}", "in the future"},
		{"{" GOOD ",\"exp\":1800000000,\"nbf\":null}", "not a number"},
		{"{\"iss\":\"https://id.example\",\"aud\":\"cognitora\",\"exp\":1800000000}", "no subject"},
		{"{" GOOD ",\"exp\":1800000000,\"sub\":\"root\"}", "twice"},
		{"{" GOOD ",\"exp\":1800000000,\"s\\u0075b\":\"root\"}", "twice"},
		{"{" GOOD
		 ",\"exp\":1800000000,\"realm_access\":{\"roles\":[\"user\"],\"roles\":[\"operator\"]}}",
			"twice"},
		{"{" GOOD ",\"exp\":1800000000,\"a\":[1,{\"b\":[{\"c\":1,\"\\u0063\":2}]}]}", "twice"},
		{"{\"iss\":\"https://id.example\",\"aud\":\"cognitora\",\"exp\":1800000000,\"sub\":\"\"}",
			"no subject"},
		{"{\"iss\":\"https://id.example\",\"aud\":\"cognitora\",\"exp\":1800000000,\"sub\":\"a\\u0000b\"}",
			"zero byte"},
	};
	for (size_t i = 0; i < CGN_COUNT(bad); i++) {
		struct jwt_facts facts;
		struct cgn_err err = {0};
		assert_int_equal(claims_check(bad[i].claims, &facts, &err).code, CGN_UNAUTHENTICATED);
		if (strstr(err.msg, bad[i].why) == NULL)
			fail_msg("%s: %s", bad[i].claims, err.msg);
	}
}

static void test_claims_by_their_paths(void **state)
{
	(void)state;
	struct json_val doc, v;
	assert_true(cgn_ok(json_parse(
		CGN_STR("{\"a.b\":1,\"a\":{\"b\":2,\"c\":{\"d\":[3]}},\"https://x.example/roles\":4,\"n\":null}"),
		&doc, NULL, NULL)));
	assert_true(jwt_claim(doc, CGN_STR("a.b"), &v) && cgn_str_is(v.raw, "1"));
	assert_true(jwt_claim(doc, CGN_STR("a.c.d"), &v) && cgn_str_is(v.raw, "[3]"));
	assert_true(jwt_claim(doc, CGN_STR("https://x.example/roles"), &v) && cgn_str_is(v.raw, "4"));
	assert_false(jwt_claim(doc, CGN_STR("a.c.d.e"), &v));
	assert_false(jwt_claim(doc, CGN_STR("a.x"), &v));
	assert_false(jwt_claim(doc, CGN_STR("n.x"), &v));
}

/* ---- keys ---- */

#define X43 "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU"
#define Y43 "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"
#define EC  "\"kty\":\"EC\",\"crv\":\"P-256\",\"x\":\"" X43 "\",\"y\":\"" Y43 "\""
#define OKP "\"kty\":\"OKP\",\"crv\":\"Ed25519\",\"x\":\"" X43 "\""

static struct jwt_keys *keys_of(const char *list, struct cgn_err *err)
{
	static struct jwt_keys keys;
	char text[4096];
	(void)snprintf(text, sizeof text, "{\"keys\":[%s]}", list);
	return cgn_ok(jwt_keys_read(cgn_str_of(text), &keys, err)) ? &keys : NULL;
}

static void rsa_put(char *out, size_t cap, size_t bytes, const char *more)
{
	struct cgn_buf b = {0};
	char modulus[600];
	memset(modulus, 0xa5, sizeof modulus);
	base64url_put(&b, (struct cgn_str){modulus, bytes});
	(void)snprintf(out, cap, "{\"kty\":\"RSA\",\"e\":\"AQAB\",\"n\":\"%s\"%s}", cgn_buf_z(&b), more);
	cgn_buf_fini(&b);
}

static const struct jwt_key *key_find(const struct jwt_keys *keys, enum jwt_alg alg, const char *kid)
{
	const struct jwt t = {.alg = alg, .kid = cgn_str_of(kid)};
	return jwt_key_find(keys, &t);
}

static void test_a_key_is_found_by_kid_and_algorithm(void **state)
{
	(void)state;
	char list[2048] = "{\"kid\":\"a\"," EC "},{\"kid\":\"b\"," OKP ",\"use\":\"sig\",\"alg\":\"EdDSA\"},";
	rsa_put(list + strlen(list), sizeof list - strlen(list), 256,
		",\"kid\":\"a\",\"key_ops\":[\"verify\"]");
	const struct jwt_keys *keys = keys_of(list, NULL);
	assert_int_equal(keys->n, 3);
	assert_ptr_equal(key_find(keys, JWT_ES256, "a"), &keys->key[0]);
	assert_ptr_equal(key_find(keys, JWT_RS256, "a"), &keys->key[2]);
	assert_null(key_find(keys, JWT_EDDSA,
		"a")); /* An algorithm of the token never takes a key of another kind. */
	assert_null(key_find(keys, JWT_ES256, "b"));
	assert_null(key_find(keys, JWT_ES256, "../a"));
	assert_null(key_find(keys, JWT_ES256, ""));
	assert_ptr_equal(key_find(keys, JWT_EDDSA, NULL), &keys->key[1]);
	assert_int_equal(keys->key[2].n_modulus, 256);
	assert_int_equal(keys->key[2].n_exponent, 3);
}

static void test_without_a_kid_there_must_be_one_key(void **state)
{
	(void)state;
	const struct jwt_keys *keys = keys_of("{\"kid\":\"a\"," EC "},{\"kid\":\"b\"," EC "}", NULL);
	assert_null(key_find(keys, JWT_ES256, NULL));
	assert_ptr_equal(key_find(keys, JWT_ES256, "b"), &keys->key[1]);
}

static void test_keys_that_cannot_be_used_are_left_out(void **state)
{
	(void)state;
	char weak[2048], huge[2048];
	rsa_put(weak, sizeof weak, 255, "");
	rsa_put(huge, sizeof huge, 256, ",\"alg\":\"PS512\"");
	const char *const bad[] = {"{\"kty\":\"oct\",\"k\":\"c2VjcmV0\"}", "{" EC ",\"use\":\"enc\"}",
		"{" EC ",\"alg\":\"HS256\"}", "{" EC ",\"alg\":\"RS256\"}", "{" EC ",\"key_ops\":[\"sign\"]}",
		"{" EC ",\"key_ops\":\"verify\"}", "{" EC ",\"kid\":7}", "7",
		"{\"kty\":\"EC\",\"crv\":\"P-256\",\"x\":\"" X43 "\"}",
		"{\"kty\":\"EC\",\"crv\":\"P-384\",\"x\":\"" X43 "\",\"y\":\"" Y43 "\"}",
		"{\"kty\":\"EC\",\"crv\":\"P-256\",\"x\":\"AAAA\",\"y\":\"" Y43 "\"}",
		"{\"kty\":\"OKP\",\"crv\":\"X25519\",\"x\":\"" X43 "\"}", weak, huge};
	char list[4096];
	for (size_t i = 0; i < CGN_COUNT(bad); i++) {
		struct cgn_err err = {0};
		(void)snprintf(list, sizeof list, "%s,{\"kid\":\"good\"," OKP "}", bad[i]);
		const struct jwt_keys *keys = keys_of(list, &err);
		if (keys == NULL || keys->n != 1 || keys->left_out != 1)
			fail_msg("%s: %s", bad[i], err.msg);
		assert_null(keys_of(bad[i], &err));
		assert_non_null(strstr(err.msg, "no key for RS256"));
	}
}

static void test_texts_that_are_no_key_sets(void **state)
{
	(void)state;
	static const char *const bad[] = {"", "[]", "{}", "{\"keys\":{}}", "{\"keys\":[]}", "null"};
	static struct jwt_keys keys;
	for (size_t i = 0; i < CGN_COUNT(bad); i++)
		assert_int_equal(jwt_keys_read(cgn_str_of(bad[i]), &keys, NULL).code, CGN_INVALID);
	struct cgn_buf many = {0};
	struct cgn_err err = {0};
	cgn_buf_putz(&many, "{\"keys\":[{" EC "}");
	for (int i = 0; i < JWT_MAX_KEYS; i++)
		cgn_buf_putz(&many, ",{" EC "}");
	cgn_buf_putz(&many, "]}");
	assert_int_equal(jwt_keys_read(cgn_buf_view(&many), &keys, &err).code, CGN_INVALID);
	assert_non_null(strstr(err.msg, "more than 64 keys"));
	cgn_buf_fini(&many);
}

static void test_key_sets_that_two_readers_could_read_in_two_ways(void **state)
{
	(void)state;
	static struct jwt_keys keys;
	struct cgn_err err = {0};
	static const char *const bad[] = {"{\"keys\":[{" EC "}],\"keys\":[{" OKP "}]}",
		"{\"keys\":[{" EC ",\"kid\":\"a\",\"kid\":\"b\"}]}",
		"{\"keys\":[{" OKP ",\"\\u0078\":\"" Y43 "\"}]}"};
	for (size_t i = 0; i < CGN_COUNT(bad); i++) {
		assert_int_equal(jwt_keys_read(cgn_str_of(bad[i]), &keys, &err).code, CGN_INVALID);
		assert_non_null(strstr(err.msg, "twice"));
	}
}

/* An RSA key of |bytes| 0xa5, but for its first and last byte, with the exponent |e|. */
static bool rsa_is_taken(size_t bytes, uint8_t first, uint8_t last, const char *e)
{
	struct cgn_buf n = {0};
	char modulus[600], text[2048];
	memset(modulus, 0xa5, sizeof modulus);
	modulus[0] = (char)first;
	modulus[bytes - 1] = (char)last;
	base64url_put(&n, (struct cgn_str){modulus, bytes});
	(void)snprintf(text, sizeof text, "{\"kty\":\"RSA\",\"e\":\"%s\",\"n\":\"%s\"}", e, cgn_buf_z(&n));
	cgn_buf_fini(&n);
	return keys_of(text, NULL) != NULL;
}

static void test_rsa_keys_that_fit_any_signature(void **state)
{
	(void)state;
	assert_true(rsa_is_taken(256, 0xa5, 0xa5, "AQAB"));
	assert_true(rsa_is_taken(256, 0x80, 0x01, "Aw")); /* 3 */
	assert_true(rsa_is_taken(257, 0x01, 0x01, "AQAB"));
	assert_false(rsa_is_taken(256, 0x7f, 0xa5, "AQAB")); /* 2047 bits */
	assert_false(rsa_is_taken(256, 0xa5, 0xa4, "AQAB")); /* an even modulus */
	static const char *const exponents[] = {"", "AA", "AQ", "AAE", "Ag", "AQAA",
		"AAAAAAAAAAAB"}; /* 0, 1, 1, 2, 65536, 1 */
	for (size_t i = 0; i < CGN_COUNT(exponents); i++)
		if (rsa_is_taken(256, 0xa5, 0xa5, exponents[i]))
			fail_msg("an exponent is taken: %s", exponents[i]);
}

static bool point_is_taken(const uint8_t y[32])
{
	struct cgn_buf x = {0};
	char text[256];
	base64url_put(&x, (struct cgn_str){(const char *)y, 32});
	(void)snprintf(text, sizeof text, "{\"kty\":\"OKP\",\"crv\":\"Ed25519\",\"x\":\"%s\"}",
		cgn_buf_z(&x));
	cgn_buf_fini(&x);
	return keys_of(text, NULL) != NULL;
}

/* The eight points whose order divides 8, in each coding (the y coordinates of RFC 7748's twist check, as libsodium lists
 * them): with the sign of x or without. */
static void test_points_of_small_order(void **state)
{
	(void)state;
	static const uint8_t order_8[32] = {0x26, 0xe8, 0x95, 0x8f, 0xc2, 0xb2, 0x27, 0xb0, 0x45, 0xc3, 0xf4,
		0x89, 0xf2, 0xef, 0x98, 0xf0, 0xd5, 0xdf, 0xac, 0x05, 0xd3, 0xc6, 0x33, 0x39, 0xb1, 0x38,
		0x02, 0x88, 0x6d, 0x53, 0xfc, 0x05};
	static const struct {
		uint8_t first, middle, end;
	} ys[] = {{0, 0, 0}, {1, 0, 0}, {0xec, 0xff, 0x7f}, {0xed, 0xff, 0x7f}, {0xee, 0xff, 0x7f}};
	uint8_t y[32];
	for (int sign = 0; sign < 2; sign++) {
		for (size_t i = 0; i < CGN_COUNT(ys); i++) {
			memset(y, ys[i].middle, sizeof y);
			y[0] = ys[i].first;
			y[31] = (uint8_t)(ys[i].end | sign << 7);
			assert_false(point_is_taken(y));
		}
		unsigned borrow = 0; /* p - y is the other coordinate of order 8. */
		memcpy(y, order_8, sizeof y);
		y[31] = (uint8_t)(y[31] | sign << 7);
		assert_false(point_is_taken(y));
		for (size_t i = 0; i < sizeof y; i++) {
			unsigned p = i == 0 ? 0xed : i == 31 ? 0x7f : 0xff, less = order_8[i] + borrow;
			borrow = p < less;
			y[i] = (uint8_t)(p - less);
		}
		y[31] = (uint8_t)(y[31] | sign << 7);
		assert_false(point_is_taken(y));
	}
	memset(y, 0, sizeof y);
	y[0] = 3;
	assert_true(point_is_taken(y));
	memset(y, 0xff, sizeof y);
	y[0] = 0xeb;
	y[31] = 0x7f;
	assert_true(point_is_taken(y));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_token_comes_apart),
		cmocka_unit_test(test_the_token_does_not_choose_how_it_is_checked),
		cmocka_unit_test(test_what_two_readers_could_read_in_two_ways_is_refused),
		cmocka_unit_test(test_texts_that_are_no_tokens),
		cmocka_unit_test(test_claims_that_hold),
		cmocka_unit_test(test_claims_that_do_not_hold),
		cmocka_unit_test(test_claims_by_their_paths),
		cmocka_unit_test(test_a_key_is_found_by_kid_and_algorithm),
		cmocka_unit_test(test_without_a_kid_there_must_be_one_key),
		cmocka_unit_test(test_keys_that_cannot_be_used_are_left_out),
		cmocka_unit_test(test_texts_that_are_no_key_sets),
		cmocka_unit_test(test_key_sets_that_two_readers_could_read_in_two_ways),
		cmocka_unit_test(test_rsa_keys_that_fit_any_signature),
		cmocka_unit_test(test_points_of_small_order),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
