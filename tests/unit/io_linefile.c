/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "io/os/disk/disk.h"
#include "io/os/linefile/linefile.h"

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

static off_t size_of(const char *at)
{
	struct stat st;
	return stat(at, &st) == 0 ? st.st_size : -1;
}

static unsigned descriptors_open(void)
{
	unsigned n = 0;
	for (int fd = 0; fd < 1000; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

static bool is_last(const char *line)
{
	size_t n = strlen(line);
	off_t size = size_of(path);
	char last[64] = "";
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	ssize_t got = pread(fd, last, n, size - (off_t)n);
	close(fd);
	return got == (ssize_t)n && strcmp(last, line) == 0;
}

/* Write the line "|i|" with 40 bytes, and wait until it is in the file. The file that is begun for it is empty at first. */
static void line_write(struct linefile *f, unsigned i)
{
	char line[41];
	(void)snprintf(line, sizeof line, "%-39u\n", i);
	linefile_add(f, cgn_str_of(line));
	for (unsigned k = 0; k < 10000 && !is_last(line); k++)
		(void)usleep(1000);
}

static void assert_lines(const char *at, unsigned first, unsigned n)
{
	char want[200] = "";
	for (unsigned i = 0; i < n; i++)
		(void)snprintf(want + strlen(want), sizeof want - strlen(want), "%-39u\n", first + i);
	assert_content(at, want);
}

/* Files of at most 100 bytes have two lines each; the oldest is dropped. */
static void a_bounded_file_is_rotated(void **state)
{
	(void)state;
	char second[100], third[100];
	struct linefile *f = NULL;
	unsigned open_before = descriptors_open();
	(void)snprintf(second, sizeof second, "%s/log.2", folder);
	(void)snprintf(third, sizeof third, "%s/log.3", folder);
	assert_true(cgn_ok(linefile_open_bounded(path, 100, 3, &f, NULL)));
	for (unsigned i = 0; i < 9; i++)
		line_write(f, i);
	linefile_close(&f);
	assert_true(cgn_ok(
		linefile_open_bounded(path, 100, 3, &f, NULL))); /* The size of the file is known again. */
	line_write(f, 9);
	linefile_close(&f);
	assert_lines(path, 8, 2);
	assert_lines(moved, 6, 2);
	assert_lines(second, 4, 2);
	assert_int_equal(size_of(third), -1);
	assert_int_equal(descriptors_open(), open_before);
	(void)unlink(second);
}

static void a_single_bounded_file_begins_anew(void **state)
{
	(void)state;
	struct linefile *f = NULL;
	assert_true(cgn_ok(linefile_open_bounded(path, 100, 1, &f, NULL)));
	line_write(f, 0);
	line_write(f, 1);
	linefile_add(f, CGN_STR("a line that no longer fits into it\n"));
	linefile_close(&f);
	assert_content(path, "a line that no longer fits into it\n");
	assert_int_equal(size_of(moved), -1);
}

/* The file may not grow beyond a bound of the system, in the middle of the fourth line: the rest is counted, and
 * what comes later begins a line of its own. */
static void a_line_cut_short_is_ended(void **state)
{
	(void)state;
	struct rlimit was, small;
	struct linefile *f = file_of(path);
	(void)signal(SIGXFSZ, SIG_IGN);
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
	small = was;
	small.rlim_cur = 35;
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
	linefile_add(f, CGN_STR("line one..\nline two..\nline 3....\nline 4....\nline 5....\n"));
	for (unsigned i = 0; i < 2000 && linefile_dropped(f) == 0; i++)
		(void)usleep(10000);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
	assert_int_equal(linefile_dropped(f), 2);
	linefile_add(f, CGN_STR("later\n"));
	linefile_close(&f);
	assert_content(path, "line one..\nline two..\nline 3....\nli\nlater\n");
}

/* Numbers the lines that the file took. */
static void line_number(void *user, struct cgn_str line, struct cgn_buf *out)
{
	cgn_buf_fmt(out, "%u %.*s", *(unsigned *)user + 1, CGN_STR_ARG(line));
}

static void line_count(void *user, struct cgn_str sealed)
{
	assert_int_equal(sealed.p[sealed.n - 1], '\n');
	++*(unsigned *)user;
}

static void a_sealed_line_is_whole_or_not_there(void **state)
{
	(void)state;
	unsigned n = 0;
	struct linefile *f = NULL;
	struct rlimit was, small;
	(void)signal(SIGXFSZ, SIG_IGN);
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
	small = was;
	small.rlim_cur = 20;
	assert_true(cgn_ok(linefile_open_sealed(path, 0, 1,
		&(struct linefile_seal){.seal = line_number, .kept = line_count, .user = &n}, &f, NULL)));
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
	linefile_add(f, CGN_STR("one..\ntwo..\nthree\nfour.\n"));
	for (unsigned i = 0; i < 2000 && linefile_dropped(f) == 0; i++)
		(void)usleep(10000);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
	assert_int_equal(linefile_dropped(f), 2);
	assert_content(path, "1 one..\n2 two..\n");
	linefile_add(f, CGN_STR("later\n"));
	linefile_close(&f);
	assert_content(path, "1 one..\n2 two..\n3 later\n");
	assert_int_equal(n, 3);
}

static void a_bound_holds_where_files_cannot_be_moved(void **state)
{
	(void)state;
	struct linefile *f = NULL;
	assert_int_equal(mkdir(moved, 0700), 0); /* No file can take its place. */
	assert_true(cgn_ok(linefile_open_bounded(path, 100, 2, &f, NULL)));
	for (unsigned i = 0; i < 5; i++) {
		linefile_close(&f);
		assert_true(cgn_ok(linefile_open_bounded(path, 20, 2, &f, NULL)));
		linefile_add(f, CGN_STR("012345678901234\n"));
	}
	linefile_close(&f);
	assert_content(path, "012345678901234\n");
	assert_int_equal(rmdir(moved), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(lines_go_to_the_end_of_the_file, folder_make, folder_remove),
		cmocka_unit_test_setup_teardown(a_rotated_file_is_left, folder_make, folder_remove),
		cmocka_unit_test_setup_teardown(no_line_of_many_threads_is_lost_uncounted, folder_make,
			folder_remove),
		cmocka_unit_test_setup_teardown(a_bounded_file_is_rotated, folder_make, folder_remove),
		cmocka_unit_test_setup_teardown(a_single_bounded_file_begins_anew, folder_make,
			folder_remove),
		cmocka_unit_test_setup_teardown(a_line_cut_short_is_ended, folder_make, folder_remove),
		cmocka_unit_test_setup_teardown(a_sealed_line_is_whole_or_not_there, folder_make,
			folder_remove),
		cmocka_unit_test(what_a_full_disk_refuses_is_counted),
		cmocka_unit_test_setup_teardown(a_bound_holds_where_files_cannot_be_moved, folder_make,
			folder_remove),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
