/* SPDX-License-Identifier: Apache-2.0 */
/* sysfile: the C library's calls about files. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sys/file.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <sys/vfs.h>

#include "call_priv.h"
#include "file_priv.h"
#include "sock_priv.h"

static struct world_host *host_here(void)
{
	return this_proc()->host;
}

/* ---- opening ---- */

/* Return the path of |name| in the folder that is open as |dir|. Valid until the next call. */
static const char *path_at(int dir, const char *name)
{
	static char path[4096];
	if (name[0] == '/' || dir == AT_FDCWD)
		return name;
	struct object *o = proc_fd(dir);
	if (o == NULL || o->kind != OBJECT_FILE)
		return NULL;
	(void)snprintf(path, sizeof path, "%s/%s", o->file.path, name);
	return path;
}

static int node_open(struct vnode *n, const char *path, int flags)
{
	if (n->kind == VNODE_FILE && (flags & O_ACCMODE) != O_RDONLY && disk_change(host_here()) != 0)
		return result_of(EROFS);
	if (proc_lacks_file())
		return -1;
	struct object *o = object_new(OBJECT_FILE, flags & (O_ACCMODE | O_APPEND | O_NONBLOCK));
	o->file.node = n;
	o->file.path = cgn_str_dupz(cgn_str_of(path));
	n->opens++;
	if (flags & O_TRUNC && n->kind == VNODE_FILE)
		(void)file_resize(host_here(), n, 0);
	return proc_fd_new(o, 0);
}

/* Open the memory that is open as |fd| once more. */
static int memory_open(int fd, int flags)
{
	extern int __real_fcntl64(int real, int command, ...);
	const struct object *o = proc_fd(fd);
	if (o == NULL || o->kind != OBJECT_REAL)
		return result_of(ENOENT);
	struct object *copy = object_new(OBJECT_REAL, flags & O_ACCMODE);
	copy->real = __real_fcntl64(o->real, F_DUPFD_CLOEXEC, 3);
	return proc_fd_new(copy, 0);
}

static int file_open(const char *path, int flags, mode_t mode)
{
	const char *last;
	if (path == NULL)
		return -1;
	if (strcmp(path, "/dev/null") == 0)
		return proc_fd_new(object_new(OBJECT_NULL, flags), 0);
	if (strncmp(path, "/proc/self/fd/", 14) == 0)
		return memory_open(atoi(path + 14), flags);
	struct vnode *n = vnode_find(host_here(), path);
	if (n == NULL && (errno != ENOENT || !(flags & O_CREAT)))
		return -1;
	if (n != NULL && flags & O_CREAT && flags & O_EXCL)
		return result_of(EEXIST);
	if (n != NULL && n->kind != VNODE_FOLDER && flags & O_DIRECTORY)
		return result_of(ENOTDIR);
	if (n != NULL && n->kind == VNODE_FOLDER && (flags & O_ACCMODE) != O_RDONLY)
		return result_of(EISDIR);
	if (n == NULL) {
		struct vnode *folder = file_folder(host_here(), path, &last);
		if (folder == NULL || result_of(disk_change(host_here())) != 0)
			return -1;
		n = file_make(host_here(), folder, last, VNODE_FILE, mode & ~this_proc()->umask);
	}
	return node_open(n, path, flags);
}

static mode_t mode_of(int flags, va_list ap)
{
	return flags & O_CREAT ? va_arg(ap, mode_t) : 0;
}

