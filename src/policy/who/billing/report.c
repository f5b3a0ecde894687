/* SPDX-License-Identifier: Apache-2.0 */
/* report: rows added up by time and by tenant, key or model. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/core/arena.h"
#include "base/core/utc.h"
#include "base/table/table.h"
#include "policy/who/billing/billing_priv.h"
#include "policy/who/budget/budget.h"

#define HOUR_S   3600
#define TIME_END 253402300800U /* Seconds from 1970 to the year 10000. */

struct report_line {
	uint64_t hour; /* The first one of the line's time; 0: of the whole time. */
	struct cgn_str name;
	struct billing_amounts sum;
};
#define REPORT_TAG   0x1ed6e702U
#define REPORT_NAMES ((size_t)64 << 20)

struct billing_report {
	uint32_t tag;
	struct billing_query q;
	uint64_t next; /* The hour that is added next. */
	bool full;
	struct report_line *lines; /* Each with a time and name of its own. */
	size_t n, cap;
	struct table table; /* Indices of |lines|. */
	struct cgn_arena names;
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
		return seconds < TIME_END;
	}
	if (!cgn_str_copyz(z, sizeof z, text))
		return false;
	for (size_t i = 0; i < CGN_COUNT(formats); i++) {
		struct tm tm = {0};
		const char *end = strptime(z, formats[i], &tm);
		if (end == NULL || *end != '\0' || tm.tm_year < 70)
			continue;
		struct tm given = tm;
		*hour = (uint64_t)timegm(&tm) / HOUR_S;
		return given.tm_mday == tm.tm_mday; /* 2026-02-30 is not a day. */
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

static uint64_t step_start(enum billing_step step, uint64_t hour)
{
	return step == BILLING_STEP_HOUR ? hour : step == BILLING_STEP_DAY ? hour - hour % 24 : 0;
}

struct billing_report *billing_report_new(const struct billing_query *q)
{
	struct billing_report *r = CGN_NEW(struct billing_report);
	r->tag = REPORT_TAG;
	r->q = *q;
	r->next = q->from;
	cgn_arena_init(&r->names, REPORT_NAMES);
	return r;
}

void billing_report_free(struct billing_report **take)
{
	struct billing_report *r = CGN_TAKE_LIVE(take, REPORT_TAG);
	if (r == NULL)
		return;
	cgn_arena_fini(&r->names);
	free(r->lines);
	table_fini(&r->table);
	r->tag = 0;
	free(r);
}

/* Append a line without a sum; NULL: there is no room for it. */
static struct report_line *line_new(struct billing_report *r, uint64_t hour, struct cgn_str name,
	uint64_t hash)
{
	r->full = r->n == BILLING_LINES;
	if (r->full)
		return NULL;
	if (r->n == r->cap) {
		r->cap = r->cap > 0 ? 2 * r->cap : 256;
		r->lines = CGN_GROWN(r->lines, r->cap);
	}
	table_put(&r->table, hash, (uint32_t)r->n);
	r->lines[r->n] = (struct report_line){.hour = hour, .name = cgn_arena_str(&r->names, name)};
	return &r->lines[r->n++];
}

static struct report_line *line_of(struct billing_report *r, uint64_t hour, struct cgn_str name)
{
	uint64_t hash = mix_fnv1a(MIX_FNV1A ^ hour, name.p, name.n);
	table_each (at, &r->table, hash) {
		struct report_line *line = &r->lines[at.number];
		if (line->hour == hour && cgn_str_eq(line->name, name))
			return line;
	}
	return line_new(r, hour, name, hash);
}

bool billing_report_add(struct billing_report *r, const struct billing *l)
{
	CGN_LIVE(r, REPORT_TAG);
	size_t at = billing_at(l, r->next);
	if (at == l->n || l->hours[at].hour >= r->q.to || r->full)
		return false;
	const struct billing_hour *h = &l->hours[at];
	for (size_t i = 0; i < h->n; i++) {
		struct report_line *line =
			line_of(r, step_start(r->q.step, h->hour), row_name(&h->rows[i], r->q.by));
		if (line == NULL)
			return false;
		billing_sum(&line->sum, &h->rows[i].sum);
	}
	r->next = h->hour + 1;
	return true;
}

CGN_RC billing_report_end(struct billing_report *r, struct cgn_err *err)
{
	CGN_LIVE(r, REPORT_TAG);
	if (r->full)
		return CGN_FAIL(err, TOO_LARGE,
			"the report would have more than %d lines: ask for less time, or step=day",
			BILLING_LINES);
	if (r->n > 0)
		qsort(r->lines, r->n, sizeof *r->lines, line_order);
	return CGN_OK;
}

/* ---- writing ---- */

static void time_text(uint64_t hour, char out[32])
{
	(void)cgn_utc_text((int64_t)(hour * HOUR_S), "%Y-%m-%dT%H:%M:%SZ", out, 32);
}

static char *time_new(struct pb_tree *t, uint64_t hour)
{
	char text[32];
	time_text(hour, text);
	return pb_tree_text(t, cgn_str_of(text));
}

static void line_fill(struct pb_tree *t, const struct billing_query *q, const struct report_line *line,
	Cognitora__V1__UsageLine *to)
{
	static const Cognitora__V1__UsageLine__NameCase cases[] =
		{[BILLING_BY_ALL] = COGNITORA__V1__USAGE_LINE__NAME__NOT_SET,
			[BILLING_BY_TENANT] = COGNITORA__V1__USAGE_LINE__NAME_TENANT,
			[BILLING_BY_KEY] = COGNITORA__V1__USAGE_LINE__NAME_KEY,
			[BILLING_BY_MODEL] = COGNITORA__V1__USAGE_LINE__NAME_MODEL};
	if (q->step != BILLING_STEP_ALL)
		to->time = time_new(t, line->hour);
	to->name_case = cases[q->by];
	to->tenant = pb_tree_text(t, line->name); /* The names share their place. */
	to->requests = line->sum.requests;
	to->estimated = line->sum.estimated;
	to->input_tokens = line->sum.input;
	to->cached_tokens = line->sum.cached;
	to->output_tokens = line->sum.output;
	to->money = (double)line->sum.money / (double)BUDGET_MONEY_SCALE;
	to->joules = (double)line->sum.joules / (double)BUDGET_JOULE_SCALE;
}

void billing_report_fill(const struct billing_report *r, struct pb_tree *t, Cognitora__V1__Usage *to)
{
	to->from = time_new(t, r->q.from);
	to->to = time_new(t, r->q.to);
	to->currency = pb_text(r->q.currency);
	for (size_t i = 0; i < r->n && !t->bad; i++)
		line_fill(t, &r->q, &r->lines[i], PB_ADD(t, to, usage, usage_line));
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

void billing_report_csv(const struct billing_report *r, struct cgn_buf *out)
{
	const struct billing_query *q = &r->q;
	cgn_buf_fmt(out, "%s%s%s", q->step != BILLING_STEP_ALL ? "time," : "",
		q->by != BILLING_BY_ALL ? by_words[q->by] : "", q->by != BILLING_BY_ALL ? "," : "");
	cgn_buf_fmt(out, "requests,estimated,input_tokens,cached_tokens,output_tokens,money_%s,joules\n",
		q->currency);
	for (size_t i = 0; i < r->n; i++)
		line_csv(out, q, &r->lines[i]);
}
