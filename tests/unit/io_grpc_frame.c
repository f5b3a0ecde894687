/* SPDX-License-Identifier: Apache-2.0 */
/* gRPC's framing and text encodings, without a connection. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "io/wire/grpc/grpc_priv.h"

#define LIT(lit) {"" lit, sizeof(lit) - 1}

static void frame_put(struct cgn_buf *b, struct cgn_str message)
{
	uint8_t prefix[GRPC_PREFIX];
	grpc_frame_prefix(prefix, message.n);
	cgn_buf_add(b, prefix, sizeof prefix);
	cgn_buf_str(b, message);
}

/* Feed |wire| in pieces of |step| bytes, each in memory of its own, and join the messages with '|'. */
static enum grpc_frame_step frames_collect(struct cgn_str wire, size_t step, uint32_t max,
	struct cgn_buf *out, struct cgn_err *err)
{
	struct grpc_frames f = {.max_message = max};
	enum grpc_frame_step got = GRPC_FRAME_MORE;
	for (size_t at = 0; at < wire.n && got != GRPC_FRAME_BAD; at += step) {
		size_t n = wire.n - at < step ? wire.n - at : step;
		char *piece = malloc(n);
		assert_non_null(piece);
		memcpy(piece, wire.p + at, n);
		struct cgn_str in = {piece, n}, message;
		while ((got = grpc_frame_next(&f, &in, &message, err)) == GRPC_FRAME_MESSAGE) {
			cgn_buf_str(out, message);
			cgn_buf_char(out, '|');
		}
		if (got == GRPC_FRAME_MORE)
			assert_int_equal(in.n, 0);
		free(piece);
	}
	if (got != GRPC_FRAME_BAD && !grpc_frame_between(&f))
		cgn_buf_char(out, '?');
	grpc_frames_fini(&f);
	return got;
}

static void messages_come_whole_whatever_the_pieces(void **state)
{
	(void)state;
	struct cgn_buf wire = {.n = 0};
	struct cgn_err err;
	frame_put(&wire, CGN_STR("hello"));
	frame_put(&wire, CGN_STR(""));
	frame_put(&wire, CGN_STR("x"));
	frame_put(&wire, CGN_STR(""));
	frame_put(&wire, CGN_STR("0123456789abcdef0123456789abcdef"));
	for (size_t step = 1; step <= wire.n; step++) {
		struct cgn_buf out = {.n = 0};
		assert_int_equal(frames_collect(cgn_buf_view(&wire), step, 64, &out, &err), GRPC_FRAME_MORE);
		assert_string_equal(cgn_buf_z(&out), "hello||x||0123456789abcdef0123456789abcdef|");
		cgn_buf_fini(&out);
	}
	for (size_t cut = 1; cut < 5 + 5; cut++) {
		struct cgn_buf out = {.n = 0};
		assert_int_equal(frames_collect((struct cgn_str){wire.p, cut}, 3, 64, &out, &err),
			GRPC_FRAME_MORE);
		assert_string_equal(cgn_buf_z(&out), "?");
		cgn_buf_fini(&out);
	}
	cgn_buf_fini(&wire);
}

static void whole_messages_are_not_copied(void **state)
{
	(void)state;
	struct cgn_buf wire = {.n = 0};
	struct grpc_frames f = {.max_message = 64};
	struct cgn_str message;
	frame_put(&wire, CGN_STR("hello"));
	struct cgn_str in = cgn_buf_view(&wire);
	assert_int_equal(grpc_frame_next(&f, &in, &message, NULL), GRPC_FRAME_MESSAGE);
	assert_ptr_equal(message.p, wire.p + GRPC_PREFIX);
	assert_int_equal(f.part.cap, 0);
	grpc_frames_fini(&f);
	cgn_buf_fini(&wire);
}

static void lies_about_the_length_cost_nothing(void **state)
{
	(void)state;
	struct grpc_frames f = {.max_message = UINT32_MAX};
	struct cgn_str in = CGN_STR("\0\xff\xff\xff\xff"
				    "abc"),
		       message;
	assert_int_equal(grpc_frame_next(&f, &in, &message, NULL), GRPC_FRAME_MORE);
	assert_true(f.part.cap < 1024);
	assert_false(grpc_frame_between(&f));
	grpc_frames_fini(&f);
}

static void a_budget_bounds_the_messages_of_all_calls(void **state)
{
	(void)state;
	struct grpc_budget b = {.limit = 100, .setting = "agent.max_inflight_body"};
	struct grpc_frames one = {.max_message = 1000, .budget = &b}, two = one;
	const uint8_t sixty[] = {0, 0, 0, 0, 60, 'x'};
	struct cgn_str message, in = {(const char *)sixty, sizeof sixty};
	struct cgn_err err = {0};
	assert_int_equal(grpc_frame_next(&one, &in, &message, &err), GRPC_FRAME_MORE);
	assert_int_equal(b.used, 60);
	in = (struct cgn_str){(const char *)sixty, sizeof sixty};
	assert_int_equal(grpc_frame_next(&two, &in, &message, &err), GRPC_FRAME_BAD);
	assert_int_equal(err.code, CGN_OVERLOADED);
	assert_non_null(strstr(err.msg, "60 bytes: 60 of 100 bytes are in use (agent.max_inflight_body)"));
	assert_int_equal(b.refused, 1);
	grpc_frames_fini(&one);
	grpc_frames_fini(&two);
	assert_int_equal(b.used, 0);
}

