/* SPDX-License-Identifier: Apache-2.0 */
/* announce_embedded: Router.Announce every heartbeat. A Health.Watch stream beside it ends when the router
 * does, so that a restarted router knows its nodes within moments and not only at the next heartbeat. */
#include "base/pb/pb.h"
#include "joint/state/state_priv.h"

#define ANNOUNCE_TIMEOUT (5 * CGN_SEC)

/* ---- is the router there? ---- */

static void alive_message(struct grpc_call *c, void *user, const uint8_t *p, size_t n)
{
	struct state_announce *a = user;
	(void)c;
	(void)p;
	(void)n; /* serving or not: that the stream stands is all that matters */
	CGN_LIVE(a, STATE_ANNOUNCE_TAG);
	cgn_backoff_reset(&a->alive_backoff);
}

/* The stream ended: announce again soon, to a router that may have come back. With a backoff of its own,
 * which only a stream that stood resets: a router that takes Announce and ends Watch at once is not to be
 * asked all the time. */
static void alive_close(struct grpc_call *c, void *user, const struct cgn_err *why)
{
	struct state_announce *a = user;
	(void)c;
	CGN_LIVE(a, STATE_ANNOUNCE_TAG);
	a->alive = NULL;
	if (!a->leaving && a->connected && why->code != CGN_UNSUPPORTED)
		cgn_timer_set(&a->timer, cgn_backoff_next(&a->alive_backoff));
}

static const struct grpc_call_ops alive_ops = {.on_message = alive_message, .on_close = alive_close};

static void watch_router(struct state_announce *a)
{
	struct cgn_err err;
	if (a->alive != NULL)
		return;
	if (!cgn_ok(grpc_call_start(a->channel, "/grpc.health.v1.Health/Watch", 0, &alive_ops, a, &a->alive,
		    &err)))
		return;
	grpc_send(a->alive, NULL, 0); /* an empty HealthCheckRequest: the server as a whole */
	grpc_half_close(a->alive);
}

/* ---- announcing ---- */

static void send_node(struct state_announce *a);

static void announce_failed(struct state_announce *a, const struct cgn_err *why)
{
	cgn_timer_set(&a->timer, cgn_backoff_next(&a->backoff));
	announce_trouble(a, why);
}

/* The router's lease may be shorter than ours is configured. */
static cgn_nsec next_heartbeat(const struct state_announce *a, uint64_t lease_ms)
{
	cgn_nsec third = lease_ms < UINT32_MAX ? lease_ms * CGN_MSEC / 3 : UINT64_MAX;
	return lease_ms != 0 && third < a->heartbeat ? third : a->heartbeat;
}

static void on_answer(void *user, const struct grpc_unary_result *r)
{
	struct state_announce *a = user;
	struct cgn_err err = *r->err;
	CGN_ON_EXIT(pb_free) Cognitora__V1__AnnounceResponse *m = NULL;
	CGN_LIVE(a, STATE_ANNOUNCE_TAG);
	a->in_flight = false;
	if (a->leaving)
		return;
	if (err.code == CGN_FINE)
		(void)pb_unpack(&cognitora__v1__announce_response__descriptor,
			(struct cgn_str){(const char *)r->p, r->n}, &m, &err)
			.code;
	if (err.code != CGN_FINE) {
		announce_failed(a, &err);
		return;
	}
	cgn_timer_set(&a->timer, next_heartbeat(a, m->lease_ms));
	announce_ok(a);
	watch_router(a);
	if (a->changed)
		send_node(a);
}

static void send_node(struct state_announce *a)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {.n = 0};
	struct cgn_err err;
	if (a->node == NULL || a->in_flight)
		return; /* what changed meanwhile goes when the answer is here */
	Cognitora__V1__AnnounceRequest rq = COGNITORA__V1__ANNOUNCE_REQUEST__INIT;
	rq.cluster = a->cluster;
	rq.node = a->node;
	pb_pack(&rq, &b);
	cgn_rc rc = b.bad ? CGN_FAIL(&err, NO_MEMORY, "no memory for the registration")
			  : grpc_unary(a->channel, PROTO_ROUTER_ANNOUNCE, cgn_buf_view(&b), ANNOUNCE_TIMEOUT,
				    on_answer, a, &err);
	if (!cgn_ok(rc)) {
		announce_failed(a, &err);
		return;
	}
	a->changed = false;
	a->in_flight = true;
}

/* ---- leaving ---- */

static void on_left(void *user, const struct grpc_unary_result *r)
{
	struct state_announce *a = user;
	(void)r; /* a router that did not hear it sees the lease end */
	CGN_LIVE(a, STATE_ANNOUNCE_TAG);
	if (!a->ended)
		announce_left(a);
}

static void leave(struct state_announce *a)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {.n = 0};
	struct cgn_err err;
	Cognitora__V1__LeaveRequest rq = COGNITORA__V1__LEAVE_REQUEST__INIT;
	rq.node_id = a->node->id;
	grpc_cancel(&a->alive);
	pb_pack(&rq, &b);
	if (b.bad ||
		!cgn_ok(grpc_unary(a->channel, PROTO_ROUTER_LEAVE, cgn_buf_view(&b), ANNOUNCE_TIMEOUT,
			on_left, a, &err)))
		announce_left(a);
}

/* ---- open and close ---- */

static CGN_RC embedded_open(struct state_announce *a, const struct config *cfg, struct cgn_err *err)
{
	a->alive_backoff = (struct cgn_backoff){.first = 50 * CGN_MSEC, .last = cfg->agent.heartbeat};
	CGN_TRY(state_tls_client(cfg, &a->tls, err));
	const struct grpc_channel_cfg channel = {.addr = cfg->cluster.router, .tls = a->tls};
	return grpc_channel_new(a->loop, &channel, &a->channel, err);
}

static void embedded_close(struct state_announce *a)
{
	a->ended = true;
	grpc_cancel(&a->alive);
	grpc_channel_free(&a->channel);
	tls_ctx_free(&a->tls);
}

const struct announce_backend announce_embedded = {
	.open = embedded_open,
	.send = send_node,
	.leave = leave,
	.close = embedded_close,
};
