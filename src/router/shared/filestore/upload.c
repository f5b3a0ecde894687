/* SPDX-License-Identifier: Apache-2.0 */
/* upload: a file that is being written, and its description. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/json/json.h"
#include "base/log/log.h"
#include "base/seal/seal.h"
#include "io/os/disk/disk.h"
#include "io/os/loop/loop.h"
#include "router/shared/filestore/filestore_priv.h"
#include "router/shared/filestore/objects.h"

#define META_KIND   "cgn-file"
#define META_FORMAT 1
#define META_ARENA  ((size_t)8192)

/* ---- the description ---- */

static void meta_put(const struct filestore_file *f, struct cgn_buf *out)
{
	seal_begin(out, META_KIND, META_FORMAT);
	struct json_out j = json_out_to(out);
	json_open(&j, '{');
	json_key_z(&j, "id", f->id);
	json_key_z(&j, "tenant", f->tenant);
	json_key_z(&j, "name", f->name);
	json_key_z(&j, "purpose", f->purpose);
	json_key_u64(&j, "offset", f->offset);
	json_key_u64(&j, "bytes", f->bytes);
	json_key_u64(&j, "created", f->created);
	json_key_u64(&j, "expires", f->expires);
	if (f->remote)
		json_key_bool(&j, "remote", true);
	json_close(&j, '}');
	cgn_buf_char(out, '\n');
	seal_end(out);
}

CGN_RC filestore_meta_read(struct cgn_str text, struct filestore_file *out, struct cgn_err *err)
{
	struct cgn_str lines;
	struct json_val v;
	struct cgn_arena a;
	CGN_TRY(seal_open(text, META_KIND, META_FORMAT, &lines, err));
	CGN_TRY(json_parse(lines, &v, NULL, err));
	cgn_arena_init(&a, META_ARENA);
	bool fits = cgn_str_copyz(out->id, sizeof out->id, json_get_str(v, "id", &a)) &&
		cgn_str_copyz(out->tenant, sizeof out->tenant, json_get_str(v, "tenant", &a)) &&
		cgn_str_copyz(out->name, sizeof out->name, json_get_str(v, "name", &a)) &&
		cgn_str_copyz(out->purpose, sizeof out->purpose, json_get_str(v, "purpose", &a));
	cgn_arena_fini(&a);
	out->offset = json_get_u64(v, "offset", 0);
	out->bytes = json_get_u64(v, "bytes", 0);
	out->created = json_get_u64(v, "created", 0);
	out->expires = json_get_u64(v, "expires", 0);
	out->remote = json_get_bool(v, "remote", false);
	return fits && out->id[0] != '\0' ? CGN_OK : CGN_FAIL(err, INVALID, "a text in it is too long");
}

/* ---- writing ---- */

static CGN_RC quota_check(struct filestore *s, struct cgn_str tenant, uint64_t more, struct cgn_err *err)
{
	uint64_t has = filestore_tenant_bytes(s, tenant);
	if (has + more > s->cfg.max_tenant)
		return CGN_FAIL(err, OVERLOADED,
			"the tenant's files, with uploads that run, would have %llu bytes, more than batch.max_tenant (%llu): delete some",
			(unsigned long long)(has + more), (unsigned long long)s->cfg.max_tenant);
	return CGN_OK;
}

/* Enter a client's upload among those that count. */
static CGN_RC upload_enter(struct filestore_upload *u, struct cgn_err *err)
{
	struct filestore *s = u->store;
	struct quota_told told;
	(void)pthread_mutex_lock(&s->lock);
	cgn_rc rc = filestore_share_check(s, cgn_str_of(u->tenant), 1, &told, err);
	if (cgn_ok(rc))
		rc = quota_check(s, cgn_str_of(u->tenant), 1, err);
	if (cgn_ok(rc)) {
		cgn_list_push(&s->uploads, &u->link);
		s->n_uploads++;
	}
	(void)pthread_mutex_unlock(&s->lock);
	return rc;
}

/* Give back what the upload booked: it is a file now, or none. With the lock held. */
static void upload_leave(struct filestore_upload *u)
{
	if (cgn_list_empty(&u->link))
		return;
	cgn_list_drop(&u->link);
	u->store->n_uploads--;
	u->booked = 0;
}

/* Book |more| bytes that are going to be written. */
static CGN_RC bytes_book(struct filestore_upload *u, size_t more, struct cgn_err *err)
{
	struct filestore *s = u->store;
	uint64_t all = u->bytes + more, due = all > FILESTORE_FORM_MAX ? all - FILESTORE_FORM_MAX : 0;
	(void)pthread_mutex_lock(&s->lock);
	bool counts = !cgn_list_empty(&u->link) && due > u->booked;
	cgn_rc rc = counts ? quota_check(s, cgn_str_of(u->tenant), due - u->booked, err) : CGN_OK;
	if (counts && cgn_ok(rc))
		u->booked = due;
	(void)pthread_mutex_unlock(&s->lock);
	return rc;
}

static void upload_free(struct filestore_upload **take, bool remove)
{
	struct filestore_upload *u = *take;
	char path[PATH_MAX];
	*take = NULL;
	(void)pthread_mutex_lock(&u->store->lock);
	upload_leave(u);
	(void)pthread_mutex_unlock(&u->store->lock);
	if (u->map != NULL)
		(void)munmap(u->map, u->bytes);
	if (u->fd >= 0)
		(void)close(u->fd);
	filestore_path(u->store, u->id, "data", path);
	if (remove)
		(void)unlink(path);
	free(u);
}

