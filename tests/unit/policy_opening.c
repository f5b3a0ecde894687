/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/core/err.h"
#include "policy/answer/opening/opening.h"

#define SSE  "text/event-stream; charset=utf-8"
#define JSON "application/json"

static enum opening_says read_by(enum opening_route route, const char *type, struct cgn_str text, size_t step)
{
	struct opening o;
	opening_init(&o, route, cgn_str_of(type), CGN_STR(""));
	for (size_t at = 0; at < text.n; at += step)
		(void)opening_feed(&o,
			(struct cgn_str){text.p + at, text.n - at < step ? text.n - at : step});
	return opening_end(&o);
}

/* The verdict is the same for every length of the pieces. */
static enum opening_says read_as(enum opening_route route, const char *type, const char *text)
{
	struct cgn_str s = cgn_str_of(text);
	enum opening_says says = read_by(route, type, s, s.n + 1);
	for (size_t step = 1; step <= s.n; step++)
		if (read_by(route, type, s, step) != says)
			fail_msg("in pieces of %zu: %s", step, text);
	return says;
}

struct sample {
	const char *type, *text;
	enum opening_says says;
};

static void samples_check(enum opening_route route, const struct sample *v, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		enum opening_says says = read_as(route, v[i].type, v[i].text);
		if (says != v[i].says)
			fail_msg("%s: %d, should be %d", v[i].text, (int)says, (int)v[i].says);
	}
}

static void errors_behind_200_are_told(void **state)
{
	(void)state;
	static const struct sample v[] = {
		{SSE, "data: {\"error\":{\"message\":\"queue is full\",\"code\":503}}\n\ndata: [DONE]\n\n",
			OPENING_ERROR},
		{SSE, "data: {\"object\":\"error\",\"message\":\"x\"}\n\n", OPENING_ERROR},
		{SSE, "data:{ \"error\" : \"x\" }\n\n", OPENING_ERROR},
		{SSE, ": ping\n\nevent: ping\ndata: {\"type\":\"ping\"}\n\ndata: {\"error\":{}}\n\n",
			OPENING_ERROR},
		{SSE, "event: error\r\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\"}}\r\n\r\n",
			OPENING_ERROR},
		{SSE, "data: {\"type\":\"error\",\"message\":\"x\"}\n\n", OPENING_ERROR},
		{SSE, "event: response.failed\ndata: {\"response\":{},\"type\":\"response.failed\"}\n\n",
			OPENING_ERROR},
		{SSE, "data: {\"sequence_number\":0,\"response\":{\"error\":{}},\"type\":\"response.failed\"}\n\n",
			OPENING_ERROR},
		{SSE, "error: {\"code\":500,\"message\":\"x\"}\n\n", OPENING_ERROR},
		{SSE, "{\"error\":{\"message\":\"CUDA error\"}}", OPENING_ERROR},
		{JSON, "{\"error\":{\"message\":\"CUDA error\",\"code\":500}}", OPENING_ERROR},
		{JSON, "\n { \"id\" : \"x\", \"error\" : \"out of memory\" }", OPENING_ERROR},
		{JSON, "{\"object\":\"error\",\"message\":\"x\",\"type\":\"InternalServerError\"}",
			OPENING_ERROR},
		{JSON, "{\"message\":\"x\",\"type\":\"InternalServerError\",\"code\":500}", OPENING_ERROR},
		{JSON, "{\"detail\":\"Not Found\"}", OPENING_ERROR},
		{JSON, "{\"detail\":[{\"loc\":[\"body\"]}]}", OPENING_ERROR},
		{JSON, "{\"type\":\"error\",\"error\":{\"type\":\"api_error\"}}", OPENING_ERROR},
		{"text/plain", "{\"error\":\"x\"}", OPENING_ERROR},
		{"", "data: {\"error\":\"x\"}\n\n", OPENING_ERROR},
	};
	samples_check(OPENING_JSON, v, CGN_COUNT(v));
}

