/* SPDX-License-Identifier: Apache-2.0 */
/* State shared by the files of replay. replay.c: time, arrivals and choices. fleet.c: the nodes and their
 * reports to the router. waiting.c: requests that no node has room for. pools.c: the decode legs of requests
 * whose prompt another node computed. stores.c: the block stores of nodes whose engines end. energy.c: the nodes' power, what the router learns of it, and parking. */
#pragma once
#include "lab/enginemodel/enginemodel.h"
#include "lab/replay/replay.h"
#include "policy/fleet/autoscale/load.h"
#include "policy/power/energy/meter.h"
#include "policy/route/admission/admission.h"
#include "policy/route/chooser/chooser.h"
#include "policy/route/quote/quote.h"

struct replay;

enum replay_power {
	REPLAY_AWAKE,
	REPLAY_LEAVING /* To be parked when it is idle. */,
	REPLAY_PARKED,
	REPLAY_WAKING
};

/* The power of a node. */
struct replay_draw {
	enum replay_power state;
	cgn_nsec since, ready; /* |ready|: when a waking node takes requests. */
	double joules;         /* So far, but for the idle time since |idle_from|. */
	cgn_nsec idle_from;    /* No step is under way since then; 0: one is. */
	struct energy_counter counter;
	struct energy_meter meter;
	uint32_t prompts, streams;
	uint64_t prompt_tokens;
	double asked_s; /* Time that the prompts of the last second take to compute. */
};

/* Totals at the end of each second, and the instants at which replicas went. */
struct replay_second {
	uint64_t prompt_blocks, cached_blocks;
};
#define REPLAY_LATE 256 /* Times that a percentile is made of. */
struct replay_scaling {
	struct autoscale state;
	struct autoscale_season season;
	struct autoscale_node *nodes;       /* Owned. */
	struct replay_second now, *seconds; /* Owned; grown as time passes. */
	size_t n_seconds, max_seconds;
	cgn_nsec *went; /* Owned; grown. */
	size_t n_went, max_went;
	cgn_nsec ttft[REPLAY_LATE], itl[REPLAY_LATE], ttft_at[REPLAY_LATE];
	size_t n_ttft, n_itl; /* Ever. */
	uint64_t random;
};

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

/* A request at a cluster. */
struct replay_call {
	const struct trace_request *request; /* Borrowed. */
	cgn_nsec came;                       /* When its client sent it. */
	void *foreign; /* The other cluster's call (replay_hooks); NULL: a client sent the request. */
	bool goes_on; /* The client has the beginning of the answer: neither hits nor the first token count. */
};

/* Called where other clusters take part. */
struct replay_hooks {
	/* A request came: may it leave for another cluster? True: it has left. */
	bool (*leaves)(void *user, struct replay *r, const struct replay_call *c);
	/* The answer to a request of another cluster: its tokens so far, and how many tokens of the prompt were cached. */
	void (*token)(void *user, struct replay *r, void *foreign, const struct enginemodel_progress *g);
	/* The engine refused it. */
	void (*refused)(void *user, struct replay *r, void *foreign);
	void *user;
};

enum replay_leg { REPLAY_WHOLE, REPLAY_PREFILL, REPLAY_DECODE };

/* The quote of a request, from when it arrived. */
struct replay_quoted {
	bool made;
	struct quote quote;
};

