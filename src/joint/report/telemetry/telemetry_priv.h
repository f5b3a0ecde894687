/* SPDX-License-Identifier: Apache-2.0 */
/* telemetry, inside: what the registry holds and the exposition reads. */
#pragma once
#include <stdatomic.h>

#include "joint/report/telemetry/telemetry.h"

#define METRIC_MAX_SERIES 4096 /* series of a metric: bounds the memory that invented label values take */
#define METRIC_MAX_LABELS 4
#define METRIC_MAX_VALUE  128 /* bytes of a label value; longer ones are cut */
#define METRIC_BOUNDS     24
#define METRIC_CHAINS     256

/* Upper edges of the histogram buckets; one more bucket holds larger values. */
extern const cgn_nsec metric_bounds[METRIC_BOUNDS];

/* The observations of a series by bucket of base/quantile, and the least and the most of them. */
struct metric_fine {
	_Atomic uint64_t in[QUANTILE_BUCKETS];
	_Atomic uint64_t least, most;
};

struct metric_cell {
	enum metric_type type;    /* METRIC_HISTOGRAM for METRIC_QUANTILES too. */
	struct metric_fine *fine; /* Owned; NULL: the metric is not of type METRIC_QUANTILES. */
	_Atomic uint64_t value;   /* counter: count; gauge: the bits of a double; histogram: sum in ns */
	_Atomic uint64_t bucket[METRIC_BOUNDS + 1];
};

struct metric_series {
	struct metric_cell cell;
	struct metric_series *chain; /* the next of equal hash */
	struct metric_series *next;  /* in order of birth: the order of the text */
	uint64_t forgotten;          /* 0: shown; else its number among the forgotten */
	uint64_t hash;
	char *values[METRIC_MAX_LABELS]; /* owned */
};

/* Call |fn| for each metric of the registry, in the order of its tables. */
void telemetry_each(struct telemetry *t,
	void (*fn)(struct telemetry *t, unsigned id, const struct metric_row *row, void *arg), void *arg);
/* Call |fn| for each shown series of |id| under the registry's lock; the shared overflow series comes
 * last. */
void metric_each(struct telemetry *t, unsigned id,
	void (*fn)(void *arg, const char *const *values, const struct metric_cell *c), void *arg);
double metric_gauge(const struct metric_cell *c);
void process_text(struct cgn_buf *out);
