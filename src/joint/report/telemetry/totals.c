/* SPDX-License-Identifier: Apache-2.0 */
/* telemetry: totals of a metric over its series, and quantiles between two of them. */
#include <string.h>

#include "joint/report/telemetry/telemetry_priv.h"

struct totalling {
	const char *value;
	struct metric_totals *count; /* NULL: |times| are wanted. */
	struct metric_times *times;
};

static bool series_wanted(const char *value, const char *const *values)
{
	/* Requests that name no model, such as GET /readyz, have an empty label. */
	if (value == NULL)
		return values[0] == NULL || values[0][0] != '\0';
	for (size_t i = 0; i < METRIC_MAX_LABELS && values[i] != NULL; i++)
		if (strcmp(values[i], value) == 0)
			return true;
	return false;
}

static void times_add(struct metric_times *to, const struct metric_fine *f)
{
	uint64_t least = atomic_load_explicit(&f->least, memory_order_relaxed),
		 most = atomic_load_explicit(&f->most, memory_order_relaxed);
	for (size_t i = 0; i < QUANTILE_BUCKETS; i++)
		to->in[i] += atomic_load_explicit(&f->in[i], memory_order_relaxed);
	to->least = least < to->least ? least : to->least;
	to->most = most > to->most ? most : to->most;
}

static void add_series(void *arg, const char *const *values, const struct metric_cell *c)
{
	const struct totalling *t = arg;
	if (!series_wanted(t->value, values))
		return;
	if (t->count != NULL)
		t->count->count += metric_count(c);
	else if (c->fine != NULL)
		times_add(t->times, c->fine);
}

void metric_total(struct telemetry *t, unsigned id, const char *value, struct metric_totals *out)
{
	struct totalling job = {value, .count = out};
	*out = (struct metric_totals){.count = 0};
	metric_each(t, id, add_series, &job);
}

void metric_times_total(struct telemetry *t, unsigned id, const char *value, struct metric_times *out)
{
	struct totalling job = {value, .times = out};
	*out = (struct metric_times){.least = UINT64_MAX};
	metric_each(t, id, add_series, &job);
}

/* A series that was forgotten in between takes its count with it: then the difference is 0. */
static uint64_t count_since(uint64_t count, uint64_t noted)
{
	return count > noted ? count - noted : 0;
}

uint64_t metric_totals_since(const struct metric_totals *now, const struct metric_totals *before)
{
	return count_since(now->count, before->count);
}

uint64_t metric_times_since(const struct metric_times *now, const struct metric_times *before)
{
	uint64_t n = 0;
	for (size_t i = 0; i < QUANTILE_BUCKETS; i++)
		n += count_since(now->in[i], before->in[i]);
	return n;
}

cgn_nsec metric_times_quantile(const struct metric_times *now, const struct metric_times *before, double q)
{
	uint64_t in[QUANTILE_BUCKETS];
	for (size_t i = 0; i < QUANTILE_BUCKETS; i++)
		in[i] = count_since(now->in[i], before->in[i]);
	return quantile_of(in, q, now->least, now->most);
}