/* A request between its choice of a node and its last token. */
struct replay_flight {
	struct cgn_link link; /* In r->flights; r->computed between its legs; r->moving during a transfer. */
	enum replay_leg leg;
	struct chooser_source from; /* As in struct chooser_ask, of a split request. */
	uint64_t handoff;
	uint32_t prefill_node;
	cgn_nsec arrives; /* End of the transfer. */
	struct replay_call call;
	struct chooser_ticket ticket;
	uint32_t node;
	cgn_nsec first, last;
	struct enginemodel_job *job;
	struct replay_quoted quoted;
	double from_j, joules; /* See energy_meter: a sum at the phase's begin, and the joules so far. */
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
	struct energy_park park;
	struct replay_scaling scaling;
	struct replay_stores stores;
	double *second_w; /* Joules of all nodes beyond idle, by second; grown as time passes. */
	size_t n_seconds;
	cgn_nsec next_second;
	bool pressed; /* A request of the last second had to wait for others for half of its objective. */
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
	struct cgn_link flights;
	struct cgn_link computed; /* Prompts that wait for a decode node with room. */
	struct cgn_link moving;   /* By |arrives|. */
	struct admission *admission;
	struct cgn_link decided;   /* Waiters that have a verdict. */
	struct quote_book *quotes; /* NULL: none are made. */
	cgn_nsec wait;             /* Predicted for the next request that waits. */
	uint64_t *chain;           /* Digests of the request being placed. */
	bool no_memory;            /* Sticky. */
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
/* Choose a node for the request and submit it there. |quoted|: its quote, if it was made before. False: every node is at
 * its limit. */
bool replay_send(struct replay *r, const struct replay_call *c, const struct replay_quoted *quoted);

/* Submit |f| to its node. |blocks|: full blocks of r->chain. */
void replay_submit(struct replay *r, struct replay_flight *f, uint32_t blocks);
uint32_t replay_node_of(const struct replay *r, uint16_t slot);

/* energy.c: nothing happens without a GPU. */
void energy_open(struct replay *r);
void energy_close(struct replay *r);
/* A step of the node begins, or its engine is idle from now on. */
void energy_step(struct replay *r, struct replay_server *n, cgn_nsec until);
/* A request is at its node; its prompt is computed; it has ended. */
void energy_came(struct replay *r, struct replay_flight *f);
void energy_picked(struct replay *r, const struct chooser_pick_result *p);
void energy_first(struct replay *r, struct replay_flight *f);
void energy_left(struct replay *r, struct replay_flight *f);
void energy_second(struct replay *r); /* Read the counters, and park and wake nodes. */
void energy_sum_up(struct replay *r);

/* quotes.c: nothing happens without cfg->quotes. */
void quotes_open(struct replay *r);
/* Quote the request of |ask|, if it was not quoted before. */
void quotes_make(struct replay *r, const struct chooser_ask *ask, const struct chooser_pick_result *p,
	bool waits, struct replay_quoted *out);
/* The first token came; the request left its node; it is answered. */
void quotes_first(struct replay *r, const struct replay_flight *f);
void quotes_left(struct replay *r, const struct replay_flight *f, double joules);
void quotes_done(struct replay *r, const struct replay_flight *f, uint64_t tokens);

/* Change the node's power. */
void energy_node_power(struct replay *r, struct replay_server *n, enum replay_power to);
/* Let nodes whose time has come leave or take requests. */
void energy_nodes_follow(struct replay *r);

/* scale.c: nothing happens unless the configuration says so. */
CGN_RC scale_open(struct replay *r, struct cgn_err *err);
void scale_close(struct replay *r);
void scale_prompt(struct replay *r, uint32_t blocks, uint32_t cached); /* A prompt was computed. */
void scale_ttft(struct replay *r, cgn_nsec took);
void scale_itl(struct replay *r, cgn_nsec took);
void scale_went(struct replay *r); /* A replica's engine has ended. */
void scale_second(struct replay *r);
void scale_sum_up(struct replay *r);

/* stores.c: nothing happens without cfg->stores. */
CGN_RC stores_open(struct replay *r, struct cgn_err *err);
void stores_close(struct replay *r);
/* The engine of the node is about to end: save its cache. */
void stores_save(struct replay *r, struct replay_server *n);
/* A prompt with the first |blocks| of r->chain came to the node: fetch what only stores have. */
void stores_fetch(struct replay *r, struct replay_server *n, uint32_t blocks);

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
