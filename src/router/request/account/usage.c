/* SPDX-License-Identifier: Apache-2.0 */
#include "router/request/account/usage.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/log/log.h"
#include "joint/cluster/statefile/statefile.h"
#include "router/request/account/usagejournal.h"
#include "router/shared/age/age.h"

#define USAGE_TAG 0x64ac0510U
#define FILE_MAX  ((size_t)64 << 20)
#define DAYS      (BILLING_HOURS / 24)
#define HOUR_S    3600
#define DAY_S     86400
#define READ_MOST 256 /* Days that are remembered to be read. */

/* Days that got rows since the last tick: more than one if the wall clock was set meanwhile, or at midnight. Those beyond the
 * most are written only when they are the day of a tick. */
struct usage_days {
	uint64_t v[DAYS];
	size_t n;
};

struct gw_usage {
	uint32_t tag;
	pthread_mutex_t lock;
	struct billing *billing;
	struct cgn_loop *loop;
	struct gw_age *age; /* Borrowed. */
	char *path;
	struct statefile *file; /* File of |day|. */
	uint64_t day, written;  /* Version that was written last. */
	cgn_nsec written_at;
	uint64_t read[READ_MOST]; /* Days whose files are in |billing|; their order says nothing. */
	size_t n_read;
	struct usage_days touched; /* Under |lock|. */
	uint64_t removed;          /* Files up to this day were removed. */
	struct usage_journal *journal;
	bool saving; /* A write of the file of |day| was begun, and its end was not seen. */
};

static uint64_t hour_now(void)
{
	return cgn_clock_wall_ms() / 1000 / HOUR_S;
}

static struct statefile *day_open(struct gw_usage *u, uint64_t day)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf path = {.n = 0};
	cgn_buf_fmt(&path, "%s-%llu", u->path, (unsigned long long)day);
	return statefile_open(u->loop, cgn_buf_z(&path), "usage");
}

static bool day_is_read(const struct gw_usage *u, uint64_t day)
{
	for (size_t i = 0; i < u->n_read; i++)
		if (u->read[i] == day)
			return true;
	return false;
}

/* Remember that the day was read; the earliest day gives way. */
static void day_note_read(struct gw_usage *u, uint64_t day)
{
	size_t at = 0;
	if (u->n_read < READ_MOST) {
		u->read[u->n_read++] = day;
		return;
	}
	for (size_t i = 1; i < READ_MOST; i++)
		at = u->read[i] < u->read[at] ? i : at;
	u->read[at] = day;
}

/* Add the rows of the day's file, once. */
static void day_load(struct gw_usage *u, uint64_t day)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.n = 0};
	struct cgn_err why;
	if (day_is_read(u, day))
		return;
	struct statefile *f = day_open(u, day);
	day_note_read(u, day);
	bool there = statefile_read(f, FILE_MAX, &text);
	(void)pthread_mutex_lock(&u->lock);
	cgn_rc rc = there ? billing_read_day(u->billing, day, cgn_buf_view(&text), &why) : CGN_OK;
	(void)pthread_mutex_unlock(&u->lock);
	if (!cgn_ok(rc))
		statefile_set_aside(f, why.msg);
	statefile_close(&f, NULL);
}

static void days_load(struct gw_usage *u)
{
	for (uint64_t i = 0; i < DAYS && i <= u->day; i++)
		day_load(u, u->day - i);
}

/* Remove the file of a day that is too old, and nothing else. */
static void day_remove(const struct gw_usage *u, uint64_t day)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf path = {.n = 0};
	cgn_buf_fmt(&path, "%s-%llu", u->path, (unsigned long long)day);
	if (unlink(cgn_buf_z(&path)) == 0)
		cgn_log(INFO, "router.usage_deleted", F_STR("file", cgn_buf_z(&path)),
			F_U64("kept_days", DAYS));
}

static void days_remove(struct gw_usage *u)
{
	uint64_t today = gw_age_now(u->age) / DAY_S, last = today > DAYS ? today - DAYS : 0;
	uint64_t first = last > (uint64_t)2 * DAYS ? last - (uint64_t)2 * DAYS : 0;
	for (uint64_t day = u->removed > first ? u->removed : first; day < last; day++)
		day_remove(u, day + 1);
	u->removed = last;
}

static void day_touch(struct usage_days *d, uint64_t day)
{
	for (size_t i = 0; i < d->n; i++)
		if (d->v[i] == day)
			return;
	if (d->n < DAYS)
		d->v[d->n++] = day;
}

