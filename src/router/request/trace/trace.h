/* SPDX-License-Identifier: Apache-2.0 */
/* trace: a request's spans for OpenTelemetry. The request's own span, one for each leg, and what came before the
 * legs. They are made when the request has ended; until then only the trace's ids are kept. */
#pragma once
#include "router/request/request/request.h"

/* Begin or continue a trace, by the client's field |traceparent|. The engine's field is r->client.traceparent. Does
 * nothing when tracing is off. */
void gw_trace_begin(struct gw_req *r, struct cgn_str traceparent);
/* Let the next call continue the trace below leg |leg| (an index of r->plan.legs), below the prefill leg that runs
 * beside it, or below the question for the prompt's tokens. */
#define GW_TRACE_BESIDE 50U
#define GW_TRACE_TOKENS 51U
void gw_trace_leg(struct gw_req *r, unsigned leg);
/* Add the spans of a request that ended with |status|, if it is sampled. */
void gw_trace_end(struct gw_req *r, int status, const char *outcome, cgn_nsec now);
