/* SPDX-License-Identifier: Apache-2.0 */
/* Traces: accepted and refused files, error messages, and the caches used as reference. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lab/trace/trace.h"

#define LINE(at, in, out, ids) \
	"{\"timestamp\":" #at ",\"input_length\":" #in ",\"output_length\":" #out ",\"hash_ids\":[" ids "]}\n"

static struct trace parse_text(const char *text, uint32_t block_tokens, size_t limit)
{
	struct trace t;
	struct cgn_err err = {0};
	if (!cgn_ok(trace_parse(cgn_str_of(text), "t.jsonl", block_tokens, limit, &t, &err)))
		fail_msg("%s", err.msg);
	return t;
}

static void reads_what_mooncake_writes(void **state)
{
	(void)state;
	struct trace t = parse_text(
		"{\"timestamp\": 0, \"input_length\": 1100, \"output_length\": 50, \"hash_ids\": [0, 1, 2]}\n"
		"{\"timestamp\": 27482, \"input_length\": 1500, \"output_length\": 0, \"hash_ids\": [0, 1, 4], \"type\": \"text\"}",
		0, 0);
	assert_int_equal(t.n, 2);
	assert_int_equal(t.n_ids, 6);
	assert_int_equal(t.block_tokens, 512);
	assert_int_equal(t.requests[0].input, 1100);
	assert_int_equal(t.requests[0].output, 50);
	assert_int_equal(t.requests[1].output, 1); /* An engine gives one token before it can end. */
	assert_true(t.requests[1].at == 27482 * CGN_MSEC);
	assert_true(t.requests[1].session == 0);
	assert_int_equal(t.requests[1].n, 3);
	assert_true(trace_ids(&t, &t.requests[1])[2] == 4);
	trace_fini(&t);
}

static void sessions_are_names(void **state)
{
	(void)state;
	struct trace t = parse_text(
		"{\"timestamp\":0,\"input_length\":1,\"output_length\":1,\"hash_ids\":[1],\"session_id\":\"a\"}\n"
		"{\"timestamp\":0,\"input_length\":1,\"output_length\":1,\"hash_ids\":[1],\"session_id\":\"b\"}\n\r\n"
		"{\"timestamp\":0,\"input_length\":1,\"output_length\":1,\"hash_ids\":[1],\"session_id\":\"a\"}\r\n"
		"{\"timestamp\":0,\"input_length\":1,\"output_length\":1,\"hash_ids\":[1],\"session_id\":null}\n",
		0, 0);
	assert_int_equal(t.n, 4);
	assert_true(t.requests[0].session != 0 && t.requests[0].session == t.requests[2].session);
	assert_true(t.requests[1].session != 0 && t.requests[1].session != t.requests[0].session);
	assert_true(t.requests[3].session == 0);
	assert_true(t.requests[0].session == trace_name(CGN_STR("a")));
	trace_fini(&t);
}

static void requests_say_how_they_wait(void **state)
{
	(void)state;
	struct trace t = parse_text(
		"{\"timestamp\":0,\"input_length\":1,\"output_length\":1,\"hash_ids\":[1],\"tenant\":\"a\",\"priority\":0,\"deadline_ms\":7}\n"
		"{\"timestamp\":0,\"input_length\":1,\"output_length\":1,\"hash_ids\":[1]}\n",
		0, 0);
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	assert_true(t.requests[0].tenant == trace_name(CGN_STR("a")) && t.requests[1].tenant == 0);
	assert_true(t.requests[0].has_priority && t.requests[0].priority == 0 && !t.requests[1].has_priority);
	assert_true(t.requests[0].deadline_ms == 7 && t.requests[1].deadline_ms == 0);
	trace_write(&t, &text);
	struct trace again = parse_text((const char *)cgn_buf_z(&text), 0, 0);
	assert_true(again.requests[0].tenant == t.requests[0].tenant && again.requests[0].has_priority);
	assert_true(again.requests[0].deadline_ms == 7 && !again.requests[1].has_priority);
	trace_fini(&again);
	trace_fini(&t);
}

