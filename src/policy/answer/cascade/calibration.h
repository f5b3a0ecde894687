/* SPDX-License-Identifier: Apache-2.0 */
/* calibration: how often a small model is wrong, by the doubt of its first tokens, learned from prompts that both models
 * answered. Pure; one thread. Fixed memory: 12 KiB for each pair of models.
 *
 * The curve is an isotonic regression (pool adjacent violators; Zadrozny and Elkan 2002, "Transforming classifier scores into
 * accurate multiclass probability estimates") over groups of equal size: the probability of an error never falls as the doubt
 * rises. Its error is the expected calibration error (Naeini and others 2015, "Obtaining well calibrated probabilities using
 * Bayesian binning") of what the curve told before each answer was compared, so it is never measured on what it was made from.
 *
 * Nothing passes on the curve alone: each step has an upper bound too (Wilson's, at two standard deviations) of the share of
 * errors among all answers that are at least as sure, and the gate asks that the bound is below its limit. Comparisons earn
 * answers that may pass, at most CALIBRATION_CREDIT, so that no more pass after a change that no comparison has seen. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CALIBRATION_PAIRS   512 /* comparisons that are kept; older ones are forgotten */
#define CALIBRATION_LEAST   50  /* comparisons before there is a curve */
#define CALIBRATION_GROUPS  16
#define CALIBRATION_RECENT  50  /* comparisons that are looked at for drift */
#define CALIBRATION_CREDIT  250 /* answers that pass without a comparison, at most */
#define CALIBRATION_EARNED  16  /* answers that may pass for each comparison */
#define CALIBRATION_SURE    512 /* doubts by which the surest eighth is found */
#define CALIBRATION_SUSPECT 128 /* prompts in a row that are compared after more answers got sure */
#define CALIBRATION_SEEN    128 /* doubts of answers that are compared with as many first ones */

/* Steps of the curve, by rising doubt: up to |upto| the probability of an error is |error|, and the
 * share of errors among all answers up to there is at most |bound|. |n| 0: there is no curve. */
struct calibration_curve {
	uint32_t n;
	float upto[CALIBRATION_GROUPS], error[CALIBRATION_GROUPS], bound[CALIBRATION_GROUPS];
};
/* Return the probability, from 0 to 1, that an answer of that doubt is wrong. The curve has steps. */
double calibration_error_of(const struct calibration_curve *c, double doubt);
/* Return true if an answer of that doubt may pass: its error, and the bound of all that pass with it, are at most |max_error|. */
bool calibration_passes(const struct calibration_curve *c, double doubt, double max_error);

struct calibration_pair {
	float doubt;
	float told; /* error_of(doubt) before the comparison; negative: there was no curve */
	bool wrong;
};
enum calibration_state {
	CALIBRATION_LEARNS, /* too few comparisons: there is no curve */
	CALIBRATION_HOLDS,
	CALIBRATION_DRIFTED, /* the answers were not as the curve told: all was forgotten, and is learned once more */
};
/* Doubts of answers to clients, the first ones since the curve was made, and the last ones: a ring. */
struct calibration_doubts {
	float first[CALIBRATION_SEEN], last[CALIBRATION_SEEN];
	uint32_t n; /* doubts taken, of both together */
};
/* Are more answers to clients sure than before? A model that turned sure and wrong of some prompts moves this first. */
struct calibration_surest {
	float first[CALIBRATION_SURE]; /* the first |n| doubts */
	uint32_t n;
	float edge; /* an eighth of them is below */
	double sum; /* evidence of more of them; cumulative */
};
/* All zeroes: nothing was compared. */
struct calibration {
	struct calibration_pair pairs[CALIBRATION_PAIRS]; /* a ring */
	uint32_t n, next;
	enum calibration_state state;
	struct calibration_curve curve;
	uint32_t credit; /* answers that may pass before the next comparison */
	struct calibration_doubts seen;
	struct calibration_surest surest;
	double worse;     /* evidence of errors twice as often; cumulative */
	uint32_t suspect; /* comparisons until the share is the usual one again */
};
/* An answer of that doubt (cascade_doubt) was compared. Returns true if the state has changed. */
bool calibration_add(struct calibration *c, double doubt, bool wrong);
/* An answer of that doubt was judged for a client. Returns true if the state has changed: the doubts of the last
 * CALIBRATION_SEEN answers are other ones than those of the first. */
bool calibration_saw(struct calibration *c, double doubt, bool passed);

/* May the small model answer clients? */
enum calibration_trust {
	CALIBRATION_TRUSTED,
	CALIBRATION_UNPROVEN, /* no answer, however sure, is known to be wrong with at most |max_error| */
	CALIBRATION_MOVED,    /* the state is CALIBRATION_DRIFTED */
	CALIBRATION_UNSEEN,   /* too many answers passed since the last comparisons */
};
enum calibration_trust calibration_trust_of(const struct calibration *c, double max_error);
/* Return the share of prompts to compare, at least |asked| (above 0): all while the small model may not answer, unless
 * CALIBRATION_PAIRS comparisons proved nothing. */
double calibration_share_of(const struct calibration *c, double asked, double max_error);
/* Return how many comparisons, all of them right, prove an error of at most |max_error|; more than CALIBRATION_PAIRS: none do. */
double calibration_needed(double max_error);
/* Return about how many requests of a gated model pass until its error is noticed to have risen from |from| to |to|, both below 1,
 * where the share |share| is compared: the thresholds of the sums by their mean step (Wald). INFINITY: no alarm comes of it. */
double calibration_noticed_after(double share, double from, double to);
/* Return the expected calibration error, from 0 to 1, over the comparisons kept; negative: none was told before. */
double calibration_ece(const struct calibration *c);

/* For comparisons that were kept elsewhere (known.h), the oldest first. Append one; false: there are CALIBRATION_PAIRS already. */
bool calibration_remember(struct calibration *c, struct calibration_pair p);
/* The last one was appended: make the curve, if they are enough. */
void calibration_recall(struct calibration *c);
