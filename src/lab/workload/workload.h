/* SPDX-License-Identifier: Apache-2.0 */
/* workload: traces that nobody recorded. What applications do with prefixes, by kind (workloads.def); the
 * same for the same seed on any machine: nothing here asks the C library for a logarithm.
 *
 * A prompt is pieces one behind the other (a system prompt, a document, a message, an answer); a block's id
 * names all that comes before its end, so that prompts share ids exactly as far as they share pieces. Talks
 * begin at random (Poisson) so that |rate| requests a second come on average once talks of all ages are under
 * way; a talk's next turn comes when its answer was read. Memory: the trace, 12 to 24 bytes a distinct block,
 * and some kilobytes for each talk under way. */
#pragma once
#include "lab/trace/trace.h"

enum workload_kind {
#define WORKLOAD(id, text, talk_turns, begin, turn, pause, help) WORKLOAD_##id,
#include "lab/workload/workloads.def"
#undef WORKLOAD
	WORKLOAD_KINDS
};

struct workload_cfg {
	enum workload_kind kind;
	uint64_t seed;
	size_t requests; /* 1 to TRACE_MAX_REQUESTS */
	double rate;     /* requests per second, above 0 */
	/* 0: WORKLOAD_BLOCK_TOKENS; the kind "service" has TRACE_BLOCK_TOKENS always */
	uint32_t block_tokens;
};
#define WORKLOAD_BLOCK_TOKENS 64

/* INVALID: |cfg| is out of bounds; TOO_LARGE, NO_MEMORY. */
CGN_RC workload_make(const struct workload_cfg *cfg, struct trace *out, struct cgn_err *err);
bool workload_find(struct cgn_str text, enum workload_kind *out);
const char *workload_text(enum workload_kind k);
const char *workload_help(enum workload_kind k);
