/* SPDX-License-Identifier: Apache-2.0 */
/* report: the JSON document of a bench: {"bench":NAME, members, "results":[...]}. */
#pragma once
#include "base/core/err.h"
#include "base/json/json.h"
#include "base/samples/samples.h"
#include "joint/ctl/line/line.h"

struct report_doc {
	struct cgn_buf text;
	struct json_out o;
};
/* Begin the document. The caller writes its members into the result, which |r| owns. */
struct json_out *report_begin(struct report_doc *r, const char *bench);
/* End the array that is open, and the document; print and free it. */
CGN_RC report_end(struct report_doc *r, struct cgn_err *err);
/* Put a cell such as "12.3 ms": |unit| is " ms"; "lost" when the time is NaN, as samples were lost. */
void report_put_time(struct ctl_table *t, const char *column, int digits, const char *unit, double time);
/* Say on standard error that means and percentiles are missing, if a sample of |s| was lost. |of| names them. */
void report_say_lost(const char *name, const char *of, const struct samples *s);
/* |part| of |all|; 0 when |all| is 0. */
double report_share(uint64_t part, uint64_t all);
double report_seconds_since(cgn_nsec from);
/* The CPU time of this thread, which shows the cost of work on a busy machine too. */
cgn_nsec report_cpu_now(void);
