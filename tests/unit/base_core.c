/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/core/arena.h"
#include "base/core/buf.h"
#include "base/core/err.h"
#include "base/core/list.h"
#include "base/core/str.h"
#include "base/unlikely/unlikely.h"

static void arena_stops_at_its_limit(void **state)
{
	(void)state;
	struct cgn_arena a;
	cgn_arena_init(&a, 4096);
	char *z = cgn_arena_fmt(&a, "%s-%d", "x", 7);
	assert_string_equal(z, "x-7");
	assert_null(cgn_arena_get(&a, 8192));
	assert_null(cgn_arena_get(&a, SIZE_MAX));
	assert_non_null(cgn_arena_get(&a, 3000));
	assert_null(cgn_arena_get(&a, 2000));
	cgn_arena_reset(&a);
	assert_non_null(cgn_arena_zero(&a, 4000));
	cgn_arena_fini(&a);
}

static void buf_error_is_sticky(void **state)
{
	(void)state;
	struct cgn_buf b = {.limit = 10};
	cgn_buf_putz(&b, "12345");
	cgn_buf_u64(&b, 678);
	assert_int_equal(b.n, 8);
	cgn_buf_putz(&b, "abc");
	assert_true(b.bad);
	cgn_buf_char(&b, 'x');
	assert_int_equal(b.n, 8);
	cgn_buf_fini(&b);
	cgn_buf_fmt(&b, "%d", 5);
	assert_string_equal(cgn_buf_z(&b), "5");
	cgn_buf_eat(&b, 1);
	assert_int_equal(b.n, 0);
	cgn_buf_fini(&b);
}

static void text_for_a_terminal_has_no_control_characters(void **state)
{
	(void)state;
	static const struct {
		const char *from, *to;
	} rows[] = {
		{"", ""},
		{"qwen/2.5 \\o/ \"x\"", "qwen/2.5 \\o/ \"x\""},
		{"r\xc3\xa4t \xe6\xa8\xa1 \xf0\x9f\x98\x80", "r\xc3\xa4t \xe6\xa8\xa1 \xf0\x9f\x98\x80"},
		{"\033[31mred\nnext\ttab\x7f", "\\x1b[31mred\\x0anext\\x09tab\\x7f"},
		{"\xc2\x9b"
		 "31m\xc2\xa0",
			"\\xc2\\x9b"
			"31m\xc2\xa0"}, /* CSI as one character of C1 */
		{"a\xff\xc3", "a\\xff\\xc3"},
		{"\xe2\x80\xae"
		 "gpj \xe2\x81\xa6 \xe2\x80\x8b",
			"\\u202egpj \\u2066 \xe2\x80\x8b"},
	};
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		struct cgn_buf b = {0};
		cgn_buf_shown(&b, cgn_str_of(rows[i].from));
		assert_string_equal(cgn_buf_z(&b), rows[i].to);
		cgn_buf_fini(&b);
	}
}

static void numbers_are_strict(void **state)
{
	(void)state;
	uint64_t v = 0;
	assert_true(cgn_str_u64(CGN_STR("18446744073709551615"), &v));
	assert_true(v == UINT64_MAX);
	assert_false(cgn_str_u64(CGN_STR("18446744073709551616"), &v));
	assert_false(cgn_str_u64(CGN_STR(""), &v));
	assert_false(cgn_str_u64(CGN_STR("+1"), &v));
	assert_false(cgn_str_u64(CGN_STR("1 "), &v));
}

static void utf8_follows_rfc3629(void **state)
{
	(void)state;
	assert_true(cgn_utf8_valid("plain ascii, longer than eight", 30));
	assert_true(cgn_utf8_valid("\xf0\x9f\x98\x80", 4));
	assert_false(cgn_utf8_valid("\xc0\xaf", 2));
	assert_false(cgn_utf8_valid("\xed\xa0\x80", 3));
	assert_false(cgn_utf8_valid("\xf4\x90\x80\x80", 4));
	assert_false(cgn_utf8_valid("\xe2\x82", 2));
	assert_false(cgn_utf8_valid("abcdefgh\xff", 9));
}

