/* SPDX-License-Identifier: Apache-2.0 */
/* list: sessions as operators see them. */
#include <stdlib.h>
#include <string.h>

#include "policy/route/session/session_priv.h"

const char *session_state_text(enum session_state state)
{
	static const char *const names[SESSION_STATES] =
		{[SESSION_RUNNING] = "running", [SESSION_TOOL] = "tool", [SESSION_IDLE] = "idle"};
	CGN_MUST(state < SESSION_STATES);
	return names[state];
}

enum session_state session_state_find(struct cgn_str text)
{
	enum session_state state = SESSION_RUNNING;
	while (state < SESSION_STATES && !cgn_str_is(text, session_state_text(state)))
		state++;
	return state;
}

enum session_sort session_sort_find(struct cgn_str text)
{
	static const char *const names[SESSION_SORTS] = {"used", "turns", "tokens", "tools", "age"};
	enum session_sort sort = SESSION_BY_USE;
	while (sort < SESSION_SORTS && !cgn_str_is(text, names[sort]))
		sort++;
	return sort;
}

static enum session_state session_state(const struct session *e, cgn_nsec now)
{
	return e->running > 0 ? SESSION_RUNNING : session_waits(e, now) ? SESSION_TOOL : SESSION_IDLE;
}

void sessions_count(const struct sessions *s, cgn_nsec now, size_t out[SESSION_STATES])
{
	CGN_LIVE(s, SESSIONS_TAG);
	memset(out, 0, SESSION_STATES * sizeof *out);
	size_t seen = 0;
	cgn_list_each (it, &s->used) {
		const struct session *e = session_of(it);
		if (cgn_since(now, e->used) >= SESSION_PAUSE_MAX)
			break;
		out[session_state(e, now)]++;
		seen++;
	}
	out[SESSION_IDLE] += s->n - seen;
}

static double ms_of(cgn_nsec t)
{
	return (double)(t / CGN_USEC) / 1e3;
}

static void call_fill(const struct session *e, cgn_nsec now, struct pb_tree *t,
	Cognitora__V1__SessionTool *to)
{
	to->tool = pb_tree_text(t, cgn_str_of(e->tool));
	to->waits_ms = ms_of(cgn_since(now, e->paused_at));
	if (e->forecast.samples == 0)
		return;
	to->forecast = PB_NEW(t, session_forecast);
	to->forecast->expected_ms = ms_of(e->forecast.p50);
	to->forecast->expected_p90_ms = ms_of(e->forecast.p90);
}

static void session_fill(const struct session *e, const char *kv, cgn_nsec now, struct pb_tree *t,
	Cognitora__V1__Session *to)
{
	enum session_state state = session_state(e, now);
	to->id = pb_tree_text(t, cgn_str_of(e->id));
	to->tenant = pb_tree_text(t, cgn_str_of(e->tenant));
	to->from = pb_text(session_source_text(e->from));
	to->state = pb_text(session_state_text(state));
	if (state == SESSION_TOOL)
		call_fill(e, now, t, to->call = PB_NEW(t, session_tool));
	to->model = pb_tree_text(t, cgn_str_of(e->model_name));
	to->node = pb_tree_text(t, cgn_str_of(e->node));
	to->kv = pb_text(kv != NULL ? kv : "");
	to->turns = e->turns;
	to->running = e->running;
	to->tool_calls = e->tool_calls;
	to->tool_ms = ms_of(e->tool_time);
	to->prompt_tokens = e->prompt;
	to->cached_tokens = e->cached;
	to->completion_tokens = e->answer;
	to->recent_tokens = (uint64_t)session_service(e, now);
	to->age_ms = ms_of(cgn_since(now, e->began));
	to->idle_ms = e->running > 0 ? 0 : ms_of(cgn_since(now, e->used));
}

static void tool_fill(const struct tool_times *times, struct pb_tree *t, Cognitora__V1__ToolTimes *to)
{
	to->name = pb_tree_text(t, cgn_str_of(times->name));
	to->samples = times->n;
	to->p50_ms = ms_of(tool_times_quantile(times, 0.5));
	to->p90_ms = ms_of(tool_times_quantile(times, 0.9));
}

/* ---- a page ---- */

struct pick {
	double rank; /* The highest comes first. */
	uint32_t order, at;
};

static bool text_matches(struct cgn_str want, const char *text)
{
	return want.n == 0 || cgn_str_is(want, text);
}

static bool session_matches(const struct session *e, const struct session_query *q, cgn_nsec now)
{
	return (q->state == SESSION_STATES || session_state(e, now) == q->state) &&
		text_matches(q->tenant, e->tenant) && text_matches(q->model, e->model_name) &&
		text_matches(q->node, e->node);
}

static double session_rank(const struct session *e, enum session_sort sort, cgn_nsec now)
{
	switch (sort) {
	case SESSION_BY_TURNS:
		return e->turns;
	case SESSION_BY_TOKENS:
		return (double)e->prompt + (double)e->answer;
	case SESSION_BY_TOOLS:
		return (double)e->tool_time;
	case SESSION_BY_AGE:
		return (double)cgn_since(now, e->began);
	case SESSION_BY_USE:
	case SESSION_SORTS:
		break;
	}
	return 0;
}

static int pick_order(const void *a, const void *b)
{
	const struct pick *x = a, *y = b;
	if (x->rank > y->rank || x->rank < y->rank)
		return x->rank > y->rank ? -1 : 1;
	return (x->order > y->order) - (x->order < y->order);
}

/* Find the sessions that |q| is about among the SESSION_LOOK used last; in order of use. */
static size_t picks_find(const struct sessions *s, const struct session_query *q, cgn_nsec now,
	struct pick *out)
{
	size_t n = 0, seen = 0;
	cgn_list_each (it, &s->used) {
		const struct session *e = session_of(it);
		if (seen++ == SESSION_LOOK)
			break;
		if (!session_matches(e, q, now))
			continue;
		out[n] = (struct pick){session_rank(e, q->sort, now), (uint32_t)n, (uint32_t)(e - s->all)};
		n++;
	}
	return n;
}

void sessions_fill(const struct sessions *s, const struct session_query *q, cgn_nsec now, struct pb_tree *t,
	Cognitora__V1__Sessions *to)
{
	CGN_LIVE(s, SESSIONS_TAG);
	size_t room = s->n < SESSION_LOOK ? s->n : SESSION_LOOK;
	struct pick *picks = pb_tree_array(t, room + 1, sizeof *picks);
	if (picks == NULL)
		return;
	size_t n = picks_find(s, q, now, picks);
	if (q->sort != SESSION_BY_USE)
		qsort(picks, n, sizeof *picks, pick_order);
	to->known = s->n;
	to->max = s->max;
	to->matched = n;
	for (size_t i = q->skip; i < n && i - q->skip < q->most; i++) {
		const struct session *e = &s->all[picks[i].at];
		session_fill(e, q->kv != NULL ? q->kv(q->user, &e->place) : NULL, now, t,
			PB_ADD(t, to, sessions, session));
	}
	for (size_t i = 0; i < SESSION_TOOLS; i++)
		if (s->tools->row[i].n > 0)
			tool_fill(&s->tools->row[i], t, PB_ADD(t, to, tools, tool_times));
}
