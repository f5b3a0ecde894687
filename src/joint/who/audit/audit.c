/* SPDX-License-Identifier: Apache-2.0 */
#include "joint/who/audit/audit.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log/log.h"
#include "io/net/net/addr.h"
#include "io/os/linefile/linefile.h"
#include "policy/who/audit/audit.h"

#define AUDIT_TAG  0xa0d17106U
#define PATH_BYTES 4200
#define WHY_BYTES  64

/* A file: of changes, or of refusals. */
struct audit_log {
	char *path;
	int lock; /* Holds PATH.lock; -1: it is not held. */
	struct linefile *file;
	struct audit_chain chain; /* The file's thread alone, once it is open. */
	uint64_t lost;            /* Lines that the metric has. */
};

/* The refusals of one source without a credential, for one reason, in this second. */
struct source {
	char from[NET_ADDR_GROUP_MAX], why[WHY_BYTES];
	const char *action;
	uint32_t n;
};

struct audit {
	uint32_t tag;
	struct audit_log changes, refused;
	struct cgn_timer tick;
	_Atomic uint32_t refusals, left; /* Count this second's, and what of them was left out. */
	pthread_mutex_t lock;            /* Guards the members below. */
	struct source sources[AUDIT_SOURCES];
	uint32_t n_sources;
	struct metric_cell *lines[3], *lost_cell;
};

static const char *const decisions[] =
	{[AUDIT_ALLOWED] = "allowed", [AUDIT_REFUSED] = "refused", [AUDIT_FAILED] = "failed"};

/* ---- the chain ---- */

static void line_seal(void *user, struct cgn_str line, struct cgn_buf *out)
{
	const struct audit_log *a = user;
	audit_seal(&a->chain, line, out);
}

static void line_kept(void *user, struct cgn_str sealed)
{
	struct audit_log *a = user;
	struct cgn_err err;
	cgn_rc rc = audit_follow(&a->chain, (struct cgn_str){sealed.p, sealed.n - 1}, &err);
	CGN_MUST(cgn_ok(rc));
}

/* Get the last whole line of the file, without its end, and where it ends; n is 0 when there is none. */
static CGN_RC last_line(int fd, const char *path, char room[2 * AUDIT_LINE_MAX], struct cgn_str *line,
	off_t *end, struct cgn_err *err)
{
	struct stat st;
	*line = (struct cgn_str){room, 0};
	*end = 0;
	if (fstat(fd, &st) != 0)
		return CGN_FAIL_AS(err, cgn_code_from_errno(errno), "cannot read %s: %s", path,
			strerror(errno));
	off_t from = st.st_size > (off_t)(2 * AUDIT_LINE_MAX) ? st.st_size - (off_t)(2 * AUDIT_LINE_MAX) : 0;
	ssize_t n = pread(fd, room, (size_t)(st.st_size - from), from);
	if (n < 0)
		return CGN_FAIL_AS(err, cgn_code_from_errno(errno), "cannot read %s: %s", path,
			strerror(errno));
	const char *last = memrchr(room, '\n', (size_t)n);
	if (last == NULL)
		return from == 0
			? CGN_OK
			: CGN_FAIL(err, INVALID, "%s is not an audit log: its last line is too long", path);
	const char *before = memrchr(room, '\n', (size_t)(last - room));
	*line = (struct cgn_str){before != NULL ? before + 1 : room, 0};
	line->n = (size_t)(last - line->p);
	*end = from + (last + 1 - room);
	return CGN_OK;
}

/* Remove the part of a line that a crash left at the end. */
static CGN_RC tail_cut(int fd, const char *path, off_t end, struct cgn_err *err)
{
	struct stat st;
	if (fstat(fd, &st) != 0 || st.st_size == end)
		return CGN_OK;
	cgn_log(WARN, "audit.torn", F_STR("file", path), F_U64("bytes", (uint64_t)(st.st_size - end)),
		F_STR("why", "the last line has no end: a crash cut it"), F_STR("then", "it is removed"));
	return ftruncate(fd, end) == 0 ? CGN_OK
				       : CGN_FAIL_AS(err, cgn_code_from_errno(errno), "cannot shorten %s: %s",
						 path, strerror(errno));
}

/* Let the chain go on from the last line of |path|. */
static CGN_RC chain_resume(struct audit_log *a, const char *path, int fd, bool cut, struct cgn_err *err)
{
	char room[2 * AUDIT_LINE_MAX];
	struct cgn_str line;
	struct cgn_err why;
	off_t end = 0;
	CGN_TRY(last_line(fd, path, room, &line, &end, err));
	if (line.n > 0 && !cgn_ok(audit_begin(&a->chain, line, &why)))
		return CGN_FAIL(err, INVALID,
			"%s is not an audit log, or its last line was changed: %s; move the file away", path,
			why.msg);
	return cut ? tail_cut(fd, path, end, err) : CGN_OK;
}