/* An error that blames the request is none of the engine's: it is read to its end, wherever its status stands. */
static void refusals_of_the_request_are_told_from_failures(void **state)
{
	(void)state;
	static const struct sample v[] = {
		{SSE, "data: {\"error\":{\"message\":\"too long\",\"type\":\"BadRequestError\",\"code\":400}}\n\ndata: [DONE]\n\n",
			OPENING_REFUSAL},
		{SSE, "data: {\"object\":\"error\",\"message\":\"x\",\"type\":\"BadRequestError\",\"param\":null,\"code\":400}\n\n",
			OPENING_REFUSAL},
		{SSE, "data: {\"error\":{\"type\":\"invalid_request_error\",\"message\":\"x\"}}\n\n",
			OPENING_REFUSAL},
		{SSE, "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"invalid_request_error\"}}\n\n",
			OPENING_REFUSAL},
		{SSE, "error: {\"code\":400,\"message\":\"x\"}\n\n", OPENING_REFUSAL},
		{SSE, "data: {\"error\":{\"code\":400,\"details\":[1,\"code\",{\"x\":2}]}}", OPENING_REFUSAL},
		{JSON, "{\"code\": 422 ,\"error\":\"x\"}", OPENING_REFUSAL},
		{JSON, "{\"error\":{\"message\":\"\\\"code\\\":400\",\"code\":500}}", OPENING_ERROR},
		{JSON, "{\"error\":{\"type\":\"invalid_request_error\",\"code\":503}}", OPENING_ERROR},
		{JSON, "{\"error\":{\"code\":429}}", OPENING_ERROR},
		{JSON, "{\"error\":{\"code\":4000}}", OPENING_ERROR},
		{JSON, "{\"error\":{\"code\":-400}}", OPENING_ERROR},
		{JSON, "{\"error\":{\"code\":40", OPENING_ERROR},
		{SSE, "data: {\"response\":{\"error\":{\"code\":\"server_error\"}},\"type\":\"response.failed\"}\n\n",
			OPENING_ERROR},
		{SSE, "event: response.failed\ndata: {\"response\":{\"error\":{\"code\":\"invalid_prompt\"}},\"type\":\"response.failed\"}\n\n",
			OPENING_REFUSAL},
	};
	samples_check(OPENING_JSON, v, CGN_COUNT(v));
	struct opening o;
	opening_init(&o, OPENING_JSON, CGN_STR(SSE), CGN_STR(""));
	assert_int_equal(opening_feed(&o, CGN_STR("data: {\"error\":{\"message\":\"x")), OPENING_MORE);
	assert_int_equal(opening_give_up(&o), OPENING_ERROR);
}

static void empty_answers_are_told(void **state)
{
	(void)state;
	static const struct sample v[] = {
		{SSE, "", OPENING_EMPTY},
		{SSE, "data: [DONE]\n\n", OPENING_EMPTY},
		{SSE, ": keep-alive\n\n", OPENING_EMPTY},
		{SSE, "event: ping\ndata: {}\n\n", OPENING_EMPTY},
		{JSON, "", OPENING_EMPTY},
		{JSON, " \r\n", OPENING_EMPTY},
		{"", "", OPENING_EMPTY},
	};
	samples_check(OPENING_JSON, v, CGN_COUNT(v));
}

static void pages_are_no_answers(void **state)
{
	(void)state;
	static const struct sample v[] = {
		{"text/html", "<html>sign in</html>", OPENING_ALIEN},
		{"Text/HTML; charset=utf-8", "", OPENING_ALIEN},
		{JSON, "<!doctype html>", OPENING_ALIEN},
		{SSE, "<html>", OPENING_ALIEN},
		{"text/plain", "default backend - 404", OPENING_ALIEN},
		{"text/plain", "OK", OPENING_ALIEN},
		{"image/png", "\x89PNG", OPENING_ALIEN},
	};
	samples_check(OPENING_JSON, v, CGN_COUNT(v));
	assert_int_equal(read_as(OPENING_MEDIA, "text/html", "<html>"), OPENING_ALIEN);
}

