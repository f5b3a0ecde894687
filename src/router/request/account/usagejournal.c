/* SPDX-License-Identifier: Apache-2.0 */
/* A line is a checksum of the rest in 16 hexadecimal digits, a letter, and the rest: "r" and a row, or "m", a day and a
 * digest. */
#include "router/request/account/usagejournal.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/digest/digest.h"
#include "base/log/log.h"
#include "io/os/disk/disk.h"

#define JOURNAL_TAG 0x64ac0511U
#define SUM         16

struct usage_journal {
	uint32_t tag;
	pthread_mutex_t lock;
	struct cgn_loop *loop;
	char *path;
	int fd; /* -1: it could not be opened. */
	struct cgn_timer timer;
	struct cgn_post post;
	/* Under |lock|. */
	struct cgn_buf fresh; /* Lines that are to be written. */
	struct cgn_buf since; /* Lines since the last mark. */
	bool posted, closed;
	bool told;    /* The log has that it cannot be written. */
	size_t bytes; /* The size of the file with |fresh|. */
};

uint64_t usage_journal_digest(struct cgn_str text)
{
	struct digest d = digest_of(text);
	return digest_short(&d);
}

static void journal_fail(struct usage_journal *j, const char *what)
{
	if (!j->told)
		cgn_log(WARN, "router.usage_journal", F_STR("file", j->path), F_STR("what", what),
			F_STR("why", strerror(errno)),
			F_STR("then", "a router that is killed forgets the usage of its last seconds"));
	j->told = true;
}

static void file_open(struct usage_journal *j)
{
	j->fd = open(j->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	if (j->fd < 0 && errno != ENOENT) /* The folder is made with the first day's file. */
		journal_fail(j, "open");
}

struct usage_journal *usage_journal_open(struct cgn_loop *l, const char *path)
{
	struct usage_journal *j = CGN_NEW(struct usage_journal);
	*j = (struct usage_journal){.tag = JOURNAL_TAG,
		.loop = l,
		.path = cgn_str_dupz(cgn_str_of(path)),
		.fd = -1};
	(void)pthread_mutex_init(&j->lock, NULL);
	return j;
}

/* ---- writing ---- */

static bool bytes_write(int fd, struct cgn_str s)
{
	while (s.n > 0) {
		ssize_t n = write(fd, s.p, s.n);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return false;
		s = (struct cgn_str){s.p + n, s.n - (size_t)n};
	}
	return true;
}

void usage_journal_flush(struct usage_journal *j)
{
	CGN_LIVE(j, JOURNAL_TAG);
	(void)pthread_mutex_lock(&j->lock);
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf lines = j->fresh;
	j->fresh = (struct cgn_buf){0};
	(void)pthread_mutex_unlock(&j->lock);
	if (lines.n == 0)
		return;
	if (j->fd < 0)
		file_open(j);
	if (j->fd >= 0 && !bytes_write(j->fd, cgn_buf_view(&lines)))
		journal_fail(j, "write");
}

static void journal_free(struct usage_journal *j)
{
	cgn_buf_fini(&j->fresh);
	cgn_buf_fini(&j->since);
	if (j->fd >= 0)
		(void)close(j->fd);
	(void)pthread_mutex_destroy(&j->lock);
	free(j->path);
	j->tag = 0;
	free(j);
}

static void on_timer(struct cgn_timer *t)
{
	usage_journal_flush(CGN_CONTAINER(t, struct usage_journal, timer));
}

static void on_post(struct cgn_loop *l, struct cgn_post *p)
{
	(void)l;
	struct usage_journal *j = CGN_CONTAINER(p, struct usage_journal, post);
	(void)pthread_mutex_lock(&j->lock);
	bool closed = j->closed;
	j->posted = false;
	(void)pthread_mutex_unlock(&j->lock);
	if (closed) {
		journal_free(j);
		return;
	}
	if (j->timer.at == 0) {
		cgn_timer_init(&j->timer, j->loop, on_timer);
		cgn_timer_set(&j->timer, JOURNAL_EVERY);
	}
}

/* Under the lock. */
static void line_put(struct usage_journal *j, struct cgn_str rest)
{
	uint64_t sum = usage_journal_digest((struct cgn_str){rest.p, rest.n - 1});
	char head[SUM + 1];
	(void)snprintf(head, sizeof head, "%016llx", (unsigned long long)sum);
	struct cgn_buf *to[] = {&j->fresh, &j->since};
	for (size_t i = 0; i < CGN_COUNT(to); i++) {
		cgn_buf_add(to[i], head, SUM);
		cgn_buf_str(to[i], rest);
	}
	j->bytes += SUM + rest.n;
	if (!j->posted)
		cgn_loop_post(j->loop, &j->post, on_post);
	j->posted = true;
}

void usage_journal_add(struct usage_journal *j, struct cgn_str row)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf line = {0};
	CGN_LIVE(j, JOURNAL_TAG);
	cgn_buf_char(&line, 'r');
	cgn_buf_str(&line, row);
	(void)pthread_mutex_lock(&j->lock);
	if (!line.bad && j->bytes + line.n < JOURNAL_MOST)
		line_put(j, cgn_buf_view(&line));
	(void)pthread_mutex_unlock(&j->lock);
}