/* A file that was rotated is empty, and its chain is in the one before it. */
static CGN_RC chain_resume_rotated(struct audit_log *a, struct cgn_err *err)
{
	char older[PATH_BYTES];
	if (a->chain.seq > 0)
		return CGN_OK;
	(void)snprintf(older, sizeof older, "%s.1", a->path);
	int fd = open(older, O_RDONLY | O_CLOEXEC | O_NOCTTY);
	if (fd < 0)
		return CGN_OK;
	cgn_rc rc = chain_resume(a, older, fd, false, err);
	close(fd);
	return rc;
}

/* Hold the lock of PATH.lock: the file itself is renamed when it is rotated. */
static CGN_RC file_lock(struct audit_log *a, struct cgn_err *err)
{
	char path[PATH_BYTES];
	(void)snprintf(path, sizeof path, "%s.lock", a->path);
	a->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOCTTY, 0640);
	if (a->lock < 0)
		return CGN_FAIL_AS(err, cgn_code_from_errno(errno), "cannot open %s: %s", path,
			strerror(errno));
	if (flock(a->lock, LOCK_EX | LOCK_NB) != 0)
		return CGN_FAIL(err, CONFLICT,
			"another process writes %s: each program needs a file of its own", a->path);
	return CGN_OK;
}

static CGN_RC chain_open(struct audit_log *a, struct cgn_err *err)
{
	int fd = open(a->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOCTTY, 0640);
	if (fd < 0)
		return CGN_FAIL_AS(err, cgn_code_from_errno(errno), "cannot open %s: %s", a->path,
			strerror(errno));
	cgn_rc rc = chain_resume(a, a->path, fd, true, err);
	close(fd);
	return cgn_ok(rc) ? chain_resume_rotated(a, err) : rc;
}

/* ---- lines ---- */

static void line_write(struct audit_log *to, const struct audit_event *e)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf line = {.limit = AUDIT_LINE_MAX};
	const struct log_field fields[] = {F_STR("decision", decisions[e->decision]), F_STRN("by", e->kind),
		F_STRN("name", e->name), F_STRN("tenant", e->tenant), F_STRN("from", e->from),
		F_STRN("object", e->object), F_STRN("why", e->why), F_STRN("request", e->request)};
	log_line(&line, e->decision == AUDIT_ALLOWED ? LOG_INFO : LOG_WARN, e->action, fields,
		CGN_COUNT(fields));
	if (!line.bad)
		linefile_add(to->file, cgn_buf_view(&line));
}

static bool source_is(const struct source *a, const struct source *b)
{
	return strcmp(a->from, b->from) == 0 && strcmp(a->why, b->why) == 0 && a->action == b->action;
}

/* Count a refusal of |of|. Returns whether it is the first one of that kind in this second, which is written. */
static bool source_note(struct audit *a, const struct source *of)
{
	bool first = false;
	(void)pthread_mutex_lock(&a->lock);
	uint32_t i = 0;
	while (i < a->n_sources && !source_is(&a->sources[i], of))
		i++;
	if (i < AUDIT_SOURCES) {
		first = i == a->n_sources;
		a->n_sources += first;
		if (first)
			a->sources[i] = *of;
		a->sources[i].n++;
	} else {
		(void)atomic_fetch_add_explicit(&a->left, 1, memory_order_relaxed);
	}
	(void)pthread_mutex_unlock(&a->lock);
	return first;
}

/* Is the refusal one of those that are written? */
static bool refusal_counts(struct audit *a, const struct audit_event *e)
{
	struct source source = {.action = e->action};
	if (e->name.n == 0 && !e->own_line) {
		net_addr_group(e->from, source.from);
		(void)cgn_str_copyz(source.why, sizeof source.why, e->why);
		return source_note(a, &source);
	}
	if (atomic_fetch_add_explicit(&a->refusals, 1, memory_order_relaxed) < AUDIT_REFUSALS)
		return true;
	(void)atomic_fetch_add_explicit(&a->left, 1, memory_order_relaxed);
	return false;
}

void audit_note(struct audit *a, const struct audit_event *e)
{
	if (a == NULL)
		return;
	CGN_LIVE(a, AUDIT_TAG);
	metric_add(a->lines[e->decision], 1);
	if (e->decision != AUDIT_REFUSED)
		line_write(&a->changes, e);
	else if (refusal_counts(a, e))
		line_write(&a->refused, e);
}

static void count_add(struct audit_log *to, const char *action, uint64_t n, const char *why)
{
	char text[32];
	(void)snprintf(text, sizeof text, "%llu lines", (unsigned long long)n);
	line_write(to,
		&(struct audit_event){.action = action,
			.decision = AUDIT_FAILED,
			.kind = CGN_STR("program"),
			.object = cgn_str_of(text),
			.why = cgn_str_of(why)});
}

