/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/core/buf.h"
#include "base/core/err.h"
#include "policy/node/engine/usagescan.h"

/* On the heap, so that a sanitizer sees reads beyond the ends. */
static void part_feed(struct usagescan *s, const char *p, size_t n)
{
	char *copy = malloc(n + (n == 0));
	memcpy(copy, p, n);
	usagescan_feed(s, (struct cgn_str){copy, n});
	free(copy);
}

static struct usagescan scan_cut(struct cgn_str text, size_t cut)
{
	struct usagescan s = {0};
	part_feed(&s, text.p, cut);
	part_feed(&s, text.p + cut, text.n - cut);
	return s;
}

static struct usagescan scan_whole(const char *text)
{
	return scan_cut(cgn_str_of(text), 0);
}

static bool usage_eq(const struct usage *a, const struct usage *b)
{
	return a->has_prompt == b->has_prompt && a->has_completion == b->has_completion &&
		a->has_cached == b->has_cached && a->absurd == b->absurd &&
		a->prompt_tokens == b->prompt_tokens && a->completion_tokens == b->completion_tokens &&
		a->cached_tokens == b->cached_tokens;
}

/* Fail unless all that is read of |text| is the same wherever it is cut, and when its bytes come one by one. */
static void same_for_all_cuts(const char *text)
{
	const struct cgn_str all = cgn_str_of(text);
	const struct usagescan whole = scan_cut(all, 0);
	const struct estimate_seen seen = usagescan_seen(&whole);
	struct usagescan bytes = {0};
	for (size_t i = 0; i < all.n; i++)
		part_feed(&bytes, all.p + i, 1);
	for (size_t cut = 0; cut <= all.n; cut++) {
		const struct usagescan s = cut < all.n ? scan_cut(all, cut) : bytes;
		const struct estimate_seen now = usagescan_seen(&s);
		if (s.found != whole.found || s.found_own != whole.found_own ||
			s.found_timings != whole.found_timings || !usage_eq(&s.usage, &whole.usage) ||
			!usage_eq(&s.own, &whole.own) || now.bytes != seen.bytes || now.events != seen.events)
			fail_msg("cut at %zu: %s", cut, text);
	}
}

