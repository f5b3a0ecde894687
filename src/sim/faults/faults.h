/* SPDX-License-Identifier: Apache-2.0 */
/* faults: what the simulated engine does wrong, and to which requests. Pure; its randomness is seeded.
 * KIND[:ARG] or KIND=ARG, then @always (the default), @0.25 (that share of requests), @every=N (each N-th),
 * @after=N (all but the first N), @nth=N (that one alone). Counted per worker, over requests for an answer
 * (not /health, /metrics, /sim), batches of KV events, or replay requests. */
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
	uint64_t arg; /* tokens, status, or nanoseconds */
	enum { FAULT_ALWAYS, FAULT_CHANCE, FAULT_EVERY, FAULT_AFTER, FAULT_NTH } when;
	double chance;
	uint64_t every;
	uint64_t seen; /* requests or batches that met it */
};

#define SIM_FAULTS_MAX 16
struct sim_faults {
	struct sim_fault list[SIM_FAULTS_MAX];
	unsigned n;
	uint64_t rng;
};

#define SIM_NEVER UINT64_MAX
struct sim_verdict { /* what becomes of one request */
	bool refuse, hang, truncate, uncached;
	int status;                                 /* 0: none */
	uint64_t die_after, cut_after, stall_after; /* tokens; SIM_NEVER */
};

struct sim_batch_verdict { /* what becomes of one batch of KV events */
	bool lose, drop, twice, swap, garbage, alien, silent, restart;
};

/* CGN_INVALID says what is wrong with |text| and what is allowed. */
CGN_RC sim_fault_parse(struct cgn_str text, struct sim_fault *out, struct cgn_err *err);
void sim_faults_judge(struct sim_faults *f, struct sim_verdict *out);
void sim_faults_judge_batch(struct sim_faults *f, struct sim_batch_verdict *out);
bool sim_faults_ignore_replay(struct sim_faults *f);                  /* to this replay request */
cgn_nsec sim_faults_slow_start(const struct sim_faults *f);           /* 0: none */
void sim_fault_print(const struct sim_fault *f, struct cgn_buf *out); /* in the spelling that is parsed */
