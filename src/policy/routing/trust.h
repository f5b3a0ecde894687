/* SPDX-License-Identifier: Apache-2.0 */
/* trust: how far a node's account of its cache is believed. Engines say of each request how many prompt
 * tokens came from cache; a source that promises more than they find is discounted until it tells the truth.
 * Pure; any thread.
 *
 *   sample = min(1, actual / (ROUTE_TRUST_SLACK * predicted))
 *   trust' = trust + (sample - trust) / ROUTE_TRUST_SPAN, at least ROUTE_TRUST_FLOOR, 1 once within a hundredth of it
 *
 * The slack forgives what cutting into blocks costs. Predictions below ROUTE_TRUST_LEAST tokens say too little to
 * count. Trust multiplies the reuse in the score: a node that is not believed gets requests by its load
 * alone, and each of them is another chance to be believed. */
#pragma once
#include <stdint.h>

#define ROUTE_TRUST_FLOOR 0.05
#define ROUTE_TRUST_SLACK 0.9
#define ROUTE_TRUST_SPAN  8
#define ROUTE_TRUST_LEAST 32 /* tokens */

/* The trust after one more request, from the trust before it (1 at first). Never leaves ROUTE_TRUST_FLOOR..1,
 * whatever comes in. */
double route_trust_step(double trust, uint64_t predicted_tokens, uint64_t actual_tokens);
