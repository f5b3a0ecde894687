/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json/json.h"
#include "base/log/log.h"

static int saved_stderr, reader;

static int stderr_capture(void **state)
{
	(void)state;
	int ends[2];
	if (pipe(ends) != 0)
		return -1;
	reader = ends[0];
	saved_stderr = dup(STDERR_FILENO);
	if (dup2(ends[1], STDERR_FILENO) < 0)
		return -1;
	return close(ends[1]);
}

static int stderr_restore(void **state)
{
	(void)state;
	if (dup2(saved_stderr, STDERR_FILENO) < 0)
		return -1;
	(void)close(saved_stderr);
	return close(reader);
}

static struct cgn_str take_line(char *room, size_t cap)
{
	ssize_t n = read(reader, room, cap);
	assert_true(n > 0);
	assert_int_equal(room[n - 1], '\n');
	assert_null(memchr(room, '\n', (size_t)n - 1));
	return (struct cgn_str){room, (size_t)n - 1};
}

static void a_line_for_the_journal_begins_with_its_level(void **state)
{
	(void)state;
	char room[8192];
	log_setup("cgn-test", LOG_DEBUG, LOG_JSON);
	log_to_journal(true);
	cgn_log(ERROR, "test.mark", F_BOOL("b", true));
	cgn_log(DEBUG, "test.mark", F_BOOL("b", true));
	log_to_journal(false);
	struct cgn_str lines = {room, (size_t)read(reader, room, sizeof room)};
	assert_true(cgn_str_starts(cgn_str_split(&lines, '\n'), "<3>{"));
	assert_true(cgn_str_starts(cgn_str_split(&lines, '\n'), "<7>{"));
}

static void a_json_line_is_json_whatever_is_in_it(void **state)
{
	(void)state;
	char room[8192];
	log_setup("cgn-test", LOG_INFO, LOG_JSON);
	cgn_log(WARN, "test.odd", F_STRN("s", CGN_STR("a\"b\n\x01\xff\xc3\xa4")), F_I64("i", INT64_MIN),
		F_U64("u", UINT64_MAX), F_F64("nan", __builtin_nan("")), F_BOOL("b", true),
		F_DUR("took", 1500 * CGN_USEC), F_STR("null", NULL));
	struct json_val v, field;
	struct cgn_err err = {0};
	struct cgn_str line = take_line(room, sizeof room);
	assert_true(cgn_ok(json_parse(line, &v, NULL, &err)));
	struct cgn_arena a;
	cgn_arena_init(&a, 65536);
	assert_true(cgn_str_is(json_get_str(v, "level", &a), "warn"));
	assert_true(cgn_str_is(json_get_str(v, "program", &a), "cgn-test"));
	assert_true(cgn_str_is(json_get_str(v, "event", &a), "test.odd"));
	assert_true(cgn_str_is(json_get_str(v, "s", &a), "a\"b\n\x01\xef\xbf\xbd\xc3\xa4"));
	assert_int_equal(json_get_str(v, "time", &a).n, strlen("2026-01-01T00:00:00.000Z"));
	assert_true(json_get_f64(v, "took_ms", 0) > 1.49 && json_get_f64(v, "took_ms", 0) < 1.51);
	assert_true(json_get(v, "nan", &field) && field.type == JSON_NULL);
	assert_true(json_get(v, "i", &field) && cgn_str_is(field.raw, "-9223372036854775808"));
	assert_true(json_get_u64(v, "u", 0) == UINT64_MAX);
	assert_true(cgn_str_is(json_get_str(v, "null", &a), ""));
	cgn_arena_fini(&a);
}

static void a_long_line_loses_fields_but_not_its_shape(void **state)
{
	(void)state;
	char room[8192], noise[3000];
	memset(noise, 1, sizeof noise); /* six bytes each when escaped */
	struct cgn_str s = {noise, sizeof noise};
	log_setup("cgn-test", LOG_INFO, LOG_JSON);
	cgn_log(INFO, "test.long", F_STRN("a", s), F_U64("kept", 7));
	struct json_val v;
	struct cgn_str line = take_line(room, sizeof room);
	assert_true(line.n < 4096);
	assert_true(cgn_ok(json_parse(line, &v, NULL, NULL)));
	assert_true(json_get_bool(v, "cut", false));
	assert_int_equal(json_get_u64(v, "kept", 0), 7);
	assert_false(json_get(v, "a", &(struct json_val){0}));
	memset(noise, 'x', sizeof noise);
	cgn_log(INFO, "test.long", F_STRN("a", s), F_STRN("b", s), F_STRN("c", s), F_STRN("d", s),
		F_STRN("e", s));
	line = take_line(room, sizeof room);
	assert_true(line.n < 4096);
	assert_true(cgn_ok(json_parse(line, &v, NULL, NULL)));
	struct json_val a;
	assert_true(json_get(v, "a", &a));
	assert_int_equal(a.raw.n, 1024 + 2);
}

static void a_cut_does_not_split_a_character(void **state)
{
	(void)state;
	char room[8192], text[1100];
	for (size_t i = 0; i + 3 <= sizeof text; i += 3)
		memcpy(text + i, "\xe2\x82\xac", 3);
	log_setup("cgn-test", LOG_INFO, LOG_JSON);
	cgn_log(INFO, "test.euro", F_STRN("a", ((struct cgn_str){text, 1098})));
	struct json_val v, a;
	assert_true(cgn_ok(json_parse(take_line(room, sizeof room), &v, NULL, NULL)));
	assert_true(json_get(v, "a", &a));
	assert_int_equal(a.raw.n, 1023 + 2);
}

