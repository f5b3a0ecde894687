/* SPDX-License-Identifier: Apache-2.0 */
/* file: brings one file into the folder. It is written beside its final name as NAME.part, and gets that name once its
 * size and checksum are right and it is on disk. What a broken pull left is continued: a part of a file with a known
 * checksum always, another one only if the server still has the version whose ETag is beside it (NAME.part.etag). */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <sys/file.h>
#include <sys/stat.h>

#include "base/crypto/crypto.h"
#include "ctl/model/pull_priv.h"
#include "io/os/disk/disk.h"

#define PIECE ((size_t)1 << 20)

struct part {
	struct pull *pull;
	const struct modelsource_file *file;
	char path[PULL_PATH], part[PULL_PATH + 8], etag_path[PULL_PATH + 16];
	int fd;
	uint64_t have;         /* Bytes of the part that are right, as far as is known. */
	uint64_t counted;      /* Bytes of |have| that pull.bytes has. */
	struct crypto_sum sum; /* The sum of |have|'s bytes. */
	char etag[256];
	bool again;         /* The next try begins from the start. */
	bool whole;         /* The server says that nothing is missing. */
	struct cgn_err why; /* A failure inside a callback. */
};

static void hex_write(const struct sha256 *s, char out[65])
{
	for (size_t i = 0; i < sizeof s->b; i++)
		(void)snprintf(out + 2 * i, 3, "%02x", s->b[i]);
}

static void bytes_count(struct part *t)
{
	if (t->have >= t->counted)
		atomic_fetch_add(&t->pull->bytes, t->have - t->counted);
	else
		atomic_fetch_sub(&t->pull->bytes, t->counted - t->have);
	t->counted = t->have;
}

CGN_RC pull_hash(const char *path, char sha256[65], uint64_t *size, struct cgn_err *err)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	char *piece = CGN_NEW_ARRAY(char, PIECE);
	struct crypto_sum sum;
	ssize_t n = -1;
	*size = 0;
	crypto_sum_begin(&sum);
	while (fd >= 0 && (n = read(fd, piece, PIECE)) > 0) {
		crypto_sum_add(&sum, piece, (size_t)n);
		*size += (uint64_t)n;
	}
	int why = errno;
	if (fd >= 0)
		(void)close(fd);
	free(piece);
	if (n != 0)
		return CGN_FAIL(err, STORAGE, "%s: %s", path, strerror(why));
	const struct sha256 s = crypto_sum_end(&sum);
	hex_write(&s, sha256);
	return CGN_OK;
}

/* ---- the part ---- */

static CGN_RC part_empty(struct part *t, struct cgn_err *err)
{
	if (ftruncate(t->fd, 0) != 0)
		return CGN_FAIL(err, STORAGE, "%s: %s", t->part, strerror(errno));
	t->have = 0;
	t->etag[0] = '\0';
	crypto_sum_begin(&t->sum);
	bytes_count(t);
	(void)unlink(t->etag_path);
	return CGN_OK;
}

/* Hash the bytes that are there already. */
static CGN_RC part_read(struct part *t, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf etag = {0};
	char *piece = CGN_NEW_ARRAY(char, PIECE);
	ssize_t n = 0;
	t->have = 0;
	crypto_sum_begin(&t->sum);
	while ((n = pread(t->fd, piece, PIECE, (off_t)t->have)) > 0) {
		crypto_sum_add(&t->sum, piece, (size_t)n);
		t->have += (uint64_t)n;
	}
	free(piece);
	if (n < 0)
		return CGN_FAIL(err, STORAGE, "%s: %s", t->part, strerror(errno));
	if (cgn_ok(disk_read_file(t->etag_path, sizeof t->etag - 1, &etag, NULL)))
		(void)cgn_str_copyz(t->etag, sizeof t->etag, cgn_buf_view(&etag));
	bool known = t->file->sha256[0] != '\0' || t->etag[0] != '\0';
	if (t->have > 0 && (!known || (t->file->size != UINT64_MAX && t->have > t->file->size)))
		return part_empty(t, err);
	bytes_count(t);
	return CGN_OK;
}

/* A file is not written through a link to another folder. The folder of the pull itself may be one. */
static CGN_RC folders_check(const struct part *t, struct cgn_err *err)
{
	char at[PULL_PATH];
	struct stat st;
	(void)snprintf(at, sizeof at, "%s", t->path);
	for (char *slash = at + strlen(t->pull->to) + 1; (slash = strchr(slash, '/')) != NULL;
		*slash++ = '/') {
		*slash = '\0';
		if (lstat(at, &st) == 0 && S_ISLNK(st.st_mode))
			return CGN_FAIL(err, CONFLICT,
				"%s is a link, and files of a model are not written through one: remove it, or pull into another folder",
				at);
	}
	return CGN_OK;
}

