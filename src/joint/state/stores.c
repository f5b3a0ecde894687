/* SPDX-License-Identifier: Apache-2.0 */
/* stores: which block stores the cluster has, from etcd or from the router. */
#include <stdlib.h>

#include "base/log/log.h"
#include "base/pb/pb.h"
#include "joint/state/state_priv.h"
#include "joint/telemetry/telemetry.h"

#define STATE_STORES_TAG 0x57a7e003U
#define ASK_TIMEOUT      (5 * CGN_SEC)

struct state_stores {
	uint32_t tag;
	struct telemetry *telemetry;
	bool connected, said, changed /* by this answer */;
	struct cgn_loop *loop;
	const struct state_stores_ops *ops;
	void *user;
	struct roster told; /* nodes with nothing but an id and a store */
	char cluster[72];
	/* etcd */
	struct state_watch *watch;
	/* embedded and static */
	struct tls_ctx *tls;
	struct grpc_channel *channel;
	struct cgn_timer timer; /* the next question */
	/* To |last| from one question to the next while nothing changes; a change begins it anew, for nodes
	 * that start together come one after the other, and who asks for their blocks meanwhile waits in
	 * vain. */
	struct cgn_backoff backoff;
	bool ended;
};

/* ---- what is known ---- */

static void tell(struct state_stores *s, const Cognitora__V1__Node *n)
{
	const struct state_store store = {n->id, n->kv->quic_address, n->kv->rack, n->kv->region};
	s->ops->on_store(s->user, &store);
}

/* A node that is told is a Node with a store and nothing else, so that what else changes of it is no news. */
static void seen(struct state_stores *s, const char *id, Cognitora__V1__KvStore *kv)
{
	Cognitora__V1__Node n = COGNITORA__V1__NODE__INIT;
	n.id = (char *)(uintptr_t)id;
	n.kv = kv;
	struct roster_entry *e = roster_find(&s->told, id);
	if (e != NULL)
		e->marked = false;
	if (e != NULL && proto_node_equal(e->node, &n))
		return;
	Cognitora__V1__Node *copy = proto_node_dup(&n);
	if (copy != NULL && e == NULL && s->told.n < STATE_MAX_NODES)
		e = roster_add(&s->told, id);
	if (copy == NULL || e == NULL) {
		cgn_log(ERROR, "state.store_ignored", F_STR("node", id), F_U64("stores", s->told.n),
			F_U64("most", STATE_MAX_NODES));
		proto_node_free(&copy);
		return;
	}
	proto_node_free(&e->node);
	e->node = copy;
	s->changed = true;
	tell(s, copy);
}

static void gone(struct state_stores *s, struct roster_entry *e)
{
	char id[PROTO_MAX_ID + 1];
	(void)cgn_str_copyz(id, sizeof id, cgn_str_of(e->id));
	roster_drop(&s->told, e);
	s->changed = true;
	s->ops->on_gone(s->user, id);
}

static void connected(struct state_stores *s, bool yes, const char *whom, const char *why)
{
	if (s->said && s->connected == yes)
		return;
	s->said = true;
	s->connected = yes;
	metric_set(METRIC_OF(s->telemetry, STATE_CONNECTED, "stores"), yes);
	if (yes)
		cgn_log(INFO, "state.stores_known", F_STR("from", whom));
	else
		cgn_log(WARN, "state.stores_unknown", F_STR("from", whom), F_STR("why", why),
			F_U64("stores_kept", s->told.n), F_STR("then", "asking again"));
}

/* ---- etcd ---- */

static void look(struct state_stores *s, const Cognitora__V1__Node *n)
{
	struct roster_entry *e = roster_find(&s->told, n->id);
	if (n->kv != NULL && !n->draining && !state_watch_cordoned(s->watch, n->id))
		seen(s, n->id, n->kv);
	else if (e != NULL)
		gone(s, e);
}

static void on_node(void *user, const Cognitora__V1__Node *node)
{
	look(user, node);
}

static void on_gone(void *user, const char *id)
{
	struct state_stores *s = user;
	struct roster_entry *e = roster_find(&s->told, id);
	if (e != NULL)
		gone(s, e);
}

static void on_cordon(void *user, const char *id, bool cordoned)
{
	struct state_stores *s = user;
	const struct roster_entry *e = roster_find(&s->watch->nodes, id);
	(void)cordoned;
	if (e != NULL)
		look(s, e->node);
}

static void on_connected(void *user, bool yes, const char *why)
{
	struct state_stores *s = user;
	connected(s, yes, "etcd", why);
}

static const struct state_watch_ops watch_ops = {.on_node = on_node,
	.on_gone = on_gone,
	.on_cordon = on_cordon,
	.on_connected = on_connected};

/* ---- the router ---- */

static void mark(void *arg, struct roster_entry *e)
{
	(void)arg;
	e->marked = true;
}

static void drop_marked(void *arg, struct roster_entry *e)
{
	if (e->marked)
		gone(arg, e);
}

