/* SPDX-License-Identifier: Apache-2.0 */
/* trust: how much a node's predicted cache hits count. Engines report for each request how many prompt tokens
 * came from cache; a source that predicts more than they find is discounted until its predictions hold. Pure;
 * any thread.
 *
 *   sample = min(1, actual / (ROUTE_TRUST_SLACK * predicted))
 *   trust' = trust + (sample - trust) / ROUTE_TRUST_SPAN,
 *            at least ROUTE_TRUST_FLOOR, and 1 once within a hundredth of it
 *
 * The slack covers the loss at block boundaries. Predictions below ROUTE_TRUST_LEAST tokens are too small to
 * count. Trust multiplies the reuse in the score: a node without trust gets requests by its load alone, and
 * each of them can restore its trust. */
#pragma once
#include <stdint.h>

#define ROUTE_TRUST_FLOOR 0.05
#define ROUTE_TRUST_SLACK 0.9
#define ROUTE_TRUST_SPAN  8
#define ROUTE_TRUST_LEAST 32 /* Tokens. */

/* Return the trust after one more request, given the trust before it (1 at first). The result is within
 * ROUTE_TRUST_FLOOR..1 for any input. */
double route_trust_step(double trust, uint64_t predicted_tokens, uint64_t actual_tokens);
