/* SPDX-License-Identifier: Apache-2.0 */
/* watch: the Agent.Watch call of each node, the residency that it reports, and the comparison of nodes that serve
 * the same models. */
#pragma once
#include "base/pb/pb_tree.h"
#include "io/os/loop/backoff.h"
#include "router/control/control/router.h"
#include "router/shared/enginenodes/node.h"

/* The Agent.Watch call of one node, reopened for as long as the node is a member. */
struct router_watch {
	uint32_t tag;
	struct router *r;
	uint16_t slot;
	char *address;
	struct grpc_channel *channel;
	struct engine_node
		*engine; /* Stands in for the agent of an engine that has none; NULL: there is an agent. */
	struct grpc_call *call;
	struct cgn_timer retry;
	struct cgn_backoff backoff;
	struct cgn_grave grave;
	cgn_nsec opened_at; /* When the call was opened. */
	/* When the index last agreed with the agent, as far as known; 0: it agrees now. */
	cgn_nsec stale_since;
	/* Reported age of the agent's own knowledge of its engine, and when it was reported. */
	cgn_nsec agent_stale, agent_stale_at;
	struct router_direct_told {
		uint32_t inflight, decoding, wholes;
		uint64_t tokens, heard, whole_us;
		cgn_nsec at;
	} told; /* Requests straight at the engine, as the agent knows them. */
	unsigned repairs_in_a_row;
	cgn_nsec repair_not_before;
	struct outlier_window window; /* Window over the node's tally. */
	enum node_state shown;        /* Last state that was logged and put on /metrics. */
	char *shown_id;               /* Node id of |shown|. */
	bool direct;                  /* The node has sent its engine's address: requests may be there. */
	/* Why the node's blocks are none of this router's, as last told; empty: they may be. */
	char blocks_differ[200];
	char blocks_now[200]; /* The same, of the comparison that runs. */
	bool blocks_known;    /* In the comparison that runs: the node is ready. */
	char lost[200];       /* Why the agent does not answer; empty: it does. */
};

/* outliers.c */
/* Start the node's window again: its slot may have had another node. */
void router_outliers_reset(struct router_watch *w);
/* Trip the breakers of outliers. Call once a second. */
void router_outliers_check(struct router *r);

/* watch.c */
/* Open the watch of |n|, which has none. It is reopened until router_watch_close. */
void router_watch_open(struct router *r, const struct cluster_node *n);
/* End the current call and open another, to the node's present address. */
void router_watch_restart(struct router *r, const struct cluster_node *n);
#define ROUTER_REASON_BYTES 1500
/* Write the node's fault into |out|: its agent does not answer, or engines are in trouble; a node with
 * another engine may be ready nevertheless. Empty: nothing is known. */
void router_watch_reason(const struct router *r, const struct cluster_node *n, char *out, size_t cap);
/* Return where a node without an agent comes from; empty: it has an agent. Borrowed. */
const char *router_watch_origin(const struct router *r, const struct cluster_node *n);
/* blocks.c */
/* Compare the settings by which the ready nodes make blocks with this router's own. A difference is logged
 * when it changes. */
void router_blocks_compare(struct router *r);

/* Does nothing when there is no watch. Safe in the watch's own callbacks. */
void router_watch_close(struct router *r, uint16_t slot);

/* direct.c; reports to agents about requests that do not pass them */
void router_direct_init(struct router *r);
/* The node of the watch has told that its engine may be reached. */
void router_direct_begin(struct router_watch *w);

/* residency.c; reports of a node's blocks */
/* Prepare the sweep of removed nodes. */
void router_residency_init(struct router *r);
/* Add the watch's node to the index, with nothing known of it. */
void router_residency_open(struct router_watch *w);
/* Remove a node from the index at once; its blocks are swept later. */
void router_residency_remove(struct router *r, uint16_t index_id);
/* Forget all that is known of the node's blocks. */
void router_residency_reset(struct router_watch *w);
/* Apply a report of blocks. */
void router_residency_apply(struct router_watch *w, const Cognitora__V1__Residency *res);
/* Compare the agent's checksums with the index and request repairs of ranges that differ. */
void router_residency_compare(struct router_watch *w, const Cognitora__V1__ResidencyCheck *check);
/* The call has ended: the node's blocks grow stale from now on. */
void router_residency_lost(struct router_watch *w);
/* Fill in the known state of a node's cache, for people. */
void router_cache_fill(const struct router *r, const struct cluster_node *n, struct pb_tree *t,
	Cognitora__V1__NodeCache *to);
void router_residency_metrics(struct router *r);    /* Update the metrics; once a second. */
size_t router_record_bytes(const struct router *r); /* Return the memory of all records of sent prompts. */
