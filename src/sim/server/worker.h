/* SPDX-License-Identifier: Apache-2.0 */
/* worker: one event loop with an HTTP server and a simulated device of its own (a data-parallel rank, as vLLM
 * would call it). All of it belongs to its loop; other workers are reached by tours (tour.h). */
#pragma once
#include "io/http/http.h"
#include "io/loop/loop.h"
#include "lab/enginemodel/enginemodel.h"
#include "sim/events/publisher.h"
#include "sim/reply/reply.h"
#include "sim/store/store.h"
#include "sim/text/vocab.h"

#define SIM_BODY_MAX ((size_t)64 << 20)

/* vLLM's buckets of time_to_first_token_seconds. */
#define SIM_TTFT_BUCKETS                                                                                   \
	{0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, \
		40.0, 80.0, 160.0, 640.0, 2560.0}
#define SIM_TTFT_N 22

struct sim_counts {
	uint64_t requests;                  /* for an answer, all routes */
	uint64_t success[SIM_FINISH_COUNT]; /* choices by how they ended; abort: the client went */
	/* requests: answered in full, left by the client, answered 4xx or 5xx, struck */
	uint64_t completed, aborted, refused, faulted;
	uint64_t ttft_bucket[SIM_TTFT_N + 1], ttft_n;
	double ttft_sum;
	uint32_t open; /* requests for an answer that are not over */
};

#define SIM_RECENT 64
struct sim_finished_request { /* how one request ended */
	char id[112];
	const char *how;   /* "completed", "aborted", "cut" */
	uint64_t ended_ms; /* Unix time */
	uint64_t after_us; /* since it came */
	uint64_t tokens;   /* sent, or given when not streamed */
};

struct sim_team;
struct sim_call;
struct sim_worker {
	uint32_t tag;
	unsigned rank;
	const struct sim_cfg *cfg;
	struct sim_team *team;
	struct cgn_loop *loop;
	struct http_server *server;
	struct enginemodel *model;
	struct cgn_timer step_timer;
	struct cgn_post again; /* the next turn goes on pumping (chunk_per_write) */
	bool again_posted, running_model;
	bool stopping; /* only what is on its way comes by */
	double scale;  /* real time per virtual time; 0: none */
	cgn_nsec began, virtual_now;
	struct cgn_arena arena; /* of the request being parsed */
	struct cgn_buf scratch; /* of the event or body being written */
	struct sim_faults faults;
	struct sim_reader *reader; /* NULL: the arithmetic vocabulary */
	struct sim_events events;
	struct sim_publisher *publisher;  /* NULL: no KV events */
	struct sim_store *store;          /* NULL: none */
	struct enginemodel_listener tell; /* events, which the store's listener hands on to */
	bool filling;                     /* what is stored now was not computed */
	struct cgn_link calls, dirty;
	uint64_t id_seed, id_count;
	struct sim_counts counts;
	struct sim_finished_request recent[SIM_RECENT];
	uint64_t n_past;
};

/* What all workers share; written before they start, except where atomics say otherwise. */
struct sim_team {
	const struct sim_cfg *cfg;
	struct sim_worker *workers;
	unsigned n;
	unsigned port; /* that all listen on */
	cgn_nsec started;
	struct cgn_str *models;  /* quoted JSON of each name */
	struct sim_vocab *vocab; /* NULL: the arithmetic one */
};

/* On the worker's own loop (or before it runs). */
CGN_RC sim_worker_start(struct sim_worker *w, struct sim_team *team, unsigned rank, struct cgn_err *err);
void sim_worker_stop(struct sim_worker *w); /* cuts what is open; the loop can end */
void sim_worker_fini(struct sim_worker *w); /* after its loop ended */
/* Let the device do what it would have done by now, and send what it gave. Safe to call from anywhere on the
 * loop. */
void sim_worker_run(struct sim_worker *w);
/* 32 hexadecimal digits, unlike any other. */
void sim_worker_new_id(struct sim_worker *w, char out[33]);

/* call.c */
extern const struct http_server_ops sim_call_ops;
void sim_call_progress(
	const struct enginemodel_progress *g); /* bookkeeping alone: closes and frees nothing */
void sim_call_pump(struct sim_call *c);
struct sim_call *sim_call_of_dirty(struct cgn_link *l);
