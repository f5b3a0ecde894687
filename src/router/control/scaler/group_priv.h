/* SPDX-License-Identifier: Apache-2.0 */
/* group: the nodes of one model and role, and the order that is carried out for them. */
#pragma once
#include "io/os/loop/backoff.h"
#include "joint/cluster/scalecall/scalecall.h"
#include "policy/fleet/autoscale/load.h"
#include "router/control/scaler/scaler.h"

#define SCALER_NOTES   5
#define SCALER_VICTIMS 8 /* Nodes that one order to a program or webhook removes. */

/* Totals of a model's times to first byte and between two pieces. */
struct scaler_note {
	cgn_nsec at;
	struct metric_times ttft, itl;
};

enum scaler_job_state {
	SCALER_JOB_NONE,
	SCALER_JOB_DRAINS, /* The nodes to remove are cordoned, and their requests end. */
	SCALER_JOB_CALLS,  /* An attempt is under way. */
	SCALER_JOB_PAUSES, /* The next attempt follows. */
};

/* An order of a group to a target outside of the cluster. */
struct scaler_job {
	enum scaler_job_state state;
	struct scaler *s;
	struct scaler_group *g;
	struct autoscale_order order; /* |nodes| points to |names|, |why| to |reason|. */
	char id[AUTOSCALE_ORDER_ID], reason[AUTOSCALE_WHY];
	char victim[SCALER_VICTIMS][PROTO_MAX_ID + 1];
	const char *names[SCALER_VICTIMS];
	cgn_nsec quiet_at; /* When the nodes were first seen without requests; 0: they have some. */
	unsigned attempts;
	struct cgn_backoff backoff;
	struct cgn_timer timer;
	struct scalecall *call;
	uint64_t event; /* Number of the decision, whose |then| tells how far the order is. */
};

/* The nodes of one model and role. */
struct scaler_group {
	char model[WANTED_MAX_NAME + 1]; /* As engines call it; empty: the place is free. */
	char shown[WANTED_MAX_NAME + 1]; /* As the router calls it. */
	int role;                        /* COGNITORA__V1__ROLE__* */
	struct autoscale state;
	struct autoscale_season season;
	struct scaler_note note[SCALER_NOTES];
	size_t n_notes, next_note;
	cgn_nsec wake; /* Measured time until a replica is ready; 0: none was measured. */
	cgn_nsec seen; /* When a node of the group was there. */
	struct autoscale_signals signals;
	struct autoscale_decision decision;
	struct scaler_job job;
	uint32_t asked;      /* Replicas that a target has promised and that are not there yet; 0: none. */
	cgn_nsec asked_at;   /* When the target promised them. */
	cgn_nsec resumes_at; /* After an order that failed nothing is decided until then. */
	bool wakes;          /* A request wakes a node of the group. */
	bool told;           /* The last event of the group is of the same decision. */
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
