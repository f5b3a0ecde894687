/* SPDX-License-Identifier: Apache-2.0 */
/* chooser: one decision, from the digests of a prompt to a booked node, and what is learned when it is over.
 * All that the router and a replayed trace do alike is here, so that what was proven on a trace is what runs.
 * Pure: time is an argument.
 *
 * A chooser belongs to one thread. What several share (struct chooser_shared) is atomic: load that is booked
 * by one is seen by all at once. Memory: one route_cand for each node that has the asked model, and what
 * chooser_pick borrows from the index. */
#pragma once
#include "policy/cluster/view.h"
#include "policy/kvindex/kvindex.h"
#include "policy/routing/hotprefix.h"
#include "policy/routing/pending.h"
#include "policy/routing/record.h"
#include "policy/routing/routing.h"

struct chooser_shared {
	struct node_stats *stats;    /* the cluster's */
	struct kvindex *index;       /* of what engines say they hold; one thread writes it */
	struct route_record *record; /* of what was sent to those that do not say */
	/* of what was sent to those that say, and did not yet; NULL: nothing counts before they do */
	struct pending *pending;
	struct hotprefix *hotprefix; /* of the prefixes of requests under way; NULL: none is hot */
};

#define CHOOSER_NO_PIN UINT32_MAX
struct chooser_ask {
	const struct route_rules *rules;
	const struct view_model *model; /* NULL: nobody has it */
	const uint64_t *chain;          /* short digests of the prompt's blocks */
	size_t blocks;                  /* 0: no prompt */
	double length;                  /* in blocks, the unfinished last one as a fraction; 0: unknown */
	uint32_t block_tokens;          /* tokens in one; 0: they are of bytes, which no event names */
	uint64_t prompt_tokens;         /* 0: unknown, then it is estimated from the blocks */
	uint32_t answer_tokens;         /* most that may come; 0: unknown */
	/* the answer comes in one piece at its end: its first byte says nothing of its prompt */
	bool whole;
	/* it wants no answer but the prompt's computing: not for nodes whose role is decode; else not for
	 * prefill */
	bool embeds;
	/* it is the prompt's computing for another node: for nodes whose role is prefill, and nobody else */
	bool prefill;
	/* leading blocks that lie in the store of some node, whence those with a store can fetch them */
	uint32_t stored;
	uint64_t session;         /* route_hash of it; 0: none */
	uint32_t pin;             /* slot; CHOOSER_NO_PIN: free to choose */
	const uint16_t *excluded; /* slots that were tried */
	size_t n_excluded;
	cgn_nsec now;
};

struct chooser_pick_result {
	enum route_verdict verdict;
	size_t index; /* into |cands|, when picked */
	double score;
	/* as it was scored: with another policy and |cands|, what that one would have picked (route_pick) */
	struct route_ask ask;
	/* as they were scored, ascending by slot; borrowed until the next pick */
	const struct route_cand *cands;
	size_t n;
};

/* A prompt that was sent to a node counts as held there until the node's events say so: until twice the time
 * that its first byte was expected after, and this; and as long as CHOOSER_CONFIRM behind its first byte. */
#define CHOOSER_LIFE    (10 * CGN_SEC)
#define CHOOSER_CONFIRM (5 * CGN_SEC)

/* What is booked of one pick: the booker's, all zero when nothing is. What comes behind |at| is for
 * chooser_done. */
struct chooser_ticket {
	bool booked;     /* counted in the inflight of its node_stats */
	bool prefilling; /* and queued_tokens in its queued_tokens; else in its decoding */
	/* then both, from the start, and the tokens for that part of its time that is prefill */
	bool whole;
	bool hot;     /* counted in the heat of |prefix| */
	bool crowded; /* it had to wait for a place among those that run */
	uint16_t slot;
	uint64_t node;    /* route_hash of its id: a slot may get another node while a slow client reads */
	uint64_t prefix;  /* digest of the last block that anybody held */
	uint32_t pending; /* the booking of its blocks; 0: none */
	uint32_t held, blocks;
	uint32_t new_tokens;    /* of the prompt, that it was thought to have to compute; an estimate */
	uint32_t queued_tokens; /* as booked */
	uint32_t ahead_tokens;  /* of others' prompts that it had to compute first */
	cgn_nsec at;
	cgn_nsec begun_at; /* 0: no byte came, or no first one */
	/* streams beside it when its first byte came, and when it was released */
	uint32_t beside_then, beside_last;
	cgn_nsec busy_then, busy_last; /* how long prompts were being computed there, ever */
};

/* How it ended, as the engine counted. */
struct chooser_outcome {
	uint64_t answer_tokens; /* 0: unknown */
};

/* Is it work for nodes of this role (COGNITORA__V1__ROLE__*)? Those for which it is not are left out, unless
 * there are no others. */
bool chooser_role_fits(const struct chooser_ask *ask, int role);
/* Leave those out: engines can do both, roles say what they are good at. How many stay. */
size_t chooser_roles(const struct chooser_ask *ask, struct route_cand *cands, size_t n);
/* Tokens in a block of the prompt's chain at the node of |stats|, estimated. */
float chooser_block_tokens(const struct chooser_ask *ask, const struct node_stats *stats);
/* What a configuration says about choosing. */
struct config;
void chooser_rules_fill(const struct config *cfg, struct route_rules *out);

struct chooser;
/* |seed|: where turns begin, so that several routers do not go through equal nodes in step. NO_MEMORY;
 * TOO_LARGE: the index has all the readers it was made for. */
CGN_RC chooser_new(const struct chooser_shared *shared, uint32_t seed, struct chooser **out,
	struct cgn_err *err);
void chooser_free(struct chooser **take);

/* Decide; books nothing. ROUTE_NONE also when there is no memory for the candidates. */
struct chooser_pick_result chooser_pick(struct chooser *c, const struct chooser_ask *ask);
/* The same in two steps, for those who want to know what each of them takes: who may have it and what they
 * hold; and who gets it. */
size_t chooser_match(struct chooser *c, const struct chooser_ask *ask);
struct chooser_pick_result chooser_choose(struct chooser *c, const struct chooser_ask *ask, size_t n);
/* Book what was just picked, at once: its load, and its prompt as held, before the request leaves. */
void chooser_book(struct chooser *c, const struct chooser_ask *ask, const struct chooser_pick_result *p,
	struct chooser_ticket *out);
/* The first byte came: its prompt is computed, and how fast is learned. Nothing when it is not booked, or has
 * begun. */
void chooser_begun(struct chooser *c, struct chooser_ticket *t, cgn_nsec now);
/* It is over, well or badly: give the booking back. One that never began takes its prompt along: it does not
 * count as held any more where events say what is (else it is the caller's to say, route_record_drop).
 * Nothing when it is not booked. */
void chooser_release(struct chooser *c, struct chooser_ticket *t, cgn_nsec now);
/* It was answered in full, by |t|, released or not (then it is now), and its last byte came at |now|: learn
 * from it. Once a request; not if another node has the slot meanwhile. */
void chooser_done(struct chooser *c, struct chooser_ticket *t, const struct chooser_outcome *o, cgn_nsec now);
