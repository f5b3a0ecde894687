/* SPDX-License-Identifier: Apache-2.0 */
/* billing: tokens, money and energy that were used, by hour, tenant, key and model. Pure; one thread.
 *
 * Memory: at most BILLING_HOURS hours, the earliest of which gives way, with at most BILLING_ROWS rows each, of 80 bytes
 * and their names: 60 MiB when all is used with names of 40 bytes. What finds no row in its hour is added to the
 * hour's row of BILLING_OTHER. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/buf.h"
#include "base/core/err.h"
#include "base/core/str.h"
#include "base/pb/pb_tree.h"
#include "cognitora/v1/control.pb-c.h"

#define BILLING_HOURS 768 /* 32 days. */
#define BILLING_ROWS  512
#define BILLING_OTHER "(other)"
#define BILLING_NAME  255 /* Longer names are cut. */

struct billing_amounts {
	uint64_t requests,
		estimated; /* |estimated|: of the requests, those whose tokens no engine reported. */
	uint64_t input, cached, output;
	uint64_t money, joules; /* In the parts that policy/who/budget counts. */
};
struct billing_names {
	struct cgn_str tenant, key, model;
};

struct billing;
struct billing *billing_new(void);
void billing_free(struct billing **take);
/* Add to the row of |names| in the hour |hour|, counted from 1970. Without memory nothing is added. */
void billing_add(struct billing *l, uint64_t hour, const struct billing_names *names,
	const struct billing_amounts *more);
/* Return a number that changes with each change. */
uint64_t billing_version(const struct billing *l);

/* Append the rows of the 24 hours of |day|, as a sealed text of the kind "cognitora-usage". */
void billing_write_day(const struct billing *l, uint64_t day, struct cgn_buf *out);
/* Add the rows of |text|, of |day|. INVALID: damaged, or of a later format; nothing of it may be used then, and some
 * of its rows may have been added only if its sum was right. */
CGN_RC billing_read_day(struct billing *l, uint64_t day, struct cgn_str text, struct cgn_err *err);

/* Append the line of one row, with its line end. */
void billing_write_row(uint64_t hour, const struct billing_names *names,
	const struct billing_amounts *amounts, struct cgn_buf *out);
/* Read |line|, a row without its line end. Returns false if it is none. The names are in |out|, which must not move. */
struct billing_line {
	uint64_t hour;
	struct billing_names names;
	struct billing_amounts amounts;
	char rooms[3][3 * BILLING_NAME];
};
bool billing_read_line(struct cgn_str line, struct billing_line *out);

/* ---- reports ---- */

enum billing_by { BILLING_BY_ALL, BILLING_BY_TENANT, BILLING_BY_KEY, BILLING_BY_MODEL };
enum billing_step { BILLING_STEP_ALL, BILLING_STEP_HOUR, BILLING_STEP_DAY };
struct billing_query {
	uint64_t from, to; /* Hours: |from| is the first one, |to| the first one after the last. */
	enum billing_by by;
	enum billing_step step;
	const char *currency;
};
#define BILLING_LINES 65536 /* The most lines of a report. */
bool billing_by_find(struct cgn_str word, enum billing_by *out);
bool billing_step_find(struct cgn_str word, enum billing_step *out);
/* Read "2026-11-23", "2026-11-23T13", "2026-11-23T13:00Z" or seconds since 1970, as the hour that it is in. */
bool billing_time(struct cgn_str text, uint64_t *hour);
/* A report, which has copies of all that it says. Memory: 104 to 208 bytes and the name for each line, and 11 to 22 to find it. */
struct billing_report;
struct billing_report *billing_report_new(const struct billing_query *q);
void billing_report_free(struct billing_report **take); /* NULL-safe. */
/* Add the rows of the next hour, at most BILLING_ROWS; false: there is none left. Only this call looks at |l|, so that a lock
 * on it is held for an hour's rows at a time. */
bool billing_report_add(struct billing_report *r, const struct billing *l);
/* Order the lines. TOO_LARGE: there are more than BILLING_LINES. */
CGN_RC billing_report_end(struct billing_report *r, struct cgn_err *err);
/* After billing_report_end: append the report as CSV; fill a message that |t| made. */
void billing_report_csv(const struct billing_report *r, struct cgn_buf *out);
void billing_report_fill(const struct billing_report *r, struct pb_tree *t, Cognitora__V1__Usage *to);
