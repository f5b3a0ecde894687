/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "base/mix/mix.h"
#include "lab/replay/replay_priv.h"

#define PERCENTILE_OF (60 * CGN_SEC)

CGN_RC scale_open(struct replay *r, struct cgn_err *err)
{
	if (!r->cfg->scales)
		return CGN_OK;
	r->scaling.random = r->cfg->seed;
	r->scaling.nodes = calloc(r->cfg->nodes, sizeof *r->scaling.nodes);
	return r->scaling.nodes != NULL ? CGN_OK : CGN_FAIL(err, NO_MEMORY, "no memory for the autoscaler");
}

void scale_close(struct replay *r)
{
	free(r->scaling.nodes);
	free(r->scaling.seconds);
	free(r->scaling.went);
}

void scale_prompt(struct replay *r, uint32_t blocks, uint32_t cached)
{
	r->scaling.now.prompt_blocks += blocks;
	r->scaling.now.cached_blocks += cached;
}

void scale_ttft(struct replay *r, cgn_nsec took)
{
	size_t i = r->scaling.n_ttft++ % REPLAY_LATE;
	r->scaling.ttft[i] = took;
	r->scaling.ttft_at[i] = r->now;
}

void scale_itl(struct replay *r, cgn_nsec took)
{
	r->scaling.itl[r->scaling.n_itl++ % REPLAY_LATE] = took;
}

/* Make room for one more element of |size| bytes. NULL: no memory, and |r| knows. */
static void *room_make(struct replay *r, void *list, size_t n, size_t *max, size_t size)
{
	if (n < *max)
		return list;
	size_t more = *max > 0 ? 2 * *max : 1024;
	void *grown = reallocarray(list, more, size);
	r->no_memory |= grown == NULL;
	*max = grown != NULL ? more : *max;
	return grown != NULL ? grown : list;
}

void scale_went(struct replay *r)
{
	struct replay_scaling *s = &r->scaling;
	s->went = room_make(r, s->went, s->n_went, &s->max_went, sizeof *s->went);
	if (s->n_went < s->max_went)
		s->went[s->n_went++] = r->now;
}

/* ---- once a second ---- */

static int nsec_compare(const void *a, const void *b)
{
	const cgn_nsec x = *(const cgn_nsec *)a, y = *(const cgn_nsec *)b;
	return (x > y) - (x < y);
}

static cgn_nsec percentile_of(cgn_nsec *times, size_t n)
{
	qsort(times, n, sizeof *times, nsec_compare);
	return n > 0 ? times[(n - 1) * 9 / 10] : 0;
}

static cgn_nsec ttft_late(const struct replay *r)
{
	const struct replay_scaling *s = &r->scaling;
	cgn_nsec times[REPLAY_LATE];
	size_t n = 0;
	for (size_t i = 0; i < REPLAY_LATE && i < s->n_ttft; i++)
		if (cgn_since(r->now, s->ttft_at[i]) < PERCENTILE_OF)
			times[n++] = s->ttft[i];
	return percentile_of(times, n);
}

static cgn_nsec itl_late(const struct replay *r)
{
	cgn_nsec times[REPLAY_LATE];
	size_t n = r->scaling.n_itl < REPLAY_LATE ? r->scaling.n_itl : REPLAY_LATE;
	for (size_t i = 0; i < n; i++)
		times[i] = r->scaling.itl[i];
	return percentile_of(times, n);
}

static struct autoscale_signals signals_of(const struct replay *r)
{
	struct autoscale_signals g = {.wake = r->cfg->wake, .ttft = ttft_late(r), .itl = itl_late(r)};
	for (uint32_t i = 0; i < r->cfg->nodes; i++) {
		const struct replay_server *n = &r->nodes[i];
		const struct node_stats *stats = &r->cluster->stats[n->node->slot];
		g.coming += n->draw.state == REPLAY_WAKING;
		g.inflight += node_stats_requests(stats);
		if (n->draw.state != REPLAY_AWAKE)
			continue;
		g.ready++;
		g.load +=
			autoscale_node_load(&r->scaling.nodes[i], stats, cluster_node_width(n->node), r->now);
	}
	g.waiting = (uint32_t)admission_waiting(r->admission);
	if (r->cfg->season)
		g.expected = autoscale_season_expect(&r->scaling.season, r->now / CGN_SEC,
			autoscale_lead(&r->cfg->scale, r->cfg->wake));
	return g;
}

