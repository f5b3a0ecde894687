/* SPDX-License-Identifier: Apache-2.0 */
/* pulse: finds nodes that are stalled: the engine was stopped, or hangs, and the connections stay open. Silence alone
 * proves nothing: an engine computes long prompts, holds back the text of a tool call, or swaps a request out. A node is
 * stalled only if two witnesses say so:
 *   - its streams bring no byte for longer than
 *       limit = max(configured limit, PULSE_GAPS * longest recent gap)
 *             + tokens of prompts still to compute / PULSE_PREFILL
 *   - the witness that checks the engine (its agent, or this router for an engine without an agent) says that the engine
 *     answers no check and brings no byte to any client for the configured limit, or says nothing itself for that long.
 *
 * The longest gap decays (PULSE_FADE a second). A gap during which the client took no bytes does not count. Shared by all
 * workers, without locks. */
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
/* A witness that told nothing for less than this is not silent: it tells each second. */
#define PULSE_WITNESS (4 * CGN_SEC)

struct pulse {
	_Atomic uint64_t heard_at;   /* Time of the last byte of an answer; 0: no byte yet. */
	_Atomic uint64_t stalled_at; /* Time when the node was declared stalled; 0: not stalled. */
	_Atomic uint64_t gone_at;    /* Time when its agent was found silent; 0: it never was. */
	_Atomic uint32_t gap_ms;     /* Longest recent gap in a stream. */
	/* Control loop: what the witness told last, and when; told_at 0: there is none. */
	_Atomic uint32_t mute_ms;
	_Atomic uint64_t told_at, worked_at;
};
/* Signs of life of an engine, as a witness tells them. */
struct pulse_witness {
	cgn_nsec mute;  /* Time since it left a check unanswered, with no byte since then; 0: it answers */
	cgn_nsec still; /* Time since it brought a byte or its counters moved; UINT64_MAX: unknown */
};
/* Any thread. */
void pulse_beat(struct pulse *p, cgn_nsec now); /* A byte came. */
void pulse_gap(struct pulse *p, cgn_nsec gap);  /* |gap| lay between two pieces of one stream. */
void pulse_stop(struct pulse *p, cgn_nsec now); /* Declare the node stalled. */
/* Return whether the node was declared stalled after |since|, and sent no byte since. */
bool pulse_stopped(const struct pulse *p, cgn_nsec since);
void pulse_lose_agent(struct pulse *p, cgn_nsec now); /* The agent is silent: what it relays will not come. */
/* Return whether the agent was found silent after |since|. */
bool pulse_agent_lost(const struct pulse *p, cgn_nsec since);
cgn_nsec pulse_heard(const struct pulse *p);
/* |tokens|: tokens of prompts that the node must still compute. |base| 0: no limit, returns UINT64_MAX. */
cgn_nsec pulse_limit(const struct pulse *p, cgn_nsec base, uint64_t tokens);
/* Take the witness's report; from one thread. */
void pulse_told(struct pulse *p, cgn_nsec now, const struct pulse_witness *w);
/* Return true if the witness says that the engine lives: it told lately, and of no silence of |base|. */
bool pulse_lives(const struct pulse *p, cgn_nsec now, cgn_nsec base);
/* Return true if the engine worked for any client within |within|: it brought a byte, or its counters moved. */
bool pulse_works(const struct pulse *p, cgn_nsec now, cgn_nsec within);
void pulse_fade(struct pulse *p); /* Let the longest gap decay; once a second, from one thread. */
void pulse_reset(struct pulse *p);
