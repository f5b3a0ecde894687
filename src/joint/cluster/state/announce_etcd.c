/* SPDX-License-Identifier: Apache-2.0 */
/* announce_etcd: nodes/<id> under a lease that is renewed. */
#include <stdlib.h>

#include "io/wire/etcd/etcd.h"
#include "joint/cluster/state/announce_priv.h"

struct registration {
	struct etcd *etcd;
	struct etcd_lease *lease;
	struct etcd_op *op;          /* the put under way; NULL: none */
	char key[96 + PROTO_MAX_ID]; /* the prefix, then nodes/<id> */
	size_t prefix_bytes;
	int64_t revision; /* the key's revision, as last put or read; 0: there is no key */
	bool ended;       /* being freed: ignore answers */
};

static struct registration *own_of(const struct state_announce *a)
{
	return a->own;
}

static void node_put(struct state_announce *a);

/* The key is another one than this agent knows. Take it over if it is of an agent with the same address, which is
 * this one before a restart; else the other agent has the id until its lease ends. */
static void on_key_exists(struct state_announce *a, const struct etcd_result *r)
{
	CGN_ON_EXIT(proto_node_free) Cognitora__V1__Node *other = NULL;
	struct cgn_err err = {0};
	a->changed = true;
	own_of(a)->revision = 0;
	if (r->n_kvs > 0 && r->kvs[0].lease != etcd_lease_id(own_of(a)->lease) &&
		cgn_ok(proto_node_from_json(r->kvs[0].value, &other, &err)) &&
		strcmp(other->address, a->node->address) != 0 &&
		!cgn_ok(state_id_taken(a->node->id, other->address, &err))) {
		announce_retry(a, &err);
		return;
	}
	if (r->n_kvs > 0)
		own_of(a)->revision = r->kvs[0].mod_revision;
	node_put(a);
}

static void on_put_done(void *user, const struct etcd_result *r)
{
	struct state_announce *a = user;
	CGN_LIVE(a, STATE_ANNOUNCE_TAG);
	own_of(a)->op = NULL;
	if (r->err->code == CGN_NOT_FOUND) {
		a->changed = true;
		etcd_lease_lost(own_of(a)->lease);
		return;
	}
	if (r->err->code != CGN_FINE) {
		a->changed = true;
		announce_retry(a, r->err);
		return;
	}
	if (!r->did) {
		on_key_exists(a, r);
		return;
	}
	own_of(a)->revision = r->revision;
	announce_ok(a);
	if (a->changed)
		node_put(a);
}

static void node_put(struct state_announce *a)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf json = {.n = 0};
	struct cgn_err err = {.code = CGN_NO_MEMORY, .msg = "no memory for the registration"};
	if (a->node == NULL || !a->changed || own_of(a)->op != NULL || etcd_lease_id(own_of(a)->lease) == 0)
		return; /* The update is sent when the lease is granted or the answer comes. */
	int n = snprintf(own_of(a)->key + own_of(a)->prefix_bytes,
		sizeof own_of(a)->key - own_of(a)->prefix_bytes, "nodes/%s", a->node->id);
	CGN_MUST(n > 0 && (size_t)n < sizeof own_of(a)->key - own_of(a)->prefix_bytes);
	proto_node_to_json(a->node, &json);
	if (json.bad) {
		announce_retry(a, &err);
		return;
	}
	own_of(a)->op = etcd_put_if(own_of(a)->etcd, cgn_str_of(own_of(a)->key), own_of(a)->revision,
		cgn_buf_view(&json), etcd_lease_id(own_of(a)->lease), on_put_done, a);
	a->changed = false;
}

static void on_granted(void *user, int64_t lease)
{
	struct state_announce *a = user;
	(void)lease;
	CGN_LIVE(a, STATE_ANNOUNCE_TAG);
	if (a->leaving)
		return;
	etcd_op_drop(&own_of(a)->op); /* A put in flight uses the old lease. */
	a->changed = true;
	node_put(a);
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
	if (a->node != NULL && !a->changed && own_of(a)->op == NULL)
		announce_ok(a);
	else
		node_put(a);
}

static const struct etcd_lease_ops lease_ops = {.on_granted = on_granted,
	.on_trouble = on_trouble,
	.on_renewed = on_renewed};

static void on_revoked(void *user, const struct etcd_result *r)
{
	struct state_announce *a = user;
	(void)r; /* A lease that could not be revoked ends by itself. */
	CGN_LIVE(a, STATE_ANNOUNCE_TAG);
	if (!own_of(a)->ended)
		announce_left(a);
}

static void etcd_leave(struct state_announce *a)
{
	int64_t lease = etcd_lease_id(own_of(a)->lease);
	etcd_lease_close(&own_of(a)->lease);
	etcd_op_drop(&own_of(a)->op);
	if (lease == 0)
		announce_left(a);
	else
		(void)etcd_revoke(own_of(a)->etcd, lease, on_revoked, a);
}

static CGN_RC announce_etcd_open(struct state_announce *a, const struct config *cfg, struct cgn_err *err)
{
	struct registration *own = CGN_NEW(struct registration);
	a->own = own;
	CGN_TRY(state_etcd_prefix(cfg, own->key, sizeof own->key, err));
	own->prefix_bytes = strlen(own->key);
	CGN_TRY(state_etcd_new(a->loop, cfg, &own->etcd, err));
	own->lease = etcd_lease_open(own->etcd, cfg->cluster.lease, &lease_ops, a);
	return CGN_OK;
}

static void announce_etcd_close(struct state_announce *a)
{
	struct registration *own = a->own;
	if (own == NULL)
		return;
	own->ended = true;
	etcd_op_drop(&own->op);
	etcd_lease_close(&own->lease);
	etcd_free(&own->etcd);
	free(own);
}

static CGN_RC etcd_certificates(struct state_announce *a, struct cgn_err *err)
{
	return etcd_reload_tls(own_of(a)->etcd, err);
}

const struct announce_backend announce_etcd = {
	.open = announce_etcd_open,
	.send = node_put,
	.leave = etcd_leave,
	.close = announce_etcd_close,
	.reload_tls = etcd_certificates,
};
