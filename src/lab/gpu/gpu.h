/* SPDX-License-Identifier: Apache-2.0 */
/* gpu: how much power a GPU draws while it serves a language model, from published measurements (docs/fleet/energy/README.md has
 * the sources), and how long a decode step takes on it beside another one. Pure. */
#pragma once
#include "policy/power/energy/energy.h"

struct gpu {
	const char *name;
	struct energy_curve watts; /* decode[0]: a model is loaded and nothing runs. */
	double parked_w;           /* No process uses the GPU. */
	double loading_w;          /* While an engine starts. */
	double limit_w;
	double decode_share; /* Time of a decode step as a share of an H100's: memory bandwidth decides. */
};
/* The effect of a lower SM clock, as factors on the values at the highest one. */
struct gpu_clocked {
	double decode_time, prefill_time;
	double watts; /* Factor on the power above idle. */
};
/* Return the effect of running at |share| of the highest clock, above 0 to 1 (docs/fleet/energy/README.md has the sources): prompts
 * take longer in proportion, steps of decode up to 6 % longer, and the power above idle falls in a straight line to 18 %. */
struct gpu_clocked gpu_at_clock(double share);
/* Return the GPU named |name|; NULL: there is none. */
const struct gpu *gpu_find(const char *name);
