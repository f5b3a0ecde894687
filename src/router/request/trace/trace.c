/* SPDX-License-Identifier: Apache-2.0 */
#include "router/request/trace/trace.h"

#include "base/mix/mix.h"
#include "joint/report/tracing/tracing.h"

/* Numbers of the request's children, besides its legs. */
enum { CHILD_LEG = 1, CHILD_RECEIVE = 60, CHILD_LIMIT, CHILD_QUEUE, CHILD_PICK, CHILD_HOOK };

void gw_trace_begin(struct gw_req *r, struct cgn_str traceparent)
{
	const struct tracing_rules *rules = tracing_rules_of(r->w->shared->tracing);
	uint64_t random[3];
	/* Probes and lists would be most of the traces, and say nothing. */
	if (rules == NULL || !cgn_str_is(r->client.method, "POST"))
		return;
	for (size_t i = 0; i < CGN_COUNT(random); i++)
		random[i] = mix_splitmix(&r->w->random);
	tracing_begin(rules, traceparent, random, &r->client.trace);
	for (size_t i = 0; i < r->client.n_headers; i++)
		if (cgn_str_is(r->client.headers[i].name, "traceparent"))
			r->client.traceparent = &r->client.headers[i];
	if (r->client.traceparent == NULL && r->client.n_headers < PROTO_MAX_HEADERS) {
		r->client.traceparent = &r->client.headers[r->client.n_headers++];
		r->client.traceparent->name = CGN_STR("traceparent");
	}
	gw_trace_leg(r, 0);
}

static uint64_t leg_span(const struct gw_req *r, unsigned leg)
{
	return tracing_child(&r->client.trace, CHILD_LEG + leg);
}

void gw_trace_leg(struct gw_req *r, unsigned leg)
{
	if (r->client.traceparent == NULL)
		return;
	char *text = cgn_arena_get(&r->arena, TRACING_PARENT_TEXT + 1);
	if (text == NULL) /* The engine then continues below the leg before. */
		return;
	tracing_parent_write(&r->client.trace, leg_span(r, leg), text);
	r->client.traceparent->value = (struct cgn_str){text, TRACING_PARENT_TEXT};
}

/* ---- spans ---- */

static struct tracing_span child_of(const struct gw_req *r, unsigned n, const char *name, cgn_nsec from,
	cgn_nsec to)
{
	return (struct tracing_span){.context = &r->client.trace,
		.id = tracing_child(&r->client.trace, n),
		.parent = r->client.trace.span,
		.name = name,
		.kind = TRACING_INTERNAL,
		.from = from,
		.to = to};
}

/* The times before the first leg, one after the other, as a request meets them. A retry that waited again makes them
 * longer, not more. */
static void steps_add(struct gw_req *r)
{
	static const struct {
		const char *name;
		enum gw_state state;
		unsigned child;
	} steps[] = {{"receive", GW_BODY, CHILD_RECEIVE}, {"hook", GW_HOOK, CHILD_HOOK},
		{"limit", GW_LIMIT, CHILD_LIMIT}, {"tokens", GW_TOKENS, CHILD_LEG + GW_TRACE_TOKENS},
		{"queue", GW_QUEUE, CHILD_QUEUE}};
	cgn_nsec at = r->client.started;
	for (size_t i = 0; i < CGN_COUNT(steps); i++) {
		cgn_nsec took = r->times.us[steps[i].state] * CGN_USEC;
		struct tracing_span s = child_of(r, steps[i].child, steps[i].name, at, at + took);
		if (took > 0)
			tracing_add(r->w->shared->tracing, &s);
		at += took;
	}
}

static void pick_add(struct gw_req *r, const struct plan_leg *first)
{
	struct tracing_span s = child_of(r, CHILD_PICK, "pick",
		first->sent_at > r->plan.pick_took ? first->sent_at - r->plan.pick_took : first->sent_at,
		first->sent_at);
	tracing_number(&s, "cgn.blocks", first->blocks);
	tracing_number(&s, "cgn.blocks_held", first->held);
	tracing_number(&s, "cgn.cached_tokens.predicted", r->plan.prediction.cached);
	tracing_text(&s, "cgn.decision", r->plan.explain_text);
	tracing_add(r->w->shared->tracing, &s);
}

