/* SPDX-License-Identifier: Apache-2.0 */
/* rate: the arithmetic of one bucket. */
#include "policy/who/rate/rate.h"

__extension__ typedef unsigned __int128 rate_wide; /* Units times nanoseconds. */

struct rate rate_per_second(double per_second, uint32_t burst)
{
	double thousandths = per_second * 1000 + 0.5;
	if (!(thousandths >= 1))
		return (struct rate){0};
	uint64_t units = thousandths < RATE_MAX_UNITS ? (uint64_t)thousandths : RATE_MAX_UNITS;
	uint64_t second = (units + 999) / 1000;
	return (struct rate){.units = units, .period = 1000 * CGN_SEC, .burst = burst > 0 ? burst : second};
}

struct rate rate_per_minute(uint32_t per_minute)
{
	return (struct rate){.units = per_minute, .period = 60 * CGN_SEC, .burst = per_minute};
}

bool rate_is_set(const struct rate *r)
{
	return r->units > 0;
}

cgn_nsec rate_cost(const struct rate *r, uint64_t n)
{
	CGN_MUST(r->units > 0);
	rate_wide cost = ((rate_wide)n * r->period + r->units - 1) / r->units;
	return cost < RATE_LONGEST ? (cgn_nsec)cost : RATE_LONGEST;
}

/* Return the time until the bucket is full. */
static cgn_nsec time_to_full(const struct rate *r, uint64_t full_at, cgn_nsec now)
{
	cgn_nsec most = rate_cost(r, r->burst) + RATE_MAX_DEBT, to_go = full_at > now ? full_at - now : 0;
	return to_go < most ? to_go : most;
}

uint64_t rate_left(const struct rate *r, cgn_nsec full_in)
{
	cgn_nsec all = rate_cost(r, r->burst);
	if (full_in >= all)
		return 0;
	uint64_t left = (uint64_t)((rate_wide)(all - full_in) * r->units / r->period);
	return left < r->burst ? left : r->burst;
}

struct rate_answer rate_take(const struct rate *r, uint64_t *full_at, cgn_nsec now, uint64_t n)
{
	cgn_nsec to_go = time_to_full(r, *full_at, now), all = rate_cost(r, r->burst),
		 after = to_go + rate_cost(r, n);
	struct rate_answer a = {.granted = n <= r->burst && after <= all,
		.left = rate_left(r, to_go),
		.full_in = to_go};
	if (a.granted) {
		*full_at = now + after;
		a.left = rate_left(r, after);
		a.full_in = after;
		return a;
	}
	a.wait = n > r->burst ? RATE_NEVER : after - all;
	return a;
}

void rate_settle(const struct rate *r, uint64_t *full_at, cgn_nsec now, uint64_t reserved, uint64_t used)
{
	cgn_nsec to_go = time_to_full(r, *full_at, now), had = rate_cost(r, reserved),
		 needs = rate_cost(r, used);
	cgn_nsec owed = to_go + (needs > had ? needs - had : 0), refund = had > needs ? had - needs : 0;
	*full_at = now + (owed > refund ? owed - refund : 0);
	*full_at = now + time_to_full(r, *full_at, now);
}
