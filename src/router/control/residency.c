/* SPDX-License-Identifier: Apache-2.0 */
/* residency: what agents tell of their engines' caches, into the index, and what is done when the two do not
 * agree. */
#include "base/log/log.h"
#include "base/pb/pb.h"
#include "router/control/router.h"

/* An agent whose sums never fit is asked for a while and then now and then: something is wrong there that
 * telling anew does not mend. */
#define REPAIRS_IN_A_ROW 8
#define REPAIR_PAUSE     (30 * CGN_SEC)
#define SWEEP            65536 /* blocks of removed lanes per turn */

static struct cluster_node *node_of(const struct router_watch *w)
{
	return w->r->cluster->by_slot[w->slot];
}

/* A lane of its own for the node. Without one it is a node of which nothing is known, until its next sums ask
 * again. */
static void index_id_take(struct router_watch *w)
{
	struct cluster_node *n = node_of(w);
	struct cgn_err err;
	n->has_index_id = cgn_ok(kvindex_node_add(w->r->shared.choice.index, &n->index_id, &err));
	if (!n->has_index_id)
		cgn_log(ERROR, "router.index_full", F_STR("node", n->info->id), F_STR("why", err.msg),
			F_STR("then", "what it holds is not indexed"));
	cgn_loop_defer(w->r->loop, &w->r->publish);
}

/* The node goes, and with it, at once, all that was known of it. */
void router_residency_remove(struct router *r, uint16_t index_id)
{
	kvindex_node_remove(r->shared.choice.index, index_id);
	cgn_timer_set(&r->sweep, 0);
}

static bool is_blank(const struct kvindex *ix, uint16_t index_id)
{
	for (unsigned i = 0; i < BLOCK_RANGES; i++)
		if (kvindex_range_was_shed(ix, index_id, i))
			return false;
	return kvindex_count(ix, index_id) == 0;
}

void router_residency_open(struct router_watch *w)
{
	const struct cluster_node *n = node_of(w);
	w->stale_since = cgn_loop_now(w->r->loop);
	if (n->has_index_id) /* of the watch before, at another address */
		router_residency_remove(w->r, n->index_id);
	index_id_take(w);
}

/* A new lane costs less than emptying the old one, which is a pass over the whole index. */
static void forget_all(struct router_watch *w)
{
	struct cluster_node *n = node_of(w);
	route_record_forget(w->r->shared.choice.record, w->slot);
	if (n->has_index_id && is_blank(w->r->shared.choice.index, n->index_id))
		return;
	if (n->has_index_id)
		router_residency_remove(w->r, n->index_id);
	index_id_take(w);
}

void router_residency_reset(struct router_watch *w)
{
	forget_all(w);
}

static void forget(struct router_watch *w, const Cognitora__V1__Residency *res)
{
	const struct cluster_node *n = node_of(w);
	if (res->n_ranges == 0)
		forget_all(w);
	for (size_t i = 0; i < res->n_ranges && n->has_index_id; i++)
		kvindex_clear(w->r->shared.choice.index, n->index_id, res->ranges[i]);
}

/* What was sent there is a guess, and so it goes into the record beside what this router sent itself. */
static void record_take(struct router_watch *w, const Cognitora__V1__Residency *res)
{
	struct route_record *record = w->r->shared.choice.record;
	for (size_t at = 0, n; at < res->n_blocks; at += n) {
		bool held = res->tiers.len == 0 || res->tiers.data[at] != 0;
		for (n = 1; at + n < res->n_blocks && n < ROUTE_MAX_BLOCKS; n++)
			if (res->tiers.len > 0 && (res->tiers.data[at + n] != 0) != held)
				break;
		(held ? route_record_add : route_record_drop)(record, res->blocks + at, n, w->slot);
	}
}

static void source_take(struct router_watch *w, const Cognitora__V1__Residency *res)
{
	struct cluster_node *n = node_of(w);
	bool bytes = res->source == COGNITORA__V1__RESIDENCY_SOURCE__RESIDENCY_SLOTS;
	bool fed = bytes || res->source == COGNITORA__V1__RESIDENCY_SOURCE__RESIDENCY_EVENTS;
	w->agent_stale = res->stale_ms * CGN_MSEC;
	w->agent_stale_at = cgn_loop_now(w->r->loop);
	if (fed == n->fed && bytes == n->fed_bytes)
		return;
	n->fed = fed;
	n->fed_bytes = bytes;
	cgn_loop_defer(w->r->loop, &w->r->publish);
	if (fed)
		route_record_forget(w->r->shared.choice.record, w->slot);
}

