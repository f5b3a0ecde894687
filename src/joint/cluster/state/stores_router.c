/* SPDX-License-Identifier: Apache-2.0 */
/* stores_router: the block stores that the router knows, asked again and again by Router.Stores. */
#include <stdlib.h>

#include "base/log/log.h"
#include "base/pb/pb.h"
#include "io/net/tls/tls.h"
#include "io/os/loop/backoff.h"
#include "io/wire/grpc/grpc.h"
#include "joint/cluster/state/stores_priv.h"

#define ASK_TIMEOUT (5 * CGN_SEC)

struct stores_asker {
	struct state_stores *s;
	struct tls_ctx *tls;
	struct grpc_channel *channel;
	struct cgn_timer timer; /* the next question */
	/* Pause between questions, up to |last| while nothing changes. A change resets it: nodes that start
	 * together appear one after the other, and fetches need their stores soon. */
	struct cgn_backoff backoff;
	bool ended; /* being freed: ignore answers */
	char cluster[72];
};

static void store_sweep(void *arg, struct roster_entry *e)
{
	stores_gone(arg, e);
}

static bool store_is_sound(const Cognitora__V1__NodeStore *n, struct cgn_err *err)
{
	if (!proto_node_id_ok(cgn_str_of(n->node_id)) || n->kv == NULL)
		return cgn_ok(CGN_FAIL(err, INVALID, "NodeStore without a node's id or a store"));
	return cgn_ok(proto_store_check(n->node_id, n->kv, err));
}

static void answer_take(struct state_stores *s, const Cognitora__V1__StoresResponse *m)
{
	struct cgn_err err;
	roster_mark(&s->known);
	for (size_t i = 0; i < m->n_stores; i++) {
		if (store_is_sound(m->stores[i], &err))
			stores_seen(s, m->stores[i]->node_id, m->stores[i]->kv);
		else
			cgn_log_limited(WARN, "state.store_ignored", F_STR("why", err.msg));
	}
	roster_sweep(&s->known, store_sweep, s);
}

static void question_schedule(struct stores_asker *own, bool soon)
{
	if (soon)
		cgn_backoff_reset(&own->backoff);
	cgn_timer_set(&own->timer, cgn_backoff_next(&own->backoff));
}

static void router_lost(struct stores_asker *own, const struct cgn_err *why)
{
	bool was = own->s->source.answers;
	stores_connected(own->s, false, "the router", why->msg);
	question_schedule(own, was);
}

static void on_answer(void *user, const struct grpc_unary_result *r)
{
	struct stores_asker *own = user;
	struct state_stores *s = own->s;
	struct cgn_err err = *r->err;
	CGN_ON_EXIT(pb_free) Cognitora__V1__StoresResponse *m = NULL;
	CGN_LIVE(s, STATE_STORES_TAG);
	if (own->ended)
		return;
	if (err.code == CGN_FINE)
		(void)pb_unpack(&cognitora__v1__stores_response__descriptor,
			(struct cgn_str){(const char *)r->p, r->n}, &m, &err)
			.code;
	if (err.code != CGN_FINE) {
		router_lost(own, &err);
		return;
	}
	bool was = s->source.answers;
	stores_connected(s, true, "the router", "");
	s->changed = false;
	answer_take(s, m);
	question_schedule(own, s->changed || !was);
}

static void on_question_due(struct cgn_timer *t)
{
	struct stores_asker *own = CGN_CONTAINER(t, struct stores_asker, timer);
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {.n = 0};
	struct cgn_err err;
	CGN_LIVE(own->s, STATE_STORES_TAG);
	Cognitora__V1__StoresRequest rq = COGNITORA__V1__STORES_REQUEST__INIT;
	rq.cluster = own->cluster;
	pb_pack(&rq, &b);
	cgn_rc rc = b.bad ? CGN_FAIL(&err, NO_MEMORY, "no memory for the question")
			  : grpc_unary(own->channel, PROTO_ROUTER_STORES, cgn_buf_view(&b), ASK_TIMEOUT,
				    on_answer, own, &err);
	if (cgn_ok(rc))
		return;
	router_lost(own, &err);
}

static CGN_RC router_open(struct state_stores *s, const struct config *cfg, struct cgn_err *err)
{
	struct stores_asker *own = CGN_NEW(struct stores_asker);
	s->own = own;
	own->s = s;
	own->backoff = (struct cgn_backoff){.first = 50 * CGN_MSEC, .last = cfg->agent.heartbeat};
	(void)cgn_str_copyz(own->cluster, sizeof own->cluster, cgn_str_of(cfg->cluster.name));
	cgn_timer_init(&own->timer, s->loop, on_question_due);
	CGN_TRY(state_tls_to_router(cfg, &own->tls, err));
	const struct grpc_channel_cfg channel = {.addr = cfg->cluster.router,
		.tls = own->tls,
		.follow = true};
	CGN_TRY(grpc_channel_new(s->loop, &channel, &own->channel, err));
	cgn_timer_set(&own->timer, 1);
	return CGN_OK;
}

static void router_close(struct state_stores *s)
{
	struct stores_asker *own = s->own;
	if (own == NULL)
		return;
	own->ended = true;
	cgn_timer_cancel(&own->timer);
	grpc_channel_free(&own->channel);
	tls_ctx_free(&own->tls);
	free(own);
}

static CGN_RC router_certificates(struct state_stores *s, struct cgn_err *err)
{
	struct stores_asker *own = s->own;
	return own->tls != NULL ? tls_ctx_reload(own->tls, err) : CGN_OK;
}

const struct stores_backend stores_router = {
	.open = router_open,
	.close = router_close,
	.reload_tls = router_certificates,
};
