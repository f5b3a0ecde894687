/* SPDX-License-Identifier: Apache-2.0 */
/* park: how many nodes are needed, so that the others can end their engines and draw less than an idle engine does. Pure.
 *
 * The load is in nodes: the share of time in which prompts are computed, plus streams / knee, over all nodes. The
 * number of nodes wanted is the highest load of the window plus |spare| times its square root: requests come at random,
 * so the more there are, the smaller the share that has to be kept free. So it rises at once and falls when the
 * window has passed; in the first window all are wanted. While requests wait for room or miss an objective (pressed), one more than there are is wanted.
 *
 * Nodes that compute prompts and nodes that answer are two pools with a load each: the time of all prompts, and all streams.
 * Where one node is enough for both loads, no node of the first pool is wanted: then a node that answers computes the prompts
 * too. Without a first pool the second one has both loads. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/core/err.h"
#include "policy/power/energy/energy.h"

#define ENERGY_PARK_SLOTS 8
#define ENERGY_PARK_SLACK 0.1 /* A node is full of streams at the knee of this slack (energy_knee). */

struct energy_park_cfg {
	double spare;    /* Square roots of the load that are kept free. */
	uint32_t least;  /* Nodes that stay, at least 1. */
	cgn_nsec window; /* How long a load is remembered. */
};
struct energy_park {
	double peak[ENERGY_PARK_SLOTS];
	uint32_t slot;
	cgn_nsec slot_end, begun;
	double mean; /* Mean load of the last minutes. */
	double late; /* Share of the last minutes in which all nodes were late, since a node was wanted for it. */
	cgn_nsec pressed_until;
	uint32_t pressed_for;
};
enum energy_pool { ENERGY_PROMPTS, ENERGY_ANSWERS, ENERGY_POOLS };
struct energy_pools {
	struct energy_park pool[ENERGY_POOLS];
	uint32_t most; /* The budget has power for so many nodes; more count from |most_until| on. */
	cgn_nsec most_until;
};
struct energy_pool_view {
	double load;
	bool pressed; /* Requests wait for room. */
	bool late;    /* On every awake node a prompt would wait for others for longer than its objective. */
	uint32_t awake, all; /* Nodes that there are now or soon; all of the pool. */
};
/* Return how many of |all| nodes may be awake under a budget of |budget_w| watts, at least 1: all others draw |parked_w|, and
 * each one that is awake can compute prompts for three fifths of the time. Nodes beyond that would only idle. 0 W: all. */
uint32_t energy_park_most(const struct energy_curve *c, double budget_w, double parked_w, uint32_t all);
/* Lower |want| to the fewest nodes in all that |most| was in the window, of which one answers: a curve that wavers wakes no
 * nodes. */
void energy_pools_within(struct energy_pools *p, const struct energy_park_cfg *cfg, uint32_t most,
	cgn_nsec now, uint32_t want[ENERGY_POOLS]);
/* Fill |want| with the nodes that are wanted of each pool. Call about once a second. |cfg->least| is that of the answers. */
void energy_pools_step(struct energy_pools *p, const struct energy_park_cfg *cfg,
	const struct energy_pool_view view[ENERGY_POOLS], cgn_nsec now, uint32_t want[ENERGY_POOLS]);
