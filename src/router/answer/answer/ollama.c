/* SPDX-License-Identifier: Apache-2.0 */
#include "router/answer/answer/ollama.h"

#include "policy/answer/ollama/ollama.h"
#include "router/answer/answer/relay.h"
#include "router/answer/answer/reply_priv.h"
#include "router/request/hooks/hooks.h"
#include "router/request/permit/permit.h"
#include "router/shared/peers/peers.h"

#define LATEST    ":latest"
#define JSON_TYPE "application/json; charset=utf-8"

static struct ollama_time time_now(const struct gw_req *r)
{
	/* the loop's time stands still within a turn, and a fast answer comes in one */
	return (struct ollama_time){cgn_clock_wall_ms(), cgn_since(cgn_clock_now(), r->client.started)};
}

/* ---- requests ---- */

static enum gw_step body_refuse(struct gw_req *r, const char *what, const char *why)
{
	return gw_refuse(r,
		&(struct gw_refusal){400, "invalid_request_error", "invalid_body", .reason = "invalid"},
		"%s%s", what, why);
}

static bool is_known(const struct gw_req *r, struct cgn_str name)
{
	return (gw_rules_model(r->w->rules, name) != NULL || view_model_find(r->w->view, name) != NULL) &&
		gw_permit_model(r, name);
}

/* Return the name that the router knows: clients add Ollama's default tag to a name without one. */
static struct cgn_str name_known(const struct gw_req *r, struct cgn_str asked)
{
	struct cgn_str bare = {asked.p, asked.n - strlen(LATEST)};
	bool tagged = asked.n > strlen(LATEST) && memcmp(asked.p + bare.n, LATEST, strlen(LATEST)) == 0;
	return tagged && !is_known(r, asked) && is_known(r, bare) ? bare : asked;
}

/* Return |name|, or router.default_model in place of a name that nothing here has. */
static struct cgn_str name_served(const struct gw_req *r, struct cgn_str name)
{
	const struct cgn_str other = gw_permit_default(r);
	bool there =
		is_known(r, name) || (gw_permit_model(r, name) && gw_peers_know(r->w->shared->peers, name));
	return there || other.n == 0 || !r->w->view->settled ? name : other;
}

/* Engines want to be told that the body is JSON; Ollama does not. */
static bool type_set(struct gw_req *r)
{
	const struct proto_header json = {CGN_STR("content-type"), CGN_STR("application/json")};
	for (size_t i = 0; i < r->client.n_headers; i++)
		if (cgn_str_is(r->client.headers[i].name, "content-type")) {
			r->client.headers[i] = json;
			return true;
		}
	if (r->client.n_headers >= PROTO_MAX_HEADERS)
		return true;
	struct proto_header *v = cgn_arena_get(&r->arena, (r->client.n_headers + 1) * sizeof *v);
	if (v == NULL)
		return false;
	memcpy(v, r->client.headers, r->client.n_headers * sizeof *v);
	v[r->client.n_headers++] = json;
	r->client.headers = v;
	return true;
}

static enum gw_step model_unknown(struct gw_req *r, struct cgn_str asked)
{
	if (!r->w->view->settled)
		return gw_refuse(r,
			&(struct gw_refusal){503, "server_error", "no_node", .reason = "no_node",
				.retry_after = 2},
			"no node is known to serve '%.*s' yet", (int)(asked.n < 200 ? asked.n : 200),
			asked.p);
	return gw_refuse(r,
		&(struct gw_refusal){404, "invalid_request_error", "model_not_found", .param = "model",
			.reason = "model"},
		"model '%.*s' not found", (int)(asked.n < 200 ? asked.n : 200), asked.p);
}

/* Return true if an agent loads the model when requests ask for it. */
static bool is_on_demand(const struct gw_req *r, struct cgn_str name)
{
	const struct gw_model *row = gw_rules_model(r->w->rules, name);
	const struct view_model *m = view_model_find(r->w->view, row != NULL ? row->name : name);
	for (size_t i = 0; m != NULL && i < m->n_ready; i++)
		if (m->swap[i] != NULL && m->swap[i]->by_agent)
			return true;
	return false;
}

/* Answer a request that asks only to load a model: there is nothing to do. */
static enum gw_step loaded_reply(struct gw_req *r, enum ollama_api api, struct cgn_str asked, bool unloads)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	ollama_put_loaded(api, asked, unloads, cgn_clock_wall_ms(), &b);
	return gw_reply_typed(r, 200, JSON_TYPE, &b);
}

static struct ollama_model model_of(const struct gw_req *r, struct cgn_str name)
{
	const struct view_model *m = gw_reply_model(r, name);
	return (struct ollama_model){.name = name,
		.card = m != NULL ? m->card.members : (struct cgn_str){NULL, 0},
		.context = m != NULL ? m->card.context : 0,
		.since_ms = gw_reply_created(r, m) * 1000};
}

