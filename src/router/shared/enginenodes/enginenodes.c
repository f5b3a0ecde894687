/* SPDX-License-Identifier: Apache-2.0 */
#include "router/shared/enginenodes/enginenodes.h"

#include <stdlib.h>

#include "base/core/list.h"
#include "joint/daemon/svc/svc.h"
#include "joint/node/engineview/door.h"
#include "policy/node/engine/engine.h"
#include "router/shared/enginenodes/pool.h"

#define ENGINE_NODES_TAG   0x640e4002U
#define ENGINE_NODES_BYTES ((size_t)64 * 1024 * 1024) /* Keys of at most 8 KiB for each row */

/* A node, and what it borrows. */
struct engine_nodes_row {
	struct engine_door door;
	struct engine_node_kin kin;
	struct engine_node *node; /* NULL: it is none */
};

struct engine_nodes {
	uint32_t tag;
	struct engine_nodes_cfg cfg;
	struct cgn_arena arena;
	struct engine_nodes_row *rows;
	size_t n_rows;
	struct k8s *k8s; /* NULL: there is no pool */
	struct engine_pool **pools;
	size_t n_pools;
};

int engine_nodes_kind(int node_kind)
{
	const struct engine_ops *ops = engine_ops_named(cgn_str_of(config_enum_text(node_kind)));
	return ops != NULL ? ops->kind : ENGINE_OPENAI_COMPAT; /* auto: until its list of models tells. */
}

static struct config_engine settings_of(const struct config_engine_node *c)
{
	return (struct config_engine){.name = c->name,
		.kind = engine_nodes_kind(c->kind),
		.url = c->url,
		.model = c->model,
		.api_key_file = c->api_key_file,
		.ca_file = c->ca_file,
		.ready_interval = c->ready_interval,
		.stall_timeout = c->stall_timeout,
		.kv_events = c->kv_events,
		.kv_events_replay = c->kv_events_replay,
		.kv_events_topic = c->kv_events_topic,
		.kv_events_ranks = c->kv_events_ranks,
		.kv_events_lora = c->kv_events_lora,
		.kv_offload = c->kv_offload,
		.resume = c->resume,
		.max_conns = c->max_conns};
}

static CGN_RC row_open(struct engine_nodes *e, size_t i, struct cgn_err *err)
{
	const struct config_engine_node *c = &e->cfg.config->engine_nodes[i];
	struct engine_nodes_row *row = &e->rows[i];
	const struct config_engine ce = settings_of(c);
	const struct engine_node_cfg node = {.id = c->name,
		.engine = &ce,
		.guess = c->kind == NODE_KIND_AUTO,
		.origin = "engine_nodes"};
	char what[80];
	(void)snprintf(what, sizeof what, "engine_nodes.\"%.50s\"", c->name);
	CGN_TRY(engine_door_open(&row->door, what, &ce, &e->arena, err));
	row->kin = (struct engine_node_kin){.loop = e->cfg.loop,
		.telemetry = e->cfg.telemetry,
		.cfg = e->cfg.config,
		.door = &row->door};
	CGN_TRY(engine_node_new(&row->kin, &node, &row->node, err));
	if (!e->cfg.ops->came(e->cfg.user, row->node))
		engine_node_free(&row->node);
	return CGN_OK;
}

static CGN_RC pool_open(struct engine_nodes *e, const struct config_inference_pool *c, struct cgn_err *err)
{
	const char *space = c->namespace != NULL ? c->namespace : e->cfg.config->cluster.kubernetes_namespace;
	const struct engine_pool_cfg cfg = {.all = &e->cfg,
		.k8s = e->k8s,
		.pool = c,
		.space = space != NULL ? space : k8s_namespace(e->k8s)};
	e->n_pools++;
	return engine_pool_open(&cfg, &e->pools[e->n_pools - 1], err);
}

static CGN_RC pools_open(struct engine_nodes *e, struct cgn_err *err)
{
	const struct config *c = e->cfg.config;
	if (c->n_inference_pools == 0)
		return CGN_OK;
	CGN_TRY(cgn_err_of(k8s_new(e->cfg.loop, c->cluster.kubernetes_config, &e->k8s, err),
		"inference_pools", err));
	e->pools = CGN_NEW_ARRAY(struct engine_pool *, c->n_inference_pools);
	for (size_t i = 0; i < c->n_inference_pools; i++)
		CGN_TRY(pool_open(e, &c->inference_pools[i], err));
	return CGN_OK;
}

CGN_RC engine_nodes_open(const struct engine_nodes_cfg *cfg, struct engine_nodes **out, struct cgn_err *err)
{
	struct engine_nodes *e = CGN_NEW(struct engine_nodes);
	*out = e;
	*e = (struct engine_nodes){.tag = ENGINE_NODES_TAG, .cfg = *cfg};
	cgn_arena_init(&e->arena, ENGINE_NODES_BYTES);
	e->rows = CGN_NEW_ARRAY(struct engine_nodes_row, cfg->config->n_engine_nodes);
	for (size_t i = 0; i < cfg->config->n_engine_nodes; i++) {
		e->n_rows = i + 1;
		CGN_TRY(row_open(e, i, err));
	}
	return pools_open(e, err);
}

void engine_nodes_close(struct engine_nodes **take)
{
	struct engine_nodes *e = CGN_TAKE_LIVE(take, ENGINE_NODES_TAG);
	if (e == NULL)
		return;
	for (size_t i = 0; i < e->n_rows; i++) {
		engine_node_free(&e->rows[i].node);
		engine_door_close(&e->rows[i].door);
	}
	free(e->rows);
	for (size_t i = 0; i < e->n_pools; i++)
		engine_pool_close(&e->pools[i]);
	free(e->pools);
	k8s_free(&e->k8s);
	cgn_arena_fini(&e->arena);
	e->tag = 0;
	free(e);
}

bool engine_nodes_are_heard(const struct engine_nodes *e)
{
	for (size_t i = 0; i < e->n_pools; i++)
		if (!engine_pool_is_heard(e->pools[i]))
			return false;
	return true;
}

bool engine_nodes_are_away(const struct engine_nodes *e)
{
	for (size_t i = 0; i < e->n_pools; i++)
		if (engine_pool_is_away(e->pools[i]))
			return true;
	return false;
}

size_t engine_nodes_pools(const struct engine_nodes *e)
{
	return e->n_pools;
}

const struct engine_pool *engine_nodes_pool(const struct engine_nodes *e, size_t at)
{
	return e->pools[at];
}

CGN_RC engine_nodes_reload_tls(struct engine_nodes *e, struct cgn_err *err)
{
	return e->k8s != NULL ? k8s_reload_tls(e->k8s, err) : CGN_OK;
}

void engine_nodes_check(const struct config *cfg, struct svc_problems *out)
{
	for (size_t i = 0; i < cfg->n_engine_nodes; i++) {
		const struct config_engine ce = settings_of(&cfg->engine_nodes[i]);
		char what[80];
		(void)snprintf(what, sizeof what, "engine_nodes.\"%.50s\"", ce.name);
		engine_door_check(what, &ce, out);
	}
	struct cgn_err err;
	/* A check may run outside of the pod. */
	if (cfg->n_inference_pools > 0 && cfg->cluster.kubernetes_config != NULL)
		svc_problem(out,
			cgn_err_of(k8s_check(cfg->cluster.kubernetes_config, &err), "inference_pools", &err),
			&err);
	for (size_t i = 0; i < cfg->n_inference_pools; i++)
		engine_pool_check(&cfg->inference_pools[i], out);
}
