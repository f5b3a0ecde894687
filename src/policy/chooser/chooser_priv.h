/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of chooser share. chooser.c: the pick · booking.c: what is booked of it and learned from
 * it. */
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
	uint64_t random;          /* of the generator: Weyl's sequence, which route_pick mixes */
	struct route_speed fleet; /* the middle of it; batch_ms: as a share of a step */
	const void *fleet_model;  /* of which it is; never followed */
	uint32_t fleet_left;      /* picks that it is still good for, of fleet_span */
	uint32_t fleet_span;
	double answer_tokens; /* of an answer, a moving average */
};
