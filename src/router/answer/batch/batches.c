/* SPDX-License-Identifier: Apache-2.0 */
#include "router/answer/batch/batches.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/json/json.h"
#include "base/log/log.h"
#include "io/os/disk/disk.h"
#include "io/os/loop/loop.h"
#include "policy/who/auth/auth.h"

#define BATCHES_TAG 0x62740e01U
#define FILE_MAX    ((size_t)65536)
#define FILE_KIND   ".batch"

struct batches {
	uint32_t tag;
	pthread_mutex_t lock;
	struct batches_cfg cfg;
	char *folder;
	struct batch **v; /* The oldest first. */
	size_t n, cap;
};

void batches_path(const struct batches *s, const char *id, const char *kind, char out[PATH_MAX])
{
	(void)snprintf(out, PATH_MAX, "%.3900s/%.40s%s", s->folder, id, kind);
}

/* ---- with the lock held ---- */

static struct batch *batch_find(const struct batches *s, struct cgn_str id)
{
	for (size_t i = 0; i < s->n; i++)
		if (cgn_str_is(id, s->v[i]->id))
			return s->v[i];
	return NULL;
}

static CGN_RC batch_write(const struct batches *s, const struct batch *b, struct cgn_err *err)
{
	char path[PATH_MAX];
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	batch_file_put(b, &text);
	batches_path(s, b->id, FILE_KIND, path);
	return disk_write_file_atomic(path, cgn_buf_view(&text), 0600, err);
}

static void batch_push(struct batches *s, const struct batch *b)
{
	if (s->n == s->cap) {
		s->cap = s->cap > 0 ? 2 * s->cap : 16;
		s->v = CGN_GROWN(s->v, s->cap);
	}
	struct batch *own = s->v[s->n++] = CGN_NEW(struct batch);
	*own = *b;
}

static void batch_drop(struct batches *s, size_t i)
{
	static const char *const kinds[] = {".journal", FILE_KIND};
	char path[PATH_MAX];
	for (size_t k = 0; k < CGN_COUNT(kinds); k++) {
		batches_path(s, s->v[i]->id, kinds[k], path);
		(void)unlink(path);
	}
	batch_fini(s->v[i]);
	free(s->v[i]);
	memmove(&s->v[i], &s->v[i + 1], (s->n - i - 1) * sizeof(struct batch *));
	s->n--;
}

/* ---- open ---- */

static void batch_load(struct batches *s, const char *name)
{
	char path[PATH_MAX];
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	struct batch b = {0};
	struct cgn_err err;
	(void)snprintf(path, sizeof path, "%.3900s/%.60s", s->folder, name);
	cgn_rc rc = disk_read_file(path, FILE_MAX, &text, &err);
	if (cgn_ok(rc))
		rc = batch_file_read(cgn_buf_view(&text), &b, &err);
	if (cgn_ok(rc))
		batch_push(s, &b);
	else
		cgn_log(ERROR, "batch.bad_file", F_STR("path", path), F_STR("why", err.msg),
			F_STR("then", "the batch is not known; its file and journal stay in the folder"));
}

static int batch_order(const void *a, const void *b)
{
	const struct batch *x = *(const struct batch *const *)a, *y = *(const struct batch *const *)b;
	uint64_t at = x->times[BATCH_CREATED_AT], bt = y->times[BATCH_CREATED_AT];
	return at != bt ? (at < bt ? -1 : 1) : strcmp(x->id, y->id);
}

CGN_RC batches_open(const struct batches_cfg *cfg, struct batches **out, struct cgn_err *err)
{
	CGN_TRY(disk_mkdirs(cfg->folder, 0700, err));
	DIR *d = opendir(cfg->folder);
	if (d == NULL)
		return CGN_FAIL(err, STORAGE, "cannot read the folder %s: %s", cfg->folder, strerror(errno));
	struct batches *s = CGN_NEW(struct batches);
	*s = (struct batches){.tag = BATCHES_TAG,
		.cfg = *cfg,
		.folder = cgn_str_dupz(cgn_str_of(cfg->folder))};
	(void)pthread_mutex_init(&s->lock, NULL);
	for (struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
		size_t n = strlen(e->d_name), k = strlen(FILE_KIND);
		if (n > k && n < 60 && strcmp(e->d_name + n - k, FILE_KIND) == 0)
			batch_load(s, e->d_name);
	}
	(void)closedir(d);
	if (s->n > 0)
		qsort(s->v, s->n, sizeof(struct batch *), batch_order);
	*out = s;
	return CGN_OK;
}

