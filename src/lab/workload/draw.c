/* SPDX-License-Identifier: Apache-2.0 */
/* Random draws from whole numbers and the four operations that IEEE 754 defines to the bit. */
#include "base/mix/mix.h"
#include "lab/workload/workload_priv.h"

uint64_t workload_rng_mix(uint64_t x)
{
	return trace_digest(x);
}

uint64_t workload_rng_next(struct workload_rng *d)
{
	return mix_xorshift_star(&d->s);
}

uint64_t workload_rng_below(struct workload_rng *d, uint64_t n)
{
	return (workload_rng_next(d) >> 11) % n;
}

/* Uniform in (0, 1]. */
static double workload_rng_unit(struct workload_rng *d)
{
	return ((double)(workload_rng_next(d) >> 11) + 1) / 9007199254740992.0;
}

/* Return -ln(u) for u in (0, 1]: count halvings, then use 2 atanh((1 - u) / (1 + u)) for the rest in (1/2,
 * 1]. */
static double minus_log(double u)
{
	double ln = 0;
	for (; u <= 0.5; u *= 2)
		ln += 0.69314718055994530942;
	double z = (1 - u) / (1 + u), square = z * z, sum = 0;
	for (int k = 25; k >= 1; k -= 2)
		sum = sum * square + 1.0 / k;
	return ln + 2 * z * sum;
}

double workload_rng_exponential(struct workload_rng *d)
{
	return minus_log(workload_rng_unit(d));
}

uint32_t workload_rng_zipf(struct workload_rng *d, uint32_t n)
{
	double all = 0, at = workload_rng_unit(d), sum = 0;
	for (uint32_t k = 1; k <= n; k++)
		all += 1.0 / k;
	for (uint32_t k = 1; k < n; k++) {
		sum += 1.0 / k;
		if (at * all <= sum)
			return k - 1;
	}
	return n - 1;
}
