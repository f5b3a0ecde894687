/* SPDX-License-Identifier: Apache-2.0 */
/* filestore: the table of files, and their folder. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/codec/codec.h"
#include "base/log/log.h"
#include "io/os/disk/disk.h"
#include "io/os/loop/loop.h"
#include "router/shared/filestore/filestore_priv.h"
#include "router/shared/filestore/objects.h"

#define REMOVE_AGAIN   600 /* Seconds. */
#define SWEEP_FAILURES 8

void filestore_id_make(const char *prefix, char out[FILESTORE_ID_MAX])
{
	uint64_t r[2];
	cgn_random(r, sizeof r);
	(void)snprintf(out, FILESTORE_ID_MAX, "%s%016llx%08x", prefix, (unsigned long long)r[0],
		(unsigned)(r[1] & 0xffffffffU));
}

void filestore_path(const struct filestore *s, const char *id, const char *kind, char out[PATH_MAX])
{
	(void)snprintf(out, PATH_MAX, "%.3900s/%.40s.%s", s->folder, id, kind);
}

/* ---- the table ---- */

struct filestore_file *filestore_row_find(struct filestore *s, struct cgn_str id)
{
	for (size_t i = 0; i < s->n; i++)
		if (cgn_str_is(id, s->files[i].id))
			return &s->files[i];
	return NULL;
}

void filestore_row_add(struct filestore *s, const struct filestore_file *f)
{
	struct filestore_file *old = filestore_row_find(s, cgn_str_of(f->id));
	if (old != NULL) {
		*old = *f;
		return;
	}
	if (s->n == s->cap) {
		s->cap = s->cap > 0 ? 2 * s->cap : 16;
		s->files = CGN_GROWN(s->files, s->cap);
	}
	s->files[s->n++] = *f;
}

uint64_t filestore_tenant_bytes(const struct filestore *s, struct cgn_str tenant)
{
	uint64_t sum = 0;
	for (size_t i = 0; i < s->n; i++)
		sum += cgn_str_is(tenant, s->files[i].tenant) ? s->files[i].bytes : 0;
	cgn_list_each (it, &s->uploads) {
		const struct filestore_upload *u = CGN_CONTAINER(it, struct filestore_upload, link);
		sum += cgn_str_is(tenant, u->tenant) ? u->booked : 0;
	}
	return sum;
}

static void row_drop(struct filestore *s, struct filestore_file *f)
{
	char path[PATH_MAX];
	filestore_path(s, f->id, "meta", path); /* First: without it the file does not exist. */
	(void)unlink(path);
	filestore_path(s, f->id, "data", path);
	(void)unlink(path);
	memmove(f, f + 1, (size_t)(s->files + s->n - (f + 1)) * sizeof *f);
	s->n--;
}

bool filestore_find(struct filestore *s, struct cgn_str tenant, struct cgn_str id, struct filestore_file *out)
{
	(void)pthread_mutex_lock(&s->lock);
	const struct filestore_file *f = filestore_row_find(s, id);
	bool found = f != NULL && cgn_str_is(tenant, f->tenant);
	if (found)
		*out = *f;
	(void)pthread_mutex_unlock(&s->lock);
	return found;
}

size_t filestore_list(struct filestore *s, struct cgn_str tenant, struct cgn_str purpose,
	struct cgn_str after, bool oldest_first, struct filestore_file *out, size_t max)
{
	size_t n = 0;
	bool begun = after.n == 0;
	(void)pthread_mutex_lock(&s->lock);
	for (size_t k = 0; k < s->n && n < max; k++) {
		const struct filestore_file *f = &s->files[oldest_first ? k : s->n - 1 - k];
		if (!cgn_str_is(tenant, f->tenant))
			continue;
		if (begun && (purpose.n == 0 || cgn_str_is(purpose, f->purpose)))
			out[n++] = *f;
		begun = begun || cgn_str_is(after, f->id);
	}
	(void)pthread_mutex_unlock(&s->lock);
	return n;
}

/* Files of a bucket cannot be reached once batch.storage is local again. */
static bool objects_need(const struct filestore *s, const struct filestore_file *f, struct cgn_err *err)
{
	return s->cfg.objects != NULL ||
		cgn_ok(CGN_FAIL(err, STORAGE, "the bytes of %s are in a bucket, and batch.storage is not s3",
			f->id));
}

