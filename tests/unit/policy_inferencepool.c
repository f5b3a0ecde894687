/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "policy/fleet/inferencepool/inferencepool.h"

static struct json_val json_of(const char *text)
{
	struct json_val v;
	assert_true(cgn_ok(json_parse(cgn_str_of(text), &v, NULL, NULL)));
	return v;
}

static void a_pool_has_a_selector_and_ports(void **state)
{
	(void)state;
	struct inferencepool p = {.n_ports = 0};
	struct cgn_err err;
	assert_true(cgn_ok(inferencepool_read(
		json_of("{\"spec\":{\"selector\":{\"matchLabels\":{\"app.kubernetes.io/name\":\"vllm\",\"tier\":\"\"}},"
			"\"targetPorts\":[{\"number\":8000},{\"number\":8001}],\"endpointPickerRef\":{\"name\":\"x\"}}}"),
		&p, &err)));
	assert_int_equal(p.n_ports, 2);
	assert_int_equal(p.ports[0], 8000);
	assert_int_equal(p.ports[1], 8001);
	assert_string_equal(cgn_buf_z(&p.selector),
		"labelSelector=app.kubernetes.io%2Fname%3Dvllm%2Ctier%3D");
	assert_true(cgn_ok(inferencepool_read(
		json_of("{\"spec\":{\"selector\":{\"matchLabels\":{\"a\":\"b\"}},\"targetPorts\":[{\"number\":1}]}}"),
		&p, &err)));
	assert_string_equal(cgn_buf_z(&p.selector), "labelSelector=a%3Db");
	cgn_buf_fini(&p.selector);
}

static void a_pool_that_makes_no_sense_says_why(void **state)
{
	(void)state;
	static const char *const rows[][2] = {
		{"{}", "no spec"},
		{"{\"spec\":{}}", "matchLabels"},
		{"{\"spec\":{\"selector\":{\"matchLabels\":[]}}}", "matchLabels"},
		{"{\"spec\":{\"selector\":{\"matchLabels\":{\"a\":\"b\"}}}}", "targetPorts"},
		{"{\"spec\":{\"selector\":{\"matchLabels\":{\"a\":\"b\"}},\"targetPorts\":[]}}",
			"targetPorts"},
		{"{\"spec\":{\"selector\":{\"matchLabels\":{\"a\":\"b\"}},\"targetPorts\":[{\"number\":0}]}}",
			"port"},
		{"{\"spec\":{\"selector\":{\"matchLabels\":{\"a\":\"b\"}},\"targetPorts\":[{\"number\":65536}]}}",
			"port"},
		{"{\"spec\":{\"selector\":{\"matchLabels\":{\"a\":\"b\"}},\"targetPorts\":[1]}}", "port"},
		{"{\"spec\":{\"selector\":{\"matchLabels\":{}},\"targetPorts\":[{\"number\":1}]}}",
			"every pod"},
		{"{\"spec\":{\"selector\":{\"matchLabels\":{\"a\":\"b&c\"}},\"targetPorts\":[{\"number\":1}]}}",
			"label"},
		{"{\"spec\":{\"selector\":{\"matchLabels\":{\"a\":7}},\"targetPorts\":[{\"number\":1}]}}",
			"label"},
		{"{\"spec\":{\"selector\":{\"matchLabels\":{\"a\\u0020\":\"b\"}},\"targetPorts\":[{\"number\":1}]}}",
			"label"},
		{"[]", "no spec"},
	};
	struct inferencepool p = {.n_ports = 0};
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		struct cgn_err err = {.code = CGN_FINE};
		assert_int_equal(inferencepool_read(json_of(rows[i][0]), &p, &err).code, CGN_INVALID);
		assert_non_null(strstr(err.msg, rows[i][1]));
	}
	cgn_buf_fini(&p.selector);
}

static void a_pod_is_ready_or_ends(void **state)
{
	(void)state;
	static const struct {
		const char *text, *address;
		bool ready, ending;
	} rows[] = {
		{"{\"metadata\":{\"name\":\"vllm-0\"}}", "", false, false},
		{"{\"metadata\":{\"name\":\"vllm-0\"},\"status\":{\"podIP\":\"10.0.0.7\"}}", "10.0.0.7",
			false, false},
		{"{\"metadata\":{\"name\":\"vllm-0\"},\"status\":{\"podIP\":\"10.0.0.7\",\"conditions\":"
		 "[{\"type\":\"Ready\",\"status\":\"True\"},{\"type\":\"X\",\"status\":\"False\"}]}}",
			"10.0.0.7", true, false},
		{"{\"metadata\":{\"name\":\"vllm-0\"},\"status\":{\"podIP\":\"fd00::7\",\"conditions\":"
		 "[{\"type\":\"Ready\",\"status\":\"False\"}]}}",
			"[fd00::7]", false, false},
		{"{\"metadata\":{\"name\":\"vllm-0\",\"deletionTimestamp\":\"2026-11-28T16:00:00Z\"},\"status\":{"
		 "\"podIP\":\"evil.example\",\"conditions\":7}}",
			"", false, true},
	};
	struct inferencepool_pod pod;
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		assert_true(inferencepool_pod_read(json_of(rows[i].text), &pod));
		assert_string_equal(pod.name, "vllm-0");
		assert_string_equal(pod.address, rows[i].address);
		assert_int_equal(pod.ready, rows[i].ready);
		assert_int_equal(pod.ending, rows[i].ending);
	}
	static const char *const bad[] = {"{}", "[]", "{\"metadata\":{\"name\":\"\"}}",
		"{\"metadata\":{\"name\":\"a/b\"}}", "{\"metadata\":{\"name\":7}}"};
	for (size_t i = 0; i < CGN_COUNT(bad); i++)
		assert_false(inferencepool_pod_read(json_of(bad[i]), &pod));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_pool_has_a_selector_and_ports),
		cmocka_unit_test(a_pool_that_makes_no_sense_says_why),
		cmocka_unit_test(a_pod_is_ready_or_ends),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
