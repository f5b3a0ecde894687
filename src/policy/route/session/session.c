/* SPDX-License-Identifier: Apache-2.0 */
/* session: the table. A fixed array, a table of its indices, and a list in order of use. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "policy/route/session/session_priv.h"

CGN_RC sessions_new(size_t max, const struct digest *seed, struct sessions **out, struct cgn_err *err)
{
	CGN_MUST(max >= 1 && max < TABLE_MOST);
	struct sessions *s = CGN_NEW(struct sessions);
	*s = (struct sessions){.tag = SESSIONS_TAG, .seed = *seed, .max = (uint32_t)max};
	cgn_list_init(&s->used);
	s->all = calloc(max, sizeof *s->all);
	s->tools = calloc(1, sizeof *s->tools);
	if (s->all == NULL || s->tools == NULL || !table_reserve(&s->table, max)) {
		sessions_free(&s);
		return CGN_FAIL(err, NO_MEMORY, "no memory for %zu sessions", max);
	}
	*out = s;
	return CGN_OK;
}

void sessions_free(struct sessions **take)
{
	struct sessions *s = CGN_TAKE_LIVE(take, SESSIONS_TAG);
	if (s == NULL)
		return;
	table_fini(&s->table);
	free(s->all);
	free(s->tools);
	s->tag = 0;
	free(s);
}

/* ---- the table ---- */

static uint64_t name_key(const struct sessions *s, struct cgn_str tenant, struct cgn_str name)
{
	struct digest d = digest_keyed(&s->seed, tenant);
	d = digest_keyed(&d, name);
	uint64_t key = digest_short(&d);
	return key != 0 ? key : 1;
}

static struct session *session_find(const struct sessions *s, uint64_t key)
{
	uint32_t i = table_find(&s->table, key, &s->all->key, sizeof *s->all);
	return i != TABLE_NONE ? &s->all[i] : NULL;
}

static void session_use(struct sessions *s, struct session *e, cgn_nsec now)
{
	cgn_list_drop(&e->use);
	cgn_list_push_front(&s->used, &e->use);
	e->used = now;
}

/* Take a free place, or that of the session used longest ago. */
static struct session *place_take(struct sessions *s)
{
	if (s->n < s->max)
		return &s->all[s->n++];
	struct session *e = session_of(s->used.prev);
	table_drop(&s->table, e->key, (uint32_t)(e - s->all));
	cgn_list_drop(&e->use);
	return e;
}

static void text_keep(char out[SESSION_TEXT + 1], struct cgn_str text)
{
	text.n = text.n < SESSION_TEXT ? text.n : SESSION_TEXT;
	(void)cgn_str_copyz(out, SESSION_TEXT + 1, text);
}

static struct session *session_add(struct sessions *s, const struct session_name *name, uint64_t key,
	cgn_nsec now)
{
	struct session *e = place_take(s);
	*e = (struct session){.key = key, .began = now, .served_at = now};
	text_keep(e->tenant, name->tenant);
	(void)cgn_str_copyz(e->id, sizeof e->id, name->id);
	table_put(&s->table, key, (uint32_t)(e - s->all));
	cgn_list_push_front(&s->used, &e->use);
	return e;
}

/* ---- tools ---- */

bool session_waits(const struct session *e, cgn_nsec now)
{
	return e->paused && e->running == 0 && cgn_since(now, e->paused_at) < SESSION_PAUSE_MAX;
}

static void pause_end(struct sessions *s, struct session *e, cgn_nsec now, struct session_turn *out)
{
	out->returned = session_waits(e, now);
	e->paused = false;
	if (!out->returned)
		return;
	out->paused = cgn_since(now, e->paused_at);
	out->model = e->model;
	e->tool_time += out->paused;
	tool_times_add(&s->tools->any, out->paused);
	if (e->tool_key != 0)
		tool_times_add(tools_row(s->tools, e->tool_key, cgn_str_of(e->tool)), out->paused);
}

