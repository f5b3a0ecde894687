/* SPDX-License-Identifier: Apache-2.0 */
/* engines: engines without an agent as members of the cluster. */
#include "router/engines/engines.h"

#include "base/log/log.h"
#include "router/control/watch.h"

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

static const struct engines_ops ops = {.came = on_came};

CGN_RC router_engines_open(struct router *r, struct cgn_err *err)
{
	const struct engines_cfg cfg = {.loop = r->loop,
		.telemetry = r->shared.telemetry,
		.config = r->cfg,
		.ops = &ops,
		.user = r};
	return engines_open(&cfg, &r->members.engines, err);
}
