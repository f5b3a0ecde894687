/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/core/err.h"
#include "base/json/json.h"
#include "policy/answer/hook/hook.h"

/* ---- answers ---- */

static void test_answers_are_decisions(void **state)
{
	static const struct {
		int status;
		const char *body;
		enum hook_decision decision;
		int shown;
	} rows[] = {
		{200, "", HOOK_ALLOWED, 0},
		{204, "", HOOK_ALLOWED, 0},
		{200, "{\"allow\":true}", HOOK_ALLOWED, 0},
		{200, " {\"allow\" : true, \"x\":[]} \n", HOOK_ALLOWED, 0},
		{200, "{\"allow\":false,\"allow\":true}", HOOK_FAILED, 0},
		{200, "{\"allow\":true,\"allow\":true}", HOOK_FAILED, 0},
		{200, "{\"allow\":true,\"\\u0061llow\":false}", HOOK_FAILED, 0},
		{200, "{\"allow\":true,\"x\":{\"allow\":false},\"y\":1,\"y\":2}", HOOK_ALLOWED, 0},
		{200, "{\"allow\":false}", HOOK_REFUSED, 403},
		{200, "{\"allow\":true,\"allow\":false}", HOOK_FAILED, 0},
		{403, "{\"allow\":true,\"allow\":false}", HOOK_REFUSED, 403},
		{204, "{\"allow\":false}", HOOK_REFUSED, 403},
		{200, "{}", HOOK_FAILED, 0},
		{200, "{\"allow\":1}", HOOK_FAILED, 0},
		{200, "{\"allow\":\"true\"}", HOOK_FAILED, 0},
		{200, "{\"allow\":null}", HOOK_FAILED, 0},
		{200, "true", HOOK_FAILED, 0},
		{200, "[{\"allow\":true}]", HOOK_FAILED, 0},
		{200, "{\"allow\":true", HOOK_FAILED, 0},
		{200, "{\"allow\":true}}", HOOK_FAILED, 0},
		{200, " ", HOOK_FAILED, 0},
		{200, "ok", HOOK_FAILED, 0},
		{201, "", HOOK_FAILED, 0},
		{302, "{\"allow\":true}", HOOK_FAILED, 0},
		{500, "{\"allow\":true}", HOOK_FAILED, 0},
		{503, "", HOOK_FAILED, 0},
		{100, "", HOOK_FAILED, 0},
		{999, "", HOOK_FAILED, 0},
		{400, "", HOOK_REFUSED, 400},
		{401, "{\"allow\":true}", HOOK_REFUSED, 403},
		{402, "", HOOK_REFUSED, 402},
		{403, "not json", HOOK_REFUSED, 403},
		{404, "", HOOK_REFUSED, 403},
		{413, "", HOOK_REFUSED, 403},
		{429, "", HOOK_REFUSED, 429},
		{451, "", HOOK_REFUSED, 451},
	};
	struct hook_verdict v;
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		hook_answer_read(rows[i].status, cgn_str_of(rows[i].body), &v);
		if (v.decision != rows[i].decision || v.status != rows[i].shown)
			fail_msg("%d %s: %d %d", rows[i].status, rows[i].body, (int)v.decision, v.status);
		assert_int_equal(v.why != NULL, v.decision == HOOK_FAILED);
	}
}

static void assert_refusal(const char *body, const char *message, const char *code)
{
	struct hook_verdict v;
	hook_answer_read(403, cgn_str_of(body), &v);
	assert_int_equal(v.decision, HOOK_REFUSED);
	assert_string_equal(v.message, message);
	assert_string_equal(v.code, code);
}

static void test_texts_of_a_refusal_are_bounded_and_of_one_line(void **state)
{
	char body[2000] = "{\"message\":\"", message[HOOK_MESSAGE_MAX + 1] = "";
	(void)state;
	assert_refusal("{\"message\":\"no\",\"code\":\"a.B-9_\"}", "no", "a.B-9_");
	assert_refusal("{}", "the request is not allowed here", "hook_refused");
	assert_refusal("{\"message\":\" \\n\",\"code\":\"\"}", "the request is not allowed here",
		"hook_refused");
	assert_refusal("{\"message\":{\"a\":1},\"code\":[\"x\"]}", "the request is not allowed here",
		"hook_refused");
	assert_refusal("{\"message\":\"a\\r\\n\\u0000\\u001b[1mb\\u007f\",\"code\":\"a b\"}",
		"a   "
		" [1mb ",
		"hook_refused");
	assert_refusal(
		"{\"message\":\"x\",\"code\":\"01234567890123456789012345678901234567890123456789012345678901234\"}",
		"x", "0123456789012345678901234567890123456789012345678901234567890123");
	/* 511 bytes and a letter of two: the letter does not fit, and no half of it is left. */
	for (size_t i = 0; i < HOOK_MESSAGE_MAX - 1; i++) {
		strcat(body, "a");
		strcat(message, "a");
	}
	strcat(body, "\xc3\xa4\"}");
	assert_refusal(body, message, "hook_refused");
}

