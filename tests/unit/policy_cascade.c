/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "policy/answer/cascade/cascade.h"

static struct json_val body_of(const char *text)
{
	struct json_val v;
	assert_true(cgn_ok(json_parse(cgn_str_of(text), &v, NULL, NULL)));
	return v;
}

/* ---- the body ---- */

static const char *passes_text(enum prompt_api api, const char *text, bool *own)
{
	const char *why = cascade_passes(api, body_of(text), false, own);
	return why != NULL ? why : "gated";
}

static void test_what_passes(void **state)
{
	bool own;
	(void)state;
	assert_string_equal(passes_text(PROMPT_CHAT, "{\"messages\":[]}", &own), "gated");
	assert_false(own);
	assert_string_equal(passes_text(PROMPT_CHAT, "{\"logprobs\":false,\"top_logprobs\":null}", &own),
		"gated");
	assert_string_equal(passes_text(PROMPT_CHAT, "{\"logprobs\":true,\"top_logprobs\":2}", &own),
		"gated");
	assert_true(own);
	assert_string_equal(passes_text(PROMPT_CHAT, "{\"logprobs\":true}", &own), "logprobs");
	assert_string_equal(passes_text(PROMPT_COMPLETIONS, "{\"logprobs\":1}", &own), "logprobs");
	assert_string_equal(passes_text(PROMPT_COMPLETIONS, "{\"logprobs\":3}", &own), "gated");
	assert_true(own);
	assert_string_equal(passes_text(PROMPT_COMPLETIONS, "{\"echo\":true}", &own), "logprobs");
	assert_string_equal(passes_text(PROMPT_MESSAGES, "{}", &own), "route");
	assert_string_equal(passes_text(PROMPT_CHAT, "{\"response_format\":{\"type\":\"json_object\"}}",
				    &own),
		"structured");
	assert_string_equal(passes_text(PROMPT_CHAT, "{\"response_format\":{\"type\":\"text\"}}", &own),
		"gated");
	assert_string_equal(passes_text(PROMPT_CHAT, "{\"tool_choice\":\"required\"}", &own), "structured");
	assert_string_equal(passes_text(PROMPT_CHAT, "{\"tools\":[{}],\"tool_choice\":\"auto\"}", &own),
		"gated");
	assert_string_equal(cascade_passes(PROMPT_CHAT, body_of("{}"), true, &own), "several");
}

static void body_is(enum prompt_api api, const char *from, const char *to)
{
	struct cgn_buf out = {0};
	cascade_body(api, cgn_str_of(from), body_of(from), &out);
	assert_string_equal(cgn_buf_z(&out), to);
	cgn_buf_fini(&out);
}

static void test_the_body_asks_for_logprobs(void **state)
{
	(void)state;
	body_is(PROMPT_CHAT, " {\"model\":\"m\"} ",
		" {\"model\":\"m\",\"logprobs\":true,\"top_logprobs\":5} ");
	body_is(PROMPT_CHAT, "{\"logprobs\":false,\"top_logprobs\":0,\"a\":1}",
		"{\"logprobs\":true ,\"top_logprobs\":5,\"a\":1}");
	body_is(PROMPT_CHAT, "{\"top_logprobs\":null}", "{\"top_logprobs\":5   ,\"logprobs\":true}");
	body_is(PROMPT_COMPLETIONS, "{\"prompt\":\"x\"}", "{\"prompt\":\"x\",\"logprobs\":5}");
	body_is(PROMPT_COMPLETIONS, "{\"logprobs\":null}", "{\"logprobs\":5   }");
}

/* ---- the answer ---- */

#define TOKEN(text, first, second)                                                           \
	"{\"token\":\"" text "\",\"logprob\":" first ",\"top_logprobs\":[{\"token\":\"" text \
	"\",\"logprob\":" first "},{\"token\":\"other\",\"logprob\":" second "}]}"
#define EVENT(delta, tokens)                                                                        \
	"data: {\"choices\":[{\"index\":0,\"delta\":{" delta "},\"logprobs\":{\"content\":[" tokens \
	"]},\"finish_reason\":null}]}\n\n"

static void read_events(struct cascade_answer *a, unsigned most, const char *text)
{
	cascade_answer_init(a, most);
	for (const char *p = text; *p != '\0'; p++) /* cut everywhere */
		cascade_answer_feed(a, (struct cgn_str){p, 1});
}

