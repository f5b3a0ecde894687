/* SPDX-License-Identifier: Apache-2.0 */
/* trust: the expectations from a cluster's summary, compared with its answers. Pure; one thread at a time.
 *
 * An answer is bad if far fewer tokens were cached there than its summary told, or if the first byte took far longer.
 * After PEER_BAD bad answers in a row, or about as many in twice as many, the peer is demoted: its summary counts for
 * nothing, for PEER_PAUSE and twice as long each further time, up to PEER_PAUSE_MOST. Then one more bad answer demotes
 * it again, and good ones let it forget. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/core/err.h"

#define PEER_BAD        4
#define PEER_PAUSE      (30 * CGN_SEC)
#define PEER_PAUSE_MOST (600 * CGN_SEC)

struct peer_trust {
	double error;       /* Share of bad answers, a moving average. */
	double late_ms;     /* A moving average of measured less predicted times; is added to predictions. */
	unsigned strikes;   /* Times that the peer was demoted, less those that good answers made up for. */
	cgn_nsec until;     /* End of the demotion; 0: none. */
	uint64_t good, bad; /* Answers. */
};

/* A prediction for a request that leaves. */
struct peer_load;
struct peer_forecast {
	bool known;       /* The peer's summary has its load and speed. */
	cgn_nsec ttft;    /* With the way there and back. */
	cgn_nsec prefill; /* Time of the tokens that are not cached there. */
	uint32_t held;    /* Leading blocks that are cached there. */
	uint64_t cached;  /* The same in tokens. */
	uint64_t tokens;  /* Length of the prompt. */
};
/* Predict for a prompt of |tokens| tokens of which |cached| are cached there. |way|: to the peer and back. */
struct peer_forecast peer_foresee(const struct peer_load *load, const struct peer_trust *trust, cgn_nsec way,
	uint64_t tokens, uint64_t cached);

static inline bool peer_is_demoted(const struct peer_trust *t, cgn_nsec now)
{
	return t->until > now;
}
/* The facts of an answer. */
struct peer_shown {
	cgn_nsec ttft;           /* 0: not measured. */
	bool counted;            /* |cached| is known. */
	uint64_t cached, tokens; /* As the engine there counted. */
};
/* Learn from an answer. Return true if the peer is demoted by it. */
bool peer_trust_learn(struct peer_trust *t, const struct peer_forecast *f, const struct peer_shown *s,
	cgn_nsec now);
/* Return how far the peer is believed, from 0 to 1. */
double peer_trust_share(const struct peer_trust *t, cgn_nsec now);
