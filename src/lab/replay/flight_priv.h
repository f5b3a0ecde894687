/* SPDX-License-Identifier: Apache-2.0 */
/* flight: a request of the replay, from its choice of a node to its last token, and its quote. */
#pragma once
#include "lab/enginemodel/enginemodel.h"
#include "policy/route/arms/arms.h"
#include "policy/route/chooser/chooser.h"
#include "policy/route/quote/quote.h"

struct replay;
struct trace_request;

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
	struct cgn_link link; /* In one of r->flights. */
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
	struct arms_seat seat;
	uint32_t cached;       /* Tokens of the prompt that the engine had. */
	double from_j, joules; /* See energy_meter: a sum at the phase's begin, and the joules so far. */
};

/* Requests that have a node. */
struct replay_flights {
	struct cgn_link open;     /* A node has a leg. */
	struct cgn_link computed; /* Prompts that wait for a decode node with room. */
	struct cgn_link moving;   /* Prompts that are transferred, by |arrives|. */
};

/* quotes.c: nothing happens without cfg->quotes. */
void quotes_open(struct replay *r);
/* Quote the request of |ask|, if it was not quoted before. */
void quotes_make(struct replay *r, const struct chooser_ask *ask, const struct chooser_pick_result *p,
	bool waits, struct replay_quoted *out);
/* The first token came; the request left its node; it is answered. */
void quotes_first(struct replay *r, const struct replay_flight *f);
void quotes_left(struct replay *r, const struct replay_flight *f, double joules);
void quotes_done(struct replay *r, const struct replay_flight *f, uint64_t tokens);
