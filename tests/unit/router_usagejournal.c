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

#include "base/core/err.h"
#include "disk_folder.h"
#include "io/os/disk/disk.h"
#include "router/request/account/usagejournal.h"

#define DAY 20000

static struct world {
	struct cgn_loop *loop;
	char dir[64], path[80], copy[80];
	uint64_t saved;   /* Digest of the file of DAY; 0: there is none. */
	uint64_t budgets; /* Digest of the file of budgets; 0: there is none. */
	/* Rows that the files of days lack, and the file of budgets, with a comma behind each. */
	char rows[512], spent[512];
} w;

static bool world_has(void *arg, uint64_t day, uint64_t digest)
{
	(void)arg;
	return day == DAY && digest == w.saved;
}

static void text_put(char room[512], struct cgn_str line)
{
	size_t n = strlen(room);
	(void)snprintf(room + n, 512 - n, "%.*s,", CGN_STR_ARG(line));
}

static void world_row(void *arg, const struct usage_row *row)
{
	(void)arg;
	if (row->for_day)
		text_put(w.rows, row->text);
	if (row->for_budgets)
		text_put(w.spent, row->text);
}

static void world_open(void)
{
	struct cgn_err err;
	w = (struct world){.dir = "/tmp/cgn-journal-XXXXXX"};
	assert_non_null(mkdtemp(w.dir));
	(void)snprintf(w.path, sizeof w.path, "%s/u.journal", w.dir);
	(void)snprintf(w.copy, sizeof w.copy, "%s/v.journal", w.dir);
	assert_true(cgn_ok(cgn_loop_new(&w.loop, &err)));
}

static void world_close(void)
{
	cgn_loop_free(&w.loop);
	disk_folder_remove(w.dir);
}

static void file_copy(const char *from, const char *to, const char *end)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	char paths[2][96];
	(void)snprintf(paths[0], sizeof paths[0], "%s%s", from, end);
	(void)snprintf(paths[1], sizeof paths[1], "%s%s", to, end);
	(void)unlink(paths[1]);
	if (cgn_ok(disk_read_file(paths[0], 1 << 20, &text, NULL)))
		assert_true(cgn_ok(disk_write_file_atomic(paths[1], cgn_buf_view(&text), 0600, NULL)));
}

/* Start a router |times| that is killed at once, on a copy of the files. Return the rows that the last one found. */
static const char *rows_left_after(unsigned times)
{
	file_copy(w.path, w.copy, "");
	file_copy(w.path, w.copy, ".open");
	for (unsigned i = 0; i < times; i++) {
		char killed[80];
		struct usage_journal *j = usage_journal_open(w.loop, w.copy);
		const struct usage_journal_reader r = {.has_day = world_has,
			.budgets = w.budgets,
			.row = world_row};
		w.rows[0] = w.spent[0] = '\0';
		usage_journal_read(j, &r);
		/* The end of a router that is not killed must not reach its files. */
		(void)snprintf(killed, sizeof killed, "%s/killed%u", w.dir, i);
		file_copy(w.copy, killed, "");
		file_copy(w.copy, killed, ".open");
		usage_journal_close(&j);
		file_copy(killed, w.copy, "");
		file_copy(killed, w.copy, ".open");
	}
	return w.rows;
}

/* Return the rows that a router finds which starts now. One that was killed right after its start leaves the same. */
static const char *rows_left(void)
{
	char first[512];
	(void)snprintf(first, sizeof first, "%s", rows_left_after(1));
	assert_string_equal(rows_left_after(3), first);
	return w.rows;
}

static void row_add(struct usage_journal *j, unsigned day, const char *name)
{
	char row[64];
	int n = snprintf(row, sizeof row, "%u %s\n", day * 24 + 3, name);
	usage_journal_add(j, (struct cgn_str){row, (size_t)n}, NULL);
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
	usage_journal_saved(j, false);
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
	usage_journal_saved(j, false);
	assert_string_equal(rows_left(), "");
	assert_int_equal(mkdir(w.dir, 0700), 0);
	row_add(j, DAY, "b");
	usage_journal_saved(j, false);
	assert_string_equal(rows_left(), "480003 a,480003 b,");
	usage_journal_close(&j);
	world_close();
}

static void rows_are_found_until_the_budgets_have_them(void **state)
{
	(void)state;
	world_open();
	struct usage_journal *j = usage_journal_open(w.loop, w.path);
	row_add(j, DAY, "a");
	usage_journal_flush(j);
	rows_left();
	assert_string_equal(w.spent, "480003 a,"); /* There is no file. */
	usage_journal_budgets(j, 7, false);
	row_add(j, DAY, "b");
	usage_journal_mark(j, DAY, CGN_STR("a and b"), true);
	row_add(j, DAY, "c");
	usage_journal_flush(j);
	w.saved = usage_journal_digest(CGN_STR("a and b"));
	assert_string_equal(rows_left(), "480003 c,");
	assert_string_equal(w.spent, "480003 a,480003 b,480003 c,");
	w.budgets = 7;
	assert_string_equal(rows_left(), "480003 c,");
	assert_string_equal(w.spent, "480003 b,480003 c,");
	w.budgets = 8; /* The journal does not know this file. */
	rows_left();
	assert_string_equal(w.spent, "");
	/* The file of the day has a and b, which wait for the file of budgets. */
	w.budgets = 7;
	usage_journal_saved(j, false);
	assert_string_equal(rows_left(), "480003 c,");
	assert_string_equal(w.spent, "480003 b,480003 c,");
	usage_journal_budgets(j, 9, false);
	usage_journal_budgets(j, 9, true);
	row_add(j, DAY, "d");
	usage_journal_mark(j, DAY, CGN_STR("all"), true);
	usage_journal_flush(j);
	w.budgets = 9;
	w.saved = usage_journal_digest(CGN_STR("all"));
	usage_journal_saved(j, false);
	assert_string_equal(rows_left(), "");
	assert_string_equal(w.spent, "480003 d,");
	w.saved = 1; /* Dropped rows stay dropped. */
	assert_string_equal(rows_left(), "480003 d,");
	usage_journal_close(&j);
	world_close();
}

