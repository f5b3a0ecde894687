/* SPDX-License-Identifier: Apache-2.0 */
/* residency: applies the agents' reports of their engines' caches to the index, compares checksums and
 * repairs differences. */
#include "base/log/log.h"
#include "base/pb/pb.h"
#include "router/control/control/watch.h"

/* An agent whose checksums keep differing is asked for repairs REPAIRS_IN_A_ROW times and then once each
 * REPAIR_PAUSE: a repeated report does not fix the cause. */
#define REPAIRS_IN_A_ROW 8
#define REPAIR_PAUSE     (30 * CGN_SEC)
#define SWEEP            65536 /* Blocks of removed nodes swept in one turn. */

static struct cluster_node *watch_node(const struct router_watch *w)
{
	return w->r->members.cluster->by_slot[w->slot];
}

/* Add the node to the index. If that fails, nothing is known of the node until its next checksums retry. */
static void index_id_take(struct router_watch *w)
{
	struct cluster_node *n = watch_node(w);
	struct cgn_err err;
	n->has_index_id = cgn_ok(kvindex_node_add(w->r->shared.choice.index, &n->index_id, &err));
	if (!n->has_index_id)
		cgn_log(ERROR, "router.index_full", F_STR("node", n->info->id), F_STR("why", err.msg),
			F_STR("then", "what it holds is not indexed"));
	cgn_loop_defer(w->r->loop, &w->r->published.hook);
}

/* Remove the node and all that is known of it. */
void router_residency_remove(struct router *r, uint16_t index_id)
{
	kvindex_node_remove(r->shared.choice.index, index_id);
	cgn_timer_set(&r->sweep, 0);
}

static bool node_is_blank(const struct kvindex *ix, uint16_t index_id)
{
	for (unsigned i = 0; i < BLOCK_RANGES; i++)
		if (kvindex_range_was_shed(ix, index_id, i))
			return false;
	return kvindex_count(ix, index_id) == 0;
}

void router_residency_open(struct router_watch *w)
{
	const struct cluster_node *n = watch_node(w);
	w->stale_since = cgn_loop_now(w->r->loop);
	if (n->has_index_id) /* From the watch before, at another address. */
		router_residency_remove(w->r, n->index_id);
	index_id_take(w);
}

/* Forget the node's blocks. A new index id costs less than emptying the old one, which is a pass over the
 * whole index. */
static void residency_forget(struct router_watch *w)
{
	struct cluster_node *n = watch_node(w);
	route_record_forget(w->r->shared.choice.record, w->slot);
	if (n->has_index_id && node_is_blank(w->r->shared.choice.index, n->index_id))
		return;
	if (n->has_index_id)
		router_residency_remove(w->r, n->index_id);
	index_id_take(w);
}

void router_residency_reset(struct router_watch *w)
{
	residency_forget(w);
}

static void residency_clear(struct router_watch *w, const Cognitora__V1__Residency *res)
{
	const struct cluster_node *n = watch_node(w);
	if (res->n_ranges == 0)
		residency_forget(w);
	for (size_t i = 0; i < res->n_ranges && n->has_index_id; i++)
		kvindex_clear(w->r->shared.choice.index, n->index_id, res->ranges[i]);
}

/* Apply an agent's record of sent prompts, which is a guess like this router's own record, to that record. */
static void record_apply(struct router_watch *w, const Cognitora__V1__Residency *res)
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

static void source_apply(struct router_watch *w, const Cognitora__V1__Residency *res)
{
	struct cluster_node *n = watch_node(w);
	bool bytes = res->source == COGNITORA__V1__RESIDENCY_SOURCE__RESIDENCY_SLOTS;
	bool none = res->source == COGNITORA__V1__RESIDENCY_SOURCE__RESIDENCY_NONE;
	bool fed = bytes || none || res->source == COGNITORA__V1__RESIDENCY_SOURCE__RESIDENCY_EVENTS;
	w->agent_stale = res->stale_ms * CGN_MSEC;
	w->agent_stale_at = cgn_loop_now(w->r->loop);
	/* Nothing at all is known of chains of bytes as well as of those of tokens. */
	bytes = bytes || none;
	if (fed == n->fed && bytes == n->fed_bytes && none == n->keeps_none)
		return;
	/* Events of prompts that were just sent may be on the way: the record counts until they must have
	 * come. */
	if (fed && !n->fed)
		n->record_until = cgn_loop_now(w->r->loop) + CHOOSER_BEGIN;
	if (none)
		n->record_until = 0;
	if (!fed || none)
		route_record_forget(w->r->shared.choice.record, w->slot);
	n->fed = fed;
	n->fed_bytes = bytes;
	n->keeps_none = none;
	cgn_loop_defer(w->r->loop, &w->r->published.hook);
}

