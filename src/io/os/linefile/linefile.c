/* SPDX-License-Identifier: Apache-2.0 */
#include "io/os/linefile/linefile.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/core/buf.h"

#define LINEFILE_TAG 0x11efe11eU
#define PATH_BYTES   4200
#define GATHER       (50 * CGN_MSEC) /* Lines are gathered for so long, or until half of the room is used. */

struct linefile {
	uint32_t tag;
	pthread_t thread;
	pthread_mutex_t lock; /* Guards all below. */
	pthread_cond_t wake;
	struct cgn_buf waiting;
	uint64_t dropped;
	int fd, next_fd; /* next_fd: replaces |fd| before the next batch; -1: none. */
	bool stop;
	bool torn;                 /* The thread's: the last write ended inside a line. */
	struct linefile_seal seal; /* seal.seal is NULL: lines are written as they are. */
	/* Bound of the file; the thread's. */
	char *path;           /* NULL: not bounded */
	uint64_t size, limit; /* Bytes of the current file, and where it is rotated */
	unsigned files;
};

/* Return how many lines of |batch| were not written. */
static uint64_t batch_write(struct linefile *f, int fd, struct cgn_str batch)
{
	uint64_t lost = 0;
	if (f->torn && write(fd, "\n", 1) == 1)
		f->torn = false;
	while (batch.n > 0) {
		ssize_t n = write(fd, batch.p, batch.n);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			break;
		f->torn = batch.p[n - 1] != '\n';
		f->size += (size_t)n;
		batch.p += n;
		batch.n -= (size_t)n;
	}
	for (size_t i = 0; i < batch.n; i++)
		lost += batch.p[i] == '\n';
	return lost;
}

static off_t file_end(int fd)
{
	struct stat st;
	return fstat(fd, &st) == 0 ? st.st_size : 0;
}

/* Write the whole line, or leave the file as it was. */
static bool line_write(struct linefile *f, int fd, struct cgn_str line)
{
	off_t end = file_end(fd);
	struct cgn_str rest = line;
	while (rest.n > 0) {
		ssize_t n = write(fd, rest.p, rest.n);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0) {
			if (rest.n < line.n && ftruncate(fd, end) != 0)
				f->torn = true;
			return false;
		}
		rest.p += n;
		rest.n -= (size_t)n;
	}
	f->size += line.n;
	return true;
}

/* Return how many lines of |batch| were not written. */
static uint64_t batch_seal(struct linefile *f, int fd, struct cgn_str batch)
{
	uint64_t lost = 0;
	struct cgn_buf sealed = {0};
	if (f->torn && write(fd, "\n", 1) == 1)
		f->torn = false;
	while (batch.n > 0) {
		const char *end = memchr(batch.p, '\n', batch.n);
		size_t n = end != NULL ? (size_t)(end - batch.p) + 1 : batch.n;
		sealed.n = 0;
		f->seal.seal(f->seal.user, (struct cgn_str){batch.p, n}, &sealed);
		if (!sealed.bad && line_write(f, fd, cgn_buf_view(&sealed)))
			f->seal.kept(f->seal.user, cgn_buf_view(&sealed));
		else
			lost++;
		sealed.bad = false;
		batch.p += n;
		batch.n -= n;
	}
	(void)fdatasync(fd);
	cgn_buf_fini(&sealed);
	return lost;
}

static void path_nth(const struct linefile *f, unsigned nth, char *out, size_t cap)
{
	if (nth == 0)
		(void)snprintf(out, cap, "%s", f->path);
	else
		(void)snprintf(out, cap, "%s.%u", f->path, nth);
}

/* Make room for |n| bytes: shift the files by one and begin the first. Where that fails, the file is emptied, so that the
 * bound holds. Return the descriptor to write to. */
static int file_rotate(struct linefile *f, int fd, size_t n)
{
	char from[PATH_BYTES], to[PATH_BYTES];
	if (f->path == NULL || f->size == 0 || f->size + n <= f->limit)
		return fd;
	for (unsigned i = f->files - 1; i > 0; i--) {
		path_nth(f, i - 1, from, sizeof from);
		path_nth(f, i, to, sizeof to);
		(void)rename(from, to);
	}
	int fresh =
		f->files > 1 ? open(f->path, O_WRONLY | O_APPEND | O_CREAT | O_EXCL | O_CLOEXEC, 0640) : -1;
	f->size = 0;
	f->torn = false;
	if (fresh < 0) {
		(void)!ftruncate(fd, 0);
		return fd;
	}
	return fresh;
}

/* Wait for lines, then a moment for more of them. Called with the lock. */
static void lines_await(struct linefile *f)
{
	while (f->waiting.n == 0 && !f->stop)
		(void)pthread_cond_wait(&f->wake, &f->lock);
	struct timespec until;
	(void)clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_nsec += (long)GATHER;
	until.tv_sec += until.tv_nsec / (long)CGN_SEC;
	until.tv_nsec %= (long)CGN_SEC;
	while (f->waiting.n < LINEFILE_WAITING / 2 && !f->stop)
		if (pthread_cond_timedwait(&f->wake, &f->lock, &until) == ETIMEDOUT)
			break;
}

/* Called with the lock. */
static void file_swap(struct linefile *f)
{
	if (f->next_fd < 0)
		return;
	close(f->fd);
	f->fd = f->next_fd;
	f->next_fd = -1;
	f->torn = false;
	f->size = (uint64_t)file_end(f->fd);
}

