/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks go to other sites only if their tenant and model are known and named. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "policy/kv/kvsite/kvsite.h"

static const char *const lists[] = {"acme", "lab-*", "llama-*", "*"};
static const struct kvsites sites = {.n = 4,
	.v = {{.name = "named", .tenants = lists, .n_tenants = 2, .models = lists + 2, .n_models = 1},
		{.name = "all", .tenants = lists + 3, .n_tenants = 1, .models = lists + 3, .n_models = 1},
		{.name = "no models", .tenants = lists + 3, .n_tenants = 1},
		{.name = "no tenants", .models = lists + 3, .n_models = 1}}};

static struct block_leave leave_of(const char *tenant, const char *model)
{
	return kvsites_judge(&sites, cgn_str_of(tenant), cgn_str_of(model));
}

static void named_blocks_leave(void **state)
{
	(void)state;
	assert_int_equal(leave_of("acme", "llama-8b").may, 3);
	assert_int_equal(leave_of("lab-7", "llama-8b").may, 3);
	assert_int_equal(leave_of("acme", "qwen").may, 2);
	assert_int_equal(leave_of("other", "llama-8b").may, 2);
	assert_int_equal(leave_of("-", "qwen").may, 2); /* a request that needs no key has a tenant */
	assert_int_equal(leave_of("acme2", "llama-8b").may, 2);
	assert_int_equal(kvsites_judge(NULL, CGN_STR("acme"), CGN_STR("m")).may, 0);
}

static void what_is_not_known_stays(void **state)
{
	(void)state;
	assert_int_equal(leave_of("", "llama-8b").may, 0);
	assert_int_equal(leave_of("acme", "").may, 0);
	assert_int_equal(leave_of("", "").may, 0);
	assert_int_equal(kvsites_of_tenant(&sites, CGN_STR("")), 0);
	assert_int_equal(kvsites_of_tenant(NULL, CGN_STR("acme")), 0);
	assert_int_equal(kvsites_of_tenant(&sites, CGN_STR("acme")), 7);
	assert_int_equal(kvsites_of_tenant(&sites, CGN_STR("-")), 6);
	assert_false(kvsite_takes_model(&sites.v[1], CGN_STR("")));
}

static void the_reason_is_told(void **state)
{
	(void)state;
	assert_int_equal(kvsite_why(leave_of("acme", "llama-8b"), 0), KVSITE_MAY);
	assert_int_equal(kvsite_why(leave_of("", "llama-8b"), 0), KVSITE_NO_TENANT);
	assert_int_equal(kvsite_why(leave_of("other", "llama-8b"), 0), KVSITE_TENANT);
	assert_int_equal(kvsite_why(leave_of("acme", "qwen"), 0), KVSITE_MODEL);
	assert_int_equal(kvsite_why(leave_of("acme", "qwen"), 2), KVSITE_MODEL);
	assert_int_equal(kvsite_why(leave_of("acme", "qwen"), 3), KVSITE_TENANT);
	assert_string_equal(kvsite_why_text(KVSITE_NO_TENANT), "no tenant");
	assert_string_equal(kvsite_why_text(KVSITE_TENANT), "tenant");
	assert_string_equal(kvsite_why_text(KVSITE_MODEL), "model");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(named_blocks_leave),
		cmocka_unit_test(what_is_not_known_stays),
		cmocka_unit_test(the_reason_is_told),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
