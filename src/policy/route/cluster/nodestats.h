/* SPDX-License-Identifier: Apache-2.0 */
/* nodestats: counts, speeds and trust of each node, by slot. Workers and the control loop share them without locks. */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/core/err.h"
#include "policy/node/breaker/breaker.h"
#include "policy/node/breaker/pulse.h"
#include "policy/node/proto/proto.h"
#include "policy/route/cluster/teller.h"
#include "policy/route/cluster/warm.h"
#include "policy/route/routing/routing.h"

/* Peers of [peers] have entries in the tables of nodes' statistics, behind those of the nodes. */
#define CLUSTER_PEERS 32
#define CLUSTER_STATS (ROUTE_MAX_NODES + CLUSTER_PEERS)

struct node_stats {
	/* The first cache line has everything that a pick reads of a node. With a thousand nodes, these lines
	 * are not cached when a request arrives. */
	_Alignas(64) _Atomic uint32_t inflight; /* Workers: added at the pick, removed at the end. */
	/* Control loop: requests of other routers and of clients without a router, as the agent last reported
	 * (cluster_watch_event). */
	_Atomic uint32_t others;
	_Atomic uint32_t decoding;        /* Workers: the part of inflight whose first byte came. */
	_Atomic uint32_t others_decoding; /* Control loop: the part of others whose first byte came. */
	_Atomic uint64_t
		queued_tokens; /* Workers: estimated prompt tokens to compute of inflight - decoding. */
	_Atomic uint64_t others_tokens; /* Control loop: prompt tokens to compute of others. */
	/* Workers (node_stats_prefill, node_stats_decode): the bits of two floats each. */
	_Atomic uint64_t prefill_speed, decode_speed;
	breaker_word breaker;          /* Workers and control loop: breaker_apply. */
	_Atomic uint32_t trust_ppm;    /* Workers: node_stats_believe. */
	_Atomic uint32_t kv_and_power; /* Control loop: node_stats_spare. */

	/* The next lines are used only when a request begins or ends. */
	_Atomic uint32_t answer_ppm; /* Workers: share of an answer that the next turn finds in cache. */
	_Atomic uint32_t
		block_millitokens; /* Workers: engine's tokens in a block of our chains; 0: unknown. */
	/* Workers: time since when prompts are being computed (while queued_tokens is not 0), and the total
	 * time before that. */
	_Atomic uint64_t prefill_since, prefill_total;
	/* Workers, with route_rules.counts_saved: prompt tokens of booked requests that no other candidate had in
	 * cache. */
	_Atomic uint64_t saved_tokens;
	_Atomic uint64_t moving_tokens; /* Workers: tokens whose KV is on the way to the node or from it. */
	struct pulse pulse;
	/* Workers: of |inflight|, the requests that are straight at the node's engine, of which the agent is told:
	 * their number, the part whose first byte came, the prompt tokens to compute of the others, and the pieces
	 * that the engine brought. */
	_Atomic uint32_t direct, direct_decoding;
	_Atomic uint64_t direct_tokens, direct_heard;
	/* The same: requests without a byte whose answer comes as a whole, and the microseconds that the prompts of all of them so
	 * far were expected to take. */
	_Atomic uint32_t direct_wholes;
	_Atomic uint64_t direct_whole_us;
	_Atomic uint64_t
		untrue_until; /* Workers: the usage that the engine reports is not believed until then. */
	_Atomic uint32_t token_us;  /* Workers: node_stats_paced. */
	_Atomic bool refuses_usage; /* Workers: the engine refuses to be asked for the usage of a stream. */
	struct warm warm;           /* Workers: models that are loaded on demand. */
	struct teller teller;       /* Workers: whether the engine tells tokens. */
};

/* A new node has the slot: forget the speeds and shares of the node before it. Counted requests stay. */
void node_stats_reset(struct node_stats *stats);
/* Take the load that the node's agent reported. Control loop. */
void node_stats_load(struct node_stats *stats, const Cognitora__V1__Load *load, cgn_nsec now);
/* The agent is silent: other routers' requests there are not known any more. Control loop. */
void node_stats_forget_others(struct node_stats *stats);
/* Learn from a request that ended and whose engine reported its cached tokens: |predicted| tokens were
 * expected in the cache, |actual| were there. Any thread; two calls at once may count as one. */
void node_stats_believe(struct node_stats *stats, uint64_t predicted, uint64_t actual);
double node_stats_trust(const struct node_stats *stats);
/* Learn from a prompt of |tokens| tokens and a chain of |blocks| blocks: a moving average over about the
 * node's last 16 requests. */
void node_stats_measure(struct node_stats *stats, uint64_t tokens, double blocks);
/* The first prompt that the node's engine counted has |counted| tokens to compute and was learned from as one of |expected|:
 * correct the speed of prompts. */
void node_stats_recount(struct node_stats *stats, double expected, double counted);
/* Learn the time of a token as it is under the node's load: |tokens| of an answer took |ms|. A moving average. */
void node_stats_paced(struct node_stats *stats, double ms, uint64_t tokens);
double node_stats_pace(const struct node_stats *stats); /* Milliseconds of a token; 0: not known. */
/* Learn from a turn of a conversation: |found| of the previous answer's |answer| tokens were in cache.
 * Tokenizing a text again does not always give the tokens that the text was made of. A moving average; 1 at
 * first. */
void node_stats_answer(struct node_stats *stats, uint64_t answer, uint64_t found);
double node_stats_answer_share(const struct node_stats *stats);
/* Return the node's speed (speed.h); 0: not measured. Any thread; a lost race loses a sample. */
struct route_speed node_stats_speed(const struct node_stats *stats);
void node_stats_prefill(struct node_stats *stats, double ms, double tokens);
void node_stats_decode(struct node_stats *stats, double ms, double tokens, double beside, double stall_ms);
double node_stats_queue_ms(const struct node_stats
		*stats); /* Time of the prompts to compute there; 0 if the speed is not measured. */
/* Return the time in which prompts of this router were computed at the node, until |now|. */
cgn_nsec node_stats_busy(const struct node_stats *stats, cgn_nsec now);
/* Return the requests at the node, those of others included. */
uint32_t node_stats_requests(const struct node_stats *stats);
double node_stats_block_tokens(const struct node_stats *stats); /* 0: unknown. */
/* Last reported shares, from 0 to 1 in steps of 1/65535: KV cache in use, power that is left. */
struct cluster_spare {
	float kv_usage, power_headroom;
};
struct cluster_spare node_stats_spare(const struct node_stats *stats);
