/* SPDX-License-Identifier: Apache-2.0 */
/* guess: the lines of a quote, from a decision and the node's known speeds. */
#pragma once
#include "policy/power/energy/energy.h"
#include "policy/route/chooser/chooser.h"
#include "policy/route/quote/quote.h"

/* Facts beside the decision that a guess needs. */
struct quote_inputs {
	double before_ms; /* Time from the request's arrival until it is sent. */
	double pair_ms;   /* Time to the first token of a pair of nodes; 0: one node answers. */
	const struct energy_curve *curve; /* Power of the candidate's node. */
	struct quote_line cost;
};

/* Return the picked candidate, or else the one that would begin to answer first; NULL: there is none. */
const struct route_cand *quote_candidate(const struct chooser_pick_result *p);
/* Guess the time, cost and energy of the request of |ask| at the candidate |c| of |p|. */
void quote_guess_fill(const struct chooser_ask *ask, const struct chooser_pick_result *p,
	const struct route_cand *c, const struct quote_inputs *in, struct quote_guess *out);
/* Return quote_key.family of the prompt. */
uint64_t quote_family(const struct chooser_ask *ask);
/* Return how many of |input| tokens |c| holds. Engines compute at least the last one. */
uint64_t quote_cached(const struct chooser_ask *ask, const struct route_cand *c, uint64_t input);
