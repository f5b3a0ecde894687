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

#define CHAT "/v1/chat/completions"

/* |path|: "" for a route whose answers are not known. */
static enum opening_says read_by(const char *path, enum opening_route route, const char *type,
	struct cgn_str text, size_t step)
{
	struct opening o;
	opening_init(&o, route, opening_answers(cgn_str_of(path)), cgn_str_of(type));
	for (size_t at = 0; at < text.n; at += step)
		(void)opening_feed(&o,
			(struct cgn_str){text.p + at, text.n - at < step ? text.n - at : step});
	return opening_end(&o);
}

/* The verdict is the same for every length of the pieces. */
static enum opening_says read_at(const char *path, enum opening_route route, const char *type,
	const char *text)
{
	struct cgn_str s = cgn_str_of(text);
	enum opening_says says = read_by(path, route, type, s, s.n + 1);
	for (size_t step = 1; step <= s.n; step++)
		if (read_by(path, route, type, s, step) != says)
			fail_msg("in pieces of %zu: %s", step, text);
	return says;
}

static enum opening_says read_as(enum opening_route route, const char *type, const char *text)
{
	return read_at("", route, type, text);
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
		{SSE, "data: {\"choices\":[],\"error\":{}}\n\n", OPENING_ERROR},
		{JSON, "{\"id\":\"x\",\"object\":\"chat.completion\",\"choices\": [ ] ,\"error\":{\"code\":500}}",
			OPENING_ERROR},
		{JSON, "{\"id\":\"x\",\"object\":\"response\",\"status\":\"failed\",\"error\":{\"code\":\"server_error\"},\"output\":[]}",
			OPENING_ERROR},
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
	opening_init(&o, OPENING_JSON, 0, CGN_STR(SSE));
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
		{SSE, "data: {\"choices\":[{}],\"error\":{}}\n\n", OPENING_ANSWER},
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
		opening_init(&o, OPENING_JSON, 0, CGN_STR(SSE));
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
		{"x\r\rdata: {\"id\":1}\rid: 5\r\r", false, false},
		{"x\r\rdata: {\rdata: }\r\r", false, false},
		{"x\n\ndata: {\"id\":1}\n\n: comm", false, false},
		{"x\n\ndata: [DO", false, false},
		{"x\n\ndata: [DONE]\n\n", false, false},
	};
	for (size_t i = 0; i < CGN_COUNT(v); i++)
		if (opening_tail_breaks_off(cgn_str_of(v[i].tail), v[i].whole) != v[i].breaks)
			fail_msg("%s", v[i].tail);
	assert_int_equal(read_as(OPENING_JSON, SSE, "data: {\"id\":\"x\",\"obj"), OPENING_EMPTY);
}

