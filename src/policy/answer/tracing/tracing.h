/* SPDX-License-Identifier: Apache-2.0 */
/* tracing: W3C trace context (https://www.w3.org/TR/trace-context/, level 1) and OpenTelemetry's samplers. Pure.
 *
 * A request has one context: the trace that it belongs to, and the span of this program. The spans below it get
 * ids that are computed from it, so that nothing is stored while the request runs. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/core/err.h"
#include "base/core/str.h"

#define TRACING_TRACE_BYTES 16
#define TRACING_PARENT_TEXT 55 /* Bytes of a traceparent: 00-TRACE-SPAN-FLAGS. */

struct tracing_context {
	uint8_t trace[TRACING_TRACE_BYTES];
	uint64_t span;   /* This program's span; 0: there is no context. */
	uint64_t parent; /* The caller's span; 0: the trace begins here. */
	bool sampled;    /* Spans are recorded. */
};

/* How it is decided whether a trace is recorded. */
enum tracing_sampler { TRACING_ALL, TRACING_NONE, TRACING_SHARE };
struct tracing_rules {
	enum tracing_sampler sampler;
	bool parent_decides; /* The caller's decision counts where there is a caller. */
	double share;        /* TRACING_SHARE: of the traces, 0 to 1. */
};
/* Read the values of OTEL_TRACES_SAMPLER and OTEL_TRACES_SAMPLER_ARG (empty: not set). Without a sampler:
 * parentbased_traceidratio, one trace of 100. CGN_INVALID names the variable and the allowed values. */
CGN_RC tracing_rules_read(struct cgn_str sampler, struct cgn_str arg, struct tracing_rules *out,
	struct cgn_err *err);

/* Continue the trace of the field |traceparent|; without a valid one begin a trace. |random|: three numbers. */
void tracing_begin(const struct tracing_rules *rules, struct cgn_str traceparent, const uint64_t random[3],
	struct tracing_context *out);
/* Return the id of the |n|-th span below |c|'s; n counts from 1. */
uint64_t tracing_child(const struct tracing_context *c, unsigned n);
/* Write the traceparent by which the next program continues below |span|. |out| gets a NUL too. */
void tracing_parent_write(const struct tracing_context *c, uint64_t span, char out[TRACING_PARENT_TEXT + 1]);
