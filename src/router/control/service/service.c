/* SPDX-License-Identifier: Apache-2.0 */
/* service: the gRPC port. Agents register at Router; operators use Control. */
#include <stdlib.h>

#include "base/log/log.h"
#include "joint/report/telemetry/scrape.h"
#include "joint/who/audit/audit.h"
#include "router/control/service/documents.h"

#define DRAIN_EVERY (200 * CGN_MSEC)

void router_call_finish(struct router_call *k, enum cgn_code code, const char *sentence)
{
	if (k->c != NULL)
		grpc_finish(k->c, code, sentence);
}

void router_order_note(const struct router_call *k, const char *action, const char *object,
	const struct cgn_err *err)
{
	bool good = err->code == CGN_FINE;
	audit_note(k->r->shared.audit,
		&(struct audit_event){.action = action,
			.decision = good ? AUDIT_ALLOWED : AUDIT_FAILED,
			.kind = k->by[0] != '\0' ? CGN_STR("certificate") : CGN_STR("address"),
			.name = cgn_str_of(k->by),
			.from = cgn_str_of(k->from),
			.object = cgn_str_of(object),
			.why = good ? (struct cgn_str){0} : cgn_str_of(err->msg)});
}

void router_call_send(struct router_call *k, const void *message)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	pb_pack(message, &b);
	if (b.bad || k->c == NULL) {
		router_call_finish(k, CGN_NO_MEMORY, "out of memory");
		return;
	}
	const struct iovec iov = {b.p, b.n};
	grpc_send(k->c, &iov, 1);
}

static void drain_stop(struct router_call *k)
{
	struct cluster_orders o;
	cgn_timer_cancel(&k->poll);
	struct cluster_node *n = k->draining ? cluster_find(k->r->members.cluster, k->node_id) : NULL;
	k->draining = false;
	if (n == NULL || n->drains == 0)
		return; /* The node has left. */
	cluster_drain_end(k->r->members.cluster, n, &o);
	router_orders_apply(k->r, &o);
}

void router_call_release(struct router_call *k)
{
	if (k->c != NULL || k->pending)
		return;
	drain_stop(k);
	free(k->node_id);
	free(k->document);
	pb_free(&k->policy);
	pb_free(&k->order);
	router_join_free(&k->join);
	k->tag = 0;
	free(k);
}

static void on_message(struct grpc_call *c, void *user, const uint8_t *p, size_t n)
{
	(void)c;
	struct router_call *k = user;
	CGN_LIVE(k, ROUTER_CALL_TAG);
	if (k->asked) {
		router_call_finish(k, CGN_INVALID,
			"the call takes one request message, and a second one came");
		return;
	}
	k->asked = true;
	k->act(k, (struct cgn_str){(const char *)p, n});
}

static void on_half_close(struct grpc_call *c, void *user)
{
	(void)c;
	struct router_call *k = user;
	CGN_LIVE(k, ROUTER_CALL_TAG);
	if (!k->asked)
		router_call_finish(k, CGN_INVALID, "the call ended without its request message");
}

static void on_close(struct grpc_call *c, void *user, const struct cgn_err *why)
{
	(void)c;
	(void)why;
	struct router_call *k = user;
	CGN_LIVE(k, ROUTER_CALL_TAG);
	k->c = NULL;
	router_explain_cancel(&k->question);
	drain_stop(k);
	router_call_release(k);
}

static const struct grpc_call_ops call_ops = {.on_message = on_message,
	.on_half_close = on_half_close,
	.on_close = on_close};

/* ---- Router ---- */

CGN_RC router_call_may(struct router_call *k, enum identity_action action, const char *object,
	struct cgn_err *err)
{
	struct principal who;
	if (k->c == NULL)
		return CGN_FAIL(err, CANCELLED, "the caller has left");
	access_caller(svc_access(k->r->svc), k->c, &who);
	return access_check(svc_access(k->r->svc), &who, action, cgn_str_of(object), err);
}