static CGN_RC part_open(struct part *t, struct cgn_err *err)
{
	char folder[PULL_PATH];
	(void)snprintf(folder, sizeof folder, "%s", t->path);
	*strrchr(folder, '/') = '\0';
	CGN_TRY(disk_mkdirs(folder, 0755, err));
	t->fd = open(t->part, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
	if (t->fd < 0)
		return CGN_FAIL(err, STORAGE, "%s: %s", t->part, strerror(errno));
	if (flock(t->fd, LOCK_EX | LOCK_NB) != 0)
		return CGN_FAIL(err, CONFLICT, "%s: another pull is writing this file", t->part);
	return part_read(t, err);
}

static bool part_fail(struct part *t, cgn_rc rc)
{
	(void)rc; /* The sentence is in |why|. */
	t->why.code = t->why.code != CGN_FINE ? t->why.code : rc.code;
	return false;
}

static bool part_write(void *user, const void *p, size_t n)
{
	struct part *t = user;
	if (t->file->size != UINT64_MAX && t->have + n > t->file->size) {
		t->again = true;
		return part_fail(t,
			CGN_FAIL(&t->why, BAD_GATEWAY,
				"%s: the server sends more than the %llu bytes that its list says",
				t->file->path, (unsigned long long)t->file->size));
	}
	const char *from = p;
	for (size_t left = n; left > 0;) {
		ssize_t k = pwrite(t->fd, from, left, (off_t)(t->have + (n - left)));
		if (k <= 0)
			return part_fail(t,
				CGN_FAIL(&t->why, STORAGE, "%s: %s", t->part,
					strerror(k == 0 ? EIO : errno)));
		from += k;
		left -= (size_t)k;
	}
	crypto_sum_add(&t->sum, p, n);
	t->have += n;
	bytes_count(t);
	return true;
}

static bool is_stopped(void *user)
{
	const struct part *t = user;
	return atomic_load(&t->pull->stop);
}

/* ---- the server ---- */

/* Keep the ETag of a version that can be continued; weak ones don't say that the bytes are the same. */
static void etag_keep(struct part *t, const struct fetch_result *r)
{
	bool strong = r->etag[0] == '"';
	if (t->file->sha256[0] == '\0' && strong)
		(void)!cgn_ok(disk_write_file_atomic(t->etag_path, cgn_str_of(r->etag), 0644, NULL));
}

static bool on_head(void *user, const struct fetch_result *r)
{
	struct part *t = user;
	if (r->status == 206 && r->range_first == t->have)
		return true;
	if (r->status == 416 && r->range_total == t->have) {
		t->whole = true;
		return false;
	}
	if (r->status == 200 || r->status == 206 || r->status == 416) {
		/* Another version, or a server that knows no ranges: from the start. */
		if (!cgn_ok(part_empty(t, &t->why)))
			return false;
		t->again = r->status != 200;
		etag_keep(t, r);
		return r->status == 200;
	}
	return false;
}

static CGN_RC server_ask(struct part *t, struct fetch *f, const char *url, struct fetch_result *r,
	struct cgn_err *err)
{
	struct fetch_request rq;
	pull_request(t->pull, url, &rq);
	rq.from = t->have;
	rq.if_range = t->file->sha256[0] == '\0' ? t->etag : NULL;
	rq.on_head = on_head;
	rq.on_body = part_write;
	rq.stopped = is_stopped;
	rq.user = t;
	t->again = t->whole = false;
	t->why.code = CGN_FINE;
	cgn_rc rc = fetch_run(f, &rq, r, err);
	if (t->why.code != CGN_FINE) {
		*err = t->why;
		return CGN_RC_OF(err->code);
	}
	CGN_TRY(rc);
	if (t->again)
		return CGN_FAIL(err, UNAVAILABLE,
			"%.*s: the file has changed meanwhile; it is fetched from the start",
			(int)strcspn(url, "?"), url);
	return t->whole || r->status == 200 || r->status == 206 ? CGN_OK
								: pull_refusal(t->pull, url, r->status, err);
}

static bool is_worth_again(const struct cgn_err *err, const struct fetch_result *r)
{
	return err->code == CGN_UNAVAILABLE &&
		(r->status < 400 || r->status >= 500 || r->status == 429 || r->status == 408);
}

static void pause_before(const struct part *t, unsigned try, const struct fetch_result *r)
{
	unsigned seconds = r->retry_after > 0 ? r->retry_after : 1U << (try < 5 ? try : 5);
	for (unsigned i = 0; i < 10 * seconds && !is_stopped((void *)(uintptr_t)t); i++)
		(void)nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
}

static CGN_RC part_fetch(struct part *t, struct fetch *f, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf url = {0};
	struct fetch_result r = {.status = 0};
	pull_url(t->pull, t->file, &url);
	if (t->have == t->file->size && t->have > 0)
		return CGN_OK;
	for (unsigned try = 0;; try++) {
		uint64_t before = t->have;
		cgn_rc rc = server_ask(t, f, cgn_buf_z(&url), &r, err);
		if (cgn_ok(rc) || is_stopped(t) || !is_worth_again(err, &r))
			return rc;
		if (t->have > before)
			try = 0; /* Slow progress does not count as a failure. */
		if (try >= t->pull->retries)
			return rc;
		if (!ctl_is_terminal(STDERR_FILENO))
			(void)fprintf(stderr, "cgn-ctl: %s; trying again\n", ctl_shown(err->msg));
		pause_before(t, try, &r);
	}
}

static CGN_RC part_copy(struct part *t, struct cgn_err *err)
{
	int fd = open(t->file->where, O_RDONLY | O_CLOEXEC);
	char *piece = CGN_NEW_ARRAY(char, PIECE);
	ssize_t n = -1;
	cgn_rc rc = part_empty(t, err);
	while (cgn_ok(rc) && fd >= 0 && (n = read(fd, piece, PIECE)) > 0 && !is_stopped(t)) {
		if (part_write(t, piece, (size_t)n))
			continue;
		*err = t->why;
		rc = CGN_RC_OF(err->code);
	}
	if (cgn_ok(rc) && is_stopped(t))
		rc = CGN_FAIL(err, CANCELLED, "%s: ended", t->path);
	else if (cgn_ok(rc) && n != 0)
		rc = CGN_FAIL(err, STORAGE, "%s: %s", t->file->where, strerror(errno));
	if (fd >= 0)
		(void)close(fd);
	free(piece);
	return rc;
}

/* ---- the end ---- */

static CGN_RC part_check(struct part *t, struct pull_done *done, struct cgn_err *err)
{
	const struct modelsource_file *f = t->file;
	const struct sha256 s = crypto_sum_end(&t->sum);
	hex_write(&s, done->sha256);
	done->size = t->have;
	if (f->size != UINT64_MAX && t->have != f->size) {
		(void)!cgn_ok(part_empty(t, NULL));
		return CGN_FAIL(err, BAD_GATEWAY, "%s: %llu bytes came, the list says %llu", f->path,
			(unsigned long long)done->size, (unsigned long long)f->size);
	}
	if (f->sha256[0] != '\0' && strcmp(f->sha256, done->sha256) != 0) {
		(void)!cgn_ok(part_empty(t, NULL)); /* Never continued: something in it is wrong. */
		return CGN_FAIL(err, BAD_GATEWAY,
			"%s: the checksum of what came is sha256:%s, and should be sha256:%s; nothing of it was kept: pull again",
			f->path, done->sha256, f->sha256);
	}
	return CGN_OK;
}

static CGN_RC part_finish(struct part *t, struct cgn_err *err)
{
	char folder[PULL_PATH];
	if (fsync(t->fd) != 0 || rename(t->part, t->path) != 0)
		return CGN_FAIL(err, STORAGE, "%s: %s", t->path, strerror(errno));
	(void)unlink(t->etag_path);
	(void)snprintf(folder, sizeof folder, "%s", t->path);
	*strrchr(folder, '/') = '\0';
	int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd >= 0) {
		(void)fsync(fd);
		(void)close(fd);
	}
	return CGN_OK;
}