static void test_tokens_of_a_stream(void **state)
{
	struct cascade_answer a;
	(void)state;
	read_events(&a, 16,
		EVENT("\"content\":\"Paris\"", TOKEN("Paris", "-0.1", "-3"))
			EVENT("\"content\":\" is\"", TOKEN(" is", "-0.3", "-2")));
	assert_int_equal(a.n, 2);
	assert_false(a.ended);
	assert_true(fabs(cascade_confidence(&a) + 0.2) < 1e-9);
	double margin = (exp(-0.1) - exp(-3) + exp(-0.3) - exp(-2)) / 2;
	assert_true(fabs(a.margin / 2 - margin) < 1e-9);
	cascade_answer_feed(&a, CGN_STR("data: [DONE]\n\n"));
	assert_true(a.ended);
	cascade_answer_fini(&a);
}

static void test_reasoning_and_structure_are_not_read(void **state)
{
	struct cascade_answer a;
	(void)state;
	read_events(&a, 16,
		EVENT("\"reasoning_content\":\"hm\"", TOKEN("hm", "-9", "-9")) EVENT("\"content\":\"{\"",
			TOKEN("{", "-0.0001", "-9")) EVENT("\"content\":\"a\"", TOKEN("a", "-1", "-1")));
	assert_int_equal(a.n, 1);
	assert_int_equal(a.seen, 2);
	assert_true(fabs(cascade_confidence(&a) + 1) < 1e-9);
	cascade_answer_fini(&a);
	read_events(&a, 16,
		EVENT("\"content\":\"<think>\"", TOKEN("<think>", "-0.1", "-9"))
			EVENT("\"content\":\"no\"", TOKEN("no", "-9", "-9"))
				EVENT("\"content\":\"</think>\"", TOKEN("</think>", "-0.1", "-9"))
					EVENT("\"content\":\"yes\"", TOKEN("yes", "-2", "-3")));
	assert_int_equal(a.n, 1);
	assert_true(fabs(cascade_confidence(&a) + 2) < 1e-9);
	cascade_answer_fini(&a);
}

static void read_document(struct cascade_answer *a, const char *text)
{
	cascade_answer_init(a, 16);
	cascade_answer_document(a, cgn_str_of(text));
}

static void test_tokens_of_documents(void **state)
{
	struct cascade_answer a;
	(void)state;
	read_document(&a,
		"{\"choices\":[{\"message\":{\"reasoning_content\":\"hm\",\"content\":\"yes\"},\"logprobs\":{\"content\":[" TOKEN(
			"hm", "-9", "-9") "," TOKEN("</think>", "-9", "-9") "," TOKEN("yes", "-0.5",
			"-1") "]},\"finish_reason\":\"stop\"}]}");
	assert_int_equal(a.n, 1);
	assert_true(a.ended && fabs(cascade_confidence(&a) + 0.5) < 1e-9);
	cascade_answer_fini(&a);
	read_document(&a,
		"{\"choices\":[{\"text\":\"a b\",\"logprobs\":{\"tokens\":[\"a\",\" b\"],\"token_logprobs\":[null,-1],"
		"\"top_logprobs\":[null,{\" b\":-1,\" c\":-1.5}]},\"finish_reason\":\"length\"}]}");
	assert_int_equal(a.n, 2);
	assert_true(fabs(a.logprob + 101) < 1e-9);
	cascade_answer_fini(&a);
	read_document(&a, "{\"choices\":[{\"message\":{\"content\":\"yes\"},\"logprobs\":null}]}");
	assert_int_equal(a.seen, 0);
	cascade_answer_fini(&a);
}

static void test_doubt_is_between_sure_and_torn(void **state)
{
	struct cascade_answer sure, torn;
	(void)state;
	read_events(&sure, 4, EVENT("\"content\":\"a\"", TOKEN("a", "-0.0001", "-12")));
	read_events(&torn, 4, EVENT("\"content\":\"a\"", TOKEN("a", "-1.1", "-1.1")));
	assert_true(cascade_doubt(&sure) < 0.01);
	assert_true(cascade_doubt(&torn) > 0.9 && cascade_doubt(&torn) <= 1);
	cascade_answer_fini(&sure);
	cascade_answer_fini(&torn);
}

