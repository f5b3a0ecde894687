/* SPDX-License-Identifier: Apache-2.0 */
/* A line is a checksum of the rest in 16 hexadecimal digits, a letter, and the rest: "e", the id of the request's record or 0,
 * the minute and a row; "b", the same for a row that only the file of budgets lacks; "m", a day and a digest; "g" and the digest
 * of the file of budgets. Earlier versions wrote "r" and a row. */
#include "router/request/account/usagejournal.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/digest/digest.h"
#include "base/log/log.h"
#include "base/table/table.h"
#include "io/os/disk/disk.h"

#define JOURNAL_TAG 0x64ac0511U
#define SUM         16

struct usage_journal {
	uint32_t tag;
	pthread_mutex_t lock;
	struct cgn_loop *loop;
	char *path;
	int fd; /* -1: it could not be opened. */
	struct usage_open *open;
	struct cgn_timer timer;
	struct cgn_post post;
	/* Under |lock|. */
	struct cgn_buf fresh; /* Lines that are to be written. */
	struct cgn_buf since; /* Lines that a file may lack. */
	size_t day_at;        /* Where in |since| the last mark of the open day is, */
	size_t budgets_at;    /* the last mark of the budgets, and */
	size_t budgets_safe;  /* the last one whose text is on the disk. */
	size_t rows_end;      /* The end of the last row. */
	bool has_budgets;     /* There is a mark of the budgets. */
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
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf open_path = {0};
	cgn_buf_fmt(&open_path, "%s.open", path);
	j->open = usage_open_new(cgn_buf_z(&open_path));
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
	size_t ended = usage_open_ended(j->open); /* Rows of these requests are among the lines. */
	(void)pthread_mutex_lock(&j->lock);
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf lines = j->fresh;
	j->fresh = (struct cgn_buf){0};
	(void)pthread_mutex_unlock(&j->lock);
	if (lines.n > 0 && j->fd < 0)
		file_open(j);
	if (lines.n > 0 && j->fd >= 0 && !bytes_write(j->fd, cgn_buf_view(&lines)))
		journal_fail(j, "write");
	usage_open_clear(j->open, ended);
	if (!usage_open_write(j->open) && errno != ENOENT)
		journal_fail(j, "write what requests under way have used");
}

static void journal_free(struct usage_journal *j)
{
	cgn_buf_fini(&j->fresh);
	cgn_buf_fini(&j->since);
	usage_open_free(&j->open);
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
static void flush_soon(struct usage_journal *j)
{
	if (!j->posted)
		cgn_loop_post(j->loop, &j->post, on_post);
	j->posted = true;
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
	j->rows_end = rest.p[0] == 'e' || rest.p[0] == 'b' ? j->since.n : j->rows_end;
	j->bytes += SUM + rest.n;
	flush_soon(j);
}

static uint64_t minute_now(void)
{
	return cgn_clock_wall_ms() / 60000;
}

void usage_journal_add(struct usage_journal *j, struct cgn_str row, struct usage_place *place)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf line = {0};
	CGN_LIVE(j, JOURNAL_TAG);
	cgn_buf_fmt(&line, "e%llu %llu ", (unsigned long long)(place != NULL ? place->id : 0),
		(unsigned long long)minute_now());
	cgn_buf_str(&line, row);
	(void)pthread_mutex_lock(&j->lock);
	if (!line.bad && j->bytes + line.n < JOURNAL_MOST)
		line_put(j, cgn_buf_view(&line));
	(void)pthread_mutex_unlock(&j->lock);
	if (place != NULL)
		usage_open_end(j->open, place);
}

void usage_journal_put(struct usage_journal *j, struct cgn_str row, struct usage_place *place)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf line = {0};
	CGN_LIVE(j, JOURNAL_TAG);
	cgn_buf_fmt(&line, "%llu ", (unsigned long long)minute_now());
	cgn_buf_str(&line, row);
	if (!line.bad)
		usage_open_put(j->open, place, cgn_buf_view(&line));
	(void)pthread_mutex_lock(&j->lock);
	flush_soon(j);
	(void)pthread_mutex_unlock(&j->lock);
}

void usage_journal_drop(struct usage_journal *j, struct usage_place *place)
{
	CGN_LIVE(j, JOURNAL_TAG);
	usage_open_end(j->open, place);
	(void)pthread_mutex_lock(&j->lock);
	flush_soon(j);
	(void)pthread_mutex_unlock(&j->lock);
}

