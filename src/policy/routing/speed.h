/* SPDX-License-Identifier: Apache-2.0 */
/* speed: how fast a node computes prompts and gives tokens, from what its requests took. Pure; any thread.
 *
 * A prompt that had |tokens| to be computed, with those of the prompts before it, and whose first byte came
 * after |ms|:
 *   prefill' = prefill + (ms / tokens - prefill) * min(1/4, tokens / ROUTE_SPEED_SPAN) Below ROUTE_SPEED_LEAST tokens it
 *   says more about the network than about the node, and does not count.
 *
 * A stream of |tokens| that took |ms|, |beside| others on average, while other prompts were computed there
 * for |stall_ms|:
 *   ms / tokens = step + batch * beside + interference * stall_ms / tokens + error and step, batch and
 *   interference each take a share of the error, by normalised least mean squares: ROUTE_SPEED_GAIN of it in all,
 *   divided as their inputs are large.
 *
 * Whatever comes in, speeds stay finite and positive: no sample counts for more than ROUTE_SPEED_TRUST times what
 * was expected nor for less than that part of it, and what is no number is not a sample. */
#pragma once
#include <stdbool.h>

#define ROUTE_SPEED_SPAN  65536.0
#define ROUTE_SPEED_LEAST 256.0
#define ROUTE_SPEED_TRUST 4.0
#define ROUTE_SPEED_GAIN  0.1

struct route_speed {
	float prefill_ms;   /* a token; 0: not measured */
	float step_ms;      /* a token of a stream that is alone; 0: not measured */
	float batch_ms;     /* what each further stream adds to that */
	float interference; /* share of a prompt's computing for which streams stand still */
	bool measured;      /* all of it is the node's own, and nothing is what others take */
};

/* Of an engine that nobody measured: a middling GPU with a middling model. */
#define ROUTE_SPEED_DEFAULT ((struct route_speed){0.1F, 20.0F, 0.2F, 1.0F, false})

void route_speed_prefill(struct route_speed *s, double ms, double tokens);
void route_speed_decode(struct route_speed *s, double ms, double tokens, double beside, double stall_ms);
