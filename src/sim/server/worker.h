/* SPDX-License-Identifier: Apache-2.0 */
/* worker: one event loop with its own HTTP server and simulated device (a data-parallel rank in vLLM's
 * terms). A worker belongs to its loop; other workers are reached with sim_gather_start. */
/* server, the room: a worker of the simulated engine, its HTTP routes, and its LoRA adapters. */
#pragma once
#include "io/os/loop/loop.h"
#include "io/wire/http/server.h"
#include "lab/enginemodel/enginemodel.h"
#include "sim/events/publisher.h"
#include "sim/handoff/handoff.h"
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
	uint64_t requests;                  /* Requests for an answer, all routes. */
	uint64_t success[SIM_FINISH_COUNT]; /* Choices by finish reason; abort: the client closed. */
	/* Requests answered in full, closed by the client, answered with 4xx or 5xx, ended by a fault. */
	uint64_t completed, aborted, refused, faulted;
	uint64_t ttft_bucket[SIM_TTFT_N + 1], ttft_n;
	double ttft_sum;
	uint32_t open; /* Requests for an answer that are not finished. */
};

#define SIM_RECENT 64
struct sim_finished_request { /* The end of one request. */
	char id[112];
	const char *how;   /* "completed", "aborted", "cut". */
	uint64_t ended_ms; /* Unix time. */
	uint64_t after_us; /* Time since its arrival. */
	uint64_t tokens;   /* Tokens sent, or given when not streamed. */
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
	struct cgn_post again; /* Continues pumping in the next turn (chunk_per_write). */
	bool again_posted, running_model;
	bool stopping; /* Runs only the requests under way. */
	double scale;  /* Real time per virtual time; 0: no waiting. */
	cgn_nsec began, virtual_now;
	struct cgn_arena arena; /* For the request being parsed. */
	struct cgn_buf scratch; /* For the event or body being written. */
	struct sim_faults faults;
	struct sim_reader *reader; /* NULL: the computed vocabulary. */
	struct sim_events events;
	struct sim_publisher *publisher;  /* NULL: no KV events. */
	struct sim_store *store;          /* NULL: none. */
	struct sim_handoff *handoff;      /* NULL: none. */
	struct enginemodel_listener tell; /* Listener of the events, called by the store's listener. */
	bool filling;                     /* Blocks that become cached now were not computed. */
	struct cgn_link calls, dirty;
	uint64_t id_seed, id_count;
	struct sim_counts counts;
	struct sim_finished_request recent[SIM_RECENT];
	uint64_t n_past;
};

/* State shared by all workers; written before they start, except for atomics. */
struct sim_team {
	const struct sim_cfg *cfg;
	struct sim_cfg *loras; /* The same, for the routes that load LoRAs; NULL: there are none. */
	struct sim_worker *workers;
	unsigned n;
	unsigned port;                   /* Port that all workers listen on. */
	char host[HANDOFF_HOST_MAX + 1]; /* Host of the side channel, as other simulators reach it. */
	cgn_nsec started;
	struct cgn_str *models;  /* Quoted JSON of each name. */
	struct sim_vocab *vocab; /* NULL: the computed vocabulary. */
	int books;               /* File of --books; -1: none. */
	_Atomic bool asleep;     /* Requests are refused until it is woken. */
};

/* Call on the worker's loop, or before it runs. */
CGN_RC sim_worker_start(struct sim_worker *w, struct sim_team *team, unsigned rank, struct cgn_err *err);
void sim_worker_stop(struct sim_worker *w); /* Cut open requests, so that the loop can end. */
void sim_worker_fini(struct sim_worker *w); /* Call after the worker's loop ended. */
/* Run the device up to the current time and send what it produced. May be called anywhere on the loop. */
void sim_worker_run(struct sim_worker *w);
/* Write a unique id of 32 hexadecimal digits. */
void sim_worker_new_id(struct sim_worker *w, char out[33]);

/* call.c and generate.c */
extern const struct http_server_ops sim_call_ops;
void sim_call_progress(
	const struct enginemodel_progress *g); /* Records progress; closes and frees nothing. */
void sim_call_pump(struct sim_call *c);
struct sim_call *sim_call_of_dirty(struct cgn_link *l);
