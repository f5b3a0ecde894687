/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/power/energy/park.h"

#include <math.h>

#define MEAN_GAIN 0.01 /* Half of a change counts after 70 calls. */

static double peak_of(const struct energy_park *p)
{
	double most = 0;
	for (uint32_t i = 0; i < ENERGY_PARK_SLOTS; i++)
		most = p->peak[i] > most ? p->peak[i] : most;
	return most;
}

static void load_note(struct energy_park *p, const struct energy_park_cfg *cfg, double load, cgn_nsec now)
{
	cgn_nsec each = cfg->window / ENERGY_PARK_SLOTS + 1;
	if (now >= p->slot_end) {
		p->slot = (p->slot + 1) % ENERGY_PARK_SLOTS;
		p->slot_end = now + each;
		p->peak[p->slot] = 0;
	}
	p->mean += (load - p->mean) * MEAN_GAIN;
	if (p->mean > p->peak[p->slot])
		p->peak[p->slot] = p->mean;
}

uint32_t energy_park_step(struct energy_park *p, const struct energy_park_cfg *cfg, double load, bool pressed,
	uint32_t awake, uint32_t all, cgn_nsec now)
{
	if (p->begun == 0)
		p->begun = now;
	load_note(p, cfg, load > 0 ? load : 0, now);
	if (now < p->begun + cfg->window)
		return all; /* The load of a window is not known yet. */
	double peak = peak_of(p), nodes = peak + cfg->spare * sqrt(peak);
	uint32_t want = nodes < all ? (uint32_t)nodes : all;
	want += (double)want < nodes && want < all;
	if (pressed && now >= p->pressed_until) { /* A node takes a while until it helps. */
		p->pressed_for = awake + 1;
		p->pressed_until = now + cfg->window / ENERGY_PARK_SLOTS;
	}
	if (now < p->pressed_until + cfg->window && p->pressed_for > want)
		want = p->pressed_for < all ? p->pressed_for : all;
	return want > cfg->least ? want : cfg->least;
}
