/* SPDX-License-Identifier: Apache-2.0 */
/* prom: read Prometheus text 0.0.4 (and OpenMetrics, as far as samples go) in place. No allocation; a line
 * that makes no sense is skipped. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "base/core/str.h"

struct prom_sample {
	struct cgn_str name;
	struct cgn_str labels; /* between the braces, still escaped; empty when there are none */
	double value;          /* may be NaN or infinite */
};

struct prom_reader {
	struct cgn_str rest;
	size_t skipped; /* lines that were neither sample, comment nor blank */
};

static inline struct prom_reader prom_reader_of(struct cgn_str text)
{
	return (struct prom_reader){.rest = text};
}
/* The next sample; false at the end. Borrows from the text. */
bool prom_next(struct prom_reader *r, struct prom_sample *out);
/* The raw (escaped) value of a label; false when the sample has no such label. */
bool prom_label(const struct prom_sample *s, const char *name, struct cgn_str *out);

/* Over all finite samples of that name, whatever their labels. False, and *out untouched, when there is
 * none. */
bool prom_sum(struct cgn_str text, const char *name, double *out);
bool prom_max(struct cgn_str text, const char *name, double *out);
