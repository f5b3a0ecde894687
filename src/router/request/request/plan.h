/* SPDX-License-Identifier: Apache-2.0 */
/* plan: how a request is to be answered: its legs, its place in the queue, its reservations, and the
 * predictions of the choice of its node. The folder plan/ owns it. */
#pragma once
#include "policy/answer/plan/plan.h"
#include "policy/route/admission/admission.h"
#include "policy/route/arms/arms.h"
#include "policy/route/explain/explain.h"
#include "policy/route/peer/trust.h"
#include "policy/route/quote/quote.h"
#include "policy/route/routing/answerhome.h"
#include "policy/who/budget/budget.h"
#include "router/shared/misfit/misfit.h"

struct gw_cascade; /* request/cascade.h */
struct gw_bids;    /* bid/bid.h */
struct gw_handoff; /* plan/handoff.c */
struct gw_limits;  /* limit/limit_priv.h */
struct gw_peer;    /* router/shared/peers */
struct gw_ticket;  /* admission/admission.h */

/* Knowledge of the chosen node's cache at the pick, to compare with the engine's numbers at the end. */
struct gw_prediction {
	double length;          /* length of a chain of bytes, in blocks */
	struct prompttail tail; /* tail of a prompt that ended with chain[held - 1] */
	uint64_t node;          /* hash of the node's id */
	uint64_t last;          /* digest of the last full block; 0: none */
	const uint64_t *chain;  /* the held part, in the request's arena; NULL: not needed */
	uint32_t kv_block;      /* tokens in a block of the engine; 0: unknown */
	bool fed;        /* the node publishes KV events: whole blocks are held and nothing behind them */
	uint64_t cached; /* predicted cached tokens, once the engine counted the prompt */
};

enum gw_quote_state {
	GW_QUOTE_READY,  /* a node has room */
	GW_QUOTE_QUEUED, /* a node has room, but requests of the same model wait for it */
	GW_QUOTE_FULL,   /* no node has room */
	GW_QUOTE_NO_NODE /* no node is ready; nothing is known */
};
/* The quote of the request, made before it was sent. */
struct gw_quoted {
	enum gw_quote_state state;
	struct quote quote;
	const char *node; /* node that would have got it; NULL: it would have waited */
	uint32_t waiting; /* requests of the model that waited */
	uint64_t cached;  /* predicted cached tokens */
	double coverage;
	double before_ms;             /* part of the time to first byte before the request is sent */
	double actual[QUOTE_FIGURES]; /* the figures as they turned out; -1: not known */
	struct cgn_str text;          /* the quote, when the client asks for it */
};

/* Pairs of nodes that a request is given to, at most; then one node computes it, if one can. */
#define GW_PREFILLS_MAX PLAN_PREFILLS

/* Leaving for a peer (plan/away.c). */
struct gw_away {
	struct gw_peer *peer; /* the peer that has the request, until it was paid; NULL: none */
	struct budget_held held;
	uint32_t tried;                /* bits of the peers that gave no answer, by place in the table */
	uint64_t money;                /* price that was paid, in the parts that policy/who/budget counts */
	struct gw_bids *bids;          /* bid/bid.h; NULL: the request was not to leave */
	struct peer_forecast forecast; /* expected by the peer's summary; not known: it was not used */
	struct peer_shown shown;       /* seen in the peer's answer */
};

#define GW_SUSPECTS 4 /* Nodes that failed one request and are kept in mind; further ones are not blamed. */

struct gw_plan {
	struct plan legs;
	uint16_t tried[PLAN_MAX_ATTEMPTS]; /* slots, for the chooser */
	uint16_t *excluded;                /* with those of engines that lack the path; NULL: none yet */
	size_t excluded_cap;
	struct gw_suspect suspects[GW_SUSPECTS];
	size_t n_suspects;
	uint64_t mark; /* hash by which the request is known if it fails (plan/refused.c); 0: none yet */
	cgn_nsec
		looked_at; /* when a refused model was first looked for on other nodes (plan/refused.c); 0: not so */
	struct gw_prediction prediction; /* prediction of the last pick */
	cgn_nsec pick_took;
	struct arms_seat seat;    /* the policy that the request follows */
	bool seated;              /* |seat| was asked for */
	struct answerhome home;   /* node that stored the answer which this request continues */
	bool limited;             /* GW_LIMIT has passed */
	uint64_t prompt_tokens;   /* tokens of the prompt, as expected before an engine counts */
	uint64_t prompt_most;     /* tokens that the prompt can have at most; 0: no bound is known */
	struct gw_limits *limits; /* reserved; NULL: none applies */
	/* ticket while the request waits, and until the place that it got is booked */
	struct gw_ticket *ticket;
	cgn_nsec queued_at; /* 0: never queued */
	/* place of the request among those of its tenant: hash of the model that it counts for; 0: none. plan/place.h */
	uint64_t place;
	cgn_nsec queued; /* total time spent waiting */
	struct admission_forecast ttft;
	double barred_w, never_w; /* route_ask has them, of the last pick. */
	struct gw_away away;
	bool renamed;    /* the current leg's node serves the model under another name */
	bool budgeted;   /* counted by the retry budget */
	bool backed_off; /* the pause before this leg is over */
	/* The decision between one node and two, once legs.staged is set. */
	struct chooser_split split;
	bool split_told;            /* The decision was recorded. */
	struct gw_handoff *handoff; /* plan/handoff.c; NULL: no engine hands the prompt to another one */
	/* slots of prefill nodes that failed this request */
	uint16_t prefill_failed[GW_PREFILLS_MAX];
	size_t n_prefill_failed;
	unsigned pairs; /* times that the request was given to a pair of nodes */
	/* the node of a prefill leg that ended well beside the decode leg, and the time that it took; NULL: none */
	const char *beside_node;
	cgn_nsec beside_took;
	struct gw_cascade *
		cascade; /* in the request's arena; NULL: the model has no smaller ones that are asked first */
	bool handed;     /* the current leg takes over a prompt that another engine computed */
	const char *disagg;       /* outcome label of cgn_disagg_total; NULL: not considered */
	struct gw_quoted *quoted; /* in the request's arena; NULL: none was made */
	uint64_t explain_number;  /* number in the explain ring; 0: none yet */
	char *explain_room;
	struct cgn_str explain_text; /* the last decision, when the client asks for it */
};
