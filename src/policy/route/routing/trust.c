/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/route/routing/trust.h"

static double clamp_within(double v, double lo, double hi)
{
	return v > lo ? (v < hi ? v : hi) : lo; /* NaN becomes lo. */
}

double route_trust_step(double trust, uint64_t predicted_tokens, uint64_t actual_tokens)
{
	trust = clamp_within(trust, ROUTE_TRUST_FLOOR, 1);
	if (predicted_tokens < ROUTE_TRUST_LEAST)
		return trust;
	double sample =
		clamp_within((double)actual_tokens / (ROUTE_TRUST_SLACK * (double)predicted_tokens), 0, 1);
	trust = clamp_within(trust + (sample - trust) / ROUTE_TRUST_SPAN, ROUTE_TRUST_FLOOR, 1);
	return trust > 0.99 ? 1 : trust;
}
