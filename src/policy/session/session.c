/* SPDX-License-Identifier: Apache-2.0 */
/* session: the table. A hash table with chains over a fixed array; a list in order of use. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "policy/session/session_priv.h"

#define SESSIONS_TAG 0x5e551001U
#define NONE         UINT32_MAX

struct session {
	uint64_t key;
	uint32_t chain;        /* Next of the bucket. */
	uint32_t newer, older; /* Used next after this one, and before it. */
	char tenant[SESSION_TEXT + 1], node[SESSION_TEXT + 1], tool[SESSION_TEXT + 1];
	char id[SESSION_ID_MAX + 1];
	enum session_source from;
	uint32_t turns, running, tool_calls;
	bool paused;
	uint64_t model;    /* Hash of the name of the model that called the tools. */
	uint64_t tool_key; /* The key of the one tool that the session waits for; 0: several tools. */
	uint64_t prompt, cached, answer;
	cgn_nsec began, used;
	cgn_nsec paused_at, tool_time;
	double service; /* Attained by |served_at|. */
	cgn_nsec served_at;
	struct session_forecast forecast;
};
_Static_assert(sizeof(struct session) <= SESSION_BYTES, "the header says so");

struct sessions {
	uint32_t tag;
	struct digest seed;
	uint32_t max, n;
	uint32_t newest, oldest;
	uint32_t n_buckets; /* A power of two. */
	uint32_t *buckets;
	struct session *all;
	struct tools *tools;
};

const char *session_state_text(enum session_state state)
{
	static const char *const names[SESSION_STATES] =
		{[SESSION_RUNNING] = "running", [SESSION_TOOL] = "tool", [SESSION_IDLE] = "idle"};
	CGN_MUST(state < SESSION_STATES);
	return names[state];
}

