/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "policy/who/auth/auth.h"

#define HASH_A \
	"sha256:5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8" /* SHA-256 of "password" */
#define HASH_B \
	"sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08" /* SHA-256 of "test" */
#define WHEN "2026-01-31T08:00:00Z"

static const struct digest seed = {{1, 2, 3}};

static struct auth_keys *keys_of(const char *text)
{
	struct auth_keys *k = NULL;
	struct cgn_err err = {0};
	if (!cgn_ok(auth_keys_parse("keys", cgn_str_of(text), &seed, &k, &err)))
		fail_msg("%s", err.msg);
	return k;
}

static bool is_known(const struct auth_keys *k, const char *secret)
{
	struct auth_key key;
	return auth_keys_find(k, cgn_str_of(secret), &key);
}

static struct auth_key key_of(const struct auth_keys *k, const char *secret)
{
	struct auth_key key = {0};
	assert_true(auth_keys_find(k, cgn_str_of(secret), &key));
	return key;
}

static struct auth_key key_at(const struct auth_keys *k, size_t i)
{
	struct auth_key key;
	auth_keys_at(k, i, &key);
	return key;
}

static void a_file_is_read_and_keys_found(void **state)
{
	(void)state;
	struct auth_keys *k = keys_of("# keys of the house\n\n"
				      "a " HASH_A " chat,embed " WHEN " laptop of Ann\r\n"
				      "  b " HASH_B " admin " WHEN "\n");
	assert_int_equal(auth_keys_count(k), 2);
	struct auth_key a = key_of(k, "password"), b = key_of(k, "test");
	assert_string_equal(a.id, "a");
	assert_string_equal(a.name, "laptop of Ann");
	assert_string_equal(a.created, WHEN);
	assert_int_equal(a.scopes, AUTH_CHAT | AUTH_EMBED);
	assert_string_equal(b.id, "b");
	assert_string_equal(b.name, "");
	assert_int_equal(b.scopes, AUTH_ADMIN);
	assert_false(is_known(k, "Password"));
	assert_false(is_known(k, ""));
	assert_false(is_known(k, HASH_A));
	auth_keys_unref(&k);
	auth_keys_unref(&k);
	k = keys_of("");
	assert_false(is_known(k, "password"));
	auth_keys_unref(&k);
	/* A request without a key is refused, even if a file has the hash of an empty secret. */
	k = keys_of(
		"a sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855 chat " WHEN "\n");
	assert_int_equal(auth_keys_count(k), 1);
	assert_false(is_known(k, ""));
	auth_keys_unref(&k);
}

static void of_two_keys_with_one_secret_the_last_counts(void **state)
{
	(void)state;
	struct auth_keys *k = keys_of("a " HASH_A " chat " WHEN "\nb " HASH_A " admin " WHEN "\n");
	assert_int_equal(auth_keys_count(k), 2);
	assert_string_equal(key_of(k, "password").id, "b");
	auth_keys_unref(&k);
}

static void a_set_lives_as_long_as_somebody_uses_it(void **state)
{
	(void)state;
	struct auth_keys *k = keys_of("a " HASH_A " chat " WHEN "\n"), *also = k;
	auth_keys_ref(also);
	auth_keys_unref(&k);
	assert_true(is_known(also, "password"));
	auth_keys_unref(&also);
}

static void keys_belong_to_tenants(void **state)
{
	(void)state;
	static const struct {
		const char *rest, *tenant, *name;
	} rows[] = {
		{"", "a", ""},
		{" laptop", "a", "laptop"},
		{" tenant=acme", "acme", ""},
		{"   tenant=acme   build  server ", "acme", "build  server"},
		/* A name, as in files without tenants. */
		{" laptop tenant=acme", "a", "laptop tenant=acme"},
		{" tenant=b=c", "b=c", ""},
	};
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		struct cgn_buf line = {0}, again = {0};
		cgn_buf_fmt(&line, "a " HASH_A " chat " WHEN "%s\n", rows[i].rest);
		struct auth_keys *k = keys_of(cgn_buf_z(&line));
		struct auth_key key = key_at(k, 0);
		assert_string_equal(auth_key_tenant(&key), rows[i].tenant);
		assert_string_equal(key.name, rows[i].name);
		auth_key_format(&key, &again);
		struct auth_keys *same = keys_of(cgn_buf_z(&again));
		struct auth_key back = key_at(same, 0);
		assert_memory_equal(&back, &key, sizeof key);
		auth_keys_unref(&same);
		auth_keys_unref(&k);
		cgn_buf_fini(&line);
		cgn_buf_fini(&again);
	}
}

