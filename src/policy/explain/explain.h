/* SPDX-License-Identifier: Apache-2.0 */
/* explain: the record of decisions: which nodes a request could go to, what was known of each, what won and
 * by how much; and how it ended, beside what was predicted. No word of a prompt is in it. Pure.
 *
 * A ring belongs to one worker and has a fixed size: what is new takes the place of what is oldest. A
 * decision is one entry, and the end of its request another, so that nothing waits in memory for a slow
 * answer. Entries of one id are chained, newest first; a look for an id walks its chain and not the ring. Of
 * a decision the best EXPLAIN_CANDS candidates are kept, and how many there were. An entry is at most
 * EXPLAIN_ENTRY bytes, about 60 + 35 for each candidate; numbers that are 0 take no room. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/buf.h"
#include "base/core/err.h"
#include "base/core/str.h"
#include "policy/chooser/chooser.h"

#define EXPLAIN_CANDS   16
#define EXPLAIN_SHADOWS 8
#define EXPLAIN_ENTRY   ((size_t)8192)
#define EXPLAIN_LEAST   ((size_t)64 * 1024) /* bytes of a ring */
/* bytes of an id, a model's or a node's name; longer ones are cut */
#define EXPLAIN_TEXT     128
#define EXPLAIN_REQUESTS 100            /* most that one answer shows */
#define EXPLAIN_BRIEF    ((size_t)4096) /* bytes of what a response header says */

enum explain_field {
#define FIELD(id, kind, group, name) EXPLAIN_##id,
#include "policy/explain/fields.def"
#undef FIELD
	EXPLAIN_FIELDS
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
	EXPLAIN_WHYS
};

struct explain_cand {
	struct cgn_str node;
	enum explain_why why;
	union explain_number v[EXPLAIN_FIELDS];
};

/* What another policy would have chosen. */
struct explain_shadow {
	const char *policy;
	struct cgn_str node; /* empty: nobody */
	bool agrees;
	/* predicted for the one that was chosen, less that for this one; above 0: this one was cheaper */
	float regret_ms;
	uint32_t held; /* blocks, at this one */
};

/* What a policy compares. SCORE: the highest wins; MS (a cost) and REQUESTS: the least; TURN: nothing, it
 * takes turns or dice. */
enum explain_unit { EXPLAIN_SCORE_UNIT, EXPLAIN_MS, EXPLAIN_REQUEST_UNIT, EXPLAIN_TURN, EXPLAIN_UNITS };

struct explain_decision {
	uint64_t request; /* the worker's number of it, which its other tries and its end have too; not 0 */
	struct cgn_str id, model;
	const char *policy; /* one of a few constants */
	uint64_t at_ms;     /* Unix */
	uint32_t took_ns;
	uint32_t attempt; /* 1: the first; 0: no try, but who computes the prompt for the node that answers */
	enum route_verdict verdict;
	enum explain_unit unit;
	uint64_t chain;         /* digest of the prompt's last full block: names all of it; 0: none */
	uint32_t blocks;        /* of the prompt */
	uint32_t common;        /* of these, leading ones that every candidate holds: they speak for nobody */
	uint32_t block_tokens;  /* 0: they are of bytes */
	uint32_t prompt_tokens; /* 0: not known */
	/* by which the first beat the second, in |unit|; below 0: a tie, or dice, decided */
	float margin;
	uint32_t n_all; /* candidates, those not kept here included */
	size_t n;       /* kept, best first; with ROUTE_PICKED the first was chosen */
	struct explain_cand cands[EXPLAIN_CANDS];
	size_t n_shadows;
	struct explain_shadow shadows[EXPLAIN_SHADOWS];
};

/* How a request ended. */
struct explain_end {
	uint64_t request;
	struct cgn_str id, model, node; /* node: that answered; empty: none */
	const char *outcome;            /* one of a few constants */
	uint64_t at_ms;
	uint32_t status, tries;
	bool has_cached, has_prompt;
	uint32_t cached_predicted, cached; /* tokens */
	uint32_t prompt_tokens, answer_tokens;
	uint32_t ttft_us;  /* from the request's head to the answer's first byte; 0: none came */
	uint32_t first_us; /* from sending to the node that answered; what is predicted is this */
	uint32_t total_us;
};

/* What |p| decided, with the names of |view|. Sets all but |request|, |id|,
 * |model|, |at_ms|, |took_ns| and the shadows. Borrows from |view|. Two terms are computed for each candidate
 * that is kept, and one score for each that there was when they are more than EXPLAIN_CANDS. */
void explain_pick(const struct chooser_ask *ask, const struct chooser_pick_result *p,
	const struct cluster_view *view, struct explain_decision *out);
/* What |policy| would have picked of the same candidates at the same instant; |*index|: of them, when |p|
 * picked one. */
void explain_shadow(const struct chooser_pick_result *p, enum route_policy policy,
	const struct cluster_view *view, struct explain_shadow *out, size_t *index);

struct explain_ring;
/* |bytes| is all that it will ever take, pages touched as it fills. |seed| keeps clients from choosing ids
 * that meet in one chain. CGN_INVALID below EXPLAIN_LEAST; CGN_NO_MEMORY. */
CGN_RC explain_ring_new(size_t bytes, uint64_t seed, struct explain_ring **out, struct cgn_err *err);
void explain_ring_free(struct explain_ring **take);
/* Never fail and never allocate. */
void explain_ring_decide(struct explain_ring *r, const struct explain_decision *d);
void explain_ring_end(struct explain_ring *r, const struct explain_end *e);

struct explain_reach {
	uint64_t decisions; /* that were ever recorded */
	uint64_t entries;   /* there now */
	uint64_t oldest_ms; /* of the oldest entry; 0: there is none */
	size_t bytes;
};
void explain_ring_reach(const struct explain_ring *r, struct explain_reach *out);

/* Append the entries of the newest |most| requests named |id|, or of any name, to |out|, for explain_write.
 * What does not fit is left out. A look goes through at most EXPLAIN_WALK entries. */
#define EXPLAIN_WALK 65536
void explain_ring_find(const struct explain_ring *r, struct cgn_str id, size_t most, struct cgn_buf *out);
void explain_ring_last(const struct explain_ring *r, size_t most, struct cgn_buf *out);

/* What several rings gave as a JSON array, newest request first, |most| of them. False: no memory. */
bool explain_write(const struct cgn_buf *found, size_t n, size_t most, struct cgn_buf *out);
double explain_ttft_ms(const struct explain_cand *c);        /* as predicted */
size_t explain_count(const struct cgn_buf *found, size_t n); /* entries in it */
/* The same of one decision on one line of at most EXPLAIN_BRIEF visible ASCII bytes, as many candidates as
 * fit. */
void explain_brief(const struct explain_decision *d, struct cgn_buf *out);
