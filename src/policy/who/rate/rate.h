/* SPDX-License-Identifier: Apache-2.0 */
/* rate: rates of requests and tokens. The expected cost is reserved before a request and settled with the
 * actual cost after it.
 *
 * The rule is the generic cell rate algorithm (ITU-T I.371, annex A, in its "virtual scheduling" form): a
 * bucket is one number, the time at which it will be full again. Reserving n moves that time n / rate into
 * the future, and is granted if the time stays within burst / rate of now; a refund moves it back. A bucket
 * whose time has passed is full, and so is an unknown bucket. Arithmetic is on integers: the time that n
 * units cost is rounded up to 1 ns, so a rate is never exceeded and is undercut by at most 1 ns a
 * reservation. A clock that jumps back makes nothing wait longer than RATE_MAX_DEBT beyond the bucket's own
 * time.
 *
 * All workers share the table without locks on the path of each request: a bucket's time is one atomic word,
 * changed by compare-and-swap. Several threads together are granted exactly what one thread would be. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/err.h"
#include "base/core/str.h"

struct config;

struct rate {
	uint64_t units; /* Units each |period|; 0: no limit. */
	cgn_nsec period;
	uint64_t burst; /* Size of the bucket, the most units at once; at least 1. */
};
#define RATE_MAX_UNITS UINT32_MAX /* Limit of rate and burst. */
/* The longest time for which a bucket that used more than it reserved stays empty. */
#define RATE_MAX_DEBT (3600 * CGN_SEC)
#define RATE_NEVER    UINT64_MAX
#define RATE_LONGEST  ((cgn_nsec)1 << 61) /* The most that any number of units costs: 73 years. */

/* Return the rate of |per_second| units, in [0, 1e6] with thousandths. |burst| 0: the units of one second, at
 * least 1. A rate of 0 does not limit. */
struct rate rate_per_second(double per_second, uint32_t burst);
/* Return the rate of |per_minute| units. The bucket holds the units of one minute. */
struct rate rate_per_minute(uint32_t per_minute);
bool rate_is_set(const struct rate *r);
/* Return the time that |n| units cost, rounded up; at most RATE_LONGEST. Times are below 2^62 ns, so no sum
 * overflows. */
cgn_nsec rate_cost(const struct rate *r, uint64_t n);

struct rate_answer {
	bool granted;
	/* When not granted: time until it would be if nothing else is taken; RATE_NEVER: more than the
	 * bucket holds. */
	cgn_nsec wait;
	uint64_t left;    /* Units in the bucket now. */
	cgn_nsec full_in; /* Time until the bucket is full. */
};
/* Take |n| from the bucket that will be full at |*full_at|, which changes only when granted. */
struct rate_answer rate_take(const struct rate *r, uint64_t *full_at, cgn_nsec now, uint64_t n);
/* Settle a reservation of |reserved| units of which |used| were needed: refund the rest, or owe the
 * difference. */
void rate_settle(const struct rate *r, uint64_t *full_at, cgn_nsec now, uint64_t reserved, uint64_t used);
/* Return the units in a bucket that will be full in |full_in|. */
uint64_t rate_left(const struct rate *r, cgn_nsec full_in);

/* ---- buckets shared by threads ---- */
/* Make a table of |n_buckets|, rounded up to a power of two of at least RATE_WAYS; 16 bytes each, touched
 * only when used. When all RATE_WAYS places for a new bucket are taken, a full bucket is forgotten, which
 * changes nothing. If none is full, the bucket nearest to full is forgotten, and its owner gets back the
 * units it took. */
#define RATE_WAYS 8
struct rate_table;
struct rate_table *rate_table_new(size_t n_buckets);
void rate_table_free(struct rate_table **take);
/* Take from or settle the bucket |key|, on any thread. |key| is a keyed hash and not 0, so that no client can
 * choose two names that share a bucket. */
struct rate_answer rate_table_take(struct rate_table *t, uint64_t key, const struct rate *r, cgn_nsec now,
	uint64_t n);
void rate_table_settle(struct rate_table *t, uint64_t key, const struct rate *r, cgn_nsec now,
	uint64_t reserved, uint64_t used);
/* Return the number of buckets that were forgotten while not full. */
uint64_t rate_table_forgotten(const struct rate_table *t);

/* ---- buckets shared by routers ---- */
/* The same rule, and that of policy/who/budget, as a script for Redis, on its clock, in microseconds. A bucket is
 * a key that expires when it is full; a budget is a hash of spent amounts by the number of the window, which
 * expires a day after its last window.
 *
 * KEYS: buckets and budgets. ARGV: "1" to take whatever is left (to settle), else "0"; then four for each key:
 * "rate", or "minute", "day", "month" for a budget; the bucket's size as time (rate_cost), or the budget; what to
 * take, in the same unit, negative to give back; and, to settle a budget, the number of the window of the reservation,
 * else "0". The script takes from all or from none.
 *
 * Answer: 1 when it took, else 0; then for each key the time until the bucket is full, or the spent amount;
 * the time to wait, 0 where the key was not the reason; and the number of the budget's window. */
extern const char rate_script[];

/* Check the settings. CGN_INVALID: |err| names the key and what it must be. */
CGN_RC rate_check_config(const struct config *c, struct cgn_err *err);
