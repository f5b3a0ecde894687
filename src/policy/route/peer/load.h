/* SPDX-License-Identifier: Apache-2.0 */
/* load: the load of a model that a cluster's summary tells, from the stats of its ready nodes. Pure. */
#pragma once
#include "policy/route/peer/summary.h"

struct node_stats; /* policy/route/cluster/nodestats.h */

/* Sums over the ready nodes of a model. All zeroes: no node. */
struct peer_load_sums {
	uint32_t nodes;
	double prefill_ms, joule_ms; /* A token's; sums of the nodes that |measured| and |powered| count. */
	unsigned measured, powered;
	double wait_ms; /* Least time for the prompts before the next one. */
	uint64_t room, inflight;
};
/* Add a node. |width|: requests that it runs at once; |max_inflight|: as route_room. |watts|: power of a prompt beyond
 * that of decoding, 0: unknown. */
void peer_load_add(struct peer_load_sums *s, const struct node_stats *st, uint32_t width,
	uint32_t max_inflight, double watts);
/* Return the load; without name, waiting requests and prices, which the caller sets. */
struct peer_load peer_load_of(const struct peer_load_sums *s);