void usage_journal_mark(struct usage_journal *j, uint64_t day, struct cgn_str text, bool open)
{
	char line[64];
	CGN_LIVE(j, JOURNAL_TAG);
	int n = snprintf(line, sizeof line, "m%llu %llu\n", (unsigned long long)day,
		(unsigned long long)usage_journal_digest(text));
	(void)pthread_mutex_lock(&j->lock);
	line_put(j, (struct cgn_str){line, (size_t)n});
	if (open)
		cgn_buf_fini(&j->since);
	(void)pthread_mutex_unlock(&j->lock);
}

/* Write |lines| beside the file and put them in its place. */
static bool file_replace(struct usage_journal *j, struct cgn_str lines)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf part = {0};
	cgn_buf_fmt(&part, "%s.part", j->path);
	int fd = open(cgn_buf_z(&part), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
	bool done = fd >= 0 && bytes_write(fd, lines) && rename(cgn_buf_z(&part), j->path) == 0;
	int old = done ? j->fd : fd;
	if (old >= 0)
		(void)close(old);
	if (done)
		j->fd = fd;
	return done;
}

/* The lines of |fresh| are in |since| too. Only this thread writes the file, so lines that come meanwhile wait. */
void usage_journal_saved(struct usage_journal *j)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf lines = {0};
	CGN_LIVE(j, JOURNAL_TAG);
	(void)pthread_mutex_lock(&j->lock);
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf fresh = j->fresh;
	j->fresh = (struct cgn_buf){0};
	cgn_buf_str(&lines, cgn_buf_view(&j->since));
	(void)pthread_mutex_unlock(&j->lock);
	bool done = !lines.bad && file_replace(j, cgn_buf_view(&lines));
	if (!done)
		journal_fail(j, "rewrite");
	if (!done && j->fd >= 0)
		(void)bytes_write(j->fd, cgn_buf_view(&fresh));
	(void)pthread_mutex_lock(&j->lock);
	j->bytes = done ? lines.n + j->fresh.n : j->bytes;
	(void)pthread_mutex_unlock(&j->lock);
}

void usage_journal_close(struct usage_journal **take)
{
	struct usage_journal *j = CGN_TAKE_LIVE(take, JOURNAL_TAG);
	if (j == NULL)
		return;
	usage_journal_flush(j);
	cgn_timer_cancel(&j->timer);
	(void)pthread_mutex_lock(&j->lock);
	bool posted = j->posted;
	j->closed = true;
	(void)pthread_mutex_unlock(&j->lock);
	if (!posted)
		journal_free(j);
}

/* ---- reading ---- */

/* Cut the next line off |text|, without its checksum. False: the end is there, or a line was half written. */
static bool line_next(struct cgn_str *text, struct cgn_str *out)
{
	char sum[SUM + 1];
	const char *end = text->n > SUM + 1 ? memchr(text->p, '\n', text->n) : NULL;
	if (end == NULL || end - text->p < SUM + 1)
		return false;
	*out = (struct cgn_str){text->p + SUM, (size_t)(end - text->p) - SUM};
	(void)snprintf(sum, sizeof sum, "%016llx", (unsigned long long)usage_journal_digest(*out));
	*text = (struct cgn_str){end + 1, text->n - (size_t)(end + 1 - text->p)};
	return memcmp(out->p - SUM, sum, SUM) == 0;
}

#define MARKS \
	64 /* Days with a mark that are told apart: more than one only if the clock was set, or at midnight. */
struct journal_marks {
	uint64_t day[MARKS];
	const char *behind[MARKS]; /* Rows of the day before it are saved. */
	size_t n;
};

static void marks_put(struct journal_marks *m, uint64_t day, const char *behind)
{
	size_t i = 0;
	while (i < m->n && m->day[i] != day)
		i++;
	if (i == MARKS)
		return;
	m->day[i] = day;
	m->behind[i] = behind;
	m->n += i == m->n;
}

static void marks_find(struct cgn_str text, bool (*has)(void *arg, uint64_t day, uint64_t digest), void *arg,
	struct journal_marks *out)
{
	struct cgn_str line;
	out->n = 0;
	while (line_next(&text, &line)) {
		uint64_t day = 0, digest = 0;
		struct cgn_str rest = {line.p + 1, line.n - 1};
		if (line.p[0] == 'm' && cgn_str_u64(cgn_str_split(&rest, ' '), &day) &&
			cgn_str_u64(rest, &digest) && has(arg, day, digest))
			marks_put(out, day, text.p);
	}
}

static bool row_is_saved(const struct journal_marks *m, struct cgn_str row)
{
	uint64_t hour = 0;
	const char *at = row.p;
	if (!cgn_str_u64(cgn_str_split(&row, ' '), &hour))
		return true;
	for (size_t i = 0; i < m->n; i++)
		if (m->day[i] == hour / 24)
			return at < m->behind[i];
	return false;
}

bool usage_journal_read(struct usage_journal *j, bool (*has)(void *arg, uint64_t day, uint64_t digest),
	void (*row)(void *arg, struct cgn_str line), void *arg)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf file = {0};
	struct journal_marks marks;
	struct cgn_str line;
	CGN_LIVE(j, JOURNAL_TAG);
	if (!cgn_ok(disk_read_file(j->path, 2 * JOURNAL_MOST, &file, NULL)))
		return false;
	struct cgn_str text = cgn_buf_view(&file);
	marks_find(text, has, arg, &marks);
	while (line_next(&text, &line)) {
		const struct cgn_str rest = {line.p + 1, line.n - 1};
		if (line.p[0] == 'r' && !row_is_saved(&marks, rest))
			row(arg, rest);
	}
	return true;
}