static enum gw_step show_reply(struct gw_req *r, struct cgn_str name)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	const struct ollama_model m = model_of(r, name);
	ollama_put_show(&m, &b);
	return gw_reply_typed(r, 200, JSON_TYPE, &b);
}

/* A body on its way to becoming one for an engine. */
struct gw_ollama_reading {
	struct cgn_str asked, known;
	struct ollama_request rq;
	struct cgn_buf own;
	struct cgn_err err;
	enum cgn_code code;
};

/* Make the request one that an agent answers when it has loaded the model. */
static void load_write(struct gw_req *r, struct gw_ollama_reading *z)
{
	struct json_out j = json_out_to(&z->own);
	json_open(&j, '{');
	json_key_str(&j, "model", z->known);
	json_close(&j, '}');
	z->rq.path = PROTO_LOAD_PATH;
	z->rq.stream = false;
	r->answer.ollama_loads = true;
	r->answer.ollama_unloads = z->rq.unloads;
	r->answer.ollama_asked = z->asked;
	if (z->own.bad)
		(void)gw_refuse_no_memory(r, "memory");
}

bool gw_ollama_begin(struct gw_req *r)
{
	struct json_val model = r->prompt.facts.model;
	struct cgn_str asked = {NULL, 0};
	/* "name" is an older spelling */
	if (model.raw.p != NULL || json_get(r->prompt.facts.json, "name", &model))
		asked = model.type == JSON_STRING ? json_str(model, &r->arena) : asked;
	if (asked.n == 0)
		asked = gw_permit_default(r);
	if (asked.n == 0) {
		(void)body_refuse(r, "model is required", "");
		return false;
	}
	const struct cgn_str known = name_served(r, name_known(r, asked));
	if (r->client.route->kind == GW_OLLAMA_SHOW) {
		(void)(is_known(r, known) ? show_reply(r, known) : model_unknown(r, asked));
		return false;
	}
	asked = cgn_arena_str(&r->arena, asked); /* outlives the body */
	struct gw_ollama_reading *z = cgn_arena_zero(&r->arena, sizeof *z);
	if (z != NULL)
		z->known = cgn_arena_str(&r->arena, known);
	if (z == NULL || asked.p == NULL || z->known.p == NULL) {
		(void)gw_refuse_no_memory(r, "memory");
		return false;
	}
	z->asked = asked;
	r->answer.ollama_reading = z;
	return true;
}

void gw_ollama_run(struct gw_req *r)
{
	struct gw_ollama_reading *z = r->answer.ollama_reading;
	z->code = ollama_request_read(ollama_api_of(r->client.path), r->prompt.facts.json, z->known, &z->rq,
		&z->own, &z->err)
			  .code;
}

bool gw_ollama_take(struct gw_req *r)
{
	struct gw_ollama_reading *z = r->answer.ollama_reading;
	enum ollama_api api = ollama_api_of(r->client.path);
	if (z->code == CGN_NO_MEMORY)
		(void)gw_refuse_no_memory(r, "memory");
	else if (z->code != CGN_FINE)
		(void)body_refuse(r, "", z->err.msg);
	else if (z->rq.loads && is_on_demand(r, z->known))
		load_write(r, z);
	else if (z->rq.loads)
		(void)(is_known(r, z->known) ? loaded_reply(r, api, z->asked, z->rq.unloads)
					     : model_unknown(r, z->asked));
	if (r->state != GW_ROUTE)
		return false;
	if (z->rq.keeps)
		r->prompt.keep_alive = proto_keep_alive(z->rq.keep_alive_ms);
	r->answer.ollama = ollama_answer_new(api, z->rq.stream, z->asked);
	if (r->answer.ollama == NULL || !type_set(r)) {
		(void)gw_refuse_no_memory(r, "memory");
		return false;
	}
	ollama_answer_expect(r->answer.ollama, z->rq.vectors);
	gw_body_replace(r, &z->own);
	r->client.target = cgn_str_of(z->rq.path);
	return true;
}

void gw_ollama_drop(struct gw_req *r)
{
	if (r->answer.ollama_reading != NULL)
		cgn_buf_fini(&r->answer.ollama_reading->own);
	ollama_answer_free(&r->answer.ollama);
	cgn_buf_fini(&r->answer.whole);
}

/* ---- answers ---- */

static void head_send(struct gw_req *r, int status, int64_t length)
{
	struct http_field f[1 + GW_RELAY_FIELDS];
	size_t n = 0;
	f[n++] = (struct http_field){CGN_STR("content-type"),
		cgn_str_of(ollama_answer_type(r->answer.ollama))};
	n += gw_relay_fields(r, f + n);
	r->answer.status = status;
	gw_out_head(r, status, f, n, length);
}

