/* SPDX-License-Identifier: Apache-2.0 */
/* chooser: one decision, from the digests of a prompt to a booked node, and the learning when the request
 * ends. The router and the replay of a trace share this code, so that results of a replay hold for the
 * router. Pure: time is an argument.
 *
 * A chooser belongs to one thread. The state that choosers share (struct chooser_shared) is atomic: all see a
 * booking at once. Memory: one route_cand for each node that has the requested model, and the index's
 * reader. */
#pragma once
#include "policy/kv/kvindex/kvindex.h"
#include "policy/route/chooser/ticket.h"
#include "policy/route/cluster/view.h"
#include "policy/route/routing/hotprefix.h"
#include "policy/route/routing/pending.h"
#include "policy/route/routing/record.h"
#include "policy/route/routing/routing.h"

struct chooser_shared {
	struct node_stats *stats;    /* Load and speeds of the cluster's nodes, by slot. */
	struct kvindex *index;       /* Blocks that engines report; written by one thread. */
	struct route_record *record; /* Prompts sent to nodes that do not report. */
	/* Prompts sent to nodes that report but have not reported these yet; NULL: such prompts do not
	 * count. */
	struct pending *pending;
	struct hotprefix *hotprefix; /* Requests in flight by prefix; NULL: no prefix is hot. */
	struct transfer *transfer;   /* Speeds of hand-offs; NULL: the prior. */
	struct energy_board *energy; /* Power of the nodes; NULL: unknown. */
	/* Picks that were booked, by which nodes take turns; NULL: each chooser goes through the nodes by itself. */
	_Atomic uint32_t *turns;
};

/* A node that computes a prompt for another node. */
struct chooser_source {
	uint64_t node; /* route_hash of the node's id; 0: no node. */
	uint16_t slot;
};

#define CHOOSER_NO_PIN UINT32_MAX
struct chooser_ask {
	const struct route_rules *rules;
	/* The request follows |policy| in the place of rules->policy (policy/route/arms). */
	bool follows;
	enum route_policy policy;
	const struct view_model *model; /* NULL: no node has the model. */
	const uint64_t *chain;          /* Short digests of the prompt's blocks. */
	size_t blocks;                  /* 0: no prompt. */
	/* Length in blocks, with the unfinished last one as a fraction; 0: unknown. */
	double length;
	/* Tokens in a block; 0: the blocks are of bytes, which events do not name. */
	uint32_t block_tokens;
	uint64_t prompt_tokens; /* 0: unknown; estimated from the blocks. */
	uint32_t answer_tokens; /* Maximum of the answer; 0: unknown. */
	uint32_t answer_hint;   /* Tokens that the client expects of the answer; 0: not said. */
	/* The answer is not streamed, so its first byte says nothing about the prompt's time. */
	bool whole;
	/* The request only computes the prompt (embeddings): not for decode nodes. Other requests are not for
	 * prefill nodes. */
	bool embeds;
	/* The request computes the prompt for another node: for prefill nodes only. */
	bool prefill;
	struct chooser_source from; /* Node whose hand-off of the kind |handoff| the prompt comes with. */
	/* A prefill node answers the request: for prefill nodes only, which compute the prompt too. */
	bool continues;
	/* Fingerprint of the hand-off (route_cand.handoff) that the node must have; 0: any. */
	uint64_t handoff;
	uint64_t session;         /* route_hash of the session; 0: none. */
	uint32_t pin;             /* Slot of the pinned node, or CHOOSER_NO_PIN. */
	const uint16_t *excluded; /* Slots of nodes already tried. */
	size_t n_excluded;
	cgn_nsec now;
};

struct chooser_pick_result {
	enum route_verdict verdict;
	size_t index; /* Index into |cands| when picked. */
	double score;
	/* The scored question. With another policy and |cands|, route_pick tells what that policy would have
	 * picked. */
	struct route_ask ask;
	/* The scored candidates, ascending by slot; borrowed until the next pick. */
	const struct route_cand *cands;
	size_t n;
	bool claimed; /* chooser_claim has taken the place. */
};

/* Return the policy that decides. */
static inline enum route_policy chooser_policy(const struct chooser_ask *ask)
{
	return ask->follows ? ask->policy : ask->rules->policy;
}
/* Return true when nodes of this role (COGNITORA__V1__ROLE__*) are meant for the request. Other nodes are
 * used only when there is no such node. */
bool chooser_role_fits(const struct chooser_ask *ask, int role);
/* Remove the candidates whose role does not fit, unless none fits: every engine can do both. Return how many
 * stay. */
size_t chooser_roles(const struct chooser_ask *ask, struct route_cand *cands, size_t n);
/* Return the approximate tokens in a block of the prompt's chain at the node of |stats|. */
float chooser_block_tokens(const struct chooser_ask *ask, const struct node_stats *stats);
/* Fill |out| from the configuration. */
struct config;
void chooser_rules_fill(const struct config *cfg, struct route_rules *out);

/* ---- split.c: one node or two ---- */

enum chooser_shape {
	CHOOSER_WHOLE,     /* A decode node computes prompt and answer. */
	CHOOSER_PAIR,      /* A prefill node computes the prompt, a decode node the answer. */
	CHOOSER_CONTINUES, /* A prefill node computes both: decode nodes are scarce. */
	CHOOSER_SHAPES
};
const char *chooser_shape_text(enum chooser_shape s);

