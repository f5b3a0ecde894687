/* SPDX-License-Identifier: Apache-2.0 */
/* cluster: the nodes as one router sees them. Inputs: membership, the agents' reports, the operators' requests.
 * Outputs: states and orders. Belongs to the control loop; workers read a cluster_view and the node_stats.
 *
 * The names of a node:
 *   id            the node's own name, as its agent announces it: log, metrics, API
 *   member_id     the name that membership uses; equal to the id, but with static membership it is the
 *                 address of cluster.nodes until the agent has told the id, and stays so
 *   slot          a number below ROUTE_MAX_NODES while the node is a member: index of by_slot, of the
 *                 node_stats and of all tables beside them; given away again when the node has left
 *   index_id      the node's number in the prefix index, handed out by kvindex_node_add. Not the slot: a number
 *                 is free again only when the index has swept the last node's blocks
 *   node_id_hash  route_hash of the id: a stable name for sessions and consistent choices, the same in all
 *                 routers */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/core/err.h"
#include "base/core/list.h"
#include "policy/breaker/breaker.h"
#include "policy/breaker/pulse.h"
#include "policy/proto/proto.h"
#include "policy/routing/routing.h"

enum node_state {
#define NODE_STATE(id, text, takes, help) NODE_##id,
#include "policy/cluster/node_states.def"
#undef NODE_STATE
	NODE_STATE_COUNT
};
const char *node_state_text(enum node_state s);

#define CLUSTER_NODE_TAG 0xc1057e01U
struct cluster_node {
	uint32_t tag;
	enum node_state state;    /* written by cluster_move alone */
	struct cgn_link by_state; /* cluster->by_state[state] */
	struct cgn_link link;     /* cluster->nodes, in order of arrival */
	uint16_t slot;
	char *member_id;
	/* gRPC, from membership alone: a listed address has priority over the one that an agent announces */
	char *address;
	Cognitora__V1__Node *info; /* announced at first, then as reported by its agent; owned */
	Cognitora__V1__Load load;  /* last reported */
	bool heard;                /* its watch is open and gave a snapshot */
	bool ever_heard;
	bool cordoned;
	uint32_t drains;   /* operators' drains under way */
	uint16_t index_id; /* valid if has_index_id */
	bool has_index_id; /* written by the shell, as is |fed| */
	bool fed;          /* every engine publishes its blocks: the index is asked, not the record */
	bool fed_bytes;    /* chains of bytes too: its agent assigns their slots */
	uint64_t seq;      /* of the last watch event */
	cgn_nsec heard_at;
	cgn_nsec load_at; /* when |load| came */
	cgn_nsec beat;    /* the agent promised a load at least this often; 0: no promise */
	cgn_nsec quiet;   /* time since |load| came, as cluster_watch_quiet counts it */
};
#define CLUSTER_QUIET_BEATS 4 /* missed beats after which a connected agent counts as gone */

/* What workers and the control loop share of a node without locks, by slot. */
struct node_stats {
	/* One cache line: all that a pick reads of a node. A thousand of them are in no cache when a request
	 * comes. */
	_Alignas(64) _Atomic uint32_t inflight; /* workers: booked at the pick, released at the end */
	/* control loop: requests of other routers and of clients without a router, as the agent last reported
	 * (cluster_watch_event) */
	_Atomic uint32_t others;
	_Atomic uint32_t decoding;        /* workers: of inflight, requests whose first byte came */
	_Atomic uint32_t others_decoding; /* control loop: of others, requests whose first byte came */
	_Atomic uint64_t
		queued_tokens; /* workers: prompt tokens to compute of inflight - decoding, estimated */
	_Atomic uint64_t others_tokens; /* control loop: prompt tokens to compute of others */
	/* workers: node_stats_prefill, node_stats_decode; the bits of two floats each */
	_Atomic uint64_t prefill_speed, decode_speed;
	breaker_word breaker;          /* workers and the control loop: breaker_apply */
	_Atomic uint32_t trust_ppm;    /* workers: node_stats_believe */
	_Atomic uint32_t kv_and_power; /* control loop: node_stats_spare */

	/* Only written and read at beginnings and ends of requests. */
	_Atomic uint32_t answer_ppm; /* workers: share of an answer that the next turn finds in cache */
	_Atomic uint32_t
		block_millitokens; /* workers: engine's tokens in a block of our chains; 0: unknown */
	/* workers: since when prompts are being computed (while queued_tokens is not 0), and how long they were
	 * before that, in all */
	_Atomic uint64_t prefill_since, prefill_total;
	struct pulse pulse;
};

/* A request ended and its engine counted: |predicted| tokens were expected in its cache and |actual| were
 * there. Any thread; two calls at once may count as one. */