static void leg_add(struct gw_req *r, unsigned i, cgn_nsec now)
{
	static const char *const names[] =
		{[LEG_WHOLE] = "answer leg", [LEG_PREFILL] = "prefill leg", [LEG_DECODE] = "decode leg"};
	const struct plan_leg *leg = &r->plan.legs.legs[i];
	bool over = leg->state == LEG_SUCCEEDED || leg->state == LEG_FAILED;
	struct tracing_span s = child_of(r, CHILD_LEG + i, names[leg->role], leg->sent_at,
		over ? leg->sent_at + leg->took : now);
	s.kind = TRACING_CLIENT;
	s.error = leg->state == LEG_FAILED ? "the leg failed" : NULL;
	tracing_text(&s, "cgn.node", cgn_str_of(leg->node));
	tracing_number(&s, "cgn.blocks_held", leg->held);
	tracing_flag(&s, "cgn.direct", r->attempt.by_engine && i + 1 == r->plan.legs.n);
	if (i + 1 == r->plan.legs.n && r->answer.first_byte > leg->sent_at)
		tracing_real(&s, "cgn.first_byte_ms",
			(double)cgn_since(r->answer.first_byte, leg->sent_at) / (double)CGN_MSEC);
	tracing_add(r->w->shared->tracing, &s);
}

static void beside_add(struct gw_req *r, cgn_nsec first_sent)
{
	if (r->plan.beside_node == NULL)
		return;
	struct tracing_span s = child_of(r, CHILD_LEG + GW_TRACE_BESIDE, "prefill leg", first_sent,
		first_sent + r->plan.beside_took);
	s.kind = TRACING_CLIENT;
	tracing_text(&s, "cgn.node", cgn_str_of(r->plan.beside_node));
	tracing_add(r->w->shared->tracing, &s);
}

/* Names of attributes: OpenTelemetry's semantic conventions for HTTP and for generative AI, else cgn. */
static void request_add(struct gw_req *r, int status, const char *outcome, cgn_nsec now)
{
	struct cgn_str rest = r->client.path, path = cgn_str_split(&rest, '?');
	const struct usage *u = &r->answer.usage;
	const struct gw_used *used = &r->answer.used;
	char name[160];
	(void)snprintf(name, sizeof name, "%.*s %.*s", CGN_STR_ARG(r->client.method), CGN_STR_ARG(path));
	struct tracing_span s = child_of(r, 0, name, r->client.started, now);
	s.id = r->client.trace.span;
	s.parent = r->client.trace.parent;
	s.kind = TRACING_SERVER;
	s.error = status >= 500 ? outcome : NULL;
	tracing_text(&s, "http.request.method", r->client.method);
	tracing_text(&s, "url.path", path);
	tracing_number(&s, "http.response.status_code", (uint64_t)(status > 0 ? status : 0));
	tracing_text(&s, "gen_ai.request.model", r->prompt.model);
	if (used->input > 0)
		tracing_number(&s, "gen_ai.usage.input_tokens", used->input);
	if (used->input > 0 || u->has_completion)
		tracing_number(&s, "gen_ai.usage.output_tokens", used->output);
	if (used->estimated)
		tracing_flag(&s, "cgn.tokens_estimated", true);
	if (u->has_cached)
		tracing_number(&s, "cgn.cached_tokens", u->cached_tokens);
	tracing_text(&s, "cgn.request_id", r->client.id);
	tracing_text(&s, "cgn.tenant", r->identity.tenant);
	tracing_text(&s, "cgn.outcome", cgn_str_of(outcome));
	tracing_flag(&s, "cgn.stream", r->answer.event_stream);
	tracing_number(&s, "cgn.retries",
		plan_attempts(&r->plan.legs) > 0 ? plan_attempts(&r->plan.legs) - 1 : 0);
	tracing_add(r->w->shared->tracing, &s);
}

void gw_trace_end(struct gw_req *r, int status, const char *outcome, cgn_nsec now)
{
	const struct plan *legs = &r->plan.legs;
	unsigned sent = 0;
	if (!r->client.trace.sampled)
		return;
	request_add(r, status, outcome, now);
	steps_add(r);
	for (unsigned i = 0; i < legs->n; i++) {
		if (legs->legs[i].state == LEG_PLANNED)
			continue;
		if (sent++ == 0) {
			pick_add(r, &legs->legs[i]);
			beside_add(r, legs->legs[i].sent_at);
		}
		leg_add(r, i, now);
	}
}
