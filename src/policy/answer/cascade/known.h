/* SPDX-License-Identifier: Apache-2.0 */
/* known: the calibration that was learned of a small and a large model, and its conditions; as lines of a
 * file. Pure; one thread. */
#pragma once
#include "base/core/buf.h"
#include "base/core/err.h"
#include "policy/answer/cascade/calibration.h"

#define CALIBRATION_NAME_MAX 256 /* bytes of a model's name, with a NUL */
#define CALIBRATION_MARKS    8   /* engines that are told apart for each model; more count as known */

struct calibration_known {
	char small[CALIBRATION_NAME_MAX], large[CALIBRATION_NAME_MAX];
	/* hash of the settings that decide which answers are compared, and how */
	uint64_t basis;
	uint64_t marks[2][CALIBRATION_MARKS]; /* engines that serve the small and the large model */
	unsigned n_marks[2];
	uint64_t same, different; /* comparisons, with those that were forgotten */
	struct calibration calibration;
};

/* Note that an engine serves the model (0: the small one, 1: the large one). */
void calibration_known_mark(struct calibration_known *k, unsigned which, uint64_t mark);
/* Was the engine noted? True as well where no more of them can be noted. */
bool calibration_known_has(const struct calibration_known *k, unsigned which, uint64_t mark);
/* Forget the comparisons and the engines, but not the models. */
void calibration_known_forget(struct calibration_known *k);

/* Append the lines of |k|: "pair BASIS SAME DIFFERENT", "small NAME", "large NAME", "engine WHICH MARK", "drifted", and for each
 * comparison, the oldest first, "compared DOUBT TOLD WRONG" in millionths ("-": nothing was told). Names that contain a line's end
 * cannot be written: then nothing is appended. */
void calibration_known_put(const struct calibration_known *k, struct cgn_buf *out);
/* Take the lines of one pair from the front of |*lines|, which is not empty. INVALID: the lines are not those of a pair, and
 * |*out| is not to be used; the sentence names the line. */
CGN_RC calibration_known_take(struct cgn_str *lines, struct calibration_known *out, struct cgn_err *err);
