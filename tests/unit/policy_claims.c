/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/codec/codec.h"
#include "policy/config/config.h"
#include "policy/fleet/settings/settings.h"
#include "policy/who/claims/claims.h"
#include "policy/who/identity/identity.h"

#define NOW  1700000000
#define AUTH "[auth]\noidc_issuer = \"https://id.example\"\noidc_audience = \"cognitora\"\n"

static cgn_rc rules_load(const char *toml, struct claims_rules **out, struct cgn_err *err)
{
	struct config *cfg = NULL;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	cgn_buf_fmt(&text, "%s%s", AUTH, toml);
	CGN_TRY(settings_load("t.toml", cgn_buf_view(&text), NULL, NULL, 0, &cfg, err));
	cgn_rc rc = claims_rules_new(cfg, out, err);
	config_free(&cfg); /* The rules keep their texts. */
	return rc;
}

/* Judge a token with |claims| besides the usual ones by the rules of |toml|. */
static cgn_rc token_judge(const char *toml, const char *claims, struct claims_holder *out,
	struct cgn_err *err)
{
	struct claims_rules *rules = NULL;
	struct jwt t = {0};
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf token = {0}, text = {0};
	if (!cgn_ok(rules_load(toml, &rules, err)))
		fail_msg("%s", err->msg);
	cgn_buf_fmt(&text,
		"{\"iss\":\"https://id.example\",\"aud\":\"cognitora\",\"sub\":\"ann\",\"exp\":%d%s}",
		NOW + 100, claims);
	base64url_put(&token, CGN_STR("{\"alg\":\"RS256\"}"));
	cgn_buf_char(&token, '.');
	base64url_put(&token, cgn_buf_view(&text));
	cgn_buf_putz(&token, ".c2ln");
	assert_true(cgn_ok(jwt_read(cgn_buf_view(&token), &t, err)));
	cgn_rc rc = claims_judge(rules, &t, (struct cgn_str){0}, NOW, out, err);
	jwt_fini(&t);
	claims_rules_unref(&rules);
	return rc;
}

static struct claims_holder holder_of(const char *toml, const char *claims)
{
	struct claims_holder h;
	struct cgn_err err = {0};
	if (!cgn_ok(token_judge(toml, claims, &h, &err)))
		fail_msg("%s", err.msg);
	return h;
}

static void test_without_rules_a_subject_is_a_user_and_a_tenant(void **state)
{
	(void)state;
	struct claims_holder h = holder_of("", "");
	assert_string_equal(h.subject, "ann");
	assert_int_equal(h.n_roles, 1);
	assert_string_equal(h.role[0], "user");
	assert_string_equal(h.tenant, h.account);
	assert_int_equal(strlen(h.account), strlen("ann~") + 16);
	assert_memory_equal(h.account, "ann~", 4);
	assert_string_equal(h.limits, "");
	assert_int_equal(h.expires, NOW + 100 + 60);
	struct claims_holder same = holder_of("", ",\"roles\":[\"operator\"]");
	assert_string_equal(h.tenant, same.tenant);
	assert_string_equal(same.role[0], "user"); /* No claim is set that names roles. */
}

static void test_roles_of_a_claim(void **state)
{
	(void)state;
	const char *toml = "role_claim = \"realm_access.roles\"\n";
	struct claims_holder h =
		holder_of(toml, ",\"realm_access\":{\"roles\":[\"viewer\",\"\",7,{\"x\":1},\"night\"]}");
	assert_int_equal(h.n_roles, 3);
	assert_string_equal(h.role[0], "viewer");
	assert_string_equal(h.role[1], "7");
	assert_string_equal(h.role[2], "night");
	assert_string_equal(holder_of(toml, "").role[0], "user");
	h = holder_of("role_claim = \"role\"\n", ",\"role\":\"operator\"");
	assert_int_equal(h.n_roles, 1);
	struct identity_roles *table = NULL;
	assert_true(cgn_ok(identity_roles_new(NULL, &table, NULL)));
	assert_int_equal(claims_roles(&h, table), IDENTITY_BIT(OPERATOR));
	h = holder_of("role_claim = \"role\"\n", ",\"role\":[\"no-such\",\"Operator\"]");
	assert_int_equal(claims_roles(&h, table), 0);
	identity_roles_unref(&table);
}

static void test_more_roles_than_room(void **state)
{
	(void)state;
	char claims[2000] = ",\"r\":[\"a\"";
	for (int i = 0; i < 40; i++)
		(void)snprintf(claims + strlen(claims), sizeof claims - strlen(claims), ",\"role%d\"", i);
	(void)snprintf(claims + strlen(claims), sizeof claims - strlen(claims), "]");
	struct claims_holder h = holder_of("role_claim = \"r\"\n", claims);
	assert_int_equal(h.n_roles, CLAIMS_ROLES_MAX);
	assert_string_equal(h.role[0], "a");
}