void router_residency_apply(struct router_watch *w, const Cognitora__V1__Residency *res)
{
	const struct cluster_node *n = node_of(w);
	source_take(w, res);
	if (res->reset)
		forget(w, res);
	if (n->has_index_id)
		kvindex_set(w->r->shared.choice.index, n->index_id, res->blocks,
			res->tiers.len > 0 ? res->tiers.data : NULL, res->n_blocks);
	if (!n->fed)
		record_take(w, res);
}

/* ---- do we agree? ---- */

static size_t differ(const struct router_watch *w, const uint64_t *sums, uint32_t out[BLOCK_RANGES])
{
	const struct kvindex *ix = w->r->shared.choice.index;
	uint16_t index_id = node_of(w)->index_id;
	const uint64_t *ours = kvindex_sums(ix, index_id);
	size_t n = 0;
	for (unsigned i = 0; i < BLOCK_RANGES; i++)
		if (ours[i] != sums[i] && !kvindex_range_was_shed(ix, index_id, i))
			out[n++] = i;
	return n;
}

static void agreed(struct router_watch *w)
{
	const struct cluster_node *n = node_of(w);
	w->repairs_in_a_row = 0;
	if (w->stale_since != 0)
		cgn_log(INFO, "router.residency_complete", F_STR("node", n->info->id),
			F_U64("blocks", kvindex_count(w->r->shared.choice.index, n->index_id)),
			F_DUR("took", cgn_loop_now(w->r->loop) - w->opened_at));
	w->stale_since = 0;
}

static void repair(struct router_watch *w, uint32_t *ranges, size_t n)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	Cognitora__V1__WatchRequest rq = COGNITORA__V1__WATCH_REQUEST__INIT;
	cgn_nsec now = cgn_loop_now(w->r->loop);
	const char *id = node_of(w)->info->id;
	if (w->stale_since == 0)
		w->stale_since = now;
	if (now < w->repair_not_before)
		return;
	if (++w->repairs_in_a_row >= REPAIRS_IN_A_ROW)
		w->repair_not_before = now + REPAIR_PAUSE;
	cgn_log(WARN, "router.index_repair", F_STR("node", id), F_U64("ranges", n), F_U64("first", ranges[0]),
		F_U64("in_a_row", w->repairs_in_a_row));
	metric_add(METRIC_OF(w->r->shared.telemetry, INDEX_REPAIRS, id), n);
	rq.router_id = w->r->id;
	rq.repair = ranges;
	rq.n_repair = n;
	pb_pack(&rq, &b);
	if (!b.bad && w->call != NULL)
		grpc_send(w->call, &(struct iovec){b.p, b.n}, 1);
}

/* Lanes and memory come free again. What it told meanwhile is missing: its sums say so. */
static bool index_id_retry(struct router_watch *w)
{
	struct cluster_node *n = node_of(w);
	n->has_index_id = cgn_ok(kvindex_node_add(w->r->shared.choice.index, &n->index_id, NULL));
	if (n->has_index_id)
		cgn_loop_defer(w->r->loop, &w->r->publish);
	return n->has_index_id;
}

void router_residency_compare(struct router_watch *w, const Cognitora__V1__ResidencyCheck *check)
{
	uint32_t ranges[BLOCK_RANGES];
	if (!node_of(w)->has_index_id && !index_id_retry(w))
		return;
	size_t n = differ(w, check->sums, ranges);
	if (n == 0)
		agreed(w);
	else
		repair(w, ranges, n);
}

void router_residency_lost(struct router_watch *w)
{
	const struct cluster_node *n = node_of(w);
	if (w->stale_since == 0)
		w->stale_since = n->heard_at;
}

cgn_nsec router_residency_staleness(const struct router_watch *w)
{
	cgn_nsec now = cgn_loop_now(w->r->loop);
	cgn_nsec ours = w->stale_since != 0 ? now - w->stale_since : 0;
	cgn_nsec theirs = w->agent_stale != 0 ? w->agent_stale + (now - w->agent_stale_at) : 0;
	return ours > theirs ? ours : theirs;
}