static void near_names_are_found(void **state)
{
	(void)state;
	assert_int_equal(cgn_str_distance(CGN_STR("lisen"), CGN_STR("listen"), 2), 1);
	assert_int_equal(cgn_str_distance(CGN_STR("a"), CGN_STR("listen"), 2), 3);
	struct cgn_str rest = CGN_STR("a,b");
	assert_true(cgn_str_is(cgn_str_split(&rest, ','), "a"));
	assert_true(cgn_str_is(cgn_str_split(&rest, ','), "b"));
	assert_null(rest.p);
}

static void codes_map_both_ways(void **state)
{
	(void)state;
	struct cgn_err err;
	cgn_rc rc = CGN_FAIL(&err, NOT_FOUND, "no %s", "node");
	assert_false(cgn_ok(rc));
	assert_string_equal(err.msg, "no node");
	assert_int_equal(cgn_code_http(err.code), 404);
	assert_int_equal(cgn_code_from_grpc(cgn_code_grpc(CGN_UNAVAILABLE)), CGN_UNAVAILABLE);
	assert_int_equal(cgn_code_from_grpc(99), CGN_INTERNAL);
	struct cgn_link head, a;
	cgn_list_init(&head);
	cgn_list_init(&a);
	cgn_list_push(&head, &a);
	assert_ptr_equal(cgn_list_first(&head), &a);
	cgn_list_drop(&a);
	assert_true(cgn_list_empty(&head));
}

static void a_sentence_says_what_it_is_about(void **state)
{
	(void)state;
	struct cgn_err err = {.msg = "untouched"};
	assert_true(cgn_ok(cgn_err_of(CGN_OK, "kv.listen", &err)));
	assert_string_equal(err.msg, "untouched");
	assert_int_equal(cgn_err_of(CGN_FAIL(&err, STORAGE, "no %s", "room"), "kv.ssd_dir", &err).code,
		CGN_STORAGE);
	assert_string_equal(err.msg, "kv.ssd_dir: no room");
	assert_int_equal(cgn_err_of(CGN_RC_OF(CGN_STORAGE), NULL, &err).code, CGN_STORAGE);
	assert_int_equal(cgn_err_of(CGN_RC_OF(CGN_STORAGE), "x", NULL).code, CGN_STORAGE);
	assert_string_equal(err.msg, "kv.ssd_dir: no room");
	assert_false(cgn_ok(CGN_FAIL(&err, INVALID, "%0*d", (int)sizeof err.msg - 1, 7)));
	/* A long message is cut at its end. */
	assert_false(cgn_ok(cgn_err_of(CGN_RC_OF(CGN_INVALID), "key", &err)));
	assert_int_equal(strlen(err.msg), sizeof err.msg - 1);
	assert_int_equal(strncmp(err.msg, "key: 000", 8), 0);
}

static void strings_have_an_order(void **state)
{
	(void)state;
	assert_true(cgn_str_order(CGN_STR("ab"), CGN_STR("abc")) < 0);
	assert_true(cgn_str_order(CGN_STR("b"), CGN_STR("abc")) > 0);
	assert_int_equal(cgn_str_order(CGN_STR("ab"), CGN_STR("ab")), 0);
	assert_true(cgn_str_order((struct cgn_str){NULL, 0}, CGN_STR("a")) < 0);
}