static void handle_announce(struct router_call *k, struct cgn_str message)
{
	struct cgn_err err;
	CGN_ON_EXIT(pb_free) Cognitora__V1__AnnounceRequest *rq = NULL;
	Cognitora__V1__AnnounceResponse rs = COGNITORA__V1__ANNOUNCE_RESPONSE__INIT;
	cgn_rc rc = pb_unpack(&cognitora__v1__announce_request__descriptor, message, &rq, &err);
	if (cgn_ok(rc))
		rc = router_call_may(k, ACTION_NODE_ANNOUNCE, rq->node != NULL ? rq->node->id : "", &err);
	if (cgn_ok(rc))
		rc = state_announce_received(k->r->members.state, rq, &rs.lease_ms, &err);
	if (cgn_ok(rc))
		router_call_send(k, &rs);
	router_call_finish(k, rc.code, cgn_ok(rc) ? "" : err.msg);
}

static void handle_leave(struct router_call *k, struct cgn_str message)
{
	struct cgn_err err;
	CGN_ON_EXIT(pb_free) Cognitora__V1__LeaveRequest *rq = NULL;
	Cognitora__V1__LeaveResponse rs = COGNITORA__V1__LEAVE_RESPONSE__INIT;
	cgn_rc rc = pb_unpack(&cognitora__v1__leave_request__descriptor, message, &rq, &err);
	if (cgn_ok(rc))
		rc = router_call_may(k, ACTION_NODE_ANNOUNCE, rq->node_id, &err);
	if (cgn_ok(rc))
		rc = state_leave_received(k->r->members.state, rq->node_id, &err);
	if (cgn_ok(rc))
		router_call_send(k, &rs);
	router_call_finish(k, rc.code, cgn_ok(rc) ? "" : err.msg);
}

/* ---- Control ---- */

/* Read the order for a node, and check that the caller may do |action| with it. */
static bool order_read(struct router_call *k, enum identity_action action, struct cgn_str message)
{
	struct cgn_err err;
	CGN_ON_EXIT(pb_free) Cognitora__V1__CordonRequest *rq = NULL;
	cgn_rc rc = pb_unpack(&cognitora__v1__cordon_request__descriptor, message, &rq, &err);
	if (cgn_ok(rc))
		rc = router_call_may(k, action, rq->node_id, &err);
	if (cgn_ok(rc) && cluster_find(k->r->members.cluster, rq->node_id) == NULL &&
		!state_watch_cordoned(k->r->members.state, rq->node_id))
		rc = CGN_FAIL(&err, NOT_FOUND, "no node %s is known here", rq->node_id);
	if (cgn_ok(rc))
		k->node_id = cgn_str_dupz(cgn_str_of(rq->node_id));
	else
		router_call_finish(k, rc.code, err.msg);
	return cgn_ok(rc);
}

/* Log the order once it is known whether it was stored. */
static void cordon_log(const struct router_call *k, const struct cgn_err *err)
{
	router_order_note(k, k->cordons ? "node.cordon" : "node.uncordon", k->node_id, err);
	if (err->code == CGN_FINE)
		cgn_log(INFO, "router.cordon", F_STR("node", k->node_id), F_BOOL("cordoned", k->cordons),
			F_STR("by", k->by), F_STR("from", k->from));
	else
		cgn_log(ERROR, "router.cordon_failed", F_STR("node", k->node_id),
			F_BOOL("cordon", k->cordons), F_STR("by", k->by), F_STR("from", k->from),
			F_STR("why", err->msg), F_STR("then", "the node stays as it was"));
}

static void cordon_start(struct router_call *k, bool on, void (*done)(void *user, const struct cgn_err *err))
{
	struct cgn_err err;
	k->pending = true;
	k->cordons = on;
	cgn_rc rc = state_cordon(k->r->members.state, k->node_id, on, done, k, &err);
	if (cgn_ok(rc))
		return;
	k->pending = false;
	cordon_log(k, &err);
	router_call_finish(k, rc.code, err.msg);
}

