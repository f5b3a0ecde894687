/* SPDX-License-Identifier: Apache-2.0 */
/* A chooser over a few nodes that serve the model "m", and a prompt of BLOCKS blocks. Define BLOCKS; include
 * after cmocka.h. */
#pragma once
#include <stdio.h>

#include "policy/route/chooser/chooser.h"

struct world {
	struct cluster *cluster;
	struct chooser_shared shared;
	struct chooser *chooser;
	struct cluster_view *view;
	struct route_rules rules;
	uint64_t chain[BLOCKS];
};

static inline struct cluster_node *join(struct cluster *c, const char *id, uint32_t slots)
{
	Cognitora__V1__Node n = COGNITORA__V1__NODE__INIT;
	Cognitora__V1__Engine e = COGNITORA__V1__ENGINE__INIT, *engines[] = {&e};
	Cognitora__V1__WatchEvent ev = COGNITORA__V1__WATCH_EVENT__INIT;
	struct cluster_orders o;
	char model[] = "m", address[] = "127.0.0.1:7080", kind[] = "sim", name[32];
	char *models[] = {model};
	(void)snprintf(name, sizeof name, "%s", id);
	e.name = e.kind = kind;
	e.models = models;
	e.n_models = 1;
	e.ready = true;
	e.slots = slots;
	n.id = name;
	n.address = address;
	n.engines = engines;
	n.n_engines = 1;
	assert_true(cgn_ok(cluster_node_seen(c, &n, false, &o, NULL)));
	struct cluster_node *node = cluster_find(c, id);
	assert_non_null(node);
	ev.seq = 1;
	ev.node = &n;
	cluster_watch_event(c, node, &ev, 0, &o);
	return node;
}

/* Open a world of |nodes| nodes with |slots| slots each, with the policy |policy|. */
static inline void world_of(struct world *w, int nodes, uint32_t slots, enum route_policy policy)
{
	const struct kvindex_cfg index = {.max_bytes = 8 << 20, .max_readers = 2, .seed = 1};
	*w = (struct world){.rules = {.weights = {0.55, 0.25, 0.1, 0.1},
				    .tiers = {{1, 0.8F, 0.5F, 0.3F}},
				    .max_inflight = 8,
				    .policy = policy,
				    .session_bound = 1.25}};
	w->cluster = cluster_new();
	for (int i = 0; i < nodes; i++) {
		char id[8];
		(void)snprintf(id, sizeof id, "n%d", i);
		(void)join(w->cluster, id, slots);
	}
	w->shared.stats = w->cluster->stats;
	assert_true(cgn_ok(kvindex_new(&index, &w->shared.index, NULL)));
	assert_true(cgn_ok(route_record_new(1 << 20, &w->shared.record, NULL)));
	w->shared.pending = pending_new(1 << 16);
	w->shared.hotprefix = hotprefix_new(4096);
	assert_true(cgn_ok(chooser_new(&w->shared, 0, &w->chooser, NULL)));
	assert_true(cgn_ok(cluster_view_new(w->cluster, NULL, NULL, &w->view, NULL)));
	for (uint64_t i = 0; i < BLOCKS; i++)
		w->chain[i] = block_fingerprint(i + 1, 1);
}

static inline void world_fini(struct world *w)
{
	cluster_view_unref(&w->view);
	chooser_free(&w->chooser);
	hotprefix_free(&w->shared.hotprefix);
	pending_free(&w->shared.pending);
	route_record_free(&w->shared.record);
	kvindex_free(&w->shared.index);
	cluster_free(&w->cluster);
}

static inline struct chooser_ask ask_of(const struct world *w)
{
	return (struct chooser_ask){.rules = &w->rules,
		.model = view_model_find(w->view, CGN_STR("m")),
		.chain = w->chain,
		.blocks = BLOCKS,
		.block_tokens = 16,
		.pin = CHOOSER_NO_PIN};
}