static void bad_prefixes_are_refused(void **state)
{
	(void)state;
	static const struct {
		struct cgn_str wire;
		enum cgn_code code;
	} cases[] = {
		/* A byte above the limit: refused before any byte of the message. */
		{LIT("\0\0\0\0\x41"), CGN_OVERLOADED},
		{LIT("\0\xff\xff\xff\xff"), CGN_OVERLOADED},
		{LIT("\1\0\0\0\1x"), CGN_UNSUPPORTED},
		{LIT("\2\0\0\0\1x"), CGN_INVALID},
		{LIT("PRI * HTTP/2.0"), CGN_INVALID},
	};
	for (size_t i = 0; i < CGN_COUNT(cases); i++) {
		struct cgn_err err = {.code = CGN_FINE};
		struct cgn_buf out = {.n = 0};
		assert_int_equal(frames_collect(cases[i].wire, 2, 64, &out, &err), GRPC_FRAME_BAD);
		assert_int_equal(err.code, cases[i].code);
		assert_int_equal(out.n, 0);
	}
}

static void timeouts_round_trip(void **state)
{
	(void)state;
	static const struct {
		cgn_nsec nsec;
		const char *text;
	} cases[] = {
		{1, "1n"},
		{99999998, "99999998n"},
		{CGN_SEC, "1000000u"},
		{100 * CGN_MSEC + 1, "100001u"},
		{3600 * CGN_SEC, "3600000m"},
		{UINT64_MAX / 4, "76861434M"},
	};
	for (size_t i = 0; i < CGN_COUNT(cases); i++) {
		char text[GRPC_TIMEOUT_TEXT];
		cgn_nsec back;
		grpc_timeout_format(cases[i].nsec, text);
		assert_string_equal(text, cases[i].text);
		assert_true(grpc_timeout_parse(cgn_str_of(text), &back));
		assert_true(back >= cases[i].nsec || cases[i].nsec > GRPC_FOREVER);
	}
}

static void timeouts_are_read_strictly(void **state)
{
	(void)state;
	static const char *const bad[] = {"", "5", "S", "123456789S", "-1S", "+1S", " 1S", "1 S", "1s",
		"1.5S", "1SS"};
	cgn_nsec t;
	for (size_t i = 0; i < CGN_COUNT(bad); i++)
		assert_false(grpc_timeout_parse(cgn_str_of(bad[i]), &t));
	assert_true(grpc_timeout_parse(CGN_STR("99999999H"), &t));
	assert_true(t == GRPC_FOREVER);
	assert_true(grpc_timeout_parse(CGN_STR("0m"), &t));
	assert_true(t == 0);
	assert_true(grpc_timeout_parse(CGN_STR("20m"), &t));
	assert_true(t == 20 * CGN_MSEC);
}

static void sentences_survive_percent_encoding(void **state)
{
	(void)state;
	static const char sentence[] = "100% of \"caf\xc3\xa9\"\r\nfailed~\x7f";
	struct cgn_buf b = {.n = 0};
	char back[64];
	grpc_message_encode(sentence, &b);
	assert_string_equal(cgn_buf_z(&b), "100%25 of \"caf%C3%A9\"%0D%0Afailed~%7F");
	grpc_message_decode(cgn_buf_view(&b), back, sizeof back);
	assert_string_equal(back, sentence);
	cgn_buf_fini(&b);
	grpc_message_decode(CGN_STR("%zz%4%41%00%"), back, sizeof back);
	assert_string_equal(back, "%zz%4A%00%");
	grpc_message_decode(CGN_STR("abcdef"), back, 4);
	assert_string_equal(back, "abc");
}

static void statuses_are_mapped(void **state)
{
	(void)state;
	struct cgn_err err;
	const struct http_field fine[] = {{CGN_STR("grpc-status"), CGN_STR("0")}};
	const struct http_field missing[] = {{CGN_STR("grpc-status"), CGN_STR("5")},
		{CGN_STR("grpc-message"), CGN_STR("no%20node")}};
	const struct http_field nonsense[] = {{CGN_STR("grpc-status"), CGN_STR("x")}};
	assert_false(grpc_status_read(NULL, 0, &err));
	assert_true(grpc_status_read(fine, 1, &err));
	assert_int_equal(err.code, CGN_FINE);
	assert_true(grpc_status_read(missing, 2, &err));
	assert_int_equal(err.code, CGN_NOT_FOUND);
	assert_string_equal(err.msg, "no node");
	assert_true(grpc_status_read(nonsense, 1, &err));
	assert_int_equal(err.code, CGN_INTERNAL);
	assert_true(err.msg[0] != '\0');
	assert_int_equal(grpc_code_from_http(503), CGN_UNAVAILABLE);
	assert_int_equal(grpc_code_from_http(404), CGN_UNSUPPORTED);
	assert_int_equal(grpc_code_from_http(418), CGN_INTERNAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(messages_come_whole_whatever_the_pieces),
		cmocka_unit_test(whole_messages_are_not_copied),
		cmocka_unit_test(lies_about_the_length_cost_nothing),
		cmocka_unit_test(a_budget_bounds_the_messages_of_all_calls),
		cmocka_unit_test(bad_prefixes_are_refused),
		cmocka_unit_test(timeouts_round_trip),
		cmocka_unit_test(timeouts_are_read_strictly),
		cmocka_unit_test(sentences_survive_percent_encoding),
		cmocka_unit_test(statuses_are_mapped),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