static void streams_without_the_end_of_their_dialect_are_cut(void **state)
{
	(void)state;
	static const struct {
		const char *tail;
		bool whole;
		enum opening_ending ends;
	} v[] = {
		{"", true, ENDING_UNKNOWN},
		{": ping\n\n", true, ENDING_UNKNOWN},
		{"data: {\"choices\":[{\"finish_reason\":null}]}\n\n", true, ENDING_CUT},
		{"data: {\"choices\":[{\"finish_reason\":null}]}\n\n", false, ENDING_UNKNOWN},
		{"x\n\ndata: {\"choices\":[{\"delta\":{}}]}\n\n: ping\n\n", false, ENDING_CUT},
		{"x\n\ndata: {\"choices\":[{\"finish_reason\":\"\"}]}\n\nid: 7\n\n", false, ENDING_CUT},
		{"x\r\rdata: {\"choices\":[{\"finish_reason\":null}]}\r\r", false, ENDING_CUT},
		{"x\n\ndata: {\"choices\":[{\"finish_reason\":\"stop\"}]}\n\ndata: {\"choices\":[],\"usage\":{}}\n\n",
			false, ENDING_WHOLE},
		{"x\n\ndata: {\"choices\":[{\"finish_reason\":null}]}\n\ndata: [DONE]\n\n", false,
			ENDING_WHOLE},
		{"x\n\ndata: {\"choices\":[{\"finish_reason\":\"stop\"}]}\n\ndata: [DO", false, ENDING_WHOLE},
		{"x\n\ndata: {\"choices\":[{\"finish_reason\":null}]}\n\ndata: [DO", false, ENDING_CUT},
		{"x\n\ndata: {\"choices\":[{\"finish_reason\":null}]}\n\nevent: error\ndata: {\"error\":{}}\n\n",
			false, ENDING_WHOLE},
		{"x\n\nerror: {\"code\":500}\n\n", false, ENDING_WHOLE},
		{"x\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}", false, ENDING_WHOLE},
		{"x\n\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"}}\n\n",
			false, ENDING_WHOLE},
		{"x\n\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\ndata: {\"type\":\"ping\"}\n\n",
			false, ENDING_CUT},
		{"x\n\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"a\"}\n\n", false,
			ENDING_CUT},
		{"x\n\ndata: {\"type\":\"response.incomplete\",\"response\":{\"error\":null}}\n\n", false,
			ENDING_WHOLE},
		{"x\n\ndata: {\"content\":\"a\",\"stop\":false}\n\n", false, ENDING_CUT},
		{"x\n\ndata: {\"content\":\"\",\"stop\":true}\n\n", false, ENDING_WHOLE},
		{"x\n\ndata: {\"other\":1}\n\n", true, ENDING_UNKNOWN},
	};
	for (size_t i = 0; i < CGN_COUNT(v); i++)
		if (opening_tail_ends(cgn_str_of(v[i].tail), v[i].whole) != v[i].ends)
			fail_msg("%s", v[i].tail);
	assert_true(opening_answers(CGN_STR(CHAT)) & OPENING_ENDS);
	assert_false(opening_answers(CGN_STR("/generate")) & OPENING_ENDS);
}

static void the_last_event_of_a_stream_is_known(void **state)
{
	(void)state;
	static const struct {
		const char *event;
		bool last;
	} rows[] = {
		{"data: [DONE]\n\n", true},
		{"data:[DONE]\r\n\r\n", true},
		{"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n", true},
		{"data: {\"type\":\"response.completed\",\"response\":{}}\n\n", true},
		{"data: {\"content\":\"\",\"stop\":true}\n\n", true},
		{"data: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"}}\n\n", false},
		{"data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n", false},
		{"data: {\"error\":{\"message\":\"x\"}}\n\n", false},
		{"data: {\"choices\":[],\"stop\":true}\n\n", false},
		{": ping\n\n", false},
		{"data: [DO", false},
	};
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		char text[256];
		(void)snprintf(text, sizeof text, "data: {\"choices\":[]}\n\n%s", rows[i].event);
		bool last = opening_tail_is_last(cgn_str_of(text), false),
		     alone = opening_tail_is_last(cgn_str_of(rows[i].event), true);
		if (last != rows[i].last || alone != last)
			fail_msg("%s", rows[i].event);
		assert_false(opening_tail_is_last(cgn_str_of(rows[i].event), false));
	}
	assert_false(opening_tail_is_last((struct cgn_str){NULL, 0}, true));
}

static void parts_of_events_without_data_are_of_no_use(void **state)
{
	(void)state;
	static const struct {
		const char *part, *useful;
	} v[] = {
		{"", ""},
		{"d", ""},
		{"data", ""},
		{"data: ", ""},
		{"data: [DONE", ""},
		{": pi", ""},
		{"event: re", ""},
		{"event: a\r\nid: 7\r\nda", ""},
		{"data: [DONE]", "data: [DONE]"},
		{"data: {\"a\":1}\n", "data: {\"a\":1}\n"},
		{"data: {\"a\":1}\nid: 7", "data: {\"a\":1}\n"},
		{"event: a\ndata: 1", "event: a\ndata: 1"},
		{"error: {}", "error: {}"},
		{"{\"error\":{}}", "{\"error\":{}}"},
	};
	for (size_t i = 0; i < CGN_COUNT(v); i++) {
		struct cgn_str part = cgn_str_of(v[i].part);
		size_t n = opening_part_useful(part);
		if (n != strlen(v[i].useful) || memcmp(part.p, v[i].useful, n) != 0)
			fail_msg("%s: %zu", v[i].part, n);
	}
}

/* ---- routes whose answers are known ---- */

