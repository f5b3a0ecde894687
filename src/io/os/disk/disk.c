/* SPDX-License-Identifier: Apache-2.0 */
#include "io/os/disk/disk.h"
#include "base/unlikely/unlikely.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

#include <sys/file.h>
#include <sys/stat.h>

static void close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
}

static CGN_RC fail_errno(struct cgn_err *err, const char *doing, const char *path, int e)
{
	enum cgn_code code = cgn_code_from_errno(e);
	if (e == ENOTDIR)
		code = CGN_NOT_FOUND;
	if (code == CGN_UNAVAILABLE || code == CGN_CONFLICT)
		code = CGN_STORAGE;
	(void)CGN_FAIL_AS(err, code, "cannot %s %s: %s", doing, path, strerror(e));
	if (err != NULL)
		err->sys_errno = e;
	return CGN_RC_OF(code);
}

static CGN_RC read_all(int fd, const char *path, size_t limit, struct cgn_buf *out, struct cgn_err *err)
{
	size_t had = out->n;
	for (;;) {
		size_t room = limit - (out->n - had);
		/* Reading one byte more than allowed detects a longer file. */
		room = room < 16384 ? room + 1 : 16384;
		room = unlikely_way(UNLIKELY_file_read_small) ? 1 : room;
		char *to = cgn_buf_room(out, room);
		if (to == NULL)
			return CGN_FAIL(err, NO_MEMORY, "cannot read %s: no memory", path);
		ssize_t n = read(fd, to, room);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return fail_errno(err, "read", path, errno);
		if (n == 0)
			return CGN_OK;
		cgn_buf_grew(out, (size_t)n);
		if (out->n - had > limit)
			return CGN_FAIL(err, TOO_LARGE, "cannot read %s: it is longer than %zu bytes", path,
				limit);
	}
}

CGN_RC disk_read_file(const char *path, size_t limit, struct cgn_buf *out, struct cgn_err *err)
{
	CGN_ON_EXIT(close_fd) int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct stat st;
	if (fd < 0 || fstat(fd, &st) != 0)
		return fail_errno(err, "read", path, errno);
	if (S_ISDIR(st.st_mode))
		return CGN_FAIL(err, INVALID, "cannot read %s: it is a folder", path);
	size_t had = out->n;
	cgn_rc rc = read_all(fd, path, limit, out, err);
	if (!cgn_ok(rc))
		out->n = had;
	return rc;
}

static int write_all(int fd, struct cgn_str s)
{
	while (s.n > 0) {
		ssize_t n = write(fd, s.p, unlikely_way(UNLIKELY_file_write_small) ? 1 : s.n);
		if (n < 0 && errno != EINTR)
			return errno;
		if (n > 0) {
			s.p += n;
			s.n -= (size_t)n;
		}
	}
	return 0;
}

/* Return 0 or errno. After success the file is complete and on the medium. */
static int file_fill(int fd, struct cgn_str bytes, mode_t mode)
{
	/* mkostemp made it 0600, so that it is never readable more widely than asked while it is written. */
	if (fchmod(fd, mode) != 0)
		return errno;
	int e = write_all(fd, bytes);
	if (e == 0 && fsync(fd) != 0)
		e = errno;
	return e;
}

/* Make the rename itself survive a power cut. */
static int sync_folder_of(const char *path)
{
	char folder[PATH_MAX];
	const char *slash = strrchr(path, '/');
	struct cgn_str name = slash == NULL
		? CGN_STR(".")
		: (struct cgn_str){path, slash == path ? 1 : (size_t)(slash - path)};
	if (!cgn_str_copyz(folder, sizeof folder, name))
		return ENAMETOOLONG;
	CGN_ON_EXIT(close_fd) int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return errno;
	/* EINVAL: the file system does not support fsync of a folder. */
	return fsync(fd) == 0 || errno == EINVAL ? 0 : errno;
}

CGN_RC disk_write_file_atomic(const char *path, struct cgn_str bytes, mode_t mode, struct cgn_err *err)
{
	char temp[PATH_MAX];
	if ((size_t)snprintf(temp, sizeof temp, "%s.XXXXXX", path) >= sizeof temp)
		return fail_errno(err, "write", path, ENAMETOOLONG);
	CGN_ON_EXIT(close_fd) int fd = mkostemp(temp, O_CLOEXEC);
	if (fd < 0)
		return fail_errno(err, "write", path, errno);
	int e = file_fill(fd, bytes, mode);
	if (e == 0 && rename(temp, path) != 0)
		e = errno;
	if (e != 0) {
		(void)unlink(temp);
		return fail_errno(err, "write", path, e);
	}
	e = sync_folder_of(path);
	return e == 0 ? CGN_OK : fail_errno(err, "sync the folder of", path, e);
}

CGN_RC disk_remove_file(const char *path, struct cgn_err *err)
{
	if (unlink(path) != 0)
		return errno == ENOENT ? CGN_OK : fail_errno(err, "remove", path, errno);
	int e = sync_folder_of(path);
	return e == 0 ? CGN_OK : fail_errno(err, "sync the folder of", path, e);
}

/* Note the process in the file, for messages of others. */
static void pid_write(int fd)
{
	char text[24];
	int n = snprintf(text, sizeof text, "%ld\n", (long)getpid());
	if (ftruncate(fd, 0) == 0)
		(void)!pwrite(fd, text, (size_t)n, 0);
}

static long pid_read(int fd)
{
	char text[24] = "";
	ssize_t n = pread(fd, text, sizeof text - 1, 0);
	return n > 0 ? strtol(text, NULL, 10) : 0;
}

CGN_RC disk_lock_file(const char *path, int *out, struct cgn_err *err)
{
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOCTTY, 0640);
	if (fd < 0)
		return fail_errno(err, "lock", path, errno);
	if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
		pid_write(fd);
		*out = fd;
		return CGN_OK;
	}
	cgn_rc rc = errno == EWOULDBLOCK
		? CGN_FAIL(err, CONFLICT, "%s is locked by process %ld", path, pid_read(fd))
		: CGN_FAIL(err, UNSUPPORTED, "cannot lock %s: %s", path, strerror(errno));
	(void)close(fd);
	return rc;
}

static CGN_RC make_one(const char *path, mode_t mode, struct cgn_err *err)
{
	struct stat st;
	if (mkdir(path, mode) == 0)
		return CGN_OK;
	int e = errno;
	/* Checked for EACCES and EROFS too: a folder that exists needs no permission to be made. */
	if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
		return CGN_OK;
	return fail_errno(err, "make folder", path, e == EEXIST ? ENOTDIR : e);
}

CGN_RC disk_mkdirs(const char *path, mode_t mode, struct cgn_err *err)
{
	char part[PATH_MAX];
	if (path[0] == '\0' || !cgn_str_copyz(part, sizeof part, cgn_str_of(path)))
		return CGN_FAIL(err, INVALID, "cannot make folder \"%.200s\": the path is empty or too long",
			path);
	for (char *slash = strchr(part + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		CGN_TRY(make_one(part, mode, err));
		*slash = '/';
	}
	return make_one(part, mode, err);
}
