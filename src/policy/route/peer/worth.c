/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/route/peer/worth.h"

struct peer_stay peer_stay_of(enum route_verdict verdict, const struct admission_forecast *f, bool waits,
	cgn_nsec wait)
{
	return (struct peer_stay){
		.none = verdict == ROUTE_NONE,
		.waits = waits || verdict == ROUTE_FULL,
		.known = f->measured && (!waits || wait > 0),
		.queue = (waits ? wait : 0) + cgn_since(f->now, f->idle),
		.prefill = f->idle,
	};
}

static bool prefix_is_there(const struct peer_stay *stay, const struct peer_there *there, double affinity)
{
	return there->known && !there->paid && affinity > 0 &&
		affinity * (double)there->prefill < (double)stay->prefill;
}

double peer_toll(const struct peer_rules *rules, const struct peer_cost *there, const struct peer_cost *here)
{
	double seconds = 0;
	if (there->priced)
		seconds += rules->price * (there->price - (here->priced ? here->price : 0));
	if (there->powered)
		seconds += rules->energy * (there->joules - (here->powered ? here->joules : 0)) / 1e3;
	return seconds * (double)CGN_SEC;
}

static double toll_of_leaving(const struct peer_stay *stay, const struct peer_there *there,
	const struct peer_rules *rules)
{
	struct peer_cost cost = there->cost;
	cost.powered = cost.powered && stay->cost.powered;
	return peer_toll(rules, &cost, &stay->cost);
}

bool peer_worth(const struct peer_stay *stay, const struct peer_there *there, const struct peer_rules *rules)
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

bool peer_may_be_worth(const struct peer_stay *stay, const struct peer_rules *rules)
{
	const struct peer_there best = {.known = true, .cost = {.priced = true, .powered = true}};
	return peer_worth(stay, &best, rules);
}

cgn_nsec peer_ttft_learn(cgn_nsec estimate, cgn_nsec sample)
{
	const cgn_nsec step = estimate / 64;
	if (estimate == 0)
		return sample;
	if (sample > estimate)
		return sample - estimate > 3 * step ? estimate + 3 * step : sample;
	return estimate - sample > step ? estimate - step : sample;
}
