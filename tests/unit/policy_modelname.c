/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "policy/text/modelname/modelname.h"

/* Feed |text| in chunks of |step| bytes; each chunk is in a block of its own that is freed after the call. */
static void expect_filtered(enum modelname_shape shape, const char *text, const char *want)
{
	size_t n = strlen(text);
	for (size_t step = 1; step <= n; step++) {
		struct modelname f;
		struct cgn_buf out = {0};
		modelname_init(&f, shape, CGN_STR("\"fa\\u0073t\""));
		for (size_t at = 0; at < n; at += step) {
			size_t part = n - at < step ? n - at : step;
			char *chunk = malloc(part);
			assert_non_null(chunk);
			memcpy(chunk, text + at, part);
			modelname_feed(&f, (struct cgn_str){chunk, part}, &out);
			free(chunk);
		}
		assert_string_equal(cgn_buf_z(&out), want);
		cgn_buf_fini(&out);
	}
}

static void the_name_of_a_document_is_replaced(void **state)
{
	(void)state;
	static const char *const pairs[][2] = {
		{"{\"model\":\"m\"}", "{\"model\":\"fa\\u0073t\"}"},
		{" { \"id\" : \"a\\\"model\\\\\" , \"model\" : \"m\\\"x\\\\\", \"model2\":\"m\"} \n",
			" { \"id\" : \"a\\\"model\\\\\" , \"model\" : \"fa\\u0073t\", \"model2\":\"m\"} \n"},
		{"{\"choices\":[{\"model\":\"m\",\"text\":\"\\\"model\\\":\\\"m\\\"\"}],\"model\":\"m\",\"n\":{\"model\":\"m\"}}",
			"{\"choices\":[{\"model\":\"m\",\"text\":\"\\\"model\\\":\\\"m\\\"\"}],\"model\":\"fa\\u0073t\",\"n\":{\"model\":\"m\"}}"},
		{"{\"response\":{\"tools\":[{\"model\":\"m\"}],\"model\":\"m\"},\"x\":\"model\"}",
			"{\"response\":{\"tools\":[{\"model\":\"m\"}],\"model\":\"fa\\u0073t\"},\"x\":\"model\"}"},
		{"{\"message\":{\"message\":{\"model\":\"m\"},\"x\":1,\"model\":\"m\"}}",
			"{\"message\":{\"message\":{\"model\":\"m\"},\"x\":1,\"model\":\"fa\\u0073t\"}}"},
		{"{\"message\":{\"content\":\"hi\"},\"model\":\"m\"}",
			"{\"message\":{\"content\":\"hi\"},\"model\":\"fa\\u0073t\"}"},
	};
	for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
		expect_filtered(MODELNAME_DOCUMENT, pairs[i][0], pairs[i][1]);
}

static void whatever_is_no_name_passes_unchanged(void **state)
{
	(void)state;
	static const char *const same[] = {"{}", "", "null", "\"model\"", "[\"model\",\"m\"]",
		"[{\"model\":\"m\"}]", "{\"model\":null,\"x\":\"m\"}", "{\"model\":[\"m\"],\"y\":\"m\"}",
		"{\"data\":{\"model\":\"m\"}}", "{\"x\":\"model\",\"y\":\"m\"}", "{\"mod\\u0065l\":\"m\"}",
		"{\"models\":\"m\",\"mode\":\"m\"}", "{\"response\":\"model\",\"y\":\"m\"}", "}}]{\"",
		"not json: \"model\":\"m\""};
	for (size_t i = 0; i < sizeof same / sizeof *same; i++)
		expect_filtered(MODELNAME_DOCUMENT, same[i], same[i]);
}

static void each_event_of_a_stream_has_its_name_replaced(void **state)
{
	(void)state;
	expect_filtered(MODELNAME_EVENTS,
		": \"model\":\"m\"\n\nevent: x\nid: {\"model\":\"m\"}\ndata: {\"model\":\"m\",\"c\":{\"model\":\"m\"}}\n\n"
		"data:{\"id\":1,\"model\":\"m\"}\r\n\r\ndata: [DONE]\n\n",
		": \"model\":\"m\"\n\nevent: x\nid: {\"model\":\"m\"}\ndata: {\"model\":\"fa\\u0073t\",\"c\":{\"model\":\"m\"}}\n\n"
		"data:{\"id\":1,\"model\":\"fa\\u0073t\"}\r\n\r\ndata: [DONE]\n\n");
	/* An event of several data lines is one document, whatever ends its lines. */
	expect_filtered(MODELNAME_EVENTS,
		"data: {\r\ndata: \"a\": {\r\ndata: }, \"model\":\r\ndata: \"m\"}\r\n\r\n",
		"data: {\r\ndata: \"a\": {\r\ndata: }, \"model\":\r\ndata: \"fa\\u0073t\"}\r\n\r\n");
	/* An event that is cut off does not reach into the next one. */
	expect_filtered(MODELNAME_EVENTS, "data: {\"a\":[{\n\ndata: {\"model\":\"m\"}\n\n",
		"data: {\"a\":[{\n\ndata: {\"model\":\"fa\\u0073t\"}\n\n");
	expect_filtered(MODELNAME_EVENTS, "{\"model\":\"m\",\"n\":1}\n{\"n\":[\n{\"model\":\"m\"}\r\n",
		"{\"model\":\"fa\\u0073t\",\"n\":1}\n{\"n\":[\n{\"model\":\"fa\\u0073t\"}\r\n");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_name_of_a_document_is_replaced),
		cmocka_unit_test(whatever_is_no_name_passes_unchanged),
		cmocka_unit_test(each_event_of_a_stream_has_its_name_replaced),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