/* Write a line of each source that was refused again for the same reason in this second. */
static void sources_tell(struct audit *a)
{
	struct source sources[AUDIT_SOURCES];
	char text[48];
	(void)pthread_mutex_lock(&a->lock);
	uint32_t n = a->n_sources;
	memcpy(sources, a->sources, sizeof sources);
	memset(a->sources, 0, sizeof a->sources);
	a->n_sources = 0;
	(void)pthread_mutex_unlock(&a->lock);
	for (uint32_t i = 0; i < n; i++) {
		if (sources[i].n < 2)
			continue;
		(void)snprintf(text, sizeof text, "%u more in the same second", sources[i].n - 1);
		line_write(&a->refused,
			&(struct audit_event){.action = sources[i].action,
				.decision = AUDIT_REFUSED,
				.kind = CGN_STR("address"),
				.from = cgn_str_of(sources[i].from),
				.object = cgn_str_of(text),
				.why = cgn_str_of(sources[i].why)});
	}
}

static void lost_tell(struct audit *a, struct audit_log *log)
{
	uint64_t dropped = linefile_dropped(log->file), lost = dropped - log->lost;
	if (lost == 0)
		return;
	log->lost = dropped;
	metric_add(a->lost_cell, lost);
	cgn_log(ERROR, "audit.lost", F_U64("lines", lost), F_STR("file", log->path),
		F_STR("why", "the disk is full or too slow"),
		F_STR("then", "a line in the file counts them"));
	count_add(log, "audit.lost", lost, "the disk was full or too slow");
}

/* Write a line of the events that are missing in the files. */
static void gaps_tell(struct audit *a)
{
	sources_tell(a);
	uint32_t left = atomic_exchange_explicit(&a->left, 0, memory_order_relaxed);
	atomic_store_explicit(&a->refusals, 0, memory_order_relaxed);
	if (left > 0)
		count_add(&a->refused, "audit.left_out", left, "more refusals in a second than are written");
	lost_tell(a, &a->changes);
	lost_tell(a, &a->refused);
}

static void audit_tick(struct cgn_timer *t)
{
	struct audit *a = CGN_CONTAINER(t, struct audit, tick);
	gaps_tell(a);
	cgn_timer_set(t, CGN_SEC);
}

/* ---- life ---- */

static CGN_RC file_open(struct audit_log *log, const struct config *cfg, struct cgn_err *err)
{
	const struct linefile_seal seal = {.seal = line_seal, .kept = line_kept, .user = log};
	CGN_TRY(file_lock(log, err));
	CGN_TRY(chain_open(log, err));
	return linefile_open_sealed(log->path, cfg->security.audit_size, (unsigned)cfg->security.audit_files,
		&seal, &log->file, err);
}

static char *path_refused(const char *path)
{
	char text[PATH_BYTES];
	(void)snprintf(text, sizeof text, "%s" AUDIT_REFUSED_END, path);
	return cgn_str_dupz(cgn_str_of(text));
}

CGN_RC audit_open(struct cgn_loop *l, struct telemetry *t, const struct config *cfg, struct audit **out,
	struct cgn_err *err)
{
	*out = NULL;
	if (cfg->security.audit_file == NULL)
		return CGN_OK;
	struct audit *a = CGN_NEW(struct audit);
	*a = (struct audit){.tag = AUDIT_TAG,
		.changes = {.lock = -1, .path = cgn_str_dupz(cgn_str_of(cfg->security.audit_file))},
		.refused = {.lock = -1, .path = path_refused(cfg->security.audit_file)},
		.lost_cell = METRIC_ONE(t, AUDIT_LOST)};
	(void)pthread_mutex_init(&a->lock, NULL);
	for (size_t i = 0; i < CGN_COUNT(a->lines); i++)
		a->lines[i] = METRIC_OF(t, AUDIT_EVENTS, decisions[i]);
	cgn_timer_init(&a->tick, l, audit_tick);
	cgn_rc rc = file_open(&a->changes, cfg, err);
	if (cgn_ok(rc))
		rc = file_open(&a->refused, cfg, err);
	if (!cgn_ok(rc)) {
		audit_close(&a);
		return cgn_err_of(rc, "security.audit_file", err);
	}
	cgn_timer_set(&a->tick, CGN_SEC);
	*out = a;
	return CGN_OK;
}

CGN_RC audit_reopen(struct audit *a, struct cgn_err *err)
{
	if (a == NULL)
		return CGN_OK;
	CGN_LIVE(a, AUDIT_TAG);
	cgn_rc rc = linefile_reopen(a->changes.file, a->changes.path, err);
	if (cgn_ok(rc))
		rc = linefile_reopen(a->refused.file, a->refused.path, err);
	return cgn_err_of(rc, "security.audit_file", err);
}

static void log_close(struct audit_log *log)
{
	linefile_close(&log->file);
	if (log->lock >= 0)
		close(log->lock);
	free(log->path);
}

void audit_close(struct audit **take)
{
	struct audit *a = CGN_TAKE_LIVE(take, AUDIT_TAG);
	if (a == NULL)
		return;
	cgn_timer_cancel(&a->tick);
	if (a->changes.file != NULL && a->refused.file != NULL)
		gaps_tell(a);
	log_close(&a->changes);
	log_close(&a->refused);
	(void)pthread_mutex_destroy(&a->lock);
	a->tag = 0;
	free(a);
}
