/* SPDX-License-Identifier: Apache-2.0 */
/* Names, keys and times of a cluster in Kubernetes. tests/kube has the behaviour, against the real API server. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "joint/cluster/state/kube_priv.h"

static void leases_have_the_nodes_name_where_it_is_one(void **state)
{
	static const struct kube_place place = {.cluster = "c"};
	static const char *const plain[] = {"n1", "gpu-7.rack-2", "0"};
	static const char *const hashed[] = {"N1", "a_b", ".a", "a.", "a..b", "a-.b", "-a", "a-", "id.x",
		"h:1"};
	char name[KUBE_NAME], expected[KUBE_NAME];
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(plain); i++) {
		kube_lease_name(&place, plain[i], name);
		(void)snprintf(expected, sizeof expected, "c.node.%s", plain[i]);
		assert_string_equal(name, expected);
	}
	for (size_t i = 0; i < CGN_COUNT(hashed); i++) {
		kube_lease_name(&place, hashed[i], name);
		assert_int_equal(strlen(name), strlen("c.node.id.") + 32);
	}
}

static void cordons_have_keys_for_every_id(void **state)
{
	static const struct {
		const char *id, *key;
	} cordons[] = {{"n1", "cordon.n1"}, {"A-b.c", "cordon.A-b.c"}, {"a_b", "cordon.a_5Fb"},
		{"h:1", "cordon.h_3A1"}};
	char key[KUBE_NAME], id[PROTO_MAX_ID + 1], longest[PROTO_MAX_ID + 1];
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(cordons); i++) {
		assert_true(kube_cordon_key(cordons[i].id, key));
		assert_string_equal(key, cordons[i].key);
		assert_true(kube_cordon_id(cgn_str_of(key), id));
		assert_string_equal(id, cordons[i].id);
	}
	memset(longest, 'a', sizeof longest - 1);
	longest[sizeof longest - 1] = '\0';
	assert_true(kube_cordon_key(longest, key));
	memset(longest, '_', sizeof longest - 1);
	assert_false(kube_cordon_key(longest, key));
}

static void other_keys_are_no_cordons(void **state)
{
	static const char *const keys[] = {"policy", "cordon", "cordon.", "cordon._", "cordon._4",
		"cordon._zz", "cordon._2F", "cordon._00"};
	char id[PROTO_MAX_ID + 1];
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(keys); i++)
		if (kube_cordon_id(cgn_str_of(keys[i]), id))
			fail_msg("%s is the cordon of \"%s\"", keys[i], id);
}

static void times_are_read(void **state)
{
	(void)state;
	assert_int_equal(kube_seconds(CGN_STR("2026-01-31T12:00:00.123000Z")), 1769860800);
	assert_int_equal(kube_seconds(CGN_STR("2026-01-31T12:00:00Z")), 1769860800);
	assert_int_equal(kube_seconds(CGN_STR("2026-01-31")), -1);
	assert_int_equal(kube_seconds(CGN_STR("")), -1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(leases_have_the_nodes_name_where_it_is_one),
		cmocka_unit_test(cordons_have_keys_for_every_id),
		cmocka_unit_test(other_keys_are_no_cordons),
		cmocka_unit_test(times_are_read),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