static void answers_pass(void **state)
{
	(void)state;
	static const struct sample v[] = {
		{SSE, "data: {\"id\":\"x\",\"object\":\"chat.completion.chunk\",\"choices\":[{\"delta\":{\"role\":\"assistant\"}}]}\n\n",
			OPENING_ANSWER},
		{SSE, "data: {\"choices\":[],\"error\":{}}\n\n", OPENING_ANSWER},
		{SSE, "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"error\":1}}\n\n",
			OPENING_ANSWER},
		{SSE, "event: response.created\ndata: {\"response\":{\"error\":null},\"type\":\"response.created\"}\n\n",
			OPENING_ANSWER},
		{SSE, "data: {\"error\":null,\"id\":\"x\"}\n\n", OPENING_ANSWER},
		{SSE, "data: {\"id\":\"\\\"error\\\":{\"}\n\n", OPENING_ANSWER},
		{SSE, "data: {\"x\":{\"error\":{}}}\n\n", OPENING_ANSWER},
		{SSE, "data: hello\n\n", OPENING_ANSWER},
		{JSON, "{\"id\":\"x\",\"error\":null,\"object\":\"response\",\"status\":\"failed\"}",
			OPENING_ANSWER},
		{JSON, "{\"id\":\"x\",\"choices\":[{\"error\":{}}]}", OPENING_ANSWER},
		{JSON, "{\"error\":\"\",\"text\":\"x\"}", OPENING_ANSWER},
		{JSON, "{\"error\":false,\"foo\":1}", OPENING_ANSWER},
		{JSON, "[{\"error\":1}]", OPENING_ANSWER},
		{JSON, "{}", OPENING_ANSWER},
		{"text/plain", "data: {\"id\":1}\n\n", OPENING_ANSWER},
		{"application/x-ndjson", "{\"model\":\"x\",\"message\":{}}\n", OPENING_ANSWER},
	};
	samples_check(OPENING_JSON, v, CGN_COUNT(v));
}

static void media_may_be_empty_and_of_any_type(void **state)
{
	(void)state;
	static const struct sample v[] = {
		{"audio/mpeg", "", OPENING_ANSWER},
		{"text/plain", "", OPENING_ANSWER},
		{"text/plain", "OK", OPENING_ANSWER},
		{JSON, "{\"error\":{}}", OPENING_ERROR},
		{JSON, "{\"created\":1,\"data\":[]}", OPENING_ANSWER},
	};
	samples_check(OPENING_MEDIA, v, CGN_COUNT(v));
	assert_int_equal(read_as(OPENING_WHATEVER, JSON, "{\"error\":{}}"), OPENING_ANSWER);
}

/* A good answer is told by its first event at the latest, an event without content too. */
static void nothing_waits_behind_the_first_event(void **state)
{
	(void)state;
	static const char *const first[] =
		{"data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n",
			"event: response.created\ndata: {\"type\":\"response.created\"}\n\n",
			"event: message_start\ndata: {\"type\":\"message_start\"}\n\n",
			"data: {\"x\":1}\n\n"};
	for (size_t i = 0; i < CGN_COUNT(first); i++) {
		struct opening o;
		opening_init(&o, OPENING_JSON, CGN_STR(SSE), CGN_STR(""));
		assert_int_equal(opening_feed(&o, cgn_str_of(first[i])), OPENING_ANSWER);
	}
}

