/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "router/request/account/usagejournal.h"

#define DAY 20000

static struct world {
	struct cgn_loop *loop;
	char dir[64], path[80];
	uint64_t saved; /* Digest of the file of DAY; 0: there is none. */
	char rows[512]; /* Rows that were read, with a comma behind each. */
} w;

static bool world_has(void *arg, uint64_t day, uint64_t digest)
{
	(void)arg;
	return day == DAY && digest == w.saved;
}

static void world_row(void *arg, struct cgn_str line)
{
	(void)arg;
	size_t n = strlen(w.rows);
	(void)snprintf(w.rows + n, sizeof w.rows - n, "%.*s,", CGN_STR_ARG(line));
}

static void world_open(void)
{
	struct cgn_err err;
	w = (struct world){.dir = "/tmp/cgn-journal-XXXXXX"};
	assert_non_null(mkdtemp(w.dir));
	(void)snprintf(w.path, sizeof w.path, "%s/u.journal", w.dir);
	assert_true(cgn_ok(cgn_loop_new(&w.loop, &err)));
}

static void world_close(void)
{
	cgn_loop_free(&w.loop);
	(void)unlink(w.path);
	(void)rmdir(w.dir);
}

/* Return the rows that a router finds which starts now. */
static const char *rows_left(void)
{
	struct usage_journal *j = usage_journal_open(w.loop, w.path);
	w.rows[0] = '\0';
	(void)usage_journal_read(j, world_has, world_row, NULL);
	usage_journal_close(&j);
	return w.rows;
}

static void row_add(struct usage_journal *j, unsigned day, const char *name)
{
	char row[64];
	int n = snprintf(row, sizeof row, "%u %s\n", day * 24 + 3, name);
	usage_journal_add(j, (struct cgn_str){row, (size_t)n});
}

static void rows_are_found_until_the_days_file_has_them(void **state)
{
	(void)state;
	world_open();
	assert_string_equal(rows_left(), "");
	struct usage_journal *j = usage_journal_open(w.loop, w.path);
	row_add(j, DAY, "a");
	assert_string_equal(rows_left(), ""); /* The row was not written yet. */
	usage_journal_flush(j);
	assert_string_equal(rows_left(), "480003 a,");
	usage_journal_mark(j, DAY, CGN_STR("text with a"), true);
	row_add(j, DAY, "b");
	row_add(j, DAY + 1, "c");
	usage_journal_flush(j);
	/* Killed before the day's file was replaced, and after. */
	assert_string_equal(rows_left(), "480003 a,480003 b,480027 c,");
	w.saved = usage_journal_digest(CGN_STR("text with a"));
	assert_string_equal(rows_left(), "480003 b,480027 c,");
	row_add(j, DAY, "d"); /* The row waits while the file is replaced. */
	usage_journal_saved(j);
	assert_string_equal(rows_left(), "480003 b,480027 c,480003 d,");
	w.saved = 1;
	assert_string_equal(rows_left(), "480003 b,480027 c,480003 d,");
	row_add(j, DAY, "e");
	usage_journal_flush(j);
	assert_string_equal(rows_left(), "480003 b,480027 c,480003 d,480003 e,");
	/* A mark covers the rows of its own day. */
	usage_journal_mark(j, DAY, CGN_STR("all"), false);
	usage_journal_flush(j);
	w.saved = usage_journal_digest(CGN_STR("all"));
	assert_string_equal(rows_left(), "480027 c,");
	usage_journal_close(&j);
	world_close();
}

static void a_torn_or_damaged_line_ends_it(void **state)
{
	(void)state;
	static const char *const ends[] = {"0123456789abcdefr480003 x\n", "r480003 x\n", "\n",
		"0123456789abcdef"};
	world_open();
	for (size_t i = 0; i < CGN_COUNT(ends); i++) {
		(void)unlink(w.path);
		struct usage_journal *j = usage_journal_open(w.loop, w.path);
		row_add(j, DAY, "a");
		usage_journal_close(&j); /* Writes it. */
		FILE *f = fopen(w.path, "a");
		assert_non_null(f);
		(void)fputs(ends[i], f);
		(void)fclose(f);
		assert_string_equal(rows_left(), "480003 a,");
	}
	world_close();
}

static void without_a_folder_nothing_is_kept(void **state)
{
	(void)state;
	world_open();
	(void)rmdir(w.dir);
	struct usage_journal *j = usage_journal_open(w.loop, w.path);
	row_add(j, DAY, "a");
	usage_journal_flush(j);
	usage_journal_saved(j);
	assert_string_equal(rows_left(), "");
	assert_int_equal(mkdir(w.dir, 0700), 0);
	row_add(j, DAY, "b");
	usage_journal_saved(j);
	assert_string_equal(rows_left(), "480003 a,480003 b,");
	usage_journal_close(&j);
	world_close();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(rows_are_found_until_the_days_file_has_them),
		cmocka_unit_test(a_torn_or_damaged_line_ends_it),
		cmocka_unit_test(without_a_folder_nothing_is_kept),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