/* Is the file there already? Its sum is that of the record; without one, or with --sha256, it is computed
 * now. */
static bool is_there(struct part *t, struct pull_done *done)
{
	const struct modelsource_file *f = t->file;
	struct stat st;
	if (stat(t->path, &st) != 0 || !S_ISREG(st.st_mode))
		return false;
	if (f->size == UINT64_MAX ||
		(uint64_t)st.st_size !=
			f->size) /* Without a size only a sum tells whether it is the same version. */
		if (f->size != UINT64_MAX || f->sha256[0] == '\0')
			return false;
	done->size = (uint64_t)st.st_size;
	if (t->pull->sha256 ==
		NULL) /* A sum that the caller gave is compared with the bytes, not with the record. */
		pull_record_find(t->pull, f->path, done->size, done->sha256);
	if (done->sha256[0] == '\0' && !cgn_ok(pull_hash(t->path, done->sha256, &done->size, NULL)))
		return false;
	done->kept = f->sha256[0] == '\0' || strcmp(f->sha256, done->sha256) == 0;
	return done->kept;
}

CGN_RC pull_file(struct pull *p, struct fetch *f, size_t i, struct cgn_err *err)
{
	struct part *t = CGN_NEW(struct part);
	*t = (struct part){.pull = p, .file = &p->list.files[i], .fd = -1};
	(void)snprintf(t->path, sizeof t->path, "%s/%s", p->to, t->file->path);
	(void)snprintf(t->part, sizeof t->part, "%s.part", t->path);
	(void)snprintf(t->etag_path, sizeof t->etag_path, "%s.etag", t->part);
	cgn_rc rc = folders_check(t, err);
	if (cgn_ok(rc) && is_there(t, &p->done[i])) {
		t->have = p->done[i].size;
		bytes_count(t);
	} else if (cgn_ok(rc)) {
		rc = part_open(t, err);
		if (cgn_ok(rc))
			rc = p->source.kind == MODELSOURCE_PATH ? part_copy(t, err) : part_fetch(t, f, err);
		if (cgn_ok(rc))
			rc = part_check(t, &p->done[i], err);
		if (cgn_ok(rc))
			rc = part_finish(t, err);
	}
	if (t->fd >= 0 && !cgn_ok(rc) && t->have == 0 && rc.code != CGN_CONFLICT) /* Nothing to go on from. */
		(void)unlink(t->part);
	if (t->fd >= 0)
		(void)close(t->fd);
	free(t);
	return rc;
}
