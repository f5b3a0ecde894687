/* SPDX-License-Identifier: Apache-2.0 */
/* load: the load of a node in replicas, and what its cache saves, from what routers count of it (struct node_stats). Pure;
 * the router and the replay share it. */
#pragma once
#include "policy/fleet/autoscale/autoscale.h"

struct node_stats; /* policy/route/cluster/nodestats.h */

struct autoscale_node {
	cgn_nsec at;   /* When the node was noted last; 0: never. */
	cgn_nsec busy; /* Time in which it had computed prompts by then. */
	struct autoscale_worth worth;
};
/* Return the load of the node: the share of the time since the last note in which it computed prompts, its streams /
 * |width| (as of struct route_cand), and the seconds that the prompts take which wait there / 10. Of other routers' prompts
 * only the requests are known: they count like this router's. */
double autoscale_node_load(const struct autoscale_node *n, const struct node_stats *s, uint32_t width,
	cgn_nsec now);
/* Note the node at |now|. Call about once a second, after the loads were asked for. */
void autoscale_node_note(struct autoscale_node *n, const struct node_stats *s, cgn_nsec now);
