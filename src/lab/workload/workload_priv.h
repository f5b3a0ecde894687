/* SPDX-License-Identifier: Apache-2.0 */
/* State shared by the files of workload. workload.c: sessions and their requests. kinds.c: contents of
 * sessions. draw.c: randomness. */
#pragma once
#include "lab/workload/workload.h"

#define ZIPF_MAX 300

/* ---- draw.c ---- */

struct workload_rng {
	uint64_t s; /* Never 0. */
};
uint64_t workload_rng_mix(uint64_t x);
uint64_t workload_rng_next(struct workload_rng *d);
uint64_t workload_rng_below(struct workload_rng *d, uint64_t n);
double workload_rng_exponential(struct workload_rng *d); /* Exponential with mean 1; at most 37. */
/* Draw from 0 to n - 1 with weights 1 / (k + 1); n is at most ZIPF_MAX. */
uint32_t workload_rng_zipf(struct workload_rng *d, uint32_t n);

/* ---- workload.c ---- */

struct workload_piece {
	uint64_t key; /* Equal keys have equal contents. */
	uint32_t tokens;
};
struct workload_session {
	uint64_t number;
	cgn_nsec at;     /* Time of the next turn. */
	uint32_t left;   /* Turns left. */
	uint32_t answer; /* Tokens of the answer under way. */
	struct workload_piece *pieces;
	uint32_t n, cap;
	uint64_t tokens;
	bool no_memory; /* Sticky. */
};
struct workload_run {
	const struct workload_cfg *cfg;
	struct workload_rng rng;
	uint64_t keys; /* Counter for keys of contents that no other session has. */
	struct workload_session
		last; /* Pieces of the session that began last, for sessions that split off it. */
	struct trace *trace;
};
void workload_session_put(struct workload_session *t, uint64_t key, uint32_t tokens);
/* Append new contents that no other session has. */
void workload_session_say(struct workload_run *w, struct workload_session *t, uint32_t tokens);
cgn_nsec workload_time(double ns); /* Round to whole milliseconds, as a written trace is read back. */
CGN_RC workload_service_make(struct workload_run *w);

/* ---- kinds.c ---- */

struct workload_kind_row {
	const char *text;
	double turns;
	void (*begin)(struct workload_run *w, struct workload_session *t);
	void (*turn)(struct workload_run *w, struct workload_session *t);
	cgn_nsec (*pause)(struct workload_run *w, const struct workload_session *t);
	const char *help;
};
extern const struct workload_kind_row workload_kinds[WORKLOAD_KINDS];
