/* SPDX-License-Identifier: Apache-2.0 */
/* rpc, trace: spans of calls whose client continues a trace. Calls without a traceparent are most, and get none. */
#include "joint/report/tracing/tracing.h"
#include "kvcached/rpc/rpc_priv.h"

void rpc_trace_begin(struct rpc_call *c, const char *name)
{
	const struct tracing_rules *rules = tracing_rules_of(c->port->w->daemon->tracing);
	struct cgn_str field = grpc_metadata(c->call, "traceparent");
	uint64_t random[3];
	c->ended = CGN_CANCELLED;
	if (rules == NULL || field.n == 0)
		return;
	cgn_random(random, sizeof random);
	tracing_begin(rules, field, random, &c->trace);
	c->name = name;
	c->began = cgn_clock_now();
}

void rpc_trace_read(struct rpc_call *c)
{
	if (c->trace.sampled)
		value_read_trace(c->read, &c->trace);
}

void rpc_trace_end(const struct rpc_call *c)
{
	/* A watch ends when its client leaves. */
	bool left = c->ended == CGN_CANCELLED && c->method == &rpc_watch;
	if (!c->trace.sampled)
		return;
	struct tracing_span s = {.context = &c->trace,
		.id = c->trace.span,
		.parent = c->trace.parent,
		.name = c->name,
		.kind = TRACING_SERVER,
		.from = c->began,
		.to = cgn_clock_now(),
		.error = c->ended != CGN_FINE && !left ? cgn_code_text(c->ended) : NULL};
	tracing_text(&s, "rpc.system", CGN_STR("grpc"));
	tracing_text(&s, "cgn.code", cgn_str_of(cgn_code_name(c->ended)));
	if (c->at > c->offset)
		tracing_number(&s, "cgn.kv.bytes", c->at - c->offset);
	tracing_add(c->port->w->daemon->tracing, &s);
}
