/* SPDX-License-Identifier: Apache-2.0 */
/* autoscale: how many replicas of a model a fleet needs, which one to remove, and why. Pure; one thread for each state.
 *
 * Load is counted in replicas: the share of time in which prompts are computed, plus running requests / the
 * requests that a replica runs at once, plus waiting work, summed over the replicas. A replica is meant to
 * carry |target| of that. The forecast is the load in the time that a new replica takes to get ready, by its
 * level and its trend of late (Holt's double exponential smoothing); a falling trend does not count. Where
 * the usual load of the time of day counts (season.h), the forecast is at least the usual load from now to
 * autoscale_lead later.
 *
 *   up    the forecast needs more replicas than there are or come soon, or requests wait, or an objective is missed while
 *         the replicas are at least half as loaded as they may be. For |up_window| without a break; at most |up_step|
 *         at once, at most twice as many as before where |up_step| is 0.
 *   down  the highest forecast of |down_window| needs fewer, with AUTOSCALE_SLACK to spare. At most |down_step| at
 *         once, and an eighth of |down_window| after the last change.
 *   zero  where |least| is 0: nothing ran or waited for |idle|.
 *
 * After replicas were added because requests waited or an objective was missed, although the load alone needed none, as
 * many stay for two hours while the load of the last half hour is at least three quarters of what it was. So the same load does not lead down
 * and up again. Nothing is removed in the first |down_window| of a state, whose load is not known. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/err.h"
#include "policy/fleet/autoscale/season.h"

struct config;

#define AUTOSCALE_SLOTS 8
#define AUTOSCALE_SLACK 0.85
#define AUTOSCALE_WHY   200

struct autoscale_cfg {
	uint32_t least, most; /* Replicas. |most| at least 1. */
	double target;        /* Load that one replica carries, above 0. */
	cgn_nsec ttft, itl;   /* Objectives of the 90th percentiles; 0: none. */
	cgn_nsec up_window, down_window, idle;
	uint32_t up_step, down_step; /* |down_step| at least 1. */
};
struct autoscale_signals {
	double load;        /* Sum over the replicas. */
	uint32_t inflight;  /* Requests on the replicas, and on those that the replicas serve a model with. */
	uint32_t waiting;   /* Requests that wait for room or for a replica. */
	cgn_nsec ttft, itl; /* 90th percentiles of the last minute; 0: unknown. */
	uint32_t ready;     /* Replicas that take requests. */
	uint32_t coming;    /* Replicas that will soon. */
	cgn_nsec wake;      /* Time until a new replica takes requests. */
	double expected; /* autoscale_season_expect for autoscale_lead; 0: the time of day does not count. */
};
enum autoscale_action { AUTOSCALE_STAY, AUTOSCALE_UP, AUTOSCALE_DOWN };
const char *autoscale_action_text(enum autoscale_action a);

struct autoscale_decision {
	enum autoscale_action action;
	uint32_t by;   /* Replicas to add or to remove; 0 with AUTOSCALE_STAY. */
	uint32_t want; /* Replicas that the load needs, within the limits. */
	double forecast;
	bool by_season;          /* |forecast| is by the time of day. */
	char why[AUTOSCALE_WHY]; /* A sentence for an operator. */
};
struct autoscale {
	double level, trend; /* Load, and its change in a second. */
	double slow;         /* Load, smoothed over half an hour. */
	double floor_level;  /* |slow| when |floor| was set. */
	double peak[AUTOSCALE_SLOTS];
	uint32_t slot, floor; /* |floor|: replicas that stay until |floor_until|; 0: none do. */
	cgn_nsec at, begun, slot_end, floor_until;
	cgn_nsec up_since;   /* More were needed without a break since then; 0: they are not. */
	cgn_nsec busy_at;    /* When a request last ran or waited. */
	cgn_nsec changed_at; /* The last decision that was not AUTOSCALE_STAY. */
};
/* Return how long before a usual rise of the load replicas are ordered, so that they are ready in time. */
cgn_nsec autoscale_lead(const struct autoscale_cfg *cfg, cgn_nsec wake);
/* Decide at |now|. Call about once a second, and carry out the decision. */
void autoscale_step(struct autoscale *a, const struct autoscale_cfg *cfg, const struct autoscale_signals *s,
	cgn_nsec now, struct autoscale_decision *out);

/* ---- worth.c: the replica whose cache is worth least ---- */

/* The worth of a replica's cache. A request that is sent to a replica counts with the prompt tokens that no other replica
 * of the model would have had in cache: these would be computed again without the replica. Each counts half as much
 * after AUTOSCALE_HALF. */
#define AUTOSCALE_HALF (600 * CGN_SEC)
struct autoscale_worth {
	double tokens; /* Decayed sum. */
	uint64_t seen; /* Total of the counter that was noted last. */
	cgn_nsec at;
};
/* |total| tokens were saved so far. The first note, and one below the last total, begin at 0. */
void autoscale_worth_note(struct autoscale_worth *w, uint64_t total, cgn_nsec now);
/* Return the tokens that the cache saves in a second, by recent savings. */
double autoscale_worth_rate(const struct autoscale_worth *w, cgn_nsec now);

struct autoscale_replica {
	const char *id;
	double worth;      /* autoscale_worth_rate. */
	uint64_t held;     /* Blocks in cache, as far as known. */
	uint32_t requests; /* In flight. */
	bool fixed;        /* The replica must stay. */
};
/* Return the index of the replica to remove: the least worth, then the fewest blocks, then the fewest requests, then the
 * last id. |n|: none may be removed. */
size_t autoscale_least_worth(const struct autoscale_replica *r, size_t n);

/* Check the settings. CGN_INVALID: |err| names the key and what it must be. */
CGN_RC autoscale_check_config(const struct config *c, struct cgn_err *err);