void usage_journal_mark(struct usage_journal *j, uint64_t day, struct cgn_str text, bool open)
{
	char line[64];
	CGN_LIVE(j, JOURNAL_TAG);
	int n = snprintf(line, sizeof line, "m%llu %llu\n", (unsigned long long)day,
		(unsigned long long)usage_journal_digest(text));
	(void)pthread_mutex_lock(&j->lock);
	j->day_at = open ? j->since.n : j->day_at;
	line_put(j, (struct cgn_str){line, (size_t)n});
	(void)pthread_mutex_unlock(&j->lock);
}

void usage_journal_budgets(struct usage_journal *j, uint64_t digest, bool saved)
{
	char line[64];
	CGN_LIVE(j, JOURNAL_TAG);
	int n = snprintf(line, sizeof line, "g%llu\n", (unsigned long long)digest);
	(void)pthread_mutex_lock(&j->lock);
	bool again = j->has_budgets && j->budgets_at + SUM + (size_t)n == j->since.n &&
		memcmp(j->since.p + j->budgets_at + SUM, line, (size_t)n) == 0;
	if (!again) {
		j->budgets_at = j->since.n;
		j->has_budgets = true;
		line_put(j, (struct cgn_str){line, (size_t)n});
	}
	j->budgets_safe = saved ? j->budgets_at : j->budgets_safe;
	(void)pthread_mutex_unlock(&j->lock);
}

static void place_cut(size_t *at, size_t n)
{
	*at -= n < *at ? n : *at;
}

/* Under the lock: drop the lines that no file lacks. */
static void since_cut(struct usage_journal *j, bool last)
{
	size_t n = j->has_budgets && j->budgets_safe < j->day_at ? j->budgets_safe : j->day_at;
	n = last && n >= j->rows_end ? j->since.n : n;
	cgn_buf_eat(&j->since, n);
	place_cut(&j->day_at, n);
	place_cut(&j->budgets_at, n);
	place_cut(&j->budgets_safe, n);
	place_cut(&j->rows_end, n);
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
void usage_journal_saved(struct usage_journal *j, bool last)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf lines = {0};
	CGN_LIVE(j, JOURNAL_TAG);
	size_t ended = usage_open_ended(j->open);
	(void)pthread_mutex_lock(&j->lock);
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf fresh = j->fresh;
	j->fresh = (struct cgn_buf){0};
	since_cut(j, last);
	cgn_buf_str(&lines, cgn_buf_view(&j->since));
	(void)pthread_mutex_unlock(&j->lock);
	bool done = !lines.bad && file_replace(j, cgn_buf_view(&lines));
	if (!done)
		journal_fail(j, "rewrite");
	if (!done && j->fd >= 0)
		(void)bytes_write(j->fd, cgn_buf_view(&fresh));
	usage_open_clear(j->open, ended);
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
	usage_open_free(&j->open);
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
	const char *budgets; /* The file of budgets has the rows before it; NULL: none says so. */
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

static void marks_find(struct cgn_str text, const struct usage_journal_reader *r, struct journal_marks *out)
{
	struct cgn_str line;
	*out = (struct journal_marks){.n = 0};
	while (line_next(&text, &line)) {
		uint64_t day = 0, digest = 0;
		struct cgn_str rest = {line.p + 1, line.n - 1};
		if (line.p[0] == 'm' && cgn_str_u64(cgn_str_split(&rest, ' '), &day) &&
			cgn_str_u64(rest, &digest) && r->has_day(r->arg, day, digest))
			marks_put(out, day, text.p);
		if (line.p[0] == 'g' && cgn_str_u64(rest, &digest) && digest == r->budgets)
			out->budgets = text.p;
	}
}

static bool row_is_saved(const struct journal_marks *m, const char *at, uint64_t hour)
{
	for (size_t i = 0; i < m->n; i++)
		if (m->day[i] == hour / 24)
			return at < m->behind[i];
	return false;
}

/* A row that is read, and the id of its request's record. */
struct journal_row {
	uint64_t id;
	struct usage_row row;
};

/* Read "MINUTE ROW". */
static bool minute_read(struct cgn_str text, struct usage_row *out)
{
	uint64_t minute = 0;
	if (!cgn_str_u64(cgn_str_split(&text, ' '), &minute) || minute > UINT32_MAX)
		return false;
	*out = (struct usage_row){.unix_s = minute * 60, .text = text, .for_day = true, .for_budgets = true};
	return true;
}

/* Read |line|. Returns false if it is not a row. */
static bool row_read(const struct journal_marks *m, const struct usage_journal_reader *r, struct cgn_str line,
	struct journal_row *out)
{
	struct cgn_str rest = {line.p + 1, line.n - 1}, row = rest;
	uint64_t hour = 0;
	char kind = line.p[0];
	*out = (struct journal_row){0};
	if (kind == 'r') /* The file of budgets had no marks then. */
		out->row = (struct usage_row){.text = rest, .for_day = true};
	else if ((kind != 'e' && kind != 'b') || !cgn_str_u64(cgn_str_split(&row, ' '), &out->id) ||
		!minute_read(row, &out->row))
		return false;
	row = out->row.text;
	if (!cgn_str_u64(cgn_str_split(&row, ' '), &hour))
		return false;
	out->row.for_day = kind != 'b' && !row_is_saved(m, line.p, hour);
	out->row.for_budgets = kind != 'r' && (m->budgets != NULL ? line.p >= m->budgets : r->budgets == 0);
	return true;
}

/* Keep a row that was read. */
static void row_keep(struct usage_journal *j, const struct journal_row *row)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf line = {0};
	cgn_buf_fmt(&line, "%c%llu %llu %.*s\n", row->row.for_day ? 'e' : 'b', (unsigned long long)row->id,
		(unsigned long long)(row->row.unix_s / 60), CGN_STR_ARG(row->row.text));
	if (!line.bad)
		line_put(j, cgn_buf_view(&line));
}

