/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/power/governor/governor.h"

enum governor_phase governor_step(struct governor *g, const struct governor_input *in, cgn_nsec *again)
{
	*again = 0;
	if (in->role != GOVERNOR_BOTH) {
		g->phase = in->role == GOVERNOR_PREFILL ? GOVERNOR_FOR_PREFILL : GOVERNOR_FOR_DECODE;
		return g->phase;
	}
	if (in->prompts > 0) {
		g->prompt_at = in->now;
		g->phase = GOVERNOR_FOR_PREFILL;
		return g->phase;
	}
	if (g->phase == GOVERNOR_FOR_PREFILL && in->now < g->prompt_at + in->hold)
		*again = g->prompt_at + in->hold - in->now;
	else
		g->phase = GOVERNOR_FOR_DECODE;
	return g->phase;
}

uint32_t governor_limit(const uint16_t *supported, size_t n, enum governor_phase phase, uint32_t asked_mhz)
{
	uint32_t highest = 0, lowest = UINT32_MAX, best = 0;
	for (size_t i = 0; i < n; i++) {
		highest = supported[i] > highest ? supported[i] : highest;
		lowest = supported[i] < lowest ? supported[i] : lowest;
	}
	if (n == 0)
		return asked_mhz;
	if (asked_mhz == 0)
		asked_mhz =
			phase == GOVERNOR_FOR_PREFILL ? highest : (uint32_t)(highest * GOVERNOR_AUTO_SHARE);
	for (size_t i = 0; i < n; i++)
		if (supported[i] <= asked_mhz && supported[i] > best)
			best = supported[i];
	if (best == 0)
		best = lowest;
	return best < highest ? best : 0;
}