/* Return the replica to remove; NULL: none is ready. */
static struct replay_server *victim_choose(struct replay *r)
{
	struct autoscale_replica list[REPLAY_MAX_NODES];
	uint32_t nodes[REPLAY_MAX_NODES], n = 0;
	for (uint32_t i = 0; i < r->cfg->nodes; i++) {
		const struct replay_server *node = &r->nodes[i];
		if (node->draw.state != REPLAY_AWAKE)
			continue;
		nodes[n] = i;
		list[n++] = (struct autoscale_replica){.id = node->node->info->id,
			.worth = autoscale_worth_rate(&r->scaling.nodes[i].worth, r->now),
			.held = kvindex_count(r->index, node->node->index_id),
			.requests = node_stats_requests(&r->cluster->stats[node->node->slot])};
	}
	if (n == 0)
		return NULL;
	if (r->cfg->victim == REPLAY_ANY)
		return &r->nodes[nodes[mix_splitmix(&r->scaling.random) % n]];
	return &r->nodes[nodes[autoscale_least_worth(list, n)]];
}

/* Return a node to start, before it one that is still leaving; NULL: there is none. */
static struct replay_server *spare_choose(struct replay *r)
{
	struct replay_server *best = NULL;
	for (uint32_t i = 0; i < r->cfg->nodes; i++) {
		struct replay_server *n = &r->nodes[i];
		if (n->draw.state == REPLAY_LEAVING)
			return n;
		if (best == NULL && n->draw.state == REPLAY_PARKED)
			best = n;
	}
	return best;
}

static void decision_obey(struct replay *r, const struct autoscale_decision *d)
{
	for (uint32_t i = 0; i < d->by; i++) {
		bool up = d->action == AUTOSCALE_UP;
		struct replay_server *n = up ? spare_choose(r) : victim_choose(r);
		if (n == NULL)
			return;
		energy_node_power(r, n,
			!up                                       ? REPLAY_LEAVING
				: n->draw.state == REPLAY_LEAVING ? REPLAY_AWAKE
								  : REPLAY_WAKING);
	}
}

void scale_second(struct replay *r)
{
	struct replay_scaling *s = &r->scaling;
	struct autoscale_decision d;
	if (!r->cfg->scales)
		return;
	energy_nodes_follow(r);
	const struct autoscale_signals g = signals_of(r);
	(void)autoscale_season_note(&s->season, g.load, r->now / CGN_SEC);
	autoscale_step(&s->state, &r->cfg->scale, &g, r->now, &d);
	decision_obey(r, &d);
	for (uint32_t i = 0; i < r->cfg->nodes; i++)
		autoscale_node_note(&s->nodes[i], &r->cluster->stats[r->nodes[i].node->slot], r->now);
	s->seconds = room_make(r, s->seconds, s->n_seconds, &s->max_seconds, sizeof *s->seconds);
	if (s->n_seconds < s->max_seconds)
		s->seconds[s->n_seconds++] = s->now;
}

/* ---- hits around removals ---- */

static const struct replay_second *second_at(const struct replay_scaling *s, size_t i)
{
	return &s->seconds[i < s->n_seconds ? i : s->n_seconds - 1];
}

void scale_sum_up(struct replay *r)
{
	const struct replay_scaling *s = &r->scaling;
	struct replay_removals *out = &r->result->removals;
	const size_t around = REPLAY_AROUND / CGN_SEC;
	for (size_t i = 0; i < s->n_went && s->n_seconds > 0; i++) {
		size_t at = s->went[i] / CGN_SEC;
		const struct replay_second *from = second_at(s, at > around ? at - around : 0),
					   *mid = second_at(s, at), *to = second_at(s, at + around);
		out->n++;
		out->prompt_before += mid->prompt_blocks - from->prompt_blocks;
		out->cached_before += mid->cached_blocks - from->cached_blocks;
		out->prompt_after += to->prompt_blocks - mid->prompt_blocks;
		out->cached_after += to->cached_blocks - mid->cached_blocks;
	}
}
