/* SPDX-License-Identifier: Apache-2.0 */
/* lease: granted, renewed three times per time to live, granted again when it was lost. */
#include <stdlib.h>

#include "base/unlikely/unlikely.h"
#include "io/wire/etcd/etcd_priv.h"

#define ETCD_LEASE_TAG 0xe7cd0003U

struct etcd_lease {
	uint32_t tag;
	struct etcd *e;
	const struct etcd_lease_ops *ops;
	void *user;
	cgn_nsec ttl;
	int64_t id; /* 0: no lease. */
	struct etcd_op *op;
	cgn_nsec sent_at, held_from; /* When the call under way, and the last that etcd took, was sent. */
	struct cgn_timer timer;
	struct cgn_backoff backoff;
};

static void lease_go(struct etcd_lease *l);

static void lease_trouble(struct etcd_lease *l, const struct cgn_err *why)
{
	cgn_timer_set(&l->timer, cgn_backoff_next(&l->backoff));
	l->ops->on_trouble(l->user, why);
}

static void lease_held(struct etcd_lease *l)
{
	l->held_from = l->sent_at;
	cgn_backoff_reset(&l->backoff);
	cgn_timer_set(&l->timer, unlikely_way(UNLIKELY_lease_early) ? l->ttl / 30 : l->ttl / 3);
}

static void on_grant(void *user, const struct etcd_result *r)
{
	struct etcd_lease *l = user;
	CGN_LIVE(l, ETCD_LEASE_TAG);
	l->op = NULL;
	if (r->err->code != CGN_FINE) {
		lease_trouble(l, r->err);
		return;
	}
	l->id = r->lease;
	lease_held(l);
	l->ops->on_granted(l->user, l->id);
}

static void on_keepalive(void *user, const struct etcd_result *r)
{
	struct etcd_lease *l = user;
	CGN_LIVE(l, ETCD_LEASE_TAG);
	l->op = NULL;
	if (r->err->code == CGN_NOT_FOUND || (r->err->code == CGN_FINE && r->ttl <= 0)) {
		l->id = 0;
		lease_go(l);
	} else if (r->err->code != CGN_FINE) {
		lease_trouble(l, r->err);
	} else {
		lease_held(l);
		if (l->ops->on_renewed != NULL)
			l->ops->on_renewed(l->user);
	}
}

/* etcd keeps leases over its own outages, so an old lease is renewed however long etcd was away. */
static void lease_go(struct etcd_lease *l)
{
	int64_t seconds = (int64_t)((l->ttl + CGN_SEC - 1) / CGN_SEC);
	l->sent_at = cgn_loop_now(l->e->loop);
	l->op = l->id == 0 ? etcd_grant(l->e, seconds, on_grant, l)
			   : etcd_keepalive(l->e, l->id, on_keepalive, l);
}

static void lease_wake(struct cgn_timer *t)
{
	struct etcd_lease *l = CGN_CONTAINER(t, struct etcd_lease, timer);
	CGN_LIVE(l, ETCD_LEASE_TAG);
	if (l->op == NULL)
		lease_go(l);
}

struct etcd_lease *etcd_lease_open(struct etcd *e, cgn_nsec ttl, const struct etcd_lease_ops *ops, void *user)
{
	CGN_LIVE(e, ETCD_TAG);
	struct etcd_lease *l = CGN_NEW(struct etcd_lease);
	*l = (struct etcd_lease){.tag = ETCD_LEASE_TAG,
		.e = e,
		.ops = ops,
		.user = user,
		.ttl = ttl,
		.backoff = etcd_backoff()};
	cgn_timer_init(&l->timer, e->loop, lease_wake);
	cgn_timer_set(&l->timer, 1);
	e->users++;
	return l;
}

void etcd_lease_lost(struct etcd_lease *l)
{
	CGN_LIVE(l, ETCD_LEASE_TAG);
	etcd_op_drop(&l->op);
	l->id = 0;
	cgn_timer_set(&l->timer, cgn_backoff_next(&l->backoff));
}

cgn_nsec etcd_lease_held_from(const struct etcd_lease *l)
{
	CGN_LIVE(l, ETCD_LEASE_TAG);
	return l->held_from;
}

int64_t etcd_lease_id(const struct etcd_lease *l)
{
	CGN_LIVE(l, ETCD_LEASE_TAG);
	return l->id;
}

void etcd_lease_close(struct etcd_lease **take)
{
	struct etcd_lease *l = CGN_TAKE_LIVE(take, ETCD_LEASE_TAG);
	if (l == NULL)
		return;
	etcd_op_drop(&l->op);
	cgn_timer_cancel(&l->timer);
	l->e->users--;
	l->tag = 0;
	free(l);
}
