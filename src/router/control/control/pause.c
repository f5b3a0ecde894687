/* SPDX-License-Identifier: Apache-2.0 */
/* pause: tells an agent which conversations of its node wait for a tool, so that it keeps their KV cache. */
#include "router/control/control/pause.h"

#include "base/pb/pb.h"
#include "router/control/control/watch.h"
#include "router/request/account/sessions.h"

void router_pause_tell(void *user, const struct gw_pause *pause)
{
	struct router *r = user;
	CGN_LIVE(r, ROUTER_TAG);
	const struct router_watch *w = r->members.watches[pause->slot];
	const struct cluster_node *n = r->members.cluster->by_slot[pause->slot];
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	Cognitora__V1__WatchRequest rq = COGNITORA__V1__WATCH_REQUEST__INIT;
	Cognitora__V1__Pause told = COGNITORA__V1__PAUSE__INIT, *list = &told;
	if (w == NULL || w->call == NULL || n == NULL ||
		route_hash(n->info->id, strlen(n->info->id)) != pause->node || grpc_over_mark(w->call))
		return;
	told.last = pause->last;
	told.p50_ms = (uint32_t)(pause->forecast.p50 / CGN_MSEC);
	told.p90_ms = (uint32_t)(pause->forecast.p90 / CGN_MSEC);
	rq.pauses = &list;
	rq.n_pauses = 1;
	pb_pack(&rq, &b);
	const struct iovec iov = {b.p, b.n};
	grpc_send(w->call, &iov, 1);
}