#define RULES                                                                                                        \
	"role_claim = \"roles\"\n[claims.\"1-acme\"]\nclaim = \"groups\"\nvalue = \"acme-*\"\ntenant = \"acme\"\n"   \
	"limits = \"rps=5\"\n[claims.\"2-admins\"]\nclaim = \"groups\"\nvalue = \"*-admins\"\nrole = \"operator\"\n" \
	"tenant = \"house\"\n[claims.\"3-all\"]\nclaim = \"email_verified\"\nvalue = \"true\"\nrole = \"user\"\nlimits = \"rps=1\"\n"

static void test_rules_give_tenant_role_and_limits(void **state)
{
	(void)state;
	struct claims_holder h = holder_of(RULES, ",\"groups\":[\"x\",\"acme-dev\"]");
	assert_string_equal(h.tenant, "acme");
	assert_string_equal(h.limits, "rps=5");
	assert_string_equal(h.role[0], "user"); /* auth.oidc_default_role */
	h = holder_of(RULES, ",\"groups\":[\"acme-admins\"],\"email_verified\":true,\"roles\":\"viewer\"");
	assert_string_equal(h.tenant, "acme"); /* The first rule that has one. */
	assert_string_equal(h.limits, "rps=5");
	assert_int_equal(h.n_roles, 3);
	assert_string_equal(h.role[0], "operator");
	assert_string_equal(h.role[1], "user");
	assert_string_equal(h.role[2], "viewer");
	h = holder_of(RULES, ",\"groups\":\"house-admins\"");
	assert_string_equal(h.tenant, "house");
	assert_int_equal(h.n_roles, 1);
	h = holder_of(RULES, ",\"email_verified\":\"false\",\"groups\":{\"acme-dev\":1}");
	assert_string_equal(h.tenant, h.account);
}

static void test_the_tenant_of_a_claim(void **state)
{
	(void)state;
	static const char *const toml = "tenant_claim = \"org.name\"\n";
	static const char *const bad[] = {",\"org\":{\"name\":\"a b\"}", ",\"org\":{\"name\":\"-\"}",
		",\"org\":{\"name\":\"a\\nb\"}", ",\"org\":{\"name\":\"a\\u0000b\"}"};
	struct claims_holder h = holder_of(toml, ",\"org\":{\"name\":\"acme\"}");
	struct cgn_err err = {0};
	assert_string_equal(h.tenant, "acme");
	for (size_t i = 0; i < CGN_COUNT(bad); i++) {
		assert_int_equal(token_judge(toml, bad[i], &h, &err).code, CGN_FORBIDDEN);
		assert_non_null(strstr(err.msg, "org.name (auth.tenant_claim)"));
	}
	assert_memory_equal(holder_of(toml, "").tenant, "ann~", 4);
}

static void test_who_gets_no_role_is_refused(void **state)
{
	(void)state;
	struct claims_holder h;
	struct cgn_err err = {0};
	assert_int_equal(token_judge("oidc_default_role = \"\"\nrole_claim = \"r\"\n", "", &h, &err).code,
		CGN_FORBIDDEN);
	assert_non_null(strstr(err.msg, "gives no role"));
	assert_true(cgn_ok(
		token_judge("oidc_default_role = \"\"\nrole_claim = \"r\"\n", ",\"r\":\"x\"", &h, &err)));
}

static void test_rules_that_are_wrong(void **state)
{
	(void)state;
	static const struct {
		const char *toml, *why;
	} bad[] = {
		{"[claims.\"a\"]\nrole = \"x\"\n", "claims.\"a\": claim is missing"},
		{"[claims.\"a\"]\nclaim = \"x\"\n", "it gives nothing"},
		{"[claims.\"a\"]\nclaim = \"x\"\ntenant = \"a b\"\n", "claims.\"a\".tenant"},
		{"[claims.\"a\"]\nclaim = \"x\"\nlimits = \"fast\"\n", "claims.\"a\".limits"},
		{"[claims.\"a\"]\nclaims = \"x\"\n", "claim"},
	};
	for (size_t i = 0; i < CGN_COUNT(bad); i++) {
		struct claims_rules *rules = NULL;
		struct cgn_err err = {0};
		assert_int_equal(rules_load(bad[i].toml, &rules, &err).code, CGN_INVALID);
		if (strstr(err.msg, bad[i].why) == NULL)
			fail_msg("%s", err.msg);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_without_rules_a_subject_is_a_user_and_a_tenant),
		cmocka_unit_test(test_roles_of_a_claim),
		cmocka_unit_test(test_more_roles_than_room),
		cmocka_unit_test(test_rules_give_tenant_role_and_limits),
		cmocka_unit_test(test_the_tenant_of_a_claim),
		cmocka_unit_test(test_who_gets_no_role_is_refused),
		cmocka_unit_test(test_rules_that_are_wrong),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
