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
#include "base/core/buf.h"
#include "base/core/err.h"
#include "base/pb/pb_tree.h"
#include "cognitora/v1/control.pb-c.h"
#include "policy/route/explain/record.h"

#define EXPLAIN_ENTRY    ((size_t)8192)
#define EXPLAIN_LEAST    ((size_t)64 * 1024) /* Bytes of a ring. */
#define EXPLAIN_REQUESTS 100                 /* Requests in one answer, at most. */
#define EXPLAIN_BRIEF    ((size_t)4096)      /* Bytes of the response header, at most. */

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