static void *writer_run(void *arg)
{
	struct linefile *f = arg;
	struct cgn_buf batch = {.limit = LINEFILE_WAITING};
	(void)pthread_mutex_lock(&f->lock);
	while (!f->stop || f->waiting.n > 0) {
		lines_await(f);
		file_swap(f);
		struct cgn_buf empty = batch;
		batch = f->waiting;
		f->waiting = empty;
		int fd = f->fd;
		(void)pthread_mutex_unlock(&f->lock);
		int to = file_rotate(f, fd, batch.n);
		uint64_t lost = f->seal.seal != NULL ? batch_seal(f, to, cgn_buf_view(&batch))
						     : batch_write(f, to, cgn_buf_view(&batch));
		batch.n = 0;
		(void)pthread_mutex_lock(&f->lock);
		if (to != fd) {
			close(fd);
			f->fd = to;
		}
		f->dropped += lost;
	}
	(void)pthread_mutex_unlock(&f->lock);
	cgn_buf_fini(&batch);
	return NULL;
}

static CGN_RC file_open(const char *path, int *out, struct cgn_err *err)
{
	int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY, 0640);
	if (fd < 0)
		return CGN_FAIL_AS(err, cgn_code_from_errno(errno), "cannot open %s for appending: %s", path,
			strerror(errno));
	*out = fd;
	return CGN_OK;
}

CGN_RC linefile_open(const char *path, struct linefile **out, struct cgn_err *err)
{
	return linefile_open_bounded(path, 0, 1, out, err);
}

static void file_bound(struct linefile *f, const char *path, uint64_t size, unsigned files)
{
	if (size == 0)
		return;
	f->path = cgn_str_dupz(cgn_str_of(path));
	f->limit = size;
	f->files = files > 0 ? files : 1;
	f->size = (uint64_t)file_end(f->fd);
}

CGN_RC linefile_open_bounded(const char *path, uint64_t size, unsigned files, struct linefile **out,
	struct cgn_err *err)
{
	return linefile_open_sealed(path, size, files, &(struct linefile_seal){0}, out, err);
}

CGN_RC linefile_open_sealed(const char *path, uint64_t size, unsigned files, const struct linefile_seal *seal,
	struct linefile **out, struct cgn_err *err)
{
	int fd = -1;
	pthread_condattr_t monotonic;
	CGN_TRY(file_open(path, &fd, err));
	struct linefile *f = CGN_NEW(struct linefile);
	*f = (struct linefile){.tag = LINEFILE_TAG,
		.fd = fd,
		.next_fd = -1,
		.seal = *seal,
		.waiting.limit = LINEFILE_WAITING};
	file_bound(f, path, size, files);
	(void)pthread_mutex_init(&f->lock, NULL);
	(void)pthread_condattr_init(&monotonic);
	(void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	(void)pthread_cond_init(&f->wake, &monotonic);
	(void)pthread_condattr_destroy(&monotonic);
	if (pthread_create(&f->thread, NULL, writer_run, f) != 0) {
		close(fd);
		free(f->path);
		free(f);
		return CGN_FAIL(err, NO_MEMORY, "no thread to write %s", path);
	}
	*out = f;
	return CGN_OK;
}

void linefile_close(struct linefile **take)
{
	struct linefile *f = CGN_TAKE_LIVE(take, LINEFILE_TAG);
	if (f == NULL)
		return;
	(void)pthread_mutex_lock(&f->lock);
	f->stop = true;
	(void)pthread_cond_signal(&f->wake);
	(void)pthread_mutex_unlock(&f->lock);
	(void)pthread_join(f->thread, NULL);
	file_swap(f);
	close(f->fd);
	(void)pthread_cond_destroy(&f->wake);
	(void)pthread_mutex_destroy(&f->lock);
	cgn_buf_fini(&f->waiting);
	f->tag = 0;
	free(f->path);
	free(f);
}

void linefile_add(struct linefile *f, struct cgn_str line)
{
	CGN_LIVE(f, LINEFILE_TAG);
	(void)pthread_mutex_lock(&f->lock);
	size_t before = f->waiting.n;
	cgn_buf_str(&f->waiting, line);
	f->dropped += f->waiting.bad;
	f->waiting.bad = false;
	bool tell = before == 0 || (before < LINEFILE_WAITING / 2 && f->waiting.n >= LINEFILE_WAITING / 2);
	if (tell)
		(void)pthread_cond_signal(&f->wake);
	(void)pthread_mutex_unlock(&f->lock);
}

CGN_RC linefile_reopen(struct linefile *f, const char *path, struct cgn_err *err)
{
	int fd = -1;
	CGN_LIVE(f, LINEFILE_TAG);
	CGN_TRY(file_open(path, &fd, err));
	(void)pthread_mutex_lock(&f->lock);
	int unused = f->next_fd;
	f->next_fd = fd;
	(void)pthread_mutex_unlock(&f->lock);
	if (unused >= 0)
		close(unused);
	return CGN_OK;
}

uint64_t linefile_dropped(struct linefile *f)
{
	CGN_LIVE(f, LINEFILE_TAG);
	(void)pthread_mutex_lock(&f->lock);
	uint64_t n = f->dropped;
	(void)pthread_mutex_unlock(&f->lock);
	return n;
}
