/* SPDX-License-Identifier: Apache-2.0 */
/* transfer: how long the KV cache of a prompt takes from the node that computed it to the node that decodes it,
 * learned from hand-offs. A path is a pair of nodes, and a kind of hand-off.
 *
 * A hand-off of |tokens| tokens that took |ms|:
 *   ms = fixed + token * tokens + error
 * fixed and token each absorb a share of the error by normalised least mean squares (as in speed.h):
 * TRANSFER_GAIN of it in all. A sample counts for at most TRANSFER_TRUST times the expected value and at
 * least that fraction of it, so estimates stay finite and positive for any input; NaN does not count as a
 * sample.
 *
 * A pair without samples has the estimate of its kind; a kind without samples has the prior. An estimate that
 * is slower than the prior loses half of the difference in each minute without samples: a path that was slow
 * once is tried again.
 *
 * A table of fixed size (TRANSFER_BYTES) that all workers share without locks; a pair that finds no free entry
 * replaces another one, and a lost race costs a sample. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/core/err.h"

#define TRANSFER_PATHS 4096
#define TRANSFER_BYTES (TRANSFER_PATHS * 24)
#define TRANSFER_TRUST 4.0
#define TRANSFER_GAIN  0.3
/* Shorter transfers measure the calls rather than the network and do not count as samples. */
#define TRANSFER_LEAST 64.0

struct transfer_speed {
	float fixed_ms; /* Per hand-off. */
	float token_ms; /* Per token. */
	bool measured;  /* Learned from this pair of nodes. */
};

struct transfer_path {
	uint64_t from, to; /* route_hash of the nodes' ids. */
	uint64_t kind;     /* Kind and fingerprint of the hand-off, as in struct route_cand. */
};

struct transfer;
struct transfer *transfer_new(void);
void transfer_free(struct transfer **take);

/* Any thread. */
/* Return the estimate for |path|. |t| NULL: the prior. */
struct transfer_speed transfer_speed_of(const struct transfer *t, const struct transfer_path *path,
	const struct transfer_speed *prior, cgn_nsec now);
static inline double transfer_ms(const struct transfer_speed *s, double tokens)
{
	return tokens > 0 ? (double)s->fixed_ms + (double)s->token_ms * tokens : 0;
}
/* Learn that |tokens| tokens took |ms| along |path|. */
void transfer_learn(struct transfer *t, const struct transfer_path *path, const struct transfer_speed *prior,
	double tokens, double ms, cgn_nsec now);
