/* SPDX-License-Identifier: Apache-2.0 */
/* The table of files, and slab files: a header of one unit, then the records. */
#include "base/unlikely/unlikely.h"
#include "joint/kv/kvdisk/kvdisk_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define IO_PIECES 64U
/* Bytes that are written to the medium at once, and then dropped from the page cache. */
#define WRITE_BEHIND ((uint64_t)8 << 20)

static CGN_RC fail_errno(struct cgn_err *err, const char *doing, const struct kvdisk *d, uint32_t id, int e)
{
	(void)CGN_FAIL(err, STORAGE, "cannot %s %s/slab-%08x: %s", doing, d->dir, id, strerror(e));
	if (err != NULL)
		err->sys_errno = e;
	return CGN_RC_OF(CGN_STORAGE);
}

static CGN_RC slab_path(const struct kvdisk *d, uint32_t id, char out[PATH_MAX], struct cgn_err *err)
{
	if (snprintf(out, PATH_MAX, "%s/slab-%08x", d->dir, id) >= PATH_MAX)
		return CGN_FAIL(err, STORAGE, "the path %.200s... is too long", d->dir);
	return CGN_OK;
}

/* ---- the table ---- */
/* Return the index in |files| of |id|, or where it would be inserted. */
static size_t file_slot(const struct kvdisk *d, uint32_t id)
{
	size_t lo = 0, hi = d->n_files;
	while (lo < hi) {
		size_t mid = (lo + hi) / 2;
		if (d->files[mid]->id < id)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

static struct file *file_lookup(const struct kvdisk *d, uint32_t id)
{
	size_t i = file_slot(d, id);
	return i < d->n_files && d->files[i]->id == id ? d->files[i] : NULL;
}

struct file *file_find(struct kvdisk *d, uint32_t id, bool small)
{
	(void)pthread_mutex_lock(&d->files_lock);
	struct file *f = file_lookup(d, id);
	if (f != NULL && f->small != small)
		f = NULL;
	if (f != NULL)
		atomic_fetch_add(&f->refs, 1);
	(void)pthread_mutex_unlock(&d->files_lock);
	return f;
}

void file_unref(struct kvdisk *d, struct file **take)
{
	struct file *f = CGN_TAKE(take);
	if (f == NULL || atomic_fetch_sub(&f->refs, 1) != 1)
		return;
	if (f->doomed)
		atomic_fetch_sub(&d->damaged_bytes, f->small ? 0 : f->bytes); /* the space is free only now */
	file_free(f);
}

void file_free(struct file *f)
{
	if (f->direct >= 0)
		close(f->direct);
	if (f->fd >= 0)
		close(f->fd);
	free(f);
}

struct file *file_add(struct kvdisk *d, uint32_t id, bool small, int fd, uint64_t bytes)
{
	struct file *f = CGN_NEW(struct file);
	*f = (struct file){.id = id, .small = small, .fd = fd, .direct = -1, .bytes = bytes, .refs = 1};
	(void)pthread_mutex_lock(&d->files_lock);
	if (d->n_files == d->cap_files) {
		d->cap_files = d->cap_files > 0 ? 2 * d->cap_files : 64;
		d->files = CGN_GROWN(d->files, d->cap_files);
	}
	size_t at = file_slot(d, id);
	memmove(&d->files[at + 1], &d->files[at], (d->n_files - at) * sizeof *d->files);
	d->files[at] = f;
	d->n_files++;
	d->next_file = id >= d->next_file ? id + 1 : d->next_file;
	(void)pthread_mutex_unlock(&d->files_lock);
	return f;
}

void file_give_up(struct kvdisk *d, struct file *f)
{
	char path[PATH_MAX];
	(void)pthread_mutex_lock(&d->files_lock);
	size_t at = file_slot(d, f->id);
	CGN_MUST(at < d->n_files && d->files[at] == f && !f->open);
	memmove(&d->files[at], &d->files[at + 1], (d->n_files - at - 1) * sizeof *d->files);
	d->n_files--;
	f->doomed = true;
	if (!f->small)
		atomic_fetch_add(&d->damaged_bytes, f->bytes);
	(void)pthread_mutex_unlock(&d->files_lock);
	if (!f->small && cgn_ok(slab_path(d, f->id, path, NULL)))
		(void)unlink(path);
	file_unref(d, &f);
}

void file_count(struct kvdisk *d, kvdisk_place at, int64_t sign)
{
	struct place p = place_of(at);
	(void)pthread_mutex_lock(&d->files_lock);
	struct file *f = file_lookup(d, p.file);
	if (f != NULL)
		f->live += (uint64_t)(sign * (int64_t)place_bytes(at));
	(void)pthread_mutex_unlock(&d->files_lock);
	atomic_fetch_add(&d->counts.entries, (uint64_t)sign);
}

uint64_t files_bytes(struct kvdisk *d)
{
	uint64_t sum = 0;
	(void)pthread_mutex_lock(&d->files_lock);
	for (size_t i = 0; i < d->n_files; i++)
		sum += d->files[i]->small ? 0 : d->files[i]->bytes;
	(void)pthread_mutex_unlock(&d->files_lock);
	return sum;
}

/* ---- bytes ---- */
/* Fill |out| with at most |n| pieces of |iov| from byte |skip| on. Returns how many. */
static size_t iov_window(const struct iovec *iov, size_t n, size_t skip, struct iovec out[IO_PIECES])
{
	size_t k = 0;
	for (size_t i = 0; i < n && k < IO_PIECES; i++) {
		if (skip >= iov[i].iov_len) {
			skip -= iov[i].iov_len;
			continue;
		}
		out[k++] = (struct iovec){(char *)iov[i].iov_base + skip, iov[i].iov_len - skip};
		skip = 0;
	}
	return k;
}

CGN_RC io_all(int fd, bool write, const struct iovec *iov, size_t n, uint64_t off, struct cgn_err *err)
{
	struct iovec now[IO_PIECES];
	size_t first = 0, skip = 0;
	while (first < n) {
		size_t k = iov_window(iov + first, n - first, skip, now);
		if (k == 0)
			return CGN_OK;
		ssize_t got =
			write ? pwritev(fd, now, (int)k, (off_t)off) : preadv(fd, now, (int)k, (off_t)off);
		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0) {
			int e = got == 0 ? EIO : errno;
			if (err != NULL)
				err->sys_errno = e;
			return CGN_FAIL(err, STORAGE, "cannot %s a slab file: %s",
				write ? "write to" : "read", got == 0 ? "it is cut short" : strerror(e));
		}
		off += (uint64_t)got;
		for (skip += (size_t)got; first < n && skip >= iov[first].iov_len; first++)
			skip -= iov[first].iov_len;
	}
	return CGN_OK;
}

/* Start the write of dirty pages early, before the kernel stops all writers for it. */
static void slab_write_behind(const struct file *f, uint64_t from, uint64_t to)
{
	uint64_t a = from / WRITE_BEHIND, b = to / WRITE_BEHIND;
	if (a == b)
		return;
	(void)sync_file_range(f->fd, (off_t)(a * WRITE_BEHIND), (off_t)((b - a) * WRITE_BEHIND),
		SYNC_FILE_RANGE_WRITE);
	if (a > 0)
		(void)posix_fadvise(f->fd, 0, (off_t)(a * WRITE_BEHIND), POSIX_FADV_DONTNEED);
}

CGN_RC slab_write(struct kvdisk *d, struct file *f, const struct record *r, const struct iovec *iov, size_t n,
	struct cgn_err *err)
{
	static const uint8_t zeros[KVDISK_UNIT];
	uint8_t head[KVDISK_UNIT] = {0};
	struct place p = place_of(r->entry.place);
	uint64_t off = (uint64_t)p.at * KVDISK_UNIT, end = off + place_bytes(r->entry.place),
		 pad = end - off - KVDISK_UNIT - r->entry.size;
	struct iovec first = {head, sizeof head}, last = {(void *)(uintptr_t)zeros, pad};
	(void)record_write(r, head);
	/* The header is written last, so a record that was not written whole has none. */
	CGN_TRY(io_all(f->fd, true, iov, n, off + KVDISK_UNIT, err));
	CGN_TRY(io_all(f->fd, true, &last, 1, end - pad, err));
	CGN_TRY(io_all(f->fd, true, &first, 1, off, err));
	atomic_fetch_add(&d->counts.written, end - off);
	slab_write_behind(f, off, end);
	return CGN_OK;
}

/* ---- reading past the page cache ---- */
#define TAIL ((size_t)32 << 10) /* the largest slot of the last piece of a value */

struct direct {
	struct iovec iov[KVDISK_MAX_PIECES + 2];
	size_t n;
	const struct iovec *last; /* The bytes of |last| behind the first |whole| are read into |tail|. */
	size_t whole;
	_Alignas(KVDISK_UNIT) uint8_t tail[TAIL + KVDISK_UNIT];
};

static bool iov_is_aligned(const void *p)
{
	return (uintptr_t)p % KVDISK_UNIT == 0;
}

/* Plan a direct read: whole units at multiples of a unit. The rest of a value behind its last unit is read
 * aside. Returns false when the pieces do not allow it. */
static bool direct_plan(struct direct *x, uint8_t *head, const struct iovec *to, size_t n_to)
{
	x->iov[0] = (struct iovec){head, KVDISK_UNIT};
	x->n = 1;
	x->last = NULL;
	for (size_t i = 0; i < n_to; i++) {
		size_t whole = iov_is_aligned(to[i].iov_base) ? to[i].iov_len / KVDISK_UNIT * KVDISK_UNIT : 0,
		       left = to[i].iov_len - whole;
		if (whole > 0)
			x->iov[x->n++] = (struct iovec){to[i].iov_base, whole};
		if (left == 0)
			continue;
		if (i + 1 < n_to || left > TAIL)
			return false;
		x->last = &to[i];
		x->whole = whole;
		x->iov[x->n++] =
			(struct iovec){x->tail, (left + KVDISK_UNIT - 1) / KVDISK_UNIT * KVDISK_UNIT};
	}
	return true;
}

static bool slab_read_direct(const struct file *f, uint64_t off, uint8_t *head, const struct iovec *to,
	size_t n_to)
{
	struct direct x;
	if (f->direct < 0 || f->open || unlikely_way(UNLIKELY_read_cached) || !iov_is_aligned(head) ||
		!direct_plan(&x, head, to, n_to) || !cgn_ok(io_all(f->direct, false, x.iov, x.n, off, NULL)))
		return false;
	if (x.last != NULL)
		memcpy((char *)x.last->iov_base + x.whole, x.tail, x.last->iov_len - x.whole);
	return true;
}

/* The file that is being written is read through the page cache, which has the last records; direct reads
 * would wait for writes. */
CGN_RC slab_read(const struct file *f, uint32_t at, uint8_t head[KVDISK_UNIT], const struct iovec *to,
	size_t n_to, struct cgn_err *err)
{
	struct iovec all[KVDISK_MAX_PIECES + 1] = {{head, KVDISK_UNIT}};
	uint64_t off = (uint64_t)at * KVDISK_UNIT;
	if (slab_read_direct(f, off, head, to, n_to))
		return CGN_OK;
	memcpy(all + 1, to, n_to * sizeof *all);
	return io_all(f->fd, false, all, n_to + 1, off, err);
}

static CGN_RC slab_head(struct file *f, uint32_t at, uint8_t buf[KVDISK_UNIT], struct record *out,
	struct cgn_err *err)
{
	struct iovec iov = {buf, KVDISK_UNIT};
	CGN_TRY(io_all(f->fd, false, &iov, 1, (uint64_t)at * KVDISK_UNIT, err));
	if (!record_read(buf, KVDISK_UNIT, out))
		return CGN_FAIL(err, INVALID, "no header of a record");
	return CGN_OK;
}

bool slab_strike(struct kvdisk *d, kvdisk_place at)
{
	cgn_rc rc = CGN_OK;
	uint8_t buf[KVDISK_UNIT], head[KVDISK_UNIT] = {0};
	struct record r;
	struct place p = place_of(at);
	struct file *f = file_find(d, p.file, false);
	if (f != NULL)
		rc = slab_head(f, p.at, buf, &r, NULL);
	if (f != NULL && cgn_ok(rc) && r.entry.place == at && r.store == d->store) {
		struct iovec iov = {head, sizeof head};
		r.struck = true;
		(void)record_write(&r, head);
		rc = io_all(f->fd, true, &iov, 1, (uint64_t)p.at * KVDISK_UNIT, NULL);
		if (cgn_ok(rc))
			atomic_fetch_add(&d->counts.written, KVDISK_UNIT);
	}
	file_unref(d, &f);
	return cgn_ok(rc) || rc.code == CGN_INVALID;
}

CGN_RC slab_each(struct file *f, bool (*fn)(void *user, const struct record *r), void *user,
	struct cgn_err *err)
{
	uint8_t buf[KVDISK_UNIT];
	struct record r;
	(void)posix_fadvise(f->fd, 0, 0, POSIX_FADV_RANDOM);
	for (uint64_t at = 1; (at + 1) * KVDISK_UNIT <= f->bytes;) {
		cgn_rc rc = slab_head(f, (uint32_t)at, buf, &r, err);
		struct place p = place_of(r.entry.place);
		bool whole = cgn_ok(rc) && !p.small && p.file == f->id && p.at == at;
		if (rc.code == CGN_STORAGE && err != NULL && err->sys_errno != EIO)
			return rc;
		if (whole && !fn(user, &r))
			return CGN_OK;
		at += whole ? p.len : 1; /* after damage, look for the next header */
	}
	return CGN_OK;
}

/* ---- files ---- */
static CGN_RC slab_allocate(struct kvdisk *d, uint32_t id, int fd, struct cgn_err *err)
{
	int e = fallocate(fd, 0, 0, (off_t)d->file_bytes) == 0 ? 0 : errno;
	if (e == EOPNOTSUPP) /* then a later write finds that space is missing */
		e = ftruncate(fd, (off_t)d->file_bytes) == 0 ? 0 : errno;
	if (e == 0)
		return CGN_OK;
	cgn_rc rc = fail_errno(err, "set aside space for", d, id, e);
	return e == ENOSPC || e == EDQUOT ? CGN_RC_OF(CGN_OVERLOADED) : rc;
}

static CGN_RC fill_head(struct kvdisk *d, uint32_t id, int fd, struct cgn_err *err)
{
	uint8_t head[KVDISK_UNIT] = {0};
	struct iovec iov = {head, sizeof head};
	file_head_write(&(struct file_head){.store = d->store, .bytes = d->file_bytes, .id = id}, head);
	CGN_TRY(slab_allocate(d, id, fd, err));
	return io_all(fd, true, &iov, 1, 0, err);
}

CGN_RC slab_make(struct kvdisk *d, struct file **out, struct cgn_err *err)
{
	char path[PATH_MAX];
	uint32_t id = d->next_file;
	CGN_TRY(slab_path(d, id, path, err));
	if (id >> 27 != 0)
		return CGN_FAIL(err, STORAGE, "%s: all numbers of slab files are used up; empty the folder",
			d->dir);
	int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0640);
	if (fd < 0)
		return fail_errno(err, "make", d, id, errno);
	cgn_rc rc = fill_head(d, id, fd, err);
	if (!cgn_ok(rc)) {
		(void)unlink(path);
		close(fd);
		return rc;
	}
	*out = file_add(d, id, false, fd, d->file_bytes);
	atomic_store(&d->named, true);
	(*out)->used = KVDISK_UNIT;
	(*out)->direct = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
	return CGN_OK;
}

