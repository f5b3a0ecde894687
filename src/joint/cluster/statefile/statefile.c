/* SPDX-License-Identifier: Apache-2.0 */
#include "joint/cluster/statefile/statefile.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log/log.h"
#include "io/os/disk/disk.h"

#define STATEFILE_TAG 0x57a7ef11U
#define ASIDE_MOST    100 /* Files that are set aside; another one replaces none of them, and is replaced. */

/* The part that the loop and a job on the pool share. */
struct statefile_disk {
	_Atomic unsigned refs;
	pthread_mutex_t lock; /* Locked while the file is written. */
	bool over;            /* True: nothing is written any more; under |lock|. */
	char *path, *folder;
};
struct statefile {
	uint32_t tag;
	struct cgn_loop *loop;
	const char *what;
	struct statefile_disk *disk;
	struct statefile_job *job; /* NULL: no write is in progress. */
	bool failed;
};
struct statefile_job {
	struct statefile *f; /* NULL: closed meanwhile. */
	struct statefile_disk *disk;
	struct statefile_change change;
	struct statefile_result result;
};

static void disk_unref(struct statefile_disk *d)
{
	if (d == NULL || atomic_fetch_sub(&d->refs, 1) != 1)
		return;
	(void)pthread_mutex_destroy(&d->lock);
	free(d->path);
	free(d->folder);
	free(d);
}

static struct statefile_disk *disk_new(const char *path)
{
	struct statefile_disk *d = CGN_NEW(struct statefile_disk);
	const char *slash = strrchr(path, '/');
	(void)pthread_mutex_init(&d->lock, NULL);
	atomic_init(&d->refs, 1);
	d->path = cgn_str_dupz(cgn_str_of(path));
	d->folder = cgn_str_dupz((struct cgn_str){path, slash != NULL ? (size_t)(slash - path) : 0});
	return d;
}

struct statefile *statefile_open(struct cgn_loop *l, const char *path, const char *what)
{
	struct statefile *f = CGN_NEW(struct statefile);
	*f = (struct statefile){.tag = STATEFILE_TAG, .loop = l, .what = what, .disk = disk_new(path)};
	return f;
}

bool statefile_read(const struct statefile *f, size_t limit, struct cgn_buf *out)
{
	struct cgn_err err;
	CGN_LIVE(f, STATEFILE_TAG);
	cgn_rc rc = disk_read_file(f->disk->path, limit, out, &err);
	if (cgn_ok(rc))
		return true;
	if (rc.code == CGN_TOO_LARGE)
		statefile_set_aside(f, err.msg);
	else if (rc.code != CGN_NOT_FOUND)
		cgn_log(ERROR, "statefile.unreadable", F_STR("of", f->what), F_STR("why", err.msg),
			F_STR("then", "it begins empty, and the file is replaced"));
	return false;
}

/* Rename the file to a free name: PATH.bad, else PATH.bad-1 and so on. Files that were set aside before
 * stay. */
static bool path_set_aside(const char *path)
{
	for (unsigned i = 0; i < ASIDE_MOST; i++) {
		CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf to = {.n = 0};
		cgn_buf_fmt(&to, "%s.bad", path);
		if (i > 0)
			cgn_buf_fmt(&to, "-%u", i);
		if (renameat2(AT_FDCWD, path, AT_FDCWD, cgn_buf_z(&to), RENAME_NOREPLACE) == 0)
			return true;
		if (errno != EEXIST)
			break;
	}
	return false;
}

void statefile_set_aside(const struct statefile *f, const char *why)
{
	CGN_LIVE(f, STATEFILE_TAG);
	bool moved = path_set_aside(f->disk->path);
	cgn_log(ERROR, "statefile.set_aside", F_STR("of", f->what), F_STR("file", f->disk->path),
		F_STR("why", why),
		F_STR("then",
			moved ? "it is renamed to .bad, and another one begins empty"
			      : "it begins empty, and the file is replaced"));
}

/* ---- writing ---- */

