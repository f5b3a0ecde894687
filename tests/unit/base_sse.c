/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/core/err.h"
#include "base/sse/sse.h"

static void event_note(void *arg, struct cgn_str name, struct cgn_str data)
{
	cgn_buf_fmt(arg, "<%.*s|%.*s>", CGN_STR_ARG(name), CGN_STR_ARG(data));
}

/* Feed |text| in chunks of |step| bytes; each chunk is in a block of its own that is freed after the call. */
static void feed_by(struct sse_scan *s, struct cgn_str text, size_t step)
{
	for (size_t at = 0; at < text.n; at += step) {
		size_t n = text.n - at < step ? text.n - at : step;
		char *chunk = malloc(n);
		assert_non_null(chunk);
		memcpy(chunk, text.p + at, n);
		sse_scan_feed(s, (struct cgn_str){chunk, n});
		memset(chunk, '#', n);
		free(chunk);
	}
}

/* The events are |want|, however the text is cut. */
static void expect_events(struct cgn_str text, const char *want, uint64_t lost, size_t limit)
{
	for (size_t step = 1; step <= text.n; step++) {
		struct cgn_buf got = {0};
		struct sse_scan s;
		sse_scan_init(&s, limit, event_note, &got);
		feed_by(&s, text, step);
		assert_string_equal(cgn_buf_z(&got), want);
		assert_true(s.lost_events == lost);
		sse_scan_fini(&s);
		cgn_buf_fini(&got);
	}
}

#define EXPECT(text, want) expect_events(CGN_STR(text), want, 0, 1000)

static void events_are_found_however_they_are_cut(void **state)
{
	(void)state;
	EXPECT("data: {\"a\":1}\n\ndata: [DONE]\n\n", "<|{\"a\":1}><|[DONE]>");
	EXPECT("data: a\r\n\r\ndata: b\r\n\r\n", "<|a><|b>");
	EXPECT("data: a\r\rdata: b\r\r", "<|a><|b>");
	EXPECT("data: a\n\r\ndata: b\r\n\n\n\r\n", "<|a><|b>");
	EXPECT("data: a\rdata: b\n\ndata: c\r\n\r\n", "<|a\nb><|c>");
	EXPECT("event: 0123456789012345678901234567890123456789012345678901234567890123\ndata: x\n\n",
		"<0123456789012345678901234567890123456789012345678901234567890123|x>");
	EXPECT("event: 01234567890123456789012345678901234567890123456789012345678901234\ndata: x\n\n",
		"<|x>"); /* A name that is longer than any that counts. */
	EXPECT("event: error\ndata: x\n\ndata: y\n\n", "<error|x><|y>");
	EXPECT("data: a\ndata: b\ndata\ndata:\ndata:c\n\n", "<|a\nb\n\n\nc>");
	EXPECT(": ping\n\n:\n\nid: 7\nretry: 5\ndata:  two\n\n", "<| two>");
}

static void a_byte_order_mark_is_skipped_once(void **state)
{
	(void)state;
	EXPECT("\xef\xbb\xbf"
	       "data: a\n\n",
		"<|a>");
	EXPECT("\xef\xbb\xbf\xef\xbb\xbf"
	       "data: a\n\ndata: b\n\n",
		"<|b>");
	EXPECT("\xef\xbb"
	       "data: a\n\ndata: b\n\n",
		"<|b>");
	EXPECT("\n\xef\xbb\xbf"
	       "data: a\n\ndata: b\n\n",
		"<|b>");
}

static void what_is_no_event_is_none(void **state)
{
	(void)state;
	EXPECT("\n\n\r\n", "");
	EXPECT("event: ping\n\n", "");
	EXPECT("event: ping\n\ndata: x\n\n", "<|x>");
	EXPECT("data: never ended\n", "");
	EXPECT("data: never ended", "");
	EXPECT("Data: x\n\ndatax: y\n\n", "");
	EXPECT("data: \n\n", "<|>");
	EXPECT("data: a\0b\n\n", "<|a>"); /* event_note stops at the NUL, the scanner does not. */
	EXPECT("event: 0123456789012345678901234567890123456789012345678901234567890123456789\ndata: x\n\n",
		"<|x>");
}

static void too_long_events_are_counted_and_what_follows_is_seen(void **state)
{
	(void)state;
	expect_events(CGN_STR("data: 0123456789\n\ndata: x\n\n"), "<|x>", 1, 9);
	expect_events(CGN_STR("data: 01234\ndata: 56789\n\ndata: x\n\n"), "<|x>", 1, 10);
	expect_events(
		CGN_STR("data: 01234567890123456789012345\ndata: 2\n\n: long comments 0123456789\n\ndata: x\n\n"),
		"<|x>", 1, 25);
}

static void an_idle_scanner_keeps_little(void **state)
{
	(void)state;
	struct cgn_buf got = {0}, text = {0};
	struct sse_scan s;
	sse_scan_init(&s, 1 << 20, event_note, &got);
	sse_scan_feed(&s, CGN_STR("data: whole\n\n"));
	assert_int_equal(s.line.cap + s.data.cap, 0);
	cgn_buf_putz(&text, "data: ");
	for (int i = 0; i < 100000; i++)
		cgn_buf_char(&text, 'x');
	cgn_buf_putz(&text, "\n\n");
	feed_by(&s, cgn_buf_view(&text), 5000);
	assert_true(s.line.cap + s.data.cap <= 4096);
	assert_int_equal(got.n, strlen("<|whole>") + 100000 + strlen("<|>"));
	sse_scan_fini(&s);
	cgn_buf_fini(&text);
	cgn_buf_fini(&got);
}

