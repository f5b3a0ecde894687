/* SPDX-License-Identifier: Apache-2.0 */
#include "router/control/scaler/scaler_priv.h"
#include "router/metrics.h"
#include "router/request/admission/admission.h"
#include "router/shared/peers/peers.h"

#define NOTE_EVERY    (15 * CGN_SEC)
#define SAMPLES_LEAST 5 /* Answers that a percentile needs. */
#define WAKES_MOST    3 /* A replica that is not ready after so many times the usual does not come. */
#define WAKE_PATIENCE (60 * CGN_SEC)
#define WAKE_GAIN     3 /* A measured time counts for 1 / so much. */

const char *scaler_role_text(int role)
{
	return role == COGNITORA__V1__ROLE__ROLE_PREFILL   ? "prefill"
		: role == COGNITORA__V1__ROLE__ROLE_DECODE ? "decode"
							   : "both";
}

Cognitora__V1__WantedState scaler_rest(const struct router *r)
{
	return r->cfg->router.autoscaler.rest == CONFIG_SCALE_SLEEP
		? COGNITORA__V1__WANTED_STATE__WANTED_ASLEEP
		: COGNITORA__V1__WANTED_STATE__WANTED_UNLOADED;
}

cgn_nsec scaler_wake_time(const struct scaler *s, const struct scaler_group *g)
{
	return g->wake > 0 ? g->wake : s->r->cfg->router.autoscaler.wake_time;
}

/* ---- a node ---- */

void scaler_nodes_note(struct scaler *s, cgn_nsec now)
{
	for (size_t i = 0; i < ROUTE_MAX_NODES; i++)
		if (s->r->members.cluster->by_slot[i] != NULL)
			autoscale_node_note(&s->nodes[i], &s->r->shared.choice.stats[i], now);
		else
			s->wakes[i].at = 0;
}

void scaler_wake_note(struct scaler_group *g, cgn_nsec took)
{
	g->wake = g->wake == 0 ? took : g->wake - g->wake / WAKE_GAIN + took / WAKE_GAIN;
	g->n_notes = 0; /* Requests that waited for a replica do not tell how well those that are there do. */
}

/* The node is ready: learn how long its wake took. */
static void wake_learn(struct scaler *s, struct scaler_group *g, uint16_t slot, cgn_nsec now)
{
	struct scaler_wake *w = &s->wakes[slot];
	if (w->at == 0 || w->group != g)
		return;
	scaler_wake_note(g, cgn_since(now, w->at));
	w->at = 0;
}

/* Return for how long the node has been wanted to run by an order of a router; 0: it was not ordered. */
static cgn_nsec woken_for(const struct scaler *s, const struct scaler_group *g,
	const Cognitora__V1__WantedModel *m, const struct cluster_node *n, cgn_nsec now)
{
	const struct scaler_wake *w = &s->wakes[n->slot];
	uint64_t wall = cgn_clock_wall_ms();
	if (w->at > 0 && w->group == g)
		return cgn_since(now, w->at) + 1;
	if (!wanted_is_parked(m, n->info->id) || wall < m->changed_unix_ms)
		return 0;
	return (wall - m->changed_unix_ms) * CGN_MSEC + 1;
}

/* The node does not take requests yet. */
static void coming_look(const struct scaler *s, struct scaler_group *g, cgn_nsec woken, cgn_nsec now,
	struct scaler_nodes *out)
{
	cgn_nsec wake = scaler_wake_time(s, g), at = now + wake - (woken < wake ? woken : wake);
	if (woken == 0 || woken >= WAKES_MOST * wake + WAKE_PATIENCE)
		return;
	g->signals.coming++;
	out->first_at = out->first_at == 0 || at < out->first_at ? at : out->first_at;
}

static void node_look(struct scaler *s, struct scaler_group *g, const struct cluster_node *n, cgn_nsec now,
	struct scaler_nodes *out)
{
	const Cognitora__V1__WantedModel *m = wanted_find(s->r->wanted.doc, g->model);
	bool rests = router_rest_wanted(m, n->info->id), ours = router_rest_is_ours(m, n->info->id);
	if (rests && ours && out->n_resting < WANTED_MAX_NODES)
		out->resting[out->n_resting++] = n;
	if (rests || n->cordoned)
		return;
	if (!router_node_serves(n, g->model) || n->state != NODE_READY) {
		coming_look(s, g, woken_for(s, g, m, n, now), now, out);
		return;
	}
	wake_learn(s, g, n->slot, now);
	const struct node_stats *stats = &s->r->shared.choice.stats[n->slot];
	g->signals.load += autoscale_node_load(&s->nodes[n->slot], stats, cluster_node_width(n), now);
	g->signals.inflight += node_stats_requests(stats);
	g->signals.ready++;
	if (out->n_ready == WANTED_MAX_NODES)
		return;
	/* Nodes of which an operator said nothing come first. */
	out->ready[out->n_ready] = ours ? out->ready[out->ours] : n;
	if (ours)
		out->ready[out->ours++] = n;
	out->n_ready++;
}

/* Does an engine of the node have the model, ready or not? */
static bool node_has(const struct cluster_node *n, const char *model)
{
	for (size_t e = 0; e < n->info->n_engines; e++)
		if (n->info->engines[e]->n_models > 0 && strcmp(n->info->engines[e]->models[0], model) == 0)
			return true;
	return false;
}

static bool is_of_group(const struct router *r, const struct scaler_group *g, const struct cluster_node *n)
{
	struct cgn_err err;
	const bool agents = r->cfg->router.autoscaler.target == CONFIG_SCALE_AGENTS;
	/* Others remove the whole node: its engine need not be able to rest. */
	return n != NULL && n->heard && (int)n->info->role == g->role &&
		(agents ? n->door == NULL && cgn_ok(wanted_able_own(n->info, g->model, scaler_rest(r), &err))
			: node_has(n, g->model));
}

