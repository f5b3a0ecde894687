/* SPDX-License-Identifier: Apache-2.0 */
/* stores: which block stores the cluster has, from etcd, Kubernetes or (stores_router.c) from the router. */
#include <stdlib.h>

#include "base/log/log.h"
#include "joint/cluster/state/stores_priv.h"

/* ---- known stores ---- */

static void store_tell(struct state_stores *s, const Cognitora__V1__Node *n)
{
	const struct state_store store = {n->id, n->kv->quic_address, n->kv->rack, n->kv->region};
	s->ops->on_store(s->user, &store);
}

/* The roster holds nodes with a store and nothing else: no other change of a node is news. */
void stores_seen(struct state_stores *s, const char *id, Cognitora__V1__KvStore *kv)
{
	Cognitora__V1__Node n = COGNITORA__V1__NODE__INIT;
	n.id = (char *)(uintptr_t)id;
	n.kv = kv;
	struct roster_entry *e = roster_find(&s->known, id);
	if (e != NULL)
		e->marked = false;
	if (e != NULL && proto_node_equal(e->node, &n))
		return;
	Cognitora__V1__Node *copy = proto_node_dup(&n);
	if (copy != NULL && e == NULL && s->known.n < STATE_MAX_NODES)
		e = roster_add(&s->known, id);
	if (copy == NULL || e == NULL) {
		cgn_log_limited(ERROR, "state.store_ignored", F_STR("node", id), F_U64("stores", s->known.n),
			F_U64("most", STATE_MAX_NODES));
		proto_node_free(&copy);
		return;
	}
	proto_node_free(&e->node);
	e->node = copy;
	s->changed = true;
	store_tell(s, copy);
}

void stores_gone(struct state_stores *s, struct roster_entry *e)
{
	char id[PROTO_MAX_ID + 1];
	(void)cgn_str_copyz(id, sizeof id, cgn_str_of(e->id));
	roster_drop(&s->known, e);
	s->changed = true;
	s->ops->on_gone(s->user, id);
}

void stores_connected(struct state_stores *s, bool yes, const char *source, const char *why)
{
	if (!state_source_changed(&s->source, yes, s->telemetry, "stores"))
		return;
	if (yes)
		cgn_log(INFO, "state.stores_known", F_STR("from", source));
	else
		cgn_log(WARN, "state.stores_unknown", F_STR("from", source), F_STR("why", why),
			F_U64("stores_kept", s->known.n), F_STR("then", "asking again"));
}

/* ---- the membership in etcd or Kubernetes ---- */

static const struct state_watch *watch_of(const struct state_stores *s)
{
	return s->own;
}

static void node_look(struct state_stores *s, const Cognitora__V1__Node *n)
{
	struct roster_entry *e = roster_find(&s->known, n->id);
	if (n->kv != NULL && !n->draining && !state_watch_cordoned(watch_of(s), n->id))
		stores_seen(s, n->id, n->kv);
	else if (e != NULL)
		stores_gone(s, e);
}

static void on_node(void *user, const Cognitora__V1__Node *node)
{
	node_look(user, node);
}

static void on_gone(void *user, const char *id)
{
	struct state_stores *s = user;
	struct roster_entry *e = roster_find(&s->known, id);
	if (e != NULL)
		stores_gone(s, e);
}

static void on_cordon(void *user, const char *id, bool cordoned)
{
	struct state_stores *s = user;
	const struct roster_entry *e = roster_find(&watch_of(s)->nodes, id);
	(void)cordoned;
	if (e != NULL)
		node_look(s, e->node);
}

static void on_connected(void *user, bool yes, const char *why)
{
	struct state_stores *s = user;
	stores_connected(s, yes, watch_of(s)->backend->where, why);
}

static const struct state_watch_ops watch_ops = {.on_node = on_node,
	.on_gone = on_gone,
	.on_cordon = on_cordon,
	.on_connected = on_connected};

static CGN_RC members_open(struct state_stores *s, const struct config *cfg, struct cgn_err *err)
{
	struct state_watch *watch = NULL;
	CGN_TRY(state_watch_open(s->loop, cfg, s->telemetry, &watch_ops, s, &watch, err));
	s->own = watch;
	return CGN_OK;
}

static void members_close(struct state_stores *s)
{
	struct state_watch *watch = s->own;
	state_watch_close(&watch);
}

static CGN_RC members_certificates(struct state_stores *s, struct cgn_err *err)
{
	return state_watch_reload_tls(s->own, err);
}

static const struct stores_backend stores_watch = {
	.open = members_open,
	.close = members_close,
	.reload_tls = members_certificates,
};

/* ---- open and close ---- */

CGN_RC state_stores_open(struct cgn_loop *l, const struct config *cfg, struct telemetry *t,
	const struct state_stores_ops *ops, void *user, struct state_stores **out, struct cgn_err *err)
{
	CGN_ON_EXIT(state_stores_close) struct state_stores *s = CGN_NEW(struct state_stores);
	*s = (struct state_stores){.tag = STATE_STORES_TAG,
		.loop = l,
		.telemetry = t,
		.backend = state_is_shared(cfg) ? &stores_watch : &stores_router,
		.ops = ops,
		.user = user};
	roster_init(&s->known);
	CGN_TRY(s->backend->open(s, cfg, err));
	*out = CGN_TAKE(&s);
	return CGN_OK;
}

void state_stores_close(struct state_stores **take)
{
	struct state_stores *s = CGN_TAKE_LIVE(take, STATE_STORES_TAG);
	if (s == NULL)
		return;
	s->backend->close(s);
	roster_fini(&s->known);
	s->tag = 0;
	free(s);
}

CGN_RC state_stores_reload_tls(struct state_stores *s, struct cgn_err *err)
{
	CGN_LIVE(s, STATE_STORES_TAG);
	return s->backend->reload_tls(s, err);
}