void router_residency_apply(struct router_watch *w, const Cognitora__V1__Residency *res)
{
	const struct cluster_node *n = watch_node(w);
	source_apply(w, res);
	if (res->reset)
		residency_clear(w, res);
	if (n->has_index_id)
		kvindex_set(w->r->shared.choice.index, n->index_id, res->blocks,
			res->tiers.len > 0 ? res->tiers.data : NULL, res->n_blocks);
	if (!n->fed)
		record_apply(w, res);
}

/* ---- comparison of checksums ---- */

static size_t ranges_differing(const struct router_watch *w, const uint64_t *sums, uint32_t out[BLOCK_RANGES])
{
	const struct kvindex *ix = w->r->shared.choice.index;
	uint16_t index_id = watch_node(w)->index_id;
	const uint64_t *ours = kvindex_sums(ix, index_id);
	size_t n = 0;
	for (unsigned i = 0; i < BLOCK_RANGES; i++)
		if (ours[i] != sums[i] && !kvindex_range_was_shed(ix, index_id, i))
			out[n++] = i;
	return n;
}

static void sums_agreed(struct router_watch *w)
{
	const struct cluster_node *n = watch_node(w);
	w->repairs_in_a_row = 0;
	if (w->stale_since != 0)
		cgn_log_limited(INFO, "router.residency_complete", F_STR("node", n->info->id),
			F_U64("blocks", kvindex_count(w->r->shared.choice.index, n->index_id)),
			F_DUR("took", cgn_since(cgn_loop_now(w->r->loop), w->opened_at)));
	w->stale_since = 0;
}

static void repair_request(struct router_watch *w, uint32_t *ranges, size_t n)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	Cognitora__V1__WatchRequest rq = COGNITORA__V1__WATCH_REQUEST__INIT;
	cgn_nsec now = cgn_loop_now(w->r->loop);
	const char *id = watch_node(w)->info->id;
	if (w->stale_since == 0)
		w->stale_since = now;
	if (now < w->repair_not_before)
		return;
	if (++w->repairs_in_a_row >= REPAIRS_IN_A_ROW)
		w->repair_not_before = now + REPAIR_PAUSE;
	cgn_log_limited(WARN, "router.index_repair", F_STR("node", id), F_U64("ranges", n),
		F_U64("first", ranges[0]), F_U64("in_a_row", w->repairs_in_a_row));
	metric_add(METRIC_OF(w->r->shared.telemetry, INDEX_REPAIRS, id), n);
	if (w->engine != NULL) {
		engine_node_resend(w->engine, ranges, n);
		return;
	}
	rq.router_id = w->r->id;
	rq.repair = ranges;
	rq.n_repair = n;
	pb_pack(&rq, &b);
	if (!b.bad && w->call != NULL)
		grpc_send(w->call, &(struct iovec){b.p, b.n}, 1);
}

/* Retry to add the node, because index ids and memory come free again. Its next checksums show which blocks
 * are missing. */
static bool index_id_retry(struct router_watch *w)
{
	struct cluster_node *n = watch_node(w);
	n->has_index_id = cgn_ok(kvindex_node_add(w->r->shared.choice.index, &n->index_id, NULL));
	if (n->has_index_id)
		cgn_loop_defer(w->r->loop, &w->r->published.hook);
	return n->has_index_id;
}

void router_residency_compare(struct router_watch *w, const Cognitora__V1__ResidencyCheck *check)
{
	uint32_t ranges[BLOCK_RANGES];
	if (!watch_node(w)->has_index_id && !index_id_retry(w))
		return;
	size_t n = ranges_differing(w, check->sums, ranges);
	if (n == 0)
		sums_agreed(w);
	else
		repair_request(w, ranges, n);
}

