/* SPDX-License-Identifier: Apache-2.0 */
/* calibration, inside. */
#pragma once
#include "base/core/list.h"
#include "policy/prompt/prompt.h"
#include "router/calibration/calibration.h"

#define CALIBRATION_NAME_MAX 256
#define CALIBRATION_PASS_MAX 72

/* A prompt that is to be asked of both models. */
struct calibration_sample {
	struct cgn_link link;
	char tenant[CALIBRATION_NAME_MAX], small[CALIBRATION_NAME_MAX], large[CALIBRATION_NAME_MAX];
	enum prompt_api api;
	unsigned tokens;          /* tokens that the gate reads */
	struct cgn_buf bodies[2]; /* for the small model, and the large one */
};
void calibration_sample_free(struct calibration_sample **take);

/* Return the next prompt; NULL: none waits. The caller owns it. */
struct calibration_sample *calibration_take(struct gw_calibrations *c);
/* From now on |post| is posted to |l| when a prompt comes; |l| NULL: not any more. */
void calibration_wake(struct gw_calibrations *c, struct cgn_loop *l, struct cgn_post *post,
	void (*fn)(struct cgn_loop *, struct cgn_post *));
/* Call in |fn|: the post may be posted again. */
void calibration_woken(struct gw_calibrations *c);
const char *calibration_pass(const struct gw_calibrations *c);
/* The answers to |s| were compared. */
void calibration_learn(struct gw_calibrations *c, const struct calibration_sample *s, double doubt,
	bool wrong);
/* Count the end of a sample: compared, unclear, busy, failed, dropped. */
void calibration_count(struct gw_calibrations *c, const char *outcome);
