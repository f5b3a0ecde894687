/* SPDX-License-Identifier: Apache-2.0 */
/* parking: puts engines to rest that the load does not need, and wakes them again (router.energy.park). The decision is
 * policy/power/energy/park, once a second for each model whose nodes all count energy; the orders are those of cgn-ctl model
 * sleep and unload, marked as parked. A node of which an operator said something is left alone. Routers decide alike from
 * the loads that agents report, and a conflict of two of them is met by deciding again. At most PARK_MODELS models; one
 * order at a time. On the control loop. */
#pragma once
#include "policy/node/wanted/wanted.h"
#include "policy/power/energy/park.h"
#include "policy/route/routing/routing.h"

#define PARK_MODELS 32

struct router_parked_model {
	char name[WANTED_MAX_NAME + 1];
	struct energy_pools park;
	cgn_nsec blind_since; /* When a node stopped counting its energy; 0: all count. */
};
struct router_parking {
	struct router_parked_model model[PARK_MODELS];
	size_t n;
	bool pending; /* The state backend works on an order. */
	cgn_nsec at;  /* Begin of the second that |busy| is of. */
	cgn_nsec woken
		[ROUTE_MAX_NODES]; /* When each node was ordered to wake; 0: it was not, or is ready since. */
	cgn_nsec busy[ROUTE_MAX_NODES]; /* Time in which each node computed prompts, until then. */
};

struct router;
void router_parking_follow(struct router *r, cgn_nsec now); /* Once a second: park or wake a node. */
