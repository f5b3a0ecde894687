/* SPDX-License-Identifier: Apache-2.0 */
/* limit: rates of requests and tokens. What something will cost is reserved before it is done and settled
 * when it is over.
 *
 * The rule is the generic cell rate algorithm (ITU-T I.371, annex A; as a leaky bucket in its "virtual
 * scheduling" form): a bucket is one number, the time at which it will be full again. Reserving n moves that
 * time n / rate into the future and is granted if it stays within burst / rate of now; a refund moves it
 * back. So a bucket whose time has passed is full, and full is what a bucket is that nobody knows. Integer
 * arithmetic: the time that n units cost is rounded up to 1 ns, so a rate is never exceeded, and undercut by
 * 1 ns a reservation at most. A clock that jumps back makes nobody wait longer than LIMIT_MAX_DEBT beyond the
 * bucket's own time.
 *
 * The table is shared by all workers without locks on the way that every request takes: a bucket's time is
 * one atomic word. Several threads together get exactly what one would: a compare-and-swap either takes what
 * it saw or sees what was taken. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/err.h"
#include "base/core/str.h"

struct limit_rate {
	uint64_t units; /* each |period|; 0: no limit */
	cgn_nsec period;
	uint64_t burst; /* at most at once: the bucket; at least 1 */
};
#define LIMIT_MAX_UNITS UINT32_MAX /* of rate and burst */
/* who used more than it reserved is not locked out for longer than this */
#define LIMIT_MAX_DEBT (3600 * CGN_SEC)
#define LIMIT_NEVER    UINT64_MAX
#define LIMIT_LONGEST  ((cgn_nsec)1 << 61) /* what any number of units costs at most: 73 years */

/* |per_second| in [0, 1e6], thousandths count; |burst| 0: what comes in a second, at least 1. Rates that are
 * 0 are no limit. */
struct limit_rate limit_per_second(double per_second, uint32_t burst);
/* The bucket holds what comes in a minute. */
struct limit_rate limit_per_minute(uint32_t per_minute);
bool limit_is_set(const struct limit_rate *r);
/* What |n| units cost in time, rounded up; at most LIMIT_LONGEST. Times are below 2^62 ns, so no sum
 * overflows. */
cgn_nsec limit_cost(const struct limit_rate *r, uint64_t n);

struct limit_answer {
	bool granted;
	/* not granted: until it would be, if nobody else takes anything; LIMIT_NEVER: it is more than the
	 * bucket holds */
	cgn_nsec wait;
	uint64_t left;    /* units in the bucket now */
	cgn_nsec full_in; /* until the bucket is full */
};
/* Take |n| from the bucket that will be full at |*full_at|. Changes it only when granted. */
struct limit_answer limit_take(const struct limit_rate *r, uint64_t *full_at, cgn_nsec now, uint64_t n);
/* |reserved| units were taken and |used| were needed: refund the rest, or owe it. */
void limit_settle(const struct limit_rate *r, uint64_t *full_at, cgn_nsec now, uint64_t reserved,
	uint64_t used);
/* What a bucket that will be full in |full_in| has. */
uint64_t limit_left(const struct limit_rate *r, cgn_nsec full_in);

/* ---- buckets that threads share ---- */
/* |n_buckets| is rounded up to a power of two of at least LIMIT_WAYS: 16 bytes each, touched only when used.
 * Where a bucket is needed and its LIMIT_WAYS places are all taken, one that is full is forgotten, which
 * changes nothing; if none is full, the one nearest to it, whose owner so gets back what it took. */
#define LIMIT_WAYS 8
struct limit_table;
CGN_RC limit_table_new(size_t n_buckets, struct limit_table **out, struct cgn_err *err);
void limit_table_free(struct limit_table **take);
/* Any thread. |key| names the bucket: a keyed hash, so that nobody can choose two things to share one; never
 * 0. */
struct limit_answer limit_table_take(struct limit_table *t, uint64_t key, const struct limit_rate *r,
	cgn_nsec now, uint64_t n);
void limit_table_settle(struct limit_table *t, uint64_t key, const struct limit_rate *r, cgn_nsec now,
	uint64_t reserved, uint64_t used);
uint64_t limit_table_forgotten(const struct limit_table *t); /* buckets that were not full */

/* ---- buckets that routers share ---- */
/* For Redis: the same rule on its clock, in microseconds; a bucket is a key that expires when it is full.
 * KEYS: buckets. ARGV: "1" to take whatever is there (to settle), else "0"; then of each bucket what it holds
 * and what is taken, as the time that it costs (limit_cost; negative: a refund). All are taken from, or none.
 * Answer: 1 when that was done, else 0; then of each bucket the time until it is full and the time to wait, 0
 * where it was not the reason. */
extern const char limit_script[];
