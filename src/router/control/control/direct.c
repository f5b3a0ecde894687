/* SPDX-License-Identifier: Apache-2.0 */
/* direct: tells each agent which requests this router has straight at its engine, so that other routers learn of them,
 * a drain awaits them, and the agent knows that the engine is alive. */
#include "base/pb/pb.h"
#include "router/control/control/watch.h"
#include "router/shared/misfit/misfit.h"

#define TELL_INTERVAL (20 * CGN_MSEC)  /* While the numbers change */
#define TELL_HEARD    (250 * CGN_MSEC) /* While only bytes come */

static void direct_send(struct router_watch *w, const struct router_direct_told *now)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	Cognitora__V1__WatchRequest rq = COGNITORA__V1__WATCH_REQUEST__INIT;
	Cognitora__V1__DirectLoad load = COGNITORA__V1__DIRECT_LOAD__INIT;
	load.inflight = now->inflight;
	load.decoding = now->decoding;
	load.queued_tokens = now->tokens;
	load.heard = now->heard;
	load.wholes = now->wholes;
	load.whole_us = now->whole_us;
	rq.direct = &load;
	pb_pack(&rq, &b);
	const struct iovec iov = {b.p, b.n};
	w->told = *now;
	grpc_send(w->call, &iov, 1);
}

static void direct_tell(struct router_watch *w)
{
	const struct node_stats *stats = &w->r->members.cluster->stats[w->slot];
	const struct router_direct_told *last = &w->told;
	const struct router_direct_told now = {.inflight = atomic_load_explicit(&stats->direct,
						       memory_order_relaxed),
		.decoding = atomic_load_explicit(&stats->direct_decoding, memory_order_relaxed),
		.tokens = atomic_load_explicit(&stats->direct_tokens, memory_order_relaxed),
		.heard = atomic_load_explicit(&stats->direct_heard, memory_order_relaxed),
		.wholes = atomic_load_explicit(&stats->direct_wholes, memory_order_relaxed),
		.whole_us = atomic_load_explicit(&stats->direct_whole_us, memory_order_relaxed),
		.at = cgn_loop_now(w->r->loop)};
	bool differs = now.inflight != last->inflight || now.decoding != last->decoding ||
		now.tokens != last->tokens || now.wholes != last->wholes || now.whole_us != last->whole_us;
	bool heard = now.heard != last->heard && now.at - last->at >= TELL_HEARD;
	if (w->engine != NULL) {
		engine_node_told(w->engine, now.inflight, now.heard != last->heard);
		if (gw_misfit_doubted(w->r->shared.misfits, w->slot))
			engine_node_doubt(w->engine);
		w->told = now;
		return;
	}
	if (w->call != NULL && !grpc_over_mark(w->call) && (differs || heard))
		direct_send(w, &now);
}

static void on_direct_timer(struct cgn_timer *t)
{
	struct router *r = CGN_CONTAINER(t, struct router, direct_timer);
	for (size_t i = 0; i < ROUTE_MAX_NODES; i++)
		if (r->members.watches[i] != NULL && r->members.watches[i]->direct)
			direct_tell(r->members.watches[i]);
	cgn_timer_set(t, TELL_INTERVAL);
}

void router_direct_init(struct router *r)
{
	cgn_timer_init(&r->direct_timer, r->loop, on_direct_timer);
}

void router_direct_begin(struct router_watch *w)
{
	w->direct = true;
	if (w->r->direct_timer.at == 0)
		cgn_timer_set(&w->r->direct_timer, TELL_INTERVAL);
}
