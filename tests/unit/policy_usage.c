/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/core/err.h"
#include "policy/node/engine/usage.h"

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
		{"kens\":3}} {\"usage\":{\"prompt_tokens\":4,\"total_tokens\":4}}", true, 4, 0, 0},
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
		struct usage u = {0};
		/* On the heap, so that a sanitizer sees reads beyond its ends */
		char *copy = strdup(rows[i].text);
		struct cgn_str exact = {memmove(malloc(strlen(copy) + (copy[0] == '\0')), copy, strlen(copy)),
			strlen(copy)};
		if (usage_find(exact, &u) != rows[i].found)
			fail_msg("row %zu", i);
		assert_int_equal(u.prompt_tokens, rows[i].prompt);
		assert_int_equal(u.completion_tokens, rows[i].completion);
		assert_int_equal(u.cached_tokens, rows[i].cached);
		free((void *)(uintptr_t)exact.p);
		free(copy);
	}
}

static void a_later_one_adds_to_an_earlier_one(void **state)
{
	(void)state;
	struct usage u = {0};
	assert_true(usage_find(CGN_STR("{\"message\":{\"usage\":{\"input_tokens\":30,\"output_tokens\":1}}}"),
		&u));
	assert_true(usage_find(CGN_STR("{\"delta\":{},\"usage\":{\"output_tokens\":15}}"), &u));
	assert_int_equal(u.prompt_tokens, 30);
	assert_int_equal(u.completion_tokens, 15);
	assert_false(u.has_cached);
}

static void the_tail_keeps_the_end_whatever_the_pieces(void **state)
{
	(void)state;
	for (size_t piece = 1; piece < 9000; piece = piece * 3 + 1) {
		struct usage_tail t = {0};
		size_t total = 0;
		char *all = malloc(40000);
		while (total + piece <= 40000 && total < 30000) {
			for (size_t i = 0; i < piece; i++)
				all[total + i] = (char)('a' + (total + i) * 7 % 23);
			usage_tail_add(&t, all + total, piece);
			total += piece;
		}
		struct cgn_str got = usage_tail_view(&t);
		assert_true(got.n >= (total < USAGE_TAIL ? total : USAGE_TAIL) && got.n <= total);
		assert_memory_equal(got.p, all + total - got.n, got.n);
		usage_tail_fini(&t);
		usage_tail_fini(&t);
		free(all);
	}
}

static void timings_of_llama_server(void **state)
{
	(void)state;
	struct usage_timings t = {0};
	assert_true(usage_find_timings(
		CGN_STR("{\"usage\":{},\"timings\":{\"cache_n\":495,\"prompt_n\":12,\"prompt_ms\":23.785,"
			"\"predicted_n\":3,\"predicted_ms\":3.6}}"),
		&t));
	assert_true(t.cache_n == 495 && t.prompt_n == 12 && t.predicted_n == 3 && t.prompt_ms > 23.7 &&
		t.prompt_ms < 23.8);
	t.cache_n = 1;
	/* An incomplete object */
	assert_false(usage_find_timings(CGN_STR("{\"timings\":{\"cache_n\":2,\"prompt_n\":12}}"), &t));
	assert_false(
		usage_find_timings(CGN_STR("{\"content\":\"\\\"timings\\\":{\\\"cache_n\\\":1}\"}"), &t));
	assert_false(usage_find_timings(CGN_STR("\"timings\":{\"cache_n\":1,\"prompt"), &t));
	assert_false(usage_find_timings((struct cgn_str){NULL, 0}, &t));
}

static void engines_own_routes_tell_their_usage(void **state)
{
	(void)state;
	struct usage u = {0};
	assert_true(usage_find_own(
		CGN_STR("{\"text\":\"a\",\"meta_info\":{\"prompt_tokens\":7,\"completion_tokens\":3}}"), &u));
	assert_true(u.has_prompt && u.prompt_tokens == 7 && u.completion_tokens == 3);
	assert_true(usage_find_own(
		CGN_STR("{\"timings\":{\"cache_n\":2,\"prompt_n\":5,\"predicted_n\":9,\"prompt_ms\":1.5}}"),
		&u));
	assert_true(u.prompt_tokens == 7 && u.cached_tokens == 2 && u.completion_tokens == 9);
	assert_false(usage_find_own(CGN_STR("{\"content\":\"meta_info\"}"), &u));
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
		struct usage u = {0};
		(void)snprintf(text, sizeof text,
			"{\"usage\":{\"completion_tokens\":%s,\"prompt_tokens\":3}}", rows[i].n);
		assert_true(usage_find(cgn_str_of(text), &u));
		if (u.absurd != rows[i].absurd)
			fail_msg("%s", rows[i].n);
	}
}

