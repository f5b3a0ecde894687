/* SPDX-License-Identifier: Apache-2.0 */
/* workload: generated traces. Each kind (workloads.def) shares prefixes as an application of that kind does.
 * Equal seeds give equal traces on any machine, because no function of the C library's math is used.
 *
 * A prompt is a sequence of pieces (a system prompt, a document, a message, an answer). The id of a block
 * names all text up to its end, so two prompts share ids exactly as far as they share pieces. Sessions begin
 * at random (Poisson) such that |rate| requests a second arrive on average once sessions of all ages are
 * under way. The next turn of a session comes after its answer was read. Memory: the trace, 12 to 24 bytes a
 * distinct block, and a few kilobytes for each session under way. */
#pragma once
#include "lab/trace/trace.h"

enum workload_kind {
#define WORKLOAD(id, text, session_turns, begin, turn, pause, help) WORKLOAD_##id,
#include "lab/workload/workloads.def"
#undef WORKLOAD
	WORKLOAD_KINDS
};

struct workload_cfg {
	enum workload_kind kind;
	uint64_t seed;
	size_t requests; /* 1 to TRACE_MAX_REQUESTS. */
	double rate;     /* Requests per second, above 0. */
	/* 0: WORKLOAD_BLOCK_TOKENS. The kind "service" always has TRACE_BLOCK_TOKENS. */
	uint32_t block_tokens;
};
#define WORKLOAD_BLOCK_TOKENS 64

/* Generate a trace. INVALID: |cfg| is out of bounds; TOO_LARGE, NO_MEMORY. */
CGN_RC workload_make(const struct workload_cfg *cfg, struct trace *out, struct cgn_err *err);
bool workload_find(struct cgn_str text, enum workload_kind *out);
const char *workload_text(enum workload_kind k);
const char *workload_help(enum workload_kind k);
