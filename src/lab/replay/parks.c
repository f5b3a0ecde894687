/* SPDX-License-Identifier: Apache-2.0 */
/* parks: which nodes end their engines, by the load (policy/power/energy/park) or by a list of the hours. */
#include "lab/replay/replay_priv.h"

#define HOUR (3600 * CGN_SEC)

/* ---- by the load ---- */

static enum energy_pool pool_of(const struct replay *r, const struct replay_server *n)
{
	return pools_exist(r) && (uint32_t)(n - r->nodes) < r->cfg->prefill_nodes ? ENERGY_PROMPTS
										  : ENERGY_ANSWERS;
}

/* Return the load of the node's streams as a share of what it can do. */
static double streams_of(const struct replay *r, const struct replay_server *n)
{
	const struct replay_draw *d = &n->draw;
	const double step = (double)r->cfg->decode * 1e-6;
	uint32_t knee = energy_knee(&d->meter.model.curve, step, step * r->cfg->batch_effect,
		r->cfg->max_batch, ENERGY_PARK_SLACK);
	return (double)d->streams / knee;
}

static bool node_is_awake(const struct replay_server *n)
{
	return n->draw.state == REPLAY_AWAKE || n->draw.state == REPLAY_WAKING;
}

/* Choose the awake node with the fewest requests to park; or a parked one to wake, before it a node that is still leaving. */
static struct replay_server *node_choose(struct replay *r, enum energy_pool pool, bool to_park)
{
	struct replay_server *best = NULL;
	for (uint32_t i = 0; i < r->cfg->nodes; i++) {
		struct replay_server *n = &r->nodes[i];
		const struct replay_draw *d = &n->draw;
		if (pool_of(r, n) != pool || (to_park ? d->state != REPLAY_AWAKE : node_is_awake(n)))
			continue;
		if (best == NULL ||
			(to_park && d->prompts + d->streams <= best->draw.prompts + best->draw.streams) ||
			(!to_park && d->state == REPLAY_LEAVING && best->draw.state != REPLAY_LEAVING))
			best = n;
	}
	return best;
}

void energy_nodes_follow(struct replay *r)
{
	for (uint32_t i = 0; i < r->cfg->nodes; i++) {
		struct replay_server *n = &r->nodes[i];
		if (n->draw.state == REPLAY_WAKING && r->now >= n->draw.ready)
			energy_node_power(r, n, REPLAY_AWAKE);
		if (n->draw.state == REPLAY_LEAVING && n->draw.prompts + n->draw.streams == 0)
			energy_node_power(r, n, REPLAY_PARKED);
	}
}

/* Return whether a prompt would wait on the node for longer than its objective. */
static bool is_late(const struct replay *r, const struct replay_server *n)
{
	return node_stats_queue_ms(&r->cluster->stats[n->node->slot]) > (double)r->cfg->rules->energy.ttft_ms;
}

static void pools_view(struct replay *r, struct energy_pool_view view[ENERGY_POOLS])
{
	bool waits = admission_waiting(r->admission) > 0;
	for (enum energy_pool p = 0; p < ENERGY_POOLS; p++)
		view[p] = (struct energy_pool_view){.pressed = waits,
			.late = r->cfg->rules->energy.ttft_ms > 0};
	for (uint32_t i = 0; i < r->cfg->nodes; i++) {
		struct replay_server *n = &r->nodes[i];
		struct energy_pool_view *v = &view[pool_of(r, n)];
		v->all++;
		v->awake += node_is_awake(n);
		v->late &= n->draw.state != REPLAY_AWAKE || is_late(r, n);
		view[ENERGY_PROMPTS].load += n->draw.asked_s;
		view[ENERGY_ANSWERS].load += streams_of(r, n);
		n->draw.asked_s = 0;
	}
}

static void pool_follow(struct replay *r, enum energy_pool pool, uint32_t awake, uint32_t want)
{
	for (; awake > want; awake--) {
		struct replay_server *n = node_choose(r, pool, true);
		if (n == NULL)
			break;
		energy_node_power(r, n, REPLAY_LEAVING);
	}
	for (; awake < want; awake++) {
		struct replay_server *n = node_choose(r, pool, false);
		if (n == NULL)
			break;
		energy_node_power(r, n, n->draw.state == REPLAY_LEAVING ? REPLAY_AWAKE : REPLAY_WAKING);
	}
}

/* Return how many nodes the budget has power for. */
static uint32_t most_of(const struct replay *r)
{
	return energy_park_most(&r->nodes[0].draw.meter.model.curve, r->cfg->rules->energy.budget_w,
		r->cfg->gpu->parked_w, r->cfg->nodes);
}

static void nodes_park(struct replay *r)
{
	struct energy_pool_view view[ENERGY_POOLS];
	uint32_t want[ENERGY_POOLS];
	energy_nodes_follow(r);
	pools_view(r, view);
	energy_pools_step(&r->park, &r->cfg->park, view, r->now, want);
	energy_pools_within(&r->park, &r->cfg->park, most_of(r), r->now, want);
	for (enum energy_pool p = 0; p < ENERGY_POOLS; p++)
		pool_follow(r, p, view[p].awake, want[p]);
}

/* ---- by the hour ---- */

static const struct replay_fleet *fleet_at(const struct replay_cfg *cfg, cgn_nsec t)
{
	size_t h = (size_t)(t / HOUR);
	return &cfg->fleet[h < cfg->n_fleet ? h : cfg->n_fleet - 1];
}

static uint32_t more_of(uint32_t a, uint32_t b)
{
	return a > b ? a : b;
}

/* Have the nodes of this hour awake, and those of the next one in time. */
static void fleet_follow(struct replay *r)
{
	const struct replay_fleet *is = fleet_at(r->cfg, r->now),
				  *next = fleet_at(r->cfg, r->now + r->cfg->wake);
	const uint32_t want[ENERGY_POOLS] = {more_of(is->prompts, next->prompts),
		more_of(is->answers, next->answers)};
	struct energy_pool_view view[ENERGY_POOLS];
	energy_nodes_follow(r);
	pools_view(r, view);
	for (enum energy_pool p = 0; p < ENERGY_POOLS; p++)
		pool_follow(r, p, view[p].awake, want[p]);
}

void parks_second(struct replay *r)
{
	if (r->cfg->n_fleet > 0)
		fleet_follow(r);
	else if (r->cfg->parks)
		nodes_park(r);
}
