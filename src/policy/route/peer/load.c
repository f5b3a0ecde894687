/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/route/peer/load.h"

#include <math.h>

#include "policy/route/cluster/nodestats.h"
#include "policy/route/routing/routing.h"

static uint32_t u32_of(double v)
{
	return v > 0 ? (uint32_t)fmin(v, UINT32_MAX - 1) : 0;
}

void peer_load_add(struct peer_load_sums *s, const struct node_stats *st, uint32_t width,
	uint32_t max_inflight, double watts)
{
	const double ms = (double)node_stats_speed(st).prefill_ms;
	const uint64_t ahead = atomic_load_explicit(&st->queued_tokens, memory_order_relaxed) +
		atomic_load_explicit(&st->others_tokens, memory_order_relaxed);
	const uint32_t own = atomic_load_explicit(&st->inflight, memory_order_relaxed),
		       others = atomic_load_explicit(&st->others, memory_order_relaxed);
	const double wait = (double)ahead * ms;
	s->wait_ms = s->nodes == 0 ? wait : fmin(s->wait_ms, wait);
	s->nodes++;
	s->inflight += (uint64_t)own + others;
	s->room += route_room(max_inflight, width, own, others);
	if (!(ms > 0))
		return;
	s->measured++;
	s->prefill_ms += ms;
	if (watts > 0) {
		s->powered++;
		s->joule_ms += ms * watts;
	}
}

struct peer_load peer_load_of(const struct peer_load_sums *s)
{
	return (struct peer_load){
		.nodes = s->nodes,
		.inflight = u32_of((double)s->inflight),
		.room = u32_of((double)s->room),
		.wait_us = u32_of(s->wait_ms * 1e3),
		.prefill_ns = s->measured > 0 ? u32_of(s->prefill_ms / s->measured * 1e6) : 0,
		.prefill_uj = s->powered > 0 ? u32_of(s->joule_ms / s->powered * 1e3) : 0,
	};
}
