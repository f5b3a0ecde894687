/* SPDX-License-Identifier: Apache-2.0 */
/* replay: plays a trace against a simulated cluster in virtual time. The router's own code decides: a chooser
 * over a cluster of announced nodes, fed with the events that a router receives. An enginemodel per node
 * answers. Pure: a heap of events and no clock, so an hour of trace takes seconds, and equal inputs give
 * equal results on any machine.
 *
 * A report of a node reaches the router after |report_delay|: the blocks stored and dropped by each step, and
 * running and waiting requests every |load_interval|. A request is placed, booked and submitted at one
 * instant. Time to first token ends with its first token; each further token adds one time between tokens.
 * When every node is at its limit (rules->max_inflight), requests wait as they do in the router
 * (policy/route/admission): |queue| and the priorities, tenants and deadlines of the trace decide the order and the
 * refusals.
 *
 * With prefill nodes, a split request is a job of one token on its prefill node, a transfer of the KV that the
 * decode node lacks, and a job on the decode node, whose first token is the client's first one.
 *
 * Memory: the engines' blocks (45 bytes each), about 200 bytes plus 12 a block for each request in flight,
 * and 8 bytes for each token given (base/samples). */
#pragma once
#include "base/samples/samples.h"
#include "lab/enginemodel/enginemodel.h"
#include "lab/gpu/gpu.h"
#include "lab/trace/trace.h"
#include "policy/fleet/autoscale/autoscale.h"
#include "policy/power/energy/park.h"
#include "policy/route/arms/arms.h"
#include "policy/route/queue/queue.h"
#include "policy/route/quote/quote.h"
#include "policy/route/routing/routing.h"

/* The replica that the autoscaler removes. */
enum replay_victim { REPLAY_LEAST_WORTH, REPLAY_ANY };

#define REPLAY_MAX_NODES ROUTE_MAX_NODES

struct replay_tenant {
	uint64_t name; /* trace_name */
	uint32_t weight;
};

/* Nodes that are awake: prefill nodes, and all others. */
struct replay_fleet {
	uint32_t prompts, answers;
};

struct replay_cfg {
	const struct route_rules *rules;
	uint32_t nodes;
	/* The first nodes, so many of |nodes|, have the role prefill, and the others decode; 0: all have both
	 * roles. With rules->disagg.enabled, requests are split as the router splits them. */
	uint32_t prefill_nodes;
	/* The network between two nodes moves |bandwidth| bytes per second; a hand-off takes |handoff| beside that.
	 * A node sends one prompt at a time, and receives one. */
	double bandwidth;
	cgn_nsec handoff;
	/* Blocks of KV memory on each node, in the trace's block size; 0: enough for the whole trace. */
	uint32_t blocks;
	double speed; /* Factor on the arrival rate; 2: requests arrive twice as fast as recorded. */
	uint32_t seed;
	bool publishes; /* Nodes publish KV events; else the router uses its record of sent prompts. */
	cgn_nsec report_delay, load_interval;
	cgn_nsec delay; /* Router, network and the engine's front, added to each time to first token. */
	uint32_t max_waiting;
	enum queue_policy queue;
	cgn_nsec ttft_slo; /* Budget of requests without a deadline in the trace; 0: none. */
	const struct replay_tenant *tenants; /* Borrowed; a tenant that is not listed has weight 1. */
	size_t n_tenants;
	/* Settings of each engine, as in cgn-sim. */
	double prefill_tokens_per_s;
	cgn_nsec decode;
	double batch_effect;
	struct enginemodel_terms terms;
	uint32_t max_batch, step_tokens, max_queue;
	bool quotes; /* Quote each request, and compare the quote with what the request took. */
	/* A share of the sessions follows other policies (policy/route/arms); |live| is of no effect. Not with prefill nodes. */
	struct arms_rules arms;
	/* The GPU of each node; NULL: energy is not counted. The router learns each node's power as it would from its
	 * counter, read once a second; rules->energy says what it does with it. */
	const struct gpu *gpu;
	/* End the engines of nodes that are not needed, which empties their caches, and start them again,
	 * which takes |wake|. */
	bool parks;
	struct energy_park_cfg park;
	cgn_nsec wake;
	/* Park and wake by the hour instead: the nodes that are awake in each hour, as if one had known it; the last for all that
	 * follow. Borrowed. */
	const struct replay_fleet *fleet;
	size_t n_fleet;
	double decode_clock; /* Share of the highest clock at which decode nodes run (gpu_at_clock); 0: 1. */
	/* Add and remove replicas in the same way by the router's autoscaler, with a GPU and without |parks|.
	 * rules->counts_saved must be set. */
	bool scales;
	struct autoscale_cfg scale;
	bool season; /* The autoscaler learns the usual load by the time of the day; the trace begins at midnight. */
	enum replay_victim victim;
	/* An engine that ends leaves its cache in its node's block store, which other nodes fetch it from over their network:
	 * rules->disagg.token_bytes a token, |bandwidth|. */
	bool stores;
	/* Called now and then with the share of requests that have arrived. May be NULL. */
	void (*progress)(void *user, double part);
	void *user;
};
/* cgn-sim's engine on 8 nodes with enough memory, and the delays of a real router. |rules| is NULL: the
 * caller sets it. */