static void a_stream_is_asked_for_its_usage(void **state)
{
	(void)state;
	static const struct {
		const char *own, *asked;
	} rows[] = {
		{NULL, "{\"include_usage\":true}"},
		{"null", "{\"include_usage\":true}"},
		{"{}", "{\"include_usage\":true}"},
		{"{\"include_usage\":false,\"include_obfuscation\": false}",
			"{\"include_usage\":true,\"include_obfuscation\":false}"},
		{"{\"continuous_usage_stats\":true,\"a\":{\"b\":[1]}}",
			"{\"include_usage\":true,\"a\":{\"b\":[1]}}"},
	};
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf out = {0};
		struct json_val own = {0};
		if (rows[i].own != NULL)
			assert_true(cgn_ok(json_parse(cgn_str_of(rows[i].own), &own, NULL, NULL)));
		usage_ask_put(own, &out);
		assert_string_equal(cgn_buf_z(&out), rows[i].asked);
	}
}

#define CHUNK  "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a \\\"usage\\\" b\"}}]}\n\n"
#define NULLED "data: {\"choices\":[{\"index\":0,\"delta\":{}}],\"usage\":null}\n\n"
#define WITH   "data: {\"choices\":[{\"index\":0,\"delta\":{}}],\"usage\":{\"prompt_tokens\":1}}\n\n"
#define ALONE \
	"data: {\"id\":\"x\",\"choices\": [ ],\"usage\" : {\"prompt_tokens\":1,\"completion_tokens\":2}}\n\n"
#define END "data: [DONE]\n\n"

static void only_the_chunk_of_the_usage_is_dropped(void **state)
{
	(void)state;
	static const struct {
		const char *events, *left; /* NULL: nothing is dropped */
	} rows[] = {
		{CHUNK END, NULL},
		{NULLED WITH END, NULL},
		{CHUNK ALONE END, CHUNK END},
		{ALONE, ""},
		{NULLED CHUNK WITH ALONE, NULLED CHUNK WITH},
		{": a comment\n\n" ALONE "event: x\ndata: 1\n\n", ": a comment\n\nevent: x\ndata: 1\n\n"},
		{"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1}}\r\n\r\ndata: [DONE]\r\n\r\n",
			"data: [DONE]\r\n\r\n"},
		/* The end of an event whose begin has passed, then the chunk. */
		{"ntent\":\"x\"}}]}\n\n" ALONE, "ntent\":\"x\"}}]}\n\n"},
		{"data: {\"usage\":{\"prompt_tokens\":1}}\n\n", NULL},
		{"data: {\"choices\":[],\"usage\":{\"prompt_tok", NULL},
		{"data: {\"choices\":[],\"usage\":{},\"error\":{\"message\":\"boom\"}}\n\n", NULL},
		{"data: {\"choices\":[],\"usage\":{},\"error\":null}\n\n", ""},
		{"", NULL},
	};
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf out = {0};
		bool dropped = usage_chunk_drop(cgn_str_of(rows[i].events), &out);
		if (dropped != (rows[i].left != NULL) ||
			!cgn_str_is(cgn_buf_view(&out), dropped ? rows[i].left : ""))
			fail_msg("%s", rows[i].events);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(dialects_are_read),
		cmocka_unit_test(a_later_one_adds_to_an_earlier_one),
		cmocka_unit_test(the_tail_keeps_the_end_whatever_the_pieces),
		cmocka_unit_test(timings_of_llama_server),
		cmocka_unit_test(engines_own_routes_tell_their_usage),
		cmocka_unit_test(absurd_numbers_are_noted),
		cmocka_unit_test(a_stream_is_asked_for_its_usage),
		cmocka_unit_test(only_the_chunk_of_the_usage_is_dropped),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