struct shape {
	const char *path, *type, *text;
	enum opening_says says;
};

static void shapes_check(enum opening_route route, const struct shape *v, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		enum opening_says says = read_at(v[i].path, route, v[i].type, v[i].text);
		if (says != v[i].says)
			fail_msg("%s %s: %d, should be %d", v[i].path, v[i].text, (int)says, (int)v[i].says);
	}
}

static void documents_without_an_answer_are_none(void **state)
{
	(void)state;
	static const struct shape v[] = {
		{CHAT, JSON, "{}", OPENING_EMPTY},
		{CHAT, JSON, " null\n", OPENING_EMPTY},
		{CHAT, JSON, "[]", OPENING_EMPTY},
		{CHAT, JSON, "[ { } ]", OPENING_EMPTY},
		{CHAT, JSON, "[{\"error\":{\"code\":503}}]", OPENING_ERROR},
		{CHAT, JSON, "[{\"error\":{\"code\":400}}]", OPENING_REFUSAL},
		{CHAT, JSON, "[1,2]", OPENING_OTHER},
		{CHAT, JSON, "\"text\"", OPENING_OTHER},
		{CHAT, JSON, "true", OPENING_OTHER},
		{CHAT, JSON, "17", OPENING_OTHER},
		{CHAT, JSON, "{\"status\":500,\"path\":\"/\"}", OPENING_ERROR},
		{CHAT, JSON, "{\"success\":false,\"data\":[{}]}", OPENING_ERROR},
		{CHAT, JSON, "{\"success\":true}", OPENING_OTHER},
		{CHAT, JSON, "{\"code\":503,\"message\":\"no backend\"}", OPENING_ERROR},
		{CHAT, JSON, "{\"code\":400,\"message\":\"too long\"}", OPENING_REFUSAL},
		{CHAT, JSON, "{\"message\":\"no backend\"}", OPENING_ERROR},
		{CHAT, JSON, "{\"message\":{\"content\":\"hi\"}}", OPENING_ERROR},
		{CHAT, JSON, "{\"msg\":\"no backend\",\"x\":[{\"choices\":[1]}]}", OPENING_ERROR},
		{CHAT, JSON, "{\"id\":\"x\",\"object\":\"chat.completion\"}", OPENING_OTHER},
		{CHAT, JSON, "{\"id\":\"x\",\"object\":\"chat.completion\",\"choices\":null}", OPENING_OTHER},
		{CHAT, JSON, "{\"id\":\"x\",\"object\":\"chat.completion\",\"error\":{\"code\":500}}",
			OPENING_ERROR},
		{CHAT, JSON, "{\"id\":\"x\",\"obj", OPENING_OTHER},
		{CHAT, "text/plain", "{\"message\":\"no backend\"}", OPENING_ERROR},
		{CHAT, "application/octet-stream", "\x01\x02", OPENING_ALIEN},
		{CHAT, SSE, "data: Internal Server Error\n\n", OPENING_OTHER},
		{CHAT, SSE, "data: [1]\n\ndata: [DONE]\n\n", OPENING_OTHER},
		{CHAT, SSE, "data: {}\n\ndata: [DONE]\n\n", OPENING_OTHER},
		{CHAT, SSE, "data: {\"status\":500,\"message\":\"x\"}\n\n", OPENING_ERROR},
		{CHAT, SSE, "data: {\"code\":400,\"message\":\"too long\"}\n\ndata: [DONE]\n\n",
			OPENING_REFUSAL},
		{CHAT, SSE, "data: {\"queue\":1}\n\ndata: {\"error\":{}}\n\n", OPENING_ERROR},
		{CHAT, SSE, "data: {\"queue\":1}\n\n: c\n\ndata: {\"object\":\"x\"}", OPENING_OTHER},
		{"/v1/embeddings", JSON, "{\"model\":\"m\",\"object\":\"list\"}", OPENING_OTHER},
		{"/v1/messages/count_tokens", JSON, "{\"tokens\":5}", OPENING_OTHER},
		{"/tokenize", JSON, "{\"input_tokens\":5}", OPENING_OTHER},
		{"/v1/responses", JSON, "{\"id\":\"x\",\"object\":\"response\",\"status\":\"failed\"}",
			OPENING_ERROR},
		{"/v1/responses", JSON,
			"{\"status\":\"failed\",\"error\":null,\"output\":[{\"type\":\"message\"}]}",
			OPENING_ERROR},
		{"/v1/responses", JSON,
			"{\"status\":\"failed\",\"error\":{\"code\":\"invalid_prompt\"},\"output\":[]}",
			OPENING_REFUSAL},
		{"/v1/rerank", JSON, "{\"message\":\"x\"}", OPENING_ERROR},
	};
	static const struct shape media[] = {
		{"/v1/images/generations", JSON, "{}", OPENING_EMPTY},
		{"/v1/images/generations", JSON, "{\"created\":1,\"message\":\"x\"}", OPENING_ERROR},
		{"/v1/moderations", JSON, "{\"id\":\"x\"}", OPENING_OTHER},
	};
	shapes_check(OPENING_JSON, v, CGN_COUNT(v));
	shapes_check(OPENING_MEDIA, media, CGN_COUNT(media));
}

