/* SPDX-License-Identifier: Apache-2.0 */
/* limit: the arithmetic of one bucket. */
#include "policy/who/limit/limit.h"

__extension__ typedef unsigned __int128 limit_wide; /* Units times nanoseconds. */

struct limit_rate limit_per_second(double per_second, uint32_t burst)
{
	double thousandths = per_second * 1000 + 0.5;
	if (!(thousandths >= 1))
		return (struct limit_rate){0};
	uint64_t units = thousandths < LIMIT_MAX_UNITS ? (uint64_t)thousandths : LIMIT_MAX_UNITS;
	uint64_t second = (units + 999) / 1000;
	return (struct limit_rate){.units = units,
		.period = 1000 * CGN_SEC,
		.burst = burst > 0 ? burst : second};
}

struct limit_rate limit_per_minute(uint32_t per_minute)
{
	return (struct limit_rate){.units = per_minute, .period = 60 * CGN_SEC, .burst = per_minute};
}

bool limit_is_set(const struct limit_rate *r)
{
	return r->units > 0;
}

cgn_nsec limit_cost(const struct limit_rate *r, uint64_t n)
{
	CGN_MUST(r->units > 0);
	limit_wide cost = ((limit_wide)n * r->period + r->units - 1) / r->units;
	return cost < LIMIT_LONGEST ? (cgn_nsec)cost : LIMIT_LONGEST;
}

/* Return the time until the bucket is full. */
static cgn_nsec time_to_full(const struct limit_rate *r, uint64_t full_at, cgn_nsec now)
{
	cgn_nsec most = limit_cost(r, r->burst) + LIMIT_MAX_DEBT, to_go = full_at > now ? full_at - now : 0;
	return to_go < most ? to_go : most;
}

uint64_t limit_left(const struct limit_rate *r, cgn_nsec full_in)
{
	cgn_nsec all = limit_cost(r, r->burst);
	if (full_in >= all)
		return 0;
	uint64_t left = (uint64_t)((limit_wide)(all - full_in) * r->units / r->period);
	return left < r->burst ? left : r->burst;
}

struct limit_answer limit_take(const struct limit_rate *r, uint64_t *full_at, cgn_nsec now, uint64_t n)
{
	cgn_nsec to_go = time_to_full(r, *full_at, now), all = limit_cost(r, r->burst),
		 after = to_go + limit_cost(r, n);
	struct limit_answer a = {.granted = n <= r->burst && after <= all,
		.left = limit_left(r, to_go),
		.full_in = to_go};
	if (a.granted) {
		*full_at = now + after;
		a.left = limit_left(r, after);
		a.full_in = after;
		return a;
	}
	a.wait = n > r->burst ? LIMIT_NEVER : after - all;
	return a;
}

void limit_settle(const struct limit_rate *r, uint64_t *full_at, cgn_nsec now, uint64_t reserved,
	uint64_t used)
{
	cgn_nsec to_go = time_to_full(r, *full_at, now), had = limit_cost(r, reserved),
		 needs = limit_cost(r, used);
	cgn_nsec owed = to_go + (needs > had ? needs - had : 0), refund = had > needs ? had - needs : 0;
	*full_at = now + (owed > refund ? owed - refund : 0);
	*full_at = now + time_to_full(r, *full_at, now);
}
