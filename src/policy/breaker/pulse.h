/* SPDX-License-Identifier: Apache-2.0 */
/* pulse: is a node alive, judged by the bytes that its streams bring. A node that has streams and brings none
 * of them anything for longer than pulse_limit is stalled: its engine was stopped, or hangs, and no
 * connection says so.
 *
 *   limit = max(what is configured, PULSE_GAPS * the longest recent gap) + prompts that it still has to
 *   compute / PULSE_PREFILL
 *
 * so that a slow engine, or one that computes a long prompt, does not count as dead. The longest gap
 * fades (PULSE_FADE a second), and a gap during which the client took nothing is none. Shared by all workers,
 * without locks. */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/core/err.h"

#define PULSE_GAPS    4
#define PULSE_PREFILL 2000 /* tokens a second: few engines worth a cluster are slower */
#define PULSE_FADE    0.98
/* heard_at lags by so much at most: streams on several threads do not fight for its cache line */
#define PULSE_GRAIN (50 * CGN_MSEC)

struct pulse {
	_Atomic uint64_t heard_at;   /* the last byte of an answer; 0: none yet */
	_Atomic uint64_t stalled_at; /* when the node was declared stalled; 0: it is not */
	_Atomic uint32_t gap_ms;     /* longest recent gap in a stream */
};
/* Any thread. */
void pulse_beat(struct pulse *p, cgn_nsec now); /* a byte came */
void pulse_gap(struct pulse *p, cgn_nsec gap);  /* between two pieces of one stream */
void pulse_stop(struct pulse *p, cgn_nsec now); /* the node is stalled */
/* the node was declared stalled after |since|, and no byte came since */
bool pulse_stopped(const struct pulse *p, cgn_nsec since);
cgn_nsec pulse_heard(const struct pulse *p);
/* |tokens| of prompts that it has to compute. |base| 0: no limit, UINT64_MAX. */
cgn_nsec pulse_limit(const struct pulse *p, cgn_nsec base, uint64_t tokens);
void pulse_fade(struct pulse *p); /* once a second; one thread */
void pulse_reset(struct pulse *p);