static void lines_that_are_wrong_are_named(void **state)
{
	(void)state;
	static const struct {
		const char *text, *says;
	} rows[] = {
		{"#\na b", "keys:2: the second field"},
		{"a sha256:12 chat " WHEN, "keys:1: the second field"},
		{"a sha512:5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8 chat " WHEN,
			"the second field"},
		{"a " HASH_A "00 chat " WHEN, "the second field"},
		{"a sha256:zz884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8 chat " WHEN,
			"the second field"},
		{"a " HASH_A " chat,root " WHEN, "\"root\" is not a scope"},
		{"a " HASH_A " chat, " WHEN, "\"\" is not a scope"},
		{"a " HASH_A "  " WHEN, "\"\" is not a scope"},
		{"a " HASH_A " chat yesterday", "the fourth field is a time"},
		{"a " HASH_A " chat 2026-01-31T08:00:00z", "the fourth field"},
		{"a " HASH_A " chat", "the fourth field"},
		{"a " HASH_A " chat " WHEN " x\ny " HASH_B " chat " WHEN "\na " HASH_B " chat " WHEN,
			"keys:3: a second key with the id a"},
		{"0123456789012345678901234567890123 " HASH_A " chat " WHEN, "id has 1 to 32"},
		{"\x01 " HASH_A " chat " WHEN, "id has 1 to 32"},
		{"a " HASH_A " chat " WHEN " tab\tbed", "name has at most"},
		{"a " HASH_A " chat " WHEN " \x1b[2J", "name has at most"},
		{"a " HASH_A " chat " WHEN " \xff\xfe", "name has at most"},
		{"a " HASH_A " chat " WHEN " tenant=", "keys:1: tenant= does not take this value"},
		{"a " HASH_A " chat " WHEN " tenant= name", "keys:1: tenant= does not take this value"},
		{"a " HASH_A " chat " WHEN " tenant=- name", "keys:1: tenant= does not take this value"},
		{"a " HASH_A " chat " WHEN " tenant=a\tb", "keys:1: tenant= does not take this value"},
		{"a " HASH_A " chat " WHEN " tenant=a networks=10.0.0.0/8 a name",
			"keys:1: this version knows no attribute 'networks'"},
		{"a " HASH_A " chat " WHEN " expires=tomorrow", "keys:1: expires= does not take"},
		{"a " HASH_A " chat " WHEN " expires=2026-13-01T00:00:00Z", "keys:1: expires= does not take"},
		{"a " HASH_A " chat " WHEN " locked= name", "keys:1: locked= does not take"},
		{"a " HASH_A " chat " WHEN " limits=rps=fast", "keys:1: limits=: rps takes"},
		{"a " HASH_A " chat " WHEN " limits=rps=1,rps=2", "keys:1: limits=: limits are"},
		{"a " HASH_A " chat " WHEN " limits=cascade=maybe", "cascade takes off"},
		{"a " HASH_A " chat " WHEN " limits=cascade=off,cascade=off", "keys:1: limits=: limits are"},
		{"a " HASH_A " chat " WHEN " limits=", "keys:1: limits=: "},
		{"a " HASH_A " chat " WHEN " limits=5USD/day,", "keys:1: limits=: "},
		{"a " HASH_A " chat " WHEN " limits=tokens_per_minute=0", "tokens_per_minute takes"},
		{"a " HASH_A " chat " WHEN
		 " 0123456789012345678901234567890123456789012345678901234567890123x",
			"name has at most"},
	};
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		struct auth_keys *k = NULL;
		struct cgn_err err = {0};
		cgn_rc rc = auth_keys_parse("keys", cgn_str_of(rows[i].text), &seed, &k, &err);
		assert_int_equal(rc.code, CGN_INVALID);
		assert_null(k);
		if (strstr(err.msg, rows[i].says) == NULL)
			fail_msg("row %zu: \"%s\" does not say \"%s\"", i, err.msg, rows[i].says);
		assert_null(strstr(err.msg, "5e884898")); /* Not even hashes appear in logs. */
	}
}

