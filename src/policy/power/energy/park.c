/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/power/energy/park.h"

#include <math.h>

#define MEAN_GAIN  0.01 /* Half of a change counts after 70 calls. */
#define BUSY_SHARE 0.6  /* A node must be able to compute prompts for this share of its time. */
#define LATE_MOST  0.02 /* A node more is wanted when all were late for a larger share of the last minutes. */

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

/* Return the nodes, not whole ones, that |load| needs. */
static double nodes_for(const struct energy_park_cfg *cfg, double load)
{
	return load + cfg->spare * sqrt(load);
}

/* Return how many nodes are wanted, of |awake| that there are now or soon, and |all|. */
static uint32_t park_step(struct energy_park *p, const struct energy_park_cfg *cfg, double load, bool pressed,
	uint32_t awake, uint32_t all, cgn_nsec now)
{
	if (p->begun == 0)
		p->begun = now;
	load_note(p, cfg, load > 0 ? load : 0, now);
	if (now < p->begun + cfg->window)
		return all; /* The load of a window is not known yet. */
	double nodes = nodes_for(cfg, peak_of(p));
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

uint32_t energy_park_most(const struct energy_curve *c, double budget_w, double parked_w, uint32_t all)
{
	double idle = (double)c->decode[0], working = idle + BUSY_SHARE * ((double)c->prefill - idle);
	if (!(budget_w > 0) || !(working > parked_w))
		return all;
	double nodes = (budget_w - all * parked_w) / (working - parked_w);
	return nodes < 1 ? 1 : nodes < all ? (uint32_t)nodes : all;
}

/* Return whether the pool's nodes have been late too often, and count from 0 then. */
static bool is_late(struct energy_park *p, const struct energy_pool_view *view)
{
	p->late += ((view->late && view->awake > 0 ? 1 : 0) - p->late) * MEAN_GAIN;
	if (p->late <= LATE_MOST)
		return false;
	p->late = 0;
	return true;
}

void energy_pools_within(struct energy_pools *p, const struct energy_park_cfg *cfg, uint32_t most,
	cgn_nsec now, uint32_t want[ENERGY_POOLS])
{
	uint32_t *prompts = &want[ENERGY_PROMPTS], *answers = &want[ENERGY_ANSWERS];
	if (most <= p->most || now >= p->most_until) {
		p->most = most;
		p->most_until = now + cfg->window;
	}
	while (*prompts + *answers > p->most && (*prompts > 0 || *answers > 1))
		--*(*prompts >= *answers ? prompts : answers);
}

void energy_pools_step(struct energy_pools *p, const struct energy_park_cfg *cfg,
	const struct energy_pool_view view[ENERGY_POOLS], cgn_nsec now, uint32_t want[ENERGY_POOLS])
{
	const struct energy_pool_view *prompts = &view[ENERGY_PROMPTS], *answers = &view[ENERGY_ANSWERS];
	struct energy_park *first = &p->pool[ENERGY_PROMPTS], *second = &p->pool[ENERGY_ANSWERS];
	const bool one = prompts->all == 0, press_first = is_late(first, prompts) | prompts->pressed,
		   press_second = is_late(second, answers) | answers->pressed;
	struct energy_park_cfg none = *cfg;
	none.least = 0;
	want[ENERGY_PROMPTS] = one
		? 0
		: park_step(first, &none, prompts->load, press_first || (prompts->awake == 0 && press_second),
			  prompts->awake, prompts->all, now);
	want[ENERGY_ANSWERS] = park_step(second, cfg, answers->load + (one ? prompts->load : 0),
		press_second && (one || prompts->awake > 0), answers->awake, answers->all, now);
	bool pressed = first->pressed_for > 0 && now < first->pressed_until + cfg->window;
	if (want[ENERGY_PROMPTS] == 1 && !pressed && nodes_for(cfg, peak_of(first) + peak_of(second)) <= 1)
		want[ENERGY_PROMPTS] = 0;
}