static void dialects_are_read(void **state)
{
	(void)state;
	static const struct {
		const char *text;
		bool found;
		uint64_t prompt, completion, cached;
	} rows[] = {
		{"{\"id\":\"x\",\"choices\":[],\"usage\":{\"prompt_tokens\":12,\"total_tokens\":20,\"completion_tokens\":8,"
		 "\"prompt_tokens_details\":{\"cached_tokens\":7}}}",
			true, 12, 8, 7},
		{"data: {\"usage\":null}\n\ndata: {\"choices\":[],\"usage\" : {\"prompt_tokens\":1,\"completion_tokens\":2}}\n\ndata: [DONE]\n\n",
			true, 1, 2, 0},
		{"data: {\"type\":\"response.completed\",\"response\":{\"usage\":{\"input_tokens\":5,\"input_tokens_details\":{\"cached_tokens\":4},"
		 "\"output_tokens\":6,\"output_tokens_details\":{\"reasoning_tokens\":0}},\"user\":null}}\n\n",
			true, 5, 6, 4},
		{"{\"usage\":{\"input_tokens\":9,\"cache_read_input_tokens\":3,\"output_tokens\":1}}", true,
			12, 1, 3},
		{"{\"usage\":{\"input_tokens\":9,\"cache_creation_input_tokens\":2,\"cache_read_input_tokens\":0,\"output_tokens\":1}}",
			true, 11, 1, 0},
		/* The last complete object counts */
		{"{\"usage\":{\"prompt_tokens\":4}}{\"usage\":{\"prompt_tok", true, 4, 0, 0},
		{"{\"text\":\"\\\"usage\\\":{\\\"prompt_tokens\\\":4}\"}", false, 0, 0, 0},
		{"{\"usage\":{\"prompt_tokens\":-4,\"completion_tokens\":\"7\"}}", true, 0, 0, 0},
		{"{\"usage\":{\"prompt_tokens\":\"}{\",\"completion_tokens\":3}}", true, 0, 3, 0},
		{"{\"usage\":{\"prompt_tokens\":18446744073709551615,\"completion_tokens\":268435456}}", true,
			0, USAGE_MOST, 0},
		/* No engine counts that many. */
		{"{\"usage\":{\"prompt_tokens\":1000000000000,\"completion_tokens\":268435457}}", true, 0, 0,
			0},
		/* Names with escapes, names twice, other members behind */
		{"{\"\\u0075sage\":{\"prompt\\u005Ftokens\":3,\"completion_tokens\":2}}", true, 3, 2, 0},
		{"{\"usage\":{\"prompt_tokens\":3,\"prompt_tokens\":4,\"completion_tokens\":2}}", true, 4, 2,
			0},
		{"{\"usage\":{\"prompt_tokens\":3},\"usage\":{\"prompt_tokens\":5}}", true, 5, 0, 0},
		{"{\"usage\":{\"prompt_tokens\":3,\"prompt_tokens\":\"x\",\"completion_tokens\":2}}", true, 0,
			2, 0},
		{"{\"usage\":{\"completion_tokens\":2,\"more\":{\"completion_tokens\":7,\"a\":[{\"prompt_tokens\":9}]},"
		 "\"prompt_tokens\":3},\"prompt_logprobs\":[null,{\"1\":{\"usage\":{\"prompt_tokens\":9}}}]}",
			true, 3, 2, 0},
		{"\xef\xbb\xbf {\"usage\":{\"prompt_tokens\":1.0,\"completion_tokens\":1e2}}", true, 1, 100,
			0},
		{"data: {\"choices\":[],\r\ndata: \"usage\":{\"prompt_tokens\":1\r\ndata:,\"completion_tokens\":2}}\r\n\r\n",
			true, 1, 2, 0},
		{"event: x\rid: 1\rdata:{\"usage\":{\"prompt_tokens\":1}}\r\r", true, 1, 0, 0},
		{"data: {\"x_groq\":{\"id\":\"r\",\"usage\":{\"prompt_tokens\":6,\"completion_tokens\":2}}}\n\n",
			true, 6, 2, 0},
		{": data: {\"usage\":{\"prompt_tokens\":1}}\n\nid: {\"usage\":{\"prompt_tokens\":1}}\n\n",
			false, 0, 0, 0},
		/* Counts that a model writes are text. */
		{"{\"content\":[{\"type\":\"tool_use\",\"input\":{\"usage\":{\"prompt_tokens\":1}}}]}", false,
			0, 0, 0},
		{"{\"choices\":[{\"message\":{\"usage\":{\"prompt_tokens\":1}}}]}", false, 0, 0, 0},
		{"{\"usage\":{}}", false, 0, 0, 0},
		{"{\"usage\":[1]}", false, 0, 0, 0},
		{"\"usage\"", false, 0, 0, 0},
		{"\"usage\":", false, 0, 0, 0},
		{"\"usage\":{\"a\":\"\\", false, 0, 0, 0},
		{"}}}\"usage\":}{", false, 0, 0, 0},
		{"\"us", false, 0, 0, 0},
		{"", false, 0, 0, 0},
	};
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		const struct usagescan s = scan_whole(rows[i].text);
		if (s.found != rows[i].found)
			fail_msg("row %zu", i);
		assert_int_equal(s.usage.prompt_tokens, rows[i].prompt);
		assert_int_equal(s.usage.completion_tokens, rows[i].completion);
		assert_int_equal(s.usage.cached_tokens, rows[i].cached);
		same_for_all_cuts(rows[i].text);
	}
}

static void a_later_one_adds_to_an_earlier_one(void **state)
{
	(void)state;
	const char *text =
		"event: message_start\ndata: {\"message\":{\"usage\":{\"input_tokens\":30,\"output_tokens\":1}}}\n\n"
		"event: message_delta\ndata: {\"delta\":{},\"usage\":{\"output_tokens\":15}}\n\n";
	const struct usagescan s = scan_whole(text);
	assert_true(s.found && s.usage.prompt_tokens == 30 && s.usage.completion_tokens == 15);
	assert_false(s.usage.has_cached);
	same_for_all_cuts(text);
}

static void timings_of_llama_server(void **state)
{
	(void)state;
	static const char *const none[] = {"{\"timings\":{\"cache_n\":2,\"prompt_n\":12}}",
		"{\"content\":\"\\\"timings\\\":{\\\"cache_n\\\":1}\"}",
		"{\"timings\":{\"cache_n\":1,\"prompt_n\":1,\"predicted_n\":1", ""};
	const char *text = "{\"usage\":{},\"timings\":{\"cache_n\":495,\"prompt_n\":12,\"prompt_ms\":23.785,"
			   "\"predicted_n\":3,\"predicted_ms\":3.6}}";
	const struct usagescan s = scan_whole(text);
	const struct usage_timings *t = &s.timings;
	assert_true(s.found_timings && t->cache_n == 495 && t->prompt_n == 12 && t->predicted_n == 3);
	assert_true(t->prompt_ms > 23.7 && t->prompt_ms < 23.8);
	assert_true(s.found_own && s.own.prompt_tokens == 507 && s.own.cached_tokens == 495 &&
		s.own.completion_tokens == 3);
	same_for_all_cuts(text);
	for (size_t i = 0; i < CGN_COUNT(none); i++)
		assert_false(scan_whole(none[i]).found_timings);
}