static void the_size_of_a_block_follows_from_lengths(void **state)
{
	(void)state;
	static const struct {
		const char *text;
		uint32_t want;
	} cases[] = {
		/* Anything from 100 on: the usual size. */
		{LINE(0, 100, 1, "1"), 512},
		/* From 600 on: a power of two. */
		{LINE(0, 600, 1, "1"), 1024}, {LINE(0, 100, 1, "1,2,3,4,5,6,7"), 16}, /* 15 or 16. */
		{LINE(0, 100, 1, "1,2,3,4,5,6,7,8,9,10"), 10},               /* 10 or 11: the smallest. */
		{LINE(0, 6758, 1, "1,2,3,4,5,6,7,8,9,10,11,12,13,14"), 512}, /* 483 to 519. */
		{LINE(0, 33, 1, "1,2,3") LINE(0, 48, 1, "1,2,3"), 16},       /* 11 to 16, then 16 to 23. */
	};
	for (size_t i = 0; i < CGN_COUNT(cases); i++) {
		struct trace t = parse_text(cases[i].text, 0, 0);
		assert_int_equal(t.block_tokens, cases[i].want);
		trace_fini(&t);
	}
	struct trace t = parse_text(LINE(0, 33, 1, "1,2,3"), 11, 0);
	assert_int_equal(t.block_tokens, 11);
	trace_fini(&t);
}

static void a_limit_reads_no_further(void **state)
{
	(void)state;
	struct trace t = parse_text(LINE(0, 1, 1, "1") LINE(5, 1, 1, "2") "nonsense", 0, 2);
	assert_int_equal(t.n, 2);
	trace_fini(&t);
}

static void refusals_name_file_line_and_reason(void **state)
{
	(void)state;
	static const struct {
		const char *text, *says;
		uint32_t block_tokens;
	} cases[] = {
		{"", "t.jsonl holds no request", 0},
		{"\n \n", "t.jsonl holds no request", 0},
		{"{", "t.jsonl line 1 is not JSON", 0},
		{"[]", "line 1 is not a JSON object", 0},
		{LINE(0, 1, 1, "1") "7", "line 2 is not a JSON object", 0},
		{"{\"input_length\":1,\"output_length\":1,\"hash_ids\":[1]}", "line 1 has no \"timestamp\"",
			0},
		{"{\"timestamp\":0,\"output_length\":1,\"hash_ids\":[1]}", "line 1 has no \"input_length\"",
			0},
		{"{\"timestamp\":0,\"input_length\":1,\"hash_ids\":[1]}", "line 1 has no \"output_length\"",
			0},
		{"{\"timestamp\":0,\"input_length\":1,\"output_length\":1}",
			"line 1 has no array \"hash_ids\"", 0},
		{"{\"timestamp\":0,\"input_length\":1,\"output_length\":1,\"hash_ids\":7}",
			"line 1 has no array \"hash_ids\"", 0},
		{LINE(-1, 1, 1, "1"), "\"timestamp\" is -1, not milliseconds from 0", 0},
		{LINE("0", 1, 1, "1"), "\"timestamp\" is \"0\", not milliseconds", 0},
		{LINE(1e300, 1, 1, "1"), "\"timestamp\" is 1e300, not milliseconds", 0},
		{LINE(5, 1, 1, "1") "\n" LINE(4, 1, 1, "1"),
			"line 3: \"timestamp\" 4 is before that of the line before", 0},
		{LINE(0, 0, 1, "1"), "\"input_length\" is 0, not a whole number from 1", 0},
		{LINE(0, 1.5, 1, "1"), "\"input_length\" is 1.5, not a whole number", 0},
		{LINE(0, 1, 16777217, "1"),
			"\"output_length\" is 16777217, not a whole number from 0 to 16777216", 0},
		{LINE(0, 1, null, "1"), "\"output_length\" is null", 0},
		{LINE(0, 1, 1, ""), "line 1: \"hash_ids\" is empty", 0},
		{LINE(0, 9, 1, "1,-2"), "\"hash_ids\" holds -2, not a whole number from 0", 0},
		{LINE(0, 9, 1, "1,\"x\""), "\"hash_ids\" holds \"x\"", 0},
		{LINE(0, 9, 1, "1,18446744073709551616"), "\"hash_ids\" holds 18446744073709551616", 0},
		{LINE(0, 2, 1, "1,2,3"), "3 \"hash_ids\" do not fit \"input_length\" 2", 0},
		{LINE(0, 33, 1, "1,2,3") LINE(0, 60, 1, "1,2,3"),
			"line 2: 3 \"hash_ids\" do not fit \"input_length\" 60 with blocks of 11 to 16 tokens, as the lines before have them",
			0},
		{LINE(0, 33, 1, "1,2,3"),
			"line 1: 3 \"hash_ids\" do not fit \"input_length\" 33 with blocks of 512 tokens",
			512},
	};
	for (size_t i = 0; i < CGN_COUNT(cases); i++) {
		struct trace t = {0};
		struct cgn_err err = {0};
		cgn_rc rc =
			trace_parse(cgn_str_of(cases[i].text), "t.jsonl", cases[i].block_tokens, 0, &t, &err);
		assert_int_equal(rc.code, CGN_INVALID);
		if (strstr(err.msg, cases[i].says) == NULL)
			fail_msg("case %zu: \"%s\" does not say \"%s\"", i, err.msg, cases[i].says);
		assert_null(t.requests);
	}
}