void batches_close(struct batches **take)
{
	struct batches *s = CGN_TAKE_LIVE(take, BATCHES_TAG);
	if (s == NULL)
		return;
	for (size_t i = 0; i < s->n; i++) {
		batch_fini(s->v[i]);
		free(s->v[i]);
	}
	free(s->v);
	free(s->folder);
	(void)pthread_mutex_destroy(&s->lock);
	s->tag = 0;
	free(s);
}

/* ---- clients ---- */

/* With the lock held. */
static struct quota_ask share_ask(const struct batches *s, struct cgn_str tenant)
{
	struct quota_ask ask = {.kind = QUOTA_BATCHES,
		.alone = cgn_str_is(tenant, AUTH_NO_TENANT),
		.want = 1};
	for (size_t i = 0; i < s->n; i++)
		ask.held += cgn_str_is(tenant, s->v[i]->tenant);
	ask.free = s->n < s->cfg.max_batches ? s->cfg.max_batches - s->n : 0;
	return ask;
}

struct quota_told batches_share(struct batches *s, struct cgn_str tenant)
{
	struct quota_told told;
	CGN_LIVE(s, BATCHES_TAG);
	(void)pthread_mutex_lock(&s->lock);
	const struct quota_ask ask = share_ask(s, tenant);
	(void)pthread_mutex_unlock(&s->lock);
	(void)quota_judge(&ask, &told);
	return told;
}

CGN_RC batches_add(struct batches *s, struct batch *b, struct quota_told *told, struct cgn_err *err)
{
	CGN_LIVE(s, BATCHES_TAG);
	cgn_rc rc = CGN_OK;
	(void)pthread_mutex_lock(&s->lock);
	const struct quota_ask ask = share_ask(s, cgn_str_of(b->tenant));
	if (!quota_judge(&ask, told))
		rc = CGN_FAIL(err, OVERLOADED, "there are %zu batches, as many as batch.max_batches allows",
			s->n);
	if (cgn_ok(rc))
		rc = batch_write(s, b, err);
	if (cgn_ok(rc))
		batch_push(s, b);
	(void)pthread_mutex_unlock(&s->lock);
	return rc;
}

bool batches_put(struct batches *s, struct cgn_str tenant, struct cgn_str id, struct json_out *j)
{
	(void)pthread_mutex_lock(&s->lock);
	const struct batch *b = batch_find(s, id);
	bool found = b != NULL && cgn_str_is(tenant, b->tenant);
	if (found)
		batch_put(b, j);
	(void)pthread_mutex_unlock(&s->lock);
	return found;
}

bool batches_list(struct batches *s, struct cgn_str tenant, struct cgn_str after, size_t max,
	struct json_out *j, char first[BATCH_ID_MAX], char last[BATCH_ID_MAX])
{
	size_t n = 0;
	bool begun = after.n == 0, more = false;
	first[0] = last[0] = '\0';
	(void)pthread_mutex_lock(&s->lock);
	for (size_t i = s->n; i-- > 0 && !more;) {
		const struct batch *b = s->v[i];
		if (!cgn_str_is(tenant, b->tenant))
			continue;
		more = begun && n == max;
		if (begun && n < max) {
			batch_put(b, j);
			(void)memcpy(n == 0 ? first : last, b->id, BATCH_ID_MAX);
			(void)memcpy(last, b->id, BATCH_ID_MAX);
			n++;
		}
		begun = begun || cgn_str_is(after, b->id);
	}
	(void)pthread_mutex_unlock(&s->lock);
	return more;
}

