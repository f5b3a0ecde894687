/* SPDX-License-Identifier: Apache-2.0 */
/* prom: read Prometheus text 0.0.4, and the samples of OpenMetrics, in place. No allocation; an invalid line
 * is skipped. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "base/core/str.h"

struct prom_sample {
	struct cgn_str name;
	struct cgn_str labels; /* Text between the braces, still escaped; empty when there are no labels */
	double value;          /* May be NaN or infinite */
	struct cgn_str number; /* The text of the value */
};

struct prom_reader {
	struct cgn_str rest;
	size_t skipped; /* Lines that are neither sample, comment nor blank */
};

static inline struct prom_reader prom_reader_of(struct cgn_str text)
{
	return (struct prom_reader){.rest = text};
}
/* Get the next sample, which borrows from the text. False: the text has ended. */
bool prom_next(struct prom_reader *r, struct prom_sample *out);
/* Read the sample in |line|, which has no line end and no blanks around it. False: it has none. */
bool prom_sample_of(struct cgn_str line, struct prom_sample *out);
/* Get the next label from |rest|, which begins as a sample's labels; |value| is still escaped. False: there is none. */
bool prom_next_label(struct cgn_str *rest, struct cgn_str *name, struct cgn_str *value);
bool prom_is_name(struct cgn_str s); /* Is it a name of a metric? */
/* Get the raw (escaped) value of a label. False: the sample has no such label. */
bool prom_label(const struct prom_sample *s, const char *name, struct cgn_str *out);

/* Fold all finite samples of that name, with any labels. False, and |*out| unchanged: there is no such
 * sample. */
bool prom_sum(struct cgn_str text, const char *name, double *out);
bool prom_max(struct cgn_str text, const char *name, double *out);
