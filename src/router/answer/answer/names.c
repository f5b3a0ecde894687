/* SPDX-License-Identifier: Apache-2.0 */
/* names: the models that requests may name, as lists show them. */
#include "router/answer/answer/reply_priv.h"
#include "router/request/permit/permit.h"
#include "router/shared/peers/peers.h"

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

/* Does a node serve the model, or would a request wake one that does? */
static bool model_is_here(const struct view_model *m)
{
	return m->n_ready > 0 || m->wakes;
}

bool gw_reply_any_served(const struct cluster_view *v)
{
	size_t i = 0;
	while (i < v->n_models && !model_is_here(&v->models[i]))
		i++;
	return i < v->n_models;
}

bool gw_reply_serves(const struct gw_req *r, struct cgn_str name)
{
	const struct view_model *m = view_model_find(r->w->view, name);
	return (m != NULL && model_is_here(m)) || gw_peers_know(r->w->shared->peers, name);
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
			if ((m == NULL || !model_is_here(m)) && !gw_peers_know(&before, name))
				name_put(r, put, arg, name, false);
		}
}

void gw_reply_names(const struct gw_req *r, gw_name_fn put, void *arg)
{
	for (size_t i = 0; i < r->w->view->n_models; i++)
		if (model_is_here(&r->w->view->models[i]))
			name_put(r, put, arg, r->w->view->models[i].name, false);
	for (size_t i = 0; i < r->w->rules->n_models; i++) {
		const struct gw_model *m = &r->w->rules->models[i];
		for (size_t a = 0; gw_reply_serves(r, m->name) && a < m->n_aliases; a++)
			if (!gw_reply_serves(r, m->aliases[a]))
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
	if (r->w->view->heard ||
		gw_reply_any_served(r->w->view)) /* The list may be empty for this caller alone. */
		return false;
	gw_reply_names(r, name_count, &n);
	if (n == 0)
		(void)gw_refuse(r, &(struct gw_refusal){503, "server_error", "no_node", .retry_after = 2},
			"no model is known yet: the membership was not heard");
	return n == 0;
}
