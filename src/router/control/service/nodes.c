/* SPDX-License-Identifier: Apache-2.0 */
/* nodes: the calls about a node: agents register and leave; operators cordon, uncordon and drain. */
#include "base/log/log.h"
#include "router/control/service/service_priv.h"

#define DRAIN_EVERY (200 * CGN_MSEC)

/* ---- Router ---- */

void router_announce(struct router_call *k, struct cgn_str message)
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

void router_leave(struct router_call *k, struct cgn_str message)
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

void router_cordon(struct router_call *k, struct cgn_str message)
{
	if (order_read(k, ACTION_NODE_CORDON, message))
		cordon_start(k, true, cordon_done);
}

void router_uncordon(struct router_call *k, struct cgn_str message)
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

/* The drain ends with its call. */
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

void router_drain(struct router_call *k, struct cgn_str message)
{
	cgn_timer_init(&k->poll, k->r->loop, drain_report);
	k->stop = drain_stop;
	if (order_read(k, ACTION_NODE_DRAIN, message))
		cordon_start(k, true, drain_cordoned);
}
