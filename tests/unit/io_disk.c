/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>
#include <dirent.h>
#include <unistd.h>

#include <sys/stat.h>

#include "io/os/disk/disk.h"

static char folder[64];

static int folder_enter(void **state)
{
	(void)state;
	(void)snprintf(folder, sizeof folder, "/tmp/cgn-disk-XXXXXX");
	return mkdtemp(folder) != NULL ? chdir(folder) : -1;
}

static int folder_leave(void **state)
{
	(void)state;
	char cmd[96];
	(void)snprintf(cmd, sizeof cmd, "rm -rf %s", folder);
	return chdir("/") == 0 ? system(cmd) : -1;
}

static unsigned count_entries(const char *path)
{
	unsigned n = 0;
	DIR *d = opendir(path);
	assert_non_null(d);
	while (readdir(d) != NULL)
		n++;
	closedir(d);
	return n - 2;
}

static void what_was_written_is_read(void **state)
{
	(void)state;
	struct cgn_buf b = {0};
	struct stat st;
	umask(077);
	assert_true(cgn_ok(disk_write_file_atomic("f", CGN_STR("one"), 0644, NULL)));
	assert_true(cgn_ok(disk_write_file_atomic("f", CGN_STR("two\0three"), 0640, NULL)));
	assert_int_equal(stat("f", &st), 0);
	assert_int_equal(st.st_mode & 07777, 0640); /* The mode is exact for any umask. */
	cgn_buf_putz(&b, "kept:");
	assert_true(cgn_ok(disk_read_file("f", 100, &b, NULL)));
	assert_true(cgn_str_eq(cgn_buf_view(&b), CGN_STR("kept:two\0three")));
	assert_int_equal(count_entries("."), 1); /* No temporary file is left. */
	cgn_buf_fini(&b);
}

static void limits_are_exact(void **state)
{
	(void)state;
	struct cgn_buf b = {0}, big = {0};
	struct cgn_err err = {0};
	for (size_t i = 0; i < 50000; i++)
		cgn_buf_char(&big, (char)('a' + i % 26));
	assert_true(cgn_ok(disk_write_file_atomic("big", cgn_buf_view(&big), 0600, NULL)));
	assert_true(cgn_ok(disk_read_file("big", 50000, &b, NULL)));
	assert_true(cgn_str_eq(cgn_buf_view(&b), cgn_buf_view(&big)));
	assert_int_equal(disk_read_file("big", 49999, &b, &err).code, CGN_TOO_LARGE);
	assert_non_null(strstr(err.msg, "49999"));
	assert_int_equal(b.n, 50000); /* The old file is unchanged. */
	assert_true(cgn_ok(disk_write_file_atomic("empty", CGN_STR(""), 0600, NULL)));
	assert_true(cgn_ok(disk_read_file("empty", 0, &b, NULL)));
	assert_int_equal(b.n, 50000);
	struct cgn_buf small = {.limit = 10};
	assert_int_equal(disk_read_file("big", 50000, &small, &err).code, CGN_NO_MEMORY);
	cgn_buf_fini(&small);
	cgn_buf_fini(&b);
	cgn_buf_fini(&big);
}

static void failures_name_the_path(void **state)
{
	(void)state;
	struct cgn_buf b = {0};
	struct cgn_err err = {0};
	assert_int_equal(disk_read_file("nothing-here", 10, &b, &err).code, CGN_NOT_FOUND);
	assert_non_null(strstr(err.msg, "nothing-here: No such file"));
	assert_int_equal(disk_read_file(".", 10, &b, &err).code, CGN_INVALID);
	assert_int_equal(disk_write_file_atomic("no/such/folder/f", CGN_STR("x"), 0600, &err).code,
		CGN_NOT_FOUND);
	assert_non_null(strstr(err.msg, "no/such/folder/f"));
	assert_true(cgn_ok(disk_mkdirs("d/sub", 0755, NULL)));
	/* A folder is not replaced. */
	assert_false(cgn_ok(disk_write_file_atomic("d", CGN_STR("x"), 0600, &err)));
	assert_int_equal(count_entries("d"), 1);
	char longest[5000];
	memset(longest, 'x', sizeof longest - 1);
	longest[sizeof longest - 1] = '\0';
	assert_int_equal(disk_write_file_atomic(longest, CGN_STR("x"), 0600, &err).code, CGN_STORAGE);
	assert_false(cgn_ok(disk_read_file(longest, 10, &b, &err)));
	assert_int_equal(disk_mkdirs(longest, 0755, &err).code, CGN_INVALID);
	cgn_buf_fini(&b);
}

static void a_link_is_replaced_not_followed(void **state)
{
	(void)state;
	struct stat st;
	struct cgn_buf b = {0};
	assert_true(cgn_ok(disk_write_file_atomic("target", CGN_STR("precious"), 0600, NULL)));
	assert_int_equal(symlink("target", "link"), 0);
	assert_true(cgn_ok(disk_write_file_atomic("link", CGN_STR("new"), 0600, NULL)));
	assert_int_equal(lstat("link", &st), 0);
	assert_true(S_ISREG(st.st_mode));
	assert_true(cgn_ok(disk_read_file("target", 100, &b, NULL)));
	assert_true(cgn_str_is(cgn_buf_view(&b), "precious"));
	cgn_buf_fini(&b);
}

static void folders_are_made_as_needed(void **state)
{
	(void)state;
	struct cgn_err err = {0};
	char absolute[128];
	assert_true(cgn_ok(disk_mkdirs("a/b/c", 0755, NULL)));
	assert_true(cgn_ok(disk_mkdirs("a/b/c/", 0755, NULL)));
	assert_true(cgn_ok(disk_mkdirs("a//b/../b/d", 0755, NULL)));
	assert_int_equal(count_entries("a/b"), 2);
	(void)snprintf(absolute, sizeof absolute, "%s/abs/x", folder);
	assert_true(cgn_ok(disk_mkdirs(absolute, 0700, NULL)));
	assert_true(cgn_ok(disk_mkdirs("/", 0700, NULL)));
	assert_true(cgn_ok(disk_write_file_atomic("plain", CGN_STR("x"), 0600, NULL)));
	assert_int_equal(disk_mkdirs("plain", 0755, &err).code, CGN_NOT_FOUND);
	assert_int_equal(disk_mkdirs("plain/sub", 0755, &err).code, CGN_NOT_FOUND);
	assert_non_null(strstr(err.msg, "plain"));
	assert_int_equal(disk_mkdirs("", 0755, &err).code, CGN_INVALID);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(what_was_written_is_read, folder_enter, folder_leave),
		cmocka_unit_test_setup_teardown(limits_are_exact, folder_enter, folder_leave),
		cmocka_unit_test_setup_teardown(failures_name_the_path, folder_enter, folder_leave),
		cmocka_unit_test_setup_teardown(a_link_is_replaced_not_followed, folder_enter, folder_leave),
		cmocka_unit_test_setup_teardown(folders_are_made_as_needed, folder_enter, folder_leave),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
