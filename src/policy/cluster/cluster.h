/* SPDX-License-Identifier: Apache-2.0 */
/* cluster: the nodes as one router sees them. Membership, what agents report and what operators ask go in;
 * states and orders come out. Belongs to the control loop. What workers see of it is a cluster_view, and the
 * cells. */
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
	uint16_t slot;            /* stable while it is a member; index of its cell */
	char *member_id;          /* as membership names it; with static membership its address */
	/* gRPC, from membership alone: a listed address beats what an agent thinks of itself */
	char *address;
	Cognitora__V1__Node *info; /* announced at first, then as its agent says; owned */
	Cognitora__V1__Load load;  /* last reported */
	bool heard;                /* its watch is open and gave a snapshot */
	bool ever_heard;
	bool cordoned;
	uint32_t drains;   /* operators' drains under way */
	uint16_t index_id; /* in the index, if has_index_id */
	bool has_index_id; /* written by the shell, as is |fed| */
	/* every engine of it publishes what it holds: the index knows, and nobody has to guess */
	bool fed;
	bool fed_bytes; /* and of chains of bytes as well: its agent assigns their slots */
	uint64_t seq;   /* of the last watch event */
	cgn_nsec heard_at;
	cgn_nsec load_at; /* when |load| came */
	cgn_nsec beat;    /* the agent promised the next load within so long of it; 0: it promises nothing */
	cgn_nsec quiet;   /* since |load| came, as cluster_watch_quiet counts */
};
#define CLUSTER_QUIET_BEATS 4 /* missed, until an agent that does not hang up is taken for gone */

/* What workers and the control loop share of a node without locks: its slot's cell. */
struct node_stats {
	/* One cache line: all that a pick reads of a node. A thousand of them are in no cache when a request
	 * comes. */
	_Alignas(64) _Atomic uint32_t inflight; /* workers: booked at the pick, released at the end */
	/* control loop: what is there of other routers and of nobody's, as the agent last told
	 * (cluster_watch_event) */
	_Atomic uint32_t others;
	_Atomic uint32_t decoding;        /* workers: of inflight, those whose first byte came */
	_Atomic uint32_t others_decoding; /* control loop: of others, those whose first byte came */
	/* workers: of the prompts of the others of them, those it has to compute, about */
	_Atomic uint64_t queued_tokens;
	/* control loop: of the prompts of others, those that wait to be computed */
	_Atomic uint64_t others_tokens;
	/* workers: node_stats_prefill, node_stats_decode; the bits of two floats each */
	_Atomic uint64_t prefill_speed, decode_speed;
	breaker_word breaker;          /* workers and the control loop: breaker_apply */
	_Atomic uint32_t trust_ppm;    /* workers: node_stats_believe */
	_Atomic uint32_t kv_and_power; /* control loop: node_stats_spare */

	/* And what only beginnings and ends of requests do. */
	/* workers: share of an answer that the next turn finds in cache */
	_Atomic uint32_t answer_ppm;
	/* workers: tokens in a block of our chains, as engines count them; 0: not known yet */
	_Atomic uint32_t block_millitokens;
	/* workers: since when prompts are being computed there (while queued_tokens is not 0), and for how
	 * long they were before that, in all */
	_Atomic uint64_t prefill_since, prefill_total;
	struct pulse pulse;
};

/* One request ended and its engine counted: |predicted| tokens were thought to be in its cache and |actual|
 * were. Any thread; two at once may count as one. */
void node_stats_believe(struct node_stats *cell, uint64_t predicted, uint64_t actual);
double node_stats_trust(const struct node_stats *cell);
/* Its prompt was |tokens| and its chain |blocks| long: a moving average over the node's last 16 requests or
 * so. */
void node_stats_measure(struct node_stats *cell, uint64_t tokens, double blocks);
/* Of an answer of |answer| tokens, |found| were found in cache as the beginning of the next turn: text that
 * is tokenised again does not always give the tokens that it was made of. A moving average; 1 at first. */
void node_stats_answer(struct node_stats *cell, uint64_t answer, uint64_t found);
double node_stats_answer_share(const struct node_stats *cell);
/* How fast it is: speed.h. What is not measured is 0, and |measured| is that nothing is. Any thread; a lost
 * race loses a sample. */