static void answers_of_every_route_pass(void **state)
{
	(void)state;
	static const struct shape v[] = {
		{CHAT, SSE,
			"data: {\"id\":\"x\",\"object\":\"chat.completion.chunk\",\"choices\":[{\"delta\":{}}]}\n\n",
			OPENING_ANSWER},
		{CHAT, SSE,
			"data: {\"choices\":[],\"prompt_filter_results\":[{}]}\n\ndata: {\"choices\":[{\"delta\":{}}]}\n\n",
			OPENING_ANSWER},
		{CHAT, SSE, "data: {\"queue\":1}\n\ndata: {\"choices\":[{\"index\":0}]}\n\n", OPENING_ANSWER},
		{CHAT, SSE, "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"length\"}]}\n\n",
			OPENING_ANSWER},
		{CHAT, JSON, "{\"id\":\"x\",\"choices\":[{\"message\":{\"content\":null}}]}", OPENING_ANSWER},
		{CHAT, JSON, "{\"choices\":[{\"message\":{\"content\":\"\"},\"finish_reason\":\"stop\"}]}",
			OPENING_ANSWER},
		{CHAT, JSON, "{\"choices\":[{\"finish_reason\":\"length\",\"message\":{\"content\":\"\"}}]}",
			OPENING_ANSWER},
		{CHAT, JSON,
			"{\"choices\":[{\"message\":{\"content\":null,\"tool_calls\":[{\"id\":\"x\"}]},\"finish_reason\":\"error\"}]}",
			OPENING_ANSWER},
		{CHAT, JSON,
			"{\"choices\":[{\"error\":null,\"message\":{\"content\":\"\",\"tool_calls\":[],\"error\":{}}}]}",
			OPENING_ANSWER},
		{CHAT, JSON, "{\"choices\":[{\"message\":{\"content\":\"hi\"},\"finish_reason\":\"abort\"}]}",
			OPENING_ANSWER},
		{CHAT, JSON, "{\"choices\":[{\"index\":0,\"message\":{\"content\":\"\"}},{\"error\":{}}]}",
			OPENING_ANSWER},
		{CHAT, "", "{\"choices\":[{\"index\":0}]}", OPENING_ANSWER},
		{"/v1/completions", SSE, "data: {\"choices\":[{\"text\":\"\"}]}\n\n", OPENING_ANSWER},
		{"/v1/completions", JSON, "{\"content\":\"\",\"stop\":true}", OPENING_ANSWER},
		{"/v1/responses", SSE,
			"event: response.created\ndata: {\"response\":{\"error\":null},\"type\":\"response.created\"}\n\n",
			OPENING_ANSWER},
		{"/v1/responses", JSON,
			"{\"id\":\"x\",\"error\":null,\"status\":\"incomplete\",\"output\":[]}",
			OPENING_ANSWER},
		{"/v1/responses", JSON, "{\"output\":[],\"status\":\"completed\"}", OPENING_ANSWER},
		{"/v1/messages", SSE,
			"event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"error\":1}}\n\n",
			OPENING_ANSWER},
		{"/v1/messages", SSE,
			"event: message_start\ndata: {\"message\":{},\"type\":\"message_start\"}\n\n",
			OPENING_ANSWER},
		{"/v1/messages", JSON,
			"{\"id\":\"x\",\"type\":\"message\",\"content\":[],\"stop_reason\":\"end_turn\"}",
			OPENING_ANSWER},
		{"/v1/messages", JSON, "{\"id\":\"x\",\"type\":\"message\",\"content\":[{\"type\":\"text\"",
			OPENING_ANSWER},
		{"/v1/messages/count_tokens", JSON, "{\"input_tokens\":0}", OPENING_ANSWER},
		{"/v1/embeddings", JSON, "{\"object\":\"list\",\"data\":[{\"embedding\":[0.5]}]}",
			OPENING_ANSWER},
		{"/v1/embeddings", JSON, "[[0.5]]", OPENING_ANSWER},
		{"/v1/embeddings", "application/octet-stream", "\x01\x02", OPENING_ANSWER},
		{"/pooling", JSON, "{\"data\":[[0.5]]}", OPENING_ANSWER},
		{"/v1/rerank", JSON, "{\"model\":\"m\",\"usage\":{},\"results\":[{\"index\":0}]}",
			OPENING_ANSWER},
		{"/rerank", JSON, "[{\"index\":0,\"score\":0.5}]", OPENING_ANSWER},
		{"/v1/score", JSON, "{\"scores\":[0.5],\"object\":\"scoring\"}", OPENING_ANSWER},
		{"/score", JSON, "{\"data\":[{\"score\":0.5}]}", OPENING_ANSWER},
		{"/classify", JSON, "{\"data\":[{\"label\":\"a\"}]}", OPENING_ANSWER},
		{"/classify", JSON, "[{\"embedding\":[0.5]}]", OPENING_ANSWER},
		{"/tokenize", JSON, "{\"count\":0,\"tokens\":[]}", OPENING_ANSWER},
		{"/tokenize", JSON, "[[{\"id\":1}]]", OPENING_ANSWER},
		{"/detokenize", JSON, "{\"prompt\":\"\"}", OPENING_ANSWER},
		{"/detokenize", JSON, "{\"content\":\"hi\"}", OPENING_ANSWER},
		{"/apply-template", JSON, "{\"prompt\":\"hi\"}", OPENING_ANSWER},
	};
	static const struct shape media[] = {
		{"/completion", JSON, "{\"index\":0,\"content\":\"\"}", OPENING_ANSWER},
		{"/completion", JSON, "[{\"content\":\"hi\"}]", OPENING_ANSWER},
		{"/completion", SSE, "data: {\"x\":1}\n\n", OPENING_ANSWER},
		{"/generate", JSON, "{\"generated\":\"hi\"}", OPENING_ANSWER},
		{"/generate", JSON, "{}", OPENING_ANSWER},
		{"/v1/videos", JSON, "{\"status\":\"queued\",\"message\":\"ok\"}", OPENING_ANSWER},
		{"/v1/images/generations", JSON, "{\"created\":1,\"data\":[{\"b64_json\":\"x\"}]}",
			OPENING_ANSWER},
		{"/v1/audio/transcriptions", JSON, "{\"text\":\"\"}", OPENING_ANSWER},
		{"/v1/audio/transcriptions", "text/plain", "", OPENING_ANSWER},
		{"/v1/audio/speech", "audio/mpeg", "", OPENING_ANSWER},
		{"/v1/moderations", JSON, "{\"results\":[{}]}", OPENING_ANSWER},
	};
	shapes_check(OPENING_JSON, v, CGN_COUNT(v));
	shapes_check(OPENING_MEDIA, media, CGN_COUNT(media));
}

