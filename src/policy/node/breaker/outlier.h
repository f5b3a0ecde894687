/* SPDX-License-Identifier: Apache-2.0 */
/* outlier: finds nodes that are worse than their peers, the nodes that serve the same models. It has three
 * measures over the last 20 to 30 seconds:
 *
 *   failures    the share of requests that failed in a way that counts (breaker.h)
 *   first byte  the time to the first byte of streamed answers
 *   per token   the time between two pieces of streamed answers
 *
 * A node with long prompts or with many running answers is not an outlier. Therefore times are compared only
 * within classes of equal work: powers of two of the tokens to compute before the first byte (the node's
 * queue and the prompt, less the cached part), or of the answers that the node was producing. Times are
 * compared as logarithms, so that a heavy tail does not dominate the mean. A node's score is the mean over
 * its requests of this distance: the node's mean in the request's class, less the median of all nodes' means
 * in the class. A score of 1 is twice as slow. An outlier's score exceeds the median of scores by
 * OUTLIER_SLOWER, and by OUTLIER_SPREADS times their spread. The spread is 1.4826 times the median absolute
 * deviation: it estimates a standard deviation, and one bad node does not move it (Rousseeuw and Croux,
 * 1993).
 *
 * Workers add to tallies, the control loop judges. Pure; no allocation. */
#pragma once
#include "policy/node/breaker/breaker.h"

#define OUTLIER_FIRST    16    /* Classes of the first byte: fewer than 128 tokens, fewer than 256, ... */
#define OUTLIER_TOKEN    8     /* Classes of the pieces: 1 answer, fewer than 4, ... */
#define OUTLIER_REQUESTS 20    /* Fewest requests of a node that is judged. */
#define OUTLIER_NODES    3     /* Fewest nodes: of two nodes, neither can be called the outlier. */
#define OUTLIER_SLOWER   1.585 /* Three times as slow. */
#define OUTLIER_SPREADS  5.0
#define OUTLIER_SHARE    0.3 /* Share of failures above the median. */
/* Shorter times are raised to these values: below them, differences are noise of the machine. */
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
/* The totals of one node, written by all workers. */
struct outlier_tally {
	_Atomic uint32_t ended, failed;
	struct {
		_Atomic uint32_t n, sum;
	} first[OUTLIER_FIRST], token[OUTLIER_TOKEN];
};
/* Any thread. */
void outlier_add_end(struct outlier_tally *t, bool failed);
/* |tokens|: prompt tokens that the node had to compute before the first byte. */
void outlier_add_first(struct outlier_tally *t, cgn_nsec took, uint64_t tokens);
/* |decoding|: answers that the node is producing, with this one. */
void outlier_add_token(struct outlier_tally *t, cgn_nsec took, uint32_t decoding);
void outlier_read(const struct outlier_tally *t, struct outlier_totals *out);

/* Differences of totals over the last two to three turns. */
struct outlier_window {
	struct outlier_totals at[3];
	unsigned oldest;
};
void outlier_window_reset(struct outlier_window *w, const struct outlier_totals *now); /* Forget the past. */
/* Call every OUTLIER_TURN. */
void outlier_window_turn(struct outlier_window *w, const struct outlier_totals *now);
void outlier_window_get(const struct outlier_window *w, const struct outlier_totals *now,
	struct outlier_totals *out);

/* Return whether the share of failures reached |share|, of at least OUTLIER_REQUESTS requests; peers do not
 * matter.
 * |share| 0: never. */
bool outlier_fails(const struct outlier_totals *recent, double share);

struct outlier_peer {
	struct outlier_totals recent;
	/* The breaker is not closed: the node counts as a peer, but is not judged. */
	bool out;
	/* Output: the reason to eject the node; BREAKER_FOR_NOTHING: no reason. */
	enum breaker_reason verdict;
	double excess; /* Output: the measure of the verdict, as a multiple of its bound. */
};
/* Judge |peers| and keep only as many verdicts as nodes may be ejected, the worst first. At most |share| of
 * the peers may be out, including peers with |out|; at least one, and never the last one. |scratch|: room for
 * |n|. */
void outlier_judge(struct outlier_peer *peers, size_t n, double share, double *scratch);