/* ---- what is shown, and what is swept ---- */

static const char *state_of(const struct router *r, const struct cluster_node *n,
	const struct router_watch *w)
{
	if (!n->heard)
		return "lost";
	if (w->repairs_in_a_row > 0)
		return "repairing";
	if (w->stale_since != 0)
		return "incomplete";
	for (unsigned i = 0; n->has_index_id && i < BLOCK_RANGES; i++)
		if (kvindex_range_was_shed(r->shared.choice.index, n->index_id, i))
			return "shed";
	return n->has_index_id ? "agreed" : "shed";
}

static uint64_t fold(const uint64_t sums[BLOCK_RANGES])
{
	uint64_t h = 0;
	for (unsigned i = 0; i < BLOCK_RANGES; i++)
		h = (h << 7 | h >> 57) ^ sums[i];
	return h;
}

void router_residency_status(const struct router *r, const struct cluster_node *n,
	struct router_residency_status *out)
{
	const struct router_watch *w = r->watches[n->slot]; /* NULL: there was no memory for it */
	*out = (struct router_residency_status){.source = n->fed_bytes ? "slots"
			: n->fed                                       ? "events"
								       : "sent",
		.state = w != NULL ? state_of(r, n, w) : "lost",
		.recorded = route_record_blocks_of(r->shared.choice.record, n->slot),
		.staleness = w != NULL ? router_residency_staleness(w) : 0,
		.trust = node_stats_trust(&r->cluster->cells[n->slot])};
	if (!n->has_index_id)
		return;
	out->blocks = kvindex_count(r->shared.choice.index, n->index_id);
	out->sums = fold(kvindex_sums(r->shared.choice.index, n->index_id));
	kvindex_tier_counts(r->shared.choice.index, n->index_id, out->tier_blocks);
}

static void on_sweep(struct cgn_timer *t)
{
	struct router *r = CGN_CONTAINER(t, struct router, sweep);
	CGN_LIVE(r, ROUTER_TAG);
	if (kvindex_tick(r->shared.choice.index, SWEEP))
		cgn_timer_set(t, 10 * CGN_MSEC);
}

size_t router_record_bytes(const struct router *r)
{
	const struct gw_shared *s = &r->shared;
	return route_record_bytes(s->choice.record) + prompttail_bytes(s->tails) +
		hotprefix_bytes(s->choice.hotprefix) + pending_bytes(s->choice.pending);
}

void router_residency_metrics(struct router *r)
{
	struct kvindex_stats s;
	kvindex_stats(r->shared.choice.index, &s);
	metric_set(METRIC_ONE(r->shared.telemetry, INDEX_BLOCKS), (double)s.blocks);
	metric_set(METRIC_ONE(r->shared.telemetry, INDEX_BYTES), (double)s.bytes);
	metric_add(METRIC_ONE(r->shared.telemetry, INDEX_SHED), s.shed_memberships - r->shed_shown);
	r->shed_shown = s.shed_memberships;
	metric_set(METRIC_ONE(r->shared.telemetry, RECORD_BLOCKS),
		(double)route_record_blocks(r->shared.choice.record));
	metric_set(METRIC_ONE(r->shared.telemetry, RECORD_BYTES), (double)router_record_bytes(r));
	for (size_t i = 0; i < ROUTE_MAX_NODES; i++) {
		const struct cluster_node *n = r->cluster->by_slot[i];
		if (n == NULL || r->watches[i] == NULL)
			continue;
		const char *id = n->info->id;
		metric_set(METRIC_OF(r->shared.telemetry, INDEX_HELD, id),
			n->has_index_id ? (double)kvindex_count(r->shared.choice.index, n->index_id) : 0);
		metric_set(METRIC_OF(r->shared.telemetry, INDEX_STALENESS, id),
			(double)router_residency_staleness(r->watches[i]) * 1e-9);
		metric_set(METRIC_OF(r->shared.telemetry, SOURCE_TRUST, id),
			node_stats_trust(&r->cluster->cells[i]));
	}
	if (r->sweep.at == 0)
		cgn_timer_set(&r->sweep, 0);
}

void router_residency_init(struct router *r)
{
	cgn_timer_init(&r->sweep, r->loop, on_sweep);
}
