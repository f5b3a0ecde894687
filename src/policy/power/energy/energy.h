/* SPDX-License-Identifier: Apache-2.0 */
/* energy: the power that a node draws at which load, learned from its energy counter, and what follows from it: the
 * joules that one more request costs there. Pure; one thread. board.h has the curves for all threads.
 *
 * The load of a node at an instant is one of three: it computes prompts (prefill), it only generates tokens for |b|
 * streams (decode), or nothing runs (idle). An engine that does both in one step counts as computing prompts. The curve has
 * the watts of each: of decode at 0 (idle), 1, 2, 4, ... 256 streams, straight lines between, and one of prefill. A curve
 * and not a slope, because measured power rises steeply for the first streams and little for the later ones.
 *
 * Learning: a sample is the joules of a span and the time of each kind of load in it. The curve's expectation
 * is compared with the counted joules, and the knots that the span touched take the difference, in proportion
 * to their share of the span (normalised least mean squares; the first samples of a knot count more). Knots
 * that no sample has touched keep the published shape (docs/fleet/energy/README.md), scaled by the nearest
 * knot that was learned. The curve never falls with streams. The error is the moving mean of |expected -
 * counted| / counted, before the sample is learned.
 *
 * A whole answer shows its first byte with its last, so its prompt's end is not seen. It counts as a prompt for the
 * time that its router expects of that, and as a stream from then on. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "policy/power/power/power.h"

/* While a node computes prompts, they have this many streams' share of its energy together (meter.h). */
#define ENERGY_PROMPT_SHARES 8
#define ENERGY_KNOTS         10 /* 0 streams, then 1, 2, 4, ... 256. */

/* Watts; all 0: unknown. */
struct energy_curve {
	float decode[ENERGY_KNOTS]; /* [0]: idle, ready for requests. */
	float prefill;
	float most; /* The curve was measured near the watts of up to so many streams; 0: not told, so of any number. */
	uint32_t measured; /* enum energy_measured_part. */
};
enum energy_measured_part {
	ENERGY_MEASURED_ALONE = 1,   /* The watts of the idle node and of one stream. */
	ENERGY_MEASURED_PREFILL = 2, /* The watts of prefill. */
	ENERGY_LIMITED = 4           /* The node's limit is known, so those of prefill are not above it. */
};
static inline bool energy_known(const struct energy_curve *c)
{
	return c->prefill > 0;
}
double energy_decode_watts(const struct energy_curve *c, double streams); /* 0 streams: idle. */
/* A node's load, as its meter is told it. */
struct energy_load {
	uint32_t streams, prompts;
	uint64_t prompt_tokens;
	uint32_t wholes; /* The part of |prompts| whose answer comes as a whole. */
	uint64_t
		whole_us; /* Sum of the times that the prompts of all whole answers were expected to take, also of ended ones. */
	double prompt_s; /* Seconds that prompts of |wholes| are expected to take yet, one after the other. */
};
/* Are prompts computed now? */
static inline bool energy_load_computes(const struct energy_load *l)
{
	return l->prompts > l->wholes || (l->wholes > 0 && l->prompt_s > 0);
}
/* Return how long the load draws the same from now on: at most |most|, until the last prompt of a whole answer is computed. */
cgn_nsec energy_load_lasts(const struct energy_load *l, cgn_nsec most);
void energy_load_pass(struct energy_load *l, double seconds); /* So much time passes. */
double energy_load_watts(const struct energy_curve *c, const struct energy_load *load);
/* Add to the sums of a node (meter.h) what |joules| are for one stream and for one token of a prompt. Return the joules
 * of one share; 0: nothing runs, and the sums stay. */
double energy_share(const struct energy_load *load, double joules, double *stream_j, double *token_j);

/* ---- counters ---- */

/* The span that a reading of a counter ends. */
enum energy_counted {
	ENERGY_FIRST,   /* None: the first reading, or the first after a reset or a stop. */
	ENERGY_SPAN,    /* |joules| were used in |seconds|. */
	ENERGY_WAITING, /* None: the counter has not moved; its span goes on. */
	ENERGY_STOPPED  /* None: the counter has not moved for ENERGY_STOP. Nothing is known. */
};
#define ENERGY_STOP (10 * CGN_SEC)
struct energy_counter {
	struct power_counter counter; /* Follows wraps and resets. */
	double then_j;                /* Joules at the begin of the span. */
	cgn_nsec then;                /* Time of |then_j|; 0: none. */
};
/* |range_uj|: as in power_counter_init. More than twice |limit_w| watts is a reset and no energy. */
void energy_counter_init(struct energy_counter *c, uint64_t range_uj, double limit_w);
/* Take a reading at |now|. On ENERGY_SPAN fill |joules| and |seconds|. */
enum energy_counted energy_counter_read(struct energy_counter *c, uint64_t uj, cgn_nsec now, double *joules,
	double *seconds);

/* ---- learning ---- */

struct energy_sample {
	double joules, seconds;
	double prefill_s; /* Time with prompts to compute. */
	double decode_s;  /* Time with streams and without prompts; the rest of |seconds| is idle. */
	double streams_s; /* Sum over the streams of their time in |decode_s|. */
};
struct energy_model {
	struct energy_curve curve;         /* Compiled; what energy_learn changes. */
	float limit;                       /* Watts that the node draws at most; 0: unknown. */
	float knot[ENERGY_KNOTS], prefill; /* As learned. */
	float weight[ENERGY_KNOTS + 1];    /* Samples that each knot has taken; last: prefill. */
	float error;                       /* Share; 0 before the second sample. */
	uint64_t samples;
};
/* Begin with the published shape at a power limit of |limit_w| watts; 0: 700. */
void energy_model_init(struct energy_model *m, double limit_w);
/* Learn a sample. Ignores spans below 1 ms, times that exceed the span, and values other than numbers. */
void energy_learn(struct energy_model *m, const struct energy_sample *s);
/* Return the joules that the curve expects for the span of |s|, and those of its idle time. */
double energy_expected(const struct energy_curve *c, const struct energy_sample *s);
double energy_expected_idle(const struct energy_curve *c, const struct energy_sample *s);

/* ---- decisions ---- */

/* A request that may be placed on a node. */
struct energy_ask {
	double streams;       /* Requests on the node without this one. */
	double prefill_ms;    /* Time to compute its prompt there. */
	double answer_tokens; /* Expected. */
	double step_ms;       /* Time of a step with one stream; each further one adds |batch_ms|. */
	double batch_ms;
};
/* Return the joules that the node uses because of the request: for the prompt, prefill power instead of idle; for
 * the answer, the watts that one more stream adds while it is generated, and the time by which it lengthens the
 * others' steps. The first stream of an idle node pays for the node's waking up from idle, so requests gather. */
double energy_marginal(const struct energy_curve *c, const struct energy_ask *a);
/* Return the fewest streams, from 1 to |most|, whose joules per token are within |slack| (0.1: 10 %) of the
 * least that up to |most| streams reach: filling the node further saves little. */
uint32_t energy_knee(const struct energy_curve *c, double step_ms, double batch_ms, uint32_t most,
	double slack);
