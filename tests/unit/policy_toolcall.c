/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/core/err.h"
#include "policy/text/toolcall/toolcall.h"

#define CHAT_EVENT(delta) "data: {\"choices\":[{\"index\":0,\"delta\":" delta "}]}\n\n"

static void names_are(bool events, struct cgn_str text, size_t step, const char *const *names, size_t n)
{
	struct toolcall t;
	toolcall_init(&t, events);
	for (size_t at = 0; at < text.n; at += step)
		toolcall_feed(&t, (struct cgn_str){text.p + at, text.n - at < step ? text.n - at : step});
	toolcall_end(&t);
	assert_int_equal(t.n, n);
	for (size_t i = 0; i < n; i++)
		assert_true(cgn_str_is(t.names[i], names[i]));
	toolcall_fini(&t);
}

static void names_of(bool events, const char *text, const char *const *names, size_t n)
{
	for (size_t step = 1; step <= strlen(text); step++)
		names_are(events, cgn_str_of(text), step, names, n);
}

static void a_streamed_chat_names_its_tools_once(void **state)
{
	(void)state;
	static const char *const names[] = {"bash", "read_file"};
	names_of(true,
		CHAT_EVENT("{\"role\":\"assistant\",\"content\":\"I look.\"}") CHAT_EVENT(
			"{\"tool_calls\":[{\"index\":0,\"id\":\"a\",\"function\":{\"name\":\"bash\",\"arguments\":\"\"}}]}")
			CHAT_EVENT("{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"{}\"}}]}") CHAT_EVENT(
				"{\"tool_calls\":[{\"index\":1,\"function\":{\"name\":\"read_file\"}}]}")
				CHAT_EVENT(
					"{\"tool_calls\":[{\"index\":2,\"function\":{\"name\":\"bash\"}}]}") "data: [DONE]\n\n",
		names, 2);
}

static void a_last_event_without_an_empty_line_counts(void **state)
{
	(void)state;
	static const char *const names[] = {"bash"};
	names_of(true,
		"data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"function\":{\"name\":\"bash\"}}]}}]}",
		names, 1);
	names_of(true, CHAT_EVENT("{\"function_call\":{\"name\":\"bash\",\"arguments\":\"{}\"}}"), names, 1);
}

static void documents_name_their_tools(void **state)
{
	(void)state;
	static const char *const names[] = {"bash"};
	names_of(false,
		"{\"choices\":[{\"message\":{\"tool_calls\":[{\"type\":\"function\",\"function\":{\"name\":\"bash\"}}]}}]}",
		names, 1);
	names_of(false,
		"{\"type\":\"message\",\"content\":[{\"type\":\"text\",\"text\":\"x\"},{\"type\":\"tool_use\",\"name\":\"bash\"}]}",
		names, 1);
	/* The tools that were offered are not those that are called. */
	names_of(false,
		"{\"object\":\"response\",\"output\":[{\"name\":\"bash\",\"type\":\"function_call\"}],"
		"\"tools\":[{\"type\":\"function\",\"name\":\"other\"}]}",
		names, 1);
}

static void events_of_other_apis_name_their_tools(void **state)
{
	(void)state;
	static const char *const names[] = {"Read"};
	names_of(true,
		"event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":1,"
		"\"content_block\":{\"type\":\"tool_use\",\"id\":\"t\",\"name\":\"Read\",\"input\":{}}}\n\n",
		names, 1);
	names_of(true,
		"data: {\"type\":\"response.created\",\"response\":{\"output\":[],\"tools\":[{\"type\":\"function\",\"name\":\"no\"}]}}\n\n"
		"data: {\"type\":\"response.output_item.added\",\"item\":{\"type\":\"function_call\",\"name\":\"Read\"}}\n\n",
		names, 1);
}

static void text_about_tool_calls_is_none(void **state)
{
	(void)state;
	names_of(true,
		CHAT_EVENT("{\"content\":\"write \\\"tool_calls\\\" and \\\"name\\\": \\\"bash\\\"\"}"), NULL,
		0);
	names_of(false, "{\"choices\":[{\"message\":{\"content\":\"\\\"tool_use\\\" \\\"name\\\"\"}}]}", NULL,
		0);
	names_of(false, "{\"choices\": [\"tool_calls\", \"name\"", NULL, 0);
}

static void names_and_documents_are_bounded(void **state)
{
	(void)state;
	struct cgn_buf b = {0};
	cgn_buf_putz(&b, "{\"choices\":[{\"message\":{\"tool_calls\":[");
	for (int i = 0; i < 20; i++)
		cgn_buf_fmt(&b, "%s{\"function\":{\"name\":\"tool%d\"}}", i > 0 ? "," : "", i);
	cgn_buf_fmt(&b, ",{\"function\":{\"name\":\"%0100d\"}}]}}]", 0);
	struct cgn_buf large = {0};
	cgn_buf_str(&large, cgn_buf_view(&b));
	cgn_buf_putz(&b, "}");
	struct toolcall t;
	toolcall_init(&t, false);
	toolcall_feed(&t, cgn_buf_view(&b));
	toolcall_end(&t);
	assert_int_equal(t.n, TOOLCALL_NAMES);
	toolcall_fini(&t);
	cgn_buf_fmt(&large, ",\"x\":\"%0*d\"}", (int)TOOLCALL_DOCUMENT_MAX, 0);
	assert_false(large.bad);
	names_are(false, cgn_buf_view(&large), 4096, NULL, 0);
	cgn_buf_fini(&b);
	cgn_buf_fini(&large);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_streamed_chat_names_its_tools_once),
		cmocka_unit_test(a_last_event_without_an_empty_line_counts),
		cmocka_unit_test(documents_name_their_tools),
		cmocka_unit_test(events_of_other_apis_name_their_tools),
		cmocka_unit_test(text_about_tool_calls_is_none),
		cmocka_unit_test(names_and_documents_are_bounded),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
