/* SPDX-License-Identifier: Apache-2.0 */
/* record: a decision, with the facts that were known of each candidate, and the end of a request. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/str.h"
#include "policy/route/chooser/chooser.h"
#include "policy/route/quote/quote.h"

#define EXPLAIN_CANDS   16
#define EXPLAIN_SHADOWS 8
#define EXPLAIN_PEERS   8
/* Bytes of an id or of a model's or node's name; longer ones are cut. */
#define EXPLAIN_TEXT 128

enum explain_field {
#define FIELD(id, kind, member) EXPLAIN_##id,
#include "policy/route/explain/fields.def"
#undef FIELD
	EXPLAIN_FIELDS
};
enum explain_phase {
#define PHASE(id, member) EXPLAIN_PHASE_##id,
#include "policy/route/explain/phases.def"
#undef PHASE
	EXPLAIN_PHASES
};
union explain_number {
	uint32_t u;
	float f;
};

/* Why a candidate could or could not be chosen. */
enum explain_why {
	EXPLAIN_ELIGIBLE,
	EXPLAIN_FULL,
	EXPLAIN_TRIED,
	EXPLAIN_BREAKER,
	EXPLAIN_ROLE,
	EXPLAIN_HANDOFF,
	EXPLAIN_BARRED, /* Left out by rules for energy. */
	EXPLAIN_WHYS
};

struct explain_cand {
	struct cgn_str node;
	enum explain_why why;
	union explain_number v[EXPLAIN_FIELDS];
};

/* The choice of another policy. */
struct explain_shadow {
	const char *policy;
	struct cgn_str node; /* Empty: no node. */
	bool agrees;
	/* Predicted cost of the chosen node less that of this one; above 0: this one was cheaper. */
	float believed_ms;
	uint32_t held; /* Blocks held at this node. */
};

/* The costs of computing a request on one node or on two (chooser_split). Milliseconds; infinite: not possible. */
struct explain_split {
	const char *shape, *why; /* Constant strings; |shape| NULL: two nodes were not considered. */
	struct cgn_str whole, prefill, decode, continues; /* The best nodes; empty: none. */
	float whole_ms, pair_ms, continues_ms, transfer_ms;
	uint32_t moved_tokens;
};

/* A peer that the request could leave for (router/request/bid/bid.h). */
struct explain_peer {
	struct cgn_str peer;
	const char *by; /* Source of |ttft_ms|, a constant string. */
	bool left;      /* The request left for the peer. */
	float ttft_ms;  /* Predicted there. */
	uint32_t held;  /* Blocks held there, by its summary. */
	float price;    /* Price of the request there, in router.currency; negative: not known. */
	float joules;   /* Energy of the prompt there; negative: not known. */
};

/* The unit that a policy compares. SCORE_UNIT: the highest wins; MS (a cost) and REQUEST_UNIT: the lowest wins; TURN:
 * turns or random numbers. */
enum explain_unit { EXPLAIN_SCORE_UNIT, EXPLAIN_MS, EXPLAIN_REQUEST_UNIT, EXPLAIN_TURN, EXPLAIN_UNITS };

struct explain_decision {
	uint64_t request; /* The worker's number of the request, shared by its attempts and its end; not 0. */
	struct cgn_str id, model;
	const char *policy; /* A constant string. */
	uint64_t at_ms;     /* Unix time. */
	uint32_t took_ns;
	uint32_t attempt; /* 1: the first; 0: not an attempt but the choice of a prefill node. */
	enum route_verdict verdict;
	enum explain_unit unit;
	/* Digest of the prompt's last full block, which names the whole prefix; 0: none. */
	uint64_t chain;
	uint32_t blocks;        /* Blocks of the prompt. */
	uint32_t common;        /* Leading blocks that every candidate holds. */
	uint32_t block_tokens;  /* 0: blocks of bytes. */
	uint32_t prompt_tokens; /* 0: unknown. */
	/* Difference between the first and the second, in |unit|; negative when a tie-break or a random
	 * number decided. */
	float margin;
	uint32_t n_all; /* All candidates, including those not kept here. */
	size_t n;       /* Candidates kept, best first; with ROUTE_PICKED the first was chosen. */
	struct explain_cand cands[EXPLAIN_CANDS];
	size_t n_shadows;
	struct explain_shadow shadows[EXPLAIN_SHADOWS];
	struct explain_split split;
	size_t n_peers;
	struct explain_peer peers[EXPLAIN_PEERS];
};

/* A figure of the request's quote, and as it turned out; negative: not known. */
struct explain_quoted {
	float low, expected, high, actual;
};

/* The end of a request. */
struct explain_end {
	uint64_t request;
	struct cgn_str id, model, node; /* node: the one that answered; empty: none. */
	struct cgn_str session;         /* Empty: none. */
	uint32_t turn;       /* Number of the request in its session; 0: the session is not kept. */
	const char *outcome; /* A constant string. */
	uint64_t at_ms;
	uint32_t status, tries;
	bool has_cached, has_prompt;
	bool stream;                       /* The answer was an event stream. */
	bool direct;                       /* The answer came straight from the engine, not by the agent. */
	uint32_t cached_predicted, cached; /* Tokens. */
	uint32_t prompt_tokens, answer_tokens;
	uint32_t ttft_us; /* From the request's head to the answer's first byte; 0: none came. */
	/* From sending to the answering node to its first byte, which is the predicted time. */
	uint32_t first_us;
	uint32_t total_us;
	struct explain_quoted quoted[QUOTE_FIGURES];
	uint32_t phase_us
		[EXPLAIN_PHASES]; /* Microseconds by phase; the sum is |total_us|, but for rounding. */
};
