/* SPDX-License-Identifier: Apache-2.0 */
/* announce_embedded: Router.Announce every heartbeat. A Health.Watch stream ends when the router does, so that
 * a restarted router knows its nodes within moments and not only at the next heartbeat. */
#include <stdlib.h>

#include "base/pb/pb.h"
#include "io/net/tls/tls.h"
#include "io/wire/grpc/grpc.h"
#include "joint/cluster/state/announce_priv.h"

#define ANNOUNCE_TIMEOUT (5 * CGN_SEC)

struct announcer {
	struct tls_ctx *tls;
	struct grpc_channel *channel;
	struct grpc_call *alive; /* Health.Watch at the router; NULL: none */
	struct cgn_backoff alive_backoff;
	cgn_nsec heartbeat;
	bool in_flight; /* An announcement is in flight. */
	bool refused;   /* The node id is another agent's. */
	bool ended;     /* The backend is being closed: ignore answers. */
};

static struct announcer *own_of(const struct state_announce *a)
{
	return a->own;
}

/* ---- the stream that shows that the router runs ---- */

static void on_alive_message(struct grpc_call *c, void *user, const uint8_t *p, size_t n)
{
	struct state_announce *a = user;
	(void)c;
	(void)p;
	(void)n; /* Whether the router serves does not matter, only that the stream stands. */
	CGN_LIVE(a, STATE_ANNOUNCE_TAG);
	cgn_backoff_reset(&own_of(a)->alive_backoff);
}

/* The stream ended: announce again soon, because the router may have restarted. Only a stream that stood
 * resets this backoff: a router that takes Announce and ends Watch at once must not be asked without
 * pause. */
static void on_alive_close(struct grpc_call *c, void *user, const struct cgn_err *why)
{
	struct state_announce *a = user;
	(void)c;
	CGN_LIVE(a, STATE_ANNOUNCE_TAG);
	own_of(a)->alive = NULL;
	if (!a->leaving && a->source.answers && why->code != CGN_UNSUPPORTED)
		cgn_timer_set(&a->timer, cgn_backoff_next(&own_of(a)->alive_backoff));
}

static const struct grpc_call_ops alive_ops = {.on_message = on_alive_message, .on_close = on_alive_close};

static void watch_router(struct state_announce *a)
{
	struct cgn_err err;
	if (own_of(a)->alive != NULL)
		return;
	if (!cgn_ok(grpc_call_start(own_of(a)->channel, "/grpc.health.v1.Health/Watch", 0, &alive_ops, a,
		    &own_of(a)->alive, &err)))
		return;
	grpc_send(own_of(a)->alive, NULL, 0); /* An empty HealthCheckRequest means the server as a whole. */
	grpc_half_close(own_of(a)->alive);
}

/* ---- announcing ---- */

static void node_send(struct state_announce *a);

/* The router's lease may be shorter than three heartbeats of this agent. */
static cgn_nsec next_heartbeat(const struct state_announce *a, uint64_t lease_ms)
{
	cgn_nsec third = lease_ms < UINT32_MAX ? lease_ms * CGN_MSEC / 3 : UINT64_MAX;
	return lease_ms != 0 && third < own_of(a)->heartbeat ? third : own_of(a)->heartbeat;
}

static void on_answer(void *user, const struct grpc_unary_result *r)
{
	struct state_announce *a = user;
	struct cgn_err err = *r->err;
	CGN_ON_EXIT(pb_free) Cognitora__V1__AnnounceResponse *m = NULL;
	CGN_LIVE(a, STATE_ANNOUNCE_TAG);
	own_of(a)->in_flight = false;
	if (a->leaving)
		return;
	if (err.code == CGN_FINE)
		(void)pb_unpack(&cognitora__v1__announce_response__descriptor,
			(struct cgn_str){(const char *)r->p, r->n}, &m, &err)
			.code;
	own_of(a)->refused = err.code == CGN_CONFLICT;
	if (err.code != CGN_FINE) {
		announce_retry(a, &err);
		return;
	}
	cgn_timer_set(&a->timer, next_heartbeat(a, m->lease_ms));
	announce_ok(a);
	watch_router(a);
	if (a->changed)
		node_send(a);
}

static void node_send(struct state_announce *a)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {.n = 0};
	struct cgn_err err;
	if (a->node == NULL || own_of(a)->in_flight)
		return; /* Changes until then are sent after the answer. */
	Cognitora__V1__AnnounceRequest rq = COGNITORA__V1__ANNOUNCE_REQUEST__INIT;
	rq.cluster = a->cluster;
	rq.node = a->node;
	pb_pack(&rq, &b);
	cgn_rc rc = b.bad ? CGN_FAIL(&err, NO_MEMORY, "no memory for the registration")
			  : grpc_unary(own_of(a)->channel, PROTO_ROUTER_ANNOUNCE, cgn_buf_view(&b),
				    ANNOUNCE_TIMEOUT, on_answer, a, &err);
	if (!cgn_ok(rc)) {
		announce_retry(a, &err);
		return;
	}
	a->changed = false;
	own_of(a)->in_flight = true;
}

/* ---- leaving ---- */

static void on_left(void *user, const struct grpc_unary_result *r)
{
	struct state_announce *a = user;
	(void)r; /* If the router did not get the request, the node's lease ends there. */
	CGN_LIVE(a, STATE_ANNOUNCE_TAG);
	if (!own_of(a)->ended)
		announce_left(a);
}

static void embedded_leave(struct state_announce *a)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {.n = 0};
	struct cgn_err err;
	Cognitora__V1__LeaveRequest rq = COGNITORA__V1__LEAVE_REQUEST__INIT;
	rq.node_id = a->node->id;
	grpc_cancel(&own_of(a)->alive);
	if (own_of(a)->refused) { /* The other agent stays. */
		announce_left(a);
		return;
	}
	pb_pack(&rq, &b);
	if (b.bad ||
		!cgn_ok(grpc_unary(own_of(a)->channel, PROTO_ROUTER_LEAVE, cgn_buf_view(&b), ANNOUNCE_TIMEOUT,
			on_left, a, &err)))
		announce_left(a);
}

/* ---- open and close ---- */

static CGN_RC embedded_open(struct state_announce *a, const struct config *cfg, struct cgn_err *err)
{
	struct announcer *own = CGN_NEW(struct announcer);
	a->own = own;
	own->heartbeat = cfg->agent.heartbeat;
	own->alive_backoff = (struct cgn_backoff){.first = 50 * CGN_MSEC, .last = cfg->agent.heartbeat};
	CGN_TRY(state_tls_to_router(cfg, &own->tls, err));
	const struct grpc_channel_cfg channel = {.addr = cfg->cluster.router,
		.tls = own->tls,
		.follow = true};
	return grpc_channel_new(a->loop, &channel, &own->channel, err);
}

static void embedded_close(struct state_announce *a)
{
	struct announcer *own = a->own;
	if (own == NULL)
		return;
	own->ended = true;
	grpc_cancel(&own->alive);
	grpc_channel_free(&own->channel);
	tls_ctx_free(&own->tls);
	free(own);
}

static CGN_RC embedded_certificates(struct state_announce *a, struct cgn_err *err)
{
	return own_of(a)->tls != NULL ? tls_ctx_reload(own_of(a)->tls, err) : CGN_OK;
}

const struct announce_backend announce_embedded = {
	.open = embedded_open,
	.send = node_send,
	.leave = embedded_leave,
	.close = embedded_close,
	.reload_tls = embedded_certificates,
};