static void test_an_answer_that_is_too_long_is_none(void **state)
{
	struct cgn_buf b = {0};
	struct hook_verdict v;
	(void)state;
	cgn_buf_putz(&b, "{\"allow\":true,\"x\":\"");
	for (size_t i = 0; i < HOOK_ANSWER_MAX; i++)
		cgn_buf_char(&b, 'a');
	cgn_buf_putz(&b, "\"}");
	hook_answer_read(200, cgn_buf_view(&b), &v);
	assert_int_equal(v.decision, HOOK_FAILED);
	cgn_buf_fini(&b);
}

/* ---- questions ---- */

static void assert_question(const struct hook_question *q, const char *end)
{
	struct cgn_buf b = {0};
	struct json_val v;
	hook_question_open(&b, q);
	hook_question_close(&b, q->form, q->body);
	assert_true(cgn_ok(json_parse(cgn_buf_view(&b), &v, NULL, NULL)));
	const char *text = cgn_buf_z(&b);
	if (strlen(text) < strlen(end) || strcmp(text + strlen(text) - strlen(end), end) != 0)
		fail_msg("%s", text);
	cgn_buf_fini(&b);
}

static void test_the_document(void **state)
{
	const char *roles[] = {"user", "team-a"};
	struct hook_question q = {.hook = "before",
		.id = CGN_STR("r\"1"),
		.method = CGN_STR("POST"),
		.path = CGN_STR("/v1/chat/completions"),
		.model = CGN_STR("m"),
		.stream = true,
		.kind = "key",
		.name = CGN_STR("k1"),
		.tenant = CGN_STR("acme"),
		.roles = roles,
		.n_roles = 2,
		.from = CGN_STR("10.0.0.1:5")};
	(void)state;
	assert_question(&q,
		"{\"hook\":\"before\",\"request\":{\"id\":\"r\\\"1\",\"client_id\":null,\"method\":\"POST\",\"path\":\"/v1/chat/completions\",\"model\":\"m\",\"stream\":true},"
		"\"principal\":{\"kind\":\"key\",\"name\":\"k1\",\"tenant\":\"acme\",\"roles\":[\"user\",\"team-a\"]},\"from\":\"10.0.0.1:5\"}");
	q = (struct hook_question){.hook = "after",
		.kind = "address",
		.status = 200,
		.type = CGN_STR("application/json"),
		.complete = true,
		.form = HOOK_JSON,
		.body = CGN_STR(" {\"a\":1}\n")};
	assert_question(&q,
		"\"model\":null,\"stream\":false},\"principal\":{\"kind\":\"address\",\"name\":null,\"tenant\":null,\"roles\":[]},\"from\":\"\","
		"\"response\":{\"status\":200,\"content_type\":\"application/json\",\"complete\":true},\"body\": {\"a\":1}\n}");
}

static void test_bodies(void **state)
{
	static const struct {
		enum hook_body form;
		const char *body, *end;
	} rows[] = {
		{HOOK_NO_BODY, "x", "\"from\":\"\"}"},
		{HOOK_CHECKED, "[1]", ",\"body\":[1]}"},
		{HOOK_JSON, "[1", ",\"body_base64\":\"WzE=\"}"},
		{HOOK_JSON, "{}],\"allow\":true", ",\"body_base64\":\"e31dLCJhbGxvdyI6dHJ1ZQ==\"}"},
		{HOOK_BYTES, "RIFF", ",\"body_base64\":\"UklGRg==\"}"},
		{HOOK_EVENTS, "data: {\"a\":1}\n\n: note\n\nevent: x\r\ndata: [2]\r\n\r\ndata: [DONE]\n\n",
			",\"events\":[{\"a\":1},[2]]}"},
		{HOOK_EVENTS, "data: {\"a\"\ndata: :1}\n\ndata: not json\n\n",
			",\"events\":[{\"a\"\n:1},\"not json\"]}"},
		{HOOK_EVENTS, "data: 1],\"allow\":[\n\n", ",\"events\":[\"1],\\\"allow\\\":[\"]}"},
		{HOOK_EVENTS, "data: {\"a\":1}\n\ndata: [2]", ",\"events\":[{\"a\":1},[2]]}"},
		{HOOK_EVENTS, "", ",\"events\":[]}"},
		{HOOK_LINES, "{\"a\":1}\n\n[2]\n{\"b\"", ",\"events\":[{\"a\":1},[2],\"{\\\"b\\\"\"]}"},
	};
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		const struct hook_question q = {.hook = "after",
			.kind = "address",
			.form = rows[i].form,
			.body = cgn_str_of(rows[i].body)};
		assert_question(&q, rows[i].end);
	}
}

static void test_a_document_that_does_not_fit_is_bad(void **state)
{
	struct cgn_buf b = {.limit = 300};
	const struct hook_question q = {.hook = "after",
		.kind = "address",
		.form = HOOK_EVENTS,
		.body = CGN_STR(
			"data: a text that is as long as the room for all of it is, more or less\n\n"
			"data: a text that is as long as the room for all of it is, more or less\n\n")};
	(void)state;
	hook_question_open(&b, &q);
	hook_question_close(&b, q.form, q.body);
	assert_true(b.bad);
	cgn_buf_fini(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_answers_are_decisions),
		cmocka_unit_test(test_texts_of_a_refusal_are_bounded_and_of_one_line),
		cmocka_unit_test(test_an_answer_that_is_too_long_is_none),
		cmocka_unit_test(test_the_document),
		cmocka_unit_test(test_bodies),
		cmocka_unit_test(test_a_document_that_does_not_fit_is_bad),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
