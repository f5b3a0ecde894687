/* SPDX-License-Identifier: Apache-2.0 */
/* trace: a relayed request's spans for OpenTelemetry: the agent's own, and its call to the engine. */
#include "agent/relay/relay_priv.h"

enum { CHILD_ENGINE = 1, CHILD_SLOT };

void relay_trace_begin(struct relay *r)
{
	const struct tracing_rules *rules = tracing_rules_of(r->all->tracing);
	struct proto_header *field = NULL;
	uint64_t random[3];
	char *text = rules != NULL ? cgn_arena_get(&r->arena, TRACING_PARENT_TEXT + 1) : NULL;
	if (text == NULL)
		return;
	for (size_t i = 0; i < r->rq.n_headers; i++)
		if (cgn_str_is(r->rq.headers[i].name, "traceparent"))
			field = (struct proto_header *)(uintptr_t)&r->rq
					.headers[i]; /* In this request's arena */
	cgn_random(random, sizeof random);
	tracing_begin(rules, field != NULL ? field->value : (struct cgn_str){NULL, 0}, random, &r->trace);
	tracing_parent_write(&r->trace, tracing_child(&r->trace, CHILD_ENGINE), text);
	if (field != NULL)
		field->value = (struct cgn_str){text, TRACING_PARENT_TEXT};
}

static void engine_add(const struct relay *r, cgn_nsec now, const char *error)
{
	struct tracing_span s = {.context = &r->trace,
		.id = tracing_child(&r->trace, CHILD_ENGINE),
		.parent = r->trace.span,
		.name = "engine",
		.kind = TRACING_CLIENT,
		.from = r->asked_at,
		.to = now,
		.error = error};
	tracing_text(&s, "cgn.engine", cgn_str_of(r->engine->name));
	tracing_number(&s, "http.response.status_code", (uint64_t)(r->status > 0 ? r->status : 0));
	if (r->answered_at > r->asked_at)
		tracing_real(&s, "cgn.first_byte_ms",
			(double)cgn_since(r->answered_at, r->asked_at) / (double)CGN_MSEC);
	tracing_add(r->all->tracing, &s);
}

/* The time before the engine was asked: a slot was found, and a stored state restored into it. */
static void slot_add(const struct relay *r)
{
	const struct slot_placement *p = &r->placement;
	struct tracing_span s = {.context = &r->trace,
		.id = tracing_child(&r->trace, CHILD_SLOT),
		.parent = r->trace.span,
		.name = "slot",
		.kind = TRACING_INTERNAL,
		.from = p->began,
		.to = r->asked_at};
	tracing_text(&s, "cgn.slot.outcome", cgn_str_of(restore_outcome_text(p->outcome)));
	if (p->restored)
		tracing_real(&s, "cgn.slot.restore_ms", p->restore_ms);
	tracing_add(r->all->tracing, &s);
}

void relay_trace_end(struct relay *r, bool cancelled)
{
	if (!r->trace.sampled || r->engine == NULL)
		return;
	cgn_nsec now = cgn_clock_now();
	const char *error = r->failed ? "the engine failed" : cancelled ? "cancelled" : NULL;
	struct tracing_span s = {.context = &r->trace,
		.id = r->trace.span,
		.parent = r->trace.parent,
		.name = "relay",
		.kind = TRACING_SERVER,
		.from = r->began,
		.to = now,
		.error = error};
	tracing_text(&s, "cgn.request_id", cgn_str_of(r->id));
	tracing_add(r->all->tracing, &s);
	if (r->asked_at > 0)
		engine_add(r, now, error);
	if (r->asked_at > 0 && r->placement.began > 0)
		slot_add(r);
}
