/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/text/skill.h"

#include <math.h>

#include "base/mix/mix.h"

/* Return a number from 0 to 1, below 1. */
static double unit_of(uint64_t seed)
{
	return (double)(mix64(seed) >> 11) * 0x1p-53;
}

static double unit_clamp(double v)
{
	return v < 0.02 ? 0.02 : v > 0.98 ? 0.98 : v;
}

struct sim_skill sim_skill_of(double skill, double difficulty, uint64_t prompt, uint64_t model)
{
	if (difficulty < 0)
		difficulty = unit_of(prompt ^ 0xd1ff1c017ULL);
	double right = 1 / (1 + exp((difficulty - skill) / SIM_SKILL_WIDTH));
	double noise = (2 * unit_of(prompt ^ model ^ 0x5eedULL) - 1) * SIM_SKILL_NOISE;
	return (struct sim_skill){
		.right = unit_of(prompt ^ mix64(model)) < right,
		.sure = unit_clamp(pow(right, 0.7) + noise),
	};
}

/* The first alternative has from 0.35 to 0.99 of the probability, each further one half of the rest. */
double sim_skill_logprob(double sure, uint64_t seed, uint64_t at, unsigned k)
{
	double first = 0.35 + 0.64 * unit_clamp(sure + (unit_of(seed + at) - 0.5) * 0.2);
	return k == 0 ? log(first) : log((1 - first) * pow(0.5, k));
}
