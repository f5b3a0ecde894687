/* SPDX-License-Identifier: Apache-2.0 */
/* report: rows added up by time and by tenant, key or model. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/json/json.h"
#include "policy/billing/billing_priv.h"
#include "policy/budget/budget.h"

#define HOUR_S 3600

struct report_line {
	uint64_t hour; /* The first one of the line's time; 0: of the whole time. */
	struct cgn_str name;
	struct billing_amounts sum;
};
struct report {
	struct report_line *lines;
	size_t n;
};

static const char *const by_words[] = {"all", "tenant", "key", "model"};
static const char *const step_words[] = {"all", "hour", "day"};

static bool word_find(const char *const *words, int n, struct cgn_str word, int *out)
{
	for (*out = 0; *out < n; (*out)++)
		if (cgn_str_is(word, words[*out]))
			return true;
	return false;
}

bool billing_by_find(struct cgn_str word, enum billing_by *out)
{
	int i;
	bool found = word_find(by_words, CGN_COUNT(by_words), word, &i);
	*out = found ? (enum billing_by)i : BILLING_BY_ALL;
	return found;
}

bool billing_step_find(struct cgn_str word, enum billing_step *out)
{
	int i;
	bool found = word_find(step_words, CGN_COUNT(step_words), word, &i);
	*out = found ? (enum billing_step)i : BILLING_STEP_ALL;
	return found;
}

bool billing_time(struct cgn_str text, uint64_t *hour)
{
	static const char *const formats[] = {"%Y-%m-%d", "%Y-%m-%dT%H", "%Y-%m-%dT%H:%MZ",
		"%Y-%m-%dT%H:%M:%SZ"};
	char z[32];
	uint64_t seconds = 0;
	if (cgn_str_u64(text, &seconds)) {
		*hour = seconds / HOUR_S;
		return true;
	}
	if (!cgn_str_copyz(z, sizeof z, text))
		return false;
	for (size_t i = 0; i < CGN_COUNT(formats); i++) {
		struct tm tm = {0};
		const char *end = strptime(z, formats[i], &tm);
		if (end == NULL || *end != '\0' || tm.tm_year < 70)
			continue;
		*hour = (uint64_t)timegm(&tm) / HOUR_S;
		return true;
	}
	return false;
}

/* ---- adding up ---- */

static struct cgn_str row_name(const struct billing_row *row, enum billing_by by)
{
	switch (by) {
	case BILLING_BY_TENANT:
		return row->names.tenant;
	case BILLING_BY_KEY:
		return row->names.key;
	case BILLING_BY_MODEL:
		return row->names.model;
	case BILLING_BY_ALL:
		break;
	}
	return CGN_STR("");
}

static int line_order(const void *a, const void *b)
{
	const struct report_line *x = a, *y = b;
	if (x->hour != y->hour)
		return x->hour < y->hour ? -1 : 1;
	return cgn_str_order(x->name, y->name);
}

/* Add up lines of the same time and name, which are neighbours. */
static void lines_merge(struct report *r)
{
	size_t kept = 0;
	for (size_t i = 0; i < r->n; i++) {
		if (kept > 0 && line_order(&r->lines[kept - 1], &r->lines[i]) == 0)
			billing_sum(&r->lines[kept - 1].sum, &r->lines[i].sum);
		else
			r->lines[kept++] = r->lines[i];
	}
	r->n = kept;
}

static uint64_t step_start(enum billing_step step, uint64_t hour)
{
	return step == BILLING_STEP_HOUR ? hour : step == BILLING_STEP_DAY ? hour - hour % 24 : 0;
}