CGN_RC batches_cancel(struct batches *s, struct cgn_str tenant, struct cgn_str id, struct cgn_err *err)
{
	cgn_rc rc = CGN_OK;
	(void)pthread_mutex_lock(&s->lock);
	struct batch *b = batch_find(s, id);
	if (b == NULL || !cgn_str_is(tenant, b->tenant))
		rc = CGN_FAIL(err, NOT_FOUND, "there is no batch `%.*s`", (int)(id.n < 64 ? id.n : 64), id.p);
	else if (batch_status_is_over(b->status) || b->status == BATCH_FINALIZING)
		rc = CGN_FAIL(err, INVALID, "the batch is %s and cannot be cancelled any more",
			batch_status_text(b->status));
	else if (b->status != BATCH_CANCELLING) {
		const struct batch before = *b;
		b->status = BATCH_CANCELLING;
		b->times[BATCH_CANCELLING_AT] = cgn_clock_wall_ms() / 1000;
		rc = batch_write(s, b, err);
		if (!cgn_ok(rc))
			*b = before;
	}
	(void)pthread_mutex_unlock(&s->lock);
	return rc;
}

/* ---- the runner ---- */

void batches_each_open(struct batches *s, void (*each)(void *user, const struct batch *b), void *user)
{
	(void)pthread_mutex_lock(&s->lock);
	for (size_t i = 0; i < s->n; i++)
		if (!batch_status_is_over(s->v[i]->status))
			each(user, s->v[i]);
	(void)pthread_mutex_unlock(&s->lock);
}

/* Take the fields of |b|, but keep a cancellation that |b| does not have yet. */
static struct batch batch_merged(const struct batch *old, const struct batch *b)
{
	struct batch next = *b;
	next.metadata = old->metadata;
	next.holder = old->holder;
	next.times[BATCH_CANCELLING_AT] = old->times[BATCH_CANCELLING_AT];
	if (old->status == BATCH_CANCELLING && !batch_status_is_over(b->status) &&
		b->status != BATCH_FINALIZING)
		next.status = old->status;
	return next;
}

CGN_RC batches_update(struct batches *s, struct batch *b, struct cgn_err *err)
{
	cgn_rc rc = CGN_OK;
	(void)pthread_mutex_lock(&s->lock);
	struct batch *old = batch_find(s, cgn_str_of(b->id));
	if (old != NULL) {
		struct batch next = batch_merged(old, b);
		rc = batch_write(s, &next, err);
		if (cgn_ok(rc))
			*old = next;
	}
	(void)pthread_mutex_unlock(&s->lock);
	if (!cgn_ok(rc))
		cgn_log_limited(ERROR, "batch.not_written", F_STR("batch", b->id), F_STR("why", err->msg),
			F_STR("then", "it is tried again"));
	return rc;
}

void batches_count(struct batches *s, const struct batch *b)
{
	(void)pthread_mutex_lock(&s->lock);
	struct batch *old = batch_find(s, cgn_str_of(b->id));
	if (old != NULL) {
		old->completed = b->completed;
		old->failed = b->failed;
		old->waits = b->waits;
		old->waits_until_s = b->waits_until_s;
	}
	(void)pthread_mutex_unlock(&s->lock);
}

enum batch_status batches_status(struct batches *s, const char *id)
{
	(void)pthread_mutex_lock(&s->lock);
	const struct batch *b = batch_find(s, cgn_str_of(id));
	enum batch_status status = b != NULL ? b->status : BATCH_STATUSES;
	(void)pthread_mutex_unlock(&s->lock);
	return status;
}

static uint64_t batch_ended(const struct batch *b)
{
	static const enum batch_time ends[] = {BATCH_COMPLETED_AT, BATCH_FAILED_AT, BATCH_EXPIRED_AT,
		BATCH_CANCELLED_AT};
	uint64_t at = b->times[BATCH_CREATED_AT];
	for (size_t i = 0; i < CGN_COUNT(ends); i++)
		at = b->times[ends[i]] > at ? b->times[ends[i]] : at;
	return at;
}

void batches_sweep(struct batches *s, uint64_t now_s)
{
	(void)pthread_mutex_lock(&s->lock);
	size_t before = s->n;
	for (size_t i = s->n; i-- > 0;)
		if (batch_status_is_over(s->v[i]->status) && batch_ended(s->v[i]) + s->cfg.keep_s <= now_s)
			batch_drop(s, i);
	size_t deleted = before - s->n;
	(void)pthread_mutex_unlock(&s->lock);
	if (deleted > 0)
		cgn_log(INFO, "batch.deleted", F_U64("batches", deleted), F_U64("kept_s", s->cfg.keep_s));
}
