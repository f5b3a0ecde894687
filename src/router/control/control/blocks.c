/* SPDX-License-Identifier: Apache-2.0 */
/* blocks: nodes whose agents make the digests of blocks differently than this router. Nothing that they hold
 * would ever be found, so their reports do not count and the record of prompts sent there does. */
#include <stdio.h>

#include "base/digest/digest.h"
#include "base/log/log.h"
#include "joint/report/telemetry/telemetry.h"
#include "router/control/control/models.h"
#include "router/control/control/watch.h"

/* Write how |c| differs from this router's blocks of |model|. */
static void difference_tell(const Cognitora__V1__Chain *c, struct cgn_str model, uint32_t block_tokens,
	char *out, size_t cap)
{
	if (c->version != DIGEST_VERSION)
		(void)snprintf(out, cap, "its agent makes digests of version %u, this router of version %d",
			c->version, DIGEST_VERSION);
	else if (c->block_tokens != block_tokens)
		(void)snprintf(out, cap,
			"block_tokens of model %.*s is %u at its agent and %u at this router",
			(int)(model.n < 64 ? model.n : 64), model.p, c->block_tokens, block_tokens);
	else
		(void)snprintf(out, cap, "its agent calls the model %.64s, this router %.*s", c->model,
			(int)(model.n < 64 ? model.n : 64), model.p);
}

/* Return the report of the engine that serves |served| about its blocks. */
static const Cognitora__V1__Chain *chain_find(const struct cluster_node *n, struct cgn_str served)
{
	for (size_t e = 0; e < n->info->n_engines; e++)
		for (size_t m = 0; m < n->info->engines[e]->n_models; m++)
			if (cgn_str_is(served, n->info->engines[e]->models[m]))
				return n->info->engines[e]->chain;
	return NULL;
}

/* Note of each ready node of |m| whether its blocks are this router's. */
static void model_compare(struct router *r, const struct view_model *m)
{
	const struct router_model own = router_model_of(r, m->name);
	for (size_t i = 0; i < m->n_ready; i++) {
		uint16_t slot = m->ready[i]->slot;
		struct router_watch *w = r->members.watches[slot];
		const struct cluster_node *n = r->members.cluster->by_slot[slot];
		if (w == NULL || n == NULL)
			continue;
		w->blocks_known = true;
		if (own.mode == GW_BYTES || m->chain[i] == 0 || m->chain[i] == own.block_tokens)
			continue;
		const Cognitora__V1__Chain *c = chain_find(n, m->served[i].text);
		if (c != NULL && w->blocks_now[0] == '\0')
			difference_tell(c, m->name, own.block_tokens, w->blocks_now, sizeof w->blocks_now);
	}
}

static void difference_log(const struct router_watch *w, const char *id)
{
	if (w->blocks_differ[0] != '\0')
		cgn_log(WARN, "router.blocks_differ", F_STR("node", id), F_STR("why", w->blocks_differ),
			F_STR("then", "the node's KV events are not used, what was sent there counts"));
	else
		cgn_log(INFO, "router.blocks_agree", F_STR("node", id));
}

static void node_report(struct router_watch *w, const char *id)
{
	metric_set(METRIC_OF(w->r->shared.telemetry, BLOCKS_DIFFER, id), w->blocks_now[0] != '\0');
	if (strcmp(w->blocks_now, w->blocks_differ) == 0)
		return;
	memcpy(w->blocks_differ, w->blocks_now, sizeof w->blocks_differ);
	difference_log(w, id);
}

void router_blocks_compare(struct router *r)
{
	const struct cluster_view *v = r->published.view;
	if (r->published.rules == NULL || v == NULL)
		return;
	for (size_t i = 0; i < v->n_nodes; i++) {
		struct router_watch *w = r->members.watches[v->nodes[i].slot];
		if (w != NULL) {
			w->blocks_known = false;
			w->blocks_now[0] = '\0';
		}
	}
	for (size_t k = 0; k < v->n_models; k++)
		model_compare(r, &v->models[k]);
	for (size_t i = 0; i < v->n_nodes; i++) {
		struct router_watch *w = r->members.watches[v->nodes[i].slot];
		if (w != NULL && w->blocks_known)
			node_report(w, v->nodes[i].id);
	}
}