static void engines_own_routes_tell_their_usage(void **state)
{
	(void)state;
	const char *one =
		"{\"text\":\"a\",\"meta_info\":{\"prompt_tokens\":7,\"completion_tokens\":3,\"cached_tokens\":2}}";
	const char *two = "[{\"text\":\"a\",\"meta_info\":{\"prompt_tokens\":7,\"completion_tokens\":3}},"
			  "{\"text\":\"bc\",\"meta_info\":{\"prompt_tokens\":8,\"completion_tokens\":4}}]";
	struct usagescan s = scan_whole(one);
	assert_true(s.found_own && !s.found && s.own.prompt_tokens == 7 && s.own.completion_tokens == 3 &&
		s.own.cached_tokens == 2);
	same_for_all_cuts(one);
	/* The counts of several answers are added. */
	s = scan_whole(two);
	assert_true(s.found_own && s.own.prompt_tokens == 15 && s.own.completion_tokens == 7);
	assert_int_equal(usagescan_seen(&s).bytes, 3);
	same_for_all_cuts(two);
	assert_false(scan_whole("{\"content\":\"meta_info\"}").found_own);
}

static void absurd_numbers_are_noted(void **state)
{
	(void)state;
	static const struct {
		const char *n;
		bool absurd;
	} rows[] = {{"268435456", false}, {"268435457", true}, {"1000000000000", true},
		{"99999999999999999999999", true}, {"-7", true}, {"40.5", true}, {"1e+300", true},
		{"0", false}, {"40", false}, {"\"9999999999999\"", false}, {"null", false}};
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		char text[128];
		(void)snprintf(text, sizeof text,
			"{\"usage\":{\"completion_tokens\":%s,\"prompt_tokens\":3}}", rows[i].n);
		const struct usagescan s = scan_whole(text);
		assert_true(s.found);
		if (s.usage.absurd != rows[i].absurd)
			fail_msg("%s", rows[i].n);
	}
}

/* Counts are found however much stands behind them. */
static void no_answer_is_too_long(void **state)
{
	(void)state;
	struct usagescan s = {0};
	usagescan_feed(&s,
		CGN_STR("{\"choices\":[{\"message\":{\"content\":\"four\"}}],\"usage\":{\"prompt_tokens\":3,"
			"\"completion_tokens\":2},\"prompt_logprobs\":["));
	for (unsigned i = 0; i < 20000; i++)
		usagescan_feed(&s,
			CGN_STR("{\"17\":{\"logprob\":-0.5,\"rank\":1,\"decoded_token\":\" text\"}},"));
	usagescan_feed(&s, CGN_STR("null]}"));
	assert_true(s.found && s.usage.completion_tokens == 2);
	assert_int_equal(usagescan_seen(&s).bytes, 4);
	/* Deep brackets, with and without an end */
	s = (struct usagescan){0};
	usagescan_feed(&s, CGN_STR("{\"a\":"));
	for (unsigned i = 0; i < 5000; i++)
		usagescan_feed(&s, CGN_STR("[{\"usage\":"));
	usagescan_feed(&s, CGN_STR("1"));
	for (unsigned i = 0; i < 5000; i++)
		usagescan_feed(&s, CGN_STR("}]"));
	usagescan_feed(&s, CGN_STR(",\"usage\":{\"completion_tokens\":2}}"));
	assert_true(s.found && s.usage.completion_tokens == 2);
}

