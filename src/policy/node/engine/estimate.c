/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/node/engine/estimate.h"

#include <math.h>

#include "policy/node/engine/engine.h"

#define LEARN_SHARE   (1.0 / 16)
#define ERROR_UNKNOWN 0.25 /* The error of a figure after one answer */

static void figure_learn(double *mean, double *error, double now)
{
	if (!(now > 0) || now > 1e9)
		return;
	if (!(*mean > 0)) {
		*mean = now;
		*error = ERROR_UNKNOWN;
		return;
	}
	*error += (fabs(now / *mean - 1) - *error) * LEARN_SHARE;
	*mean += (now - *mean) * LEARN_SHARE;
}

void estimate_learn(struct estimate *e, const struct estimate_seen *seen, uint64_t tokens)
{
	if (tokens == 0)
		return;
	if (seen->events > 0)
		figure_learn(&e->event_tokens, &e->event_error, (double)tokens / (double)seen->events);
	if (seen->bytes > 0)
		figure_learn(&e->token_bytes, &e->byte_error, (double)seen->bytes / (double)tokens);
}

uint64_t estimate_tokens(const struct estimate *e, const struct estimate_seen *seen)
{
	bool by_events = seen->events > 0 && e->event_tokens > 0,
	     by_bytes = seen->bytes > 0 && e->token_bytes > 0;
	if (by_events && (!by_bytes || e->event_error <= e->byte_error))
		return (uint64_t)((double)seen->events * e->event_tokens + 0.5);
	if (by_bytes)
		return (uint64_t)((double)seen->bytes / e->token_bytes + 0.5);
	uint64_t guess = (seen->bytes + ENGINE_TOKEN_BYTES - 1) / ENGINE_TOKEN_BYTES;
	return guess > seen->events ? guess : seen->events;
}