static CGN_RC report_make(const struct billing *l, const struct billing_query *q, struct report *out,
	struct cgn_err *err)
{
	size_t all = 0;
	for (size_t i = billing_at(l, q->from); i < l->n && l->hours[i].hour < q->to; i++)
		all += l->hours[i].n;
	*out = (struct report){.lines = calloc(all + 1, sizeof *out->lines)};
	if (out->lines == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for a report of %zu rows", all);
	for (size_t i = billing_at(l, q->from); i < l->n && l->hours[i].hour < q->to; i++)
		for (size_t k = 0; k < l->hours[i].n; k++) {
			const struct billing_row *row = &l->hours[i].rows[k];
			out->lines[out->n++] = (struct report_line){step_start(q->step, l->hours[i].hour),
				row_name(row, q->by), row->sum};
		}
	qsort(out->lines, out->n, sizeof *out->lines, line_order);
	lines_merge(out);
	if (out->n <= BILLING_LINES)
		return CGN_OK;
	size_t n = out->n;
	free(out->lines);
	return CGN_FAIL(err, TOO_LARGE,
		"the report would have %zu lines, more than %d: ask for less time, or step=day", n,
		BILLING_LINES);
}

/* ---- writing ---- */

static void time_text(uint64_t hour, char out[32])
{
	time_t at = (time_t)(hour * HOUR_S);
	struct tm tm;
	if (gmtime_r(&at, &tm) == NULL || strftime(out, 32, "%Y-%m-%dT%H:%M:%SZ", &tm) == 0)
		*out = '\0';
}

static void line_json(struct json_out *j, const struct billing_query *q, const struct report_line *line)
{
	char text[BUDGET_TEXT_MAX];
	json_open(j, '{');
	time_text(line->hour, text);
	if (q->step != BILLING_STEP_ALL)
		json_key_z(j, "time", text);
	if (q->by != BILLING_BY_ALL)
		json_key_str(j, by_words[q->by], line->name);
	json_key_u64(j, "requests", line->sum.requests);
	json_key_u64(j, "estimated", line->sum.estimated);
	json_key_u64(j, "input_tokens", line->sum.input);
	json_key_u64(j, "cached_tokens", line->sum.cached);
	json_key_u64(j, "output_tokens", line->sum.output);
	json_key_f64(j, "money", (double)line->sum.money / (double)BUDGET_MONEY_SCALE);
	json_key_f64(j, "joules", (double)line->sum.joules / (double)BUDGET_JOULE_SCALE);
	json_close(j, '}');
}

CGN_RC billing_report_json(const struct billing *l, const struct billing_query *q, struct cgn_buf *out,
	struct cgn_err *err)
{
	struct report r;
	struct json_out j = json_out_to(out);
	char text[32];
	CGN_TRY(report_make(l, q, &r, err));
	json_open(&j, '{');
	time_text(q->from, text);
	json_key_z(&j, "from", text);
	time_text(q->to, text);
	json_key_z(&j, "to", text);
	json_key_z(&j, "currency", q->currency);
	json_key_open(&j, "usage", '[');
	for (size_t i = 0; i < r.n; i++)
		line_json(&j, q, &r.lines[i]);
	json_close(&j, ']');
	json_close(&j, '}');
	free(r.lines);
	return CGN_OK;
}

/* Append |s| as RFC 4180 quotes it. */
static void csv_put(struct cgn_buf *out, struct cgn_str s)
{
	cgn_buf_char(out, '"');
	for (size_t i = 0; i < s.n; i++) {
		if (s.p[i] == '"')
			cgn_buf_char(out, '"');
		cgn_buf_char(out, s.p[i]);
	}
	cgn_buf_putz(out, "\",");
}

static void line_csv(struct cgn_buf *out, const struct billing_query *q, const struct report_line *line)
{
	char text[BUDGET_TEXT_MAX];
	const struct billing_amounts *s = &line->sum;
	time_text(line->hour, text);
	if (q->step != BILLING_STEP_ALL)
		cgn_buf_fmt(out, "%s,", text);
	if (q->by != BILLING_BY_ALL)
		csv_put(out, line->name);
	cgn_buf_fmt(out, "%llu,%llu,%llu,%llu,%llu,", (unsigned long long)s->requests,
		(unsigned long long)s->estimated, (unsigned long long)s->input, (unsigned long long)s->cached,
		(unsigned long long)s->output);
	budget_amount_text(BUDGET_MONEY, s->money, text);
	cgn_buf_fmt(out, "%s,", text);
	budget_amount_text(BUDGET_JOULES, s->joules, text);
	cgn_buf_fmt(out, "%s\n", text);
}

CGN_RC billing_report_csv(const struct billing *l, const struct billing_query *q, struct cgn_buf *out,
	struct cgn_err *err)
{
	struct report r;
	CGN_TRY(report_make(l, q, &r, err));
	cgn_buf_fmt(out, "%s%s%s", q->step != BILLING_STEP_ALL ? "time," : "",
		q->by != BILLING_BY_ALL ? by_words[q->by] : "", q->by != BILLING_BY_ALL ? "," : "");
	cgn_buf_fmt(out, "requests,estimated,input_tokens,cached_tokens,output_tokens,money_%s,joules\n",
		q->currency);
	for (size_t i = 0; i < r.n; i++)
		line_csv(out, q, &r.lines[i]);
	free(r.lines);
	return CGN_OK;
}