static void a_new_key_survives_its_file(void **state)
{
	(void)state;
	uint8_t entropy[AUTH_SECRET_BYTES];
	for (size_t i = 0; i < sizeof entropy; i++)
		entropy[i] = (uint8_t)(i * 7 + 1);
	struct auth_key made = {.scopes = AUTH_CHAT | AUTH_ADMIN,
		.name = "ci",
		.tenant = "acme",
		.models = "llama-*,qwen",
		.role = "night-shift",
		.limits = "rps=0.5,5USD/day,3kWh/month",
		.expires = 1769846400,
		.locked = 1769846401};
	char secret[AUTH_SECRET_MAX];
	assert_true(cgn_ok(auth_key_make(entropy, 1769846400, &made, secret, NULL)));
	assert_int_equal(strncmp(secret, "cgn_", 4), 0);
	assert_int_equal(strlen(secret), 4 + 43);
	assert_string_equal(made.created, "2026-01-31T08:00:00Z");
	assert_string_equal(made.name, "ci");
	assert_string_equal(made.tenant, "acme");
	assert_int_equal(strlen(made.id), 8);
	struct cgn_buf line = {0};
	auth_key_format(&made, &line);
	assert_null(strstr(cgn_buf_z(&line), secret + 4));
	struct auth_keys *k = keys_of(cgn_buf_z(&line));
	struct auth_key found = key_of(k, secret);
	assert_memory_equal(&found, &made, sizeof made);
	secret[10] ^= 1;
	assert_false(is_known(k, secret));
	auth_keys_unref(&k);
	cgn_buf_fini(&line);
	static const struct auth_key bad[] = {{.scopes = 1, .name = "a\nb"},
		{.scopes = 1, .tenant = "two words"}, {.scopes = 1, .name = "tenant=x"},
		{.scopes = 1, .name = "new=x"}, {.scopes = 1, .name = "locked=x y"},
		{.scopes = 1, .role = "a b"}, {.scopes = 1, .models = "llama, qwen"},
		{.scopes = 1, .tenant = "-"}};
	for (size_t i = 0; i < CGN_COUNT(bad); i++) {
		struct cgn_err err;
		made = bad[i];
		assert_int_equal(auth_key_make(entropy, 0, &made, secret, &err).code, CGN_INVALID);
	}
}

static void the_last_use_is_kept(void **state)
{
	(void)state;
	struct auth_key key;
	struct cgn_buf lines = {0};
	struct auth_keys *k = keys_of("a " HASH_A " chat " WHEN "\nb " HASH_B " chat " WHEN "\n");
	assert_true(auth_keys_used_at(k, 0) == 0 && auth_keys_uses(k) == 0);
	assert_true(auth_keys_use(k, CGN_STR("password"), 1000, &key) && strcmp(key.id, "a") == 0);
	assert_false(auth_keys_use(k, CGN_STR("nothing"), 1000, &key));
	assert_true(auth_keys_use(k, CGN_STR("password"), 1001, &key)); /* So soon after, nothing is noted. */
	assert_true(
		auth_keys_used_at(k, 0) == 1000 && auth_keys_used_at(k, 1) == 0 && auth_keys_uses(k) == 1);
	auth_keys_used_put(k, &lines);
	assert_string_equal(cgn_buf_z(&lines), "a 1000\n");
	auth_keys_used_read(k, CGN_STR("a 999\nb 7\nc 5\n\nb\nb x\nb 99999999999999\n a 2000"));
	assert_true(auth_keys_used_at(k, 0) == 1000 && auth_keys_used_at(k, 1) == 7);
	auth_keys_unref(&k);
	cgn_buf_fini(&lines);
}

