/* SPDX-License-Identifier: Apache-2.0 */
/* local: answers of the router itself: the lists of models, health, and the number of a prompt's tokens. */
#include "base/codec/codec.h"
#include "base/json/json.h"
#include "router/answer/answer/ollama.h"
#include "router/answer/answer/reply_priv.h"
#include "router/request/permit/permit.h"
#include "router/shared/peers/peers.h"

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
	bool served = gw_reply_serves(r, id) || (row != NULL && gw_reply_serves(r, row->name));
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
	if (draining || !(gw_reply_any_served(r->w->view) || gw_peers_answer(r->w->shared->peers)))
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
