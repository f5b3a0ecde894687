/* SPDX-License-Identifier: Apache-2.0 */
#include "io/os/memlimit/memlimit.h"

#include <stdio.h>
#include <string.h>

#include "base/core/buf.h"
#include "base/core/str.h"
#include "io/os/disk/disk.h"

#define FILE_BYTES 65536

static void at_most(struct memlimit *out, uint64_t bytes, bool group, const char *who)
{
	if (bytes >= out->bytes)
		return;
	out->bytes = bytes;
	out->group = group;
	(void)snprintf(out->who, sizeof out->who, "%s", who);
}

static bool read_file(const char *path, struct cgn_buf *out)
{
	return cgn_ok(disk_read_file(path, FILE_BYTES, out, NULL));
}

static void machine_limit(const char *root, struct memlimit *out)
{
	char path[MEMLIMIT_WHO_BYTES];
	struct cgn_buf file = {0};
	uint64_t kib = 0;
	(void)snprintf(path, sizeof path, "%s/proc/meminfo", root);
	if (!read_file(path, &file)) {
		cgn_buf_fini(&file);
		return;
	}
	for (struct cgn_str rest = cgn_buf_view(&file); rest.n > 0;) {
		struct cgn_str line = cgn_str_split(&rest, '\n');
		if (!cgn_str_starts(line, "MemTotal:"))
			continue;
		(void)cgn_str_split(&line, ':');
		line = cgn_str_trim(line);
		if (cgn_str_u64(cgn_str_split(&line, ' '), &kib) && kib < UINT64_MAX / 1024)
			at_most(out, kib * 1024, false, path);
	}
	cgn_buf_fini(&file);
}

/* The file holds a number or the word "max". */
static void group_file(const char *path, struct memlimit *out)
{
	struct cgn_buf file = {0};
	uint64_t bytes = 0;
	if (read_file(path, &file)) {
		struct cgn_str rest = cgn_buf_view(&file);
		if (cgn_str_u64(cgn_str_split(&rest, '\n'), &bytes))
			at_most(out, bytes, true, path);
	}
	cgn_buf_fini(&file);
}

/* Apply the limits of the process' group and of the groups above it. In a container that sees only a part of
 * the tree, the path may begin above the mount; the mount's own files are read in any case. */
static void group_limits(const char *root, const char *mount, struct cgn_str group, const char *name,
	struct memlimit *out)
{
	char path[MEMLIMIT_WHO_BYTES];
	for (;;) {
		while (group.n > 0 && group.p[group.n - 1] == '/')
			group.n--;
		int n = snprintf(path, sizeof path, "%s%s%.*s/%s", root, mount, (int)group.n, group.p, name);
		if (n > 0 && (size_t)n < sizeof path)
			group_file(path, out);
		if (group.n == 0)
			return;
		while (group.n > 0 && group.p[group.n - 1] != '/')
			group.n--;
	}
}

static bool has_memory(struct cgn_str controllers)
{
	while (controllers.n > 0)
		if (cgn_str_is(cgn_str_split(&controllers, ','), "memory"))
			return true;
	return false;
}

void memlimit_find(const char *root, struct memlimit *out)
{
	char path[MEMLIMIT_WHO_BYTES];
	struct cgn_buf file = {0};
	*out = (struct memlimit){.bytes = UINT64_MAX};
	machine_limit(root, out);
	(void)snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
	if (read_file(path, &file)) {
		/* Each line is ID:CONTROLLERS:PATH; an empty CONTROLLERS means version 2. */
		for (struct cgn_str rest = cgn_buf_view(&file); rest.n > 0;) {
			struct cgn_str line = cgn_str_split(&rest, '\n'), id = cgn_str_split(&line, ':'),
				       controllers = cgn_str_split(&line, ':');
			if (id.n > 0 && has_memory(controllers))
				group_limits(root, "/sys/fs/cgroup/memory", line, "memory.limit_in_bytes",
					out);
			else if (id.n > 0 && controllers.n == 0)
				group_limits(root, "/sys/fs/cgroup", line, "memory.max", out);
		}
	}
	cgn_buf_fini(&file);
}

/* ---- processes that the kernel killed ---- */

/* Read the number after "oom_kill " at the beginning of a line. */
static bool kills_read(const char *path, uint64_t *out)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf file = {0};
	if (!read_file(path, &file))
		return false;
	for (struct cgn_str rest = cgn_buf_view(&file); rest.n > 0;) {
		struct cgn_str line = cgn_str_split(&rest, '\n');
		if (cgn_str_starts(line, "oom_kill "))
			return cgn_str_u64((struct cgn_str){line.p + 9, line.n - 9}, out);
	}
	return false;
}

uint64_t memlimit_oom_kills(const char *root)
{
	char path[MEMLIMIT_WHO_BYTES];
	uint64_t n = 0;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf file = {0};
	(void)snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
	if (read_file(path, &file))
		for (struct cgn_str rest = cgn_buf_view(&file); rest.n > 0;) {
			struct cgn_str line = cgn_str_split(&rest, '\n');
			if (!cgn_str_starts(line, "0::/") || line.n <= 4)
				continue;
			int w = snprintf(path, sizeof path, "%s/sys/fs/cgroup%.*s/memory.events", root,
				(int)line.n - 3, line.p + 3);
			if (w > 0 && (size_t)w < sizeof path && kills_read(path, &n))
				return n;
		}
	(void)snprintf(path, sizeof path, "%s/proc/vmstat", root);
	return kills_read(path, &n) ? n : 0;
}
