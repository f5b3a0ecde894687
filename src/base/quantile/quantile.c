/* SPDX-License-Identifier: Apache-2.0 */
#include "base/quantile/quantile.h"

#include <math.h>

/* Each step is this much of the duration that its doubling begins with: 2^-4 is a sixteenth. */
#define STEP_BITS 4
_Static_assert(1 << STEP_BITS == QUANTILE_STEPS, "a doubling has 2^STEP_BITS steps");

size_t quantile_bucket(uint64_t ns)
{
	if (ns < (uint64_t)1 << QUANTILE_FIRST)
		return 0;
	if (ns >= (uint64_t)1 << QUANTILE_LAST)
		return QUANTILE_BUCKETS - 1;
	unsigned doubling = 63 - (unsigned)__builtin_clzll(ns);
	uint64_t step = (ns >> (doubling - STEP_BITS)) - QUANTILE_STEPS;
	return 1 + (doubling - QUANTILE_FIRST) * QUANTILE_STEPS + (size_t)step;
}

/* Return the least duration of the bucket. */
static uint64_t bucket_begin(size_t i)
{
	if (i == 0)
		return 0;
	size_t doubling = QUANTILE_FIRST + (i - 1) / QUANTILE_STEPS, step = (i - 1) % QUANTILE_STEPS;
	return (uint64_t)(QUANTILE_STEPS + step) << (doubling - STEP_BITS);
}

static uint64_t bucket_middle(size_t i)
{
	uint64_t begin = bucket_begin(i);
	return i + 1 < QUANTILE_BUCKETS ? begin + (bucket_begin(i + 1) - begin) / 2 : begin;
}

uint64_t quantile_rank(uint64_t n, double q)
{
	double rank = ceil(q * (double)n);
	return rank < 1 ? 1 : rank < (double)n ? (uint64_t)rank : n;
}

uint64_t quantile_of(const uint64_t in[QUANTILE_BUCKETS], double q, uint64_t least, uint64_t most)
{
	uint64_t n = 0, seen = 0;
	for (size_t i = 0; i < QUANTILE_BUCKETS; i++)
		n += in[i];
	if (n == 0)
		return 0;
	size_t at = 0;
	for (uint64_t rank = quantile_rank(n, q); at < QUANTILE_BUCKETS; at++)
		if ((seen += in[at]) >= rank)
			break;
	uint64_t v = bucket_middle(at);
	return v < least ? least : v > most ? most : v;
}
