/* SPDX-License-Identifier: Apache-2.0 */
/* cluster: the nodes as one router sees them. Membership, what agents report and what operators ask go in; states and orders come out.
 * Belongs to the control loop. What workers see of it is a cluster_view, and the cells. */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/core/err.h"
#include "base/core/list.h"
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
	char *address; /* gRPC, from membership alone: a listed address beats what an agent thinks of itself */
	Cognitora__V1__Node *info; /* announced at first, then as its agent says; owned */
	Cognitora__V1__Load load;  /* last reported */
	bool heard;                /* its watch is open and gave a snapshot */
	bool ever_heard;
	bool cordoned;
	uint32_t drains; /* operators' drains under way */
	uint64_t seq;    /* of the last watch event */
	cgn_nsec heard_at;
};

/* What workers and the control loop share of a node without locks: its slot's cell. */
struct cluster_cell {
	_Alignas(64) _Atomic uint32_t inflight; /* workers: booked at the pick, released at the end */
	/* control loop: engines' running and waiting, less what this router had there then */
	_Atomic uint32_t others;
	_Atomic uint32_t kv_usage_ppm, power_headroom_ppm;
};

struct cluster {
	uint32_t tag;
	struct cgn_link nodes;
	struct cgn_link by_state[NODE_STATE_COUNT];
	uint32_t count[NODE_STATE_COUNT];
	struct cluster_node *by_slot[ROUTE_MAX_NODES]; /* NULL: free */
	struct cluster_cell *cells;                    /* ROUTE_MAX_NODES; owned */
};

/* What the shell must do after an input. */
enum cluster_watch_order { WATCH_KEEP, WATCH_OPEN, WATCH_AGAIN /* close it and open anew */, WATCH_CLOSE };
struct cluster_orders {
	enum cluster_watch_order watch;
	bool publish;  /* workers must see a new view */
	bool forget;   /* what was recorded for the slot no longer holds */
	uint16_t slot; /* of the node that all this is about */
};

CGN_RC cluster_new(struct cluster **out, struct cgn_err *err);
void cluster_free(struct cluster **take);

/* Membership. CGN_OVERLOADED: all slots taken. CGN_NO_MEMORY. A known node whose address changed is watched anew. |cordoned| as
 * the state backend has it for that id. */
CGN_RC cluster_node_seen(struct cluster *c, const Cognitora__V1__Node *info, bool cordoned,
	struct cluster_orders *out, struct cgn_err *err);
/* It left. Orders to close its watch and forget its prefixes; the node is gone when this returns. False: not known. */
bool cluster_node_gone(struct cluster *c, const char *member_id, struct cluster_orders *out);
/* By the node's own id or the member's. False: no such node now. */
bool cluster_cordon(struct cluster *c, const char *id, bool cordoned, struct cluster_orders *out);
void cluster_drain_begin(struct cluster *c, struct cluster_node *n, struct cluster_orders *out);
void cluster_drain_end(struct cluster *c, struct cluster_node *n, struct cluster_orders *out);

/* The node's Agent.Watch. An event whose number is not the last plus one orders WATCH_AGAIN and changes nothing. */
void cluster_watch_event(struct cluster *c, struct cluster_node *n, const Cognitora__V1__WatchEvent *ev,
	cgn_nsec now, struct cluster_orders *out);
void cluster_watch_lost(struct cluster *c, struct cluster_node *n, struct cluster_orders *out);

struct cluster_node *cluster_find(
	const struct cluster *c, const char *id); /* own id first, then the member's; NULL */
uint32_t cluster_inflight(const struct cluster *c, uint16_t slot);
uint64_t cluster_node_kv_tokens(const struct cluster_node *n); /* of its engines together; 0: unknown */
uint32_t cluster_node_width(
	const struct cluster_node *n); /* requests that its ready engines run at once; 0: unknown */