static void patterns_fit(void **state)
{
	(void)state;
	static const struct {
		const char *pattern, *text;
		bool fits;
	} rows[] = {{"*", "", true}, {"*", "abc", true}, {"", "", true}, {"", "a", false},
		{"a*", "abc", true}, {"*c", "abc", true}, {"a*d", "abc", false}, {"?", "a", true},
		{"?", "", false}, {"a?c", "abc", true}, {"[abc]x", "bx", true}, {"[^abc]x", "bx", false},
		{"[^abc]x", "dx", true}, {"[a-c]", "b", true}, {"[a-c]", "-", false}, {"[a-cx]", "x", true},
		{"[c-a]", "b", true}, {"[a-c]", "d", false}, {"\\*", "*", true}, {"\\*", "a", false},
		{"\\?", "?", true}, {"\\?", "x", false}, {"*a*b*c", "xxaxxbxxc", true},
		{"*a*b*c", "xxaxxbxx", false}, {"**", "x", true}, {"[", "[", false}, {"[a", "a", true},
		{"[\\", "\\", true}, {"\\", "\\", true}, {"*metadata", "m@1@0@ffmetadata", true},
		{"*metadata", "mkv_bytes", false}};
	for (size_t i = 0; i < CGN_COUNT(rows); i++)
		if (cgn_str_glob(cgn_str_of(rows[i].pattern), cgn_str_of(rows[i].text)) != rows[i].fits)
			fail_msg("%s ~ %s", rows[i].pattern, rows[i].text);
	/* The pattern ends where its length says. */
	assert_true(cgn_str_glob((struct cgn_str){"a**", 2}, CGN_STR("a")));
	assert_true(cgn_str_glob((struct cgn_str){"a*", 1}, CGN_STR("a")));
	char hard[512], text[4096];
	for (size_t i = 0; i < sizeof hard; i += 2)
		memcpy(hard + i, "*a", 2);
	memset(text, 'a', sizeof text);
	text[sizeof text - 1] = 'b';
	/* The match ends in reasonable time. */
	assert_false(cgn_str_glob((struct cgn_str){hard, sizeof hard}, (struct cgn_str){text, sizeof text}));
}

static void no_time_has_passed_since_a_later_instant(void **state)
{
	(void)state;
	assert_int_equal(cgn_since(5, 3), 2);
	assert_int_equal(cgn_since(3, 3), 0);
	assert_int_equal(cgn_since(3, 5), 0);
	assert_int_equal(cgn_since(0, UINT64_MAX), 0);
	assert_true(cgn_since(UINT64_MAX, 0) == UINT64_MAX);
}

static void small_memory_is_zeroed_and_grows(void **state)
{
	(void)state;
	uint64_t *p = CGN_NEW_ARRAY(uint64_t, 3);
	assert_true(p[0] == 0 && p[2] == 0);
	p[2] = 7;
	p = CGN_GROWN(p, 1000);
	assert_true(p[2] == 7);
	free(p);
}

static void the_lack_of_memory_ends_the_program_with_a_line(void **state)
{
	(void)state;
	int pipes[2], status = 0;
	char said[512] = "";
	assert_int_equal(pipe(pipes), 0);
	pid_t child = fork();
	if (child == 0) {
		(void)dup2(pipes[1], STDERR_FILENO);
		cgn_out_of_memory(4711, CGN_HERE);
	}
	assert_true(child > 0 && waitpid(child, &status, 0) == child);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
	assert_true(read(pipes[0], said, sizeof said - 1) > 0);
	assert_non_null(strstr(said, "base_core.c:"));
	assert_non_null(strstr(said, "no 4711 bytes"));
	close(pipes[0]);
	close(pipes[1]);
}

static void programs_go_no_unlikely_way(void **state)
{
	(void)state;
	for (int i = 0; i < UNLIKELY_COUNT; i++)
		assert_false(unlikely_way((enum unlikely)i));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(no_time_has_passed_since_a_later_instant),
		cmocka_unit_test(patterns_fit),
		cmocka_unit_test(strings_have_an_order),
		cmocka_unit_test(arena_stops_at_its_limit),
		cmocka_unit_test(small_memory_is_zeroed_and_grows),
		cmocka_unit_test(the_lack_of_memory_ends_the_program_with_a_line),
		cmocka_unit_test(buf_error_is_sticky),
		cmocka_unit_test(text_for_a_terminal_has_no_control_characters),
		cmocka_unit_test(numbers_are_strict),
		cmocka_unit_test(utf8_follows_rfc3629),
		cmocka_unit_test(near_names_are_found),
		cmocka_unit_test(codes_map_both_ways),
		cmocka_unit_test(a_sentence_says_what_it_is_about),
		cmocka_unit_test(programs_go_no_unlikely_way),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
