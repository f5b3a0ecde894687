/* SPDX-License-Identifier: Apache-2.0 */
/* State shared by the files of replay. replay.c: time, arrivals and choices. fleet.c: the nodes and their
 * reports to the router. waiting.c: requests that no node has room for. pools.c: the decode legs of requests
 * whose prompt another node computed. stores.c: the block stores of nodes whose engines end. arms.c: requests that follow another policy.
 * energy.c: the nodes' power, what the router learns of it, and parking. */
#pragma once
#include "lab/replay/energy_priv.h"
#include "lab/replay/flight_priv.h"
#include "lab/replay/replay.h"
#include "lab/replay/scale_priv.h"
#include "policy/route/admission/admission.h"
#include "policy/route/arms/unit.h"
#include "policy/route/chooser/chooser.h"

struct replay;

/* Block stores: what each node's engine had in its cache when it ended last. */
struct replay_stores {
	struct kvindex *index;
	struct kvindex_reader *reader;
	uint16_t *nodes; /* Owned: numbers in |index|. */
};

/* A node: its engine, and the changes of the step under way. */
struct replay_server {
	struct replay *r;
	struct cluster_node *node;
	struct enginemodel *engine;
	cgn_nsec wake_at; /* Time of the engine's next step; 0: idle. */
	uint64_t seq;
	struct cgn_buf digests, tiers;
	struct replay_node *counts; /* Borrowed from the result. */
	cgn_nsec link_free;         /* Time when the node's last transfer ends. */
	struct replay_draw draw;
};

/* A report on its way from a node to the router. All reports take equally long, so a queue keeps them in
 * order. */
struct replay_report {
	struct replay_report *next;
	cgn_nsec at;
	uint32_t node;
	bool is_load;
	Cognitora__V1__Load load;
	size_t n;
	uint8_t *tiers; /* Stored behind the digests. */
	uint64_t digests[];
};

struct replay_wake {
	cgn_nsec at;
	uint32_t node;
};

struct replay {
	const struct trace *trace;
	const struct replay_cfg *cfg;
	struct replay_result *result;
	const struct replay_hooks *hooks; /* NULL: there is one cluster. */
	uint32_t longest;                 /* Blocks of the longest prompt of other clusters. */
	cgn_nsec now;
	/* The router's state, which decides. */
	struct cluster *cluster;
	struct cluster_view *view;
	const struct view_model *model;
	struct kvindex *index;
	struct route_record *record;
	struct pending *pending;
	struct hotprefix *hotprefix;
	struct transfer *transfer;
	struct energy_board *energy; /* NULL: energy is not counted. */
	struct energy_pools park;
	struct replay_scaling scaling;
	struct replay_stores stores;
	double *second_w; /* Joules of all nodes beyond idle, by second; grown as time passes. */
	size_t n_seconds;
	cgn_nsec budget_wait; /* Requests that wait for the budget of power are not tried before. */
	cgn_nsec next_second;
	struct chooser *chooser;
	/* The engines, which answer. */
	struct replay_server *nodes;
	struct replay_wake *wakes; /* Heap by (at, node) of the engines at work. */
	size_t n_wakes;
	struct replay_report *reports, **reports_end;
	cgn_nsec next_load;
	uint32_t load_turn; /* Node whose load is reported next; nodes report one after the other. */
	/* Index of the next request of the trace. */
	size_t next;
	uint64_t inflight;
	struct replay_flights flights;
	struct admission *admission;
	struct cgn_link decided;   /* Waiters that have a verdict. */
	struct quote_book *quotes; /* NULL: none are made. */
	struct arms *arms;         /* NULL: all requests follow one policy. */
	struct unit_counts *units;
	cgn_nsec wait;   /* Predicted for the next request that waits. */
	uint64_t *chain; /* Digests of the request being placed. */
	uint64_t itl_seen,
		itl_every; /* Every |itl_every|th time between tokens is kept, at most SAMPLES_MAX. */
	bool no_memory;    /* Sticky. */
};

