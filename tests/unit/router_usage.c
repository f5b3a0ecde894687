/* SPDX-License-Identifier: Apache-2.0 */
/* The files of usage while the wall clock is set. The test has a clock of its own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>
#include <sys/syscall.h>

#include "base/core/err.h"
#include "disk_folder.h"
#include "router/request/account/usage.h"
#include "router/shared/age/age.h"

#define FIRST 20000 /* A day since 1970. */

static uint64_t today;

/* Stands in for libc's in this program: the wall clock is at noon of |today|. */
int clock_gettime(clockid_t id, struct timespec *out)
{
	if (id != CLOCK_REALTIME)
		return (int)syscall(SYS_clock_gettime, id, out);
	*out = (struct timespec){.tv_sec = (time_t)(today * 86400 + 43200)};
	return 0;
}

struct world {
	char dir[32], path[64];
	struct cgn_loop *l;
	struct gw_age *age;
	struct gw_usage *usage;
};

static void usage_start(struct world *w)
{
	w->usage = gw_usage_open(w->l, w->path, w->age, NULL);
}

static void world_open(struct world *w)
{
	char age_path[64];
	*w = (struct world){.dir = "/tmp/cgn-usage-XXXXXX"};
	today = FIRST;
	assert_non_null(mkdtemp(w->dir));
	(void)snprintf(w->path, sizeof w->path, "%s/usage", w->dir);
	(void)snprintf(age_path, sizeof age_path, "%s/age", w->dir);
	assert_true(cgn_ok(cgn_loop_new(&w->l, NULL)));
	w->age = gw_age_open(w->l, age_path);
	usage_start(w);
}

static void world_close(struct world *w)
{
	gw_usage_close(&w->usage);
	gw_age_close(&w->age);
	cgn_loop_free(&w->l);
	disk_folder_remove(w->dir);
}

static void spend_on(struct world *w, uint64_t day, uint64_t requests)
{
	const struct billing_names names = {CGN_STR("acme"), CGN_STR("k"), CGN_STR("m")};
	today = day;
	gw_usage_add(w->usage, &names, &(struct billing_amounts){.requests = requests}, NULL);
}

/* Return the requests of the day in a report. */
static uint64_t spent_on(struct world *w, uint64_t day)
{
	const struct billing_query q = {day * 24, (day + 1) * 24, BILLING_BY_ALL, BILLING_STEP_ALL, "USD"};
	struct billing_report *report = NULL;
	struct cgn_buf csv = {0};
	unsigned long long requests = 0;
	assert_true(cgn_ok(gw_usage_report(w->usage, &q, &report, NULL)));
	billing_report_csv(report, &csv);
	const char *row = strchr(cgn_buf_z(&csv), '\n');
	if (row != NULL)
		(void)sscanf(row + 1, "%llu", &requests);
	billing_report_free(&report);
	cgn_buf_fini(&csv);
	return requests;
}

/* Start again on |day|, so that only what the files have is known. */
static void restart_on(struct world *w, uint64_t day)
{
	gw_usage_close(&w->usage);
	today = day;
	usage_start(w);
}

static void assert_spent(struct world *w, const uint64_t *want, size_t n)
{
	for (size_t i = 0; i < n; i++)
		assert_int_equal(spent_on(w, FIRST + i), want[i]);
}

static void each_day_that_the_clock_passes_is_written(void **state)
{
	(void)state;
	struct world w;
	world_open(&w);
	for (uint64_t i = 0; i < 4; i++)
		spend_on(&w, FIRST + i, i + 1);
	gw_usage_tick(w.usage);
	restart_on(&w, FIRST + 3);
	assert_spent(&w, (uint64_t[]){1, 2, 3, 4}, 4);
	world_close(&w);
}

static void the_end_writes_them_too(void **state)
{
	(void)state;
	struct world w;
	world_open(&w);
	spend_on(&w, FIRST + 2, 7);
	spend_on(&w, FIRST + 1, 5);
	spend_on(&w, FIRST, 3);
	restart_on(&w, FIRST + 2);
	assert_spent(&w, (uint64_t[]){3, 5, 7}, 3);
	world_close(&w);
}

static void a_day_between_keeps_what_its_file_has(void **state)
{
	(void)state;
	struct world w;
	world_open(&w);
	restart_on(&w, FIRST + 50); /* The file of day 51 is not read: it is far from the days that follow. */
	spend_on(&w, FIRST + 51, 10);
	gw_usage_tick(w.usage);
	restart_on(&w, FIRST);
	spend_on(&w, FIRST, 1);
	spend_on(&w, FIRST + 51, 2);
	spend_on(&w, FIRST + 1, 3);
	gw_usage_tick(w.usage);
	restart_on(&w, FIRST + 51);
	assert_int_equal(spent_on(&w, FIRST + 51), 12);
	restart_on(&w, FIRST + 1);
	assert_spent(&w, (uint64_t[]){1, 3}, 2);
	world_close(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_day_that_the_clock_passes_is_written),
		cmocka_unit_test(the_end_writes_them_too),
		cmocka_unit_test(a_day_between_keeps_what_its_file_has),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