static void cordon_done(void *user, const struct cgn_err *err)
{
	struct router_call *k = user;
	CGN_LIVE(k, ROUTER_CALL_TAG);
	Cognitora__V1__CordonResponse rs = COGNITORA__V1__CORDON_RESPONSE__INIT;
	k->pending = false;
	cordon_log(k, err);
	if (err->code == CGN_FINE && k->c != NULL)
		router_call_send(k, &rs);
	router_call_finish(k, err->code, err->code == CGN_FINE ? "" : err->msg);
	router_call_release(k);
}

static void handle_cordon(struct router_call *k, struct cgn_str message)
{
	if (order_read(k, ACTION_NODE_CORDON, message))
		cordon_start(k, true, cordon_done);
}

static void handle_uncordon(struct router_call *k, struct cgn_str message)
{
	if (order_read(k, ACTION_NODE_CORDON, message))
		cordon_start(k, false, cordon_done);
}

/* Report the requests that are left: this router's own, or those that the agent reports, which include other
 * routers', whichever are more. */
static void drain_report(struct cgn_timer *t)
{
	struct router_call *k = CGN_CONTAINER(t, struct router_call, poll);
	CGN_LIVE(k, ROUTER_CALL_TAG);
	const struct cluster_node *n = cluster_find(k->r->members.cluster, k->node_id);
	Cognitora__V1__DrainProgress rs = COGNITORA__V1__DRAIN_PROGRESS__INIT;
	if (n != NULL) {
		uint32_t ours = cluster_inflight(k->r->members.cluster, n->slot),
			 theirs = n->heard ? n->load.inflight : 0;
		rs.inflight = ours > theirs ? ours : theirs;
	}
	rs.done = rs.inflight == 0;
	router_call_send(k, &rs);
	if (rs.done)
		router_call_finish(k, CGN_FINE, "");
	else
		cgn_timer_set(t, DRAIN_EVERY);
}

static void drain_cordoned(void *user, const struct cgn_err *err)
{
	struct router_call *k = user;
	CGN_LIVE(k, ROUTER_CALL_TAG);
	struct cluster_orders o;
	k->pending = false;
	cordon_log(k, err);
	struct cluster_node *n = cluster_find(k->r->members.cluster, k->node_id);
	if (err->code != CGN_FINE)
		router_call_finish(k, err->code, err->msg);
	if (err->code == CGN_FINE && k->c != NULL && n != NULL) {
		k->draining = true;
		cluster_drain_begin(k->r->members.cluster, n, &o);
		router_orders_apply(k->r, &o);
	}
	if (err->code == CGN_FINE && k->c != NULL)
		cgn_timer_set(&k->poll, 0); /* Run the report after the workers have the new view. */
	router_call_release(k);
}

static void handle_drain(struct router_call *k, struct cgn_str message)
{
	if (order_read(k, ACTION_NODE_DRAIN, message))
		cordon_start(k, true, drain_cordoned);
}

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

/* ---- the port ---- */

void router_call_new(struct grpc_call *c, struct router *r, void (*act)(struct router_call *, struct cgn_str))
{
	struct router_call *k = CGN_NEW(struct router_call);
	*k = (struct router_call){.tag = ROUTER_CALL_TAG, .r = r, .c = c, .act = act};
	struct principal who;
	access_caller(svc_access(r->svc), c, &who);
	(void)cgn_str_copyz(k->by, sizeof k->by, who.name);
	(void)cgn_str_copyz(k->from, sizeof k->from, grpc_peer(c));
	cgn_timer_init(&k->poll, r->loop, drain_report);
	grpc_call_take(c, &call_ops, k);
}

#define METHOD(name, handler)                                  \
	static void on_##name(struct grpc_call *c, void *user) \
	{                                                      \
		router_call_new(c, user, handler);             \
	}
METHOD(announce, handle_announce)
METHOD(leave, handle_leave)
METHOD(status, handle_status)
METHOD(cordon, handle_cordon)
METHOD(uncordon, handle_uncordon)
METHOD(drain, handle_drain)
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
