/* SPDX-License-Identifier: Apache-2.0 */
/* admin: /nodes and /index of the admin port; /models is in models.c. */
#include "base/json/json.h"
#include "router/router.h"

static void put_engine(struct json_out *j, const Cognitora__V1__Engine *e)
{
	json_open(j, '{');
	json_key(j, "name");
	json_put_z(j, e->name);
	json_key(j, "kind");
	json_put_z(j, e->kind);
	json_key(j, "ready");
	json_put_bool(j, e->ready);
	json_key(j, "models");
	json_open(j, '[');
	for (size_t i = 0; i < e->n_models; i++)
		json_put_z(j, e->models[i]);
	json_close(j, ']');
	json_key(j, "slots");
	json_put_u64(j, e->slots);
	json_close(j, '}');
}

static void put_load(struct json_out *j, const Cognitora__V1__Load *l)
{
	json_open(j, '{');
	json_key(j, "inflight");
	json_put_u64(j, l->inflight);
	json_key(j, "running");
	json_put_u64(j, l->running);
	json_key(j, "waiting");
	json_put_u64(j, l->waiting);
	json_key(j, "kv_usage");
	json_put_f64(j, (double)l->kv_usage);
	json_key(j, "power_headroom");
	json_put_f64(j, (double)l->power_headroom);
	json_key(j, "requests_total");
	json_put_u64(j, l->requests_total);
	json_close(j, '}');
}

static void put_node(struct json_out *j, struct router *r, const struct cluster_node *n)
{
	json_open(j, '{');
	json_key(j, "id");
	json_put_z(j, n->info->id);
	json_key(j, "address");
	json_put_z(j, n->address);
	json_key(j, "state");
	json_put_z(j, node_state_text(n->state));
	json_key(j, "cordoned");
	json_put_bool(j, n->cordoned);
	json_key(j, "version");
	json_put_z(j, n->info->version);
	json_key(j, "router_inflight");
	json_put_u64(j, cluster_inflight(r->cluster, n->slot));
	json_key(j, "index_blocks");
	json_put_u64(j, route_record_blocks_of(r->shared.record, n->slot));
	json_key(j, "last_seen_ms");
	json_put_u64(j, n->heard_at > 0 ? (cgn_loop_now(r->loop) - n->heard_at) / CGN_MSEC : 0);
	json_key(j, "load");
	put_load(j, &n->load);
	json_key(j, "engines");
	json_open(j, '[');
	for (size_t i = 0; i < n->info->n_engines; i++)
		put_engine(j, n->info->engines[i]);
	json_close(j, ']');
	json_close(j, '}');
}

static void nodes(void *state, const struct http_head *h, struct cgn_str body, struct svc_admin_reply *reply)
{
	(void)h;
	(void)body;
	struct router *r = state;
	CGN_LIVE(r, ROUTER_TAG);
	struct json_out j = json_out_to(&reply->body);
	json_open(&j, '{');
	json_key(&j, "cluster");
	json_put_z(&j, r->cluster_name);
	json_key(&j, "state_backend");
	json_put_z(&j, r->state_backend);
	json_key(&j, "state_connected");
	json_put_bool(&j, r->state_connected);
	json_key(&j, "nodes");
	json_open(&j, '[');
	for (size_t i = 0; i < ROUTE_MAX_NODES; i++)
		if (r->cluster->by_slot[i] != NULL)
			put_node(&j, r, r->cluster->by_slot[i]);
	json_close(&j, ']');
	json_close(&j, '}');
}

static void index_stats(
	void *state, const struct http_head *h, struct cgn_str body, struct svc_admin_reply *reply)
{
	(void)h;
	(void)body;
	struct router *r = state;
	CGN_LIVE(r, ROUTER_TAG);
	struct json_out j = json_out_to(&reply->body);
	json_open(&j, '{');
	json_key(&j, "blocks");
	json_put_u64(&j, route_record_blocks(r->shared.record));
	json_key(&j, "bytes");
	json_put_u64(&j, route_record_bytes(r->shared.record));
	json_key(&j, "nodes");
	json_open(&j, '{');
	for (uint16_t i = 0; i < ROUTE_MAX_NODES; i++) {
		if (r->cluster->by_slot[i] == NULL)
			continue;
		json_key(&j, r->cluster->by_slot[i]->info->id);
		json_put_u64(&j, route_record_blocks_of(r->shared.record, i));
	}
	json_close(&j, '}');
	json_close(&j, '}');
}

const struct svc_admin_route router_admin_routes[] = {
	{"GET", "/nodes", nodes}, {"GET", "/models", router_admin_models}, {"GET", "/index", index_stats}};
const size_t router_n_admin_routes = CGN_COUNT(router_admin_routes);
