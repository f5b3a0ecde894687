/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "policy/who/isolation/isolation.h"

struct salt {
	char text[ISOLATION_SALT + 1];
};

static struct salt salt_of(uint8_t secret, const char *tenant, const char *group, const char *own)
{
	struct salt s = {{0}};
	struct digest key = {{secret}}, of_own = digest_of(cgn_str_of(own));
	const struct isolation_owner who = {cgn_str_of(tenant), cgn_str_of(group)};
	isolation_salt(&key, &who, own != NULL ? &of_own : NULL, s.text);
	assert_int_equal(strlen(s.text), ISOLATION_SALT);
	assert_int_equal(strspn(s.text, "0123456789abcdef"), ISOLATION_SALT);
	return s;
}

static void test_salts_differ_by_secret_tenant_group_and_the_clients_own(void **state)
{
	(void)state;
	const struct salt all[] = {
		salt_of(1, "a", "", NULL),
		salt_of(2, "a", "", NULL), /* another cluster, or a rotated secret */
		salt_of(1, "b", "", NULL), salt_of(1, "a", "g", NULL),
		salt_of(1, "g", "", NULL), /* a tenant that is called like a group */
		salt_of(1, "a", "", ""), salt_of(1, "a", "", "x"), salt_of(1, "b", "", "x"),
		salt_of(1, "ax", "", NULL), /* no border can be moved */
	};
	for (size_t i = 0; i < CGN_COUNT(all); i++)
		for (size_t k = 0; k < i; k++)
			assert_string_not_equal(all[i].text, all[k].text);
	assert_string_equal(salt_of(1, "a", "", "x").text, all[6].text);
	/* The tenants of a group have one salt. */
	assert_string_equal(salt_of(1, "b", "g", NULL).text, all[3].text);
	/* All routers of a cluster, of any version, make the same salt. */
	assert_string_equal(all[0].text, "b328fc8fa314c1f178a213430d7de343");
}

static void test_a_secret_is_64_hex_digits(void **state)
{
	(void)state;
	struct digest secret = {{0x3f, 0x9a, 1}}, again;
	struct cgn_buf text = {0};
	struct cgn_err err = {0};
	isolation_secret_put(&secret, &text);
	assert_int_equal(text.n, 65);
	assert_true(cgn_ok(isolation_secret_read(cgn_buf_view(&text), &again, &err)));
	assert_memory_equal(&again, &secret, sizeof secret);
	text.p[0] = 'g';
	assert_int_equal(isolation_secret_read(cgn_buf_view(&text), &again, &err).code, CGN_INVALID);
	assert_non_null(strstr(err.msg, "64 hex digits"));
	assert_int_equal(isolation_secret_read(CGN_STR(""), &again, &err).code, CGN_INVALID);
	assert_int_equal(isolation_secret_read(CGN_STR("00ff"), &again, &err).code, CGN_INVALID);
	cgn_buf_fini(&text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_salts_differ_by_secret_tenant_group_and_the_clients_own),
		cmocka_unit_test(test_a_secret_is_64_hex_digits),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
