/* SPDX-License-Identifier: Apache-2.0 */
/* reply: refusals, the list of models, and health. */
#include "router/answer/answer/reply_priv.h"

#include "base/codec/codec.h"
#include "base/json/json.h"
#include "router/answer/answer/keepalive.h"
#include "router/answer/answer/ollama.h"
#include "router/answer/answer/relay.h"
#include "router/request/hooks/hooks.h"
#include "router/request/limit/limit.h"
#include "router/request/permit/permit.h"
#include "router/shared/peers/peers.h"

static void answer_send(struct gw_req *r, int status, const struct http_field *fields, size_t n,
	struct cgn_str body)
{
	r->answer.status = status;
	r->answer.head_sent = true;
	r->answer.bytes_out = body.n;
	r->answer.first_byte = r->answer.last_byte = cgn_loop_now(r->w->loop);
	http_exchange_reply(r->client.x, status, fields, n, body);
	gw_body_drop(r);
}

static size_t common_fields(const struct gw_req *r, struct http_field *f)
{
	f[0] = (struct http_field){CGN_STR("content-type"), CGN_STR("application/json")};
	f[1] = (struct http_field){CGN_STR("x-request-id"), r->client.id};
	return r->client.id.n > 0 ? 2 : 1;
}

/* Note a caller who lacks the right for the request. */
static void refusal_note(const struct gw_req *r)
{
	const struct gw_refusal *how = &r->answer.refusal;
	if (!how->noted && (how->status == 401 || how->status == 403))
		gw_permit_note(r, "gateway.request", how->code);
}

/* The client has the head of an event stream already. */
static void refusal_tell(struct gw_req *r)
{
	const struct cgn_buf *body = &r->answer.refusal_text;
	refusal_note(r);
	r->answer.refused = false;
	r->answer.first_byte = r->answer.last_byte = cgn_loop_now(r->w->loop);
	gw_keepalive_refuse(r, &r->answer.refusal, body->bad ? CGN_STR("{}") : cgn_buf_view(body));
}

static void refusal_send(struct gw_req *r)
{
	const struct gw_refusal *how = &r->answer.refusal;
	const struct cgn_buf *body = &r->answer.refusal_text;
	struct http_field f[9 + GW_LIMIT_FIELDS];
	char seconds[16];
	size_t n = common_fields(r, f);
	(void)snprintf(seconds, sizeof seconds, "%u", how->retry_after);
	f[n++] = (struct http_field){CGN_STR("x-cgn-refused-by"),
		cgn_str_of(how->by != NULL ? how->by : GW_BY_ROUTER)};
	if (how->retry_after > 0)
		f[n++] = (struct http_field){CGN_STR("retry-after"), cgn_str_of(seconds)};
	if (r->client.if_available && how->status == 503)
		f[n++] = GW_PREFERENCE_APPLIED;
	if (how->status == 401)
		f[n++] = (struct http_field){CGN_STR("www-authenticate"),
			CGN_STR("Bearer realm=\"cognitora\"")};
	if (how->allow != NULL)
		f[n++] = (struct http_field){CGN_STR("allow"), cgn_str_of(how->allow)};
	if (how->accept_encoding != NULL)
		f[n++] = (struct http_field){CGN_STR("accept-encoding"), cgn_str_of(how->accept_encoding)};
	n += gw_limit_fields(r, f + n);
	refusal_note(r);
	if (r->plan.quoted != NULL && r->plan.quoted->text.n > 0)
		f[n++] = (struct http_field){CGN_STR("x-cgn-quote"), r->plan.quoted->text};
	if (r->plan.explain_text.n > 0)
		f[n++] = (struct http_field){CGN_STR("x-cgn-explain"), r->plan.explain_text};
	r->answer.refused = false;
	answer_send(r, how->status, f, n, body->bad ? CGN_STR("{}") : cgn_buf_view(body));
}

enum gw_step gw_answer(struct gw_req *r)
{
	if (r->answer.refused && r->answer.early)
		refusal_tell(r);
	else if (r->answer.refused)
		refusal_send(r);
	if (gw_hold_is_on(r)) {
		gw_goto(r, GW_CHECK);
		return STEP_AGAIN;
	}
	return gw_park(r, WAIT_CLIENT, 0);
}

/* ---- answers of the router itself ---- */

enum gw_step gw_reply_typed(struct gw_req *r, int status, const char *type, const struct cgn_buf *b)
{
	struct http_field f[2];
	size_t n = common_fields(r, f);
	f[0].value = cgn_str_of(type);
	r->answer.outcome = "ok";
	if (b->bad)
		return gw_refuse_no_memory(r, NULL);
	gw_goto(r, GW_ANSWER);
	answer_send(r, status, f, n, cgn_buf_view(b));
	return STEP_AGAIN;
}

