/* SPDX-License-Identifier: Apache-2.0 */
/* embedded and static: membership without anybody's help. Leases are timers here. */
#include <stdlib.h>

#include "base/log/log.h"
#include "joint/state/state_priv.h"

/* ---- leases ---- */

struct lease_scan {
	struct state_watch *s;
	cgn_nsec now, next;
};

static void check_lease(void *arg, struct roster_entry *e)
{
	struct lease_scan *scan = arg;
	if (e->lease_end <= scan->now) {
		cgn_log(WARN, "state.lease_ended", F_STR("node", e->id), F_DUR("lease", scan->s->lease));
		state_node_gone(scan->s, e);
	} else if (e->lease_end < scan->next) {
		scan->next = e->lease_end;
	}
}

/* The timer stands at the earliest end; renewals only move ends away, so it is set again when it fires. */
static void check_leases(struct state_watch *s)
{
	struct lease_scan scan = {s, cgn_loop_now(s->loop), UINT64_MAX};
	roster_each(&s->nodes, check_lease, &scan);
	if (scan.next != UINT64_MAX)
		cgn_timer_set(&s->timer, scan.next - scan.now);
}

static CGN_RC check_backend(const struct state_watch *s, struct cgn_err *err)
{
	if (s->embedded)
		return CGN_OK;
	return CGN_FAIL(err, UNSUPPORTED, "nodes do not register with this router: its membership is %s",
		s->backend->where);
}

CGN_RC state_announce_received(struct state_watch *s, const Cognitora__V1__AnnounceRequest *rq,
	uint64_t *lease_ms, struct cgn_err *err)
{
	struct roster_entry *e;
	CGN_LIVE(s, STATE_WATCH_TAG);
	CGN_TRY(check_backend(s, err));
	if (strcmp(rq->cluster, s->cluster) != 0)
		return CGN_FAIL(err, INVALID,
			"this router's cluster is \"%s\" and not \"%.64s\": see cluster.name", s->cluster,
			rq->cluster);
	if (rq->node == NULL)
		return CGN_FAIL(err, INVALID, "AnnounceRequest without a node");
	CGN_TRY(proto_node_check(rq->node, err));
	CGN_TRY(state_node_seen(s, rq->node, &e, err));
	e->lease_end = cgn_loop_now(s->loop) + s->lease;
	if (s->timer.at == 0)
		cgn_timer_set(&s->timer, s->lease);
	*lease_ms = s->lease / CGN_MSEC;
	return CGN_OK;
}

CGN_RC state_leave_received(struct state_watch *s, const char *id, struct cgn_err *err)
{
	CGN_LIVE(s, STATE_WATCH_TAG);
	CGN_TRY(check_backend(s, err));
	struct roster_entry *e = roster_find(&s->nodes, id);
	if (e != NULL)
		state_node_gone(s, e);
	return CGN_OK;
}

/* ---- the backends ---- */

static void tell_cordon(void *arg, struct roster_entry *e)
{
	struct state_watch *s = arg;
	s->ops->on_cordon(s->user, e->id, true);
}

static void tell_start(struct state_watch *s)
{
	roster_each(&s->cordons, tell_cordon, s);
	if (s->policy.n > 0 && s->ops->on_policy != NULL)
		s->ops->on_policy(s->user, cgn_buf_view(&s->policy), s->policy_where);
	state_connected(s, true, "");
}

static void embedded_begin(struct state_watch *s)
{
	if (!s->begun)
		tell_start(s);
	s->begun = true;
	check_leases(s);
}

static CGN_RC add_address(struct state_watch *s, const char *text, struct cgn_err *err)
{
	CGN_ON_EXIT(proto_node_free) Cognitora__V1__Node *node = calloc(1, sizeof *node);
	if (node == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for node %s", text);
	cognitora__v1__node__init(node);
	node->id = cgn_str_dupz(cgn_str_of(text));
	node->address = cgn_str_dupz(cgn_str_of(text));
	if (node->id == NULL || node->address == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for node %s", text);
	if (roster_find(&s->nodes, text) != NULL)
		return CGN_OK;
	struct roster_entry *e = roster_add(&s->nodes, text);
	if (e == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for node %s", text);
	e->node = node;
	node = NULL;
	return CGN_OK;
}

static CGN_RC static_open(struct state_watch *s, const struct config *cfg, struct cgn_err *err)
{
	CGN_TRY(cordons_open(s, cfg, err));
	for (size_t i = 0; i < cfg->cluster.nodes.n; i++)
		CGN_TRY(add_address(s, cfg->cluster.nodes.v[i], err));
	return CGN_OK;
}

static void tell_node(void *arg, struct roster_entry *e)
{
	struct state_watch *s = arg;
	s->ops->on_node(s->user, e->node);
}

static void static_begin(struct state_watch *s)
{
	tell_start(s);
	roster_each(&s->nodes, tell_node, s);
}

const struct state_backend state_backend_embedded = {
	.where = "embedded",
	.open = cordons_open,
	.begin = embedded_begin,
	.close = cordons_close,
	.cordon = cordons_change,
	.policy = document_change,
};

const struct state_backend state_backend_static = {
	.where = "static, in its cluster.nodes",
	.open = static_open,
	.begin = static_begin,
	.close = cordons_close,
	.cordon = cordons_change,
	.policy = document_change,
};
