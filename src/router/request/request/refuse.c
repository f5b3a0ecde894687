/* SPDX-License-Identifier: Apache-2.0 */
/* refuse: an error instead of an answer. */
#include <stdarg.h>

#include "base/apierror/apierror.h"
#include "base/sse/sse.h"
#include "router/request/request/request.h"

enum gw_step gw_refuse(struct gw_req *r, const struct gw_refusal *how, const char *fmt, ...)
{
	/* A request for a selection may be passed on to the client that it is about. */
	const struct cgn_str shaped = r->selecting != NULL ? r->client.target : r->client.path;
	char message[600];
	va_list ap;
	CGN_MUST(!r->answer.head_sent && !r->answer.refused);
	va_start(ap, fmt);
	(void)vsnprintf(message, sizeof message, fmt, ap);
	va_end(ap);
	apierror_put(&r->answer.refusal_text,
		&(struct apierror){message, how->type, .param = how->param, .code = how->code,
			.status = how->status, .shape = apierror_shape_of(shaped),
			.request_id = r->client.id});
	r->answer.refusal = *how;
	r->answer.refused = true;
	r->answer.outcome = how->code;
	if (how->reason != NULL)
		metric_add(METRIC_OF(r->w->shared->telemetry, REJECTED, how->reason), 1);
	gw_goto(r, GW_ANSWER);
	return STEP_AGAIN;
}

enum gw_step gw_refuse_no_memory(struct gw_req *r, const char *reason)
{
	return gw_refuse(r,
		&(struct gw_refusal){503, "server_error", "no_memory", .reason = reason, .retry_after = 1},
		"out of memory");
}

enum gw_step gw_refuse_body(struct gw_req *r, enum cgn_code code)
{
	if (code == CGN_TOO_LARGE)
		return gw_refuse(r,
			&(struct gw_refusal){413, "invalid_request_error", "request_too_large",
				.reason = "body"},
			"the body is larger than %llu bytes (router.max_body)",
			(unsigned long long)r->w->rules->max_body);
	return gw_refuse(r,
		&(struct gw_refusal){503, "server_error", "overloaded", .reason = "memory", .retry_after = 1},
		"too many request bodies are in memory (router.max_inflight_body)");
}

/* Seconds since 1970 at which the request came. */
static uint64_t started_unix(const struct gw_req *r)
{
	cgn_nsec age = cgn_since(cgn_loop_now(r->w->loop), r->client.started);
	return cgn_since(cgn_clock_wall_ms(), age / CGN_MSEC) / 1000;
}

/* Return the whole events at the end of what came: of a broken one the client has nothing. */
static struct cgn_str tail_shown(const struct gw_req *r)
{
	struct cgn_str tail = usage_tail_view(&r->answer.tail);
	return (struct cgn_str){tail.p, sse_border(tail, 0)};
}

void gw_refusal_event(struct gw_req *r, const struct gw_refusal *how, const char *message,
	const struct cgn_str *shown, struct cgn_buf *out)
{
	const struct apierror e = {message, how->type, .code = how->code, .status = how->status,
		.shape = apierror_shape_of(r->client.path), .request_id = r->client.id};
	struct apierror_response of = {.id = r->answer.response_id,
		.model = r->prompt.asked,
		.created = started_unix(r),
		.sequence = shown != NULL ? 0 : r->answer.events};
	uint64_t last = 0;
	if (apierror_sequence_find(shown != NULL ? *shown : tail_shown(r), &last))
		of.sequence = last + 1;
	apierror_event_put(out, &e, cgn_str_starts(r->client.path, "/v1/responses") ? &of : NULL);
}