/* Write the day that is open to |out| if anything has changed since it was written. */
static bool day_text(struct gw_usage *u, struct cgn_buf *out)
{
	(void)pthread_mutex_lock(&u->lock);
	bool changed = billing_version(u->billing) != u->written;
	if (changed) {
		billing_write_day(u->billing, u->day, out);
		usage_journal_mark(u->journal, u->day, cgn_buf_view(out), true);
	}
	u->written = billing_version(u->billing);
	(void)pthread_mutex_unlock(&u->lock);
	return changed;
}

/* Close the file of a day that is over, or that the clock has left, with all that it has. */
static void day_close(struct gw_usage *u)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.n = 0};
	if (statefile_is_busy(u->file))
		u->written = UINT64_MAX; /* The write in progress may not be done. */
	bool changed = day_text(u, &text);
	usage_journal_flush(u->journal);
	statefile_close(&u->file, changed ? &text : NULL);
	u->saving = false;
}

static void day_turn(struct gw_usage *u, uint64_t day)
{
	day_close(u);
	u->day = day;
	u->written = 0; /* The day has rows already if the clock went back. */
	days_load(u);   /* A day that is not read is not written, or its file would lose what it has. */
	u->file = day_open(u, day);
}

static struct usage_days touched_take(struct gw_usage *u)
{
	(void)pthread_mutex_lock(&u->lock);
	struct usage_days all = u->touched;
	u->touched.n = 0;
	(void)pthread_mutex_unlock(&u->lock);
	return all;
}

/* Write a day that is not open. Its file is read first, or it would lose what it has. */
static void day_write(struct gw_usage *u, uint64_t day)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.n = 0};
	day_load(u, day);
	struct statefile *f = day_open(u, day);
	(void)pthread_mutex_lock(&u->lock);
	billing_write_day(u->billing, day, &text);
	usage_journal_mark(u->journal, day, cgn_buf_view(&text), false);
	(void)pthread_mutex_unlock(&u->lock);
	usage_journal_flush(u->journal);
	statefile_close(&f, &text);
}

/* Write each day that got rows, but for the day that is open and |closed|, which has been written. */
static void days_write(struct gw_usage *u, const struct usage_days *touched, uint64_t closed)
{
	for (size_t i = 0; i < touched->n; i++)
		if (touched->v[i] != u->day && touched->v[i] != closed)
			day_write(u, touched->v[i]);
}

static bool journal_is_saved(struct gw_usage *u, uint64_t day, uint64_t digest)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.n = 0};
	struct statefile *f = day_open(u, day);
	bool there = statefile_read(f, FILE_MAX, &text);
	statefile_close(&f, NULL);
	return there && usage_journal_digest(cgn_buf_view(&text)) == digest;
}

struct journal_target {
	struct gw_usage *usage;
	const struct gw_usage_budgets *budgets;
};

static bool journal_has_day(void *arg, uint64_t day, uint64_t digest)
{
	const struct journal_target *to = arg;
	return journal_is_saved(to->usage, day, digest);
}

static void journal_row(void *arg, const struct usage_row *row)
{
	const struct journal_target *to = arg;
	struct billing_line line;
	if (!billing_read_line(row->text, &line))
		return;
	if (row->for_day) {
		billing_add(to->usage->billing, line.hour, &line.names, &line.amounts);
		day_touch(&to->usage->touched, line.hour / 24);
	}
	if (row->for_budgets && to->budgets != NULL)
		to->budgets->spend(to->budgets->arg, &line.names, row->unix_s, &line.amounts);
}

/* Take the rows that a router which was killed left behind. */
static void journal_load(struct gw_usage *u, const struct gw_usage_budgets *budgets)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf path = {.n = 0};
	struct journal_target to = {u, budgets};
	cgn_buf_fmt(&path, "%s.journal", u->path);
	u->journal = usage_journal_open(u->loop, cgn_buf_z(&path));
	usage_journal_read(u->journal,
		&(struct usage_journal_reader){.has_day = journal_has_day,
			.budgets = budgets != NULL ? budgets->digest : 0,
			.row = journal_row,
			.arg = &to});
}

