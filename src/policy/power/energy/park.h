/* SPDX-License-Identifier: Apache-2.0 */
/* park: how many nodes are needed, so that the others can end their engines and draw less than an idle engine does. Pure.
 *
 * The load is in nodes: the share of time in which prompts are computed, plus streams / knee, over all nodes. The
 * number of nodes wanted is the highest load of the window plus |spare| times its square root: requests come at random,
 * so the more there are, the smaller the share that has to be kept free. So it rises at once and falls when the
 * window has passed; in the first window all are wanted. While requests wait for room or miss an objective (pressed), one more than there are is wanted. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/core/err.h"

#define ENERGY_PARK_SLOTS 8

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
	cgn_nsec pressed_until;
	uint32_t pressed_for;
};
/* Return how many nodes are wanted, of |awake| that there are now or soon, and |all|. Call about once a second. */
uint32_t energy_park_step(struct energy_park *p, const struct energy_park_cfg *cfg, double load, bool pressed,
	uint32_t awake, uint32_t all, cgn_nsec now);
