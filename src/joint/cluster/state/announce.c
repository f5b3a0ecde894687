/* SPDX-License-Identifier: Apache-2.0 */
/* announce: an agent's registration, the same for each backend. */
#include <stdlib.h>

#include "base/log/log.h"
#include "joint/cluster/state/announce_priv.h"

#define LEAVE_TIMEOUT (2 * CGN_SEC)
#define BACKOFF_LAST  (3 * CGN_SEC)

/* ---- news from backends ---- */

static void connected_tell(struct state_announce *a, bool connected, const char *why)
{
	if (!state_source_changed(&a->source, connected, a->telemetry, "registration"))
		return;
	if (connected)
		cgn_log(INFO, "state.registered", F_STR("cluster", a->cluster));
	else
		cgn_log(WARN, "state.not_registered", F_STR("cluster", a->cluster), F_STR("why", why),
			F_STR("then", "trying again"));
	if (a->ops != NULL && a->ops->on_connected != NULL)
		a->ops->on_connected(a->user, connected, why);
}

void announce_ok(struct state_announce *a)
{
	cgn_backoff_reset(&a->backoff);
	connected_tell(a, true, "");
}

void announce_trouble(struct state_announce *a, const struct cgn_err *why)
{
	connected_tell(a, false, why->msg);
}

void announce_retry(struct state_announce *a, const struct cgn_err *why)
{
	cgn_timer_set(&a->timer, cgn_backoff_next(&a->backoff));
	announce_trouble(a, why);
}

CGN_RC state_id_taken(const char *id, const char *address, struct cgn_err *err)
{
	return CGN_FAIL(err, CONFLICT,
		"node id \"%s\" is taken by the agent at %s: set another agent.node_id, or end that agent",
		id, address);
}

/* ---- sending ---- */

static void announce_turn(struct cgn_hook *h)
{
	struct state_announce *a = CGN_CONTAINER(h, struct state_announce, turn);
	CGN_LIVE(a, STATE_ANNOUNCE_TAG);
	if (!a->leaving)
		a->backend->send(a);
}

static void announce_wake(struct cgn_timer *t)
{
	struct state_announce *a = CGN_CONTAINER(t, struct state_announce, timer);
	CGN_LIVE(a, STATE_ANNOUNCE_TAG);
	if (!a->leaving) {
		a->backend->send(a);
		return;
	}
	void (*left)(void *arg) = a->left;
	a->left = NULL; /* The answer may come after the deadline. */
	if (left != NULL)
		left(a->left_arg);
}

void state_announce_update(struct state_announce *a, const Cognitora__V1__Node *node)
{
	CGN_LIVE(a, STATE_ANNOUNCE_TAG);
	if (a->leaving || (a->node != NULL && proto_node_equal(a->node, node)))
		return;
	Cognitora__V1__Node *copy = proto_node_dup(node);
	if (copy == NULL) {
		cgn_log(ERROR, "state.no_memory", F_STR("node", node->id),
			F_STR("then", "the last registration stays"));
		return;
	}
	proto_node_free(&a->node);
	a->node = copy;
	a->changed = true;
	cgn_loop_defer(a->loop, &a->turn);
}

CGN_RC state_announce_reload_tls(struct state_announce *a, struct cgn_err *err)
{
	CGN_LIVE(a, STATE_ANNOUNCE_TAG);
	return a->backend->reload_tls != NULL ? a->backend->reload_tls(a, err) : CGN_OK;
}

/* ---- static: routers have the addresses of nodes in their configuration ---- */

static CGN_RC static_open(struct state_announce *a, const struct config *cfg, struct cgn_err *err)
{
	(void)cfg;
	(void)err;
	cgn_timer_set(&a->timer, 1);
	return CGN_OK;
}

static void static_send(struct state_announce *a)
{
	announce_ok(a);
}

static void static_close(struct state_announce *a)
{
	(void)a;
}

const struct announce_backend announce_static = {
	.open = static_open,
	.send = static_send,
	.leave = announce_left,
	.close = static_close,
};

/* ---- open and close ---- */

static const struct announce_backend *backend_of(const struct config *cfg)
{
	switch (cfg->cluster.state_backend) {
	case STATE_ETCD:
		return &announce_etcd;
	case STATE_STATIC:
		return &announce_static;
	case STATE_KUBERNETES:
		return &announce_kubernetes;
	default:
		return &announce_embedded;
	}
}

void state_announce_close(struct state_announce **take)
{
	struct state_announce *a = CGN_TAKE_LIVE(take, STATE_ANNOUNCE_TAG);
	if (a == NULL)
		return;
	cgn_hook_drop(&a->turn);
	cgn_timer_cancel(&a->timer);
	a->leaving = true; /* The backend ignores answers from now on. */
	a->backend->close(a);
	proto_node_free(&a->node);
	a->tag = 0;
	free(a);
}

CGN_RC state_announce_open(struct cgn_loop *l, const struct config *cfg, struct telemetry *t,
	const struct state_announce_ops *ops, void *user, struct state_announce **out, struct cgn_err *err)
{
	CGN_TRY(state_cluster_check(cfg, err));
	CGN_ON_EXIT(state_announce_close) struct state_announce *a = CGN_NEW(struct state_announce);
	*a = (struct state_announce){
		.tag = STATE_ANNOUNCE_TAG,
		.loop = l,
		.telemetry = t,
		.backend = backend_of(cfg),
		.ops = ops,
		.user = user,
		.backoff = {.first = 50 * CGN_MSEC,
			.last = cfg->agent.heartbeat < BACKOFF_LAST ? cfg->agent.heartbeat : BACKOFF_LAST},
	};
	(void)cgn_str_copyz(a->cluster, sizeof a->cluster, cgn_str_of(cfg->cluster.name));
	cgn_hook_init(&a->turn, announce_turn);
	cgn_timer_init(&a->timer, l, announce_wake);
	CGN_TRY(a->backend->open(a, cfg, err));
	*out = CGN_TAKE(&a);
	return CGN_OK;
}

/* Tell on the next turn: a backend may call this inside a callback of a channel that the owner frees. */
void announce_left(struct state_announce *a)
{
	cgn_timer_set(&a->timer, 1);
}

void state_announce_leave(struct state_announce *a, void (*done)(void *arg), void *arg)
{
	CGN_LIVE(a, STATE_ANNOUNCE_TAG);
	CGN_MUST(!a->leaving);
	a->leaving = true;
	a->left = done;
	a->left_arg = arg;
	cgn_timer_set(&a->timer, LEAVE_TIMEOUT);
	if (a->node != NULL)
		a->backend->leave(a);
	else
		announce_left(a);
}