/* ---- the gate ---- */

static void test_the_gate_waits_for_its_tokens(void **state)
{
	struct cascade_answer a;
	const struct cascade_gate g = {.threshold = -1.5};
	(void)state;
	read_events(&a, 2, EVENT("\"content\":\"a\"", TOKEN("a", "-1", "-1")));
	assert_int_equal(cascade_judge(&g, &a, false), CASCADE_WAIT);
	assert_int_equal(cascade_judge(&g, &a, true), CASCADE_RELEASE);
	cascade_answer_feed(&a, CGN_STR(EVENT("\"content\":\"b\"", TOKEN("b", "-1.8", "-2"))));
	assert_int_equal(cascade_judge(&g, &a, false), CASCADE_RELEASE);
	cascade_answer_fini(&a);
	read_events(&a, 1, EVENT("\"content\":\"a\"", TOKEN("a", "-1.6", "-1.7")));
	assert_int_equal(cascade_judge(&g, &a, false), CASCADE_ESCALATE);
	cascade_answer_fini(&a);
	read_events(&a, 1, "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n");
	assert_int_equal(cascade_judge(&g, &a, false), CASCADE_ESCALATE);
	cascade_answer_fini(&a);
}

/* A sure beginning of an answer that the engine then calls failed goes to the larger model, at once. */
static void test_a_failed_answer_never_passes(void **state)
{
	static const char *const rows[] = {
		"data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"abort\"}]}\n\n",
		"data: {\"error\":{\"message\":\"out of memory\"}}\n\n",
		"data: {\"object\":\"error\",\"message\":\"out of memory\"}",
		"data: {\"detail\":\"out of memory\"}",
	};
	const struct cascade_gate g = {.threshold = -1.5};
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		struct cascade_answer a;
		read_events(&a, 2, EVENT("\"content\":\"a\"", TOKEN("a", "-0.1", "-5")));
		assert_int_equal(cascade_judge(&g, &a, true), CASCADE_RELEASE);
		cascade_answer_feed(&a, cgn_str_of(rows[i]));
		cascade_answer_end(&a);
		assert_int_equal(cascade_judge(&g, &a, false), CASCADE_ESCALATE);
		cascade_answer_fini(&a);
	}
	struct cascade_answer a;
	read_document(&a,
		"{\"choices\":[{\"message\":{\"content\":\"a\"},\"logprobs\":{\"content\":[" TOKEN("a",
			"-0.1", "-5") "]},\"finish_reason\":\"error\"}]}");
	assert_int_equal(cascade_judge(&g, &a, true), CASCADE_ESCALATE);
	cascade_answer_fini(&a);
}

/* ---- the rates ---- */

static void ask_often(struct cascade_rates *r, const struct cascade_request *q, unsigned n, bool escalated)
{
	struct cascade_group g;
	cascade_group_of(q, &g);
	for (unsigned i = 0; i < n; i++)
		cascade_learn(r, &g, escalated);
}

static bool is_hopeless(const struct cascade_rates *r, const struct cascade_request *q, double random)
{
	struct cascade_group g;
	cascade_group_of(q, &g);
	return cascade_is_hopeless(r, &g, 0.8, random);
}

static void test_requests_that_hardly_ever_pass_are_known(void **state)
{
	static struct cascade_rates r;
	const struct cascade_request hard = {1, 2, 3, 4, 1000}, easy = {1, 2, 3, 5, 20},
				     other = {9, 2, 3, 4, 1000};
	(void)state;
	assert_false(is_hopeless(&r, &hard, 0.5));
	ask_often(&r, &hard, 19, true);
	assert_false(is_hopeless(&r, &hard, 0.5));
	ask_often(&r, &hard, 100, true);
	assert_true(is_hopeless(&r, &hard, 0.5));
	assert_false(is_hopeless(&r, &hard, 0.01)); /* explored */
	assert_false(is_hopeless(&r, &other, 0.5)); /* another pair of models */
	ask_often(&r, &easy, 100, false);
	assert_false(is_hopeless(&r, &easy, 0.5));
	assert_true(is_hopeless(&r, &hard, 0.5));
	ask_often(&r, &hard, 400, false); /* the requests have become easy */
	assert_false(is_hopeless(&r, &hard, 0.5));
}

