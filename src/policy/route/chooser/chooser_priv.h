/* SPDX-License-Identifier: Apache-2.0 */
/* chooser, inside. chooser.c: the pick · split.c: one node or two · booking.c: the booking and the learning
 * from it · energy.c: joules and what follows from them. */
#pragma once
#include <stdatomic.h>

#include "policy/route/chooser/chooser.h"

#define CHOOSER_TAG 0xc4005e01U

struct chooser {
	uint32_t tag;
	struct chooser_shared shared;
	struct kvindex_reader *reader;
	struct route_cand *cands, *scratch; /* |cap| of each. */
	size_t cap;
	_Atomic uint32_t *turns, own_turns; /* turns: shared.turns or own_turns. */
	uint64_t random;                    /* Weyl sequence; route_pick mixes it. */
	struct route_speed fleet;           /* Medians of the fleet; batch_ms as a share of a step. */
	float fleet_block_tokens; /* Median of the tokens in a block of bytes; 0: no node has counted some. */
	uint64_t fleet_key;       /* The view_model.key that |fleet| belongs to. */
	uint32_t fleet_left;      /* Picks until |fleet| is computed again. */
	uint32_t fleet_span;
	double answer_tokens; /* Moving average of answer tokens. */
};

/* Find the candidates for |ask| of any role, and the blocks that they hold. */
size_t chooser_match_all(struct chooser *c, const struct chooser_ask *ask);
/* Fill in speeds, uncached tokens and fetch times of the |n| candidates in c->cands. */
void chooser_weigh(struct chooser *c, const struct chooser_ask *ask, size_t n);
/* Return the question for route_pick. */
struct route_ask chooser_route_ask(const struct chooser *c, const struct chooser_ask *ask);
/* Return the approximate tokens in a block of the prompt's chain at the node of |stats|. */
float chooser_tokens_a_block(const struct chooser *c, const struct chooser_ask *ask,
	const struct node_stats *stats);
float chooser_common(const struct route_cand *cands, size_t n);
/* Fill in the joules of the candidates, why rules for energy bar them, and the part of |score| that is about energy. */
void chooser_energy_fill(const struct chooser *c, const struct chooser_ask *ask, struct route_ask *score,
	struct route_cand *cands, size_t n);
/* The place is taken. False: another thread has taken one since the pick too, and the budget has no room for both. */
bool chooser_energy_claimed(const struct chooser *c, const struct chooser_ask *ask);
/* The request of |t| is at its node from |now| on; its prompt is computed; it has left. Call each before the change of
 * t->prefilling. */
void chooser_energy_booked(const struct chooser *c, struct chooser_ticket *t, cgn_nsec now);
void chooser_energy_begun(const struct chooser *c, struct chooser_ticket *t, cgn_nsec now);
void chooser_energy_left(const struct chooser *c, struct chooser_ticket *t, cgn_nsec now);
/* How the prompt of an answer leg comes from another node. */
struct chooser_way {
	uint64_t handoff;
	struct chooser_source from;
	/* Tokens that the node computes for others before this prompt, whose KV it moves before; and the time until
	 * this prompt is computed, in which KV moves and the decode nodes compute prompts of their own. */
	double ahead_tokens, until_ms;
};
/* Let the prompt of |cands| come by |way| instead of computing it there. */
void chooser_hand_over(const struct chooser *c, const struct chooser_ask *ask, const struct chooser_way *way,
	struct route_cand *cands, size_t n);
