/* SPDX-License-Identifier: Apache-2.0 */
/* The place of the next record. There are two logs, one of slab files and one of small values. When a file is
 * full, another one must fit the budget, or the oldest is reclaimed. The bytes of one file are reserved for
 * records that are carried while a file is reclaimed. */
#include "base/unlikely/unlikely.h"
#include "joint/kv/kvdisk/kvdisk_priv.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define ROOM_TRIES 16U
#define SORTING    10000000 /* ns */

void small_key_write(struct place p, uint8_t out[SMALL_KEY])
{
	uint32_t be[2] = {htonl(p.file), htonl(p.at)};
	memcpy(out, be, SMALL_KEY);
}

uint64_t disk_bytes(struct kvdisk *d)
{
	return files_bytes(d) + atomic_load(&d->damaged_bytes) + dir_bytes(d->index_path) +
		dir_bytes(d->small_path);
}

/* Whether |bytes| more fit the budget. The rest of the open file of small values counts as used. */
static bool log_in_budget(struct kvdisk *d, uint64_t bytes, bool carrying)
{
	uint64_t promised = 0, spare = carrying ? 0 : d->file_bytes;
	(void)pthread_mutex_lock(&d->files_lock);
	if (d->writing[true] != NULL)
		promised = d->small_file_bytes - d->writing[true]->used;
	(void)pthread_mutex_unlock(&d->files_lock);
	return disk_bytes(d) + promised + db_reserve(d->index) + db_reserve(d->small) + spare + bytes <=
		d->budget;
}

static bool log_on_disk(struct kvdisk *d, uint64_t bytes)
{
	uint64_t is = 0;
	return cgn_ok(dir_free_bytes(d->dir, &is, NULL)) &&
		is >= bytes + db_reserve(d->index) + db_reserve(d->small);
}

/* Close the file that is written, and release the space reserved behind its last record. */
static void log_seal(struct kvdisk *d, bool small)
{
	(void)pthread_mutex_lock(&d->files_lock);
	struct file *f = d->writing[small];
	d->writing[small] = NULL;
	if (f != NULL)
		f->open = false;
	if (f != NULL && !small && ftruncate(f->fd, (off_t)f->used) == 0)
		f->bytes = f->used;
	(void)pthread_mutex_unlock(&d->files_lock);
	if (f == NULL || small)
		return;
	(void)fdatasync(f->fd); /* The file stays: only the holder of the room lock reclaims files. */
	/* later reads bypass the page cache */
	(void)posix_fadvise(f->fd, 0, 0, POSIX_FADV_DONTNEED);
}

static CGN_RC log_begin_file(struct kvdisk *d, bool small, struct cgn_err *err)
{
	struct file *f = NULL;
	uint64_t bytes = small ? d->small_file_bytes : d->file_bytes;
	if (small)
		f = file_add(d, d->next_file, true, -1, bytes);
	else
		CGN_TRY(slab_make(d, &f, err));
	(void)pthread_mutex_lock(&d->files_lock);
	f->open = true;
	d->writing[small] = f;
	(void)pthread_mutex_unlock(&d->files_lock);
	return CGN_OK;
}

static CGN_RC no_room(struct kvdisk *d, struct cgn_err *err)
{
	return CGN_FAIL(err, STORAGE, "no room in %s: %llu bytes of %llu are in use, and nothing more can go",
		d->dir, (unsigned long long)disk_bytes(d), (unsigned long long)d->budget);
}

/* Make one step towards a file with room: start a file, or reclaim one. The room lock is held. */
static CGN_RC log_next_file(struct kvdisk *d, bool small, bool carrying, struct cgn_err *err)
{
	uint64_t bytes = small ? d->small_file_bytes : d->file_bytes;
	log_seal(d, small);
	if (log_in_budget(d, bytes, carrying) && log_on_disk(d, bytes)) {
		cgn_rc rc = log_begin_file(d, small, err);
		if (rc.code != CGN_OVERLOADED)
			return rc;
	}
	if (carrying || !reclaim_one(d))
		return no_room(d, err);
	/* RocksDB frees dropped rows when it compacts */
	if (small && !log_in_budget(d, bytes, false))
		(void)nanosleep(&(struct timespec){.tv_nsec = SORTING}, NULL);
	return CGN_OK;
}

void log_ahead(struct kvdisk *d)
{
	uint64_t bytes = d->file_bytes + d->small_file_bytes;
	bool roomy = log_in_budget(d, bytes, false) && log_on_disk(d, bytes);
	atomic_store(&d->roomy, roomy);
	if (!roomy)
		(void)reclaim_one(d);
}

