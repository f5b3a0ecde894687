/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of replay share. replay.c: time, arrivals, the pick · fleet.c: the nodes, and what a router
 * hears of them. */
#pragma once
#include "lab/enginemodel/enginemodel.h"
#include "lab/replay/replay.h"
#include "policy/chooser/chooser.h"

struct replay;

/* One node: its engine, and what it has to tell after the step under way. */
struct replay_server {
	struct replay *r;
	struct cluster_node *node;
	struct enginemodel *engine;
	cgn_nsec wake_at; /* 0: idle */
	uint64_t seq;
	struct cgn_buf digests, tiers;
	struct replay_node *counts; /* in the result */
};

/* Something on its way from a node to the router. They all take equally long, so a queue keeps them in
 * order. */
struct tell {
	struct tell *next;
	cgn_nsec at;
	uint32_t node;
	bool is_load;
	Cognitora__V1__Load load;
	size_t n;
	uint8_t *tiers; /* behind the digests */
	uint64_t digests[];
};

/* A request between its pick and its last token. */
struct flight {
	struct cgn_link link; /* r->flights */
	const struct trace_request *request;
	struct choose_ticket ticket;
	uint32_t node;
	cgn_nsec came, first, last;
	struct enginemodel_job *job;
};

struct wake {
	cgn_nsec at;
	uint32_t node;
};

struct replay {
	const struct trace *trace;
	const struct replay_cfg *cfg;
	struct replay_result *result;
	cgn_nsec now;
	/* what decides */
	struct cluster *cluster;
	struct cluster_view *view;
	const struct view_model *model;
	struct kvindex *index;
	struct route_record *record;
	struct pending *pending;
	struct heat *heat;
	struct chooser *chooser;
	/* what answers */
	struct replay_server *nodes;
	struct wake *wakes; /* a heap by (at, node): the engines that are at work */
	size_t n_wakes;
	struct tell *tells, **tells_end;
	cgn_nsec next_load;
	uint32_t load_turn; /* node that tells its load next: they do not all do so at once */
	/* requests */
	size_t next;
	uint64_t inflight;
	struct cgn_link flights;
	uint32_t *waiting; /* a ring of max_waiting: requests that nobody had room for */
	size_t waiting_at, n_waiting;
	uint64_t *chain; /* of the request being picked for */
	bool no_memory;  /* sticky */
};

/* fleet.c */
CGN_RC replay_fleet_init(struct replay *r, struct cgn_err *err);
void replay_fleet_fini(struct replay *r);
/* its engine wants to be called then; 0: not at all */
void replay_wake_at(struct replay *r, struct replay_server *n, cgn_nsec at);
/* takes the first of the heap, whose time has come */
uint32_t replay_take_woken(struct replay *r);
void replay_report_blocks(struct replay_server *n); /* what the step changed, on its way */
void replay_report_load(struct replay *r);          /* of the node whose turn it is */
void replay_receive_report(struct replay *r);       /* the first tell arrives */
/* nothing runs, and nobody comes before then */
void replay_idle_until(struct replay *r, cgn_nsec until);
