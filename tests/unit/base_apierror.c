/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>

#include "base/apierror/apierror.h"

static void assert_error(const struct apierror *e, const char *expected)
{
	struct cgn_buf b = {0};
	apierror_put(&b, e);
	assert_string_equal(cgn_buf_z(&b), expected);
	cgn_buf_fini(&b);
}

static void errors_have_the_shape_of_openai(void **state)
{
	(void)state;
	assert_error(&(struct apierror){.message = "no \"x\"",
			     .type = apierror_type(404),
			     .param = "model",
			     .code = "model_not_found"},
		"{\"error\":{\"message\":\"no \\\"x\\\"\",\"type\":\"invalid_request_error\",\"param\":\"model\","
		"\"code\":\"model_not_found\"}}");
	assert_error(&(struct apierror){.message = "", .type = apierror_type(500), .status = 500},
		"{\"error\":{\"message\":\"\",\"type\":\"server_error\",\"param\":null,\"code\":500}}");
}

static void errors_have_the_shape_of_anthropic(void **state)
{
	static const struct {
		int status;
		const char *type;
	} rows[] = {{400, "invalid_request_error"}, {401, "authentication_error"}, {402, "billing_error"},
		{403, "permission_error"}, {404, "not_found_error"}, {405, "invalid_request_error"},
		{413, "request_too_large"}, {429, "rate_limit_error"}, {500, "api_error"}, {501, "api_error"},
		{502, "api_error"}, {503, "overloaded_error"}, {504, "timeout_error"},
		{529, "overloaded_error"}};
	char expected[200];
	(void)state;
	for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
		(void)snprintf(expected, sizeof expected,
			"{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":\"why\"},"
			"\"request_id\":\"r-1\"}",
			rows[i].type);
		assert_error(&(struct apierror){.message = "why",
				     .type = "ignored",
				     .code = "ignored",
				     .status = rows[i].status,
				     .shape = APIERROR_ANTHROPIC,
				     .request_id = {"r-1", 3}},
			expected);
	}
	assert_error(&(struct apierror){.message = "x", .status = 500, .shape = APIERROR_ANTHROPIC},
		"{\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":\"x\"}}");
}

static void errors_have_the_shape_of_ollama(void **state)
{
	(void)state;
	assert_error(&(struct apierror){.message = "no \"x\"", .status = 404, .shape = APIERROR_OLLAMA},
		"{\"error\":\"no \\\"x\\\"\"}");
}

static void the_path_decides_the_shape(void **state)
{
	(void)state;
	assert_int_equal(apierror_shape_of(cgn_str_of("/v1/messages")), APIERROR_ANTHROPIC);
	assert_int_equal(apierror_shape_of(cgn_str_of("/v1/messages?beta=true")), APIERROR_ANTHROPIC);
	assert_int_equal(apierror_shape_of(cgn_str_of("/v1/messages/count_tokens")), APIERROR_ANTHROPIC);
	assert_int_equal(apierror_shape_of(cgn_str_of("/v1/messagesx")), APIERROR_OPENAI);
	assert_int_equal(apierror_shape_of(cgn_str_of("/api/chat")), APIERROR_OLLAMA);
	assert_int_equal(apierror_shape_of(cgn_str_of("/api")), APIERROR_OLLAMA);
	assert_int_equal(apierror_shape_of(cgn_str_of("/apis")), APIERROR_OPENAI);
	assert_int_equal(apierror_shape_of(cgn_str_of("/v1/chat/completions")), APIERROR_OPENAI);
	assert_int_equal(apierror_shape_of((struct cgn_str){NULL, 0}), APIERROR_OPENAI);
}

