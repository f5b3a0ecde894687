/* SPDX-License-Identifier: Apache-2.0 */
/* pulse: finds nodes that are stalled. A node is stalled if its streams bring no byte for longer than
 * pulse_limit: its engine was stopped, or hangs, and the connections stay open.
 *
 *   limit = max(configured limit, PULSE_GAPS * longest recent gap)
 *         + tokens of prompts still to compute / PULSE_PREFILL
 *
 * A slow engine, or an engine that computes a long prompt, is not stalled. The longest gap decays (PULSE_FADE
 * a second). A gap during which the client took no bytes does not count. Shared by all workers, without
 * locks. */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/core/err.h"

#define PULSE_GAPS    4
#define PULSE_PREFILL 2000 /* Tokens a second: an engine of a cluster is seldom slower. */
#define PULSE_FADE    0.98
/* |heard_at| lags by at most this time, so that streams on several threads do not contend for its cache
 * line. */
#define PULSE_GRAIN (50 * CGN_MSEC)

struct pulse {
	_Atomic uint64_t heard_at;   /* Time of the last byte of an answer; 0: no byte yet. */
	_Atomic uint64_t stalled_at; /* Time when the node was declared stalled; 0: not stalled. */
	_Atomic uint32_t gap_ms;     /* Longest recent gap in a stream. */
};
/* Any thread. */
void pulse_beat(struct pulse *p, cgn_nsec now); /* A byte came. */
void pulse_gap(struct pulse *p, cgn_nsec gap);  /* |gap| lay between two pieces of one stream. */
void pulse_stop(struct pulse *p, cgn_nsec now); /* Declare the node stalled. */
/* Return whether the node was declared stalled after |since|, and sent no byte since. */
bool pulse_stopped(const struct pulse *p, cgn_nsec since);
cgn_nsec pulse_heard(const struct pulse *p);
/* |tokens|: tokens of prompts that the node must still compute. |base| 0: no limit, returns UINT64_MAX. */
cgn_nsec pulse_limit(const struct pulse *p, cgn_nsec base, uint64_t tokens);
void pulse_fade(struct pulse *p); /* Let the longest gap decay; once a second, from one thread. */
void pulse_reset(struct pulse *p);