void node_stats_believe(struct node_stats *stats, uint64_t predicted, uint64_t actual);
double node_stats_trust(const struct node_stats *stats);
/* A prompt had |tokens| tokens and a chain of |blocks| blocks: a moving average over about the node's last 16
 * requests. */
void node_stats_measure(struct node_stats *stats, uint64_t tokens, double blocks);
/* |found| tokens of an answer of |answer| tokens were in cache as the beginning of the next turn: tokenising a
 * text again does not always give the tokens that the text was made of. A moving average; 1 at first. */
void node_stats_answer(struct node_stats *stats, uint64_t answer, uint64_t found);
double node_stats_answer_share(const struct node_stats *stats);
/* Speed of the node (speed.h); 0: not measured. Any thread; a lost race loses a sample. */
struct route_speed node_stats_speed(const struct node_stats *stats);
void node_stats_prefill(struct node_stats *stats, double ms, double tokens);
void node_stats_decode(struct node_stats *stats, double ms, double tokens, double beside, double stall_ms);
double node_stats_block_tokens(const struct node_stats *stats); /* 0: unknown */
/* Shares of 1 as last reported, to a 65,535th: KV cache in use, power that is left. */
struct cluster_spare {
	float kv_usage, power_headroom;
};
struct cluster_spare node_stats_spare(const struct node_stats *stats);

struct cluster {
	uint32_t tag;
	struct cgn_link nodes;
	struct cgn_link by_state[NODE_STATE_COUNT];
	uint32_t count[NODE_STATE_COUNT];
	struct cluster_node *by_slot[ROUTE_MAX_NODES]; /* NULL: free */
	struct node_stats *stats;                      /* ROUTE_MAX_NODES; owned */
};

/* What the shell must do after an input. */
enum cluster_watch_order {
	WATCH_KEEP,
	WATCH_OPEN,
	WATCH_AGAIN /* close it, then open another */,
	WATCH_CLOSE
};
struct cluster_orders {
	enum cluster_watch_order watch;
	bool publish;      /* workers must see a new view */
	bool forget;       /* the record of the slot no longer holds */
	bool recovered;    /* the node became ready: its breaker need not wait */
	uint16_t slot;     /* of the node that the orders are about */
	bool had_index_id; /* the node is gone, and |index_id| is to be removed from the index */
	uint16_t index_id;
};

CGN_RC cluster_new(struct cluster **out, struct cgn_err *err);
void cluster_free(struct cluster **take);

/* Membership has the node |info|. A known node whose address changed is watched again. |cordoned|: as the state
 * backend has it for that id. CGN_OVERLOADED: all slots are taken. CGN_NO_MEMORY. */
CGN_RC cluster_node_seen(struct cluster *c, const Cognitora__V1__Node *info, bool cordoned,
	struct cluster_orders *out, struct cgn_err *err);
/* The node left. Orders to close its watch and to forget its prefixes; the node is freed when this returns.
 * False: unknown. */
bool cluster_node_gone(struct cluster *c, const char *member_id, struct cluster_orders *out);
/* |id|: the node's id or its member_id. False: no such node now. */
bool cluster_cordon(struct cluster *c, const char *id, bool cordoned, struct cluster_orders *out);
void cluster_drain_begin(struct cluster *c, struct cluster_node *n, struct cluster_orders *out);
void cluster_drain_end(struct cluster *c, struct cluster_node *n, struct cluster_orders *out);

/* An event of the node's Agent.Watch came. An event whose number is not the last plus one orders WATCH_AGAIN
 * and changes nothing. */
void cluster_watch_event(struct cluster *c, struct cluster_node *n, const Cognitora__V1__WatchEvent *ev,
	cgn_nsec now, struct cluster_orders *out);
/* |elapsed| of this router's own time passed. Call it about every second with that period, whatever the clock
 * says, so that a pause of the router itself does not count as silence of its agents. An agent that missed
 * CLUSTER_QUIET_BEATS of its promised beats (WatchEvent.beat_ms) loses its load, and WATCH_AGAIN is ordered,
 * which takes the node out of the view. */
void cluster_watch_quiet(struct cluster *c, struct cluster_node *n, cgn_nsec elapsed,
	struct cluster_orders *out);
void cluster_watch_lost(struct cluster *c, struct cluster_node *n, struct cluster_orders *out);

/* Find the node with the id, else the node with the member_id, |id|. NULL: none. */
struct cluster_node *cluster_find(const struct cluster *c, const char *id);
uint32_t cluster_inflight(const struct cluster *c, uint16_t slot);
/* Sums over the node's engines; 0: unknown. kv_block: tokens in a block, of the engine with the smallest ones;
 * kv_tokens: capacity of their KV caches; width: requests that its ready engines run at once. */
uint32_t cluster_node_kv_block(const struct cluster_node *n);
uint64_t cluster_node_kv_tokens(const struct cluster_node *n);
uint32_t cluster_node_width(const struct cluster_node *n);
