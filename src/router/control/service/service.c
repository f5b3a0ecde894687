/* SPDX-License-Identifier: Apache-2.0 */
/* service: the methods of the gRPC port. Agents register at Router; operators use Control. */
#include "joint/report/telemetry/scrape.h"
#include "router/control/service/documents.h"

#define SENDS(name, id)                                                          \
	static void handle_##name(struct router_call *k, struct cgn_str message) \
	{                                                                        \
		(void)message; /* The request has no fields. */                  \
		router_document_send(k, PROTO_DOCUMENT_##id);                    \
	}
SENDS(status, NODES)
SENDS(scale, SCALE)
SENDS(peers, PEERS)
SENDS(cascades, CASCADES)
#undef SENDS

#define METHOD(name, handler)                                  \
	static void on_##name(struct grpc_call *c, void *user) \
	{                                                      \
		router_call_new(c, user, handler);             \
	}
METHOD(announce, router_announce)
METHOD(leave, router_leave)
METHOD(status, handle_status)
METHOD(cordon, router_cordon)
METHOD(uncordon, router_uncordon)
METHOD(drain, router_drain)
METHOD(stores, router_stores)
METHOD(explain, router_explain)
METHOD(scale, handle_scale)
METHOD(peers, handle_peers)
METHOD(cascades, handle_cascades)
METHOD(set_policy, router_set_policy)
METHOD(change_model, router_change_model)
METHOD(invite, router_invite)
#undef METHOD

static void on_scrape(struct grpc_call *c, void *server_user)
{
	scrape_answer(c, ((struct router *)server_user)->shared.telemetry);
}

const struct grpc_method router_methods[] = {
	{PROTO_ROUTER_ANNOUNCE, on_announce, ACTION_NODE_ANNOUNCE},
	{PROTO_ROUTER_LEAVE, on_leave, ACTION_NODE_ANNOUNCE},
	{PROTO_ROUTER_STORES, on_stores, ACTION_STORE_LIST},
	{PROTO_CONTROL_STATUS, on_status, ACTION_STATUS_READ},
	{PROTO_CONTROL_CORDON, on_cordon, ACTION_NODE_CORDON},
	{PROTO_CONTROL_UNCORDON, on_uncordon, ACTION_NODE_CORDON},
	{PROTO_CONTROL_DRAIN, on_drain, ACTION_NODE_DRAIN},
	/* Without an order they only read; with one they ask for policy.set and model.change too. */
	{PROTO_CONTROL_SET_POLICY, on_set_policy, ACTION_STATUS_READ},
	{PROTO_CONTROL_CHANGE_MODEL, on_change_model, ACTION_STATUS_READ},
	{PROTO_CONTROL_SCALE, on_scale, ACTION_STATUS_READ},
	{PROTO_CONTROL_PEERS, on_peers, ACTION_STATUS_READ},
	{PROTO_CONTROL_CASCADES, on_cascades, ACTION_STATUS_READ},
	{PROTO_CONTROL_INVITE, on_invite, ACTION_NODE_INVITE},
	{PROTO_CONTROL_EXPLAIN, on_explain, ACTION_EXPLAIN_READ},
	{SCRAPE_PATH, on_scrape, ACTION_METRICS_READ},
};
const size_t router_n_methods = CGN_COUNT(router_methods);
