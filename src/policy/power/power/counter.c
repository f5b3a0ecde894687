/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/power/power/power.h"

void power_counter_init(struct power_counter *c, uint64_t range_uj, double max_watts)
{
	*c = (struct power_counter){.range_uj = range_uj, .max_watts = max_watts};
}

/* Find the microjoules from the last value to |uj|. False: the counter was reset in between. */
static bool used_since(const struct power_counter *c, uint64_t uj, uint64_t *out)
{
	if (uj >= c->last_uj)
		*out = uj - c->last_uj;
	else if (c->range_uj >= c->last_uj) /* 0, no range, is below any value that can be gone back from */
		*out = c->range_uj - c->last_uj + uj;
	else
		return false;
	return true;
}

bool power_counter_step(struct power_counter *c, uint64_t uj, cgn_nsec now, double *watts)
{
	uint64_t used = 0;
	bool had = c->has_last;
	bool is_later = had && now > c->last;
	bool is_known = had && used_since(c, uj, &used);
	double seconds = is_later ? (double)cgn_since(now, c->last) / (double)CGN_SEC : 0;
	double joules = (double)used / 1e6;
	/* Without time in between there is no power to judge by: only a step forward counts. */
	if (is_known && (is_later ? joules > c->max_watts * seconds : uj < c->last_uj))
		is_known = false;
	if (had && !is_known)
		c->resets++;
	c->last_uj = uj;
	c->last = now;
	c->has_last = true;
	if (!is_known)
		return false;
	c->joules += joules;
	if (!is_later)
		return false;
	*watts = joules / seconds;
	return true;
}
