/* SPDX-License-Identifier: Apache-2.0 */
/* The policy document: accepted and refused texts, and the messages. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "policy/route/routing/document.h"

static struct route_document read_ok(const char *text)
{
	struct route_document d;
	struct cgn_err err;
	if (!cgn_ok(route_document_read(cgn_str_of(text), &d, &err)))
		fail_msg("%s: %s", text, err.msg);
	return d;
}

static void each_member_counts_alone(void **state)
{
	(void)state;
	struct route_rules rules = {.policy = ROUTE_RANDOM, .weights = {1, 0, 0, 0}, .max_inflight = 7};
	struct route_document d = read_ok("{}");
	route_document_apply(&d, &rules);
	assert_int_equal(rules.policy, ROUTE_RANDOM);
	d = read_ok(" {\"policy\" : \"predicted\"}\n");
	route_document_apply(&d, &rules);
	assert_int_equal(rules.policy, ROUTE_PREDICTED);
	assert_float_equal(rules.weights.kv, 1, 0);
	d = read_ok("{\"weights\":{\"load\":0.25,\"kv\":0.5,\"capacity\":0.15,\"power\":1e-1}}");
	route_document_apply(&d, &rules);
	assert_int_equal(rules.policy, ROUTE_PREDICTED);
	assert_float_equal(rules.weights.kv, 0.5, 1e-12);
	assert_float_equal(rules.weights.capacity, 0.15, 1e-12);
	assert_int_equal(rules.max_inflight, 7);
	assert_int_equal(read_ok("{\"policy\":\"kv\"}").policy, ROUTE_KV);
}

static void what_is_written_is_read_again(void **state)
{
	(void)state;
	struct cgn_buf b = {.n = 0};
	struct route_document d = {.has_policy = true,
		.has_weights = true,
		.policy = ROUTE_SESSION,
		.weights = {0.4, 0.3, 0.2, 0.1}};
	route_document_write(&d, &b);
	struct route_document back = read_ok(cgn_buf_z(&b));
	assert_true(back.has_policy && back.has_weights);
	assert_int_equal(back.policy, ROUTE_SESSION);
	assert_memory_equal(&back.weights, &d.weights, sizeof d.weights);
	b.n = 0;
	d.has_policy = d.has_weights = false;
	route_document_write(&d, &b);
	assert_string_equal(cgn_buf_z(&b), "{}");
	cgn_buf_fini(&b);
}

static void a_mistake_is_named(void **state)
{
	(void)state;
	static const struct {
		const char *text, *said;
	} rows[] = {
		{"", "column 1"},
		{"{\"policy\":\"weighted\"", "line 1"},
		{"[]", "not a JSON object"},
		{"{\"policy\":1}", "not a string"},
		{"{\"policy\":\"fastest\"}",
			"\"fastest\" is not a policy; they are kv, weighted, predicted, round_robin"},
		/* The message is shown on terminals. */
		{"{\"policy\":\"\\u001b[31mkv\"}", "\"?[31mkv\" is not a policy"},
		{"{\"\xc2\x9bx\":1}", "no member \"??x\""},
		{"{\"polisy\":\"kv\"}", "no member \"polisy\""},
		{"{\"policy\":\"kv\",\"policy\":\"random\"}", "\"policy\" twice"},
		{"{\"weights\":[1]}", "not an object"},
		{"{\"weights\":{\"kv\":1}}", "lacks the number \"load\""},
		{"{\"weights\":{\"kv\":1,\"load\":\"0\",\"power\":0,\"capacity\":0}}",
			"lacks the number \"load\""},
		{"{\"weights\":{\"kv\":1,\"load\":0,\"power\":0,\"capacity\":0,\"luck\":0}}",
			"no member \"luck\""},
		{"{\"weights\":{\"kv\":1.5,\"load\":-0.5,\"power\":0,\"capacity\":0}}",
			"kv is 1.5: weights are from 0 to 1"},
		{"{\"weights\":{\"kv\":0.5,\"load\":0.25,\"power\":0.1,\"capacity\":0.1}}",
			"0.95 together: they must be 1"},
		{"{\"weights\":{\"kv\":0.500002,\"load\":0.3,\"power\":0.1,\"capacity\":0.1}}",
			"1.000002 together"},
	};
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		struct route_document d = {.policy = ROUTE_RANDOM, .has_policy = true};
		struct cgn_err err = {.code = CGN_FINE};
		assert_int_equal(route_document_read(cgn_str_of(rows[i].text), &d, &err).code, CGN_INVALID);
		if (strstr(err.msg, rows[i].said) == NULL)
			fail_msg("%s: %s", rows[i].text, err.msg);
		assert_int_equal(d.policy, ROUTE_RANDOM); /* Unchanged. */
	}
}

static void a_little_rounding_is_forgiven(void **state)
{
	(void)state;
	const struct route_weights w = {0.1 + 0.2, 0.3, 0.4, 1e-7}, bad = {0.3, 0.3, 0.4, 1e-5},
				   none = {0.0 / 0.0, 1, 0, 0};
	assert_true(cgn_ok(route_weights_check(&w, NULL)));
	assert_int_equal(route_weights_check(&bad, NULL).code, CGN_INVALID);
	assert_int_equal(route_weights_check(&none, NULL).code, CGN_INVALID);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_member_counts_alone),
		cmocka_unit_test(what_is_written_is_read_again),
		cmocka_unit_test(a_mistake_is_named),
		cmocka_unit_test(a_little_rounding_is_forgiven),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
