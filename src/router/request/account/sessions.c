/* SPDX-License-Identifier: Apache-2.0 */
#include "router/request/account/sessions.h"
#include "router/request/account/account.h"

#include <pthread.h>
#include <stdlib.h>

#include "io/net/net/addr.h"
#include "policy/text/toolcall/toolcall.h"
#include "router/shared/worker/worker.h"

#define SESSIONS_TAG 0x645e5501U
#define PAUSES_MAX   64

struct gw_sessions {
	uint32_t tag;
	pthread_mutex_t lock;
	struct sessions *table;
	struct gw_sessions_cfg cfg; /* |told| NULL: closed. */
	uint32_t refs;              /* The router's, and that of |post| while it is under way. */
	bool posted;
	struct cgn_post post;
	struct gw_pause pauses[PAUSES_MAX]; /* Not told yet. */
	size_t n_pauses;
};

CGN_RC gw_sessions_open(const struct gw_sessions_cfg *cfg, struct gw_sessions **out, struct cgn_err *err)
{
	struct digest seed;
	struct gw_sessions *s = CGN_NEW(struct gw_sessions);
	s->tag = SESSIONS_TAG;
	s->cfg = *cfg;
	s->refs = 1;
	cgn_random(&seed, sizeof seed);
	cgn_rc rc = sessions_new(cfg->max, &seed, &s->table, err);
	if (!cgn_ok(rc)) {
		free(s);
		return rc;
	}
	(void)pthread_mutex_init(&s->lock, NULL);
	*out = s;
	return CGN_OK;
}

static void sessions_lock(struct gw_sessions *s)
{
	CGN_LIVE(s, SESSIONS_TAG);
	(void)pthread_mutex_lock(&s->lock);
}

static void sessions_unlock(struct gw_sessions *s)
{
	(void)pthread_mutex_unlock(&s->lock);
}

static void sessions_unref(struct gw_sessions *s)
{
	sessions_lock(s);
	bool last = --s->refs == 0;
	sessions_unlock(s);
	if (!last)
		return;
	sessions_free(&s->table);
	(void)pthread_mutex_destroy(&s->lock);
	s->tag = 0;
	free(s);
}

void gw_sessions_close(struct gw_sessions **take)
{
	struct gw_sessions *s = CGN_TAKE(take);
	if (s == NULL)
		return;
	s->cfg.told = NULL;
	sessions_unref(s);
}

static void on_pauses(struct cgn_loop *l, struct cgn_post *p)
{
	(void)l;
	struct gw_sessions *s = CGN_CONTAINER(p, struct gw_sessions, post);
	struct gw_pause pauses[PAUSES_MAX];
	sessions_lock(s);
	size_t n = s->n_pauses;
	memcpy(pauses, s->pauses, n * sizeof *pauses);
	s->n_pauses = 0;
	s->posted = false;
	sessions_unlock(s);
	for (size_t i = 0; i < n && s->cfg.told != NULL; i++)
		s->cfg.told(s->cfg.user, &pauses[i]);
	sessions_unref(s);
}

/* Keep a pause for the control loop. When too many wait to be told, this one is not told: nodes then treat the
 * conversation as any other. */
static void pause_post(struct gw_sessions *s, const struct gw_pause *pause)
{
	sessions_lock(s);
	bool post = !s->posted;
	if (s->n_pauses < PAUSES_MAX)
		s->pauses[s->n_pauses++] = *pause;
	s->refs += post;
	s->posted = true;
	sessions_unlock(s);
	if (post)
		cgn_loop_post(s->cfg.loop, &s->post, on_pauses);
}

void gw_sessions_fill(struct gw_sessions *s, const struct session_query *q, cgn_nsec now, struct pb_tree *t,
	Cognitora__V1__Sessions *to)
{
	sessions_lock(s);
	sessions_fill(s->table, q, now, t, to);
	sessions_unlock(s);
}

void gw_sessions_report(struct gw_sessions *s, struct telemetry *t, cgn_nsec now)
{
	size_t n[SESSION_STATES];
	sessions_lock(s);
	sessions_count(s->table, now, n);
	sessions_unlock(s);
	for (size_t i = 0; i < SESSION_STATES; i++)
		metric_set(METRIC_OF(t, SESSIONS, session_state_text((enum session_state)i)), (double)n[i]);
}

/* ---- a request ---- */

/* The session that a client of Anthropic's API names in the body, unless a header names one. */
static void name_from_body(struct gw_req *r)
{
	const struct json_val *user = &r->prompt.facts.user;
	char text[512], id[SESSION_ID_MAX];
	struct cgn_buf plain = cgn_buf_over(text, sizeof text);
	if (user->raw.p == NULL || user->type != JSON_STRING ||
		(r->client.session.id.n > 0 && r->client.session.from < SESSION_FROM_METADATA))
		return;
	json_str_to(*user, &plain);
	size_t n = plain.bad ? 0 : session_id_of_user(cgn_buf_view(&plain), id);
	struct cgn_str kept =
		n > 0 ? cgn_arena_str(&r->arena, (struct cgn_str){id, n}) : (struct cgn_str){NULL, 0};
	if (kept.p == NULL)
		return;
	r->client.session.id = kept;
	r->client.session.from = SESSION_FROM_METADATA;
}

