/* SPDX-License-Identifier: Apache-2.0 */
/* skill: whether a simulated model of a stated skill answers a prompt of a stated difficulty right, and how sure its
 * tokens look. Both numbers are from 0 to 1. The answer is right with probability 1 / (1 + exp((difficulty - skill) /
 * SIM_SKILL_WIDTH)); the tokens look as sure as that probability is, give or take SIM_SKILL_NOISE, and surer where it is
 * low, as models are. Pure functions of their arguments: a prompt has the same outcome each time. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#define SIM_SKILL_WIDTH 0.06
#define SIM_SKILL_NOISE 0.15

struct sim_skill {
	bool right;
	double sure; /* 0 to 1; below 0: log-probabilities say nothing. */
};
/* |difficulty|: below 0: it follows from |prompt|, a digest, evenly spread. |model|: hash of the model's name. */
struct sim_skill sim_skill_of(double skill, double difficulty, uint64_t prompt, uint64_t model);
/* Return the log-probability of the |k|-th alternative to the token at |at| of an answer that is |sure|: falls with k. */
double sim_skill_logprob(double sure, uint64_t seed, uint64_t at, unsigned k);
