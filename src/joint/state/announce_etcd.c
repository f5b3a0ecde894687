/* SPDX-License-Identifier: Apache-2.0 */
/* announce_etcd: nodes/<id> under a lease that is kept. */
#include "joint/state/state_priv.h"

static void put_node(struct state_announce *a);

static void on_put_done(void *user, const struct etcd_result *r)
{
	struct state_announce *a = user;
	CGN_LIVE(a, STATE_ANNOUNCE_TAG);
	a->op = NULL;
	if (r->err->code == CGN_NOT_FOUND) {
		a->changed = true;
		etcd_lease_lost(a->etcd_lease);
		return;
	}
	if (r->err->code != CGN_FINE) {
		a->changed = true;
		cgn_timer_set(&a->timer, cgn_backoff_next(&a->backoff));
		announce_trouble(a, r->err);
		return;
	}
	announce_ok(a);
	if (a->changed)
		put_node(a);
}

static void put_node(struct state_announce *a)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf json = {.n = 0};
	struct cgn_err err = {.code = CGN_NO_MEMORY, .msg = "no memory for the registration"};
	if (a->node == NULL || !a->changed || a->op != NULL || etcd_lease_id(a->etcd_lease) == 0)
		return; /* goes when the lease or the answer is here */
	int n = snprintf(a->key + a->prefix_bytes, sizeof a->key - a->prefix_bytes, "nodes/%s", a->node->id);
	CGN_MUST(n > 0 && (size_t)n < sizeof a->key - a->prefix_bytes);
	proto_node_to_json(a->node, &json);
	if (json.bad ||
		!cgn_ok(etcd_put(a->etcd, cgn_str_of(a->key), cgn_buf_view(&json),
			etcd_lease_id(a->etcd_lease), on_put_done, a, &a->op, &err))) {
		cgn_timer_set(&a->timer, cgn_backoff_next(&a->backoff));
		announce_trouble(a, &err);
		return;
	}
	a->changed = false;
}

static void on_granted(void *user, int64_t lease)
{
	struct state_announce *a = user;
	(void)lease;
	CGN_LIVE(a, STATE_ANNOUNCE_TAG);
	if (a->leaving)
		return;
	etcd_op_drop(&a->op); /* under the old lease */
	a->changed = true;
	put_node(a);
}

static void on_trouble(void *user, const struct cgn_err *why)
{
	struct state_announce *a = user;
	CGN_LIVE(a, STATE_ANNOUNCE_TAG);
	if (!a->leaving)
		announce_trouble(a, why);
}

static void on_renewed(void *user)
{
	struct state_announce *a = user;
	CGN_LIVE(a, STATE_ANNOUNCE_TAG);
	if (a->leaving)
		return;
	if (a->node != NULL && !a->changed && a->op == NULL)
		announce_ok(a);
	else
		put_node(a);
}

static const struct etcd_lease_ops lease_ops = {.on_granted = on_granted,
	.on_trouble = on_trouble,
	.on_renewed = on_renewed};

static void on_revoked(void *user, const struct etcd_result *r)
{
	struct state_announce *a = user;
	(void)r; /* not revoked: then it ends by itself */
	CGN_LIVE(a, STATE_ANNOUNCE_TAG);
	if (!a->ended)
		announce_left(a);
}

static void leave(struct state_announce *a)
{
	struct cgn_err err;
	int64_t lease = etcd_lease_id(a->etcd_lease);
	etcd_lease_close(&a->etcd_lease);
	etcd_op_drop(&a->op);
	if (lease == 0 || !cgn_ok(etcd_revoke(a->etcd, lease, on_revoked, a, NULL, &err)))
		announce_left(a);
}

static CGN_RC announce_etcd_open(struct state_announce *a, const struct config *cfg, struct cgn_err *err)
{
	CGN_TRY(state_etcd_prefix(cfg, a->key, sizeof a->key, err));
	a->prefix_bytes = strlen(a->key);
	CGN_TRY(state_etcd_new(a->loop, cfg, &a->etcd, err));
	return etcd_lease_open(a->etcd, a->lease, &lease_ops, a, &a->etcd_lease, err);
}

static void announce_etcd_close(struct state_announce *a)
{
	a->ended = true;
	etcd_op_drop(&a->op);
	etcd_lease_close(&a->etcd_lease);
	etcd_free(&a->etcd);
}

const struct announce_backend announce_etcd = {
	.open = announce_etcd_open,
	.send = put_node,
	.leave = leave,
	.close = announce_etcd_close,
};
