/* SPDX-License-Identifier: Apache-2.0 */
/* peers: nodes that fail too often, or are worse than those that serve the same models, are taken out. */
#include <stdlib.h>

#include "base/log/log.h"
#include "router/control/router.h"

struct member {
	uint64_t models; /* hash of their set */
	uint16_t slot;
};

static uint64_t breaker_of(const struct router *r, uint16_t slot)
{
	return atomic_load_explicit(&r->cluster->cells[slot].breaker, memory_order_relaxed);
}

void router_outliers_reset(struct router_watch *w)
{
	struct outlier_totals now;
	outlier_read(&w->r->shared.tallies[w->slot], &now); /* its slot had another node before */
	outlier_window_reset(&w->window, &now);
}

/* Whatever order its engines tell them in. */
static uint64_t models_of(const struct cluster_node *n)
{
	uint64_t sum = 0;
	for (size_t e = 0; e < n->info->n_engines; e++)
		for (size_t m = 0; m < n->info->engines[e]->n_models; m++)
			sum += route_hash(n->info->engines[e]->models[m],
				strlen(n->info->engines[e]->models[m]));
	return sum;
}

static int order(const void *a, const void *b)
{
	const struct member *x = a, *y = b;
	if (x->models != y->models)
		return x->models < y->models ? -1 : 1;
	return (x->slot > y->slot) - (x->slot < y->slot);
}

/* What was before a node was taken out says nothing of it afterwards. */
static void recent_of(struct router *r, uint16_t slot, bool turn, struct outlier_totals *out)
{
	struct outlier_window *w = &r->watches[slot]->window;
	struct outlier_totals now;
	outlier_read(&r->shared.tallies[slot], &now);
	if (breaker_state(breaker_of(r, slot), cgn_loop_now(r->loop)) != BREAKER_CLOSED)
		outlier_window_reset(w, &now);
	else if (turn)
		outlier_window_turn(w, &now);
	outlier_window_get(w, &now, out);
}

static void group_judge(struct router *r, const struct member *members, size_t n, bool turn,
	struct outlier_peer *peers, double *scratch)
{
	cgn_nsec now = cgn_loop_now(r->loop);
	for (size_t i = 0; i < n; i++) {
		const struct cluster_node *node = r->cluster->by_slot[members[i].slot];
		peers[i] = (struct outlier_peer){0};
		recent_of(r, members[i].slot, turn, &peers[i].recent);
		if (outlier_fails(&peers[i].recent, r->rules->failure_share))
			router_breaker_step(r, node, BREAKER_TRIP, BREAKER_FOR_SHARE);
		peers[i].out = breaker_state(breaker_of(r, members[i].slot), now) != BREAKER_CLOSED;
	}
	if (!r->rules->outliers)
		return;
	outlier_judge(peers, n, r->rules->max_ejected, scratch);
	for (size_t i = 0; i < n; i++)
		if (peers[i].verdict != BREAKER_FOR_NOTHING)
			router_breaker_step(r, r->cluster->by_slot[members[i].slot], BREAKER_TRIP,
				peers[i].verdict);
}

static size_t members_fill(const struct router *r, struct member *out)
{
	size_t n = 0;
	for (uint16_t i = 0; i < ROUTE_MAX_NODES; i++) {
		const struct cluster_node *node = r->cluster->by_slot[i];
		if (node != NULL && node->state == NODE_READY && r->watches[i] != NULL)
			out[n++] = (struct member){models_of(node), i};
	}
	qsort(out, n, sizeof *out, order);
	return n;
}

void router_outliers_check(struct router *r)
{
	size_t most = r->cluster->count[NODE_READY], n = 0;
	struct member *members = calloc(most + 1, sizeof *members);
	struct outlier_peer *peers = calloc(most + 1, sizeof *peers);
	double *scratch = calloc(most + 1, sizeof *scratch);
	cgn_nsec now = cgn_loop_now(r->loop);
	bool turn = now - r->peers_turned >= OUTLIER_TURN;
	if (turn)
		r->peers_turned = now;
	if (members != NULL && peers != NULL && scratch != NULL)
		n = members_fill(r, members);
	for (size_t i = 0, end; i < n; i = end) {
		for (end = i + 1; end < n && members[end].models == members[i].models;)
			end++;
		group_judge(r, &members[i], end - i, turn, peers, scratch);
	}
	free(members);
	free(peers);
	free(scratch);
}