/* ---- percentiles ---- */

static void note_take(const struct scaler *s, const struct scaler_group *g, cgn_nsec now,
	struct scaler_note *out)
{
	out->at = now;
	metric_times_total(s->r->shared.telemetry, METRIC_TTFT_SECONDS, g->shown, &out->ttft);
	metric_times_total(s->r->shared.telemetry, METRIC_ITL_SECONDS, g->shown, &out->itl);
}

static cgn_nsec percentile_of(const struct metric_times *now, const struct metric_times *before)
{
	return metric_times_since(now, before) < SAMPLES_LEAST ? 0 : metric_times_quantile(now, before, 0.9);
}

/* Fill the percentiles since the oldest note, which is about a minute old. */
static void percentiles_look(struct scaler *s, struct scaler_group *g, cgn_nsec now,
	const struct scaler_nodes *nodes)
{
	size_t oldest = (g->next_note + SCALER_NOTES - g->n_notes) % SCALER_NOTES;
	size_t newest = (g->next_note + SCALER_NOTES - 1) % SCALER_NOTES;
	struct scaler_note new;
	note_take(s, g, now, &new);
	if (g->n_notes > 0 && nodes->computes)
		g->signals.ttft = percentile_of(&new.ttft, &g->note[oldest].ttft);
	if (g->n_notes > 0 && nodes->answers)
		g->signals.itl = percentile_of(&new.itl, &g->note[oldest].itl);
	if (g->n_notes > 0 && now < g->note[newest].at + NOTE_EVERY)
		return;
	g->note[g->next_note] = new;
	g->next_note = (g->next_note + 1) % SCALER_NOTES;
	g->n_notes += g->n_notes < SCALER_NOTES;
}

/* ---- a group ---- */

/* Return the role that a node of |role| shares requests with; ROLE_BOTH: none. */
static int partner_of(int role)
{
	return role == COGNITORA__V1__ROLE__ROLE_PREFILL   ? COGNITORA__V1__ROLE__ROLE_DECODE
		: role == COGNITORA__V1__ROLE__ROLE_DECODE ? COGNITORA__V1__ROLE__ROLE_PREFILL
							   : COGNITORA__V1__ROLE__ROLE_BOTH;
}

/* Nodes of role prefill and decode serve a model together: requests on the one kind keep the other awake, and let both go
 * at the same time. True: the node is a partner. */
static bool partner_look(struct scaler *s, struct scaler_group *g, const struct cluster_node *n)
{
	const int partner = partner_of(g->role);
	if (partner == COGNITORA__V1__ROLE__ROLE_BOTH || n == NULL || !n->heard ||
		(int)n->info->role != partner || !node_has(n, g->model))
		return false;
	if (n->state == NODE_READY && !n->cordoned && router_node_serves(n, g->model))
		g->signals.inflight += node_stats_requests(&s->r->shared.choice.stats[n->slot]);
	return true;
}

/* Count the requests that wait for the model. Where decode nodes answer, prefill nodes are woken for it too,
 * if none is there. */
static void waiting_look(struct scaler *s, struct scaler_group *g, const struct scaler_nodes *nodes,
	bool paired)
{
	uint32_t waits = (uint32_t)gw_admission_depth(s->r->shared.admission, cgn_str_of(g->shown));
	if (nodes->answers)
		g->signals.waiting = waits + gw_peers_open_requests(s->r->shared.peers, cgn_str_of(g->shown));
	else if (paired && g->signals.ready + g->signals.coming == 0)
		g->signals.waiting = waits;
	else if (paired)
		g->signals.inflight += waits;
}

void scaler_group_look(struct scaler *s, struct scaler_group *g, cgn_nsec now, struct scaler_nodes *out)
{
	bool prefills = false, paired = false;
	*out = (struct scaler_nodes){.n_ready = 0};
	g->signals = (struct autoscale_signals){.wake = scaler_wake_time(s, g)};
	for (size_t i = 0; i < ROUTE_MAX_NODES; i++) {
		const struct cluster_node *n = s->r->members.cluster->by_slot[i];
		prefills |= n != NULL && n->info->role == COGNITORA__V1__ROLE__ROLE_PREFILL &&
			n->state == NODE_READY && router_node_serves(n, g->model);
		paired |= partner_look(s, g, n);
		if (!is_of_group(s->r, g, n))
			continue;
		out->all++;
		node_look(s, g, n, now, out);
	}
	if (scaler_has_target(s))
		scaler_target_look(s, g, now, out);
	out->answers = g->role != COGNITORA__V1__ROLE__ROLE_PREFILL;
	out->computes = !out->answers || !prefills;
	waiting_look(s, g, out, paired);
	percentiles_look(s, g, now, out);
}

uint32_t scaler_least_worth(const struct scaler *s, const struct scaler_nodes *nodes, uint32_t n,
	cgn_nsec now)
{
	struct autoscale_replica list[WANTED_MAX_NODES];
	for (uint32_t i = 0; i < n; i++) {
		const struct cluster_node *node = nodes->ready[i];
		list[i] = (struct autoscale_replica){.id = node->info->id,
			.worth = autoscale_worth_rate(&s->nodes[node->slot].worth, now),
			.held = node->has_index_id ? kvindex_count(s->r->shared.choice.index, node->index_id)
						   : 0,
			.requests = node_stats_requests(&s->r->shared.choice.stats[node->slot])};
	}
	return (uint32_t)autoscale_least_worth(list, n);
}