struct gw_usage *gw_usage_open(struct cgn_loop *l, const char *path, struct gw_age *age,
	const struct gw_usage_budgets *budgets)
{
	struct gw_usage *u = CGN_NEW(struct gw_usage);
	*u = (struct gw_usage){.tag = USAGE_TAG,
		.loop = l,
		.age = age,
		.path = cgn_str_dupz(cgn_str_of(path)),
		.billing = billing_new(),
		.day = hour_now() / 24};
	(void)pthread_mutex_init(&u->lock, NULL);
	days_load(u);
	u->file = day_open(u, u->day);
	days_remove(u);
	u->written = billing_version(u->billing);
	journal_load(u, budgets);
	return u;
}

void gw_usage_tick(struct gw_usage *u)
{
	struct cgn_buf text = {.n = 0};
	cgn_nsec now = cgn_loop_now(u->loop);
	CGN_LIVE(u, USAGE_TAG);
	const struct usage_days touched = touched_take(u);
	uint64_t day = u->day, today = hour_now() / 24;
	if (day != today) {
		day_turn(u, today);
		u->written_at = 0;
	}
	days_write(u, &touched, day);
	days_remove(u);
	if (u->saving && !statefile_is_busy(u->file)) {
		u->saving = false;
		if (!statefile_has_failed(u->file))
			usage_journal_saved(u->journal, false);
	}
	if (statefile_is_busy(u->file) || cgn_since(now, u->written_at) < GW_USAGE_EVERY)
		return;
	u->written_at = now;
	if (!day_text(u, &text))
		return;
	usage_journal_flush(u->journal);
	u->saving = true;
	statefile_write(u->file, &text);
}

/* Empty the journal if the day's file, which is closed, has all rows. */
static void journal_end(struct gw_usage *u)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.n = 0};
	billing_write_day(u->billing, u->day, &text);
	usage_journal_mark(u->journal, u->day, cgn_buf_view(&text), true);
	if (journal_is_saved(u, u->day, usage_journal_digest(cgn_buf_view(&text))))
		usage_journal_saved(u->journal, true);
	usage_journal_close(&u->journal);
}

void gw_usage_close(struct gw_usage **take)
{
	struct gw_usage *u = CGN_TAKE_LIVE(take, USAGE_TAG);
	if (u == NULL)
		return;
	const struct usage_days touched = touched_take(u);
	days_write(u, &touched, u->day);
	day_close(u);
	journal_end(u);
	billing_free(&u->billing);
	(void)pthread_mutex_destroy(&u->lock);
	free(u->path);
	u->tag = 0;
	free(u);
}

void gw_usage_add(struct gw_usage *u, const struct billing_names *names, const struct billing_amounts *more,
	struct usage_place *place)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf row = {.n = 0};
	CGN_LIVE(u, USAGE_TAG);
	(void)pthread_mutex_lock(&u->lock);
	uint64_t hour = hour_now();
	billing_add(u->billing, hour, names, more);
	billing_write_row(hour, names, more, &row);
	usage_journal_add(u->journal, cgn_buf_view(&row), place);
	day_touch(&u->touched, hour / 24);
	(void)pthread_mutex_unlock(&u->lock);
}

void gw_usage_put(struct gw_usage *u, const struct billing_names *names, const struct billing_amounts *now,
	struct usage_place *place)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf row = {.n = 0};
	CGN_LIVE(u, USAGE_TAG);
	billing_write_row(hour_now(), names, now, &row);
	if (!row.bad)
		usage_journal_put(u->journal, cgn_buf_view(&row), place);
}

void gw_usage_drop(struct gw_usage *u, struct usage_place *place)
{
	CGN_LIVE(u, USAGE_TAG);
	usage_journal_drop(u->journal, place);
}

void gw_usage_budgets_mark(struct gw_usage *u, uint64_t digest, bool saved)
{
	CGN_LIVE(u, USAGE_TAG);
	usage_journal_budgets(u->journal, digest, saved);
}

/* Add the rows of the next hour; false: there is none left. */
static bool report_add(struct gw_usage *u, struct billing_report *r)
{
	(void)pthread_mutex_lock(&u->lock);
	bool more = billing_report_add(r, u->billing);
	(void)pthread_mutex_unlock(&u->lock);
	return more;
}

CGN_RC gw_usage_report(struct gw_usage *u, const struct billing_query *q, struct billing_report **out,
	struct cgn_err *err)
{
	CGN_LIVE(u, USAGE_TAG);
	*out = billing_report_new(q);
	while (report_add(u, *out))
		; /* Workers take the lock between two hours. */
	return billing_report_end(*out, err);
}
