/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/routing/trust.h"

static double within(double v, double lo, double hi)
{
	return v > lo ? (v < hi ? v : hi) : lo; /* NaN becomes lo */
}

double route_trust_step(double trust, uint64_t predicted_tokens, uint64_t actual_tokens)
{
	trust = within(trust, ROUTE_TRUST_FLOOR, 1);
	if (predicted_tokens < ROUTE_TRUST_LEAST)
		return trust;
	double sample = within((double)actual_tokens / (ROUTE_TRUST_SLACK * (double)predicted_tokens), 0, 1);
	trust = within(trust + (sample - trust) / ROUTE_TRUST_SPAN, ROUTE_TRUST_FLOOR, 1);
	return trust > 0.99 ? 1 : trust;
}
