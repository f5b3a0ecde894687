/* SPDX-License-Identifier: Apache-2.0 */
/* chooser, inside. chooser.c: the pick · booking.c: the booking and what is learned from it. */
#pragma once
#include <stdatomic.h>

#include "policy/chooser/chooser.h"

#define CHOOSER_TAG 0xc4005e01U

struct chooser {
	uint32_t tag;
	struct chooser_shared shared;
	struct kvindex_reader *reader;
	struct route_cand *cands;
	size_t cap;
	uint32_t turn;
	uint64_t random;          /* Weyl sequence; route_pick mixes it. */
	struct route_speed fleet; /* Medians of the fleet; batch_ms as a share of a step. */
	const void *fleet_model;  /* The model that |fleet| belongs to; compared, never dereferenced. */
	uint32_t fleet_left;      /* Picks until |fleet| is computed again. */
	uint32_t fleet_span;
	double answer_tokens; /* Moving average of answer tokens. */
};
