/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/common/report.h"

#include <inttypes.h>
#include <math.h>
#include <time.h>

#include "io/os/loop/loop.h"
#include "joint/ctl/line/line.h"

struct json_out *report_begin(struct report_doc *r, const char *bench)
{
	r->text = (struct cgn_buf){0};
	r->o = json_out_to(&r->text);
	json_open(&r->o, '{');
	json_key_z(&r->o, "bench", bench);
	return &r->o;
}

CGN_RC report_end(struct report_doc *r, struct cgn_err *err)
{
	json_close(&r->o, ']');
	json_close(&r->o, '}');
	cgn_buf_char(&r->text, '\n');
	return ctl_print(&r->text, err);
}

void report_put_time(struct ctl_table *t, const char *column, int digits, const char *unit, double time)
{
	if (!ctl_table_next(t, column, true, false))
		return;
	if (isnan(time))
		ctl_table_cell(t, "lost");
	else
		ctl_table_cell(t, "%.*f%s", digits, time, unit);
}

void report_say_lost(const char *name, const char *of, const struct samples *s)
{
	if (s->lost > 0)
		(void)fprintf(stderr,
			"%s: %" PRIu64 " of %" PRIu64
			" times (%s) were not kept: more than %zu, or no memory. Their mean and percentiles are left out\n",
			name, s->lost, samples_count(s) + s->lost, of, SAMPLES_MAX);
}

double report_share(uint64_t part, uint64_t all)
{
	return all > 0 ? (double)part / (double)all : 0;
}

double report_seconds_since(cgn_nsec from)
{
	return (double)cgn_since(cgn_clock_now(), from) / 1e9;
}

cgn_nsec report_cpu_now(void)
{
	struct timespec t;
	(void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (cgn_nsec)t.tv_sec * CGN_SEC + (cgn_nsec)t.tv_nsec;
}
