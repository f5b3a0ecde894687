/* SPDX-License-Identifier: Apache-2.0 */
/* calibration, inside. */
#pragma once
#include <pthread.h>

#include "base/core/list.h"
#include "io/os/loop/loop.h"
#include "policy/answer/cascade/known.h"
#include "policy/text/prompt/prompt.h"
#include "router/request/calibration/calibration.h"

#define CALIBRATION_PASS_MAX 72

struct statefile;

struct gw_calibrations {
	uint32_t tag;
	struct telemetry *telemetry;
	char pass[CALIBRATION_PASS_MAX]; /* constant */
	uint64_t judge;                  /* constant; hash of the judge's settings */
	struct statefile *file; /* kept.c, with |write_timer|: on the control loop. NULL: nothing is kept. */
	struct cgn_timer write_timer;
	pthread_mutex_t lock; /* guards all that follows */
	struct calibration_known *pairs[CALIBRATION_MODELS];
	bool changed;            /* since the file was written */
	uint64_t basis;          /* new pairs get this basis */
	double share, max_error; /* copied from the rules */
	size_t n_pairs, n_waiting;
	struct cgn_link waiting;
	struct cgn_loop *loop; /* NULL: no thread asks */
	struct cgn_post *post;
	void (*fn)(struct cgn_loop *, struct cgn_post *);
	bool posted;
};
void calibrations_lock(struct gw_calibrations *c);
void calibrations_unlock(struct gw_calibrations *c);
void calibrations_drop(struct gw_calibrations *c); /* Free all pairs; the lock is held. */
/* Show the metrics of a pair; the lock is held. */
void calibration_report(struct gw_calibrations *c, const struct calibration_known *k);
const char *calibration_state_text(enum calibration_state s);
void calibrations_kept_close(struct gw_calibrations *c); /* kept.c: write the file for the last time. */

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
