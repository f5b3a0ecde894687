/* SPDX-License-Identifier: Apache-2.0 */
#include "router/control/control/rest.h"

static const Cognitora__V1__WantedNode *row_of(const Cognitora__V1__WantedModel *m, const char *node)
{
	for (size_t i = 0; m != NULL && i < m->n_nodes; i++)
		if (strcmp(m->nodes[i]->id, node) == 0)
			return m->nodes[i];
	return NULL;
}

bool router_rest_wanted(const Cognitora__V1__WantedModel *m, const char *node)
{
	Cognitora__V1__WantedState s = wanted_on(m, node);
	return s == COGNITORA__V1__WANTED_STATE__WANTED_ASLEEP ||
		s == COGNITORA__V1__WANTED_STATE__WANTED_UNLOADED;
}

bool router_rest_is_ours(const Cognitora__V1__WantedModel *m, const char *node)
{
	const Cognitora__V1__WantedNode *row = row_of(m, node);
	return row != NULL ? row->parked : !router_rest_wanted(m, node);
}

CGN_RC router_rest_order(struct router *r, const struct router_rest_order *o,
	void (*done)(void *user, const struct cgn_err *err), struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	const struct wanted_change c = {.name = o->model,
		.base = "",
		.lora_path = "",
		.state = o->state,
		.nodes = o->nodes,
		.n_nodes = o->n,
		.parked = true,
		.by = o->by,
		.now_ms = cgn_clock_wall_ms()};
	CGN_TRY(wanted_write(r->wanted.doc, &c, &text, err));
	return state_models_put(r->members.state, cgn_buf_view(&text), done, r, err);
}

bool router_node_serves(const struct cluster_node *n, const char *model)
{
	for (size_t e = 0; e < n->info->n_engines; e++)
		for (size_t m = 0; n->info->engines[e]->ready && m < n->info->engines[e]->n_models; m++)
			if (strcmp(n->info->engines[e]->models[m], model) == 0)
				return true;
	return false;
}