enum gw_step gw_reply_json(struct gw_req *r, int status, const struct cgn_buf *b)
{
	return gw_reply_typed(r, status, "application/json", b);
}

const struct view_model *gw_reply_model(const struct gw_req *r, struct cgn_str name)
{
	const struct view_model *m = view_model_find(r->w->view, name);
	const struct gw_model *row = m == NULL ? gw_rules_model(r->w->rules, name) : NULL;
	return row != NULL ? view_model_find(r->w->view, row->name) : m;
}

uint64_t gw_reply_created(const struct gw_req *r, const struct view_model *m)
{
	return m != NULL && m->card.created > 0 ? m->card.created : r->w->shared->started_unix;
}

static void model_json(const struct gw_req *r, struct json_out *j, struct cgn_str id)
{
	const struct view_model *m = gw_reply_model(r, id);
	json_open(j, '{');
	json_key_str(j, "id", id);
	json_key_z(j, "object", "model");
	json_key_u64(j, "created", gw_reply_created(r, m));
	json_key_z(j, "owned_by", "cognitora");
	if (m != NULL && m->card.members.n > 0)
		cgn_buf_fmt(j->b, ",%.*s", CGN_STR_ARG(m->card.members));
	json_close(j, '}');
}

/* Does a node serve the model, or would a request wake one that does? */
static bool is_here(const struct view_model *m)
{
	return m->n_ready > 0 || m->wakes;
}

static bool any_is_here(const struct cluster_view *v)
{
	size_t i = 0;
	while (i < v->n_models && !is_here(&v->models[i]))
		i++;
	return i < v->n_models;
}

static bool is_served(const struct gw_req *r, struct cgn_str name)
{
	const struct view_model *m = view_model_find(r->w->view, name);
	return (m != NULL && is_here(m)) || gw_peers_know(r->w->shared->peers, name);
}

/* Put a name that the caller may know. */
static void name_put(const struct gw_req *r, gw_name_fn put, void *arg, struct cgn_str name, bool is_alias)
{
	if (gw_permit_model(r, name))
		put(arg, name, is_alias);
}

/* Put the models of peers that no node has; each once. */
static void peer_names_put(const struct gw_req *r, gw_name_fn put, void *arg)
{
	const struct gw_peers *peers = r->w->shared->peers;
	for (size_t i = 0; peers != NULL && i < peers->n; i++)
		for (size_t k = 0; peers->v[i].url != NULL && k < peers->v[i].n_models; k++) {
			struct cgn_str name = peers->v[i].models[k].ours;
			const struct view_model *m = view_model_find(r->w->view, name);
			const struct gw_peers before = {.v = peers->v, .n = i};
			if ((m == NULL || !is_here(m)) && !gw_peers_know(&before, name))
				name_put(r, put, arg, name, false);
		}
}

void gw_reply_names(const struct gw_req *r, gw_name_fn put, void *arg)
{
	for (size_t i = 0; i < r->w->view->n_models; i++)
		if (is_here(&r->w->view->models[i]))
			name_put(r, put, arg, r->w->view->models[i].name, false);
	for (size_t i = 0; i < r->w->rules->n_models; i++) {
		const struct gw_model *m = &r->w->rules->models[i];
		for (size_t a = 0; is_served(r, m->name) && a < m->n_aliases; a++)
			if (!is_served(r, m->aliases[a]))
				name_put(r, put, arg, m->aliases[a], true);
	}
	peer_names_put(r, put, arg);
}

static void name_count(void *arg, struct cgn_str name, bool is_alias)
{
	(void)name;
	(void)is_alias;
	++*(size_t *)arg;
}

bool gw_reply_unheard(struct gw_req *r)
{
	size_t n = 0;
	if (r->w->view->heard || any_is_here(r->w->view)) /* The list may be empty for this caller alone. */
		return false;
	gw_reply_names(r, name_count, &n);
	if (n == 0)
		(void)gw_refuse(r, &(struct gw_refusal){503, "server_error", "no_node", .retry_after = 2},
			"no model is known yet: the membership was not heard");
	return n == 0;
}

struct model_list {
	const struct gw_req *r;
	struct json_out j;
};

static void model_add(void *arg, struct cgn_str name, bool is_alias)
{
	struct model_list *l = arg;
	(void)is_alias;
	model_json(l->r, &l->j, name);
}

