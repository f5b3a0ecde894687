/* SPDX-License-Identifier: Apache-2.0 */
/* scale: the autoscaler of the replay. Nothing happens unless the configuration says so. */
#pragma once
#include "policy/fleet/autoscale/load.h"

struct replay;

/* Totals at the end of each second, and the instants at which replicas went. */
struct replay_second {
	uint64_t prompt_blocks, cached_blocks;
};
#define REPLAY_LATE 256 /* Times that a percentile is made of. */
struct replay_scaling {
	struct autoscale state;
	struct autoscale_season season;
	struct autoscale_node *nodes;       /* Owned. */
	struct replay_second now, *seconds; /* Owned; grown as time passes. */
	size_t n_seconds, max_seconds;
	cgn_nsec *went; /* Owned; grown. */
	size_t n_went, max_went;
	cgn_nsec ttft[REPLAY_LATE], itl[REPLAY_LATE], ttft_at[REPLAY_LATE];
	size_t n_ttft, n_itl; /* Ever. */
	uint64_t random;
};

CGN_RC scale_open(struct replay *r, struct cgn_err *err);
void scale_close(struct replay *r);
void scale_prompt(struct replay *r, uint32_t blocks, uint32_t cached); /* A prompt was computed. */
void scale_ttft(struct replay *r, cgn_nsec took);
void scale_itl(struct replay *r, cgn_nsec took);
void scale_went(struct replay *r); /* A replica's engine has ended. */
void scale_second(struct replay *r);
void scale_sum_up(struct replay *r);