struct route_speed node_stats_speed(const struct node_stats *cell);
void node_stats_prefill(struct node_stats *cell, double ms, double tokens);
void node_stats_decode(struct node_stats *cell, double ms, double tokens, double beside, double stall_ms);
double node_stats_block_tokens(const struct node_stats *cell); /* 0: not known */
/* What is used of its KV cache, and what is left of its power, as last reported: shares of 1, to a
 * 65,535th. */
struct cluster_spare {
	float kv_usage, power_headroom;
};
struct cluster_spare node_stats_spare(const struct node_stats *cell);

struct cluster {
	uint32_t tag;
	struct cgn_link nodes;
	struct cgn_link by_state[NODE_STATE_COUNT];
	uint32_t count[NODE_STATE_COUNT];
	struct cluster_node *by_slot[ROUTE_MAX_NODES]; /* NULL: free */
	struct node_stats *cells;                      /* ROUTE_MAX_NODES; owned */
};

/* What the shell must do after an input. */
enum cluster_watch_order { WATCH_KEEP, WATCH_OPEN, WATCH_AGAIN /* close it and open anew */, WATCH_CLOSE };
struct cluster_orders {
	enum cluster_watch_order watch;
	bool publish;      /* workers must see a new view */
	bool forget;       /* what was recorded for the slot no longer holds */
	bool recovered;    /* it is ready, and was not: its breaker need not wait */
	uint16_t slot;     /* of the node that all this is about */
	bool had_index_id; /* it is gone, and had this lane of the index */
	uint16_t index_id;
};

CGN_RC cluster_new(struct cluster **out, struct cgn_err *err);
void cluster_free(struct cluster **take);

/* Membership. CGN_OVERLOADED: all slots taken. CGN_NO_MEMORY. A known node whose address changed is watched
 * anew. |cordoned| as the state backend has it for that id. */
CGN_RC cluster_node_seen(struct cluster *c, const Cognitora__V1__Node *info, bool cordoned,
	struct cluster_orders *out, struct cgn_err *err);
/* It left. Orders to close its watch and forget its prefixes; the node is gone when this returns. False: not
 * known. */
bool cluster_node_gone(struct cluster *c, const char *member_id, struct cluster_orders *out);
/* By the node's own id or the member's. False: no such node now. */
bool cluster_cordon(struct cluster *c, const char *id, bool cordoned, struct cluster_orders *out);
void cluster_drain_begin(struct cluster *c, struct cluster_node *n, struct cluster_orders *out);
void cluster_drain_end(struct cluster *c, struct cluster_node *n, struct cluster_orders *out);

/* The node's Agent.Watch. An event whose number is not the last plus one orders WATCH_AGAIN and changes
 * nothing. */
void cluster_watch_event(struct cluster *c, struct cluster_node *n, const Cognitora__V1__WatchEvent *ev,
	cgn_nsec now, struct cluster_orders *out);
/* |elapsed| of this router's own time passed: call it every second or so with that period, whatever the clock
 * says, so that a pause of the router itself is not taken for the silence of everybody. An agent that kept
 * its promise (WatchEvent.beat_ms) for all but CLUSTER_QUIET_BEATS is left alone; then its load is not known
 * any more, and WATCH_AGAIN is ordered, which takes it out of the view. */
void cluster_watch_quiet(struct cluster *c, struct cluster_node *n, cgn_nsec elapsed,
	struct cluster_orders *out);
void cluster_watch_lost(struct cluster *c, struct cluster_node *n, struct cluster_orders *out);

struct cluster_node *cluster_find(const struct cluster *c,
	const char *id); /* own id first, then the member's; NULL */
uint32_t cluster_inflight(const struct cluster *c, uint16_t slot);
/* tokens in a block of its engines, the least; 0: unknown */
uint32_t cluster_node_kv_block(const struct cluster_node *n);
uint64_t cluster_node_kv_tokens(const struct cluster_node *n); /* of its engines together; 0: unknown */
uint32_t cluster_node_width(
	const struct cluster_node *n); /* requests that its ready engines run at once; 0: unknown */