static bool is_sound(const Cognitora__V1__NodeStore *n, struct cgn_err *err)
{
	if (!proto_node_id_ok(cgn_str_of(n->node_id)) || n->kv == NULL)
		return cgn_ok(CGN_FAIL(err, INVALID, "NodeStore without a node's id or a store"));
	return cgn_ok(proto_store_check(n->node_id, n->kv, err));
}

static void take_answer(struct state_stores *s, const Cognitora__V1__StoresResponse *m)
{
	struct cgn_err err;
	roster_each(&s->told, mark, NULL);
	for (size_t i = 0; i < m->n_stores; i++) {
		if (is_sound(m->stores[i], &err))
			seen(s, m->stores[i]->node_id, m->stores[i]->kv);
		else
			cgn_log(WARN, "state.store_ignored", F_STR("why", err.msg));
	}
	roster_each(&s->told, drop_marked, s);
}

static void ask_again(struct state_stores *s, bool anew)
{
	if (anew)
		cgn_backoff_reset(&s->backoff);
	cgn_timer_set(&s->timer, cgn_backoff_next(&s->backoff));
}

static void lost(struct state_stores *s, const struct cgn_err *why)
{
	bool was = s->connected;
	connected(s, false, "the router", why->msg);
	ask_again(s, was);
}

static void on_answer(void *user, const struct grpc_unary_result *r)
{
	struct state_stores *s = user;
	struct cgn_err err = *r->err;
	CGN_ON_EXIT(pb_free) Cognitora__V1__StoresResponse *m = NULL;
	CGN_LIVE(s, STATE_STORES_TAG);
	if (s->ended)
		return;
	if (err.code == CGN_FINE)
		(void)pb_unpack(&cognitora__v1__stores_response__descriptor,
			(struct cgn_str){(const char *)r->p, r->n}, &m, &err)
			.code;
	if (err.code != CGN_FINE) {
		lost(s, &err);
		return;
	}
	bool was = s->connected;
	connected(s, true, "the router", "");
	s->changed = false;
	take_answer(s, m);
	ask_again(s, s->changed || !was);
}

static void ask(struct cgn_timer *t)
{
	struct state_stores *s = CGN_CONTAINER(t, struct state_stores, timer);
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {.n = 0};
	struct cgn_err err;
	CGN_LIVE(s, STATE_STORES_TAG);
	Cognitora__V1__StoresRequest rq = COGNITORA__V1__STORES_REQUEST__INIT;
	rq.cluster = s->cluster;
	pb_pack(&rq, &b);
	cgn_rc rc = b.bad ? CGN_FAIL(&err, NO_MEMORY, "no memory for the question")
			  : grpc_unary(s->channel, PROTO_ROUTER_STORES, cgn_buf_view(&b), ASK_TIMEOUT,
				    on_answer, s, &err);
	if (cgn_ok(rc))
		return;
	lost(s, &err);
}

static CGN_RC open_router(struct state_stores *s, const struct config *cfg, struct cgn_err *err)
{
	CGN_TRY(state_tls_client(cfg, &s->tls, err));
	const struct grpc_channel_cfg channel = {.addr = cfg->cluster.router, .tls = s->tls};
	CGN_TRY(grpc_channel_new(s->loop, &channel, &s->channel, err));
	cgn_timer_set(&s->timer, 1);
	return CGN_OK;
}

/* ---- open and close ---- */

CGN_RC state_stores_open(struct cgn_loop *l, const struct config *cfg, struct telemetry *t,
	const struct state_stores_ops *ops, void *user, struct state_stores **out, struct cgn_err *err)
{
	CGN_ON_EXIT(state_stores_close) struct state_stores *s = calloc(1, sizeof *s);
	if (s == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for the stores of the cluster");
	*s = (struct state_stores){.tag = STATE_STORES_TAG,
		.loop = l,
		.telemetry = t,
		.ops = ops,
		.user = user,
		.backoff = {.first = 50 * CGN_MSEC, .last = cfg->agent.heartbeat}};
	(void)cgn_str_copyz(s->cluster, sizeof s->cluster, cgn_str_of(cfg->cluster.name));
	roster_init(&s->told);
	cgn_timer_init(&s->timer, l, ask);
	if (cfg->cluster.state_backend == STATE_ETCD)
		CGN_TRY(state_watch_open(l, cfg, t, &watch_ops, s, &s->watch, err));
	else
		CGN_TRY(open_router(s, cfg, err));
	*out = s;
	s = NULL;
	return CGN_OK;
}

void state_stores_close(struct state_stores **take)
{
	struct state_stores *s = *take;
	*take = NULL;
	if (s == NULL)
		return;
	CGN_LIVE(s, STATE_STORES_TAG);
	s->ended = true;
	cgn_timer_cancel(&s->timer);
	state_watch_close(&s->watch);
	grpc_channel_free(&s->channel);
	tls_ctx_free(&s->tls);
	roster_fini(&s->told);
	s->tag = 0;
	free(s);
}

CGN_RC state_stores_reload_tls(struct state_stores *s, struct cgn_err *err)
{
	CGN_LIVE(s, STATE_STORES_TAG);
	if (s->tls != NULL)
		CGN_TRY(tls_ctx_reload(s->tls, err));
	return s->watch != NULL ? state_watch_reload_tls(s->watch, err) : CGN_OK;
}