static void people_read_plain_words_bare_and_odd_ones_quoted(void **state)
{
	(void)state;
	char room[8192];
	log_setup("cgn-test", LOG_INFO, LOG_HUMAN);
	cgn_log(ERROR, "test.human", F_STR("plain", "a/b-c"), F_STR("short", "x"),
		F_STR("odd", "a b\n2026 fake line"), F_STR("empty", ""),
		F_STR("csi",
			"x\033[1m\xc2\x9b"
			"31m\x7f"),
		F_DUR("up", 2 * CGN_SEC));
	struct cgn_str line = take_line(room, sizeof room);
	room[line.n] = '\0';
	assert_string_equal(room + strlen("2026-01-01T00:00:00.000Z"),
		" error cgn-test test.human plain=a/b-c short=x odd=\"a b\\n2026 fake line\" empty=\"\" csi=\"x\\u001b[1m\\xc2\\x9b31m\\x7f\" up=2000ms");
}

static void below_the_level_nothing_is_written(void **state)
{
	(void)state;
	char room[8192];
	log_setup("cgn-test", LOG_WARN, LOG_HUMAN);
	assert_false(log_wants(LOG_INFO));
	cgn_log(INFO, "test.quiet", F_BOOL("x", true));
	cgn_log(WARN, "test.loud", F_BOOL("x", true));
	struct cgn_str line = take_line(room, sizeof room);
	room[line.n] = '\0';
	assert_null(strstr(room, "test.quiet"));
	assert_non_null(strstr(room, "test.loud"));
}

#define LINES_EACH 8 /* All threads together write less than a pipe holds, so no writer blocks. */

static void *write_lines(void *arg)
{
	(void)arg;
	char text[512];
	memset(text, 'y', sizeof text);
	for (int i = 0; i < LINES_EACH; i++)
		cgn_log(INFO, "test.thread", F_STRN("text", ((struct cgn_str){text, sizeof text})));
	return NULL;
}

static void lines_of_threads_do_not_mix(void **state)
{
	(void)state;
	pthread_t threads[4];
	log_setup("cgn-test", LOG_INFO, LOG_JSON);
	for (size_t i = 0; i < CGN_COUNT(threads); i++)
		assert_int_equal(pthread_create(&threads[i], NULL, write_lines, NULL), 0);
	for (size_t i = 0; i < CGN_COUNT(threads); i++)
		assert_int_equal(pthread_join(threads[i], NULL), 0);
	static char room[65536];
	ssize_t n = read(reader, room, sizeof room);
	struct cgn_str rest = {room, n > 0 ? (size_t)n : 0};
	size_t lines = 0;
	for (struct cgn_str line; (line = cgn_str_split(&rest, '\n')).n > 0; lines++)
		assert_true(cgn_ok(json_parse(line, &(struct json_val){0}, NULL, NULL)));
	assert_int_equal(lines, CGN_COUNT(threads) * LINES_EACH);
}

static void repeated_lines_are_counted_and_not_written(void **state)
{
	(void)state;
	static struct log_limit limit;
	char room[8192];
	unsigned written = 0;
	log_setup("cgn-test", LOG_INFO, LOG_JSON);
	for (unsigned i = 0; i < LOG_LIMIT_LINES + 7; i++)
		written += log_limit_pass(&limit, "test.often");
	assert_int_equal(written, LOG_LIMIT_LINES);
	log_limits_tell(); /* The period is not over: this says nothing. */
	atomic_fetch_sub(&limit.since, LOG_LIMIT_EVERY);
	log_limits_tell();
	struct cgn_str line = take_line(room, sizeof room - 1);
	room[line.n] = '\0';
	assert_non_null(strstr(room, "\"event\":\"log.left_out\",\"of\":\"test.often\",\"lines\":7,"));
	assert_true(log_limit_pass(&limit, "test.often"));
	for (unsigned i = 0; i < LOG_LIMIT_LINES; i++)
		cgn_log_limited(INFO, "test.place", F_U64("i", i));
	for (unsigned i = 0; i < LOG_LIMIT_LINES; i++) {
		ssize_t n = 0;
		do /* Lines come one by one out of the pipe. */
			assert_int_equal(read(reader, room + n, 1), 1);
		while (room[n++] != '\n');
		assert_non_null(memmem(room, (size_t)n, "test.place", 10));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(a_line_for_the_journal_begins_with_its_level, stderr_capture,
			stderr_restore),
		cmocka_unit_test_setup_teardown(a_json_line_is_json_whatever_is_in_it, stderr_capture,
			stderr_restore),
		cmocka_unit_test_setup_teardown(a_long_line_loses_fields_but_not_its_shape, stderr_capture,
			stderr_restore),
		cmocka_unit_test_setup_teardown(a_cut_does_not_split_a_character, stderr_capture,
			stderr_restore),
		cmocka_unit_test_setup_teardown(people_read_plain_words_bare_and_odd_ones_quoted,
			stderr_capture, stderr_restore),
		cmocka_unit_test_setup_teardown(below_the_level_nothing_is_written, stderr_capture,
			stderr_restore),
		cmocka_unit_test_setup_teardown(repeated_lines_are_counted_and_not_written, stderr_capture,
			stderr_restore),
		cmocka_unit_test_setup_teardown(lines_of_threads_do_not_mix, stderr_capture, stderr_restore),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
