/* SPDX-License-Identifier: Apache-2.0 */
/* arms, inside: the sums of each arm. */
#pragma once
#include "policy/route/arms/arms.h"

#define ARMS_TAG 0x4a3501a7U

/* The sums of one group and class: of the figure, and of what it is a mean over (requests, gaps, tokens). */
struct arms_cell {
	double sum[ARMS_FIGURES], over[ARMS_FIGURES];
};
struct arms_sums {
	uint64_t n[ARMS_FIGURES];
	struct arms_cell cells[ARMS_GROUPS][ARMS_CLASSES];
};
_Static_assert(sizeof(struct arms_sums) <= ARMS_BYTES / ARMS_SHADOWS, "the header says so");

struct arms {
	uint32_t tag, round;
	struct arms_rules rules;
	struct arms_sums by_arm[1 + ARMS_SHADOWS];
};
