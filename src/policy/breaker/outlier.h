/* SPDX-License-Identifier: Apache-2.0 */
/* outlier: is a node worse than its peers, those that serve the same models. Three measures of each, over the
 * last 20 to 30 seconds:
 *
 *   failures the share of its requests that failed in a way that counts (breaker.h)
 *   first byte the time to the first byte of streamed answers
 *   per token the time between two pieces of them
 *
 * A node with long prompts, or with many answers in work, is no outlier. Times are therefore compared within
 * classes of the same work only, powers of two of the tokens that the node had to compute before (its queue
 * and the prompt, less what it holds), or of the answers that it had in work; and as logarithms, so that a
 * heavy tail does not rule the mean. A node's score is the mean, over its requests, of how far its mean in
 * their class lies from the median of all nodes' means there: 1 is twice as slow. Worse than its peers is
 * what lies above the median of scores by OUTLIER_SLOWER and by OUTLIER_SPREADS of their spread (1.4826 times
 * the median absolute deviation, which estimates a standard deviation and which one bad node does not move:
 * Rousseeuw and Croux, 1993).
 *
 * Workers add to tallies, the control loop looks. Pure; no allocation. */
#pragma once
#include "policy/breaker/breaker.h"

#define OUTLIER_FIRST    16    /* classes: fewer than 128 tokens, fewer than 256, ... */
#define OUTLIER_TOKEN    8     /* 1 answer, fewer than 4, ... */
#define OUTLIER_REQUESTS 20    /* that a node must have had, to be judged */
#define OUTLIER_NODES    3     /* of which so many are needed: two can't say which of them is odd */
#define OUTLIER_SLOWER   1.585 /* three times as slow */
#define OUTLIER_SPREADS  5.0
#define OUTLIER_SHARE    0.3 /* share of failures above the median */
/* shorter times count as this long: they are noise of the machine */
#define OUTLIER_FIRST_LEAST (10 * CGN_MSEC)
#define OUTLIER_TOKEN_LEAST CGN_MSEC
#define OUTLIER_TURN        (10 * CGN_SEC)

struct outlier_class {
	uint32_t n, sum; /* sum: log2(microseconds) * 256; both wrap, only differences are read */
};
struct outlier_totals {
	uint32_t ended, failed;
	struct outlier_class first[OUTLIER_FIRST], token[OUTLIER_TOKEN];
};
/* The same, of one node, written by all workers. */
struct outlier_tally {
	_Atomic uint32_t ended, failed;
	struct {
		_Atomic uint32_t n, sum;
	} first[OUTLIER_FIRST], token[OUTLIER_TOKEN];
};
/* Any thread. */
void outlier_add_end(struct outlier_tally *t, bool failed);
/* |tokens|: prompt tokens that had to be computed before the first byte */
void outlier_add_first(struct outlier_tally *t, cgn_nsec took, uint64_t tokens);
/* |decoding|: answers that the node is producing, this one included */
void outlier_add_token(struct outlier_tally *t, cgn_nsec took, uint32_t decoding);
void outlier_read(const struct outlier_tally *t, struct outlier_totals *out);

/* Totals of the last two to three turns. */
struct outlier_window {
	struct outlier_totals at[3];
	unsigned oldest;
};
void outlier_window_reset(struct outlier_window *w, const struct outlier_totals *now); /* forget */
/* every OUTLIER_TURN */
void outlier_window_turn(struct outlier_window *w, const struct outlier_totals *now);
void outlier_window_get(const struct outlier_window *w, const struct outlier_totals *now,
	struct outlier_totals *out);

/* Too many failures, whatever the peers do: |share| of at least OUTLIER_REQUESTS. Share 0: never. */
bool outlier_fails(const struct outlier_totals *recent, double share);

struct outlier_peer {
	struct outlier_totals recent;
	bool out;                    /* the breaker is not closed: the node is counted, not judged */
	enum breaker_reason verdict; /* out: BREAKER_FOR_NOTHING, or what to eject it for */
	double excess;               /* out: by how much, in the measure of the verdict over its bound */
};
/* Judge |peers|, and leave at most as many verdicts as may be ejected: |share| of them together with those
 * that are out, at least one, and never the last that stands; the worst first. |scratch|: room for |n|. */
void outlier_judge(struct outlier_peer *peers, size_t n, double share, double *scratch);
