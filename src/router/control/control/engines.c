/* SPDX-License-Identifier: Apache-2.0 */
/* engines: engines without an agent as members of the cluster. */
#include "router/control/control/engines.h"

#include "router/shared/engines/engines.h"

#include "base/json/json.h"
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

static const struct engines_ops ops = {.came = on_came, .gone = on_gone, .heard = on_heard};

CGN_RC router_engines_open(struct router *r, struct cgn_err *err)
{
	const struct engines_cfg cfg = {.loop = r->loop,
		.telemetry = r->shared.telemetry,
		.config = r->cfg,
		.ops = &ops,
		.user = r};
	return engines_open(&cfg, &r->members.engines, err);
}

void router_pools_json(const struct router *r, struct json_out *j)
{
	json_open(j, '[');
	for (size_t i = 0; i < engines_pools(r->members.engines); i++) {
		struct engine_pool_status s;
		engine_pool_status(engines_pool(r->members.engines, i), &s);
		json_open(j, '{');
		json_key_z(j, "name", s.name);
		json_key_u64(j, "nodes", s.nodes);
		json_key_bool(j, "connected", s.connected);
		json_key_z(j, "why", s.why);
		json_close(j, '}');
	}
	json_close(j, ']');
}

bool router_pools_fill(const struct router *r, Cognitora__V1__StatusResponse *rs, struct cgn_arena *a)
{
	size_t n = engines_pools(r->members.engines);
	Cognitora__V1__EnginePool *rows = cgn_arena_get(a, (n + 1) * sizeof *rows);
	rs->pools = cgn_arena_get(a, (n + 1) * sizeof *rs->pools);
	if (rows == NULL || rs->pools == NULL)
		return false;
	for (; rs->n_pools < n; rs->n_pools++) {
		struct engine_pool_status s;
		Cognitora__V1__EnginePool *to = &rows[rs->n_pools];
		engine_pool_status(engines_pool(r->members.engines, rs->n_pools), &s);
		cognitora__v1__engine_pool__init(to);
		to->name = pb_text(s.name);
		to->nodes = (uint32_t)s.nodes;
		to->why = cgn_arena_strz(a, cgn_str_of(s.why));
		rs->pools[rs->n_pools] = to;
		if (to->why == NULL)
			return false;
	}
	return true;
}
