/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/route/remote/worth.h"

struct remote_stay remote_stay_of(enum route_verdict verdict, const struct admission_forecast *f, bool waits,
	cgn_nsec wait)
{
	return (struct remote_stay){
		.none = verdict == ROUTE_NONE,
		.waits = waits || verdict == ROUTE_FULL,
		.known = f->measured && (!waits || wait > 0),
		.queue = (waits ? wait : 0) + cgn_since(f->now, f->idle),
		.prefill = f->idle,
	};
}

static bool prefix_is_there(const struct remote_stay *stay, const struct remote_there *there, double affinity)
{
	return there->known && !there->paid && affinity > 0 &&
		affinity * (double)there->prefill < (double)stay->prefill;
}

double remote_toll(const struct remote_rules *rules, const struct remote_cost *there,
	const struct remote_cost *here)
{
	double seconds = 0;
	if (there->priced)
		seconds += rules->price * (there->price - (here->priced ? here->price : 0));
	if (there->powered)
		seconds += rules->energy * (there->joules - (here->powered ? here->joules : 0)) / 1e3;
	return seconds * (double)CGN_SEC;
}

static double toll_of_leaving(const struct remote_stay *stay, const struct remote_there *there,
	const struct remote_rules *rules)
{
	struct remote_cost cost = there->cost;
	cost.powered = cost.powered && stay->cost.powered;
	return remote_toll(rules, &cost, &stay->cost);
}

bool remote_worth(const struct remote_stay *stay, const struct remote_there *there,
	const struct remote_rules *rules)
{
	double least = (double)there->ttft + (double)rules->margin + toll_of_leaving(stay, there, rules);
	if (stay->none)
		return true;
	if (!stay->known)
		return stay->waits;
	if (!stay->waits && stay->queue == 0 && !prefix_is_there(stay, there, rules->affinity))
		return false;
	if (there->known && there->prefill > stay->prefill)
		least += rules->rework * (double)(there->prefill - stay->prefill);
	return (double)stay->queue + (double)stay->prefill > least;
}

bool remote_may_be_worth(const struct remote_stay *stay, const struct remote_rules *rules)
{
	const struct remote_there best = {.known = true, .cost = {.priced = true, .powered = true}};
	return remote_worth(stay, &best, rules);
}

cgn_nsec remote_ttft_learn(cgn_nsec estimate, cgn_nsec sample)
{
	const cgn_nsec step = estimate / 64;
	if (estimate == 0)
		return sample;
	if (sample > estimate)
		return sample - estimate > 3 * step ? estimate + 3 * step : sample;
	return estimate - sample > step ? estimate - step : sample;
}
