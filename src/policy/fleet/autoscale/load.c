/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/fleet/autoscale/load.h"
#include "policy/route/cluster/nodestats.h"

#define BACKLOG_S 10.0 /* A backlog of so many seconds of prompts is the load of one replica. */

static double prompts_share(const struct autoscale_node *n, const struct node_stats *s, cgn_nsec now)
{
	cgn_nsec busy = node_stats_busy(s, now);
	double own = atomic_load_explicit(&s->inflight, memory_order_relaxed), all = node_stats_requests(s);
	double share = n->at > 0 && now > n->at && busy > n->busy
		? (double)(busy - n->busy) / (double)cgn_since(now, n->at)
		: 0;
	share *= own > 0 ? all / own : 1;
	return share < 1 ? share : 1;
}

static double backlog_seconds(const struct node_stats *s)
{
	uint64_t tokens = atomic_load_explicit(&s->queued_tokens, memory_order_relaxed) +
		atomic_load_explicit(&s->others_tokens, memory_order_relaxed);
	return (double)tokens * (double)node_stats_speed(s).prefill_ms * 1e-3;
}

double autoscale_node_load(const struct autoscale_node *n, const struct node_stats *s, uint32_t width,
	cgn_nsec now)
{
	const struct route_cand cand = {.width = width};
	double streams = atomic_load_explicit(&s->decoding, memory_order_relaxed) +
		(double)atomic_load_explicit(&s->others_decoding, memory_order_relaxed);
	return prompts_share(n, s, now) + backlog_seconds(s) / BACKLOG_S + streams / route_width(&cand);
}

void autoscale_node_note(struct autoscale_node *n, const struct node_stats *s, cgn_nsec now)
{
	n->busy = node_stats_busy(s, now);
	n->at = now;
	autoscale_worth_note(&n->worth, atomic_load_explicit(&s->saved_tokens, memory_order_relaxed), now);
}
