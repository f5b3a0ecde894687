/* SPDX-License-Identifier: Apache-2.0 */
/* State of one HTTP request. call.c: from its head to its end. routes.c: short answers. generate.c: generated answers. */
#pragma once
#include "sim/reply/vectors.h"
#include "sim/server/gather.h"

#define SIM_CALL_TAG 0x51b0ca11U
#define SIM_NO_LIMIT UINT32_MAX

struct sim_call {
	uint32_t tag;
	struct sim_worker *w;
	struct http_exchange *x; /* NULL: closed; the call is freed after this turn. */
	const struct sim_route *route;
	struct cgn_link link; /* In the worker's list of calls. */
	struct cgn_link dirty;
	struct cgn_grave grave;
	struct cgn_buf body;
	struct sim_gather *gather;
	struct sim_load *load;   /* Lookup of the prompts in the store; NULL: none. */
	struct sim_fetch *fetch; /* The decode leg's prompt from another engine; NULL: none. */
	char given[SIM_HANDOFF_ID_MAX +
		1]; /* Id of the prompt that is computed for another engine; empty: none. */
	struct cgn_buf handed;
	cgn_nsec came;
	bool even_running; /* Parameter of a reset. */
	bool too_large, counted, head_sent, done, struck, truncate, first_seen;
	uint32_t events;
	/* Members of generating calls. */
	struct sim_verdict verdict;
	uint32_t limit; /* Tokens of the first choice at which a fault strikes. */
	struct cgn_timer cut;
	struct sim_reply reply;
	char *strings;          /* Owned: script, tool name and stop string. */
	struct sim_slot *slots; /* Owned, one for each choice; the choices are stored behind them. */
	uint32_t unfinished;    /* Choices that the model still works on. */
};

struct sim_slot {
	struct sim_call *call;
	struct enginemodel_job *job; /* NULL: finished. */
	uint32_t choice;
};

struct sim_route {
	const char *method, *path;
	void (*run)(struct sim_call *c);
	enum sim_api api;
	sim_vector_fn vector;
	bool inference; /* Faults and slow start apply, and requests are counted. */
};

/* routes.c */

/* Answer with a JSON body and end the call. */
void sim_call_answer(struct sim_call *c, int status, struct cgn_str body);
/* Answer with an error body and count the call as refused. */
void sim_call_refuse(struct sim_call *c, const struct sim_refusal *no);
void sim_call_refuse_as(struct sim_call *c, int status, const char *why);
void sim_route_health(struct sim_call *c);
void sim_route_version(struct sim_call *c);
void sim_route_models(struct sim_call *c);
void sim_route_metrics(struct sim_call *c);
void sim_route_state(struct sim_call *c);
void sim_route_reset(struct sim_call *c);
void sim_route_handoff(struct sim_call *c); /* Fetch of a prompt by another simulator. */
void sim_route_ranks(struct sim_call *c);   /* Mooncake's bootstrap server. */
void sim_route_blocks(struct sim_call *c);
void sim_route_fill(struct sim_call *c);
void sim_route_clock(struct sim_call *c);
void sim_route_faults(struct sim_call *c);
void sim_route_vector(struct sim_call *c);

/* routes.c: sleep and wake. Asleep, the cache is empty and requests are refused. */
void sim_route_sleep(struct sim_call *c);
void sim_route_wake(struct sim_call *c);
/* lora.c */
void sim_route_lora_load(struct sim_call *c);
void sim_route_lora_unload(struct sim_call *c);

/* generate.c */

void sim_route_generate(struct sim_call *c);
/* Queue the call for the next pump of its worker. */
void sim_call_mark_dirty(struct sim_call *c);
/* Abort the choices that the model still works on. */
void sim_call_drop_jobs(struct sim_call *c);
/* Timer callback: cut the connection, or exit when the fault is die-after. */
void sim_call_cut(struct cgn_timer *t);