static void attributes_stand_before_the_name(void **state)
{
	(void)state;
	struct auth_keys *k =
		keys_of("a " HASH_A " chat " WHEN
			" expires=2026-07-31T08:00:00Z models=llama-*,qwen tenant=acme role=r X=y z\n"
			"b " HASH_B " chat " WHEN " locked=2026-02-01T00:00:00Z expires\n");
	struct auth_key a = key_at(k, 0), b = key_at(k, 1), same;
	assert_true(a.expires == 1785484800 && a.locked == 0 && b.locked == 1769904000 && b.expires == 0);
	assert_string_equal(a.models, "llama-*,qwen");
	assert_string_equal(a.role, "r");
	assert_string_equal(a.tenant, "acme");
	assert_string_equal(a.name, "X=y z");
	assert_string_equal(b.name, "expires");
	assert_true(auth_models_have(cgn_str_of(a.models), CGN_STR("llama-3")));
	assert_true(auth_models_have(cgn_str_of(a.models), CGN_STR("qwen")));
	assert_false(auth_models_have(cgn_str_of(a.models), CGN_STR("qwen2")));
	assert_true(auth_models_have(cgn_str_of(b.models), CGN_STR("any")));
	assert_true(auth_keys_by_id(k, CGN_STR("b"), &same) && memcmp(&same, &b, sizeof b) == 0);
	assert_false(auth_keys_by_id(k, CGN_STR("c"), &same));
	auth_keys_unref(&k);
}

#define MANY 20000

/* More keys than fit in any table that starts small; none lost, none confused, bounded memory. */
static void many_keys_are_all_found(void **state)
{
	(void)state;
	struct cgn_buf text = {0};
	char(*secrets)[AUTH_SECRET_MAX] = calloc(MANY, sizeof *secrets);
	for (unsigned i = 0; i < MANY; i++) {
		uint8_t entropy[AUTH_SECRET_BYTES] = {(uint8_t)i, (uint8_t)(i >> 8), 9};
		struct auth_key key = {.scopes = 1 + i % 7};
		assert_true(cgn_ok(auth_key_make(entropy, i, &key, secrets[i], NULL)));
		(void)snprintf(key.id, sizeof key.id, "key-%u", i); /* 32 random bits may repeat */
		auth_key_format(&key, &text);
	}
	struct auth_keys *k = keys_of(cgn_buf_z(&text));
	assert_int_equal(auth_keys_count(k), MANY);
	for (unsigned i = 0; i < MANY; i++) {
		struct auth_key key = key_of(k, secrets[i]), line = key_at(k, i);
		assert_memory_equal(&key, &line, sizeof key);
		assert_int_equal(key.scopes, 1 + i % 7);
		assert_true(auth_keys_by_id(k, cgn_str_of(line.id), &key));
		assert_memory_equal(&key, &line, sizeof key);
	}
	assert_true(auth_keys_bytes(k) < MANY * (82 + strlen("key-19999") + 32) + 4096);
	auth_keys_unref(&k);
	cgn_buf_fini(&text);
	free(secrets);
}

static void bearer_tokens_are_taken_from_the_field(void **state)
{
	(void)state;
	assert_true(cgn_str_is(auth_bearer(CGN_STR("Bearer abc")), "abc"));
	assert_true(cgn_str_is(auth_bearer(CGN_STR("bEARER   abc ")), "abc"));
	assert_int_equal(auth_bearer(CGN_STR("Basic abc")).n, 0);
	assert_int_equal(auth_bearer(CGN_STR("Bearer")).n, 0);
	assert_int_equal(auth_bearer(CGN_STR("Bearer ")).n, 0);
	assert_int_equal(auth_bearer(CGN_STR("")).n, 0);
	assert_int_equal(auth_bearer((struct cgn_str){NULL, 0}).n, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_file_is_read_and_keys_found),
		cmocka_unit_test(of_two_keys_with_one_secret_the_last_counts),
		cmocka_unit_test(a_set_lives_as_long_as_somebody_uses_it),
		cmocka_unit_test(keys_belong_to_tenants),
		cmocka_unit_test(lines_that_are_wrong_are_named),
		cmocka_unit_test(a_new_key_survives_its_file),
		cmocka_unit_test(the_last_use_is_kept),
		cmocka_unit_test(attributes_stand_before_the_name),
		cmocka_unit_test(many_keys_are_all_found),
		cmocka_unit_test(bearer_tokens_are_taken_from_the_field),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
