/* SPDX-License-Identifier: Apache-2.0 */
/* A library for LD_PRELOAD: lets calls that write or sync files below $FAIL_DIR fail with EIO while the file
 * $FAIL_SWITCH exists. The file holds how many calls of a hundred fail. With $FAIL_TRUNCATE, ftruncate fails too. With
 * $SLOW_READ_MS, each read at a place of such a file takes so long. While the file $HOLD_SWITCH exists, each sync of such
 * a file or folder waits. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

static int is_below(int fd)
{
	char link[64], path[4096];
	const char *dir = getenv("FAIL_DIR");
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	ssize_t n = readlink(link, path, sizeof path - 1);
	return dir != NULL && n > 0 && (path[n] = '\0', strncmp(path, dir, strlen(dir)) == 0);
}

static int must_fail(int fd)
{
	int kept = errno, percent = 0;
	const char *name = getenv("FAIL_SWITCH");
	FILE *f = name != NULL ? fopen(name, "re") : NULL;
	if (f != NULL) {
		if (fscanf(f, "%d", &percent) != 1)
			percent = 0;
		fclose(f);
	}
	errno = kept;
	if (percent == 0 || rand() % 100 >= percent || !is_below(fd))
		return 0;
	errno = EIO;
	return 1;
}

#define FAILING(type, name, params, args)                                     \
	type name params                                                      \
	{                                                                     \
		type(*real) params = (type(*) params)dlsym(RTLD_NEXT, #name); \
		return must_fail(fd) ? (type) - 1 : real args;                \
	}
FAILING(ssize_t, write, (int fd, const void *p, size_t n), (fd, p, n))
FAILING(ssize_t, pwrite, (int fd, const void *p, size_t n, off_t at), (fd, p, n, at))
FAILING(ssize_t, pwrite64, (int fd, const void *p, size_t n, off64_t at), (fd, p, n, at))
FAILING(ssize_t, pwritev, (int fd, const struct iovec *v, int n, off_t at), (fd, v, n, at))
FAILING(ssize_t, pwritev64, (int fd, const struct iovec *v, int n, off64_t at), (fd, v, n, at))

static void sync_wait(int fd)
{
	const char *hold = getenv("HOLD_SWITCH");
	int kept = errno;
	while (hold != NULL && is_below(fd) && access(hold, F_OK) == 0)
		usleep(10 * 1000);
	errno = kept;
}

int fsync(int fd)
{
	int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
	sync_wait(fd);
	return must_fail(fd) ? -1 : real(fd);
}
FAILING(int, fdatasync, (int fd), (fd))
FAILING(int, fallocate, (int fd, int mode, off_t at, off_t n), (fd, mode, at, n))
FAILING(int, fallocate64, (int fd, int mode, off64_t at, off64_t n), (fd, mode, at, n))

int ftruncate(int fd, off_t n)
{
	int (*real)(int, off_t) = (int (*)(int, off_t))dlsym(RTLD_NEXT, "ftruncate");
	return getenv("FAIL_TRUNCATE") != NULL && must_fail(fd) ? -1 : real(fd, n);
}

static void read_slowly(int fd)
{
	const char *ms = getenv("SLOW_READ_MS");
	int kept = errno;
	if (ms != NULL && is_below(fd))
		usleep((useconds_t)atoi(ms) * 1000);
	errno = kept;
}

#define SLOW(name, params, args)                                                    \
	ssize_t name params                                                         \
	{                                                                           \
		ssize_t(*real) params = (ssize_t(*) params)dlsym(RTLD_NEXT, #name); \
		read_slowly(fd);                                                    \
		return real args;                                                   \
	}
SLOW(pread, (int fd, void *p, size_t n, off_t at), (fd, p, n, at))
SLOW(pread64, (int fd, void *p, size_t n, off64_t at), (fd, p, n, at))
SLOW(preadv, (int fd, const struct iovec *v, int n, off_t at), (fd, v, n, at))
SLOW(preadv64, (int fd, const struct iovec *v, int n, off64_t at), (fd, v, n, at))
