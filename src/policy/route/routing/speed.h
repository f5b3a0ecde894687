/* SPDX-License-Identifier: Apache-2.0 */
/* speed: how fast a node computes prompts and generates tokens, learned from its requests. Pure; any thread.
 *
 * A prompt with |tokens| to compute, including those of the prompts before it, whose first byte came after
 * |ms|:
 *   prefill' = prefill + (ms / tokens - prefill) * min(1/4, tokens / ROUTE_SPEED_SPAN) Prompts below
 *   ROUTE_SPEED_LEAST tokens measure the network rather than the node and do not count.
 *
 * A stream of |tokens| that took |ms|, |beside| others on average, while prompts were computed there for
 * |stall_ms|:
 *   ms / tokens = step + batch * beside + interference * stall_ms / tokens + error step, batch and
 *   interference each absorb a share of the error by normalised least mean squares: ROUTE_SPEED_GAIN of it in
 *   all, divided by the size of their inputs.
 *
 * Speeds stay finite and positive for any input: a sample counts for at most ROUTE_SPEED_TRUST times the
 * expected value and at least that fraction of it, and NaN does not count as a sample. */
#pragma once
#include <stdbool.h>

#define ROUTE_SPEED_SPAN  65536.0
#define ROUTE_SPEED_LEAST 256.0
#define ROUTE_SPEED_TRUST 4.0
#define ROUTE_SPEED_GAIN  0.1

struct route_speed {
	float prefill_ms;   /* Per token; 0: not measured. */
	float step_ms;      /* Per token of a stream that is alone; 0: not measured. */
	float batch_ms;     /* Additional time of a step for each further stream. */
	float interference; /* Share of a prompt's computing time during which streams stall. */
	bool measured;      /* All values are the node's own measurements. */
};

/* For engines without measurements: a medium GPU with a medium model. */
#define ROUTE_SPEED_DEFAULT ((struct route_speed){0.1F, 20.0F, 0.2F, 1.0F, false})

void route_speed_prefill(struct route_speed *s, double ms, double tokens);
void route_speed_decode(struct route_speed *s, double ms, double tokens, double beside, double stall_ms);
