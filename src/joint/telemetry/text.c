/* SPDX-License-Identifier: Apache-2.0 */
/* telemetry: the Prometheus text format 0.0.4, and the reference page of the same table. */
#include <math.h>
#include <stdlib.h>

#include "joint/telemetry/telemetry_priv.h"

static const char *const type_names[] =
	{[METRIC_COUNTER] = "counter", [METRIC_GAUGE] = "gauge", [METRIC_HISTOGRAM] = "histogram"};

struct page { /* what metric_each hands through */
	struct cgn_buf *out;
	const struct metric_row *row;
	bool begun;
};

static void series_text(void *arg, const char *const *values, const struct metric_cell *c);

void telemetry_text(struct cgn_buf *out)
{
	for (size_t i = 0; i < METRIC_COUNT; i++) {
		struct page pg = {.out = out, .row = &metric_rows[i]};
		metric_each((enum metric_id)i, series_text, &pg);
	}
	process_text(out);
}

void telemetry_reference(struct cgn_buf *out)
{
	cgn_buf_putz(out,
		"# Metrics\n\n"
		"Generated from `src/joint/telemetry/metrics.def` by `scripts/gen-reference`; do not edit.\n\n"
		"Every program serves these on its admin port at `/metrics`, in the Prometheus text format; a metric appears once it has a\n"
		"value. Histograms are in seconds. Beside them each program exports the usual `process_*` metrics.\n\n"
		"| name | type | labels | meaning |\n|---|---|---|---|\n");
	for (size_t i = 0; i < METRIC_COUNT; i++) {
		const struct metric_row *m = &metric_rows[i];
		cgn_buf_fmt(out, "| `%s` | %s | %s | %s |\n", m->name, type_names[m->type], m->labels,
			m->help);
	}
}

static void put_number(struct cgn_buf *out, double v) /* the short spelling where it reads back the same */
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

static void put_escaped(struct cgn_buf *out, const char *z)
{
	for (; *z != '\0'; z++) {
		if (*z == '\\' || *z == '"')
			cgn_buf_char(out, '\\');
		if (*z == '\n')
			cgn_buf_putz(out, "\\n");
		else
			cgn_buf_char(out, *z);
	}
}

/* {a="x",b="y",le="0.5"}; nothing when there is no label. */
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

static void put_sample(struct page *pg, const char *suffix, const char *const *values, const char *le)
{
	cgn_buf_fmt(pg->out, "%s%s", pg->row->name, suffix);
	put_labels(pg->out, pg->row->labels, values, le);
	cgn_buf_char(pg->out, ' ');
}

/* The count is the sum of the buckets as read here, so that a page never contradicts itself. */
static void histogram_text(struct page *pg, const char *const *values, const struct metric_cell *c)
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
	struct page *pg = arg;
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
	else
		put_number(pg->out, metric_gauge(c));
	cgn_buf_char(pg->out, '\n');
}