static void text_is_what_the_model_wrote(void **state)
{
	(void)state;
	static const struct {
		const char *event;
		uint64_t bytes;
	} rows[] = {
		{"data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"call_1\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]},\"logprobs\":{\"content\":[{\"token\":\"xxxx\"}]}}]}",
			3},
		{"data: {\"choices\":[{\"delta\":{\"reasoning_content\":\"hm\",\"content\":null},\"finish_reason\":\"stop\"}]}",
			2},
		{"data: {\"choices\":[{\"index\":0,\"text\":\"abc\"}]}", 3},
		{"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\"abcd\"}}",
			4},
		{"data: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{}}",
			0},
		{"data: {\"type\":\"response.output_text.delta\",\"sequence_number\":4,\"delta\":\"ab\"}", 2},
		{"data: {\"type\":\"response.completed\",\"sequence_number\":9,\"response\":{\"output\":[{\"content\":[{\"text\":\"abab\"}]}]}}",
			0},
		{"data: {\"content\":\"x\",\"stop\":false}", 1},
		{"data: [DONE]", 0},
		{": ping", 0},
		{"data: {\"choices\":[{\"delta\":{\"content\":\"cut", 0},
		{"data: {\"choices\":[{\"logprobs\":{\"content\":[{\"token\":\"xxxx\",\"top_logprobs\":[{\"token\":\"y\"}]}],"
		 "\"tokens\":[\"a\"]},\"text\":\"ab\",\"token_ids\":[1,2]}]}",
			2},
		{"data: {\"choices\":[{\"delta\":{\"audio\":{\"id\":\"audio_1\",\"data\":\"AAAA\",\"transcript\":\"abc\"}}}]}",
			3},
		{"data: {\"type\":\"response.output_text.done\",\"sequence_number\":5,\"text\":\"ab\"}", 0},
		{"data: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"signature_delta\",\"signature\":\"abcd\"}}",
			0},
		{"data: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":\"{\\\"a\"}}",
			4},
		{"data: {\"\\u0063hoices\":[{\"delta\":{\"c\\u006fntent\":\"abc\"}}]}", 3},
	};
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		char text[512];
		(void)snprintf(text, sizeof text, "%s\n\n", rows[i].event);
		const struct usagescan s = scan_whole(text);
		const struct estimate_seen seen = usagescan_seen(&s);
		if (seen.bytes != rows[i].bytes || seen.events != (seen.bytes > 0))
			fail_msg("%s: %llu", rows[i].event, (unsigned long long)seen.bytes);
		same_for_all_cuts(text);
	}
}

static void documents_have_their_text(void **state)
{
	(void)state;
	static const struct {
		const char *text;
		uint64_t bytes;
	} rows[] = {
		{"{\"id\":\"chatcmpl-123456\",\"choices\":[{\"message\":{\"role\":\"assistant\",\"content\":\"twelve bytes\"}}]}",
			12},
		/* A part of a text counts. */
		{"{\"choices\":[{\"message\":{\"content\":\"twelve byt", 10},
		{"{\"content\":[{\"type\":\"text\",\"text\":\"ab\"},{\"type\":\"tool_use\",\"id\":\"t\",\"name\":\"f\",\"input\":{\"a\":1}}]}",
			10},
		{"{\"output\":[{\"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"f\",\"arguments\":\"{}\"}],\"instructions\":\"xx\"}",
			3},
		{"{\"content\":\"abc\",\"prompt\":\"not the answer\",\"generation_settings\":{\"text\":\"x\"}}",
			3},
		{"{\"text\":[\"ab\",\"c\"],\"tokens\":[\"a\"]}", 3},
		{"{\"error\":{\"message\":\"x\",\"content\":\"y\"}}", 0},
		{"no JSON", 0},
		{"", 0},
	};
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		const struct usagescan s = scan_whole(rows[i].text);
		const struct estimate_seen seen = usagescan_seen(&s);
		if (seen.bytes != rows[i].bytes || seen.events != 0)
			fail_msg("%s: %llu", rows[i].text, (unsigned long long)seen.bytes);
		same_for_all_cuts(rows[i].text);
	}
}

static void streams_count_their_events(void **state)
{
	(void)state;
	const char *head = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n";
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	cgn_buf_putz(&b, head);
	for (unsigned i = 0; i < 40; i++)
		cgn_buf_putz(&b,
			"data: {\"choices\":[{\"delta\":{\"content\":\" word\"}}]}\n\n: comment\n\n");
	cgn_buf_putz(&b, "data: {\"choices\":[],\"usage\":{\"completion_tokens\":1}}\n\ndata: [DONE]\n\n");
	struct usagescan s = scan_whole(cgn_buf_z(&b));
	struct estimate_seen seen = usagescan_seen(&s);
	assert_true(seen.events == 40 && seen.bytes == 200);
	/* SGLang's events repeat the text. */
	const char *cumulative =
		"data: {\"text\":\"a\",\"meta_info\":{\"completion_tokens\":1}}\n\n"
		"data: {\"text\":\"a b\",\"meta_info\":{\"completion_tokens\":2}}\n\ndata: [DONE]\n\n";
	s = scan_whole(cumulative);
	seen = usagescan_seen(&s);
	assert_true(seen.bytes == 3 && s.own.completion_tokens == 2);
	same_for_all_cuts(cumulative);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(dialects_are_read),
		cmocka_unit_test(a_later_one_adds_to_an_earlier_one),
		cmocka_unit_test(timings_of_llama_server),
		cmocka_unit_test(engines_own_routes_tell_their_usage),
		cmocka_unit_test(absurd_numbers_are_noted),
		cmocka_unit_test(no_answer_is_too_long),
		cmocka_unit_test(text_is_what_the_model_wrote),
		cmocka_unit_test(documents_have_their_text),
		cmocka_unit_test(streams_count_their_events),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