static void open_put(struct usage_journal *j, const char *name, struct usage_place *place)
{
	char row[64];
	int n = snprintf(row, sizeof row, "%d %s\n", DAY * 24 + 3, name);
	usage_journal_put(j, (struct cgn_str){row, (size_t)n}, place);
}

static void requests_under_way_are_found(void **state)
{
	(void)state;
	struct usage_place a = {0}, b = {0}, c = {0};
	world_open();
	struct usage_journal *j = usage_journal_open(w.loop, w.path);
	open_put(j, "a1", &a);
	open_put(j, "b1", &b);
	open_put(j, "c1", &c);
	assert_true(a.id != 0 && b.id != a.id && c.id != b.id);
	usage_journal_flush(j);
	assert_string_equal(rows_left(), "480003 a1,480003 b1,480003 c1,");
	assert_string_equal(w.spent, "480003 a1,480003 b1,480003 c1,");
	/* A record is replaced; a row ends it, whether its place was cleared or not; a request may end without one. */
	open_put(j, "a2", &a);
	usage_journal_add(j, CGN_STR("480003 b2\n"), &b);
	usage_journal_drop(j, &c);
	assert_true(b.id == 0 && c.id == 0);
	assert_string_equal(rows_left(), "480003 a1,480003 b1,480003 c1,");
	char kept[96];
	(void)snprintf(kept, sizeof kept, "%s/kept", w.dir);
	file_copy(w.path, kept, ".open");
	usage_journal_flush(j);
	assert_string_equal(rows_left(), "480003 b2,480003 a2,");
	file_copy(kept, w.path, ".open");
	assert_string_equal(rows_left(), "480003 b2,480003 a1,480003 c1,");
	/* Places are used again, and the ids of another life are not. */
	open_put(j, "d1", &b);
	open_put(j, "e1", &c);
	usage_journal_flush(j);
	assert_true(b.id > a.id && c.id > b.id && b.number != a.number && b.number < 3 && c.number < 3);
	/* A row that no place can hold has no record. */
	struct usage_place none = {0};
	char text[USAGE_OPEN_PLACE + 1];
	memset(text, 'x', sizeof text);
	usage_journal_put(j, (struct cgn_str){text, sizeof text}, &none);
	usage_journal_drop(j, &none);
	assert_int_equal(none.id, 0);
	usage_journal_close(&j);
	world_close();
}

static void there_are_places_for_many_and_not_for_all(void **state)
{
	(void)state;
	static struct usage_place places[USAGE_OPEN_MOST + 10];
	struct stat st;
	char path[96];
	world_open();
	struct usage_journal *j = usage_journal_open(w.loop, w.path);
	for (size_t i = 0; i < CGN_COUNT(places); i++)
		open_put(j, "x", &places[i]);
	for (size_t i = 0; i < CGN_COUNT(places); i++)
		assert_int_equal(places[i].id != 0, i < USAGE_OPEN_MOST);
	usage_journal_flush(j);
	(void)snprintf(path, sizeof path, "%s.open", w.path);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_size, (off_t)USAGE_OPEN_MOST * USAGE_OPEN_PLACE);
	usage_journal_close(&j);
	assert_int_equal(stat(path, &st), -1); /* The file is removed at the end. */
	world_close();
}

static void a_damaged_record_is_passed_over(void **state)
{
	(void)state;
	struct usage_place a = {0}, b = {0};
	world_open();
	struct usage_journal *j = usage_journal_open(w.loop, w.path);
	open_put(j, "a", &a);
	open_put(j, "b", &b);
	usage_journal_flush(j);
	char path[96];
	(void)snprintf(path, sizeof path, "%s.open", w.path);
	for (off_t at = 0; at < 40; at++) {
		FILE *f = fopen(path, "r+");
		assert_non_null(f);
		assert_int_equal(fseek(f, at, SEEK_SET), 0);
		int c = fgetc(f);
		assert_int_equal(fseek(f, at, SEEK_SET), 0);
		(void)fputc(c ^ 1, f);
		(void)fclose(f);
		rows_left();
		assert_true(at > 30 || strcmp(w.rows, "480003 b,") == 0);
		f = fopen(path, "r+");
		assert_int_equal(fseek(f, at, SEEK_SET), 0);
		(void)fputc(c, f);
		(void)fclose(f);
	}
	assert_int_equal(truncate(path, USAGE_OPEN_PLACE + 7), 0);
	assert_string_equal(rows_left(), "480003 a,");
	usage_journal_close(&j);
	world_close();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(rows_are_found_until_the_days_file_has_them),
		cmocka_unit_test(a_torn_or_damaged_line_ends_it),
		cmocka_unit_test(without_a_folder_nothing_is_kept),
		cmocka_unit_test(rows_are_found_until_the_budgets_have_them),
		cmocka_unit_test(requests_under_way_are_found),
		cmocka_unit_test(there_are_places_for_many_and_not_for_all),
		cmocka_unit_test(a_damaged_record_is_passed_over),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