/* An answer in whose place stands an empty list, or nothing. */
static void hollow_answers_are_none(void **state)
{
	(void)state;
	static const struct shape v[] = {
		{CHAT, JSON, "{\"choices\":[],\"usage\":{}}", OPENING_OTHER},
		{CHAT, JSON, "{\"choices\": [ ] }", OPENING_OTHER},
		{CHAT, JSON, "{\"choices\":{}}", OPENING_OTHER},
		{CHAT, JSON, "{\"choices\":[{}]}", OPENING_OTHER},
		{CHAT, JSON, "{\"choices\":[ { } ]}", OPENING_OTHER},
		{CHAT, JSON, "{\"choices\":[null]}", OPENING_OTHER},
		{CHAT, JSON, "{\"choices\":\"error\"}", OPENING_OTHER},
		{CHAT, JSON, "{\"choices\":[],\"message\":\"x\"}", OPENING_ERROR},
		{CHAT, JSON, "{\"id\":\"x\",\"choices\":[{\"index\":0,\"mess", OPENING_OTHER},
		{CHAT, SSE, "data: {\"choices\":[]}\n\ndata: [DONE]\n\n", OPENING_OTHER},
		{CHAT, SSE, "data: {\"choices\":[],\"usage\":{}}\n\n", OPENING_OTHER},
		{CHAT, SSE, "data: {\"choices\":[]}\n\ndata: {\"error\":{}}\n\n", OPENING_ERROR},
		{"/v1/completions", JSON, "{\"choices\":[]}", OPENING_OTHER},
		{"/v1/messages", JSON, "{\"type\":\"message\",\"content\":[],\"stop_reason\":null}",
			OPENING_OTHER},
		{"/v1/responses", JSON, "{\"id\":\"x\",\"error\":null,\"output\":[]}", OPENING_OTHER},
		{"/v1/embeddings", JSON, "{\"object\":\"list\",\"data\":[]}", OPENING_OTHER},
		{"/v1/embeddings", JSON, "[null]", OPENING_OTHER},
		{"/v1/rerank", JSON, "{\"results\":[]}", OPENING_OTHER},
		{"/rerank", JSON, " [ ] ", OPENING_OTHER},
		{"/tokenize", JSON, "{\"tokens\":[]}", OPENING_OTHER},
	};
	shapes_check(OPENING_JSON, v, CGN_COUNT(v));
}

