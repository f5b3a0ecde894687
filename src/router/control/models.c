/* SPDX-License-Identifier: Apache-2.0 */
/* models: reports how each model's prompts are tokenised: in the log when it changes, on /models of the admin
 * port, and in Control.Status. */
#include <stdlib.h>

#include "base/json/json.h"
#include "base/log/log.h"
#include "router/control/router.h"
#include "router/rules/tokenizer_set.h"

/* Models whose last logged mode is remembered; changes of further models are not logged. */
#define LOGGED_MAX 4096

struct router_model_logged {
	char *name;
	enum gw_tokens_mode mode;
};

struct router_model router_model_of(const struct router *r, struct cgn_str name)
{
	const struct gw_model *row = gw_rules_model(r->published.rules, name);
	const struct view_model *m =
		r->published.view != NULL ? view_model_find(r->published.view, name) : NULL;
	struct router_model out = {
		.mode = gw_tokens_mode_of(row, m),
		.n_ready = m != NULL ? m->n_ready : 0,
		.tokenizers = row != NULL ? row->tokenizers : NULL,
		.block_tokens = row != NULL ? row->block_tokens : GW_BLOCK_TOKENS,
		.block_bytes = row != NULL ? row->block_bytes : GW_BLOCK_BYTES,
	};
	int asked = row != NULL ? row->tokens : TOKENS_AUTO;
	out.why = out.mode == GW_FILE
		? (row->tokenizers->chat.compiled != NULL
				  ? "its tokenizer and template"
				  : "its tokenizer; chats have no template and are bytes")
		: out.mode == GW_ENGINE
		? (m->tokenizes ? "its engines tell tokens" : "as configured; its engines may tell tokens")
		: asked == TOKENS_BYTES  ? "as configured"
		: m == NULL              ? "no node has it"
		: asked == TOKENS_ENGINE ? "tokens = \"engine\", but none of its engines tells tokens"
					 : "no tokenizer is configured and none of its engines tells tokens";
	return out;
}

/* ---- log ---- */

static struct router_model_logged *mode_logged(struct router *r, struct cgn_str name)
{
	for (size_t i = 0; i < r->reported.n_models; i++)
		if (cgn_str_is(name, r->reported.models[i].name))
			return &r->reported.models[i];
	return NULL;
}

static void mode_remember(struct router *r, struct cgn_str name, enum gw_tokens_mode mode)
{
	struct router_model_logged *v = r->reported.n_models < LOGGED_MAX
		? realloc(r->reported.models, (r->reported.n_models + 1) * sizeof *v)
		: NULL;
	if (v == NULL)
		return;
	r->reported.models = v;
	v[r->reported.n_models].name = cgn_str_dupz(name);
	v[r->reported.n_models].mode = mode;
	r->reported.n_models += v[r->reported.n_models].name != NULL;
}

static void mode_log_change(void *user, struct cgn_str name)
{
	struct router *r = user;
	struct router_model now = router_model_of(r, name);
	struct router_model_logged *before = mode_logged(r, name);
	if (before != NULL && before->mode == now.mode)
		return;
	cgn_log(INFO, "router.model_tokens", F_STRN("model", name), F_STR("tokens", gw_tokens_text(now.mode)),
		F_STR("why", now.why),
		F_U64("block", now.mode == GW_BYTES ? now.block_bytes : now.block_tokens),
		F_STR("block_of", now.mode == GW_BYTES ? "bytes" : "tokens"));
	if (before != NULL)
		before->mode = now.mode;
	else
		mode_remember(r, name, now.mode);
}

void router_models_each(const struct router *r, void (*fn)(void *user, struct cgn_str name), void *user)
{
	size_t n = r->published.view != NULL ? r->published.view->n_models : 0;
	for (size_t i = 0; i < n; i++)
		fn(user, r->published.view->models[i].name);
	for (size_t i = 0; i < r->published.rules->n_models; i++)
		if (n == 0 || view_model_find(r->published.view, r->published.rules->models[i].name) == NULL)
			fn(user, r->published.rules->models[i].name);
}

void router_models_log_changes(struct router *r)
{
	if (r->published.rules != NULL && r->published.view != NULL)
		router_models_each(r, mode_log_change, r);
}

void router_models_close(struct router *r)
{
	for (size_t i = 0; i < r->reported.n_models; i++)
		free(r->reported.models[i].name);
	free(r->reported.models);
	r->reported.models = NULL;
	r->reported.n_models = 0;
}

/* ---- /models ---- */

struct models_listing {
	struct router *r;
	struct json_out j;
};

static void put_tokenizers(struct json_out *j, const struct gw_tokenizer_set *k)
{
	json_key_str(j, "tokenizer", k->tokenizer_from);
	json_key(j, "chat_template");
	if (k->template_from != NULL)
		json_put_z(j, k->template_from);
	else
		json_put_null(j);
	json_key_z(j, "content_format", k->chat.format == PROMPT_PARTS ? "openai" : "string");
}

static void put_model(void *user, struct cgn_str name)
{
	struct models_listing *l = user;
	struct router_model m = router_model_of(l->r, name);
	json_open(&l->j, '{');
	json_key(&l->j, "name");
	json_put_str(&l->j, name);
	json_key(&l->j, "ready_nodes");
	json_put_u64(&l->j, m.n_ready);
	json_key(&l->j, "tokens");
	json_put_z(&l->j, gw_tokens_text(m.mode));
	json_key(&l->j, "why");
	json_put_z(&l->j, m.why);
	if (m.tokenizers != NULL)
		put_tokenizers(&l->j, m.tokenizers);
	json_key(&l->j, m.mode == GW_BYTES ? "block_bytes" : "block_tokens");
	json_put_u64(&l->j, m.mode == GW_BYTES ? m.block_bytes : m.block_tokens);
	json_close(&l->j, '}');
}

void router_admin_models(void *state, const struct http_head *h, struct cgn_str body,
	struct svc_admin_reply *reply)
{
	(void)h;
	(void)body;
	struct router *r = state;
	CGN_LIVE(r, ROUTER_TAG);
	struct models_listing l = {.r = r, .j = json_out_to(&reply->body)};
	json_open(&l.j, '{');
	json_key(&l.j, "models");
	json_open(&l.j, '[');
	router_models_each(r, put_model, &l);
	json_close(&l.j, ']');
	json_close(&l.j, '}');
}
