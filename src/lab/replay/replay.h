/* SPDX-License-Identifier: Apache-2.0 */
/* replay: a trace against a cluster that does not exist, in virtual time. What decides is the router's own
 * code: a chooser over a cluster of announced nodes, fed as a router is fed. What answers is enginemodel, one
 * a node. Pure: a heap of events and no clock, so that an hour takes seconds and equal inputs give equal
 * results, on any machine.
 *
 * What a node tells takes |told_after| to arrive: the blocks that each step stored and dropped, and every
 * |load_every| what runs and waits there. A request is picked for, booked and in its engine at the same
 * instant; its first token ends its time to first token, each further one a time between tokens. When every
 * node has all it may have (rules->max_inflight), requests wait for the first that finishes, first come,
 * first served, |max_waiting| of them; more are refused.
 *
 * Memory: the engines' blocks (45 bytes each), some 200 bytes and 12 a block for each request in flight, and
 * 8 bytes a token given (base/samples). */
#pragma once
#include "base/samples/samples.h"
#include "lab/trace/trace.h"
#include "policy/routing/routing.h"

#define REPLAY_MAX_NODES ROUTE_MAX_NODES

struct replay_cfg {
	const struct route_rules *rules;
	uint32_t nodes;
	/* of KV memory on each node, in the trace's block size; 0: as many as all of the trace could ever
	 * want */
	uint32_t blocks;
	double speed; /* 2: requests come twice as fast as they came */
	uint32_t seed;
	bool told; /* nodes publish what they hold; else the router goes by what it sent them */
	cgn_nsec told_after, load_every;
	uint32_t max_waiting;
	/* of each engine, as cgn-sim has them */
	double prefill_tokens_per_s;
	cgn_nsec decode;
	double batch_effect;
	uint32_t max_batch, step_tokens, max_queue;
	/* Now and then, with the share of requests that have come. May be NULL. */
	void (*progress)(void *user, double part);
	void *user;
};
/* cgn-sim's engine on 8 nodes with room for everything, the router's delays. rules is NULL: the caller's. */
extern const struct replay_cfg replay_defaults;

struct replay_node {
	uint64_t requests, prompt_tokens, cached_tokens, answer_tokens; /* of finished and unfinished ones */
	cgn_nsec busy;                                                  /* steps under way */
};

struct replay_result {
	uint64_t requests, done, refused_too_large, refused_full, waited;
	/* unfinished last blocks are prompt blocks too, and never found */
	uint64_t prompt_blocks, cached_blocks;
	uint64_t expected_blocks; /* cached, as the choice had it */
	uint64_t preempted, evicted_blocks;
	/* per_token: of each request, the mean time between its tokens */
	struct samples ttft, itl, per_token;
	struct replay_node *nodes; /* owned */
	uint32_t n_nodes;
	uint32_t blocks; /* of each node, what unlimited came to included */
	cgn_nsec ended;  /* virtual */
	/* The busiest node over the mean: by what its tokens take an engine that has nothing else to do
	 * (prompt tokens computed, tokens given); by the time that steps were under way; by requests. 1:
	 * even. */
	double imbalance, imbalance_busy, imbalance_requests;
};

/* NO_MEMORY; INVALID: nodes are not 1 to REPLAY_MAX_NODES, speed is not above 0, or an engine could not be
 * (sim's bounds). */
CGN_RC replay_run(const struct trace *t, const struct replay_cfg *cfg, struct replay_result *out,
	struct cgn_err *err);
void replay_result_fini(struct replay_result *r);
static inline double replay_hit_ratio(const struct replay_result *r)
{
	return r->prompt_blocks > 0 ? (double)r->cached_blocks / (double)r->prompt_blocks : 0;
}