/* A choice may be the error, or end as one before it has content. */
static void choices_that_failed_are_told(void **state)
{
	(void)state;
	static const struct shape v[] = {
		{CHAT, JSON,
			"{\"choices\":[{\"index\":0,\"error\":{\"code\":502},\"finish_reason\":\"error\",\"message\":{\"content\":\"\"}}]}",
			OPENING_ERROR},
		{CHAT, JSON, "{\"choices\":[{\"error\":{\"code\":400},\"finish_reason\":\"error\"}]}",
			OPENING_REFUSAL},
		{CHAT, JSON, "{\"choices\":[{\"error\":\"x\"}]}", OPENING_ERROR},
		{CHAT, JSON,
			"{\"choices\":[{\"message\":{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[]},\"finish_reason\":\"abort\"}]}",
			OPENING_ERROR},
		{CHAT, SSE,
			"data: {\"choices\":[{\"delta\":{\"content\":\"\"},\"error\":{\"code\":502}}]}\n\ndata: [DONE]\n\n",
			OPENING_ERROR},
		{CHAT, SSE, "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"abort\"}]}\n\n",
			OPENING_ERROR},
		{"/v1/completions", SSE,
			"data: {\"choices\":[{\"text\":\"\",\"finish_reason\":\"error\"}]}\n\n",
			OPENING_ERROR},
	};
	shapes_check(OPENING_JSON, v, CGN_COUNT(v));
}

/* The member that tells stands in front of a large value. */
static void large_answers_are_not_held(void **state)
{
	(void)state;
	static const struct {
		const char *path, *text;
	} first[] = {{"/v1/embeddings", "{\"object\":\"list\",\"data\":[{"},
		{CHAT, "{\"id\":\"x\",\"choices\":[{\"index\":0,\"message\":{\"content\":\"h"},
		{CHAT, "{\"choices\":[{\"message\":{\"content\":null,\"reasoning_content\":\"h"},
		{"/v1/completions", "{\"choices\":[{\"text\":\"h"}, {"/rerank", "[{"},
		{"/v1/images/generations", "{\"created\":1,\"data\":[{"},
		{"/v1/completions", "{\"content\":\"h"}, {"/v1/responses", "{\"output\":[{"}};
	for (size_t i = 0; i < CGN_COUNT(first); i++) {
		struct opening o;
		opening_init(&o, OPENING_JSON, opening_answers(cgn_str_of(first[i].path)), CGN_STR(JSON));
		assert_int_equal(opening_feed(&o, cgn_str_of(first[i].text)), OPENING_ANSWER);
	}
}