/* The slowest of the tools decides. A tool that is not known counts as any tool. */
static struct session_forecast tools_forecast(struct sessions *s, const struct session *e,
	const struct session_end *end)
{
	struct session_forecast f = {.samples = 0};
	for (size_t i = 0; i < end->n_tools; i++) {
		const struct tool_times *t =
			tools_find(s->tools, name_key(s, cgn_str_of(e->tenant), end->tools[i]));
		if (t == NULL || t->n < SESSION_SAMPLES)
			t = &s->tools->any;
		if (t->n < SESSION_SAMPLES)
			return (struct session_forecast){.samples = 0};
		cgn_nsec p50 = tool_times_quantile(t, 0.5), p90 = tool_times_quantile(t, 0.9);
		f.samples = i == 0 || t->n < f.samples ? t->n : f.samples;
		f.p50 = p50 > f.p50 ? p50 : f.p50;
		f.p90 = p90 > f.p90 ? p90 : f.p90;
	}
	return f;
}

static void pause_begin(struct sessions *s, struct session *e, const struct session_end *end, cgn_nsec now,
	struct session_forecast *out)
{
	e->paused = true;
	e->paused_at = now;
	e->tool_calls++;
	e->model = end->model;
	text_keep(e->tool, end->tools[0]);
	e->tool_key = end->n_tools == 1 ? name_key(s, cgn_str_of(e->tenant), end->tools[0]) : 0;
	*out = e->forecast = tools_forecast(s, e, end);
}

/* ---- service ---- */

double session_service(const struct session *e, cgn_nsec now)
{
	double dt = (double)cgn_since(now, e->served_at) / (double)SESSION_HALF_LIFE;
	return e->service * exp2(-dt);
}

static void service_add(struct session *e, double tokens, cgn_nsec now)
{
	double sum = session_service(e, now) + tokens;
	e->service = sum > 0 ? sum : 0;
	e->served_at = now;
}

uint32_t sessions_charge(struct sessions *s, struct session_turn *turn, uint32_t tokens, cgn_nsec now)
{
	CGN_LIVE(s, SESSIONS_TAG);
	struct session *e = turn->key != 0 ? session_find(s, turn->key) : NULL;
	if (e == NULL)
		return 0;
	double attained = session_service(e, now);
	service_add(e, tokens, now);
	turn->charged += tokens;
	return attained < UINT32_MAX ? (uint32_t)attained : UINT32_MAX;
}

/* ---- a request ---- */

void sessions_begin(struct sessions *s, const struct session_name *name, cgn_nsec now,
	struct session_turn *out)
{
	CGN_LIVE(s, SESSIONS_TAG);
	uint64_t key = name_key(s, name->tenant, name->id);
	struct session *e = session_find(s, key);
	*out = (struct session_turn){.key = key};
	if (e == NULL)
		e = session_add(s, name, key, now);
	e->from = name->from;
	pause_end(s, e, now, out);
	session_use(s, e, now);
	e->running++;
	out->number = ++e->turns;
}

void sessions_end(struct sessions *s, const struct session_end *end, cgn_nsec now,
	struct session_forecast *out)
{
	CGN_LIVE(s, SESSIONS_TAG);
	*out = (struct session_forecast){.samples = 0};
	struct session *e = session_find(s, end->turn->key);
	if (e == NULL)
		return; /* Replaced meanwhile. */
	session_use(s, e, now);
	e->running -= e->running > 0; /* 0: replaced, and added again. */
	e->prompt += end->prompt;
	e->cached += end->cached;
	e->answer += end->answer;
	uint64_t computed = end->prompt - (end->cached < end->prompt ? end->cached : end->prompt);
	service_add(e, (double)(computed + end->answer) - end->turn->charged, now);
	if (end->model_name.n > 0)
		text_keep(e->model_name, end->model_name);
	if (end->node.n > 0) {
		text_keep(e->node, end->node);
		e->place = end->place;
	}
	if (end->n_tools > 0)
		pause_begin(s, e, end, now, out);
}