static cgn_rc bytes_write(const struct statefile_disk *d, const struct cgn_buf *bytes, mode_t mode,
	struct cgn_err *err)
{
	if (bytes->bad)
		return CGN_FAIL(err, NO_MEMORY, "%s: no memory to write it", d->path);
	CGN_TRY(disk_mkdirs(d->folder, 0755, err));
	return disk_write_file_atomic(d->path, cgn_buf_view(bytes), mode, err);
}

static void write_report(struct statefile *f, const struct cgn_err *why)
{
	bool failed = why->code != CGN_FINE;
	if (failed && !f->failed)
		cgn_log(ERROR, "statefile.write_failed", F_STR("of", f->what), F_STR("why", why->msg),
			F_STR("then", "it is tried again; a restart would forget what is not written"));
	if (!failed && f->failed)
		cgn_log(INFO, "statefile.written_again", F_STR("of", f->what));
	f->failed = failed;
}

static void job_run(void *arg)
{
	struct statefile_job *j = arg;
	struct statefile_result *r = &j->result;
	cgn_rc rc = CGN_OK;
	(void)pthread_mutex_lock(&j->disk->lock);
	if (!j->disk->over)
		rc = j->change.remove ? disk_remove_file(j->disk->path, &r->err)
				      : bytes_write(j->disk, &j->change.text, j->change.mode, &r->err);
	if (!cgn_ok(rc) && j->change.limit > 0)
		r->read = disk_read_file(j->disk->path, j->change.limit, &r->present, &r->why);
	(void)pthread_mutex_unlock(&j->disk->lock);
}

static void job_done(void *arg)
{
	struct statefile_job *j = arg;
	if (j->f != NULL) {
		j->f->job = NULL;
		if (j->change.done != NULL)
			j->change.done(j->change.user, &j->result);
		else
			write_report(j->f, &j->result.err);
	}
	disk_unref(j->disk);
	cgn_buf_fini(&j->change.text);
	cgn_buf_fini(&j->result.present);
	free(j);
}

const char *statefile_path(const struct statefile *f)
{
	CGN_LIVE(f, STATEFILE_TAG);
	return f->disk->path;
}

bool statefile_has_failed(const struct statefile *f)
{
	CGN_LIVE(f, STATEFILE_TAG);
	return f->failed;
}

bool statefile_is_busy(const struct statefile *f)
{
	CGN_LIVE(f, STATEFILE_TAG);
	return f->job != NULL;
}

void statefile_change(struct statefile *f, const struct statefile_change *take)
{
	CGN_LIVE(f, STATEFILE_TAG);
	CGN_MUST(f->job == NULL);
	struct statefile_job *j = CGN_NEW(struct statefile_job);
	*j = (struct statefile_job){.f = f,
		.disk = f->disk,
		.change = *take,
		.result = {.text = cgn_buf_view(&take->text)}};
	atomic_fetch_add(&f->disk->refs, 1);
	f->job = j;
	cgn_loop_write(f->loop, job_run, job_done, j);
}

void statefile_write(struct statefile *f, struct cgn_buf *take)
{
	statefile_change(f, &(struct statefile_change){.text = *take, .mode = 0600});
	*take = (struct cgn_buf){0};
}

void statefile_close(struct statefile **take, const struct cgn_buf *last)
{
	struct statefile *f = *take;
	struct cgn_err err = {.code = CGN_FINE};
	*take = NULL;
	if (f == NULL)
		return;
	CGN_LIVE(f, STATEFILE_TAG);
	if (f->job != NULL)
		f->job->f = NULL;
	(void)pthread_mutex_lock(&f->disk->lock);
	f->disk->over = true;
	if (last != NULL) {
		(void)!cgn_ok(bytes_write(f->disk, last, 0600, &err));
		write_report(f, &err);
	}
	(void)pthread_mutex_unlock(&f->disk->lock);
	disk_unref(f->disk);
	f->tag = 0;
	free(f);
}