/* Bytes may pass because they are not held any longer: they are judged all the same. */
static void a_reader_goes_on_after_it_gave_up(void **state)
{
	(void)state;
	struct opening o;
	opening_init(&o, OPENING_JSON, opening_answers(CGN_STR(CHAT)), CGN_STR(SSE));
	assert_int_equal(opening_feed(&o, CGN_STR(": wait\n\n")), OPENING_MORE);
	assert_int_equal(opening_give_up(&o), OPENING_ANSWER);
	assert_int_equal(opening_feed(&o, CGN_STR("data: {\"error\":{}}\n\n")), OPENING_ERROR);
	assert_int_equal(opening_give_up(&o), OPENING_ERROR);
}

static void whitespace_and_comments_are_blank(void **state)
{
	(void)state;
	static const struct {
		const char *type, *text;
		size_t n;
	} v[] = {
		{SSE, ": a\n\n: b\r\n\r\n", 12},
		{SSE, ": a\n\n: half", 5},
		{SSE, ": a\n\ndat", 5},
		{SSE, ": half", 0},
		{SSE, "event: ping\ndata: {}\n\n:c\n", 25},
		{SSE, "event: ping\ndata: {}\n", 0},
		{SSE, "id: 1\n", 0},
		{SSE, "data: x\n\n", 0},
		{JSON, " \r\n\n", 4},
		{JSON, " \n{", 0},
		{"", " \n", 2},
	};
	for (size_t i = 0; i < CGN_COUNT(v); i++) {
		struct opening o;
		opening_init(&o, OPENING_JSON, opening_answers(CGN_STR(CHAT)), cgn_str_of(v[i].type));
		(void)opening_feed(&o, cgn_str_of(v[i].text));
		if (opening_blank(&o, cgn_str_of(v[i].text)) != v[i].n)
			fail_msg("%s", v[i].text);
	}
}

static void a_status_tells_whose_fault_it_is(void **state)
{
	(void)state;
	static const struct {
		int status;
		enum opening_status says;
	} v[] = {{200, STATUS_JUDGED}, {202, STATUS_JUDGED}, {206, STATUS_JUDGED}, {204, STATUS_NOTHING},
		{304, STATUS_NOTHING}, {400, STATUS_REQUEST}, {413, STATUS_REQUEST}, {422, STATUS_REQUEST},
		{401, STATUS_NODE}, {402, STATUS_NODE}, {405, STATUS_NODE}, {418, STATUS_NODE},
		{410, STATUS_NODE}, {409, STATUS_REQUEST}, {451, STATUS_NODE}, {423, STATUS_NODE},
		{425, STATUS_NODE}, {444, STATUS_BROKE}, {495, STATUS_NODE}, {497, STATUS_NODE},
		{501, STATUS_NODE}, {424, STATUS_BROKE}, {499, STATUS_BROKE}, {429, STATUS_FULL},
		{500, STATUS_FAILED}, {503, STATUS_FAILED}, {520, STATUS_FAILED}, {599, STATUS_FAILED},
		{999, STATUS_FAILED}};
	for (size_t i = 0; i < CGN_COUNT(v); i++)
		if (opening_status(v[i].status) != v[i].says)
			fail_msg("%d", v[i].status);
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
		cmocka_unit_test(streams_without_the_end_of_their_dialect_are_cut),
		cmocka_unit_test(the_last_event_of_a_stream_is_known),
		cmocka_unit_test(parts_of_events_without_data_are_of_no_use),
		cmocka_unit_test(documents_without_an_answer_are_none),
		cmocka_unit_test(answers_of_every_route_pass),
		cmocka_unit_test(hollow_answers_are_none),
		cmocka_unit_test(choices_that_failed_are_told),
		cmocka_unit_test(large_answers_are_not_held),
		cmocka_unit_test(a_reader_goes_on_after_it_gave_up),
		cmocka_unit_test(whitespace_and_comments_are_blank),
		cmocka_unit_test(a_status_tells_whose_fault_it_is),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
