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
#include "io/disk/disk.h"
#include "io/loop/loop.h"
#include "router/filestore/filestore_priv.h"

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

static struct filestore_file *row_find(struct filestore *s, struct cgn_str id)
{
	for (size_t i = 0; i < s->n; i++)
		if (cgn_str_is(id, s->files[i].id))
			return &s->files[i];
	return NULL;
}

CGN_RC filestore_row_add(struct filestore *s, const struct filestore_file *f, struct cgn_err *err)
{
	struct filestore_file *old = row_find(s, cgn_str_of(f->id));
	if (old != NULL) {
		*old = *f;
		return CGN_OK;
	}
	if (s->n == s->cap) {
		size_t cap = s->cap > 0 ? 2 * s->cap : 16;
		struct filestore_file *grown = reallocarray(s->files, cap, sizeof *grown);
		if (grown == NULL)
			return CGN_FAIL(err, NO_MEMORY, "out of memory");
		s->files = grown;
		s->cap = cap;
	}
	s->files[s->n++] = *f;
	return CGN_OK;
}

uint64_t filestore_tenant_bytes(const struct filestore *s, struct cgn_str tenant)
{
	uint64_t sum = 0;
	for (size_t i = 0; i < s->n; i++)
		sum += cgn_str_is(tenant, s->files[i].tenant) ? s->files[i].bytes : 0;
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
	const struct filestore_file *f = row_find(s, id);
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

CGN_RC filestore_read(struct filestore *s, const struct filestore_file *f, int *fd, struct cgn_err *err)
{
	char path[PATH_MAX];
	filestore_path(s, f->id, "data", path);
	*fd = open(path, O_RDONLY | O_CLOEXEC);
	if (*fd >= 0)
		return CGN_OK;
	if (errno == ENOENT)
		return CGN_FAIL(err, NOT_FOUND, "the bytes of %s are gone", f->id);
	return CGN_FAIL(err, STORAGE, "cannot read the file %s: %s", f->id, strerror(errno));
}

CGN_RC filestore_delete(struct filestore *s, struct cgn_str tenant, struct cgn_str id, struct cgn_err *err)
{
	cgn_rc rc = CGN_OK;
	(void)pthread_mutex_lock(&s->lock);
	struct filestore_file *f = row_find(s, id);
	if (f != NULL && cgn_str_is(tenant, f->tenant))
		row_drop(s, f);
	else
		rc = CGN_FAIL(err, NOT_FOUND, "there is no file `%.*s`", (int)(id.n < 64 ? id.n : 64), id.p);
	(void)pthread_mutex_unlock(&s->lock);
	return rc;
}

void filestore_sweep(struct filestore *s, uint64_t now_s)
{
	(void)pthread_mutex_lock(&s->lock);
	for (size_t i = s->n; i-- > 0;)
		if (s->files[i].expires <= now_s)
			row_drop(s, &s->files[i]);
	(void)pthread_mutex_unlock(&s->lock);
}

/* ---- the folder ---- */

static bool name_has_kind(const char *name, const char *kind)
{
	size_t n = strlen(name), k = strlen(kind);
	return strncmp(name, "file-", 5) == 0 && n > k && n < FILESTORE_ID_MAX + k &&
		strcmp(name + n - k, kind) == 0;
}

static CGN_RC meta_load(struct filestore *s, const char *name, struct cgn_err *err)
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
		return filestore_row_add(s, &f, err);
	cgn_log(ERROR, "filestore.bad_description", F_STR("path", path), F_STR("why", why.msg),
		F_STR("then", "the file is not served; its bytes stay in the folder"));
	return CGN_OK;
}

static int row_order(const void *a, const void *b)
{
	const struct filestore_file *x = a, *y = b;
	return x->created != y->created ? (x->created < y->created ? -1 : 1) : strcmp(x->id, y->id);
}

/* Call |each| for the names of |kind| in the folder. */
static CGN_RC folder_walk(struct filestore *s, const char *kind,
	CGN_RC (*each)(struct filestore *s, const char *name, struct cgn_err *err), struct cgn_err *err)
{
	DIR *d = opendir(s->folder);
	if (d == NULL)
		return CGN_FAIL(err, STORAGE, "cannot read the folder %s: %s", s->folder, strerror(errno));
	cgn_rc rc = CGN_OK;
	for (struct dirent *e = readdir(d); e != NULL && cgn_ok(rc); e = readdir(d))
		if (name_has_kind(e->d_name, kind))
			rc = each(s, e->d_name, err);
	(void)closedir(d);
	return rc;
}

/* Remove bytes that no description tells of: an upload that did not end. */
static CGN_RC data_check(struct filestore *s, const char *name, struct cgn_err *err)
{
	char path[PATH_MAX], id[FILESTORE_ID_MAX];
	(void)err;
	(void)cgn_str_copyz(id, sizeof id, (struct cgn_str){name, strlen(name) - strlen(".data")});
	filestore_path(s, id, "meta", path);
	if (access(path, F_OK) == 0)
		return CGN_OK;
	filestore_path(s, id, "data", path);
	(void)unlink(path);
	return CGN_OK;
}

CGN_RC filestore_open(const struct filestore_cfg *cfg, struct filestore **out, struct cgn_err *err)
{
	struct filestore *s = calloc(1, sizeof *s);
	if (s == NULL)
		return CGN_FAIL(err, NO_MEMORY, "out of memory");
	s->tag = FILESTORE_TAG;
	s->cfg = *cfg;
	(void)pthread_mutex_init(&s->lock, NULL);
	s->folder = cgn_str_dupz(cgn_str_of(cfg->folder));
	cgn_rc rc = s->folder == NULL ? CGN_FAIL(err, NO_MEMORY, "out of memory")
				      : disk_mkdirs(cfg->folder, 0700, err);
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

void filestore_close(struct filestore **take)
{
	struct filestore *s = *take;
	*take = NULL;
	if (s == NULL)
		return;
	CGN_LIVE(s, FILESTORE_TAG);
	(void)pthread_mutex_destroy(&s->lock);
	free(s->files);
	free(s->folder);
	s->tag = 0;
	free(s);
}