CGN_RC filestore_begin(struct filestore *s, struct cgn_str tenant, const char *id,
	struct filestore_upload **out, struct cgn_err *err)
{
	char path[PATH_MAX];
	CGN_LIVE(s, FILESTORE_TAG);
	struct filestore_upload *u = CGN_NEW(struct filestore_upload);
	u->store = s;
	u->fd = -1;
	cgn_list_init(&u->link);
	(void)cgn_str_copyz(u->tenant, sizeof u->tenant, tenant);
	if (id != NULL)
		(void)cgn_str_copyz(u->id, sizeof u->id, cgn_str_of(id));
	else
		filestore_id_make("file-", u->id);
	filestore_path(s, u->id, "data", path);
	cgn_rc rc = id == NULL ? upload_enter(u, err) : CGN_OK;
	if (cgn_ok(rc) && (u->fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600)) < 0)
		rc = CGN_FAIL(err, STORAGE, "cannot make %s: %s", path, strerror(errno));
	if (cgn_ok(rc))
		*out = u;
	else
		upload_free(&u, false);
	return rc;
}

CGN_RC filestore_add(struct filestore_upload *u, struct cgn_str bytes, struct cgn_err *err)
{
	CGN_TRY(bytes_book(u, bytes.n, err));
	while (bytes.n > 0) {
		ssize_t n = write(u->fd, bytes.p, bytes.n);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return CGN_FAIL(err, STORAGE, "the file cannot be stored: %s", strerror(errno));
		bytes = (struct cgn_str){bytes.p + n, bytes.n - (size_t)n};
		u->bytes += (uint64_t)n;
	}
	return CGN_OK;
}

CGN_RC filestore_map(struct filestore_upload *u, struct cgn_str *out, struct cgn_err *err)
{
	*out = (struct cgn_str){"", 0};
	if (u->bytes == 0)
		return CGN_OK;
	void *p = mmap(NULL, u->bytes, PROT_READ, MAP_PRIVATE, u->fd, 0);
	if (p == MAP_FAILED)
		return CGN_FAIL(err, STORAGE, "the file cannot be read back: %s", strerror(errno));
	u->map = p;
	*out = (struct cgn_str){p, u->bytes};
	return CGN_OK;
}

void filestore_cancel(struct filestore_upload **take)
{
	if (*take != NULL)
		upload_free(take, true);
}

/* With the lock held. */
static CGN_RC file_enter(struct filestore *s, const struct filestore_file *f, bool counts,
	struct cgn_err *err)
{
	char path[PATH_MAX];
	struct quota_told told;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf meta = {0};
	if (counts)
		CGN_TRY(filestore_share_check(s, cgn_str_of(f->tenant), 1, &told, err));
	if (counts)
		CGN_TRY(quota_check(s, cgn_str_of(f->tenant), f->bytes, err));
	meta_put(f, &meta);
	filestore_path(s, f->id, "meta", path);
	size_t had = s->n;
	filestore_row_add(s, f);
	cgn_rc rc = disk_write_file_atomic(path, cgn_buf_view(&meta), 0600, err);
	if (cgn_ok(rc))
		filestore_place_drop(s, f->id);
	else
		s->n = had; /* A new row was added last; one that was there stays. */
	return rc;
}

/* Store the bytes in the bucket, unless the tenant may not have them. */
static CGN_RC upload_send(struct filestore_upload *u, struct filestore_file *f, bool counts,
	struct cgn_err *err)
{
	struct filestore *s = u->store;
	cgn_rc rc = CGN_OK;
	(void)pthread_mutex_lock(&s->lock);
	uint64_t more = f->bytes > u->booked ? f->bytes - u->booked : 0;
	if (counts)
		rc = quota_check(s, cgn_str_of(f->tenant), more, err);
	u->booked += counts && cgn_ok(rc) ? more : 0;
	(void)pthread_mutex_unlock(&s->lock);
	if (cgn_ok(rc))
		rc = objects_put(s->cfg.objects, f->id, u->fd, f->offset, f->bytes, err);
	f->remote = true;
	f->offset = 0;
	return rc;
}

/* Remove the bytes of a file that was not entered. */
static void upload_take_back(struct filestore *s, const struct filestore_file *f)
{
	struct cgn_err err;
	if (f->remote && !cgn_ok(objects_delete(s->cfg.objects, f->id, &err)))
		cgn_log_limited(WARN, "filestore.object_stays", F_STR("file", f->id), F_STR("why", err.msg),
			F_STR("then", "the bucket keeps an object that no file has"));
}

CGN_RC filestore_commit(struct filestore_upload **take, struct filestore_file *f, struct cgn_err *err)
{
	struct filestore_upload *u = *take;
	struct filestore *s = u->store;
	(void)memcpy(f->id, u->id, sizeof f->id);
	(void)memcpy(f->tenant, u->tenant, sizeof f->tenant);
	f->created = cgn_clock_wall_ms() / 1000;
	f->expires = f->created + s->cfg.keep_s;
	cgn_rc rc = CGN_OK;
	bool counts = strcmp(f->purpose, "batch") == 0;
	if (s->cfg.objects != NULL)
		rc = upload_send(u, f, counts, err);
	else if (fdatasync(u->fd) != 0)
		rc = CGN_FAIL(err, STORAGE, "the file cannot be stored: %s", strerror(errno));
	bool sent = cgn_ok(rc);
	(void)pthread_mutex_lock(&s->lock);
	upload_leave(u);
	if (sent)
		rc = file_enter(s, f, counts, err);
	(void)pthread_mutex_unlock(&s->lock);
	if (sent && !cgn_ok(rc))
		upload_take_back(s, f);
	upload_free(take, !cgn_ok(rc) || f->remote);
	return rc;
}