CGN_RC sessions_new(size_t max, const struct digest *seed, struct sessions **out, struct cgn_err *err)
{
	CGN_MUST(max >= 1 && max < NONE / 2);
	struct sessions *s = calloc(1, sizeof *s);
	if (s == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for sessions");
	*s = (struct sessions){.tag = SESSIONS_TAG,
		.seed = *seed,
		.max = (uint32_t)max,
		.newest = NONE,
		.oldest = NONE,
		.n_buckets = 1};
	while (s->n_buckets < s->max)
		s->n_buckets *= 2;
	s->buckets = malloc(s->n_buckets * sizeof *s->buckets);
	s->all = calloc(max, sizeof *s->all);
	s->tools = calloc(1, sizeof *s->tools);
	if (s->buckets == NULL || s->all == NULL || s->tools == NULL) {
		sessions_free(&s);
		return CGN_FAIL(err, NO_MEMORY, "no memory for %zu sessions", max);
	}
	for (uint32_t i = 0; i < s->n_buckets; i++)
		s->buckets[i] = NONE;
	*out = s;
	return CGN_OK;
}

void sessions_free(struct sessions **take)
{
	struct sessions *s = *take;
	*take = NULL;
	if (s == NULL)
		return;
	CGN_LIVE(s, SESSIONS_TAG);
	free(s->buckets);
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

static uint32_t *bucket_of(const struct sessions *s, uint64_t key)
{
	return &s->buckets[key & (s->n_buckets - 1)];
}

static struct session *session_find(const struct sessions *s, uint64_t key)
{
	uint32_t i = *bucket_of(s, key);
	while (i != NONE && s->all[i].key != key)
		i = s->all[i].chain;
	return i != NONE ? &s->all[i] : NULL;
}

static void list_drop(struct sessions *s, struct session *e)
{
	*(e->newer != NONE ? &s->all[e->newer].older : &s->newest) = e->older;
	*(e->older != NONE ? &s->all[e->older].newer : &s->oldest) = e->newer;
}

static void list_add(struct sessions *s, struct session *e)
{
	uint32_t i = (uint32_t)(e - s->all);
	e->newer = NONE;
	e->older = s->newest;
	*(s->newest != NONE ? &s->all[s->newest].newer : &s->oldest) = i;
	s->newest = i;
}

static void session_use(struct sessions *s, struct session *e, cgn_nsec now)
{
	list_drop(s, e);
	list_add(s, e);
	e->used = now;
}

/* Take a free place, or that of the session used longest ago. */
static struct session *place_take(struct sessions *s)
{
	if (s->n < s->max)
		return &s->all[s->n++];
	struct session *e = &s->all[s->oldest];
	uint32_t *at = bucket_of(s, e->key), i = (uint32_t)(e - s->all);
	while (*at != i)
		at = &s->all[*at].chain;
	*at = e->chain;
	list_drop(s, e);
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
	uint32_t *bucket = bucket_of(s, key);
	*e = (struct session){.key = key, .chain = *bucket, .began = now, .served_at = now};
	text_keep(e->tenant, name->tenant);
	(void)cgn_str_copyz(e->id, sizeof e->id, name->id);
	*bucket = (uint32_t)(e - s->all);
	list_add(s, e);
	return e;
}

/* ---- tools ---- */

static bool session_waits(const struct session *e, cgn_nsec now)
{
	return e->paused && e->running == 0 && now - e->paused_at < SESSION_PAUSE_MAX;
}

static void pause_end(struct sessions *s, struct session *e, cgn_nsec now, struct session_turn *out)
{
	out->returned = session_waits(e, now);
	e->paused = false;
	if (!out->returned)
		return;
	out->paused = now - e->paused_at;
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

static double service_now(const struct session *e, cgn_nsec now)
{
	double dt = now > e->served_at ? (double)(now - e->served_at) / (double)SESSION_HALF_LIFE : 0;
	return e->service * exp2(-dt);
}

static void service_add(struct session *e, double tokens, cgn_nsec now)
{
	double sum = service_now(e, now) + tokens;
	e->service = sum > 0 ? sum : 0;
	e->served_at = now;
}

uint32_t sessions_charge(struct sessions *s, struct session_turn *turn, uint32_t tokens, cgn_nsec now)
{
	CGN_LIVE(s, SESSIONS_TAG);
	struct session *e = turn->key != 0 ? session_find(s, turn->key) : NULL;
	if (e == NULL)
		return 0;
	double attained = service_now(e, now);
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
	if (end->node.n > 0)
		text_keep(e->node, end->node);
	if (end->n_tools > 0)
		pause_begin(s, e, end, now, out);
}

/* ---- inspection ---- */

static enum session_state session_state(const struct session *e, cgn_nsec now)
{
	return e->running > 0 ? SESSION_RUNNING : session_waits(e, now) ? SESSION_TOOL : SESSION_IDLE;
}

void sessions_count(const struct sessions *s, cgn_nsec now, size_t out[SESSION_STATES])
{
	CGN_LIVE(s, SESSIONS_TAG);
	memset(out, 0, SESSION_STATES * sizeof *out);
	size_t seen = 0;
	for (uint32_t i = s->newest; i != NONE && now - s->all[i].used < SESSION_PAUSE_MAX;
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
	json_key_f64(j, "waits_ms", ms_of(now - e->paused_at));
	if (e->forecast.samples == 0)
		return;
	json_key_f64(j, "expected_ms", ms_of(e->forecast.p50));
	json_key_f64(j, "expected_p90_ms", ms_of(e->forecast.p90));
}

static void session_json(struct json_out *j, const struct session *e, cgn_nsec now)
{
	enum session_state state = session_state(e, now);
	json_open(j, '{');
	json_key_z(j, "id", e->id);
	json_key_z(j, "tenant", e->tenant);
	json_key_z(j, "from", session_source_text(e->from));
	json_key_z(j, "state", session_state_text(state));
	if (state == SESSION_TOOL)
		forecast_json(j, e, now);
	json_key_z(j, "node", e->node);
	json_key_u64(j, "turns", e->turns);
	json_key_u64(j, "running", e->running);
	json_key_u64(j, "tool_calls", e->tool_calls);
	json_key_f64(j, "tool_ms", ms_of(e->tool_time));
	json_key_u64(j, "prompt_tokens", e->prompt);
	json_key_u64(j, "cached_tokens", e->cached);
	json_key_u64(j, "completion_tokens", e->answer);
	json_key_u64(j, "recent_tokens", (uint64_t)service_now(e, now));
	json_key_f64(j, "age_ms", ms_of(now - e->began));
	json_key_f64(j, "idle_ms", e->running > 0 ? 0 : ms_of(now - e->used));
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

void sessions_json(const struct sessions *s, size_t most, cgn_nsec now, struct json_out *j)
{
	CGN_LIVE(s, SESSIONS_TAG);
	json_key_u64(j, "known", s->n);
	json_key_u64(j, "max", s->max);
	json_key_open(j, "sessions", '[');
	for (uint32_t i = s->newest; i != NONE && most > 0; i = s->all[i].older, most--)
		session_json(j, &s->all[i], now);
	json_close(j, ']');
	json_key_open(j, "tools", '[');
	for (size_t i = 0; i < SESSION_TOOLS; i++)
		if (s->tools->row[i].n > 0)
			tool_json(j, &s->tools->row[i]);
	json_close(j, ']');
}
