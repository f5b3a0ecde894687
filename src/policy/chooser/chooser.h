/* SPDX-License-Identifier: Apache-2.0 */
/* chooser: one decision, from the digests of a prompt to a booked node, and what is learned when it is over. All that the router and a
 * replayed trace do alike is here, so that what was proven on a trace is what runs. Pure: time is an argument.
 *
 * A chooser belongs to one thread. What several share (struct chooser_shared) is atomic: load that is booked by one is seen by all at once.
 * Memory: one route_cand for each node that has the asked model, and what chooser_pick borrows from the index. */
#pragma once
#include "policy/cluster/view.h"
#include "policy/kvindex/kvindex.h"
#include "policy/routing/record.h"
#include "policy/routing/routing.h"

struct chooser_shared {
	struct cluster_cell *cells;  /* the cluster's */
	struct kvindex *index;       /* of what engines say they hold; one thread writes it */
	struct route_record *record; /* of what was sent to those that do not say */
};

#define CHOOSER_NO_PIN UINT32_MAX
struct choose_ask {
	const struct route_rules *rules;
	const struct view_model *model; /* NULL: nobody has it */
	const uint64_t *chain;          /* short digests of the prompt's blocks */
	size_t blocks;                  /* 0: no prompt */
	double length;                  /* in blocks, the unfinished last one as a fraction; 0: unknown */
	uint32_t block_tokens;          /* tokens in one; 0: they are of bytes, which no event names */
	uint64_t prompt_tokens;         /* 0: unknown, then it is estimated from the blocks */
	uint32_t answer_tokens;         /* most that may come; 0: unknown */
	uint64_t session;               /* route_hash of it; 0: none */
	uint32_t pin;                   /* slot; CHOOSER_NO_PIN: free to choose */
	const uint16_t *excluded;       /* slots that were tried */
	size_t n_excluded;
	cgn_nsec now;
};

struct choose_pick {
	enum route_verdict verdict;
	size_t index;                   /* into |cands|, when picked */
	double score;
	struct route_ask ask;           /* as it was scored: with another policy and |cands|, what that one would have picked (route_pick) */
	const struct route_cand *cands; /* as they were scored, ascending by slot; borrowed until the next pick */
	size_t n;
};

/* What is booked of one pick: the booker's, all zero when nothing is. */
struct choose_ticket {
	bool booked;     /* counted in the cell's inflight */
	bool prefilling; /* and new_tokens in its queued_tokens; else in its decoding */
	uint16_t slot;
	uint64_t node;   /* route_hash of its id: a slot may get another node while a slow client reads */
	uint32_t held, blocks;
	uint32_t new_tokens;   /* of the prompt, that it was thought to have to compute; an estimate */
	uint32_t ahead_tokens; /* of others' prompts that it had to compute first */
	cgn_nsec at;
};

/* Tokens in a block of the prompt's chain at the node of |cell|, about. */
float chooser_block_tokens(const struct choose_ask *ask, const struct cluster_cell *cell);
/* What a configuration says about choosing. */
struct config;
void choose_rules_fill(const struct config *cfg, struct route_rules *out);

struct chooser;
/* |seed|: where turns begin, so that several routers do not go through equal nodes in step. NO_MEMORY; TOO_LARGE: the index has all the
 * readers it was made for. */
CGN_RC chooser_new(const struct chooser_shared *shared, uint32_t seed, struct chooser **out, struct cgn_err *err);
void chooser_free(struct chooser **take);

/* Decide; books nothing. ROUTE_NONE also when there is no memory for the candidates. */
struct choose_pick chooser_pick(struct chooser *c, const struct choose_ask *ask);
/* Book what was just picked, at once: its load, and its prompt as held, before the request leaves. */
void chooser_book(struct chooser *c, const struct choose_ask *ask, const struct choose_pick *p, struct choose_ticket *out);
/* The first byte came: its prompt is computed. Nothing when it is not booked, or has begun. */
void chooser_begun(struct chooser *c, struct choose_ticket *t, cgn_nsec now);
/* It is over, well or badly: give the booking back. Nothing when it is not booked. */
void chooser_release(struct chooser *c, struct choose_ticket *t);
