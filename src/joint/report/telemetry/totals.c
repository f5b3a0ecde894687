/* SPDX-License-Identifier: Apache-2.0 */
/* telemetry: totals of a metric over its series, and quantiles between two of them. */
#include <string.h>

#include "joint/report/telemetry/telemetry_priv.h"

_Static_assert(METRIC_BOUNDS + 1 == METRIC_BUCKETS, "totals have a place for each bucket");

struct totalling {
	const char *value;
	struct metric_totals *out;
};

static void add_series(void *arg, const char *const *values, const struct metric_cell *c)
{
	const struct totalling *t = arg;
	/* Requests that name no model, such as GET /readyz, have an empty label. */
	bool wanted = t->value == NULL && (values[0] == NULL || values[0][0] != '\0');
	for (size_t i = 0; !wanted && t->value != NULL && i < METRIC_MAX_LABELS && values[i] != NULL; i++)
		wanted = strcmp(values[i], t->value) == 0;
	if (!wanted)
		return;
	if (c->type != METRIC_HISTOGRAM)
		t->out->count += atomic_load_explicit(&c->value, memory_order_relaxed);
	for (size_t i = 0; c->type == METRIC_HISTOGRAM && i < METRIC_BUCKETS; i++) {
		uint64_t n = atomic_load_explicit(&c->bucket[i], memory_order_relaxed);
		t->out->bucket[i] += n;
		t->out->count += n;
	}
}

void metric_total(struct telemetry *t, unsigned id, const char *value, struct metric_totals *out)
{
	struct totalling job = {value, out};
	*out = (struct metric_totals){.count = 0};
	metric_each(t, id, add_series, &job);
}

/* A series that was forgotten in between takes its count with it: then the difference is 0. */
uint64_t metric_totals_since(const struct metric_totals *now, const struct metric_totals *before)
{
	return now->count > before->count ? now->count - before->count : 0;
}

cgn_nsec metric_totals_quantile(const struct metric_totals *now, const struct metric_totals *before, double q)
{
	uint64_t all = 0, seen = 0, in[METRIC_BUCKETS];
	for (size_t i = 0; i < METRIC_BUCKETS; i++) {
		in[i] = now->bucket[i] > before->bucket[i] ? now->bucket[i] - before->bucket[i] : 0;
		all += in[i];
	}
	double rank = q * (double)all;
	for (size_t i = 0; i < METRIC_BOUNDS; i++) {
		cgn_nsec low = i > 0 ? metric_bounds[i - 1] : 0;
		if (in[i] > 0 && (double)(seen + in[i]) >= rank)
			return low +
				(cgn_nsec)((rank - (double)seen) / (double)in[i] *
					(double)(metric_bounds[i] - low));
		seen += in[i];
	}
	return all > 0 ? metric_bounds[METRIC_BOUNDS - 1] : 0;
}