static bool is_answer_asked(const struct gw_req *r)
{
	enum gw_route_kind kind = r->client.route->kind;
	return r->client.route->scope == AUTH_CHAT && !r->identity.own &&
		(kind == GW_RELAY || kind == GW_OLLAMA);
}

/* A session is made of answers. A cookie that was made for this request names no session before it comes back. */
static bool is_turn(const struct gw_req *r)
{
	bool fresh = r->client.session.from == SESSION_FROM_COOKIE && r->client.set_cookie.n > 0;
	return r->client.session.id.n > 0 && !fresh && is_answer_asked(r);
}

/* Where sessions take turns, the requests of a key, or of an address, that name no session count as one session:
 * leaving the name out is of no use. */
static bool is_pooled(const struct gw_req *r, char address[NET_ADDR_GROUP_MAX], struct session_name *out)
{
	net_addr_group(r->client.peer, address);
	const struct cgn_str key = cgn_str_of(r->identity.key_id != NULL ? r->identity.key_id : address);
	if (r->w->rules->queue.policy != QUEUE_SESSIONS || !is_answer_asked(r) || !session_id_is_ok(key))
		return false;
	*out = (struct session_name){r->identity.tenant, key, SESSION_FROM_KEY};
	return true;
}

void gw_session_begin(struct gw_req *r)
{
	struct gw_sessions *s = r->w->shared->sessions;
	struct telemetry *t = r->w->shared->telemetry;
	struct session_turn *turn = &r->client.turn;
	if (turn->key != 0)
		return;
	name_from_body(r);
	r->client.session.tenant = r->identity.tenant;
	struct session_name name = r->client.session;
	char address[NET_ADDR_GROUP_MAX];
	if (s == NULL || (!is_turn(r) && !is_pooled(r, address, &name)))
		return;
	sessions_lock(s);
	sessions_begin(s->table, &name, r->client.started, turn);
	sessions_unlock(s);
	metric_add(METRIC_OF(t, SESSION_TURNS, session_source_text(name.from)), 1);
	if (turn->returned)
		metric_observe(METRIC_ONE(t, TOOL_PAUSE_SECONDS), turn->paused);
}

static bool is_answered(const struct gw_req *r)
{
	return r->answer.status == 200 && r->answer.outcome == NULL && r->client.why.code == CGN_FINE;
}

/* The turn after a tool brings the whole history: show how much of it was in a cache. */
static void return_count(const struct gw_req *r)
{
	struct telemetry *t = r->w->shared->telemetry;
	const struct usage *u = &r->answer.usage;
	if (!r->client.turn.returned || !u->has_prompt || !u->has_cached)
		return;
	metric_add(METRIC_OF(t, SESSION_RETURN_TOKENS, "cached"), u->cached_tokens);
	metric_add(METRIC_OF(t, SESSION_RETURN_TOKENS, "prompt"), u->prompt_tokens);
}

void gw_session_end(struct gw_req *r)
{
	struct gw_sessions *s = r->w->shared->sessions;
	const struct gw_prediction *g = &r->plan.prediction;
	const struct gw_used used = gw_used_of(r);
	struct toolcall *t = r->answer.tools;
	struct session_forecast f;
	if (s == NULL || r->client.turn.key == 0)
		return;
	if (t != NULL)
		toolcall_end(t);
	const struct session_end end = {.turn = &r->client.turn,
		.node = cgn_str_of(r->attempt.call.node_id),
		.place = {.node = g->node, .last = g->last, .slot = r->attempt.call.slot},
		.model_name = r->prompt.model,
		.tools = t != NULL ? t->names : NULL,
		.n_tools = t != NULL && is_answered(r) ? t->n : 0,
		.model = route_hash(r->prompt.model.p, r->prompt.model.n),
		.prompt = used.input,
		.cached = used.cached,
		.answer = used.output};
	sessions_lock(s);
	sessions_end(s->table, &end, cgn_loop_now(r->w->loop), &f);
	sessions_unlock(s);
	if (f.samples > 0 && g->last != 0 && plan_attempts(&r->plan.legs) > 0)
		pause_post(s, &(struct gw_pause){r->attempt.call.slot, g->node, g->last, f});
	return_count(r);
}

uint32_t gw_session_charge(struct gw_req *r, uint32_t tokens)
{
	struct gw_sessions *s = r->w->shared->sessions;
	if (s == NULL || r->client.turn.key == 0)
		return 0;
	sessions_lock(s);
	uint32_t attained = sessions_charge(s->table, &r->client.turn, tokens, cgn_loop_now(r->w->loop));
	sessions_unlock(s);
	return attained;
}

void gw_session_answer(struct gw_req *r, bool events)
{
	if (r->client.turn.key == 0 || !is_turn(r) || !r->prompt.tools || r->attempt.status != 200 ||
		r->answer.tools != NULL)
		return;
	r->answer.tools = CGN_NEW(struct toolcall);
	toolcall_init(r->answer.tools, events);
}

void gw_session_drop(struct gw_req *r)
{
	if (r->answer.tools == NULL)
		return;
	toolcall_fini(r->answer.tools);
	free(r->answer.tools);
	r->answer.tools = NULL;
}
