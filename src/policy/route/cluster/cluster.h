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
#include <stdbool.h>
#include <stdint.h>

#include "base/core/err.h"
#include "base/core/list.h"
#include "base/weburl/weburl.h"
#include "policy/node/engine/engine.h"
#include "policy/node/proto/proto.h"
#include "policy/route/routing/routing.h"

enum node_state {
#define NODE_STATE(id, text, takes, help) NODE_##id,
#include "policy/route/cluster/node_states.def"
#undef NODE_STATE
	NODE_STATE_COUNT
};
const char *node_state_text(enum node_state s);

/* How the router reaches an engine without an agent. */
struct tls_ctx;
struct cluster_door {
	struct weburl url;
	const char *authorization; /* Value of the field that the engine wants; NULL: none. */
	struct tls_ctx *tls;       /* Borrowed, outlives all views; NULL: in clear. */
	uint32_t connections;      /* Most connections of this router. */
};

#define CLUSTER_NODE_TAG 0xc1057e01U
struct cluster_node {
	uint32_t tag;
	enum node_state state;    /* Written only by cluster_move. */
	struct cgn_link by_state; /* In cluster->by_state[state]. */
	struct cgn_link link;     /* In cluster->nodes, in order of arrival. */
	uint16_t slot;
	char *member_id;
	/* Address for gRPC, from membership alone: a listed address has priority over the address that the
	 * agent announces. */
	char *address;
	/* The announced Node at first, then the Node that the agent reported; owned. */
	Cognitora__V1__Node *info;
	Cognitora__V1__Load load; /* The last reported load. */
	bool heard;               /* The node's watch is open and gave a snapshot. */
	bool ever_heard;
	/* The node is an engine without an agent. Borrowed from the shell, which sets it when the node came, and outlives the
	 * node; NULL: the node has an agent. */
	const struct cluster_door *door;
	bool cordoned;
	uint32_t drains;   /* Operators' drains under way. */
	uint16_t index_id; /* Valid if has_index_id. */
	bool has_index_id; /* Written by the shell, like |fed|. */
	/* Every engine publishes its blocks: use the index, not the record of sent prompts. */
	bool fed;
	/* The index has chains of bytes too, because the agent assigns the engines' slots. */
	bool fed_bytes;
	bool keeps_none; /* Fed, and no engine keeps blocks after a request. */
	/* Until this instant blocks that were sent to the node count as held, although the node is fed: their
	 * events may be on the way. Written by the shell. */
	cgn_nsec record_until;
	uint64_t seq; /* Number of the last watch event. */
	cgn_nsec heard_at;
	cgn_nsec load_at; /* Time when |load| came. */
	cgn_nsec beat;    /* The agent promised a load at least this often; 0: no promise. */
	cgn_nsec quiet;   /* Time since |load| came, as cluster_watch_quiet counts it. */
};
#define CLUSTER_QUIET_BEATS 4 /* Missed beats after which a connected agent counts as gone. */

struct cluster {
	uint32_t tag;
	struct cgn_link nodes;
	struct cgn_link by_state[NODE_STATE_COUNT];
	uint32_t count[NODE_STATE_COUNT];
	bool heard; /* All members are known; written by the shell. */
	bool away;  /* The source of the membership does not answer now; written by the shell. */
	struct cluster_node *by_slot[ROUTE_MAX_NODES]; /* NULL: the slot is free. */
	struct node_stats *stats;                      /* CLUSTER_STATS entries; owned. */
};

/* The order to the shell about the node's watch. */
enum cluster_watch_order {
	WATCH_KEEP,
	WATCH_OPEN,
	WATCH_AGAIN /* Close the watch, then open another. */,
	WATCH_CLOSE
};
struct cluster_orders {
	enum cluster_watch_order watch;
	bool publish;   /* Workers must get a new view. */
	bool forget;    /* The slot's record of sent prompts is no longer valid. */
	bool recovered; /* The node became ready: allow a probe of its breaker now. */
	bool stalled; /* The agent says now that the engine is stalled: requests there will not end by themselves. */
	uint16_t slot;     /* Slot of the node that the orders are about. */
	bool had_index_id; /* The node is gone: remove |index_id| from the index. */
	uint16_t index_id;
};

struct cluster *cluster_new(void);
void cluster_free(struct cluster **take);

/* Add or update the member |info|. A known node whose address changed is watched again. |cordoned|: the state
 * backend has a cordon for the id. CGN_OVERLOADED: all slots are taken. CGN_NO_MEMORY. */
CGN_RC cluster_node_seen(struct cluster *c, const Cognitora__V1__Node *info, bool cordoned,
	struct cluster_orders *out, struct cgn_err *err);
/* Remove a member. Orders: close its watch and forget its prefixes; the node is freed when this returns.
 * False: unknown member. */
bool cluster_node_gone(struct cluster *c, const char *member_id, struct cluster_orders *out);
/* Cordon a node or lift its cordon. |id|: the node's id or its member_id. False: no such node now. */
bool cluster_cordon(struct cluster *c, const char *id, bool cordoned, struct cluster_orders *out);
void cluster_drain_begin(struct cluster *c, struct cluster_node *n, struct cluster_orders *out);
void cluster_drain_end(struct cluster *c, struct cluster_node *n, struct cluster_orders *out);

/* Take an event of the node's Agent.Watch. An event whose number is not the last number plus one orders
 * WATCH_AGAIN and changes nothing. */
void cluster_watch_event(struct cluster *c, struct cluster_node *n, const Cognitora__V1__WatchEvent *ev,
	cgn_nsec now, struct cluster_orders *out);
/* Count |elapsed| of this router's own time. Call about every second with that period, whatever the clock
 * says: a pause of the router itself must not count as silence of its agents. An agent that missed
 * CLUSTER_QUIET_BEATS of its promised beats (WatchEvent.beat_ms) loses its load, and WATCH_AGAIN is ordered,
 * which takes the node out of the view. */
void cluster_watch_quiet(struct cluster *c, struct cluster_node *n, cgn_nsec elapsed,
	struct cluster_orders *out);
void cluster_watch_lost(struct cluster *c, struct cluster_node *n, struct cluster_orders *out);

/* Return the node whose id, else whose member_id is |id|; NULL: none. */
struct cluster_node *cluster_find(const struct cluster *c, const char *id);
uint32_t cluster_inflight(const struct cluster *c, uint16_t slot);
/* Sums over the node's engines; 0: unknown. kv_block: tokens in a block, of the engine with the smallest
 * blocks; kv_tokens: capacity of the KV caches; width: requests that the ready engines run at once. */
uint32_t cluster_node_kv_block(const struct cluster_node *n);
uint64_t cluster_node_kv_tokens(const struct cluster_node *n);
uint32_t cluster_node_width(const struct cluster_node *n);