/* Reserve the space behind |used| again. */
void log_resume(struct kvdisk *d, struct file *f)
{
	if (f->used >= d->file_bytes / 4 * 3 || !log_in_budget(d, d->file_bytes - f->used, false) ||
		fallocate(f->fd, 0, 0, (off_t)d->file_bytes) != 0)
		return;
	(void)pthread_mutex_lock(&d->files_lock);
	f->bytes = d->file_bytes;
	f->open = true;
	d->writing[false] = f;
	(void)pthread_mutex_unlock(&d->files_lock);
}

static bool log_take_room(struct kvdisk *d, bool small, uint64_t bytes, kvdisk_place *out, struct file **f)
{
	(void)pthread_mutex_lock(&d->files_lock);
	struct file *w = d->writing[small];
	bool fits = w != NULL && w->used + bytes <= (small ? d->small_file_bytes : w->bytes) &&
		w->next < 1U << 20;
	if (fits) {
		uint32_t unit = small ? KVDISK_ROW : KVDISK_UNIT;
		*out = place_pack((struct place){.small = small,
			.file = w->id,
			.at = small ? w->next++ : (uint32_t)(w->used / unit),
			.len = (uint32_t)(bytes / unit)});
		w->used += bytes;
		atomic_fetch_add(&w->refs, 1);
		*f = w;
	}
	(void)pthread_mutex_unlock(&d->files_lock);
	return fits;
}

CGN_RC log_room(struct kvdisk *d, bool small, uint64_t bytes, bool carrying, kvdisk_place *out,
	struct file **f, struct cgn_err *err)
{
	if (bytes > (small ? d->small_file_bytes : d->file_bytes - KVDISK_UNIT))
		return CGN_FAIL(err, TOO_LARGE, "a value of %llu bytes: a slab file of this store takes %llu",
			(unsigned long long)bytes, (unsigned long long)(d->file_bytes - 2 * KVDISK_UNIT));
	if (!unlikely_way(UNLIKELY_log_locked) && log_take_room(d, small, bytes, out, f))
		return CGN_OK;
	if (!carrying)
		(void)pthread_mutex_lock(&d->room);
	cgn_rc rc = CGN_OK;
	/* Files whose values are all pinned are carried whole and free no space, so the loop is bounded. */
	unsigned tries = ROOM_TRIES;
	/* Another thread may have made room. */
	bool got = !unlikely_way(UNLIKELY_log_sealed) && log_take_room(d, small, bytes, out, f);
	for (; cgn_ok(rc) && !got && tries > 0; tries--) {
		rc = log_next_file(d, small, carrying, err);
		got = log_take_room(d, small, bytes, out, f);
	}
	if (cgn_ok(rc) && !got)
		rc = no_room(d, err);
	if (!carrying)
		(void)pthread_mutex_unlock(&d->room);
	return got ? CGN_OK : rc;
}

static CGN_RC small_write(struct kvdisk *d, const struct record *r, const struct iovec *iov, size_t n,
	struct cgn_err *err)
{
	uint8_t key[SMALL_KEY];
	struct cgn_buf row = {0};
	char *to = cgn_buf_room(&row, RECORD_MAX_HEAD + r->entry.size);
	if (to == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for a small value");
	cgn_buf_grew(&row, record_write(r, (uint8_t *)to));
	for (size_t i = 0; i < n; i++)
		cgn_buf_add(&row, iov[i].iov_base, iov[i].iov_len);
	small_key_write(place_of(r->entry.place), key);
	cgn_rc rc = db_put(d->small, key, sizeof key, row.p, row.n, err);
	atomic_fetch_add(&d->counts.written, row.n);
	cgn_buf_fini(&row);
	return rc;
}

CGN_RC log_write(struct kvdisk *d, struct file *f, const struct record *r, const struct iovec *iov, size_t n,
	struct cgn_err *err)
{
	cgn_rc rc = f->small ? small_write(d, r, iov, n, err) : slab_write(d, f, r, iov, n, err);
	(void)pthread_mutex_lock(&d->files_lock);
	if (r->stored_ms > f->newest_ms)
		f->newest_ms = r->stored_ms;
	(void)pthread_mutex_unlock(&d->files_lock);
	atomic_store(&d->dirty, true);
	return kvdisk_as_storage(rc, err);
}

void log_unwrite(struct kvdisk *d, kvdisk_place at)
{
	uint8_t key[SMALL_KEY];
	struct place p = place_of(at);
	bool done;
	if (p.small) {
		small_key_write(p, key);
		done = cgn_ok(db_delete(d->small, key, sizeof key, NULL));
		atomic_store(&d->dirty, true);
	} else {
		done = slab_strike(d, at);
	}
	if (!done)
		removal_add_place(d, at);
}
