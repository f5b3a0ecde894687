/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of workload share. workload.c: talks and their requests · kinds.c: what talks are made of ·
 * draw.c: chance. */
#pragma once
#include "lab/workload/workload.h"

#define ZIPF_MAX 300

/* ---- draw.c ---- */

struct dice {
	uint64_t s; /* never 0 */
};
uint64_t workload_rng_mix(uint64_t x);
uint64_t workload_rng_next(struct dice *d);
uint64_t workload_rng_below(struct dice *d, uint64_t n);
double workload_rng_unit(struct dice *d);        /* (0, 1] */
double workload_rng_exponential(struct dice *d); /* exponential, mean 1; at most 37 */
/* 0 to n - 1, the k-th as 1 / (k + 1); n is at most ZIPF_MAX. */
uint32_t workload_rng_zipf(struct dice *d, uint32_t n);

/* ---- workload.c ---- */

struct piece {
	uint64_t key; /* equal keys, equal contents */
	uint32_t tokens;
};
struct talk {
	uint64_t number;
	cgn_nsec at;     /* of its next turn */
	uint32_t left;   /* turns */
	uint32_t answer; /* tokens of the turn under way */
	struct piece *pieces;
	uint32_t n, cap;
	uint64_t tokens;
	bool no_memory; /* sticky */
};
struct work {
	const struct workload_cfg *cfg;
	struct dice dice;
	uint64_t keys;    /* of what nobody else says */
	struct talk last; /* pieces of the talk that began last, for those that split off it */
	struct trace *trace;
};
void workload_talk_put(struct talk *t, uint64_t key, uint32_t tokens);
void workload_talk_say(struct work *w, struct talk *t, uint32_t tokens); /* something new */
cgn_nsec workload_time(double ns); /* whole milliseconds: what is written reads the same */
CGN_RC workload_service_make(struct work *w);

/* ---- kinds.c ---- */

struct kind {
	const char *text;
	double turns;
	void (*begin)(struct work *w, struct talk *t);
	void (*turn)(struct work *w, struct talk *t);
	cgn_nsec (*pause)(struct work *w, const struct talk *t);
	const char *help;
};
extern const struct kind workload_kinds[WORKLOAD_KINDS];
