/* SPDX-License-Identifier: Apache-2.0 */
/* powersrc: how much of its power limit the machine has left, from Linux powercap (RAPL packages). On most
 * systems only root can read the counters; when they can't be read, the headroom is 1, which means unknown.
 * GPUs and BMCs are not read. */
#pragma once
#include "policy/power/power/power.h"

#define POWERSRC_POWERCAP   "class/powercap" /* Below sysfs */
#define POWERSRC_MAX_ZONES  16
#define POWERSRC_MOST_WATTS 20000 /* No counter of one part of a machine counts more */

struct powersrc_zone {
	char energy_path[280]; /* .../energy_uj */
	uint64_t limit_uw;     /* Long-term constraint; 0: it has none, as AMD's */
	struct power_counter counter;
};
struct powersrc {
	struct powersrc_zone zone[POWERSRC_MAX_ZONES];
	size_t n;
	cgn_nsec last; /* Last reading; 0: none yet */
	double headroom;
	double joules; /* Energy of all packages since powersrc_init */
};

/* Find the package zones below |root|; there may be none. */
void powersrc_init(struct powersrc *p, const char *root);
double powersrc_limit_watts(
	const struct powersrc *p); /* Return the sum of the long-term limits; 0: none is known. */
/* Return the highest possible power of the packages: their limits, and POWERSRC_MOST_WATTS for each without one. */
double powersrc_most_watts(const struct powersrc *p);
/* Read the counters and return the headroom since the last call: 1 - power / limit over the packages with a limit, from 0
 * to 1; 1 when unknown. Reads a few lines of sysfs and does not block. */
double powersrc_step(struct powersrc *p, cgn_nsec now);