static void the_end_completes_the_last_event(void **state)
{
	static const char *const rows[][2] = {{"data: a", "<|a>"}, {"data: a\n", "<|a>"},
		{"data: a\r", "<|a>"}, {"data: a\n\ndata: b", "<|a><|b>"}, {"event: x\ndata: a", "<x|a>"},
		{"data: a\n\n", "<|a>"}, {": a", ""}, {"", ""}};
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		struct cgn_buf got = {0};
		struct sse_scan s;
		sse_scan_init(&s, 1000, event_note, &got);
		sse_scan_feed(&s, cgn_str_of(rows[i][0]));
		sse_scan_end(&s);
		sse_scan_end(&s);
		assert_string_equal(cgn_buf_z(&got), rows[i][1]);
		sse_scan_fini(&s);
		cgn_buf_fini(&got);
	}
}

static void line_note(void *arg, struct cgn_str line, struct cgn_str field, struct cgn_str value)
{
	assert_true(field.p == line.p);
	cgn_buf_fmt(arg, "[%.*s|%.*s|%.*s]", CGN_STR_ARG(line), CGN_STR_ARG(field), CGN_STR_ARG(value));
}

static void lines_of_other_fields_are_reported(void **state)
{
	(void)state;
	const struct cgn_str text = CGN_STR(
		"data: a\nerror: {\"b\"}\n\n: c\nid: 1\nretry: 2\nevent: n\ndata\n\r\n{\"x\": 1}\r\nword\n:\n\n");
	for (size_t step = 1; step <= text.n; step++) {
		CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf got = {0};
		struct sse_scan s;
		sse_scan_init(&s, 1000, event_note, &got);
		s.on_line = line_note;
		feed_by(&s, text, step);
		sse_scan_fini(&s);
		assert_string_equal(cgn_buf_z(&got),
			"[error: {\"b\"}|error|{\"b\"}]<|a><n|>[{\"x\": 1}|{\"x\"|1}][word|word|]");
	}
}

static void written_events_are_read_back(void **state)
{
	(void)state;
	struct cgn_buf b = {0};
	sse_event(&b, NULL, CGN_STR("[DONE]"));
	sse_event(&b, "error", CGN_STR("a\nb\r\nc\rd"));
	sse_event(&b, NULL, CGN_STR(""));
	sse_event(&b, NULL, CGN_STR(" x\n"));
	assert_string_equal(cgn_buf_z(&b),
		"data: [DONE]\n\nevent: error\ndata: a\ndata: b\ndata: c\ndata: d\n\ndata: \n\ndata:  x\ndata: \n\n");
	expect_events(cgn_buf_view(&b), "<|[DONE]><error|a\nb\nc\nd><|><| x\n>", 0, 1000);
	cgn_buf_fini(&b);
}

static void events_are_counted_however_they_are_cut(void **state)
{
	(void)state;
	const struct cgn_str text = CGN_STR("data: 1\n\ndadata: 2\n\nddata:data: datx da");
	for (size_t step = 1; step <= text.n; step++) {
		uint8_t begun = 0;
		size_t n = sse_marks(&begun, (struct cgn_str){NULL, 0});
		for (size_t at = 0; at < text.n; at += step)
			n += sse_marks(&begun,
				(struct cgn_str){text.p + at, text.n - at < step ? text.n - at : step});
		assert_int_equal(n, 4);
	}
}

/* Every kind of line end, in the middle of text and at its end. */
static void borders_are_behind_blank_lines(void **state)
{
	(void)state;
	static const struct {
		const char *text;
		size_t from, border;
	} rows[] = {
		{"", 0, 0},
		{"\n", 0, 0},
		{"data: a\n", 0, 0},
		{"data: a\n\n", 0, 9},
		{"data: a\n\n", 8, 9},
		{"data: a\n\n", 9, 0},
		{"data: a\n\ndata: b\n", 0, 9},
		{"data: a\n\ndata: b\n\ndat", 0, 18},
		{"data: a\n\ndata: b\n\ndat", 18, 0},
		{"data: a\r\n", 0, 0},
		{"data: a\r\n\r", 0, 0},
		{"data: a\r\n\r\n", 0, 11},
		{"data: a\r\n\r\ndata", 10, 11},
		{"data: a\r\rdata", 0, 9},
		{"data: a\n\r\ndata", 0, 10},
		{"data: a\r\r\n", 0, 10},
		{"a\n\n\n", 0, 4},
	};
	for (size_t i = 0; i < CGN_COUNT(rows); i++)
		assert_int_equal(sse_border(cgn_str_of(rows[i].text), rows[i].from), rows[i].border);
	assert_int_equal(sse_event_end(CGN_STR("data: a\n\ndata: b\n\n")), 9);
	assert_int_equal(sse_event_end(CGN_STR("data: a\r\n\r\ndata: b")), 11);
	assert_int_equal(sse_event_end(CGN_STR("data: a\n")), 0);
	assert_int_equal(sse_event_end(CGN_STR("")), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(events_are_found_however_they_are_cut),
		cmocka_unit_test(a_byte_order_mark_is_skipped_once),
		cmocka_unit_test(what_is_no_event_is_none),
		cmocka_unit_test(too_long_events_are_counted_and_what_follows_is_seen),
		cmocka_unit_test(an_idle_scanner_keeps_little),
		cmocka_unit_test(the_end_completes_the_last_event),
		cmocka_unit_test(lines_of_other_fields_are_reported),
		cmocka_unit_test(written_events_are_read_back),
		cmocka_unit_test(events_are_counted_however_they_are_cut),
		cmocka_unit_test(borders_are_behind_blank_lines),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