/* fleet.c */
CGN_RC replay_fleet_init(struct replay *r, struct cgn_err *err);
void replay_fleet_fini(struct replay *r);
/* Schedule the next step of the node's engine; 0: the engine is idle. */
void replay_wake_at(struct replay *r, struct replay_server *n, cgn_nsec at);
/* Remove the first engine of the heap, which is due, and return its node. */
uint32_t replay_take_woken(struct replay *r);
void replay_report_blocks(struct replay_server *n); /* Queue a report of the blocks that the step changed. */
/* Queue a report of the load of the node whose turn it is. */
void replay_report_load(struct replay *r);
void replay_receive_report(struct replay *r); /* Deliver the first report to the router's state. */
/* Skip reports until |until|: nothing runs, and no request arrives before then. */
void replay_idle_until(struct replay *r, cgn_nsec until);

/* replay.c */
/* Make |r|, zeroed but for trace, cfg, result and hooks, ready for its first event. replay_close in any case. */
CGN_RC replay_open(struct replay *r, struct cgn_err *err);
void replay_close(struct replay *r);
bool replay_is_over(const struct replay *r);     /* No request is in flight, waits, or is to come. */
cgn_nsec replay_next_at(const struct replay *r); /* When the next event is due. */
void replay_turn(struct replay *r);              /* Play the next event. */
/* Give the request to a node, or let it wait, or refuse it. */
void replay_place(struct replay *r, const struct replay_call *c);
struct chooser_ask replay_ask(struct replay *r, const struct trace_request *q);
enum replay_sent {
	REPLAY_SENT,
	REPLAY_FULL,        /* Every node is at its limit. */
	REPLAY_OVER_BUDGET, /* The budget of power has no room for it now. */
	REPLAY_NEVER        /* Not even alone would it fit into the budget. */
};
/* Choose a node for the request and submit it there. |quoted|: its quote, if it was made before. */
enum replay_sent replay_send(struct replay *r, const struct replay_call *c,
	const struct replay_quoted *quoted);

/* Submit |f| to its node. |blocks|: full blocks of r->chain. */
void replay_submit(struct replay *r, struct replay_flight *f, uint32_t blocks);
uint32_t replay_node_of(const struct replay *r, uint16_t slot);

/* stores.c: nothing happens without cfg->stores. */
CGN_RC stores_open(struct replay *r, struct cgn_err *err);
void stores_close(struct replay *r);
/* The engine of the node is about to end: save its cache. */
void stores_save(struct replay *r, struct replay_server *n);
/* A prompt with the first |blocks| of r->chain came to the node: fetch what only stores have. */
void stores_fetch(struct replay *r, struct replay_server *n, uint32_t blocks);

/* hours.c: the first tokens and joules of each hour. */
void hours_ttft(struct replay *r, cgn_nsec came, cgn_nsec took);
void hours_sum_up(struct replay *r);

/* arms.c: nothing happens without cfg->arms. */
void replay_arms_open(struct replay *r);
void replay_arms_close(struct replay *r);
/* Give the request its arm, and let |ask| follow it. */
struct arms_seat replay_arms_seat(struct replay *r, const struct trace_request *q, struct chooser_ask *ask);
/* The request ended: |f| has given |tokens|. */
void replay_arms_end(struct replay *r, const struct replay_flight *f, uint64_t tokens);
void replay_arms_sum_up(struct replay *r);

/* pools.c */
/* Return true if requests may be split. */
bool pools_exist(const struct replay *r);
/* The prompt of |f| is computed: choose a decode node, and move the KV there. */
void pools_prompt_done(struct replay *r, struct replay_flight *f);
/* Find decode nodes for computed prompts that there is room for now. */
void pools_serve(struct replay *r);
/* Return when the next transfer ends; UINT64_MAX: there is none. */
cgn_nsec pools_next(const struct replay *r);
/* Submit the request whose transfer ends now to its decode node. */
void pools_arrive(struct replay *r);

/* waiting.c */
void waiting_open(struct replay *r);
void waiting_close(struct replay *r);
/* Put the request into the queue, or refuse it. */
void waiting_add(struct replay *r, const struct replay_call *c);
/* Send the waiting requests that there is room for now. */
void waiting_serve(struct replay *r);
/* Return whether the request is refused because it misses its deadline. */
bool waiting_misses_deadline(struct replay *r, const struct trace_request *q);
