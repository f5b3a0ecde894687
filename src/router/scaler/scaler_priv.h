/* SPDX-License-Identifier: Apache-2.0 */
/* State shared by the files of scaler. scaler.c: time and decisions. signals.c: what the decision is made from.
 * orders.c: what follows from it. events.c: the decisions that are remembered. */
#pragma once
#include "policy/autoscale/load.h"
#include "router/control/rest.h"
#include "router/scaler/scaler.h"

#define SCALER_TAG       0x64a5ca01U
#define SCALER_NOTES     5
#define SCALER_NODE_TEXT 400
#define SCALER_THEN      400

/* Totals of a model's times to first byte and between two pieces. */
struct scaler_note {
	cgn_nsec at;
	struct metric_totals ttft, itl;
};

/* The nodes of one model and role. */
struct scaler_group {
	char model[WANTED_MAX_NAME + 1]; /* As engines call it; empty: the place is free. */
	char shown[WANTED_MAX_NAME + 1]; /* As the router calls it. */
	int role;                        /* COGNITORA__V1__ROLE__* */
	struct autoscale state;
	struct scaler_note note[SCALER_NOTES];
	size_t n_notes, next_note;
	cgn_nsec wake; /* Measured time until a replica is ready; 0: none was measured. */
	cgn_nsec seen; /* When a node of the group was there. */
	struct autoscale_signals signals;
	struct autoscale_decision decision;
	bool told; /* The last event of the group is of the same decision. */
	enum autoscale_action told_action;
	uint32_t told_want;
};

/* The nodes of a group, as one decision sees them. */
struct scaler_nodes {
	const struct cluster_node *ready[WANTED_MAX_NODES], *resting[WANTED_MAX_NODES];
	uint32_t n_ready, n_resting;
	uint32_t ours; /* The router may put the first |ours| of |ready| to rest. */
	uint32_t all;
	cgn_nsec first_at; /* When the first replica that comes is expected; 0: none comes. */
	bool computes,
		answers; /* The group computes prompts for answers of its own or others; it gives tokens. */
};

/* A decision, as it is remembered. */
struct scaler_event {
	uint64_t at_ms;
	char model[WANTED_MAX_NAME + 1];
	int role;
	struct autoscale_decision decision;
	uint32_t have;
	bool shadow;
	char nodes[SCALER_NODE_TEXT]; /* Ids; empty: none. */
	char then[SCALER_THEN];       /* Says how the decision was carried out. */
};

/* A node that was ordered to wake. */
struct scaler_wake {
	cgn_nsec at; /* 0: it was not, or is ready since. */
	const struct scaler_group *group;
};

struct scaler {
	uint32_t tag;
	struct router *r;
	struct state_leader *leader;
	struct cgn_timer timer;
	bool pending; /* The state backend works on an order. */
	struct scaler_group groups[SCALER_GROUPS];
	struct scaler_event events[SCALER_EVENTS];
	uint64_t n_events; /* Ever. */
	/* By slot. */
	struct autoscale_node nodes[ROUTE_MAX_NODES];
	struct scaler_wake wakes[ROUTE_MAX_NODES];
};

/* signals.c */
const char *scaler_role_text(int role);
Cognitora__V1__WantedState scaler_rest(const struct router *r);
/* Note what the second brought, for all nodes. */
void scaler_nodes_note(struct scaler *s, cgn_nsec now);
/* Fill |g->signals| and |out|. */
void scaler_group_look(struct scaler *s, struct scaler_group *g, cgn_nsec now, struct scaler_nodes *out);
cgn_nsec scaler_wake_time(const struct scaler *s, const struct scaler_group *g);
/* Return the index in |nodes->ready| of the node whose cache is worth least of the first |n|; |n|: none. */
uint32_t scaler_least_worth(const struct scaler *s, const struct scaler_nodes *nodes, uint32_t n,
	cgn_nsec now);

/* orders.c: carry out g->decision, or only say what would be done, and fill |e|. */
void scaler_carry_out(struct scaler *s, struct scaler_group *g, struct scaler_nodes *nodes, cgn_nsec now,
	struct scaler_event *e);

/* events.c */
/* Remember and log the decision, unless it is the last one of the group again. */
void scaler_event_note(struct scaler *s, struct scaler_group *g, const struct scaler_event *e);
