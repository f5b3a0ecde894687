/* SPDX-License-Identifier: Apache-2.0 */
/* telemetry: counters, gauges and histograms of one program, and their Prometheus text. A program makes one
 * registry (struct telemetry) from the tables of metrics that it serves, and hands it to the rooms that count.
 * Cells are atomics: update from any thread; get the cell once and keep it. */
#pragma once
#include "base/core/buf.h"
#include "base/core/err.h"
#include "base/quantile/quantile.h"

enum metric_type {
	METRIC_COUNTER,
	METRIC_GAUGE,
	METRIC_HISTOGRAM, /* seconds, 10 us .. 120 s */
	/* A histogram whose quantiles the program tells itself: base/quantile counts each series too (3.7 KiB). */
	METRIC_QUANTILES,
	METRIC_MILLIONTHS /* a counter that counts millionths and shows whole units with six decimals */
};
struct metric_row {
	const char *name;
	enum metric_type type;
	const char *labels; /* "a,b"; empty: none */
	const char *help;
};
/* For METRIC while a .def table is included: its ids (METRIC_x), its rows. */
#define METRIC_ID(id, name, type, labels, help)  METRIC_##id,
#define METRIC_ROW(id, name, type, labels, help) {name, METRIC_##type, labels, help},

/* Metrics of the rooms in joint, which every registry has. A program's own ids count up from
 * METRIC_JOINT_COUNT, in the order of its table. */
enum metric_joint_id {
#define METRIC METRIC_ID
#include "joint/report/telemetry/metrics.def"
#undef METRIC
	METRIC_JOINT_COUNT
};

struct telemetry;
/* Make a registry of joint's metrics and of the |n| metrics of |rows|, which must outlive it. */
struct telemetry *telemetry_new(const struct metric_row *rows, size_t n);
void telemetry_free(struct telemetry **take); /* NULL-safe; every cell goes with it */

struct metric_cell; /* lives as long as its registry, or until its series is forgotten */
/* Return the series of metric |id| with these label values, in the order of its row ("a,b": two values). At
 * most 4096 series a metric: then the series that was forgotten first is used again; if none was, the shared
 * series with every label "other", which is never forgotten. Values are escaped for a terminal (cgn_buf_shown) and cut at 128
 * bytes. Never NULL. Takes a lock: on a hot path, keep the result. Any thread. */
struct metric_cell *metric_get(struct telemetry *t, unsigned id, const char *const *label_values, size_t n);
#define METRIC_OF(t, id, ...)                                          \
	metric_get(t, METRIC_##id, (const char *const[]){__VA_ARGS__}, \
		sizeof((const char *const[]){__VA_ARGS__}) / sizeof(const char *))
#define METRIC_ONE(t, id) metric_get(t, METRIC_##id, NULL, 0)
void metric_add(struct metric_cell *c, uint64_t n);      /* counter; of millionths: that many */
void metric_set(struct metric_cell *c, double v);        /* gauge */
void metric_shift(struct metric_cell *c, int64_t delta); /* gauge, integral */
void metric_observe(struct metric_cell *c, cgn_nsec v);  /* histogram */
uint64_t metric_count(const struct metric_cell *c);      /* value of a counter, count of a histogram */
cgn_nsec metric_sum(const struct metric_cell *c);        /* sum of a histogram */
/* Add up the series of a metric: those with the label value |value|, or for NULL all whose first label is not
 * empty. Takes the registry's lock. */
struct metric_totals {
	uint64_t count; /* Sum of counters, or observations of histograms. */
};
void metric_total(struct telemetry *t, unsigned id, const char *value, struct metric_totals *out);
uint64_t metric_totals_since(const struct metric_totals *now, const struct metric_totals *before);
/* The same of a metric of type METRIC_QUANTILES, by bucket of base/quantile. */
struct metric_times {
	uint64_t in[QUANTILE_BUCKETS];
	cgn_nsec least, most; /* The ends of all observations ever. */
};
void metric_times_total(struct telemetry *t, unsigned id, const char *value, struct metric_times *out);
uint64_t metric_times_since(const struct metric_times *now, const struct metric_times *before);
/* Return the |q| quantile (0 to 1) of the observations between the two, at most QUANTILE_ERROR off; 0: there is
 * none. */
cgn_nsec metric_times_quantile(const struct metric_times *now, const struct metric_times *before, double q);
/* Forget the series of metric |id| whose label |label| is |value|: they are no longer shown. Their cells stay
 * valid memory. */
void metric_forget(struct telemetry *t, unsigned id, const char *label, const char *value);
/* The same for every metric that has the label |label|: telemetry_forget(t, "node", id) for a node that left. */
void telemetry_forget(struct telemetry *t, const char *label, const char *value);

/* Prometheus text 0.0.4 of all metrics that have a series; process_* (RSS, CPU, fds, start time) included. */
void telemetry_text(struct telemetry *t, struct cgn_buf *out);
/* Write the rows of docs/reference/metrics.md for one table, and for the joint rooms' table. */
void telemetry_reference(const struct metric_row *rows, size_t n, struct cgn_buf *out);
void telemetry_reference_joint(struct cgn_buf *out);