static enum gw_step models_reply(struct gw_req *r)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	struct model_list l = {r, json_out_to(&b)};
	if (gw_reply_unheard(r))
		return STEP_AGAIN;
	json_open(&l.j, '{');
	json_key_z(&l.j, "object", "list");
	json_key_open(&l.j, "data", '[');
	gw_reply_names(r, model_add, &l);
	json_close(&l.j, ']');
	json_close(&l.j, '}');
	return gw_reply_json(r, 200, &b);
}

/* The chain is dropped: counting leaves nothing in an engine's cache. */
bool gw_reply_count(struct gw_req *r)
{
	const struct gw_prompt *p = &r->prompt;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	struct json_out j = json_out_to(&b);
	/* No message is without a token: an engine that says so is not believed. */
	bool exact = p->block_tokens > 0 && !p->media && p->chain.n < ROUTE_MAX_BLOCKS && p->tokens > 0;
	r->prompt.chain = (struct prefix_chain){NULL, 0};
	if (!exact)
		return false;
	json_open(&j, '{');
	json_key_u64(&j, "input_tokens", p->tokens);
	json_close(&j, '}');
	(void)gw_reply_json(r, 200, &b);
	return true;
}

static struct cgn_str path_unescape(struct gw_req *r, struct cgn_str s)
{
	char *to = cgn_arena_get(&r->arena, s.n + 1);
	return to != NULL ? (struct cgn_str){to, percent_get(to, s)} : (struct cgn_str){NULL, 0};
}

static enum gw_step model_reply(struct gw_req *r)
{
	static const struct gw_refusal unknown = {404, "invalid_request_error", "model_not_found",
		.param = "model"};
	static const struct gw_refusal unsettled = {503, "server_error", "no_node", .retry_after = 2};
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	struct json_out j = json_out_to(&b);
	struct cgn_str rest = r->client.path, path = cgn_str_split(&rest, '?');
	size_t lead = strlen("/v1/models/");
	struct cgn_str id = path_unescape(r, (struct cgn_str){path.p + lead, path.n - lead});
	const struct gw_model *row = gw_rules_model(r->w->rules, id);
	bool served = is_served(r, id) || (row != NULL && is_served(r, row->name));
	if (id.p == NULL || !served || !gw_permit_model_noted(r, id))
		return gw_refuse(r, r->w->view->settled ? &unknown : &unsettled,
			r->w->view->settled ? "the model `%.*s` does not exist here"
					    : "no node is known to serve `%.*s` yet",
			(int)(id.n < 200 ? id.n : 200), id.p);
	model_json(r, &j, id);
	return gw_reply_json(r, 200, &b);
}

static enum gw_step readyz_reply(struct gw_req *r)
{
	bool draining = atomic_load_explicit(&r->w->shared->draining, memory_order_relaxed);
	if (draining || !(any_is_here(r->w->view) || gw_peers_answer(r->w->shared->peers)))
		return gw_refuse(r, &(struct gw_refusal){503, "server_error", "not_ready", .retry_after = 1},
			"%s", draining ? "the router is draining" : "no node is ready");
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	cgn_buf_putz(&b, "{\"status\":\"ready\"}");
	return gw_reply_json(r, 200, &b);
}

static enum gw_step text_reply(struct gw_req *r, const char *json)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	cgn_buf_putz(&b, json);
	return gw_reply_json(r, 200, &b);
}

enum gw_step gw_reply_local(struct gw_req *r)
{
	switch (r->client.route->kind) {
	case GW_INDEX:
		return gw_reply_index(r);
	case GW_MODELS:
		return models_reply(r);
	case GW_MODEL:
		return model_reply(r);
	case GW_READYZ:
		return readyz_reply(r);
	case GW_HEALTHZ:
		return text_reply(r, "{\"status\":\"ok\"}");
	case GW_SUMMARY:
		return gw_reply_summary(r);
	case GW_VERSION:
		return text_reply(r, "{\"version\":\"" CGN_VERSION "\"}");
	case GW_OLLAMA_TAGS:
	case GW_OLLAMA_PS:
	case GW_OLLAMA_VERSION:
	case GW_OLLAMA_LACKS:
		return gw_ollama_reply(r);
	case GW_RELAY:
	case GW_MEDIA:
	case GW_COUNT:
	case GW_OLLAMA:
	case GW_OLLAMA_SHOW:
	case GW_QUOTE:
	case GW_SELECT:
	case GW_STORED:
	case GW_NATIVE:
	case GW_ABOUT:
	case GW_BATCH:
	case GW_SELECTED:
		break;
	}
	CGN_MUST(!gw_route_has_body(r->client.route->kind));
	return STEP_END;
}