static void what_is_written_reads_the_same(void **state)
{
	(void)state;
	struct trace t =
		parse_text(LINE(0, 33, 7, "1,2,3") LINE(1500, 48, 9, "1,2,18446744073709551615"), 0, 0);
	struct cgn_buf text = {0};
	trace_write(&t, &text);
	struct trace again = parse_text(cgn_buf_z(&text), 0, 0);
	assert_int_equal(again.n, 2);
	assert_memory_equal(again.ids, t.ids, t.n_ids * sizeof *t.ids);
	assert_memory_equal(again.requests, t.requests, t.n * sizeof *t.requests);
	cgn_buf_fini(&text);
	trace_fini(&t);
	trace_fini(&again);
}

static uint64_t draw_below(uint64_t *s)
{
	*s ^= *s << 13;
	*s ^= *s >> 7;
	*s ^= *s << 17;
	return *s;
}

/* The simplest cache: an array, the most recently used last. */
static uint64_t slow_cache(const struct trace *t, size_t capacity)
{
	uint64_t *held = malloc((t->n_ids + 1) * sizeof *held), found = 0;
	size_t n = 0;
	for (size_t i = 0; i < t->n_ids; i++) {
		size_t k = 0;
		while (k < n && held[k] != t->ids[i])
			k++;
		bool was = k < n;
		found += was;
		if (was || (capacity > 0 && n == capacity)) {
			k = was ? k : 0;
			memmove(held + k, held + k + 1, (n - k - 1) * sizeof *held);
			n--;
		}
		held[n++] = t->ids[i];
	}
	free(held);
	return found;
}

static void one_cache_is_what_a_plain_one_finds(void **state)
{
	(void)state;
	static const size_t capacities[] = {0, 1, 2, 7, 50, 199, 200, 1000};
	struct trace t = {0};
	uint64_t s = 88172645463325252U, ids[40];
	for (size_t i = 0; i < 120; i++) {
		size_t n = 1 + draw_below(&s) % CGN_COUNT(ids);
		for (size_t k = 0; k < n; k++)
			ids[k] = draw_below(&s) % 200 * draw_below(&s) % 200;
		assert_true(cgn_ok(trace_add(&t, &(struct trace_request){.input = 1, .output = 1}, ids, n)));
	}
	for (size_t i = 0; i < CGN_COUNT(capacities); i++) {
		struct trace_found f;
		assert_true(cgn_ok(trace_one_cache(&t, capacities[i], &f, NULL)));
		assert_int_equal(f.blocks, t.n_ids);
		assert_int_equal(f.found, slow_cache(&t, capacities[i]));
		assert_true(capacities[i] != 0 || f.found + f.distinct == f.blocks);
	}
	trace_fini(&t);
}

static void digests_spread(void **state)
{
	(void)state;
	unsigned counts[256] = {0};
	for (uint64_t id = 0; id < 25600; id++)
		counts[trace_digest(id) >> 56]++;
	for (size_t i = 0; i < CGN_COUNT(counts); i++)
		assert_in_range(counts[i], 50, 150);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reads_what_mooncake_writes),
		cmocka_unit_test(sessions_are_names),
		cmocka_unit_test(requests_say_how_they_wait),
		cmocka_unit_test(the_size_of_a_block_follows_from_lengths),
		cmocka_unit_test(a_limit_reads_no_further),
		cmocka_unit_test(refusals_name_file_line_and_reason),
		cmocka_unit_test(what_is_written_reads_the_same),
		cmocka_unit_test(one_cache_is_what_a_plain_one_finds),
		cmocka_unit_test(digests_spread),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
