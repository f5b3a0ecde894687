/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "io/disk/disk.h"
#include "io/linefile/linefile.h"

#define THREADS 4
#define LINES   5000

static char folder[64], path[96], moved[96];

static int folder_make(void **state)
{
	(void)state;
	(void)snprintf(folder, sizeof folder, "/tmp/cgn-linefile-XXXXXX");
	assert_non_null(mkdtemp(folder));
	(void)snprintf(path, sizeof path, "%s/log", folder);
	(void)snprintf(moved, sizeof moved, "%s/log.1", folder);
	return 0;
}

static int folder_remove(void **state)
{
	(void)state;
	(void)unlink(path);
	(void)unlink(moved);
	return rmdir(folder);
}

static void assert_content(const char *at, const char *want)
{
	struct cgn_buf text = {0};
	assert_true(cgn_ok(disk_read_file(at, 1 << 20, &text, NULL)));
	assert_string_equal(cgn_buf_z(&text), want);
	cgn_buf_fini(&text);
}

static struct linefile *file_of(const char *at)
{
	struct linefile *f = NULL;
	struct cgn_err err;
	if (!cgn_ok(linefile_open(at, &f, &err)))
		fail_msg("%s", err.msg);
	return f;
}

static void lines_go_to_the_end_of_the_file(void **state)
{
	(void)state;
	struct linefile *f = file_of(path);
	linefile_add(f, CGN_STR("one\n"));
	linefile_add(f, CGN_STR("two\n"));
	linefile_close(&f);
	linefile_close(&f);
	f = file_of(path);
	linefile_add(f, CGN_STR("three\n"));
	linefile_close(&f);
	assert_content(path, "one\ntwo\nthree\n");
}

static void a_rotated_file_is_left(void **state)
{
	(void)state;
	struct linefile *f = file_of(path);
	linefile_add(f, CGN_STR("old\n"));
	linefile_close(&f);
	f = file_of(path);
	assert_int_equal(rename(path, moved), 0);
	assert_true(cgn_ok(linefile_reopen(f, path, NULL)));
	linefile_add(f, CGN_STR("new\n"));
	struct cgn_err err;
	assert_false(cgn_ok(linefile_reopen(f, "/nowhere/log", &err)));
	assert_non_null(strstr(err.msg, "/nowhere/log"));
	linefile_close(&f);
	assert_content(moved, "old\n");
	assert_content(path, "new\n");
}

static void *lines_write(void *file)
{
	for (unsigned i = 0; i < LINES; i++)
		linefile_add(file, CGN_STR("a line of some length, as they are\n"));
	return NULL;
}

/* A line is in the file, or it is counted. */
static void no_line_of_many_threads_is_lost_uncounted(void **state)
{
	(void)state;
	pthread_t threads[THREADS];
	struct linefile *f = file_of(path);
	for (unsigned i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, lines_write, f), 0);
	for (unsigned i = 0; i < THREADS; i++)
		assert_int_equal(pthread_join(threads[i], NULL), 0);
	uint64_t dropped = linefile_dropped(f), lines = 0;
	linefile_close(&f);
	struct cgn_buf text = {0};
	assert_true(cgn_ok(disk_read_file(path, 1 << 24, &text, NULL)));
	struct cgn_str rest = cgn_buf_view(&text);
	while (rest.n > 0) {
		assert_true(cgn_str_is(cgn_str_split(&rest, '\n'), "a line of some length, as they are"));
		lines++;
	}
	assert_int_equal(lines + dropped, THREADS * LINES);
	cgn_buf_fini(&text);
}

static void what_a_full_disk_refuses_is_counted(void **state)
{
	(void)state;
	struct linefile *f = file_of("/dev/full");
	linefile_add(f, CGN_STR("one\ntwo\n"));
	for (unsigned i = 0; i < 2000 && linefile_dropped(f) == 0; i++)
		(void)usleep(10000);
	assert_int_equal(linefile_dropped(f), 2);
	linefile_close(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(lines_go_to_the_end_of_the_file, folder_make, folder_remove),
		cmocka_unit_test_setup_teardown(a_rotated_file_is_left, folder_make, folder_remove),
		cmocka_unit_test_setup_teardown(no_line_of_many_threads_is_lost_uncounted, folder_make,
			folder_remove),
		cmocka_unit_test(what_a_full_disk_refuses_is_counted),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
