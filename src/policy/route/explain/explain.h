/* SPDX-License-Identifier: Apache-2.0 */
/* explain: the record of decisions: which nodes a request could go to, the facts that were known of each,
 * which one was chosen and by what margin, and how the request ended compared to the prediction. No text of a
 * prompt is stored. Pure.
 *
 * A ring belongs to one worker and has a fixed size: new entries overwrite the oldest. A decision is one
 * entry and the end of its request another, so that nothing waits in memory for a slow answer. Entries of one
 * id are chained, newest first; a lookup by id walks the chain, not the ring. Of a decision the best
 * EXPLAIN_CANDS candidates are kept, and their total number. An entry is at most EXPLAIN_ENTRY bytes, about
 * 60 + 35 for each candidate; numbers that are 0 take no space. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/buf.h"
#include "base/core/err.h"
#include "base/core/str.h"
#include "base/pb/pb_tree.h"
#include "cognitora/v1/control.pb-c.h"
#include "policy/route/chooser/chooser.h"
#include "policy/route/quote/quote.h"

#define EXPLAIN_CANDS   16
#define EXPLAIN_SHADOWS 8
#define EXPLAIN_PEERS   8
#define EXPLAIN_ENTRY   ((size_t)8192)
#define EXPLAIN_LEAST   ((size_t)64 * 1024) /* Bytes of a ring. */
/* Bytes of an id or of a model's or node's name; longer ones are cut. */
#define EXPLAIN_TEXT     128
#define EXPLAIN_REQUESTS 100            /* Requests in one answer, at most. */
#define EXPLAIN_BRIEF    ((size_t)4096) /* Bytes of the response header, at most. */

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
	float regret_ms;
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

/* Describe the decision |p| with the names of |view|, from which |out| borrows. Sets all members but
 * |request|, |id|, |model|, |at_ms|, |took_ns| and the shadows; there is no split and no peer. Computes two terms for each kept candidate,
 * and one score for each candidate when there are more than EXPLAIN_CANDS. */
void explain_pick(const struct chooser_ask *ask, const struct chooser_pick_result *p,
	const struct cluster_view *view, struct explain_decision *out);
/* Describe |s| with the names of |view|, from which |out| borrows. */
void explain_split(const struct chooser_split *s, const struct cluster_view *view, struct explain_split *out);
/* Describe that |policy|, a constant string, would have picked the candidate |index|; p->n: none. */
void explain_other(const struct chooser_pick_result *p, const char *policy, size_t index,
	const struct cluster_view *view, struct explain_shadow *out);
/* Compute the pick of |policy| from the same candidates at the same instant. |*index| is the candidate's
 * index when |p| picked one. */
void explain_shadow(const struct chooser_pick_result *p, enum route_policy policy,
	const struct cluster_view *view, struct explain_shadow *out, size_t *index);

struct explain_ring;
/* Create a ring of |bytes| in all; its pages are touched as it fills. |seed| keeps clients from choosing ids
 * that share a chain. Fails with CGN_INVALID below EXPLAIN_LEAST, and with CGN_NO_MEMORY. */
CGN_RC explain_ring_new(size_t bytes, uint64_t seed, struct explain_ring **out, struct cgn_err *err);
void explain_ring_free(struct explain_ring **take);
/* Never fail and never allocate. */
void explain_ring_decide(struct explain_ring *r, const struct explain_decision *d);
void explain_ring_end(struct explain_ring *r, const struct explain_end *e);

struct explain_reach {
	uint64_t decisions; /* Decisions ever recorded. */
	uint64_t entries;   /* Entries in the ring. */
	uint64_t oldest_ms; /* Time of the oldest entry; 0: the ring is empty. */
	size_t bytes;
};
void explain_ring_reach(const struct explain_ring *r, struct explain_reach *out);

/* Append the entries of the newest |most| requests named |id|, or of any name, to |out|, for explain_write.
 * Entries that do not fit are left out. A lookup visits at most EXPLAIN_WALK entries. */
#define EXPLAIN_WALK 65536
void explain_ring_find(const struct explain_ring *r, struct cgn_str id, size_t most, struct cgn_buf *out);
/* The newest requests of |session| that have ended; with an empty |session|: the newest of all. */
void explain_ring_last(const struct explain_ring *r, struct cgn_str session, size_t most,
	struct cgn_buf *out);

/* Add the entries found in |n| rings to |to|, which |t| made, as at most |most| requests, newest first; with |brief|
 * without the choices of their tries. Without memory |t| is bad. */
void explain_fill(const struct cgn_buf *found, size_t n, size_t most, bool brief, struct pb_tree *t,
	Cognitora__V1__ExplainResponse *to);
double explain_ttft_ms(const struct explain_cand *c);        /* Return the predicted time to first token. */
size_t explain_count(const struct cgn_buf *found, size_t n); /* Return the number of entries in |found|. */
/* Write one decision on one line of at most EXPLAIN_BRIEF visible ASCII bytes, with as many candidates as
 * fit. */
void explain_brief(const struct explain_decision *d, struct cgn_buf *out);
