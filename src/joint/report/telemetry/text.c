/* SPDX-License-Identifier: Apache-2.0 */
/* telemetry: the Prometheus text format 0.0.4, and the reference page of the same table. */
#include <math.h>
#include <stdlib.h>

#include "joint/report/telemetry/telemetry_priv.h"

static const char *const type_names[] = {[METRIC_COUNTER] = "counter",
	[METRIC_GAUGE] = "gauge",
	[METRIC_HISTOGRAM] = "histogram",
	[METRIC_QUANTILES] = "histogram",
	[METRIC_MILLIONTHS] = "counter"};

struct metric_page { /* argument of metric_each */
	struct cgn_buf *out;
	const struct metric_row *row;
	bool begun;
};

static void series_text(void *arg, const char *const *values, const struct metric_cell *c);

static void metric_text(struct telemetry *t, unsigned id, const struct metric_row *row, void *arg)
{
	struct metric_page pg = {.out = arg, .row = row};
	metric_each(t, id, series_text, &pg);
}

void telemetry_text(struct telemetry *t, struct cgn_buf *out)
{
	telemetry_each(t, metric_text, out);
	process_text(out);
}

void telemetry_reference(const struct metric_row *rows, size_t n, struct cgn_buf *out)
{
	cgn_buf_putz(out, "| name | type | labels | meaning |\n|---|---|---|---|\n");
	for (const struct metric_row *m = rows; m < rows + n; m++)
		cgn_buf_fmt(out, "| `%s` | %s | %s | %s |\n", m->name, type_names[m->type], m->labels,
			m->help);
}

/* In the short spelling where it reads back as the same number. */
static void put_number(struct cgn_buf *out, double v)
{
	if (isnan(v)) {
		cgn_buf_putz(out, "NaN");
		return;
	}
	if (isinf(v)) {
		cgn_buf_putz(out, v > 0 ? "+Inf" : "-Inf");
		return;
	}
	char text[40];
	snprintf(text, sizeof text, "%.15g", v);
	if (strtod(text, NULL) < v || strtod(text, NULL) > v)
		snprintf(text, sizeof text, "%.17g", v);
	cgn_buf_putz(out, text);
}

/* Label values have no line ends: metric_get escapes control characters. */
static void put_escaped(struct cgn_buf *out, const char *z)
{
	for (; *z != '\0'; z++) {
		if (*z == '\\' || *z == '"')
			cgn_buf_char(out, '\\');
		cgn_buf_char(out, *z);
	}
}

/* Write {a="x",b="y",le="0.5"}; nothing when there is no label. */
static void put_labels(struct cgn_buf *out, const char *labels, const char *const *values, const char *le)
{
	char before = '{';
	struct cgn_str rest = cgn_str_of(labels);
	for (size_t i = 0; rest.p != NULL && rest.n > 0; i++) {
		cgn_buf_char(out, before);
		cgn_buf_str(out, cgn_str_split(&rest, ','));
		cgn_buf_putz(out, "=\"");
		put_escaped(out, values[i]);
		cgn_buf_char(out, '"');
		before = ',';
	}
	if (le != NULL) {
		cgn_buf_fmt(out, "%cle=\"%s\"", before, le);
		before = ',';
	}
	if (before == ',')
		cgn_buf_char(out, '}');
}

static void put_sample(struct metric_page *pg, const char *suffix, const char *const *values, const char *le)
{
	cgn_buf_fmt(pg->out, "%s%s", pg->row->name, suffix);
	put_labels(pg->out, pg->row->labels, values, le);
	cgn_buf_char(pg->out, ' ');
}

/* The count is the sum of the buckets as read here, so that a page agrees with itself. */
static void histogram_text(struct metric_page *pg, const char *const *values, const struct metric_cell *c)
{
	uint64_t total = 0;
	for (size_t i = 0; i <= METRIC_BOUNDS; i++) {
		char le[24] = "+Inf";
		if (i < METRIC_BOUNDS)
			snprintf(le, sizeof le, "%g", (double)metric_bounds[i] / (double)CGN_SEC);
		total += atomic_load_explicit(&c->bucket[i], memory_order_relaxed);
		put_sample(pg, "_bucket", values, le);
		cgn_buf_u64(pg->out, total);
		cgn_buf_char(pg->out, '\n');
	}
	put_sample(pg, "_sum", values, NULL);
	put_number(pg->out, (double)atomic_load_explicit(&c->value, memory_order_relaxed) / (double)CGN_SEC);
	cgn_buf_char(pg->out, '\n');
	put_sample(pg, "_count", values, NULL);
	cgn_buf_u64(pg->out, total);
	cgn_buf_char(pg->out, '\n');
}

static void series_text(void *arg, const char *const *values, const struct metric_cell *c)
{
	struct metric_page *pg = arg;
	if (!pg->begun)
		cgn_buf_fmt(pg->out, "# HELP %s %s\n# TYPE %s %s\n", pg->row->name, pg->row->help,
			pg->row->name, type_names[pg->row->type]);
	pg->begun = true;
	if (c->type == METRIC_HISTOGRAM) {
		histogram_text(pg, values, c);
		return;
	}
	put_sample(pg, "", values, NULL);
	if (c->type == METRIC_COUNTER)
		cgn_buf_u64(pg->out, metric_count(c));
	else if (c->type == METRIC_MILLIONTHS)
		cgn_buf_fmt(pg->out, "%llu.%06llu", (unsigned long long)(metric_count(c) / 1000000),
			(unsigned long long)(metric_count(c) % 1000000));
	else
		put_number(pg->out, metric_gauge(c));
	cgn_buf_char(pg->out, '\n');
}