void router_residency_lost(struct router_watch *w)
{
	const struct cluster_node *n = watch_node(w);
	if (w->stale_since == 0)
		w->stale_since = n->heard_at;
}

/* Return how long the known blocks may have been wrong; 0: they are current. */
static cgn_nsec residency_staleness(const struct router_watch *w)
{
	cgn_nsec now = cgn_loop_now(w->r->loop);
	cgn_nsec ours = w->stale_since != 0 ? cgn_since(now, w->stale_since) : 0;
	cgn_nsec theirs = w->agent_stale != 0 ? w->agent_stale + cgn_since(now, w->agent_stale_at) : 0;
	return ours > theirs ? ours : theirs;
}

/* ---- status, metrics, sweep ---- */

static const char *residency_state(const struct router *r, const struct cluster_node *n,
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

static uint64_t sums_fold(const uint64_t sums[BLOCK_RANGES])
{
	uint64_t h = 0;
	for (unsigned i = 0; i < BLOCK_RANGES; i++)
		h = (h << 7 | h >> 57) ^ sums[i];
	return h;
}

void router_cache_fill(const struct router *r, const struct cluster_node *n, struct pb_tree *t,
	Cognitora__V1__NodeCache *to)
{
	const struct kvindex *index = r->shared.choice.index;
	const struct router_watch *w = r->members.watches[n->slot];
	uint64_t tiers[BLOCK_TIERS] = {0},
		 sums = n->has_index_id ? sums_fold(kvindex_sums(index, n->index_id)) : 0;
	char text[24];
	if (n->has_index_id)
		kvindex_tier_counts(index, n->index_id, tiers);
	(void)snprintf(text, sizeof text, "%016llx", (unsigned long long)sums);
	to->source = pb_text(n->keeps_none ? "none" : n->fed_bytes ? "slots" : n->fed ? "events" : "sent");
	to->state = pb_text(residency_state(r, n, w));
	to->staleness_seconds = (double)(residency_staleness(w) / CGN_MSEC) / 1e3;
	to->trust = node_stats_trust(&r->members.cluster->stats[n->slot]);
	to->blocks = n->has_index_id ? kvindex_count(index, n->index_id) : 0;
	to->gpu = tiers[BLOCK_GPU];
	to->ram = tiers[BLOCK_RAM];
	to->ssd = tiers[BLOCK_SSD];
	to->remote = tiers[BLOCK_REMOTE];
	to->sums = pb_tree_text(t, cgn_str_of(text));
	to->recorded = route_record_blocks_of(r->shared.choice.record, n->slot);
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
	metric_add(METRIC_ONE(r->shared.telemetry, INDEX_SHED), s.shed_memberships - r->reported.sheds);
	r->reported.sheds = s.shed_memberships;
	metric_set(METRIC_ONE(r->shared.telemetry, RECORD_BLOCKS),
		(double)route_record_blocks(r->shared.choice.record));
	metric_set(METRIC_ONE(r->shared.telemetry, RECORD_BYTES), (double)router_record_bytes(r));
	for (size_t i = 0; i < ROUTE_MAX_NODES; i++) {
		const struct cluster_node *n = r->members.cluster->by_slot[i];
		if (n == NULL || r->members.watches[i] == NULL)
			continue;
		const char *id = n->info->id;
		metric_set(METRIC_OF(r->shared.telemetry, INDEX_HELD, id),
			n->has_index_id ? (double)kvindex_count(r->shared.choice.index, n->index_id) : 0);
		metric_set(METRIC_OF(r->shared.telemetry, INDEX_STALENESS, id),
			(double)residency_staleness(r->members.watches[i]) * 1e-9);
		metric_set(METRIC_OF(r->shared.telemetry, SOURCE_TRUST, id),
			node_stats_trust(&r->members.cluster->stats[i]));
	}
	if (r->sweep.at == 0)
		cgn_timer_set(&r->sweep, 0);
}

void router_residency_init(struct router *r)
{
	cgn_timer_init(&r->sweep, r->loop, on_sweep);
}
