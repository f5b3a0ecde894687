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
	for (uint32_t i = s->newest; i != SESSION_NONE && cgn_since(now, s->all[i].used) < SESSION_PAUSE_MAX;
		i = s->all[i].older) {
		out[session_state(&s->all[i], now)]++;
		seen++;
	}
	out[SESSION_IDLE] += s->n - seen;
}

static double ms_of(cgn_nsec t)
{
	return (double)(t / CGN_USEC) / 1e3;
}

static void forecast_json(struct json_out *j, const struct session *e, cgn_nsec now)
{
	json_key_z(j, "tool", e->tool);
	json_key_f64(j, "waits_ms", ms_of(cgn_since(now, e->paused_at)));
	if (e->forecast.samples == 0)
		return;
	json_key_f64(j, "expected_ms", ms_of(e->forecast.p50));
	json_key_f64(j, "expected_p90_ms", ms_of(e->forecast.p90));
}

static void session_json(struct json_out *j, const struct session *e, const char *kv, cgn_nsec now)
{
	enum session_state state = session_state(e, now);
	json_open(j, '{');
	json_key_z(j, "id", e->id);
	json_key_z(j, "tenant", e->tenant);
	json_key_z(j, "from", session_source_text(e->from));
	json_key_z(j, "state", session_state_text(state));
	if (state == SESSION_TOOL)
		forecast_json(j, e, now);
	json_key_z(j, "model", e->model_name);
	json_key_z(j, "node", e->node);
	if (kv != NULL)
		json_key_z(j, "kv", kv);
	json_key_u64(j, "turns", e->turns);
	json_key_u64(j, "running", e->running);
	json_key_u64(j, "tool_calls", e->tool_calls);
	json_key_f64(j, "tool_ms", ms_of(e->tool_time));
	json_key_u64(j, "prompt_tokens", e->prompt);
	json_key_u64(j, "cached_tokens", e->cached);
	json_key_u64(j, "completion_tokens", e->answer);
	json_key_u64(j, "recent_tokens", (uint64_t)session_service(e, now));
	json_key_f64(j, "age_ms", ms_of(cgn_since(now, e->began)));
	json_key_f64(j, "idle_ms", e->running > 0 ? 0 : ms_of(cgn_since(now, e->used)));
	json_close(j, '}');
}

static void tool_json(struct json_out *j, const struct tool_times *t)
{
	json_open(j, '{');
	json_key_z(j, "name", t->name);
	json_key_u64(j, "samples", t->n);
	json_key_f64(j, "p50_ms", ms_of(tool_times_quantile(t, 0.5)));
	json_key_f64(j, "p90_ms", ms_of(tool_times_quantile(t, 0.9)));
	json_close(j, '}');
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
	for (uint32_t i = s->newest; i != SESSION_NONE && seen < SESSION_LOOK; i = s->all[i].older, seen++) {
		const struct session *e = &s->all[i];
		if (!session_matches(e, q, now))
			continue;
		out[n] = (struct pick){session_rank(e, q->sort, now), (uint32_t)n, i};
		n++;
	}
	return n;
}

bool sessions_json(const struct sessions *s, const struct session_query *q, cgn_nsec now, struct json_out *j)
{
	CGN_LIVE(s, SESSIONS_TAG);
	size_t room = s->n < SESSION_LOOK ? s->n : SESSION_LOOK;
	struct pick *picks = calloc(room + 1, sizeof *picks);
	if (picks == NULL)
		return false;
	size_t n = picks_find(s, q, now, picks);
	if (q->sort != SESSION_BY_USE)
		qsort(picks, n, sizeof *picks, pick_order);
	json_key_u64(j, "known", s->n);
	json_key_u64(j, "max", s->max);
	json_key_u64(j, "matched", n);
	json_key_open(j, "sessions", '[');
	for (size_t i = q->skip; i < n && i - q->skip < q->most; i++) {
		const struct session *e = &s->all[picks[i].at];
		session_json(j, e, q->kv != NULL ? q->kv(q->user, &e->place) : NULL, now);
	}
	json_close(j, ']');
	free(picks);
	json_key_open(j, "tools", '[');
	for (size_t i = 0; i < SESSION_TOOLS; i++)
		if (s->tools->row[i].n > 0)
			tool_json(j, &s->tools->row[i]);
	json_close(j, ']');
	return true;
}