/* The rule that decided between the shapes. */
enum chooser_reason {
#define REASON(id, text, help) CHOOSER_BY_##id,
#include "policy/route/chooser/reasons.def"
#undef REASON
	CHOOSER_REASONS
};
const char *chooser_reason_text(enum chooser_reason r);

#define CHOOSER_NO_SLOT UINT16_MAX
/* Costs are milliseconds, of the request and of those that it delays (routing.h); infinite: not possible. */
struct chooser_split {
	bool considered; /* There are prefill nodes and others. */
	enum chooser_shape shape;
	enum chooser_reason why;
	double whole_ms, pair_ms, continues_ms;
	uint16_t whole, prefill, decode, continues; /* Slots of the best nodes; CHOOSER_NO_SLOT: none. */
	/* The pair hands |moved_tokens| tokens over by |handoff|, in |transfer_ms| as predicted. */
	uint64_t handoff;
	uint32_t moved_tokens;
	double transfer_ms;
	double ttft_ms; /* Predicted time to the pair's first token. */
	/* With CHOOSER_PAIR: the pick of the prefill node, to book; borrowed until the next pick. */
	struct chooser_pick_result first;
	struct chooser_source from; /* The prefill node. */
};

struct chooser;
/* ---- energy.c ---- */

/* Return the watts of all nodes at their load of |now|, as router.energy.budget counts them (energy_board_watts). */
double chooser_watts(const struct chooser_shared *shared, cgn_nsec now);
/* Return the watts of all nodes as they were measured last. */
double chooser_watts_measured(const struct chooser_shared *shared, cgn_nsec now);
/* Return the watts of all nodes with nothing but one stream, where that takes least. 0: they were not measured of every node. */
double chooser_watts_least(const struct chooser_shared *shared, cgn_nsec now);
/* Return the watts that a budget of |budget_w| lets the nodes draw, for the error of the curves. */
double chooser_budget(double budget_w);
/* Return the index of the candidate that the rules for energy would have picked where they have no effect (mode
 * shadow); p->n: none, or the power of a candidate is unknown. */
size_t chooser_energy_shadow(const struct chooser_pick_result *p);
/* Return the joules that the request of |t| has used by |now|, by phase. Zero: not known. */
struct chooser_energy chooser_joules(const struct chooser *c, const struct chooser_ticket *t, cgn_nsec now);

/* |seed| is added to the turns, so that several routers do not go through equal nodes in step. Fails with
 * TOO_LARGE when the index has no reader left. */
CGN_RC chooser_new(const struct chooser_shared *shared, uint32_t seed, struct chooser **out,
	struct cgn_err *err);
void chooser_free(struct chooser **take);

/* Decide without booking. */
struct chooser_pick_result chooser_pick(struct chooser *c, const struct chooser_ask *ask);
/* chooser_pick in two steps, to measure each: find the candidates and the blocks they hold; score them. */
size_t chooser_match(struct chooser *c, const struct chooser_ask *ask);
struct chooser_pick_result chooser_choose(struct chooser *c, const struct chooser_ask *ask, size_t n);
/* Decide whether one node computes the prompt and the answer of |ask|, which is about a whole request, or two
 * do. Compares the best pair of nodes for each kind of hand-off with the best single nodes, in time
 * proportional to the nodes. Books nothing. */
void chooser_split(struct chooser *c, const struct chooser_ask *ask, struct chooser_split *out);
/* Take a place at the picked node, which chooser_book then keeps. False: another thread took the last one since the
 * pick; pick again. A node that had no room at the pick (a pinned one) takes the request all the same. */
bool chooser_claim(struct chooser *c, const struct chooser_ask *ask, struct chooser_pick_result *p);
void chooser_unclaim(struct chooser *c,
	struct chooser_pick_result *p); /* The request is not sent after all. */
/* Book the pick |p|, before the request is sent: count its load, and its prompt as held. */
void chooser_book(struct chooser *c, const struct chooser_ask *ask, const struct chooser_pick_result *p,
	struct chooser_ticket *out);
/* The prompt that |t| waits for is computed at |now|, and its KV begins to move. For decode legs that are sent
 * before the prefill leg has ended; the others are sent at that instant. */
void chooser_moving(struct chooser_ticket *t, cgn_nsec now);
/* The first byte came: the prompt is computed, and its speed is learned. No effect without a booking or after
 * the first call. */
void chooser_begun(struct chooser *c, struct chooser_ticket *t, cgn_nsec now);
/* The request ended, successfully or not: return the booking. If no first byte came, a prompt sent to a node
 * with events no longer counts as held; for other nodes the caller calls route_record_drop. No effect without
 * a booking. */
void chooser_release(struct chooser *c, struct chooser_ticket *t, cgn_nsec now);
/* The request was answered in full at |now|: release |t| if it is still booked, and learn from it. Call once
 * per request. Nothing is learned when another node has the slot by now. */
void chooser_done(struct chooser *c, struct chooser_ticket *t, const struct chooser_outcome *o, cgn_nsec now);
