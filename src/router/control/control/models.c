/* SPDX-License-Identifier: Apache-2.0 */
/* models: how each model's prompts are tokenised, and a log line when that changes. */
#include <stdlib.h>

#include "router/control/control/models.h"

#include "base/log/log.h"
#include "router/control/control/router.h"
#include "router/shared/rules/tokenizer_set.h"

/* Models whose last logged mode is remembered, sorted by name; further models are not logged. */
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

/* Return where |name| is, or would be inserted. */
static size_t mode_place(const struct router *r, struct cgn_str name)
{
	size_t lo = 0, hi = r->reported.n_models;
	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;
		const char *other = r->reported.models[mid].name;
		int order = strncmp(other, name.p, name.n);
		if (order < 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

static struct router_model_logged *mode_logged(struct router *r, struct cgn_str name)
{
	size_t at = mode_place(r, name);
	bool found = at < r->reported.n_models && cgn_str_is(name, r->reported.models[at].name);
	return found ? &r->reported.models[at] : NULL;
}

/* Return false if there is no room. */
static bool mode_remember(struct router *r, struct cgn_str name, enum gw_tokens_mode mode)
{
	size_t n = r->reported.n_models, at = mode_place(r, name);
	if (n == LOGGED_MAX)
		return false;
	struct router_model_logged *v = r->reported.models = CGN_GROWN(r->reported.models, n + 1);
	memmove(v + at + 1, v + at, (n - at) * sizeof *v);
	v[at] = (struct router_model_logged){cgn_str_dupz(name), mode};
	r->reported.n_models++;
	return true;
}

static void mode_log_change(void *user, struct cgn_str name)
{
	struct router *r = user;
	struct router_model now = router_model_of(r, name);
	struct router_model_logged *before = mode_logged(r, name);
	if (before != NULL && before->mode == now.mode)
		return;
	if (before != NULL)
		before->mode = now.mode;
	else if (!mode_remember(r, name, now.mode))
		return;
	cgn_log_limited(INFO, "router.model_tokens", F_STRN("model", name),
		F_STR("tokens", gw_tokens_text(now.mode)), F_STR("why", now.why),
		F_U64("block", now.mode == GW_BYTES ? now.block_bytes : now.block_tokens),
		F_STR("block_of", now.mode == GW_BYTES ? "bytes" : "tokens"));
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