uint64_t slab_store_of(const char *path)
{
	uint8_t buf[FILE_HEAD];
	struct iovec iov = {buf, sizeof buf};
	struct file_head h = {0};
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return 0;
	bool known = cgn_ok(io_all(fd, false, &iov, 1, 0, NULL)) && file_head_read(buf, sizeof buf, &h);
	close(fd);
	return known ? h.store : 0;
}

/* Whether the file names another store or another file. A damaged header does not count: each record names
 * its store. */
static bool slab_is_foreign(const struct kvdisk *d, uint32_t id, int fd)
{
	uint8_t buf[FILE_HEAD];
	struct iovec iov = {buf, sizeof buf};
	struct file_head h;
	if (id >> 27 != 0)
		return true;
	return cgn_ok(io_all(fd, false, &iov, 1, 0, NULL)) && file_head_read(buf, sizeof buf, &h) &&
		(h.store != d->store || h.id != id);
}

CGN_RC slab_load(struct kvdisk *d, uint32_t id, struct cgn_err *err)
{
	char path[PATH_MAX];
	struct stat st;
	CGN_TRY(slab_path(d, id, path, err));
	int fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0) {
		bool full = errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == EROFS;
		(void)cgn_ok(fail_errno(err, "open", d, id, errno));
		return CGN_RC_OF(full ? CGN_STORAGE : CGN_INVALID);
	}
	cgn_rc rc = CGN_OK;
	if (fstat(fd, &st) != 0)
		rc = fail_errno(err, "look at", d, id, errno);
	else if (!S_ISREG(st.st_mode) || slab_is_foreign(d, id, fd))
		rc = CGN_FAIL(err, INVALID, "it is not a slab file of this store");
	if (!cgn_ok(rc)) {
		close(fd);
		return rc;
	}
	struct file *f = file_add(d, id, false, fd, (uint64_t)st.st_size);
	f->used = KVDISK_UNIT;
	f->direct = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
	return CGN_OK;
}
