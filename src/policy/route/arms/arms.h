/* SPDX-License-Identifier: Apache-2.0 */
/* arms: a share of the sessions really follows another routing policy, and the outcomes of both arms are compared: TTFT,
 * ITL, finish, cached tokens and failures, as measured. Pure; one thread at a time.
 *
 * The unit is a session (unit.h): a hash of its name decides its arm, for all of its requests. Each arm keeps sums by
 * ARMS_GROUPS groups of units, by another hash, and by class of prompt length. The mean of an arm is weighted by the
 * classes of both arms together, so that the arms are alike (post-stratification). The error of the difference is the
 * jackknife over the groups: requests of one session, and sessions that come together, are not independent. The
 * interval is an asymptotic confidence sequence (Waudby-Smith et al. 2021, "Time-uniform central limit theory"): it
 * holds with ARMS_ALPHA at all times at once, so that it may be looked at again and again. Too few units: no interval.
 *
 * Both arms share the nodes, their caches and their queues. The estimate is the effect on the sessions that
 * follow, while the others do not. Memory: ARMS_BYTES. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "policy/route/routing/routing.h"

#define ARMS_SHADOWS 8
#define ARMS_GROUPS  32
#define ARMS_CLASSES 6    /* Prompts below 256, 1024, 4096, 16384, 65536 tokens, and longer ones. */
#define ARMS_ALPHA   0.05 /* Share of intervals that may miss. */
#define ARMS_LEAST   100  /* Requests of an arm from which on a difference is told. */
#define ARMS_BYTES   (ARMS_SHADOWS * (size_t)18 * 1024)

enum arms_figure {
#define FIGURE(id, name, unit, less, help) ARMS_##id,
#include "policy/route/arms/figures.def"
#undef FIGURE
	ARMS_FIGURES
};
const char *arms_figure_text(enum arms_figure f);
const char *arms_figure_unit(enum arms_figure f);

/* The rules of a comparison. */
struct arms_rules {
	enum route_policy live, shadows[ARMS_SHADOWS];
	size_t n;     /* Shadows. */
	double share; /* Share of the units that follow a shadow, in equal parts; 0: nothing is compared. */
	uint64_t variant; /* A hash of other settings of the policies. */
};

struct config;
/* Read router.shadow, each policy once, router.shadow_share and router.policy. The configuration is checked. */
void arms_rules_fill(const struct config *cfg, struct arms_rules *out);

/* The arm of a request. */
struct arms_seat {
	bool seated;
	enum route_policy policy; /* The policy that the request follows. */
	uint8_t arm;              /* 0: the live policy. */
	uint8_t group, length;    /* |length|: class of the prompt. */
	uint32_t round;           /* Number of the comparison. */
};

/* The end of a request. Below 0: not known. */
struct arms_outcome {
	double ttft_ms, finish_ms;
	double stream_ms,
		gaps; /* Time from the first to the last token of a stream, and the tokens after the first. */
	double cached, prompt; /* Tokens. */
	bool failed;
};

struct arms;
struct arms *arms_new(void);
void arms_free(struct arms **take);
/* Compare by |rules|. Begin a new comparison when they are others than before. */
void arms_set(struct arms *a, const struct arms_rules *rules);
/* Return the arm of a request of |unit| with a prompt of |tokens|. */
struct arms_seat arms_seat(const struct arms *a, uint64_t unit, uint64_t tokens);
/* Count the end of a request. One whose comparison is over is not counted. */
void arms_add(struct arms *a, const struct arms_seat *seat, const struct arms_outcome *o);

enum arms_verdict {
	ARMS_TOO_FEW, /* There is no interval: too few requests or sessions. */
	ARMS_UNCLEAR, /* The interval has both signs. */
	ARMS_BETTER,  /* The shadow is better, by the whole interval. */
	ARMS_WORSE
};
const char *arms_verdict_text(enum arms_verdict v);

/* A figure of a shadow and of the live policy. */
struct arms_estimate {
	uint64_t n_live, n_shadow; /* Requests that the figure is known of. */
	double units_live,
		units_shadow; /* Groups of units that the sums come from, as if they were equally large. */
	double live, shadow;  /* Means, in the figure's unit. Not a number: there is none. */
	double low, high;     /* Interval of shadow - live. Not a number: too few. */
	enum arms_verdict verdict;
};
/* Compare shadow |i| of the rules with the live policy. */
void arms_estimate(const struct arms *a, size_t i, enum arms_figure f, struct arms_estimate *out);