void gw_ollama_head(struct gw_req *r, struct cgn_str encoding)
{
	r->answer.ollama_lines =
		ollama_answer_begin(r->answer.ollama, r->attempt.status, r->attempt.events, encoding);
	if (r->answer.ollama_lines)
		head_send(r, 200, -1);
}

static void body_send(struct gw_req *r, const struct cgn_buf *b)
{
	if (b->bad)
		http_exchange_abort(r->client.x, CGN_NO_MEMORY);
	else if (b->n > 0)
		gw_out_body(r, cgn_buf_view(b));
}

void gw_ollama_feed(struct gw_req *r, struct cgn_str data)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf lines = {0};
	const struct ollama_time now = time_now(r);
	bool at_once = r->answer.ollama_lines;
	ollama_answer_feed(r->answer.ollama, data, &now, at_once ? &lines : &r->answer.whole);
	if (at_once)
		body_send(r, &lines);
}

static void whole_send(struct gw_req *r)
{
	if (!r->answer.ollama_lines)
		head_send(r, ollama_answer_status(r->answer.ollama), (int64_t)r->answer.whole.n);
	body_send(r, &r->answer.whole);
	gw_relay_close(r);
}

/* The agent has loaded the model. */
static void loaded_send(struct gw_req *r)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	ollama_put_loaded(ollama_api_of(r->client.path), r->answer.ollama_asked, r->answer.ollama_unloads,
		cgn_clock_wall_ms(), &b);
	head_send(r, 200, (int64_t)b.n);
	body_send(r, &b);
	gw_relay_close(r);
}

void gw_ollama_end(struct gw_req *r)
{
	const struct ollama_time now = time_now(r);
	if (r->answer.ollama_loads && r->attempt.status == 200) {
		loaded_send(r);
		return;
	}
	ollama_answer_end(r->answer.ollama, &now, &r->answer.whole);
	whole_send(r);
}

void gw_ollama_cut(struct gw_req *r, const char *why)
{
	ollama_answer_cut(r->answer.ollama, why, &r->answer.whole);
	whole_send(r);
}

/* ---- lists ---- */

struct list {
	const struct gw_req *r;
	struct json_out j;
	bool running;
};

/* Find how the model is loaded: the place where it stays longest. False: it is loaded nowhere. */
static bool running_find(const struct gw_req *r, struct cgn_str name, struct ollama_running *out)
{
	const struct view_model *m = view_model_find(r->w->view, name);
	bool found = false;
	for (size_t i = 0; m != NULL && i < m->n_ready; i++) {
		const struct view_swap *s = m->swap[i];
		struct ollama_running one = {0};
		if (s != NULL && !s->loaded)
			continue;
		if (s != NULL)
			one = (struct ollama_running){s->memory_bytes, s->expires_unix_ms};
		if (!found || one.expires_ms == 0 ||
			(out->expires_ms > 0 && one.expires_ms > out->expires_ms))
			*out = one;
		found = true;
	}
	return found;
}

static void card_put(void *arg, struct cgn_str name, bool is_alias)
{
	struct list *l = arg;
	struct ollama_running running;
	const struct ollama_model m = model_of(l->r, name);
	if (!l->running)
		ollama_put_card(&l->j, &m, NULL);
	else if (!is_alias && running_find(l->r, name, &running))
		ollama_put_card(&l->j, &m, &running);
}

static enum gw_step list_reply(struct gw_req *r, bool running)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	struct list l = {r, json_out_to(&b), running};
	if (gw_reply_unheard(r))
		return STEP_AGAIN;
	json_open(&l.j, '{');
	json_key_open(&l.j, "models", '[');
	gw_reply_names(r, card_put, &l);
	json_close(&l.j, ']');
	json_close(&l.j, '}');
	return gw_reply_typed(r, 200, JSON_TYPE, &b);
}

static enum gw_step version_reply(struct gw_req *r)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	cgn_buf_putz(&b, "{\"version\":\"" OLLAMA_VERSION "\",\"cognitora\":\"" CGN_VERSION "\"}");
	return gw_reply_typed(r, 200, JSON_TYPE, &b);
}

enum gw_step gw_ollama_reply(struct gw_req *r)
{
	enum gw_route_kind kind = r->client.route->kind;
	if (kind == GW_OLLAMA_TAGS || kind == GW_OLLAMA_PS)
		return list_reply(r, kind == GW_OLLAMA_PS);
	if (kind == GW_OLLAMA_VERSION)
		return version_reply(r);
	return gw_refuse(r, &(struct gw_refusal){501, "not_supported_error", "not_supported"},
		"models are not managed here: the engines behind this router have theirs already");
}
