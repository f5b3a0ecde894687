/* SPDX-License-Identifier: Apache-2.0 */
/* stores: lists the cluster's block stores for peers that fetch from them. */
#include "router/control/service/service_priv.h"

static bool store_is_usable(const struct cluster_node *n)
{
	return n->info->kv != NULL && n->state != NODE_DOWN && !n->cordoned && n->drains == 0 &&
		!n->info->draining;
}

static size_t stores_fill(const struct router *r, Cognitora__V1__NodeStore *rows,
	Cognitora__V1__NodeStore **out)
{
	size_t n = 0;
	for (size_t i = 0; i < ROUTE_MAX_NODES; i++) {
		const struct cluster_node *node = r->members.cluster->by_slot[i];
		if (node == NULL || !store_is_usable(node))
			continue;
		cognitora__v1__node_store__init(&rows[n]);
		rows[n].node_id = node->info->id;
		rows[n].kv = node->info->kv;
		out[n] = &rows[n];
		n++;
	}
	return n;
}

static void stores_send(struct router_call *k)
{
	const size_t cap = ROUTE_MAX_NODES;
	Cognitora__V1__StoresResponse rs = COGNITORA__V1__STORES_RESPONSE__INIT;
	CGN_ON_EXIT(cgn_arena_fini) struct cgn_arena a;
	cgn_arena_init(&a, (size_t)4 * 1024 * 1024);
	Cognitora__V1__NodeStore *rows = cgn_arena_get(&a, cap * sizeof *rows);
	rs.stores = cgn_arena_get(&a, cap * sizeof *rs.stores);
	if (rows == NULL || rs.stores == NULL) {
		router_call_finish(k, CGN_NO_MEMORY, "out of memory");
		return;
	}
	rs.n_stores = stores_fill(k->r, rows, rs.stores);
	router_call_send(k, &rs);
	router_call_finish(k, CGN_FINE, "");
}

void router_stores(struct router_call *k, struct cgn_str message)
{
	struct cgn_err err;
	CGN_ON_EXIT(pb_free) Cognitora__V1__StoresRequest *rq = NULL;
	cgn_rc rc = pb_unpack(&cognitora__v1__stores_request__descriptor, message, &rq, &err);
	if (cgn_ok(rc) && strcmp(rq->cluster, k->r->cluster_name) != 0)
		rc = CGN_FAIL(&err, INVALID,
			"this router's cluster is \"%s\" and not \"%.64s\": see cluster.name",
			k->r->cluster_name, rq->cluster);
	if (cgn_ok(rc))
		stores_send(k);
	else
		router_call_finish(k, rc.code, err.msg);
}
