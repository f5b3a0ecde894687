/* SPDX-License-Identifier: Apache-2.0 */
/* outliers: trips the breakers of nodes that fail too often or are worse than the nodes that serve the same
 * models. */
#include <stdlib.h>

#include "router/control/control/watch.h"

struct outlier_member {
	uint64_t models; /* Hash of the node's set of models. */
	uint16_t slot;
};

static uint64_t node_breaker(const struct router *r, uint16_t slot)
{
	return atomic_load_explicit(&r->members.cluster->stats[slot].breaker, memory_order_relaxed);
}

void router_outliers_reset(struct router_watch *w)
{
	struct outlier_totals now;
	outlier_read(&w->r->shared.tallies[w->slot], &now); /* The slot may have had another node before. */
	outlier_window_reset(&w->window, &now);
}

/* Return the hash of the node's models, in whatever order its engines report them. */
static uint64_t models_hash(const struct cluster_node *n)
{
	uint64_t sum = 0;
	for (size_t e = 0; e < n->info->n_engines; e++)
		for (size_t m = 0; m < n->info->engines[e]->n_models; m++)
			sum += route_hash(n->info->engines[e]->models[m],
				strlen(n->info->engines[e]->models[m]));
	return sum;
}

static int member_order(const void *a, const void *b)
{
	const struct outlier_member *x = a, *y = b;
	if (x->models != y->models)
		return x->models < y->models ? -1 : 1;
	return (x->slot > y->slot) - (x->slot < y->slot);
}

/* Read the recent totals of a node. Totals from before an ejection do not count after it. */
static void recent_totals(struct router *r, uint16_t slot, bool turn, struct outlier_totals *out)
{
	struct outlier_window *w = &r->members.watches[slot]->window;
	struct outlier_totals now;
	outlier_read(&r->shared.tallies[slot], &now);
	if (breaker_state(node_breaker(r, slot), cgn_loop_now(r->loop)) != BREAKER_CLOSED)
		outlier_window_reset(w, &now);
	else if (turn)
		outlier_window_turn(w, &now);
	outlier_window_get(w, &now, out);
}

static void group_judge(struct router *r, const struct outlier_member *members, size_t n, bool turn,
	struct outlier_peer *peers, double *scratch)
{
	cgn_nsec now = cgn_loop_now(r->loop);
	for (size_t i = 0; i < n; i++) {
		const struct cluster_node *node = r->members.cluster->by_slot[members[i].slot];
		peers[i] = (struct outlier_peer){0};
		recent_totals(r, members[i].slot, turn, &peers[i].recent);
		if (outlier_fails(&peers[i].recent, r->published.rules->outlier.failure_share))
			router_breaker_step(r, node, BREAKER_TRIP, BREAKER_FOR_SHARE);
		peers[i].out = breaker_state(node_breaker(r, members[i].slot), now) != BREAKER_CLOSED;
	}
	if (!r->published.rules->outlier.on)
		return;
	outlier_judge(peers, n, r->published.rules->outlier.max_ejected, scratch);
	for (size_t i = 0; i < n; i++)
		if (peers[i].verdict != BREAKER_FOR_NOTHING)
			router_breaker_step(r, r->members.cluster->by_slot[members[i].slot], BREAKER_TRIP,
				peers[i].verdict);
}

static size_t members_fill(const struct router *r, struct outlier_member *out)
{
	size_t n = 0;
	for (uint16_t i = 0; i < ROUTE_MAX_NODES; i++) {
		const struct cluster_node *node = r->members.cluster->by_slot[i];
		if (node != NULL && node->state == NODE_READY && r->members.watches[i] != NULL)
			out[n++] = (struct outlier_member){models_hash(node), i};
	}
	qsort(out, n, sizeof *out, member_order);
	return n;
}

void router_outliers_check(struct router *r)
{
	size_t most = r->members.cluster->count[NODE_READY];
	struct outlier_member *members = CGN_NEW_ARRAY(struct outlier_member, most);
	struct outlier_peer *peers = CGN_NEW_ARRAY(struct outlier_peer, most);
	double *scratch = CGN_NEW_ARRAY(double, most);
	cgn_nsec now = cgn_loop_now(r->loop);
	bool turn = cgn_since(now, r->outliers_turned_at) >= OUTLIER_TURN;
	if (turn)
		r->outliers_turned_at = now;
	size_t n = members_fill(r, members);
	for (size_t i = 0, end; i < n; i = end) {
		for (end = i + 1; end < n && members[end].models == members[i].models;)
			end++;
		group_judge(r, &members[i], end - i, turn, peers, scratch);
	}
	free(members);
	free(peers);
	free(scratch);
}
