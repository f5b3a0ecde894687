/* SPDX-License-Identifier: Apache-2.0 */
/* leader: autoscaler/leader in etcd, under a lease of the router that has it; in Kubernetes the Lease CLUSTER.leader. */
#include <stdlib.h>

#include "base/log/log.h"
#include "io/wire/etcd/etcd.h"
#include "joint/cluster/state/kube_priv.h"
#include "joint/cluster/state/state_priv.h"

#define LEADER_TAG 0x57a7e004U

struct state_leader {
	uint32_t tag;
	struct cgn_loop *loop;
	char id[160];
	struct etcd *etcd; /* NULL: there is no other router. */
	struct etcd_lease *lease;
	struct etcd_op *op; /* The put under way; NULL: none. */
	char key[160];
	cgn_nsec ttl;
	bool mine;
	cgn_nsec renewed_at; /* When the last renewal was sent that etcd took. */
	struct kube_place place;
	struct k8s_lease *kube; /* NULL: the state is not in Kubernetes. */
};

static void leader_set(struct state_leader *l, bool mine)
{
	if (l->mine == mine)
		return;
	l->mine = mine;
	cgn_log(INFO, mine ? "state.leader" : "state.leader_lost", F_STR("key", l->key), F_STR("id", l->id));
}

static void on_leader_put(void *user, const struct etcd_result *r)
{
	struct state_leader *l = user;
	CGN_LIVE(l, LEADER_TAG);
	l->op = NULL;
	if (r->err->code == CGN_NOT_FOUND)
		etcd_lease_lost(l->lease);
	else if (r->err->code == CGN_FINE)
		leader_set(l, r->did || (r->n_kvs > 0 && r->kvs[0].lease == etcd_lease_id(l->lease)));
}

/* Put the key if there is none: another router has it until its lease ends. */
static void leader_claim(struct state_leader *l)
{
	int64_t lease = etcd_lease_id(l->lease);
	l->renewed_at = etcd_lease_held_from(l->lease);
	if (l->op == NULL && lease != 0)
		l->op = etcd_put_if(l->etcd, cgn_str_of(l->key), 0, cgn_str_of(l->id), lease, on_leader_put,
			l);
}

static void on_leader_granted(void *user, int64_t lease)
{
	struct state_leader *l = user;
	(void)lease;
	CGN_LIVE(l, LEADER_TAG);
	leader_set(l, false); /* The key of the last lease is gone, or will be. */
	etcd_op_drop(&l->op);
	leader_claim(l);
}

static void on_leader_renewed(void *user)
{
	struct state_leader *l = user;
	CGN_LIVE(l, LEADER_TAG);
	leader_claim(l);
}

static void on_leader_trouble(void *user, const struct cgn_err *why)
{
	CGN_LIVE((struct state_leader *)user, LEADER_TAG);
	cgn_log_limited(WARN, "state.leader_unknown", F_STR("why", why->msg),
		F_STR("then", "this router leads no longer than its lease lasts"));
}

static const struct etcd_lease_ops leader_lease_ops = {.on_granted = on_leader_granted,
	.on_trouble = on_leader_trouble,
	.on_renewed = on_leader_renewed};

static CGN_RC leader_connect(struct state_leader *l, const struct config *cfg, struct cgn_err *err)
{
	CGN_TRY(state_etcd_prefix(cfg, l->key, sizeof l->key, err));
	size_t n = strlen(l->key);
	int more = snprintf(l->key + n, sizeof l->key - n, "autoscaler/leader");
	CGN_MUST(more > 0 && (size_t)more < sizeof l->key - n);
	CGN_TRY(state_etcd_new(l->loop, cfg, &l->etcd, err));
	l->lease = etcd_lease_open(l->etcd, l->ttl, &leader_lease_ops, l);
	return CGN_OK;
}

static void on_kube_change(void *user, bool mine)
{
	CGN_LIVE((struct state_leader *)user, LEADER_TAG);
	leader_set(user, mine);
}

static const struct k8s_lease_ops kube_lease_ops = {.on_change = on_kube_change,
	.on_trouble = on_leader_trouble};

static CGN_RC leader_connect_kube(struct state_leader *l, const struct config *cfg, struct cgn_err *err)
{
	char name[KUBE_NAME];
	CGN_TRY(kube_place_open(l->loop, cfg, &l->place, err));
	(void)snprintf(name, sizeof name, "%s.leader", l->place.cluster);
	(void)snprintf(l->key, sizeof l->key, "Lease %s/%s", l->place.space, l->place.cluster);
	const struct k8s_lease_cfg lease = {l->place.space, name, l->id, l->ttl / CGN_SEC * CGN_SEC};
	return k8s_lease_open(l->place.k8s, &lease, &kube_lease_ops, l, &l->kube, err);
}

CGN_RC state_leader_open(struct cgn_loop *loop, const struct config *cfg, const char *id,
	struct state_leader **out, struct cgn_err *err)
{
	CGN_ON_EXIT(state_leader_close) struct state_leader *l = CGN_NEW(struct state_leader);
	*l = (struct state_leader){.tag = LEADER_TAG, .loop = loop, .ttl = cfg->cluster.lease};
	(void)cgn_str_copyz(l->id, sizeof l->id, cgn_str_of(id));
	if (cfg->cluster.state_backend == STATE_ETCD)
		CGN_TRY(leader_connect(l, cfg, err));
	if (cfg->cluster.state_backend == STATE_KUBERNETES)
		CGN_TRY(leader_connect_kube(l, cfg, err));
	*out = CGN_TAKE(&l);
	return CGN_OK;
}

bool state_leader_is(const struct state_leader *l)
{
	CGN_LIVE(l, LEADER_TAG);
	if (l->kube != NULL)
		return k8s_lease_mine(l->kube);
	return l->etcd == NULL ||
		(l->mine && cgn_since(cgn_loop_now(l->loop), l->renewed_at) < l->ttl / 4 * 3);
}

/* etcd_free ends the revocation with the connection when etcd does not answer at once; the lease ends by itself then. */
void state_leader_close(struct state_leader **take)
{
	struct state_leader *l = CGN_TAKE_LIVE(take, LEADER_TAG);
	if (l == NULL)
		return;
	etcd_op_drop(&l->op);
	etcd_lease_close(&l->lease);
	etcd_free(&l->etcd);
	k8s_lease_close(&l->kube);
	kube_place_close(&l->place);
	l->tag = 0;
	free(l);
}
