/* SPDX-License-Identifier: Apache-2.0 */
/* orders: cordons and uncordons a node for the page. */
#include <stdlib.h>

#include "base/codec/codec.h"
#include "base/json/json.h"
#include "base/log/log.h"
#include "router/control/service/service_priv.h"

#define ORDER_TAG 0x640de401U

/* Outlives its client while the state backend works on it. */
struct admin_order {
	uint32_t tag;
	struct router *r;
	struct svc_admin_call *call; /* NULL: the client has gone, or the order was refused inline. */
	bool cordons;
	char node[PROTO_MAX_ID + 1], by[128], from[80];
};

static void order_gone(void *user)
{
	struct admin_order *o = user;
	CGN_LIVE(o, ORDER_TAG);
	o->call = NULL;
}

static void order_log(const struct admin_order *o, const struct cgn_err *err)
{
	if (err->code == CGN_FINE)
		cgn_log(INFO, "router.cordon", F_STR("node", o->node), F_BOOL("cordoned", o->cordons),
			F_STR("by", o->by), F_STR("from", o->from));
	else
		cgn_log(ERROR, "router.cordon_failed", F_STR("node", o->node), F_BOOL("cordon", o->cordons),
			F_STR("by", o->by), F_STR("from", o->from), F_STR("why", err->msg),
			F_STR("then", "the node stays as it was"));
}

static void order_done(void *user, const struct cgn_err *err)
{
	struct admin_order *o = user;
	CGN_LIVE(o, ORDER_TAG);
	struct svc_admin_reply reply = svc_admin_reply_new();
	order_log(o, err);
	if (err->code == CGN_FINE) {
		struct json_out j = json_out_to(&reply.body);
		json_open(&j, '{');
		json_key_z(&j, "node", o->node);
		json_key_bool(&j, "cordoned", o->cordons);
		json_close(&j, '}');
	} else {
		svc_admin_error(&reply, cgn_code_http(err->code), "not_stored", err->msg);
	}
	if (o->call != NULL)
		svc_admin_done(o->call, &reply);
	else
		cgn_buf_fini(&reply.body);
	o->tag = 0;
	free(o);
}

/* Read "/nodes/ID/cordon"; the id may be percent-encoded. */
static bool order_read(struct admin_order *o, struct cgn_str path)
{
	struct cgn_str rest = {path.p + strlen("/nodes/"), path.n - strlen("/nodes/")};
	struct cgn_str id = cgn_str_split(&rest, '/');
	char plain[3 * (PROTO_MAX_ID + 1)];
	if (id.n == 0 || id.n > sizeof plain)
		return false;
	struct cgn_str name = {plain, percent_get(plain, id)};
	o->cordons = cgn_str_is(rest, "cordon");
	return (o->cordons || cgn_str_is(rest, "uncordon")) && cgn_str_copyz(o->node, sizeof o->node, name) &&
		strlen(o->node) == name.n;
}

static void order_start(struct admin_order *o, struct svc_admin_reply *reply)
{
	struct cgn_err err;
	(void)cgn_str_copyz(o->from, sizeof o->from, svc_admin_peer(reply->call));
	const struct principal *who = svc_admin_caller(reply->call);
	(void)cgn_str_copyz(o->by, sizeof o->by, who->kind == IDENTITY_NONE ? CGN_STR("page") : who->name);
	o->call = svc_admin_later(reply, order_gone, o);
	if (!cgn_ok(state_cordon(o->r->members.state, o->node, o->cordons, order_done, o, &err)))
		order_done(o, &err);
}

void router_admin_order(void *state, const struct http_head *h, struct cgn_str body,
	struct svc_admin_reply *reply)
{
	(void)body;
	struct router *r = state;
	CGN_LIVE(r, ROUTER_TAG);
	struct cgn_str rest = h->path, path = cgn_str_split(&rest, '?');
	struct admin_order *o = CGN_NEW(struct admin_order);
	*o = (struct admin_order){.tag = ORDER_TAG, .r = r};
	if (!order_read(o, path)) {
		svc_admin_error(reply, 404, "not_found",
			"the orders are /nodes/ID/cordon and /nodes/ID/uncordon");
	} else if (!svc_admin_may_change(h, reply) ||
		!svc_admin_may(reply, ACTION_NODE_CORDON, cgn_str_of(o->node))) {
		; /* The refusal is written. */
	} else if (cluster_find(r->members.cluster, o->node) == NULL &&
		!state_watch_cordoned(r->members.state, o->node)) {
		svc_admin_error(reply, 404, "no_node", "no node of this name is known here");
	} else {
		order_start(o, reply);
		return;
	}
	free(o);
}
