/* SPDX-License-Identifier: Apache-2.0 */
/* season: the load that a model usually has at a time of the day and of the week, so that replicas are there before the
 * usual rise. Pure; the router and the replay share it.
 *
 * The highest load of each quarter of an hour (of UTC), smoothed as the autoscaler smooths it, counts for its time of the
 * day and for its time of the week. The last day counts for AUTOSCALE_SEASON_GAIN, earlier ones fade. A time of the week
 * decides once it was seen in two weeks; before that the time of the day does, once it was seen on two days. A quarter of
 * which less than a half was seen does not count. One object takes 6 KiB. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/core/buf.h"
#include "base/core/err.h"
#include "base/core/str.h"

#define AUTOSCALE_SEASON_SLOT  900 /* Seconds. */
#define AUTOSCALE_SEASON_DAY   96  /* Slots. */
#define AUTOSCALE_SEASON_WEEK  672
#define AUTOSCALE_SEASON_GAIN  0.3
#define AUTOSCALE_SEASON_LEAST 0.05       /* Less load is none. */
#define AUTOSCALE_SEASON_MOST  1000000000 /* Highest load of a cell. */
#define AUTOSCALE_LEVEL_TIME   20.0       /* Seconds after which a step of the load counts for two thirds. */

struct autoscale_season_cell {
	uint32_t load; /* In thousandths of a replica, at most AUTOSCALE_SEASON_MOST. */
	uint32_t seen; /* Days that counted; 0: |load| means nothing. */
};
/* Zeroed memory knows nothing. */
struct autoscale_season {
	struct autoscale_season_cell day[AUTOSCALE_SEASON_DAY], week[AUTOSCALE_SEASON_WEEK];
	uint64_t slot;      /* The quarter that is under way, since 1970. */
	double level, most; /* The smoothed load, and the highest one of the quarter. */
	uint32_t n;         /* Seconds of the quarter that were seen. */
	double today;       /* The last quarter's load / its usual load; 0: unknown. */
};
/* Note the load of the second |unix_s|; once a second. True: a quarter has ended and counts now. */
bool autoscale_season_note(struct autoscale_season *s, double load, uint64_t unix_s);

/* Return the load that is to be expected from |unix_s| to |lead| later, of which at most an hour counts: the highest usual
 * load of these quarters, by as much more or less as the last quarter had more or less than usual, at most half as much
 * again. 0: unknown, or below AUTOSCALE_SEASON_LEAST. After a quarter without any load it is 0. */
double autoscale_season_expect(const struct autoscale_season *s, uint64_t unix_s, cgn_nsec lead);

/* Append the known loads as lines, "day SLOT LOAD SEEN" and "week SLOT LOAD SEEN", the load in
 * thousandths. */
void autoscale_season_put(const struct autoscale_season *s, struct cgn_buf *out);
/* Take one such line, without its end. INVALID: it is none. */
CGN_RC autoscale_season_take(struct autoscale_season *s, struct cgn_str line, struct cgn_err *err);
