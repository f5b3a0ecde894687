/* SPDX-License-Identifier: Apache-2.0 */
#include "router/account/usage.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "joint/statefile/statefile.h"

#define USAGE_TAG 0x64ac0510U
#define FILE_MAX  ((size_t)64 << 20)
#define DAYS      (BILLING_HOURS / 24)
#define HOUR_S    3600

struct gw_usage {
	uint32_t tag;
	pthread_mutex_t lock;
	struct billing *billing;
	struct cgn_loop *loop;
	char *path;
	struct statefile *file; /* File of |day|. */
	uint64_t day, written;  /* Version that was written last. */
	cgn_nsec written_at;
};

static uint64_t hour_now(void)
{
	return cgn_clock_wall_ms() / 1000 / HOUR_S;
}

static cgn_rc day_open(struct gw_usage *u, uint64_t day, struct statefile **out, struct cgn_err *err)
{
	char *path = NULL;
	if (asprintf(&path, "%s-%llu", u->path, (unsigned long long)day) < 0)
		return CGN_FAIL(err, NO_MEMORY, "usage: out of memory");
	cgn_rc rc = statefile_open(u->loop, path, "usage", out, err);
	free(path);
	return rc;
}

static cgn_rc day_load(struct gw_usage *u, uint64_t day, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.n = 0};
	struct statefile *f = NULL;
	struct cgn_err why;
	CGN_TRY(day_open(u, day, &f, err));
	if (statefile_read(f, FILE_MAX, &text) &&
		!cgn_ok(billing_read_day(u->billing, day, cgn_buf_view(&text), &why)))
		statefile_set_aside(f, why.msg);
	statefile_close(&f, NULL);
	return CGN_OK;
}

/* Remove the file of a day that is too old, and nothing else. */
static void day_remove(const struct gw_usage *u, uint64_t day)
{
	char *path = NULL;
	if (asprintf(&path, "%s-%llu", u->path, (unsigned long long)day) > 0)
		(void)unlink(path);
	free(path);
}

static cgn_rc days_load(struct gw_usage *u, struct cgn_err *err)
{
	for (uint64_t i = DAYS; i < (uint64_t)3 * DAYS && i < u->day; i++)
		day_remove(u, u->day - i);
	for (uint64_t i = 0; i < DAYS && i <= u->day; i++)
		CGN_TRY(day_load(u, u->day - i, err));
	return day_open(u, u->day, &u->file, err);
}

CGN_RC gw_usage_open(struct cgn_loop *l, const char *path, struct gw_usage **out, struct cgn_err *err)
{
	struct gw_usage *u = calloc(1, sizeof *u);
	if (u == NULL)
		return CGN_FAIL(err, NO_MEMORY, "usage: out of memory");
	*u = (struct gw_usage){.tag = USAGE_TAG, .loop = l, .path = strdup(path), .day = hour_now() / 24};
	(void)pthread_mutex_init(&u->lock, NULL);
	cgn_rc rc = u->path != NULL ? billing_new(&u->billing, err)
				    : CGN_FAIL(err, NO_MEMORY, "usage: out of memory");
	if (cgn_ok(rc))
		rc = days_load(u, err);
	if (!cgn_ok(rc)) {
		gw_usage_close(&u);
		return rc;
	}
	u->written = billing_version(u->billing);
	*out = u;
	return CGN_OK;
}

/* Write the day that is open to |out| if anything has changed since it was written. */
static bool day_text(struct gw_usage *u, struct cgn_buf *out)
{
	(void)pthread_mutex_lock(&u->lock);
	bool changed = billing_version(u->billing) != u->written;
	if (changed)
		billing_write_day(u->billing, u->day, out);
	u->written = billing_version(u->billing);
	(void)pthread_mutex_unlock(&u->lock);
	return changed;
}

/* Close the file of a day that is over, or that the clock has left, with all that it has. */
static void day_close(struct gw_usage *u)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.n = 0};
	bool busy = u->file != NULL && statefile_is_busy(u->file);
	if (busy)
		u->written = UINT64_MAX; /* The write in progress may not be done. */
	statefile_close(&u->file, u->file != NULL && day_text(u, &text) ? &text : NULL);
}

static void day_turn(struct gw_usage *u, uint64_t day)
{
	struct cgn_err err;
	day_close(u);
	u->day = day;
	u->written = 0; /* The day has rows already if the clock went back. */
	if (day > DAYS)
		day_remove(u, day - DAYS);
	if (!cgn_ok(day_open(u, day, &u->file, &err)))
		u->file = NULL; /* Tried again in a second. */
}

void gw_usage_tick(struct gw_usage *u)
{
	struct cgn_buf text = {.n = 0};
	cgn_nsec now = cgn_loop_now(u->loop);
	CGN_LIVE(u, USAGE_TAG);
	if (u->day != hour_now() / 24 || u->file == NULL)
		day_turn(u, hour_now() / 24);
	if (u->file == NULL || statefile_is_busy(u->file) || cgn_since(now, u->written_at) < GW_USAGE_EVERY)
		return;
	u->written_at = now;
	if (day_text(u, &text))
		statefile_write(u->file, &text);
}

void gw_usage_close(struct gw_usage **take)
{
	struct gw_usage *u = *take;
	*take = NULL;
	if (u == NULL)
		return;
	CGN_LIVE(u, USAGE_TAG);
	day_close(u);
	billing_free(&u->billing);
	(void)pthread_mutex_destroy(&u->lock);
	free(u->path);
	u->tag = 0;
	free(u);
}

void gw_usage_add(struct gw_usage *u, const struct billing_names *names, const struct billing_amounts *more)
{
	CGN_LIVE(u, USAGE_TAG);
	(void)pthread_mutex_lock(&u->lock);
	billing_add(u->billing, hour_now(), names, more);
	(void)pthread_mutex_unlock(&u->lock);
}

CGN_RC gw_usage_report(struct gw_usage *u, const struct billing_query *q, bool csv, struct cgn_buf *out,
	struct cgn_err *err)
{
	CGN_LIVE(u, USAGE_TAG);
	(void)pthread_mutex_lock(&u->lock);
	cgn_rc rc = csv ? billing_report_csv(u->billing, q, out, err)
			: billing_report_json(u->billing, q, out, err);
	(void)pthread_mutex_unlock(&u->lock);
	return rc;
}
