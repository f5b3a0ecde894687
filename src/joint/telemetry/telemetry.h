/* SPDX-License-Identifier: Apache-2.0 */
/* telemetry: counters, gauges and histograms, and their Prometheus text. Every name stands in metrics.def
 * with its type, labels and help; docs/reference/metrics.md is generated from it. Cells are atomics: update
 * from any thread; get the cell once and keep it. */
#pragma once
#include "base/core/buf.h"
#include "base/core/err.h"

enum metric_id {
#define METRIC(id, name, type, labels, help) METRIC_##id,
#include "joint/telemetry/metrics.def"
#undef METRIC
	METRIC_COUNT
};
enum metric_type { METRIC_COUNTER, METRIC_GAUGE, METRIC_HISTOGRAM /* seconds, 10 us .. 120 s */ };

struct metric_cell; /* lives as long as the process, or until metric_forget */
/* The series of |id| with these label values, in metrics.def's order ("a,b" labels take two values). At most
 * 4096 series a metric: beyond that the longest forgotten one is used again, else the shared series with
 * every label "_other". Values are cut at 128 bytes. Never NULL. Locks: not for the hot path, keep the
 * result. */
struct metric_cell *metric_get(enum metric_id id, const char *const *label_values, size_t n);
#define METRIC_OF(id, ...)                                          \
	metric_get(METRIC_##id, (const char *const[]){__VA_ARGS__}, \
		sizeof((const char *const[]){__VA_ARGS__}) / sizeof(const char *))
#define METRIC_ONE(id) metric_get(METRIC_##id, NULL, 0)
void metric_add(struct metric_cell *c, uint64_t n);      /* counter */
void metric_set(struct metric_cell *c, double v);        /* gauge */
void metric_shift(struct metric_cell *c, int64_t delta); /* gauge, integral */
void metric_observe(struct metric_cell *c, cgn_nsec v);  /* histogram */
uint64_t metric_count(const struct metric_cell *c); /* counter value, or histogram count; tests and /nodes */
cgn_nsec metric_sum(const struct metric_cell *c);   /* of a histogram */
/* Remove the series whose label |label| is |value| (a node that left). Its cells stay valid memory but are no
 * longer shown. */
void metric_forget(enum metric_id id, const char *label, const char *value);
/* Prometheus text 0.0.4 of all metrics that have a series; process_* (RSS, CPU, fds, start time) included. */
void telemetry_text(struct cgn_buf *out);
void telemetry_reference(struct cgn_buf *out); /* docs/reference/metrics.md */
