/* SPDX-License-Identifier: Apache-2.0 */
/* selection: bodies of the selection API, and who may be chosen. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "policy/route/selection/selection.h"

static struct cgn_err err;

static bool is_read(const char *body, struct selection_ask *a)
{
	return cgn_ok(selection_read(cgn_str_of(body), a, &err));
}

static void test_request(void **state)
{
	(void)state;
	struct selection_ask a;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	assert_true(is_read(
		"{\"model_name\":\"m \\u00e9\",\"token_ids\":[1, 2],\"selection_id\":\"s-1\",\"expected_output_tokens\":7,\"unknown\":{}}",
		&a));
	assert_string_equal(a.id, "s-1");
	selection_request(&a, &b);
	assert_string_equal(cgn_buf_z(&b),
		"{\"model\":\"m \\u00e9\",\"prompt\":[1, 2],\"max_tokens\":7,\"stream\":true}");
	assert_true(selection_allows(&a, 5));
}

static void test_adapter_is_the_model(void **state)
{
	(void)state;
	struct selection_ask a;
	assert_true(is_read("{\"model_name\":\"base\",\"lora_name\":\"adapter\",\"token_ids\":[]}", &a));
	assert_true(cgn_str_is(a.model.raw, "\"adapter\""));
	assert_true(is_read("{\"model_name\":\"base\",\"lora_name\":null,\"token_ids\":[]}", &a));
	assert_true(cgn_str_is(a.model.raw, "\"base\""));
}

static void test_workers(void **state)
{
	(void)state;
	struct selection_ask a;
	assert_true(is_read(
		"{\"model_name\":\"m\",\"token_ids\":[1],\"allowed_worker_ids\":[3,9007199254740991]}", &a));
	assert_true(selection_allows(&a, 3));
	assert_true(selection_allows(&a, SELECTION_WORKER_MASK));
	assert_false(selection_allows(&a, 4));
	assert_true(is_read(
		"{\"model_name\":\"m\",\"token_ids\":[1],\"pinned_worker\":{\"worker_id\":4,\"dp_rank\":0}}",
		&a));
	assert_true(a.one);
	assert_true(selection_allows(&a, 4));
	assert_false(selection_allows(&a, 3));
	assert_true(is_read("{\"model_name\":\"m\",\"token_ids\":[1],\"allowed_worker_ids\":[]}", &a));
	assert_false(selection_allows(&a, 3));
}

static void test_refusals(void **state)
{
	(void)state;
	static const char *const rows[][2] = {
		{"{", "line 1"},
		{"[]", "not a JSON object"},
		{"{\"token_ids\":[1]}", "model_name"},
		{"{\"model_name\":1,\"token_ids\":[1]}", "model_name"},
		{"{\"model_name\":\"m\"}", "token_ids"},
		{"{\"model_name\":\"m\",\"block_hashes\":[1]}", "block_hashes"},
		{"{\"model_name\":\"m\",\"token_ids\":[1],\"selection_id\":\"a/b\"}", "selection_id"},
		{"{\"model_name\":\"m\",\"token_ids\":[1],\"selection_id\":3}", "selection_id"},
		{"{\"model_name\":\"m\",\"token_ids\":[1],\"worker_id\":\"x\"}", "worker_id"},
		{"{\"model_name\":\"m\",\"token_ids\":[1],\"pinned_worker\":{}}", "pinned_worker"},
		{"{\"model_name\":\"m\",\"token_ids\":[1],\"allowed_worker_ids\":[-1]}",
			"allowed_worker_ids"},
		{"{\"model_name\":\"m\",\"token_ids\":[1],\"allowed_worker_ids\":7}", "allowed_worker_ids"},
		{"{\"model_name\":\"m\",\"token_ids\":[1],\"expected_output_tokens\":\"7\"}",
			"expected_output_tokens"},
	};
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		struct selection_ask a;
		assert_false(is_read(rows[i][0], &a));
		assert_non_null(strstr(err.msg, rows[i][1]));
	}
}

static void test_ids(void **state)
{
	(void)state;
	char text[SELECTION_ID_MAX + 2];
	memset(text, 'x', sizeof text);
	assert_true(selection_id_is_ok((struct cgn_str){text, SELECTION_ID_MAX}));
	assert_false(selection_id_is_ok((struct cgn_str){text, SELECTION_ID_MAX + 1}));
	assert_false(selection_id_is_ok(CGN_STR("")));
	assert_false(selection_id_is_ok(CGN_STR("a b")));
	assert_false(selection_id_is_ok(CGN_STR("a?b")));
	assert_false(selection_id_is_ok(CGN_STR("a%2f")));
}

static void test_lists(void **state)
{
	(void)state;
	assert_true(selection_lists(CGN_STR("10.0.0.1:80, 10.0.0.2:80"), CGN_STR("10.0.0.2:80")));
	assert_false(selection_lists(CGN_STR("10.0.0.1:80"), CGN_STR("10.0.0.1:8")));
	assert_false(selection_lists(CGN_STR(""), CGN_STR("10.0.0.1:80")));
	assert_false(selection_lists((struct cgn_str){NULL, 0}, CGN_STR("10.0.0.1:80")));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_request),
		cmocka_unit_test(test_adapter_is_the_model),
		cmocka_unit_test(test_workers),
		cmocka_unit_test(test_refusals),
		cmocka_unit_test(test_ids),
		cmocka_unit_test(test_lists),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
