/* SPDX-License-Identifier: Apache-2.0 */
/* quantile: durations counted in buckets of geometric width, and their quantiles: the nearest rank, at most QUANTILE_ERROR
 * off for durations from 8 us to 73 minutes. Programs make all quantiles of their traffic here; quantiles of
 * base/samples, which keeps each duration, are exact. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#define QUANTILE_STEPS   16 /* Buckets that each doubling is cut into. */
#define QUANTILE_FIRST   13 /* 2^13 ns: all shorter durations are in the first bucket. */
#define QUANTILE_LAST    42 /* 2^42 ns: all durations from there on are in the last bucket. */
#define QUANTILE_BUCKETS (2 + QUANTILE_STEPS * (QUANTILE_LAST - QUANTILE_FIRST))
#define QUANTILE_ERROR   0.0304 /* Half of a bucket over its middle. */

/* Return the bucket of |ns|. */
size_t quantile_bucket(uint64_t ns);
/* Return the rank, from 1, of the quantile |q| (0 to 1) of |n| values: the nearest one. |n|: not 0. */
uint64_t quantile_rank(uint64_t n, double q);
/* Return the quantile |q| of the counts by bucket: the middle of the bucket, within |least| and |most|, the true
 * ends of all that was ever counted. 0 where nothing was counted. */
uint64_t quantile_of(const uint64_t in[QUANTILE_BUCKETS], double q, uint64_t least, uint64_t most);