/* The ids of records whose requests have ended. */
struct journal_ids {
	struct table table;
	uint64_t *v;
	size_t n, cap;
	uint64_t last;
};

static void ids_add(struct journal_ids *ids, uint64_t id)
{
	if (id == 0)
		return;
	if (ids->n == ids->cap) {
		ids->cap = ids->cap > 0 ? 2 * ids->cap : 64;
		ids->v = CGN_GROWN(ids->v, ids->cap);
	}
	ids->v[ids->n] = id;
	table_put(&ids->table, id, (uint32_t)ids->n++);
	ids->last = id > ids->last ? id : ids->last;
}

static bool ids_has(const struct journal_ids *ids, uint64_t id)
{
	table_each (at, &ids->table, id)
		if (ids->v[at.number] == id)
			return true;
	return false;
}

struct journal_reading {
	struct usage_journal *j;
	const struct usage_journal_reader *r;
	struct journal_ids ids;
};

static void row_give(struct journal_reading *g, const struct journal_row *row)
{
	if (!row->row.for_day && !row->row.for_budgets)
		return;
	g->r->row(g->r->arg, &row->row);
	row_keep(g->j, row);
}

static void record_give(void *arg, uint64_t id, struct cgn_str text)
{
	struct journal_reading *g = arg;
	struct journal_row row = {.id = id};
	if (!ids_has(&g->ids, id) && minute_read(text, &row.row))
		row_give(g, &row);
}

/* Give the rows, those that the file of budgets has before the others. */
static void rows_give(struct journal_reading *g, const struct journal_marks *m, struct cgn_str all)
{
	struct journal_row row;
	struct cgn_str line;
	for (int late = 0; late < 2; late++) {
		struct cgn_str text = all;
		while (line_next(&text, &line)) {
			if (!row_read(m, g->r, line, &row))
				continue;
			if (late == 0)
				ids_add(&g->ids, row.id);
			if (row.row.for_budgets == (late == 1))
				row_give(g, &row);
		}
		if (late == 0 && m->budgets != NULL)
			usage_journal_budgets(g->j, g->r->budgets, true);
	}
}

void usage_journal_read(struct usage_journal *j, const struct usage_journal_reader *r)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf file = {0};
	struct journal_marks marks;
	struct journal_reading reading = {.j = j, .r = r};
	CGN_LIVE(j, JOURNAL_TAG);
	bool there = cgn_ok(disk_read_file(j->path, 2 * JOURNAL_MOST, &file, NULL));
	marks_find(cgn_buf_view(&file), r, &marks);
	rows_give(&reading, &marks, cgn_buf_view(&file));
	if (marks.budgets == NULL && r->budgets != 0) /* Nothing tells which of these rows the file has. */
		usage_journal_budgets(j, r->budgets, true);
	usage_open_read(j->open, reading.ids.last, record_give, &reading);
	table_fini(&reading.ids.table);
	free(reading.ids.v);
	if (there || j->since.n > 0)
		usage_journal_saved(j, false);
	if (!j->told) /* The journal has them. */
		usage_open_empty(j->open);
}
