/* SPDX-License-Identifier: Apache-2.0 */
/* calibration: how often a small model is wrong, by the doubt of its first tokens, learned from prompts that both models
 * answered. Pure; one thread. Fixed memory: 9 KiB for each pair of models.
 *
 * The curve is an isotonic regression (pool adjacent violators; Zadrozny and Elkan 2002, "Transforming classifier scores into
 * accurate multiclass probability estimates") over groups of equal size: the probability of an error never falls as the doubt
 * rises. Its error is the expected calibration error (Naeini and others 2015, "Obtaining well calibrated probabilities using
 * Bayesian binning") of what the curve told before each answer was compared, so it is never measured on what it was made from. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CALIBRATION_PAIRS  512 /* comparisons that are kept; older ones are forgotten */
#define CALIBRATION_LEAST  50  /* comparisons before there is a curve */
#define CALIBRATION_GROUPS 16
#define CALIBRATION_RECENT 50 /* comparisons that are looked at for drift */

/* Steps of the curve, by rising doubt: up to |upto| the probability of an error is |error|. |n| 0: there is no curve. */
struct calibration_curve {
	uint32_t n;
	float upto[CALIBRATION_GROUPS], error[CALIBRATION_GROUPS];
};
/* Return the probability, from 0 to 1, that an answer of that doubt is wrong. The curve has steps. */
double calibration_error_of(const struct calibration_curve *c, double doubt);

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
/* All zeroes: nothing was compared. */
struct calibration {
	struct calibration_pair pairs[CALIBRATION_PAIRS]; /* a ring */
	uint32_t n, next;
	enum calibration_state state;
	struct calibration_curve curve;
};
/* An answer of that doubt (cascade_doubt) was compared. Returns true if the state has changed. */
bool calibration_add(struct calibration *c, double doubt, bool wrong);
/* Return the expected calibration error, from 0 to 1, over the comparisons kept; negative: none was told before. */
double calibration_ece(const struct calibration *c);

/* For comparisons that were kept elsewhere (known.h), the oldest first. Append one; false: there are CALIBRATION_PAIRS already. */
bool calibration_remember(struct calibration *c, struct calibration_pair p);
/* The last one was appended: make the curve, if they are enough. */
void calibration_recall(struct calibration *c);
