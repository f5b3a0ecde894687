/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/route/routing/speed.h"

#define LONGEST 3.6e6 /* Milliseconds. */
#define BESIDE  8.0   /* Streams that weigh as much as one step when the error is divided. */

static double clamp_within(double v, double lo, double hi)
{
	return v > lo ? (v < hi ? v : hi) : lo; /* NaN becomes lo. */
}

static bool is_sample(double ms, double tokens, double least)
{
	return ms > 0 && ms < LONGEST && tokens >= least && tokens < 1e9;
}

void route_speed_prefill(struct route_speed *s, double ms, double tokens)
{
	if (!is_sample(ms, tokens, ROUTE_SPEED_LEAST))
		return;
	double was = (double)s->prefill_ms, now = ms / tokens;
	if (was > 0)
		now = was +
			(clamp_within(now, was / ROUTE_SPEED_TRUST, was * ROUTE_SPEED_TRUST) - was) *
				clamp_within(tokens / ROUTE_SPEED_SPAN, 0, 0.25);
	s->prefill_ms = (float)clamp_within(now, 1e-6, 1e3);
}

/* The first stream: time that is not known waiting counts as its own step. */
static void decode_first(struct route_speed *s, double a_token, double beside, double stall)
{
	double step =
		clamp_within(a_token - stall, a_token / ROUTE_SPEED_TRUST, a_token) / (1 + beside / 100);
	s->step_ms = (float)clamp_within(step, 1e-3, 1e4);
	s->batch_ms = s->step_ms / 100;
	s->interference = 1;
}

void route_speed_decode(struct route_speed *s, double ms, double tokens, double beside, double stall_ms)
{
	if (!is_sample(ms, tokens, 2) || !(beside >= 0) || beside > 1e6 || !(stall_ms >= 0) ||
		stall_ms > LONGEST)
		return;
	double step = (double)s->step_ms, a_token = ms / tokens, stall = stall_ms / tokens;
	if (!(step > 0)) {
		decode_first(s, a_token, beside, stall);
		return;
	}
	/* From here on in steps, so that fast and slow engines learn alike. */
	double x_batch = beside / BESIDE, x_stall = stall / step;
	double batch = (double)s->batch_ms * BESIDE / step, interference = (double)s->interference;
	double expected = 1 + batch * x_batch + interference * x_stall;
	double error =
		clamp_within(a_token / step, expected / ROUTE_SPEED_TRUST, expected * ROUTE_SPEED_TRUST) -
		expected;
	double share = ROUTE_SPEED_GAIN * error / (1 + x_batch * x_batch + x_stall * x_stall);
	s->step_ms = (float)clamp_within(step * (1 + share), 1e-3, 1e4);
	s->batch_ms =
		(float)clamp_within((batch + share * x_batch) * step / BESIDE, 0, (double)s->step_ms / 8);
	s->interference = (float)clamp_within(interference + share * x_stall, 0, 2);
}