static CGN_RC object_open(struct filestore *s, const struct filestore_file *f, int *fd, struct cgn_err *err)
{
	if (!objects_need(s, f, err))
		return CGN_RC_OF(CGN_STORAGE);
	*fd = open(s->folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	if (*fd < 0)
		return CGN_FAIL(err, STORAGE, "cannot make a file in %s: %s", s->folder, strerror(errno));
	cgn_rc rc = objects_get(s->cfg.objects, f->id, f->bytes, *fd, err);
	if (cgn_ok(rc))
		return rc;
	(void)close(*fd);
	*fd = -1;
	return rc;
}

CGN_RC filestore_read(struct filestore *s, const struct filestore_file *f, int *fd, struct cgn_err *err)
{
	char path[PATH_MAX];
	if (f->remote)
		return object_open(s, f, fd, err);
	filestore_path(s, f->id, "data", path);
	*fd = open(path, O_RDONLY | O_CLOEXEC);
	if (*fd >= 0)
		return CGN_OK;
	if (errno == ENOENT)
		return CGN_FAIL(err, NOT_FOUND, "the bytes of %s are gone", f->id);
	return CGN_FAIL(err, STORAGE, "cannot read the file %s: %s", f->id, strerror(errno));
}

CGN_RC filestore_piece(struct filestore *s, const struct filestore_file *f, int *fd, uint64_t at, size_t n,
	struct cgn_buf *out, struct cgn_err *err)
{
	if (n == 0)
		return CGN_OK;
	if (f->remote)
		return objects_need(s, f, err) ? objects_read(s->cfg.objects, f->id, at, n, out, err)
					       : CGN_RC_OF(CGN_STORAGE);
	if (*fd < 0)
		CGN_TRY(filestore_read(s, f, fd, err));
	char *room = cgn_buf_room(out, n);
	if (room == NULL)
		return CGN_FAIL(err, NO_MEMORY, "out of memory");
	ssize_t got = pread(*fd, room, n, (off_t)(f->offset + at));
	if (got != (ssize_t)n)
		return CGN_FAIL(err, STORAGE, "cannot read the file %s: %s", f->id,
			got < 0 ? strerror(errno) : "it is too short");
	cgn_buf_grew(out, n);
	return CGN_OK;
}

/* Remove the file's bytes from the bucket, and then the file, unless it is gone meanwhile. */
static CGN_RC file_remove(struct filestore *s, const struct filestore_file *f, struct cgn_err *err)
{
	if (f->remote && !objects_need(s, f, err))
		return CGN_RC_OF(CGN_STORAGE);
	if (f->remote)
		CGN_TRY(objects_delete(s->cfg.objects, f->id, err));
	(void)pthread_mutex_lock(&s->lock);
	struct filestore_file *row = filestore_row_find(s, cgn_str_of(f->id));
	if (row != NULL)
		row_drop(s, row);
	(void)pthread_mutex_unlock(&s->lock);
	return CGN_OK;
}

CGN_RC filestore_delete(struct filestore *s, struct cgn_str tenant, struct cgn_str id, struct cgn_err *err)
{
	struct filestore_file f;
	if (!filestore_find(s, tenant, id, &f))
		return CGN_FAIL(err, NOT_FOUND, "there is no file `%.*s`", (int)(id.n < 64 ? id.n : 64),
			id.p);
	return file_remove(s, &f, err);
}

/* Copy the first file whose time is over, but no file whose removal failed lately. */
static bool expired_find(struct filestore *s, uint64_t now_s, struct filestore_file *out)
{
	bool found = false;
	(void)pthread_mutex_lock(&s->lock);
	for (size_t i = 0; i < s->n && !found; i++)
		if (s->files[i].expires <= now_s && s->files[i].again <= now_s) {
			*out = s->files[i];
			found = true;
		}
	(void)pthread_mutex_unlock(&s->lock);
	return found;
}

static void removal_failed(struct filestore *s, const struct filestore_file *f, uint64_t now_s,
	const struct cgn_err *why)
{
	cgn_log_limited(WARN, "filestore.not_deleted", F_STR("file", f->id), F_STR("why", why->msg),
		F_STR("then", "it is tried again in ten minutes; other files are not held up"));
	(void)pthread_mutex_lock(&s->lock);
	struct filestore_file *row = filestore_row_find(s, cgn_str_of(f->id));
	if (row != NULL)
		row->again = now_s + REMOVE_AGAIN;
	(void)pthread_mutex_unlock(&s->lock);
}

/* A bucket that answers nothing would hold the thread for long: few failures end a sweep, and the next one begins with
 * other files. */
void filestore_sweep(struct filestore *s, uint64_t now_s)
{
	struct filestore_file f;
	struct cgn_err err;
	uint64_t deleted = 0;
	for (unsigned failed = 0; failed < SWEEP_FAILURES && expired_find(s, now_s, &f);) {
		if (cgn_ok(file_remove(s, &f, &err))) {
			deleted++;
			continue;
		}
		removal_failed(s, &f, now_s, &err);
		failed++;
	}
	if (deleted > 0)
		cgn_log(INFO, "filestore.deleted", F_U64("files", deleted), F_U64("kept_s", s->cfg.keep_s));
}

/* ---- the folder ---- */

static bool name_has_kind(const char *name, const char *kind)
{
	size_t n = strlen(name), k = strlen(kind);
	return strncmp(name, "file-", 5) == 0 && n > k && n < FILESTORE_ID_MAX + k &&
		strcmp(name + n - k, kind) == 0;
}

static void meta_load(struct filestore *s, const char *name)
{
	char path[PATH_MAX];
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	struct filestore_file f = {0};
	struct cgn_err why;
	(void)snprintf(path, sizeof path, "%.3900s/%.60s", s->folder, name);
	cgn_rc rc = disk_read_file(path, FILESTORE_META_MAX, &text, &why);
	if (cgn_ok(rc))
		rc = filestore_meta_read(cgn_buf_view(&text), &f, &why);
	if (cgn_ok(rc))
		filestore_row_add(s, &f);
	else
		cgn_log(ERROR, "filestore.bad_description", F_STR("path", path), F_STR("why", why.msg),
			F_STR("then", "the file is not served; its bytes stay in the folder"));
}

static int row_order(const void *a, const void *b)
{
	const struct filestore_file *x = a, *y = b;
	return x->created != y->created ? (x->created < y->created ? -1 : 1) : strcmp(x->id, y->id);
}

/* Call |each| for the names of |kind| in the folder. */
static CGN_RC folder_walk(struct filestore *s, const char *kind,
	void (*each)(struct filestore *s, const char *name), struct cgn_err *err)
{
	DIR *d = opendir(s->folder);
	if (d == NULL)
		return CGN_FAIL(err, STORAGE, "cannot read the folder %s: %s", s->folder, strerror(errno));
	for (struct dirent *e = readdir(d); e != NULL; e = readdir(d))
		if (name_has_kind(e->d_name, kind))
			each(s, e->d_name);
	(void)closedir(d);
	return CGN_OK;
}

/* Remove bytes without a description: an upload that did not end. */
static void data_check(struct filestore *s, const char *name)
{
	char path[PATH_MAX], id[FILESTORE_ID_MAX];
	(void)cgn_str_copyz(id, sizeof id, (struct cgn_str){name, strlen(name) - strlen(".data")});
	filestore_path(s, id, "meta", path);
	if (access(path, F_OK) == 0)
		return;
	filestore_path(s, id, "data", path);
	(void)unlink(path);
}

CGN_RC filestore_open(const struct filestore_cfg *cfg, struct filestore **out, struct cgn_err *err)
{
	struct filestore *s = CGN_NEW(struct filestore);
	s->tag = FILESTORE_TAG;
	s->cfg = *cfg;
	(void)pthread_mutex_init(&s->lock, NULL);
	cgn_list_init(&s->uploads);
	cgn_list_init(&s->places);
	s->folder = cgn_str_dupz(cgn_str_of(cfg->folder));
	cgn_rc rc = disk_mkdirs(cfg->folder, 0700, err);
	if (cgn_ok(rc))
		rc = folder_walk(s, ".meta", meta_load, err);
	if (cgn_ok(rc))
		rc = folder_walk(s, ".data", data_check, err);
	if (s->n > 0)
		qsort(s->files, s->n, sizeof *s->files, row_order);
	if (cgn_ok(rc))
		*out = s;
	else
		filestore_close(&s);
	return rc;
}

void filestore_stop(struct filestore *s)
{
	if (s->cfg.objects != NULL)
		objects_stop(s->cfg.objects);
}

void filestore_close(struct filestore **take)
{
	struct filestore *s = CGN_TAKE_LIVE(take, FILESTORE_TAG);
	if (s == NULL)
		return;
	objects_close(&s->cfg.objects);
	filestore_places_free(s);
	(void)pthread_mutex_destroy(&s->lock);
	free(s->files);
	free(s->folder);
	s->tag = 0;
	free(s);
}
