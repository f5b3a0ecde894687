/* SPDX-License-Identifier: Apache-2.0 */
/* hours: when batches are carried out: at hours of the day, and while energy is cheap, but never so late that a batch
 * misses the end of its window. Hours are UTC: a day has 24 of them all year. Pure. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/err.h"
#include "base/core/str.h"

#define BATCH_SPANS_MAX 16

/* Spans of a day in minutes from 00:00 UTC, from <= minute < to; from >= to: over midnight. None: all hours. */
struct batch_hours {
	struct {
		uint16_t from, to;
	} spans[BATCH_SPANS_MAX];
	size_t n;
};
/* Add "22:00-06:00"; "24:00" is the end of a day. INVALID: it is not such a span, is empty, or there are
 * BATCH_SPANS_MAX already. */
CGN_RC batch_hours_add(struct batch_hours *h, struct cgn_str text, struct cgn_err *err);

struct batch_gate {
	struct batch_hours hours;
	double max_price; /* Times the usual price of energy, above which batches wait; 0: at any price. */
	uint64_t
		margin_s; /* Time before the end of a window from which a batch is carried out in any case. */
};
struct batch_moment {
	uint64_t now_s, created_s, expires_s; /* Unix time. */
	double price;                         /* Times the usual price; negative: not known. */
	double need_s; /* Time that the lines that are left are expected to take; 0: not known. */
};
enum batch_wait { BATCH_GOES, BATCH_WAITS_HOURS, BATCH_WAITS_PRICE };
/* Return the condition that a batch waits for, and set |*until_s| to the time at which it goes on at the
 * latest (BATCH_GOES: 0). A price that is not known lets batches go. A batch goes in any case from margin_s
 * before its end on, or half its window if that is shorter, or twice need_s if that is longer. */
enum batch_wait batch_gate_at(const struct batch_gate *g, const struct batch_moment *m, uint64_t *until_s);
const char *batch_wait_text(enum batch_wait w); /* "hours", "price"; "" for BATCH_GOES */