extern int __real_open64(const char *path, int flags, ...);
int __wrap_open64(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_openat64(int dir, const char *path, int flags, ...);
int __wrap_open64(const char *path, int flags, ...)
{
	va_list ap;
	va_start(ap, flags);
	mode_t mode = mode_of(flags, ap);
	va_end(ap);
	return is_simulated() ? file_open(path, flags, mode) : __real_open64(path, flags, mode);
}

int __wrap_open(const char *path, int flags, ...)
{
	va_list ap;
	va_start(ap, flags);
	mode_t mode = mode_of(flags, ap);
	va_end(ap);
	return is_simulated() ? file_open(path, flags, mode) : __real_open64(path, flags, mode);
}

int __wrap_openat64(int dir, const char *path, int flags, ...)
{
	va_list ap;
	va_start(ap, flags);
	mode_t mode = mode_of(flags, ap);
	va_end(ap);
	return file_open(path_at(dir, path), flags, mode);
}

CALL(int, __open64_2, const char *path, int flags)
{
	SIMULATED_OR(__real___open64_2(path, flags));
	return file_open(path, flags, 0);
}

extern FILE *__real_fopen64(const char *path, const char *mode);
FILE *__wrap_fopen64(const char *path, const char *mode);
FILE *__wrap_fopen(const char *path, const char *mode);
/* Only reading is simulated. */
FILE *__wrap_fopen64(const char *path, const char *mode)
{
	SIMULATED_OR(__real_fopen64(path, mode));
	struct vnode *n = vnode_find(host_here(), path);
	if (n == NULL || n->kind != VNODE_FILE || mode[0] != 'r') {
		errno = n == NULL ? ENOENT : EACCES;
		return NULL;
	}
	return n->n > 0 ? fmemopen(n->p, n->n, "r") : NULL;
}

FILE *__wrap_fopen(const char *path, const char *mode)
{
	return __wrap_fopen64(path, mode);
}

/* A stream over a simulated descriptor. */
static ssize_t stream_read(void *cookie, char *p, size_t n)
{
	extern ssize_t __wrap_read(int fd, void *to, size_t room);
	return __wrap_read((int)(intptr_t)cookie, p, n);
}

static ssize_t stream_write(void *cookie, const char *p, size_t n)
{
	extern ssize_t __wrap_write(int fd, const void *from, size_t bytes);
	ssize_t done = __wrap_write((int)(intptr_t)cookie, p, n);
	return done < 0 ? 0 : done;
}

static int stream_seek(void *cookie, off64_t *at, int whence)
{
	extern off64_t __wrap_lseek64(int fd, off64_t to, int from);
	off64_t now = __wrap_lseek64((int)(intptr_t)cookie, *at, whence);
	*at = now;
	return now < 0 ? -1 : 0;
}

static int stream_close(void *cookie)
{
	return proc_close((int)(intptr_t)cookie);
}

CALL(FILE *, fdopen, int fd, const char *mode)
{
	SIMULATED_OR(__real_fdopen(fd, mode));
	const cookie_io_functions_t io = {stream_read, stream_write, stream_seek, stream_close};
	return proc_fd(fd) != NULL ? fopencookie((void *)(intptr_t)fd, mode, io) : NULL;
}

static int file_temporary(char *template)
{
	size_t n = strlen(template);
	for (int try = 0; try < 100; try++) {
		for (size_t i = n - 6; i < n; i++)
			template[i] = (char)('a' + world_draw(26));
		int fd = file_open(template, O_RDWR | O_CREAT | O_EXCL, 0600);
		if (fd >= 0 || errno != EEXIST)
			return fd;
	}
	return -1;
}

CALL(int, mkstemp64, char *template)
{
	SIMULATED_OR(__real_mkstemp64(template));
	return file_temporary(template);
}

CALL(int, mkostemp64, char *template, int flags)
{
	SIMULATED_OR(__real_mkostemp64(template, flags));
	return file_temporary(template);
}

/* ---- reading and writing ---- */

/* Return the open file; NULL with errno. */
static struct object *file_object(int fd)
{
	struct object *o = proc_fd(fd);
	if (o == NULL)
		return NULL;
	if (o->kind != OBJECT_FILE || o->file.node->kind != VNODE_FILE) {
		errno = o->kind == OBJECT_FILE ? EISDIR : EINVAL;
		return NULL;
	}
	return o;
}

static ssize_t output_write(const void *p, size_t n)
{
	struct world_proc *w = this_proc();
	if (w->log.n + n > w->log.cap) {
		w->log.cap = 2 * (w->log.n + n);
		w->log.p = CGN_GROWN(w->log.p, w->log.cap);
	}
	cgn_buf_add(&w->log, p, n);
	uint64_t h = 0;
	for (size_t i = 0; i < n; i++)
		h = (h ^ ((const uint8_t *)p)[i]) * UINT64_C(0x100000001b3);
	world_note("log", w->pid, h);
	if (world_logs)
		world_tell("  %s: %.*s", w->name,
			(int)(n > 0 && ((const char *)p)[n - 1] == '\n' ? n - 1 : n), (const char *)p);
	return (ssize_t)n;
}

extern ssize_t __real_write(int fd, const void *p, size_t n);
extern ssize_t __real_send(int fd, const void *p, size_t n, int flags);
extern ssize_t __wrap_send(int fd, const void *p, size_t n, int flags);
extern ssize_t __wrap_recv(int fd, void *p, size_t n, int flags);
ssize_t __wrap_write(int fd, const void *p, size_t n);
ssize_t __wrap_write(int fd, const void *p, size_t n)
{
	SIMULATED_OR(__real_write(fd, p, n));
	struct object *o = proc_fd(fd);
	if (o == NULL)
		return -1;
	switch (o->kind) {
	case OBJECT_OUTPUT:
		return output_write(p, n);
	case OBJECT_NULL:
		return (ssize_t)n;
	case OBJECT_SOCKET:
		return __wrap_send(fd, p, n, 0);
	case OBJECT_REAL:
		return __real_write(o->real, p, n);
	case OBJECT_FILE:
		break;
	}
	if (file_object(fd) == NULL)
		return -1;
	uint64_t at = o->flags & O_APPEND ? o->file.node->n : o->file.offset;
	ssize_t done = file_write(host_here(), o->file.node, p, n, at);
	if (done > 0)
		o->file.offset = at + (uint64_t)done;
	return done;
}

CALL(ssize_t, read, int fd, void *p, size_t n)
{
	SIMULATED_OR(__real_read(fd, p, n));
	struct object *o = proc_fd(fd);
	if (o == NULL)
		return -1;
	if (o->kind == OBJECT_SOCKET)
		return __wrap_recv(fd, p, n, 0);
	if (o->kind == OBJECT_REAL)
		return __real_read(o->real, p, n);
	if (o->kind != OBJECT_FILE)
		return 0;
	if (file_object(fd) == NULL)
		return -1;
	if (result_of(disk_read(host_here())) != 0)
		return -1;
	ssize_t got = file_read(o->file.node, p, n, o->file.offset);
	if (got > 0)
		o->file.offset += (uint64_t)got;
	return got;
}

CALL(ssize_t, pread64, int fd, void *p, size_t n, off64_t at)
{
	SIMULATED_OR(__real_pread64(fd, p, n, at));
	struct object *o = proc_fd(fd);
	if (o != NULL && o->kind == OBJECT_REAL)
		return __real_pread64(o->real, p, n, at);
	o = file_object(fd);
	if (o == NULL || result_of(disk_read(host_here())) != 0)
		return -1;
	return file_read(o->file.node, p, n, (uint64_t)at);
}

CALL(ssize_t, pwrite64, int fd, const void *p, size_t n, off64_t at)
{
	SIMULATED_OR(__real_pwrite64(fd, p, n, at));
	struct object *o = proc_fd(fd);
	if (o != NULL && o->kind == OBJECT_REAL)
		return __real_pwrite64(o->real, p, n, at);
	o = file_object(fd);
	return o != NULL ? file_write(host_here(), o->file.node, p, n, (uint64_t)at) : -1;
}

ssize_t __wrap_pread(int fd, void *p, size_t n, off_t at);
ssize_t __wrap_pread(int fd, void *p, size_t n, off_t at)
{
	return __wrap_pread64(fd, p, n, at);
}

ssize_t __wrap___pread64_chk(int fd, void *p, size_t n, off64_t at, size_t room);
ssize_t __wrap___pread64_chk(int fd, void *p, size_t n, off64_t at, size_t room)
{
	return __wrap_pread64(fd, p, n < room ? n : room, at);
}

ssize_t __wrap_pwrite(int fd, const void *p, size_t n, off_t at);
ssize_t __wrap_pwrite(int fd, const void *p, size_t n, off_t at)
{
	return __wrap_pwrite64(fd, p, n, at);
}

/* Do |one| for each part until one is short. */
#define EACH_PART(one)                            \
	ssize_t all = 0;                          \
	for (int i = 0; i < parts; i++) {         \
		ssize_t n = one;                  \
		if (n < 0)                        \
			return all > 0 ? all : n; \
		all += n;                         \
		if ((size_t)n < v[i].iov_len)     \
			break;                    \
	}                                         \
	return all

ssize_t __wrap_readv(int fd, const struct iovec *v, int parts);
ssize_t __wrap_readv(int fd, const struct iovec *v, int parts)
{
	EACH_PART(__wrap_read(fd, v[i].iov_base, v[i].iov_len));
}

ssize_t __wrap_writev(int fd, const struct iovec *v, int parts);
ssize_t __wrap_writev(int fd, const struct iovec *v, int parts)
{
	EACH_PART(__wrap_write(fd, v[i].iov_base, v[i].iov_len));
}

ssize_t __wrap_preadv64(int fd, const struct iovec *v, int parts, off64_t at);
ssize_t __wrap_preadv64(int fd, const struct iovec *v, int parts, off64_t at)
{
	EACH_PART(__wrap_pread64(fd, v[i].iov_base, v[i].iov_len, at + all));
}

ssize_t __wrap_pwritev64(int fd, const struct iovec *v, int parts, off64_t at);
ssize_t __wrap_pwritev64(int fd, const struct iovec *v, int parts, off64_t at)
{
	EACH_PART(__wrap_pwrite64(fd, v[i].iov_base, v[i].iov_len, at + all));
}

CALL(off64_t, lseek64, int fd, off64_t at, int whence)
{
	SIMULATED_OR(__real_lseek64(fd, at, whence));
	struct object *o = file_object(fd);
	if (o == NULL)
		return -1;
	uint64_t from = whence == SEEK_SET ? 0 : whence == SEEK_CUR ? o->file.offset : o->file.node->n;
	o->file.offset = from + (uint64_t)at;
	return (off64_t)o->file.offset;
}

off_t __wrap_lseek(int fd, off_t at, int whence);
off_t __wrap_lseek(int fd, off_t at, int whence)
{
	return __wrap_lseek64(fd, at, whence);
}

CALL(int, ftruncate64, int fd, off64_t size)
{
	SIMULATED_OR(__real_ftruncate64(fd, size));
	struct object *o = proc_fd(fd);
	if (o != NULL && o->kind == OBJECT_REAL)
		return __real_ftruncate64(o->real, size);
	o = file_object(fd);
	return o != NULL ? result_of(file_resize(host_here(), o->file.node, (size_t)size)) : -1;
}

int __wrap_ftruncate(int fd, off_t size);
int __wrap_ftruncate(int fd, off_t size)
{
	return __wrap_ftruncate64(fd, size);
}

CALL(int, fallocate64, int fd, int mode, off64_t at, off64_t n)
{
	SIMULATED_OR(__real_fallocate64(fd, mode, at, n));
	struct object *o = file_object(fd);
	if (o == NULL)
		return -1;
	struct vnode *f = o->file.node;
	if (mode != 0 || (size_t)(at + n) <= f->n)
		return 0;
	return result_of(file_resize(host_here(), f, (size_t)(at + n)));
}

int __wrap_fallocate(int fd, int mode, off_t at, off_t n);
int __wrap_fallocate(int fd, int mode, off_t at, off_t n)
{
	return __wrap_fallocate64(fd, mode, at, n);
}

int __wrap_posix_fallocate(int fd, off_t at, off_t n);
int __wrap_posix_fallocate(int fd, off_t at, off_t n)
{
	return __wrap_fallocate64(fd, 0, at, n) == 0 ? 0 : errno;
}

int __wrap_posix_fadvise64(int fd, off64_t at, off64_t n, int advice);
int __wrap_posix_fadvise64(int fd, off64_t at, off64_t n, int advice)
{
	return 0;
}

int __wrap_posix_fadvise(int fd, off_t at, off_t n, int advice);
int __wrap_posix_fadvise(int fd, off_t at, off_t n, int advice)
{
	return 0;
}

CALL(int, fsync, int fd)
{
	SIMULATED_OR(__real_fsync(fd));
	struct object *o = proc_fd(fd);
	if (o == NULL)
		return -1;
	return o->kind == OBJECT_FILE ? result_of(disk_sync(host_here(), o->file.node)) : 0;
}

int __wrap_fdatasync(int fd);
int __wrap_fdatasync(int fd)
{
	return __wrap_fsync(fd);
}

CALL(int, sync_file_range, int fd, off64_t at, off64_t n, unsigned flags)
{
	SIMULATED_OR(__real_sync_file_range(fd, at, n, flags));
	return proc_fd(fd) != NULL ? 0 : -1; /* The call promises nothing */
}

CALL(ssize_t, readahead, int fd, off64_t at, size_t n)
{
	SIMULATED_OR(__real_readahead(fd, at, n));
	return 0;
}

CALL(int, flock, int fd, int what)
{
	SIMULATED_OR(__real_flock(fd, what));
	struct object *o = proc_fd(fd);
	if (o == NULL || o->kind != OBJECT_FILE)
		return -1;
	if (what & LOCK_UN) {
		file_unlock(o);
		return 0;
	}
	while (o->file.node->lock != NULL && o->file.node->lock != o) {
		if (what & LOCK_NB)
			return result_of(EWOULDBLOCK);
		world_sleep(WORLD_MS);
	}
	o->file.node->lock = o;
	return 0;
}

/* ---- names and attributes ---- */

static void stat_of(const struct vnode *n, struct stat64 *out)
{
	static const mode_t kinds[] =
		{[VNODE_FOLDER] = S_IFDIR, [VNODE_FILE] = S_IFREG, [VNODE_SOCKET] = S_IFSOCK};
	struct timespec changed = {.tv_sec = (time_t)(n->changed / WORLD_SEC),
		.tv_nsec = (long)(n->changed % WORLD_SEC)};
	*out = (struct stat64){.st_dev = 1,
		.st_ino = n->inode,
		.st_mode = kinds[n->kind] | n->mode,
		.st_nlink = n->links,
		.st_uid = 1000,
		.st_gid = 1000,
		.st_size = (off64_t)n->n,
		.st_blksize = 4096,
		.st_blocks = (blkcnt64_t)((n->n + 511) / 512),
		.st_mtim = changed,
		.st_ctim = changed,
		.st_atim = changed};
}

static int path_stat(const char *path, struct stat64 *out)
{
	struct vnode *n = path != NULL ? vnode_find(host_here(), path) : NULL;
	if (n == NULL)
		return -1;
	stat_of(n, out);
	return 0;
}

CALL(int, stat64, const char *path, struct stat64 *out)
{
	SIMULATED_OR(__real_stat64(path, out));
	return path_stat(path, out);
}

CALL(int, lstat64, const char *path, struct stat64 *out)
{
	SIMULATED_OR(__real_lstat64(path, out));
	return path_stat(path, out);
}

int __wrap_stat(const char *path, struct stat *out);
int __wrap_stat(const char *path, struct stat *out)
{
	return __wrap_stat64(path, (struct stat64 *)(void *)out); /* The same layout on 64-bit machines */
}

CALL(int, fstat64, int fd, struct stat64 *out)
{
	SIMULATED_OR(__real_fstat64(fd, out));
	struct object *o = proc_fd(fd);
	if (o == NULL)
		return -1;
	if (o->kind == OBJECT_REAL)
		return __real_fstat64(o->real, out);
	if (o->kind == OBJECT_FILE)
		stat_of(o->file.node, out);
	else
		*out = (struct stat64){.st_mode = (o->kind == OBJECT_SOCKET ? S_IFSOCK : S_IFCHR) | 0600};
	return 0;
}

int __wrap_fstat(int fd, struct stat *out);
int __wrap_fstat(int fd, struct stat *out)
{
	return __wrap_fstat64(fd, (struct stat64 *)(void *)out);
}

CALL(int, fstatat64, int dir, const char *path, struct stat64 *out, int flags)
{
	SIMULATED_OR(__real_fstatat64(dir, path, out, flags));
	return path[0] == '\0' ? __wrap_fstat64(dir, out) : path_stat(path_at(dir, path), out);
}

CALL(int, access, const char *path, int mode)
{
	SIMULATED_OR(__real_access(path, mode));
	if (vnode_find(host_here(), path) == NULL)
		return -1;
	return mode & W_OK ? result_of(disk_change(host_here())) : 0;
}

CALL(int, mkdir, const char *path, mode_t mode)
{
	SIMULATED_OR(__real_mkdir(path, mode));
	const char *last;
	if (vnode_find(host_here(), path) != NULL)
		return result_of(EEXIST);
	struct vnode *folder = file_folder(host_here(), path, &last);
	if (folder == NULL || result_of(disk_change(host_here())) != 0)
		return -1;
	(void)file_make(host_here(), folder, last, VNODE_FOLDER, mode & ~this_proc()->umask);
	return 0;
}

static int node_remove(const char *path, bool folder)
{
	struct vnode *n = path != NULL ? vnode_find(host_here(), path) : NULL;
	if (n == NULL)
		return -1;
	if (folder != (n->kind == VNODE_FOLDER))
		return result_of(folder ? ENOTDIR : EISDIR);
	if (!cgn_list_empty(&n->children))
		return result_of(ENOTEMPTY);
	if (result_of(disk_change(host_here())) != 0)
		return -1;
	vnode_unlink(n);
	return 0;
}

CALL(int, rmdir, const char *path)
{
	SIMULATED_OR(__real_rmdir(path));
	return node_remove(path, true);
}

CALL(int, unlink, const char *path)
{
	SIMULATED_OR(__real_unlink(path));
	return node_remove(path, false);
}

CALL(int, unlinkat, int dir, const char *path, int flags)
{
	SIMULATED_OR(__real_unlinkat(dir, path, flags));
	return node_remove(path_at(dir, path), (flags & AT_REMOVEDIR) != 0);
}

static int node_rename(const char *from, const char *to)
{
	const char *last;
	struct vnode *n = vnode_find(host_here(), from);
	if (n == NULL || result_of(disk_change(host_here())) != 0)
		return -1;
	struct vnode *folder = file_folder(host_here(), to, &last);
	return folder != NULL ? result_of(file_rename(n, folder, last)) : -1;
}

CALL(int, rename, const char *from, const char *to)
{
	SIMULATED_OR(__real_rename(from, to));
	return node_rename(from, to);
}

CALL(int, renameat2, int from_dir, const char *from, int to_dir, const char *to, unsigned flags)
{
	SIMULATED_OR(__real_renameat2(from_dir, from, to_dir, to, flags));
	char copy[4096];
	const char *path = path_at(from_dir, from);
	if (path == NULL)
		return -1;
	(void)snprintf(copy, sizeof copy, "%s", path);
	const char *target = path_at(to_dir, to);
	if (target == NULL)
		return -1;
	if (flags & 1 && vnode_find(host_here(), target) != NULL) /* RENAME_NOREPLACE */
		return result_of(EEXIST);
	return node_rename(copy, target);
}

char *__wrap_realpath(const char *path, char *out);
char *__wrap_realpath(const char *path, char *out)
{
	if (vnode_find(host_here(), path) == NULL)
		return NULL;
	if (out == NULL)
		return cgn_str_dupz(cgn_str_of(path));
	(void)snprintf(out, 4096, "%s", path);
	return out;
}

char *__wrap___realpath_chk(const char *path, char *out, size_t room);
char *__wrap___realpath_chk(const char *path, char *out, size_t room)
{
	return __wrap_realpath(path, out);
}

REFUSED(int, link, EPERM, const char *from, const char *to)
REFUSED(int, symlink, EPERM, const char *from, const char *to)
REFUSED(ssize_t, readlink, EINVAL, const char *path, char *out, size_t n)

#define DONE(name, ...)                        \
	extern int __wrap_##name(__VA_ARGS__); \
	int __wrap_##name(__VA_ARGS__)         \
	{                                      \
		return 0;                      \
	}
DONE(chown, const char *path, uid_t u, gid_t g)
DONE(lchown, const char *path, uid_t u, gid_t g)
DONE(fchown, int fd, uid_t u, gid_t g)
DONE(utimensat, int dir, const char *path, const struct timespec *t, int flags)
DONE(futimens, int fd, const struct timespec *t)

CALL(int, chmod, const char *path, mode_t mode)
{
	SIMULATED_OR(__real_chmod(path, mode));
	struct vnode *n = vnode_find(host_here(), path);
	if (n == NULL)
		return -1;
	n->mode = mode;
	return 0;
}

CALL(int, fchmod, int fd, mode_t mode)
{
	SIMULATED_OR(__real_fchmod(fd, mode));
	struct object *o = proc_fd(fd);
	if (o == NULL || o->kind != OBJECT_FILE)
		return -1;
	o->file.node->mode = mode;
	return 0;
}

CALL(int, statvfs64, const char *path, struct statvfs64 *out)
{
	SIMULATED_OR(__real_statvfs64(path, out));
	uint64_t blocks = disk_free(host_here()) / 4096;
	*out = (struct statvfs64){.f_bsize = 4096,
		.f_frsize = 4096,
		.f_blocks = blocks + host_here()->disk_used / 4096,
		.f_bfree = blocks,
		.f_bavail = blocks};
	return vnode_find(host_here(), path) != NULL ? 0 : -1;
}

int __wrap_statvfs(const char *path, struct statvfs *out);
int __wrap_statvfs(const char *path, struct statvfs *out)
{
	return __wrap_statvfs64(path, (struct statvfs64 *)(void *)out);
}

static int fs_of(struct statfs64 *out)
{
	uint64_t blocks = disk_free(host_here()) / 4096;
	*out = (struct statfs64){.f_type = 0xef53,
		.f_bsize = 4096,
		.f_blocks = blocks + host_here()->disk_used / 4096,
		.f_bfree = blocks,
		.f_bavail = blocks};
	return 0;
}

int __wrap_statfs64(const char *path, struct statfs64 *out);
int __wrap_statfs64(const char *path, struct statfs64 *out)
{
	return fs_of(out);
}

int __wrap_fstatfs64(int fd, struct statfs64 *out);
int __wrap_fstatfs64(int fd, struct statfs64 *out)
{
	return fs_of(out);
}

int __wrap_fstatfs(int fd, struct statfs *out);
int __wrap_fstatfs(int fd, struct statfs *out)
{
	return fs_of((struct statfs64 *)(void *)out);
}

CALL(char *, mkdtemp, char *template)
{
	SIMULATED_OR(__real_mkdtemp(template));
	size_t n = strlen(template);
	for (size_t i = n - 6; i < n; i++)
		template[i] = (char)('a' + world_draw(26));
	extern int __wrap_mkdir(const char *path, mode_t mode);
	return __wrap_mkdir(template, 0700) == 0 ? template : NULL;
}

/* ---- folders ---- */

struct folder {
	int fd;
	size_t n, next;
	struct dirent64 *entries;
};

static struct folder *folder_open(int fd)
{
	struct object *o = proc_fd(fd);
	if (o == NULL || o->kind != OBJECT_FILE || o->file.node->kind != VNODE_FOLDER) {
		errno = ENOTDIR;
		return NULL;
	}
	struct folder *d = CGN_NEW(struct folder);
	*d = (struct folder){.fd = fd};
	cgn_list_each (l, &o->file.node->children)
		d->n++;
	d->entries = CGN_NEW_ARRAY(struct dirent64, d->n + 3);
	size_t i = 0;
	for (; i < 2; i++) {
		d->entries[i] = (struct dirent64){.d_ino = 1, .d_type = DT_DIR};
		(void)snprintf(d->entries[i].d_name, sizeof d->entries[i].d_name, "%s", i == 0 ? "." : "..");
	}
	cgn_list_each (l, &o->file.node->children) {
		const struct vnode *n = CGN_CONTAINER(l, struct vnode, sibling);
		size_t at = i++;
		if (at > 2 && world_chance(2)) { /* A folder has no order */
			size_t other = 2 + world_draw(at - 2);
			d->entries[at] = d->entries[other];
			at = other;
		}
		d->entries[at] = (struct dirent64){.d_ino = n->inode,
			.d_type = n->kind == VNODE_FOLDER ? DT_DIR
				: n->kind == VNODE_FILE   ? DT_REG
							  : DT_SOCK};
		(void)snprintf(d->entries[at].d_name, sizeof d->entries[at].d_name, "%s", n->name);
	}
	d->n += 2;
	return d;
}

CALL(DIR *, fdopendir, int fd)
{
	SIMULATED_OR(__real_fdopendir(fd));
	return (DIR *)(void *)folder_open(fd);
}

/* /proc/self/fd: the numbers of the open descriptors. */
static struct folder *descriptors_open(void)
{
	struct folder *d = CGN_NEW(struct folder);
	*d = (struct folder){.fd = -1, .entries = CGN_NEW_ARRAY(struct dirent64, PROC_FILES)};
	for (int fd = 0; fd < PROC_FILES; fd++)
		if (this_proc()->files[fd] != NULL)
			(void)snprintf(d->entries[d->n++].d_name, sizeof d->entries[0].d_name, "%d", fd);
	return d;
}

CALL(DIR *, opendir, const char *path)
{
	SIMULATED_OR(__real_opendir(path));
	if (strcmp(path, "/proc/self/fd") == 0)
		return (DIR *)(void *)descriptors_open();
	int fd = file_open(path, O_RDONLY | O_DIRECTORY, 0);
	return fd >= 0 ? (DIR *)(void *)folder_open(fd) : NULL;
}

CALL(struct dirent64 *, readdir64, DIR *dir)
{
	SIMULATED_OR(__real_readdir64(dir));
	struct folder *d = (struct folder *)(void *)dir;
	return d->next < d->n ? &d->entries[d->next++] : NULL;
}

struct dirent *__wrap_readdir(DIR *dir);
struct dirent *__wrap_readdir(DIR *dir)
{
	return (struct dirent *)(void *)__wrap_readdir64(dir);
}

CALL(int, closedir, DIR *dir)
{
	SIMULATED_OR(__real_closedir(dir));
	struct folder *d = (struct folder *)(void *)dir;
	if (d->fd >= 0)
		(void)proc_close(d->fd);
	free(d->entries);
	free(d);
	return 0;
}

CALL(int, dirfd, DIR *dir)
{
	SIMULATED_OR(__real_dirfd(dir));
	return ((struct folder *)(void *)dir)->fd;
}

int __wrap_scandir64(const char *path, struct dirent64 ***out, int (*filter)(const struct dirent64 *),
	int (*compare)(const struct dirent64 **, const struct dirent64 **));
int __wrap_scandir64(const char *path, struct dirent64 ***out, int (*filter)(const struct dirent64 *),
	int (*compare)(const struct dirent64 **, const struct dirent64 **))
{
	world_fail("scandir is not simulated: %s", path);
}
