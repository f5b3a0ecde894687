/* SPDX-License-Identifier: Apache-2.0 */
/* The directory of a store. A file "cognitora-kv" marks it; another directory that is not empty is refused
 * and left as it is. */
#include "joint/kv/kvdisk/kvdisk_priv.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "io/os/disk/disk.h"
#include "io/os/loop/loop.h"

#define MARKER "cognitora-kv"

static CGN_RC fail_errno(struct cgn_err *err, const char *doing, const char *path)
{
	int e = errno;
	(void)CGN_FAIL(err, STORAGE, "cannot %s %s: %s", doing, path, strerror(e));
	if (err != NULL)
		err->sys_errno = e;
	return CGN_RC_OF(CGN_STORAGE);
}

cgn_rc kvdisk_as_storage(cgn_rc rc, struct cgn_err *err)
{
	if (cgn_ok(rc))
		return rc;
	if (err != NULL)
		err->code = CGN_STORAGE;
	return CGN_RC_OF(CGN_STORAGE);
}

static CGN_RC path_join(char out[PATH_MAX], const char *path, const char *name, struct cgn_err *err)
{
	if (snprintf(out, PATH_MAX, "%s/%s", path, name) >= PATH_MAX)
		return CGN_FAIL(err, STORAGE, "the path %.200s... is too long", path);
	return CGN_OK;
}

CGN_RC dir_sync(const char *path, struct cgn_err *err)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	/* EINVAL: the file system does not support fsync of a folder. */
	bool synced = fd >= 0 && (fsync(fd) == 0 || errno == EINVAL);
	cgn_rc rc = synced ? CGN_OK : fail_errno(err, "sync the folder", path);
	if (fd >= 0)
		close(fd);
	return rc;
}

CGN_RC dir_each(const char *path, CGN_RC (*fn)(void *user, const char *name, struct cgn_err *err), void *user,
	struct cgn_err *err)
{
	DIR *d = opendir(path);
	if (d == NULL)
		return fail_errno(err, "read the folder", path);
	cgn_rc rc = CGN_OK;
	for (struct dirent *e = readdir(d); e != NULL && cgn_ok(rc); e = readdir(d))
		if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
			rc = fn(user, e->d_name, err);
	(void)closedir(d);
	return rc;
}

/* ---- ownership ---- */
static CGN_RC may_be_there(void *user, const char *name, struct cgn_err *err)
{
	if (strcmp(name, "lost+found") == 0 || strcmp(name, "lock") == 0 ||
		strncmp(name, MARKER, strlen(MARKER)) == 0)
		return CGN_OK;
	return CGN_FAIL(err, STORAGE,
		"%s is not a block store's: \"%.64s\" is in it; give an empty or a new folder, nothing was changed",
		(const char *)user, name);
}

/* With an unreadable marker: everything in the folder must be a store's. */
static CGN_RC may_be_a_stores(void *user, const char *name, struct cgn_err *err)
{
	static const char *const begins[] = {"slab-", "index", "small"};
	for (size_t i = 0; i < CGN_COUNT(begins); i++)
		if (strncmp(name, begins[i], strlen(begins[i])) == 0)
			return CGN_OK;
	return may_be_there(user, name, err);
}

CGN_RC dir_put_aside(const char *path, const char *name, char to[64], struct cgn_err *err)
{
	char from[PATH_MAX], free_name[PATH_MAX];
	struct stat st;
	CGN_TRY(path_join(from, path, name, err));
	for (unsigned i = 0; i < 1000; i++) {
		(void)snprintf(to, 64, i == 0 ? "%.40s.aside" : "%.40s.aside-%u", name, i);
		CGN_TRY(path_join(free_name, path, to, err));
		if (lstat(free_name, &st) == 0)
			continue;
		return rename(from, free_name) == 0 ? CGN_OK : fail_errno(err, "rename", from);
	}
	return CGN_FAIL(err, STORAGE, "%s: a thousand files are set aside already; remove them", path);
}

/* CGN_INVALID: the marker cannot be understood. */
static CGN_RC read_marker(const char *path, const char *file, const char *kind, uint64_t *store,
	struct cgn_err *err)
{
	char text[128] = "", is[16] = "";
	struct cgn_buf b = cgn_buf_over(text, sizeof text - 1);
	unsigned format = 0;
	cgn_rc rc = disk_read_file(file, sizeof text - 2, &b, err);
	if (rc.code == CGN_NOT_FOUND)
		return rc;
	if (!cgn_ok(rc) && rc.code != CGN_TOO_LARGE && rc.code != CGN_INVALID)
		return kvdisk_as_storage(rc, err);
	int n = cgn_ok(rc)
		? sscanf(text, "cognitora kv store, format %u, %15[a-z] %16" SCNx64, &format, is, store)
		: 0;
	if (n < 1 || (format == KVDISK_FORMAT && (n < 3 || *store == 0)))
		return CGN_FAIL(err, INVALID,
			"%s: the file " MARKER
			" is not one that this program wrote; give another folder, or empty this one",
			path);
	if (format != KVDISK_FORMAT)
		return CGN_FAIL(err, STORAGE,
			"%s is a block store of format %u, this program reads format %u; give another folder, or empty this one",
			path, format, KVDISK_FORMAT);
	if (strcmp(is, kind) != 0)
		return CGN_FAIL(err, STORAGE,
			"%s holds a store's %s files, not its %s; the folders of the two may be mixed up",
			path, is, kind);
	return CGN_OK;
}