static bool rates_fit(struct cascade_rates *out, const char *lines)
{
	struct cgn_err err;
	return cgn_ok(cascade_rates_take(cgn_str_of(lines), out, &err));
}

static void test_rates_are_written_and_read(void **state)
{
	static struct cascade_rates r, again;
	const struct cascade_request hard = {1, 2, 3, 4, 1000}, easy = {1, 2, 3, 5, 20};
	struct cgn_buf text = {.n = 0};
	struct cgn_err err;
	(void)state;
	ask_often(&r, &hard, 150, true);
	ask_often(&r, &easy, 30, false);
	cascade_rates_put(&r, &text);
	assert_true(cgn_ok(cascade_rates_take(cgn_buf_view(&text), &again, &err)));
	assert_true(is_hopeless(&again, &hard, 0.5));
	assert_false(is_hopeless(&again, &easy, 0.5));
	ask_often(&again, &hard, 40, false); /* Far less than 150: requests from the file count less. */
	assert_false(is_hopeless(&again, &hard, 0.5));
	cgn_buf_fini(&text);
	assert_true(rates_fit(&again, "") && rates_fit(&again, "cell 4095 1000 1000\n"));
	const char *bad[] = {"cell 4096 1000 0\n", "cell 1 0 0\n", "cell 1 1000 1001\n", "cell 1 1000\n",
		"cell -1 1 1\n", "cell 1 1000001 1\n", "cel 1 1 1\n", "\n"};
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		assert_false(rates_fit(&again, bad[i]));
}

/* ---- taking log-probabilities out ---- */

static void strip_is(enum cascade_blank blank, bool events, const char *from, const char *to)
{
	for (size_t step = 1; step < 6; step++) {
		struct cascade_strip s;
		struct cgn_buf out = {0};
		cascade_strip_init(&s, blank, events);
		for (size_t at = 0, n = strlen(from); at < n; at += step)
			cascade_strip_feed(&s, (struct cgn_str){from + at, n - at < step ? n - at : step},
				&out);
		cascade_strip_end(&s, &out);
		assert_string_equal(cgn_buf_z(&out), to);
		cgn_buf_fini(&out);
	}
}

static void test_logprobs_are_taken_out(void **state)
{
	(void)state;
	strip_is(CASCADE_BLANK_NULL, true,
		"data: {\"id\":\"x\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"logprobs\"},\"logprobs\":{\"content\":[{\"token\":\"}\\\"\"}]},\"finish_reason\":null}]}\n\ndata: [DONE]\n\n",
		"data: {\"id\":\"x\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"logprobs\"},\"logprobs\":null,\"finish_reason\":null}]}\n\ndata: [DONE]\n\n");
	strip_is(CASCADE_BLANK_GONE, false,
		"{\"choices\":[{\"a\":1,\"logprobs\": {\"x\":[1,2]} , \"b\":{\"logprobs\":1}}]}",
		"{\"choices\":[{\"a\":1 , \"b\":{\"logprobs\":1}}]}");
	strip_is(CASCADE_BLANK_GONE, false,
		"{\"choices\":[{\"logprobs\":null,\"b\":2},{\"b\":1,\"logprobs\":[]},{\"logprobs\":{}}]}",
		"{\"choices\":[{\"b\":2},{\"b\":1},{}]}");
	strip_is(CASCADE_BLANK_NULL, false,
		"{\"logprobs\":1,\"choices\":[{\"logprobs\":\"a\\\"b\"}],\"usage\":{\"logprobs\":2}}",
		"{\"logprobs\":1,\"choices\":[{\"logprobs\":null}],\"usage\":{\"logprobs\":2}}");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_what_passes),
		cmocka_unit_test(test_the_body_asks_for_logprobs),
		cmocka_unit_test(test_tokens_of_a_stream),
		cmocka_unit_test(test_reasoning_and_structure_are_not_read),
		cmocka_unit_test(test_tokens_of_documents),
		cmocka_unit_test(test_doubt_is_between_sure_and_torn),
		cmocka_unit_test(test_the_gate_waits_for_its_tokens),
		cmocka_unit_test(test_a_failed_answer_never_passes),
		cmocka_unit_test(test_requests_that_hardly_ever_pass_are_known),
		cmocka_unit_test(test_rates_are_written_and_read),
		cmocka_unit_test(test_logprobs_are_taken_out),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