static void streams_that_end_with_an_error_are_told(void **state)
{
	(void)state;
	static const struct {
		const char *tail;
		bool fails;
	} v[] = {
		{"", false}, {"\n\n", false},
		{"data: {\"choices\":[]}\n\ndata: {\"error\":{\"code\":500}}\n\n", true},
		{"data: {\"choices\":[]}\n\ndata: {\"error\":{\"code\":500}}\n\ndata: [DONE]\n\n", true},
		{"data: {\"choices\":[]}\n\ndata: {\"error\":{\"code\":500}}\n\n: ping\n\ndata: [DONE]",
			true},
		{"data: {\"choices\":[]}\r\n\r\nevent: error\r\ndata: {\"type\":\"error\"}\r\n\r\n", true},
		{"data: {\"choices\":[]}\r\rdata: {\"error\":{}}\r\r", true},
		{"x\n\nevent: response.failed\ndata: {\"type\":\"response.failed\",\"response\":{}}\n\n",
			true},
		{"data: {\"choices\":[]}\n\ndata: {\"error\":{\"code\":400}}\n\ndata: [DONE]\n\n", false},
		{"data: {\"error\":{}}\n\ndata: {\"choices\":[]}\n\ndata: [DONE]\n\n", false},
		{"data: {\"choices\":[{\"delta\":{\"content\":\"\\n\\ndata: {\\\"error\\\"\"}}]}\n\n", false},
		{"{\"error\":{}}\n\ndata: [DONE]\n\n", false}, /* The event may begin before the tail. */
	};
	for (size_t i = 0; i < CGN_COUNT(v); i++)
		if (opening_tail_fails(cgn_str_of(v[i].tail)) != v[i].fails)
			fail_msg("%s", v[i].tail);
	assert_false(opening_tail_fails((struct cgn_str){NULL, 0}));
}

static void streams_that_end_inside_an_event_are_told(void **state)
{
	(void)state;
	static const struct {
		const char *tail;
		bool whole, breaks;
	} v[] = {
		{"", true, false},
		{"data: {\"id\":\"x\",\"obj", true, true},
		{"data: {\"id\":\"x\",\"obj", false, false}, /* The event may begin before the tail. */
		{"x\n\ndata: {\"id\":\"x\",\"obj", false, true},
		{"x\r\n\r\nevent: a\r\ndata: {\"id\":[1", false, true},
		{"x\n\ndata: {\"id\":1}", false, false},
		{"x\n\ndata: {\"id\":1}\nid: 5\n", false, false},
		{"x\n\ndata: {\ndata: }\n\n", false, false},
		{"x\n\ndata: {\"id\":1}\n\n: comm", false, false},
		{"x\n\ndata: [DO", false, false},
		{"x\n\ndata: [DONE]\n\n", false, false},
	};
	for (size_t i = 0; i < CGN_COUNT(v); i++)
		if (opening_tail_breaks_off(cgn_str_of(v[i].tail), v[i].whole) != v[i].breaks)
			fail_msg("%s", v[i].tail);
	assert_int_equal(read_as(OPENING_JSON, SSE, "data: {\"id\":\"x\",\"obj"), OPENING_EMPTY);
}

static void encoded_answers_are_not_looked_into(void **state)
{
	(void)state;
	struct opening o;
	opening_init(&o, OPENING_JSON, CGN_STR(JSON), CGN_STR("gzip"));
	assert_int_equal(o.says, OPENING_ANSWER);
	opening_init(&o, OPENING_JSON, CGN_STR("text/html"), CGN_STR("gzip"));
	assert_int_equal(o.says, OPENING_ALIEN);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(errors_behind_200_are_told),
		cmocka_unit_test(refusals_of_the_request_are_told_from_failures),
		cmocka_unit_test(empty_answers_are_told),
		cmocka_unit_test(pages_are_no_answers),
		cmocka_unit_test(answers_pass),
		cmocka_unit_test(media_may_be_empty_and_of_any_type),
		cmocka_unit_test(nothing_waits_behind_the_first_event),
		cmocka_unit_test(streams_that_end_with_an_error_are_told),
		cmocka_unit_test(streams_that_end_inside_an_event_are_told),
		cmocka_unit_test(encoded_answers_are_not_looked_into),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