extern const struct replay_cfg replay_defaults;

struct replay_node {
	/* Counts of finished and unfinished requests. */
	uint64_t requests, prompt_tokens, cached_tokens, answer_tokens;
	cgn_nsec busy; /* Time with a step under way. */
};

/* Energy of all nodes from the first arrival to the last answer. */
struct replay_energy {
	double joules, idle_j; /* idle_j: the part while no request was on the node, parked nodes included. */
	double requests_j;     /* Sum over the requests of their shares (policy/power/energy/meter.h). */
	double most_w;         /* Highest mean power of all nodes in a second. */
	double error;          /* Mean of the learned curves' errors at the end. */
	double awake_s;        /* Time that nodes were not parked, summed. */
	double busy_s;         /* Time with a step under way, summed. */
	uint64_t parked, woken; /* Times. */
};

/* An hour of the replay has the first tokens of the requests that came in it. */
struct replay_hour {
	struct samples ttft;
	double joules;
};

#define REPLAY_QUOTE_CLASSES 8
/* A figure of all quotes that were made from QUOTE_LEAST samples or more. */
struct replay_quotes {
	uint64_t sides[3];          /* By enum quote_side. */
	struct samples width_share; /* Width over expected value, 1 as a millisecond. */
	/* The same quotes by the trace's tenants, in the order in which they came; the last one has the other tenants. */
	struct replay_quote_class {
		uint64_t tenant;
		uint64_t inside, all;
	} classes[REPLAY_QUOTE_CLASSES];
	uint32_t n_classes;
};

/* Hits around the instants at which a replica went, summed over REPLAY_AROUND before and after each. */
#define REPLAY_AROUND (600 * CGN_SEC)
struct replay_removals {
	uint64_t n;
	uint64_t prompt_before, cached_before, prompt_after, cached_after; /* Blocks. */
};

struct replay_result {
	uint64_t requests, done, refused_too_large, refused_full, waited;
	uint64_t refused_power; /* Not even alone would they fit into the budget of power. */
	uint64_t refused_late;  /* The deadline could not be met. */
	/* Prompt blocks include unfinished last blocks, which are never cached. */
	uint64_t prompt_blocks, cached_blocks;
	uint64_t expected_blocks; /* Cached blocks predicted by the chooser. */
	uint64_t preempted, evicted_blocks;
	/* Requests whose prompt another node computed, and those that a prefill node answered itself. */
	uint64_t split, continued;
	uint64_t moved_tokens;   /* Tokens whose KV moved between nodes. */
	uint64_t fetched_blocks; /* From the stores of nodes whose engines have ended. */
	/* |per_token|: mean time between tokens of each request. */
	struct samples ttft, itl, per_token;
	struct replay_node *nodes; /* Owned. */
	uint32_t n_nodes;
	uint32_t blocks; /* KV blocks of each node, also when the configuration said unlimited. */
	cgn_nsec ended;  /* Virtual time. */
	/* The busiest node over the mean node, 1 when even: |imbalance| by the time that computed prompt
	 * tokens and given tokens take on an idle engine, |imbalance_busy| by the time with a step under way,
	 * |imbalance_requests| by requests. */
	double imbalance, imbalance_busy, imbalance_requests;
	struct replay_energy energy; /* With a GPU. */
	struct replay_hour *hours;   /* Owned; with a GPU. */
	size_t n_hours;
	struct replay_quotes quotes[QUOTE_FIGURES];
	struct replay_removals removals;
	struct arms_estimate arms[ARMS_SHADOWS][ARMS_FIGURES]; /* The shadows of cfg->arms. */
};

/* Play |t| and fill |out|, which the caller frees with replay_result_fini. NO_MEMORY; INVALID: nodes are not
 * 1 to REPLAY_MAX_NODES, speed is not above 0, or a setting of the engine is out of cgn-sim's bounds. */
CGN_RC replay_run(const struct trace *t, const struct replay_cfg *cfg, struct replay_result *out,
	struct cgn_err *err);
void replay_result_fini(struct replay_result *r);
static inline double replay_hit_ratio(const struct replay_result *r)
{
	return r->prompt_blocks > 0 ? (double)r->cached_blocks / (double)r->prompt_blocks : 0;
}
