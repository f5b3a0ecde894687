/* SPDX-License-Identifier: Apache-2.0 */
/* State shared by the files of federation. federation.c: the clusters, time, and the messages under way
 * between them. fedcall.c: requests that leave. fedpeer.c: heartbeats and summaries. */
#pragma once
#include "lab/replay/federation.h"
#include "lab/replay/replay_priv.h"
#include "lab/replay/wan.h"
#include "policy/route/peer/summary.h"

/* A request that left cluster |from| for |to|. Kept until the end. */
struct federation_call {
	struct cgn_link all, open; /* |open|: in the peer's list until the call is over. */
	uint8_t from, to;
	bool over, begun; /* |begun|: the first byte is at |from|. */
	uint8_t hops;     /* Clusters that the request has left. */
	uint32_t tried;   /* Clusters that do not get the request from |from| again, a bit each. */
	struct replay_call own;
	struct federation_call *parent; /* By which the request came to |from|; NULL: from a client. */
	struct peer_forecast forecast;
	struct peer_shown shown;
	cgn_nsec sent_at, first_at;
	uint32_t given;            /* Tokens of the answer. */
	struct trace_request rest; /* The request to continue the answer with at |from|. */
};

/* Knowledge of a cluster about another one. */
struct federation_peer {
	bool lost;
	cgn_nsec rtt, ttft, rest_until;
	cgn_nsec heard; /* When the last token of an answer came from there. */
	uint32_t open;
	struct cgn_link calls;
	struct peer_trust trust;
	struct peer_known known; /* With a reference. */
	bool told;
	struct peer_load load;
	cgn_nsec valid_to;
	uint32_t open_then;
	uint64_t question; /* Number of the last one; an answer to another one is too late. */
};

struct federation_cluster {
	struct replay r;
	struct replay_result result;
	struct trace trace; /* Owns its requests. */
	struct federation_peer peers[FEDERATION_CLUSTERS];
	struct peer_journal journal;
};

enum federation_kind {
	FEDERATION_REQUEST, /* A request is at its peer. */
	FEDERATION_REFUSED, /* The next four go back to |from|: the peer has no room; */
	FEDERATION_FIRST,   /* the first byte, with |number| tokens found in cache; */
	FEDERATION_DONE,    /* the end; */
	FEDERATION_BROKEN,  /* the answer broke off. */
	FEDERATION_TIMEOUT, /* There should be a first byte by now. */
	FEDERATION_BEAT,    /* |from| is to ask |to| whether it is there. */
	FEDERATION_BEAT_BACK,
	FEDERATION_BEAT_LOST,
	FEDERATION_ASK, /* |from| is to ask |to| for its summary. */
	FEDERATION_ASKED,
	FEDERATION_ANSWER,
	FEDERATION_ASK_LATE,
	FEDERATION_TELL, /* |from| is to make its set. */
	FEDERATION_KINDS
};
struct federation_message {
	cgn_nsec at;
	uint64_t order; /* Messages of the same time go in the order of sending. */
	enum federation_kind kind;
	uint8_t from, to;
	struct federation_call *call;
	uint64_t number, question;
	struct cgn_buf body; /* Owned. */
};

struct federation {
	const struct federation_cfg *cfg;
	struct federation_result *out;
	struct federation_cluster *v;
	struct replay_hooks hooks;
	struct wan wan;
	cgn_nsec now;
	struct federation_message *heap; /* Owned. */
	size_t n, cap;
	uint64_t order;
	struct cgn_link calls; /* All. */
	size_t open;           /* Calls that are not over. */
	double blocks_told;    /* Sum over the summaries. */
	struct {
		cgn_nsec second;
		uint64_t n;
	} counts[FEDERATION_CUTS]; /* Requests over the way of each cut in a second. */
	bool no_memory;
};

/* federation.c */
/* Queue |m|, whose body is taken. |at| UINT64_MAX: it never comes. */
void federation_push(struct federation *f, struct federation_message m);
struct federation_message federation_to(enum federation_kind kind, uint32_t from, uint32_t to, cgn_nsec at);

/* fedcall.c */
struct replay_hooks fedcall_hooks(struct federation *f);
void fedcall_receive(struct federation *f, const struct federation_message *m);
/* Cluster |from| takes |to| for lost. */
void fedcall_lost(struct federation *f, uint32_t from, uint32_t to);

/* fedpeer.c */
void fedpeer_begin(struct federation *f);
void fedpeer_receive(struct federation *f, struct federation_message *m);
void fedpeer_end(struct federation *f);