/* Each row has an answer of an engine, and the text of its error; NULL: no error. */
static void errors_of_engines_are_found(void **state)
{
	static const struct {
		const char *json, *text;
	} rows[] = {
		{"{\"error\":{\"message\":\"no\\n\",\"code\":1}}", "no\n"},
		{"{\"type\":\"error\",\"error\":{\"type\":\"t\",\"message\":\"no\"}}", "no"},
		{"{\"error\":\"no\"}", "no"},
		{"{\"error\":{\"code\":5}}", "{\"code\":5}"},
		{"{\"object\":\"error\",\"message\":\"no\",\"code\":500}", "no"},
		{"{\"object\":\"error\"}", "{\"object\":\"error\"}"},
		{"{\"type\":\"error\",\"message\":\"no\"}", "no"},
		{"{\"detail\":\"no\"}", "no"},
		{"{\"detail\":[{\"msg\":\"no\"}]}", "[{\"msg\":\"no\"}]"},
		{"{\"message\":\"no\",\"type\":\"InternalServerError\",\"code\":500}", "no"},
		{"{\"code\":500,\"message\":\"no\"}", "no"},
		{"{\"status\":\"error\"}", "{\"status\":\"error\"}"},
		{"{\"status\":\"error\",\"message\":\"no\"}", "no"},
		{"{\"code\":500,\"message\":\"no\",\"choices\":[]}", NULL},
		{"{\"id\":\"x\",\"type\":\"t\",\"message\":\"no\"}", NULL},
		{"{\"type\":\"message_start\",\"message\":{}}", NULL},
		{"{\"status\":\"ok\",\"message\":\"yes\"}", NULL},
		{"{\"error\":null,\"choices\":[]}", NULL},
		{"{\"error\":false}", NULL},
		{"{\"error\":\"\"}", NULL},
		{"{\"id\":\"x\",\"detail\":\"low\"}", NULL},
		{"{\"choices\":[],\"detail\":\"low\"}", NULL},
		{"{\"object\":\"chat.completion\",\"message\":\"no\"}", NULL},
		{"[\"error\"]", NULL},
	};
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
		struct json_val root, error;
		assert_true(cgn_ok(json_parse(cgn_str_of(rows[i].json), &root, NULL, NULL)));
		assert_int_equal(apierror_find(root, &error), rows[i].text != NULL);
		if (rows[i].text == NULL)
			continue;
		apierror_text(error, &text);
		assert_string_equal(cgn_buf_z(&text), rows[i].text);
	}
}

static void reasons_of_failures_are_known(void **state)
{
	(void)state;
	static const char *const failed[] = {"abort", "ABORT", "Error", "abort ", "\tcancelled "},
				 *const sound[] = {"stop", "", "length", "aborting", "an error"};
	for (size_t i = 0; i < CGN_COUNT(failed); i++)
		assert_true(apierror_reason(cgn_str_of(failed[i])));
	for (size_t i = 0; i < CGN_COUNT(sound); i++)
		assert_false(apierror_reason(cgn_str_of(sound[i])));
}

static void assert_event(const struct apierror *e, const struct apierror_response *of, const char *expected)
{
	struct cgn_buf b = {0};
	apierror_event_put(&b, e, of);
	assert_string_equal(cgn_buf_z(&b), expected);
	cgn_buf_fini(&b);
}

static void streams_end_as_their_api_says(void **state)
{
	(void)state;
	const struct apierror e = {.message = "why",
		.type = "server_error",
		.code = "engine_failed",
		.status = 502};
	struct apierror_response of = {.model = {"m", 1}, .created = 5, .sequence = 7};
	assert_event(&e, NULL,
		"event: error\ndata: {\"error\":{\"message\":\"why\",\"type\":\"server_error\",\"param\":null,\"code\":\"engine_failed\"}}\n\n");
	assert_event(&e, &of,
		"event: error\ndata: {\"type\":\"error\",\"sequence_number\":7,\"code\":\"server_error\",\"message\":\"why\",\"param\":null}\n\n");
	of.id = (struct cgn_str){"resp_1", 6};
	assert_event(&e, &of,
		"event: response.failed\ndata: {\"type\":\"response.failed\",\"sequence_number\":7,\"response\":{\"id\":\"resp_1\",\"object\":\"response\","
		"\"created_at\":5,\"status\":\"failed\",\"error\":{\"code\":\"server_error\",\"message\":\"why\"},\"incomplete_details\":null,\"model\":\"m\","
		"\"output\":[],\"parallel_tool_calls\":true,\"tool_choice\":\"auto\",\"tools\":[],\"usage\":null}}\n\n");
}

static void the_last_sequence_number_is_found(void **state)
{
	(void)state;
	uint64_t n = 0;
	assert_true(apierror_sequence_find(
		CGN_STR("x\"sequence_number\":3,\"y\":1}\n\ndata: {\"sequence_number\": 14}"), &n));
	assert_int_equal(n, 14);
	/* The text of a string, and a number that may go on, are none. */
	assert_true(apierror_sequence_find(
		CGN_STR("\"sequence_number\":3,\"t\":\"\\\"sequence_number\\\":9\"}\"sequence_number\":4"),
		&n));
	assert_int_equal(n, 3);
	assert_false(apierror_sequence_find(CGN_STR(""), &n));
	assert_false(apierror_sequence_find(CGN_STR("sequence_number\":3,"), &n));
	assert_false(apierror_sequence_find(CGN_STR("\"sequence_number\":\"3\","), &n));
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(errors_have_the_shape_of_openai),
		cmocka_unit_test(errors_have_the_shape_of_anthropic),
		cmocka_unit_test(errors_have_the_shape_of_ollama),
		cmocka_unit_test(the_path_decides_the_shape), cmocka_unit_test(errors_of_engines_are_found),
		cmocka_unit_test(reasons_of_failures_are_known),
		cmocka_unit_test(streams_end_as_their_api_says),
		cmocka_unit_test(the_last_sequence_number_is_found)};
	return cmocka_run_group_tests_name("base_apierror", tests, NULL, NULL);
}