static CGN_RC dir_lock(const char *path, int *out, struct cgn_err *err)
{
	char file[PATH_MAX];
	CGN_TRY(path_join(file, path, "lock", err));
	int fd = open(file, O_RDWR | O_CREAT | O_CLOEXEC, 0640);
	if (fd < 0)
		return fail_errno(err, "write to", path);
	if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
		*out = fd;
		return CGN_OK;
	}
	int e = errno;
	close(fd);
	errno = e;
	if (e != EWOULDBLOCK)
		return fail_errno(err, "lock", file);
	return CGN_FAIL(err, STORAGE,
		"another process uses the block store in %s; stop it, or give another folder", path);
}

CGN_RC dir_mark(const char *path, const char *kind, uint64_t *store, struct cgn_err *err)
{
	char text[128], file[PATH_MAX];
	CGN_TRY(path_join(file, path, MARKER, err));
	while (*store == 0)
		cgn_random(store, sizeof *store);
	int n = snprintf(text, sizeof text, "cognitora kv store, format %u, %s %016" PRIx64 "\n",
		KVDISK_FORMAT, kind, *store);
	return kvdisk_as_storage(disk_write_file_atomic(file, (struct cgn_str){text, (size_t)n}, 0640, err),
		err);
}

uint64_t dir_store_of(const char *path, const char *kind)
{
	char file[PATH_MAX];
	uint64_t is = 0;
	bool known = cgn_ok(path_join(file, path, MARKER, NULL)) &&
		cgn_ok(read_marker(path, file, kind, &is, NULL));
	return known ? is : 0;
}

/* Check that the folder is a store's, or may become one. */
static CGN_RC dir_check(const char *path, const char *kind, uint64_t *is, struct dir *how,
	struct cgn_err *err)
{
	char file[PATH_MAX];
	CGN_TRY(path_join(file, path, MARKER, err));
	cgn_rc rc = read_marker(path, file, kind, is, err);
	how->made = rc.code == CGN_NOT_FOUND;
	how->lost = rc.code == CGN_INVALID;
	if (how->made)
		return dir_each(path, may_be_there, (void *)(uintptr_t)path, err);
	return how->lost ? dir_each(path, may_be_a_stores, (void *)(uintptr_t)path, err) : rc;
}

CGN_RC dir_open(const char *path, const char *kind, uint64_t *store, struct dir *how, int *lock_fd,
	struct cgn_err *err)
{
	uint64_t is = 0;
	*how = (struct dir){0};
	CGN_TRY(kvdisk_as_storage(disk_mkdirs(path, 0750, err), err));
	CGN_TRY(dir_check(path, kind, &is, how, err));
	CGN_TRY(dir_lock(path, lock_fd, err));
	if (how->lost)
		CGN_TRY(dir_put_aside(path, MARKER, how->aside, err));
	if (how->made || (how->lost && *store != 0))
		return dir_mark(path, kind, store, err);
	if (how->lost)
		return CGN_OK;
	if (*store != 0 && *store != is)
		return CGN_FAIL(err, STORAGE,
			"%s belongs to another block store; give the folder that belongs to it, or empty both",
			path);
	*store = is;
	return CGN_OK;
}

/* ---- sizes ---- */
static CGN_RC add_bytes(const char *path, const char *name, uint64_t *sum)
{
	char file[PATH_MAX];
	struct stat st;
	CGN_TRY(path_join(file, path, name, NULL));
	if (lstat(file, &st) == 0 && S_ISREG(st.st_mode)) {
		uint64_t taken = (uint64_t)st.st_blocks * 512, size = (uint64_t)st.st_size;
		*sum += taken > size ? taken : size;
	}
	return CGN_OK;
}

uint64_t dir_file_bytes(const char *path, const char *name)
{
	uint64_t sum = 0;
	(void)cgn_ok(add_bytes(path, name, &sum));
	return sum;
}

struct sum {
	const char *path;
	uint64_t bytes;
};

static CGN_RC sum_one(void *user, const char *name, struct cgn_err *err)
{
	struct sum *s = user;
	(void)err;
	(void)cgn_ok(add_bytes(s->path, name, &s->bytes));
	return CGN_OK;
}

uint64_t dir_bytes(const char *path)
{
	struct sum s = {.path = path};
	(void)cgn_ok(dir_each(path, sum_one, &s, NULL));
	return s.bytes;
}

static CGN_RC remove_one(void *user, const char *name, struct cgn_err *err)
{
	char file[PATH_MAX];
	CGN_TRY(path_join(file, user, name, err));
	(void)unlink(file);
	return CGN_OK;
}

void dir_remove(const char *path)
{
	(void)cgn_ok(dir_each(path, remove_one, (void *)(uintptr_t)path, NULL));
	(void)rmdir(path);
}

CGN_RC dir_free_bytes(const char *path, uint64_t *out, struct cgn_err *err)
{
	struct statvfs v;
	if (statvfs(path, &v) != 0)
		return fail_errno(err, "ask for the free space of", path);
	*out = (uint64_t)v.f_bavail * v.f_frsize;
	return CGN_OK;
}

void kvdisk_tell_aside(struct kvdisk *d, const char *from, const char *to, const char *why)
{
	atomic_fetch_add(&d->counts.aside, 1);
	if (d->owner->aside != NULL)
		d->owner->aside(d->user, from, to, why);
}

CGN_RC db_put_aside(struct kvdisk *d, const char *path, struct cgn_err *err)
{
	char to[PATH_MAX];
	if (snprintf(to, sizeof to, "%s.damaged", path) >= (int)sizeof to)
		return CGN_FAIL(err, STORAGE, "the path %.200s... is too long", path);
	dir_remove(to);
	if (rename(path, to) != 0 && errno != ENOENT)
		return CGN_FAIL(err, STORAGE, "cannot rename %s to %s: %s", path, to, strerror(errno));
	atomic_fetch_add(&d->damaged_bytes, dir_bytes(to));
	atomic_fetch_add(&d->counts.aside, 1);
	return CGN_OK;
}
