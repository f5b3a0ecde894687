/* SPDX-License-Identifier: Apache-2.0 */
/* play: a trace that is replayed against simulated nodes and caches, once for each case. */
#pragma once
#include "bench/common/traces.h"
#include "lab/replay/replay.h"

#define PLAY_CASES 16
#define PLAY_HOURS 168

struct play_case {
	char name[32];
	struct route_rules rules;
	struct replay_cfg cfg;
	struct replay_result result;
	double wall_s;
};
struct play {
	const char *name; /* Name of the trace. */
	struct trace trace;
	uint32_t days;            /* Days of the trace, in bench autoscale. */
	struct replay_cfg cfg;    /* The settings of all cases. */
	struct route_rules rules; /* The rules of all cases. */
	struct replay_fleet fleet[PLAY_HOURS];
	struct play_case cases[PLAY_CASES];
	size_t n_cases;
	const char *showing; /* The case in the progress bar. */
};

/* Fill cfg from the flags of all replays: nodes, blocks, seed, speed, engines. */
CGN_RC play_flags(const struct ctl_args *a, struct play *p, struct cgn_err *err);
/* Read --gpu, --wake, and the rules of the default configuration, too. */
CGN_RC play_flags_of_power(const struct ctl_args *a, struct play *p, struct cgn_err *err);
/* Add a case with the rules and cfg of |p| as they are now, which the caller changes. */
struct play_case *play_case_add(struct play *p, struct cgn_str name);
/* Let the replays of |cfg| show their progress as |name|. */
void play_show(struct play *p, const char *name, struct replay_cfg *cfg);
/* Play the trace once for each case. */
CGN_RC play_run(struct play *p, struct cgn_err *err);
void play_free(struct play **take);

/* Seconds from the first arrival to the last, as they are played. */
double play_seconds(const struct play *p);
uint64_t play_refused(const struct replay_result *r);
uint64_t play_answer_tokens(const struct replay_result *r);
void play_samples(struct json_out *o, const char *key, struct samples *s); /* A member of an object. */
