/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz jwt: no text breaks the reading of a token or of a key set, and nothing that is read points outside. The first
 * byte says whether the rest is a token, its claims, or a key set. */
#include <stdlib.h>

#include "base/codec/codec.h"
#include "policy/who/jwt/jwt.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const struct jwt_rules rules = {{"https://id.example", 18}, {"cognitora", 9}, 60};

static void check_token(struct cgn_str text)
{
	struct jwt t = {0};
	struct jwt_facts facts;
	struct json_val v;
	if (cgn_ok(jwt_read(text, &t, NULL))) {
		CGN_MUST(t.alg < JWT_ALGS && t.claims.type == JSON_OBJECT);
		CGN_MUST(t.signed_text.p == text.p && t.signed_text.n < text.n);
		if (cgn_ok(jwt_check(&t, &rules, 1700000000, &facts, NULL)))
			CGN_MUST(facts.subject[0] != '\0' && facts.expires > 0);
		(void)jwt_claim(t.claims, CGN_STR("a.b"), &v);
	}
	jwt_fini(&t);
}

static void check_claims(struct cgn_str claims)
{
	struct cgn_buf token = {0};
	base64url_put(&token, CGN_STR("{\"alg\":\"RS256\"}"));
	cgn_buf_char(&token, '.');
	base64url_put(&token, claims);
	cgn_buf_putz(&token, ".c2ln");
	check_token(cgn_buf_view(&token));
	cgn_buf_fini(&token);
}

static void check_keys(struct cgn_str text)
{
	struct jwt_keys *keys = calloc(1, sizeof *keys);
	CGN_MUST(keys != NULL);
	if (cgn_ok(jwt_keys_read(text, keys, NULL))) {
		CGN_MUST(keys->n > 0 && keys->n <= JWT_MAX_KEYS);
		for (size_t i = 0; i < keys->n; i++)
			CGN_MUST(keys->key[i].alg < JWT_ALGS && keys->key[i].n_modulus <= JWT_MODULUS_MAX);
	}
	free(keys);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	if (n == 0)
		return 0;
	struct cgn_str rest = {(const char *)data + 1, n - 1};
	if (data[0] % 3 == 0)
		check_token(rest);
	else if (data[0] % 3 == 1)
		check_claims(rest);
	else
		check_keys(rest);
	return 0;
}
