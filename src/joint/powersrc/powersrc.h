/* SPDX-License-Identifier: Apache-2.0 */
/* powersrc: how much of its power limit a machine has left, from Linux powercap (RAPL packages). Its counters
 * are readable by root only on most systems; where they can't be read the headroom is 1, which means unknown.
 * No GPU, no BMC: those are other sources. */
#pragma once
#include "base/core/err.h"

#define POWERSRC_ROOT      "/sys/class/powercap"
#define POWERSRC_MAX_ZONES 16

struct powersrc_zone {
	char energy_path[280]; /* .../energy_uj */
	uint64_t limit_uw;     /* long-term constraint */
	uint64_t range_uj;     /* the counter wraps there */
	uint64_t last_uj;
};
struct powersrc {
	struct powersrc_zone zone[POWERSRC_MAX_ZONES];
	size_t n;
	cgn_nsec last; /* 0: no reading yet */
	double headroom;
};

/* Find the package zones below |root|. Finding none is no failure. */
void powersrc_init(struct powersrc *p, const char *root);
/* Read the counters and give the headroom since the last call: 1 - power / limit over all packages, in 0..1;
 * 1 when unknown. Reads a few lines of sysfs, which does not block. */
double powersrc_step(struct powersrc *p, cgn_nsec now);
