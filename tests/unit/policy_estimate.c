/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/core/buf.h"
#include "base/core/err.h"
#include "policy/node/engine/estimate.h"

#define HEAD \
	"data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":"
#define TAIL ",\"finish_reason\":null}]}\n\n"

/* Write a stream of |n| events with |text| each, between an event of the role and three without text. */
static void stream_write(struct cgn_buf *b, unsigned n, const char *text)
{
	cgn_buf_putz(b, HEAD "{\"role\":\"assistant\",\"content\":\"\"}" TAIL);
	for (unsigned i = 0; i < n; i++)
		cgn_buf_fmt(b, HEAD "{\"content\":\"%s\"}" TAIL, text);
	cgn_buf_putz(b, HEAD "{}" TAIL);
	cgn_buf_putz(b, "data: {\"choices\":[],\"usage\":{\"completion_tokens\":1}}\n\n");
	cgn_buf_putz(b, "data: [DONE]\n\n");
}

static struct estimate_seen seen_of(struct cgn_str all, size_t tail, uint64_t events)
{
	struct estimate_seen seen;
	size_t n = all.n < tail ? all.n : tail;
	estimate_read((struct cgn_str){all.p + all.n - n, n}, all.n, events, 1, &seen);
	return seen;
}

static void streams_are_measured_by_their_tails(void **state)
{
	(void)state;
	static const unsigned lengths[] = {1, 7, 40, 500};
	for (size_t i = 0; i < CGN_COUNT(lengths); i++) {
		CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
		stream_write(&b, lengths[i], " word");
		struct estimate_seen seen = seen_of(cgn_buf_view(&b), 4096, lengths[i] + 4);
		assert_int_equal(seen.events, lengths[i]);
		double off = (double)seen.bytes / (5.0 * lengths[i]);
		if (off < 0.8 || off > 1.2)
			fail_msg("%u events: %llu bytes", lengths[i], (unsigned long long)seen.bytes);
	}
}

static void a_long_event_is_known_by_its_bytes(void **state)
{
	(void)state;
	static char text[20001];
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	memset(text, 'a', sizeof text - 1);
	stream_write(&b, 1, text);
	struct estimate_seen seen = seen_of(cgn_buf_view(&b), 2048, 5);
	assert_in_range(seen.bytes, 19500, 20500);
	const struct estimate none = {0};
	assert_in_range(estimate_tokens(&none, &seen), 4800, 5200);
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
	};
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		char text[512];
		(void)snprintf(text, sizeof text, "%s\n\n", rows[i].event);
		struct estimate_seen seen = seen_of(cgn_str_of(text), sizeof text, 1);
		if (seen.bytes != rows[i].bytes || estimate_has_text(cgn_str_of(text)) != (seen.bytes > 0))
			fail_msg("%s: %llu", rows[i].event, (unsigned long long)seen.bytes);
	}
}

static void documents_have_their_text(void **state)
{
	(void)state;
	const char *doc =
		"{\"id\":\"chatcmpl-123456\",\"choices\":[{\"message\":{\"role\":\"assistant\",\"content\":\"twelve bytes\"}}]}";
	struct estimate_seen seen = seen_of(cgn_str_of(doc), 2048, 0);
	assert_int_equal(seen.bytes, 12);
	assert_int_equal(seen.events, 0);
	static char part[3000];
	memset(part, 'x', sizeof part);
	estimate_read((struct cgn_str){part, 2048}, 10400, 0, 0, &seen);
	assert_int_equal(seen.bytes, 10000);
}

static void the_steadier_figure_is_used(void **state)
{
	(void)state;
	struct estimate e = {0};
	/* An event is a token, whose length varies. */
	for (unsigned i = 0; i < 64; i++)
		estimate_learn(&e, &(struct estimate_seen){50, 100 + 300 * (i % 2)}, 50);
	assert_int_equal(estimate_tokens(&e, &(struct estimate_seen){77, 9000}), 77);
	/* Events have any number of tokens, of four bytes each. */
	e = (struct estimate){0};
	for (unsigned i = 0; i < 64; i++)
		estimate_learn(&e, &(struct estimate_seen){1 + i % 7, 4000}, 1000);
	assert_int_equal(estimate_tokens(&e, &(struct estimate_seen){3, 8000}), 2000);
	/* A document has no events. */
	assert_int_equal(estimate_tokens(&e, &(struct estimate_seen){0, 400}), 100);
	/* Nothing is learned from nothing. */
	struct estimate same = e;
	estimate_learn(&e, &(struct estimate_seen){0, 0}, 7);
	estimate_learn(&e, &(struct estimate_seen){5, 5}, 0);
	assert_memory_equal(&e, &same, sizeof e);
	assert_int_equal(estimate_tokens(&e, &(struct estimate_seen){0, 0}), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(streams_are_measured_by_their_tails),
		cmocka_unit_test(a_long_event_is_known_by_its_bytes),
		cmocka_unit_test(text_is_what_the_model_wrote),
		cmocka_unit_test(documents_have_their_text),
		cmocka_unit_test(the_steadier_figure_is_used),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
