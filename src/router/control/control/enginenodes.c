/* SPDX-License-Identifier: Apache-2.0 */
/* enginenodes: engines without an agent as members of the cluster. */
#include "router/control/control/enginenodes.h"

#include "router/shared/enginenodes/enginenodes.h"

#include "base/log/log.h"
#include "router/control/control/watch.h"

static bool on_came(void *user, struct engine_node *e)
{
	struct router *r = user;
	struct cluster_orders o;
	struct cgn_err err;
	Cognitora__V1__Node info = COGNITORA__V1__NODE__INIT;
	CGN_LIVE(r, ROUTER_TAG);
	info.id = pb_text(engine_node_id(e));
	info.address = pb_text(engine_node_door(e)->url.addr);
	cgn_rc rc = cluster_find(r->members.cluster, info.id) == NULL
		? cluster_node_seen(r->members.cluster, &info,
			  state_watch_cordoned(r->members.state, info.id), &o, &err)
		: CGN_FAIL(&err, CONFLICT, "another node has the id");
	if (!cgn_ok(rc)) {
		cgn_log_limited(ERROR, "router.node_refused", F_STR("node", info.id), F_STR("why", err.msg));
		return false;
	}
	r->members.cluster->by_slot[o.slot]->door = engine_node_door(e);
	r->members.coming = e;
	router_orders_apply(r, &o);
	r->members.coming = NULL;
	return true;
}

static void on_gone(void *user, struct engine_node *e)
{
	struct router *r = user;
	CGN_LIVE(r, ROUTER_TAG);
	router_node_gone(r, engine_node_id(e));
}

static void on_heard(void *user)
{
	struct router *r = user;
	CGN_LIVE(r, ROUTER_TAG);
	router_heard_update(r);
}

static const struct engine_nodes_ops ops = {.came = on_came, .gone = on_gone, .heard = on_heard};

CGN_RC router_engine_nodes_open(struct router *r, struct cgn_err *err)
{
	const struct engine_nodes_cfg cfg = {.loop = r->loop,
		.telemetry = r->shared.telemetry,
		.config = r->cfg,
		.ops = &ops,
		.user = r};
	return engine_nodes_open(&cfg, &r->members.engine_nodes, err);
}

void router_pools_fill(const struct router *r, struct pb_tree *t, Cognitora__V1__StatusResponse *rs)
{
	for (size_t i = 0; i < engine_nodes_pools(r->members.engine_nodes); i++) {
		struct engine_pool_status s;
		Cognitora__V1__EnginePool *to = PB_ADD(t, rs, pools, engine_pool);
		engine_pool_status(engine_nodes_pool(r->members.engine_nodes, i), &s);
		to->name = pb_text(s.name);
		to->nodes = (uint32_t)s.nodes;
		to->connected = s.connected;
		to->why = pb_tree_text(t, cgn_str_of(s.why));
	}
}
