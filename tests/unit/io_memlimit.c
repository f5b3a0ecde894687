/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/core/err.h"
#include "disk_folder.h"
#include "io/os/disk/disk.h"
#include "io/os/memlimit/memlimit.h"

#define MIB ((uint64_t)1 << 20)

static char root[64];

static int root_enter(void **state)
{
	(void)state;
	disk_folder_make(root, "limits");
	return 0;
}

static int root_leave(void **state)
{
	(void)state;
	disk_folder_remove(root);
	return 0;
}

/* Make |folder| and the file |name| in it. */
static void put_file(const char *folder, const char *name, const char *text)
{
	char path[256];
	(void)snprintf(path, sizeof path, "%s%s", root, folder);
	assert_true(cgn_ok(disk_mkdirs(path, 0700, NULL)));
	(void)snprintf(path, sizeof path, "%s%s/%s", root, folder, name);
	assert_true(cgn_ok(disk_write_file_atomic(path, cgn_str_of(text), 0600, NULL)));
}

static void expect_limit(uint64_t bytes, const char *who)
{
	struct memlimit m;
	char path[256] = "";
	memlimit_find(root, &m);
	if (who[0] != '\0')
		(void)snprintf(path, sizeof path, "%s%s", root, who);
	assert_string_equal(m.who, path);
	assert_true(m.bytes == bytes);
	assert_int_equal(m.group, strstr(who, "cgroup") != NULL);
}

static void no_limit_is_found(void **state)
{
	(void)state;
	expect_limit(UINT64_MAX, "");
	put_file("/proc", "meminfo", "MemFree: 1 kB\nnonsense\nMemTotal:\nMemTotal: many kB\n");
	put_file("/proc/self", "cgroup", "\n::\nx\n4:memory\n0::/\n");
	expect_limit(UINT64_MAX, "");
}

static void what_the_machine_has(void **state)
{
	(void)state;
	put_file("/proc", "meminfo", "MemTotal:       16384000 kB\nMemFree:          200000 kB\n");
	expect_limit((uint64_t)16384000 * 1024, "/proc/meminfo");
}

static void the_group_of_version_2(void **state)
{
	(void)state;
	put_file("/proc", "meminfo", "MemTotal:       16384000 kB\n");
	put_file("/proc/self", "cgroup", "0::/system.slice/store.service\n");
	put_file("/sys/fs/cgroup/system.slice/store.service", "memory.max", "max\n");
	expect_limit((uint64_t)16384000 * 1024, "/proc/meminfo");
	put_file("/sys/fs/cgroup/system.slice/store.service", "memory.max", "1073741824\n");
	expect_limit(1024 * MIB, "/sys/fs/cgroup/system.slice/store.service/memory.max");
	/* The parent's limit is lower. */
	put_file("/sys/fs/cgroup/system.slice", "memory.max", "536870912\n");
	expect_limit(512 * MIB, "/sys/fs/cgroup/system.slice/memory.max");
}

static void the_group_of_version_1(void **state)
{
	(void)state;
	put_file("/proc/self", "cgroup", "9:name=systemd:/\n4:cpu,memory:/a/b\n0::/\n");
	put_file("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "9223372036854771712\n");
	put_file("/sys/fs/cgroup/memory/a/b", "memory.limit_in_bytes", "268435456\n");
	expect_limit(256 * MIB, "/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes");
}

/* The path is the host's; the mounted files are the container's. */
static void inside_a_container(void **state)
{
	(void)state;
	put_file("/proc/self", "cgroup", "4:memory:/docker/0123456789abcdef\n0::/\n");
	put_file("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "134217728\n");
	expect_limit(128 * MIB, "/sys/fs/cgroup/memory/memory.limit_in_bytes");
}

static void a_path_longer_than_any(void **state)
{
	char text[2048] = "0::/";
	(void)state;
	memset(text + 4, 'x', 1500);
	text[1504] = '\0';
	put_file("/proc/self", "cgroup", text);
	put_file("/sys/fs/cgroup", "memory.max", "134217728\n");
	expect_limit(128 * MIB, "/sys/fs/cgroup/memory.max");
}

static void kills_for_memory_are_counted(void **state)
{
	(void)state;
	assert_true(memlimit_oom_kills(root) == 0);
	put_file("/proc", "vmstat", "nr_free_pages 1\noom_kill 41\nnuma_hit 7\n");
	assert_true(memlimit_oom_kills(root) == 41);
	put_file("/proc/self", "cgroup", "0::/\n"); /* The root group counts none. */
	assert_true(memlimit_oom_kills(root) == 41);
	put_file("/proc/self", "cgroup", "0::/agent.service\n");
	assert_true(memlimit_oom_kills(root) == 41);
	put_file("/sys/fs/cgroup/agent.service", "memory.events", "low 0\nmax 9\noom 3\noom_kill 2\n");
	assert_true(memlimit_oom_kills(root) == 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(no_limit_is_found, root_enter, root_leave),
		cmocka_unit_test_setup_teardown(what_the_machine_has, root_enter, root_leave),
		cmocka_unit_test_setup_teardown(the_group_of_version_2, root_enter, root_leave),
		cmocka_unit_test_setup_teardown(the_group_of_version_1, root_enter, root_leave),
		cmocka_unit_test_setup_teardown(inside_a_container, root_enter, root_leave),
		cmocka_unit_test_setup_teardown(a_path_longer_than_any, root_enter, root_leave),
		cmocka_unit_test_setup_teardown(kills_for_memory_are_counted, root_enter, root_leave),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
