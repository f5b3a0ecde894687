/* SPDX-License-Identifier: Apache-2.0 */
/* faults: injected failures of the simulated engine. Pure; randomness is seeded. A fault is KIND[:ARG] or
 * KIND=ARG, then @always (the default), @0.25 (a share of requests), @every=N (each N-th), @after=N (all but
 * the first N), or @nth=N (only the N-th). Each worker counts its own: requests for an answer (not /health,
 * /metrics, /sim), batches of KV events, or replay requests. */
#pragma once
#include "base/core/buf.h"
#include "base/core/err.h"
#include "base/core/str.h"

enum sim_fault_kind {
#define FAULT(id, name, arg, scope, help) SIM_FAULT_##id,
#include "sim/faults/faults.def"
#undef FAULT
	SIM_FAULT_COUNT
};

struct sim_fault {
	enum sim_fault_kind kind;
	uint64_t arg; /* Tokens, status, or nanoseconds. */
	enum { FAULT_ALWAYS, FAULT_CHANCE, FAULT_EVERY, FAULT_AFTER, FAULT_NTH } when;
	double chance;
	uint64_t every;
	uint64_t seen; /* Requests or batches counted so far. */
};

#define SIM_FAULTS_MAX 16
struct sim_faults {
	struct sim_fault list[SIM_FAULTS_MAX];
	unsigned n;
	uint64_t rng;
};

#define SIM_NEVER UINT64_MAX
struct sim_verdict { /* Faults that apply to one request. */
	bool refuse, hang, truncate, uncached;
	int status;                                 /* The error answer's status; 0: there is none */
	uint64_t die_after, cut_after, stall_after; /* Tokens; SIM_NEVER. */
};

struct sim_batch_verdict { /* Faults that apply to one batch of KV events. */
	bool lose, drop, twice, swap, garbage, alien, silent, restart;
};

/* Parse |text|. CGN_INVALID: |err| names the problem and the allowed values. */
CGN_RC sim_fault_parse(struct cgn_str text, struct sim_fault *out, struct cgn_err *err);
void sim_faults_judge(struct sim_faults *f, struct sim_verdict *out);
void sim_faults_judge_batch(struct sim_faults *f, struct sim_batch_verdict *out);
/* Count one replay request; true when it is to be left unanswered. */
bool sim_faults_ignore_replay(struct sim_faults *f);
/* Time after the start during which everything answers 503; 0: none. */
cgn_nsec sim_faults_slow_start(const struct sim_faults *f);
/* Append the fault in the spelling that sim_fault_parse accepts. */
void sim_fault_print(const struct sim_fault *f, struct cgn_buf *out);
