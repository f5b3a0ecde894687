/* SPDX-License-Identifier: Apache-2.0 */
/* The status of the store: metrics, and GET /store. */
#include "kvcached/daemon/metrics.h"
#include "kvcached/daemon/kvcached.h"

#define METRICS_EVERY CGN_SEC

static const char *const tier_names[BLOCK_TIERS] =
	{[BLOCK_GPU] = "gpu", [BLOCK_RAM] = "ram", [BLOCK_SSD] = "ssd", [BLOCK_REMOTE] = "remote"};

static void metrics_set_ssd(struct telemetry *t, const struct kvstore_ssd_stats *s)
{
	metric_set(METRIC_ONE(t, KV_SSD_QUEUE), (double)s->queue_bytes);
	metrics_count_up(METRIC_OF(t, KV_SSD_WRITTEN, "values"), s->put_bytes);
	metrics_count_up(METRIC_OF(t, KV_SSD_WRITTEN, "carried"), s->carried_bytes);
	metrics_count_up(METRIC_OF(t, KV_SSD_WRITTEN, "all"), s->written_bytes);
	metrics_count_up(METRIC_OF(t, KV_SSD_SKIPPED, "queue_full"), s->queue_full);
	metrics_count_up(METRIC_OF(t, KV_SSD_SKIPPED, "index_full"), s->index_full);
	metrics_count_up(METRIC_OF(t, KV_SSD_SKIPPED, "failed"), s->failed);
	metric_set(METRIC_ONE(t, KV_SSD_BUDGET), (double)s->budget_left);
	metric_set(METRIC_ONE(t, KV_SSD_REFUSING), s->refusing);
	metrics_count_up(METRIC_ONE(t, KV_SSD_REOPENED), s->reopened);
	metrics_count_up(METRIC_ONE(t, KV_SSD_ASIDE), s->aside);
}

static void on_metrics(struct cgn_timer *t)
{
	struct kvcached *d = CGN_CONTAINER(t, struct kvcached, metrics_timer);
	struct kvstore_stats st;
	CGN_LIVE(d, KVCACHED_TAG);
	kvstore_tick(d->store);
	kvstore_stats(d->store, &st);
	for (enum block_tier tier = BLOCK_RAM; tier <= BLOCK_SSD; tier++) {
		metric_set(METRIC_OF(d->telemetry, KV_BLOCKS, tier_names[tier]),
			(double)st.tier[tier].blocks);
		metric_set(METRIC_OF(d->telemetry, KV_BYTES, tier_names[tier]), (double)st.tier[tier].bytes);
		metrics_count_up(METRIC_OF(d->telemetry, KV_EVICTIONS, tier_names[tier]),
			st.tier[tier].evictions);
	}
	metrics_count_up(METRIC_ONE(d->telemetry, KV_CORRUPT), st.corrupt);
	metrics_set_ssd(d->telemetry, &st.ssd);
	cgn_timer_set(t, METRICS_EVERY);
}

void kvcached_metrics_open(struct kvcached *d)
{
	cgn_timer_init(&d->metrics_timer, svc_loop(d->svc), on_metrics);
	cgn_timer_set(&d->metrics_timer, 0);
}

static Cognitora__V1__KvTierStats *tier_new(struct pb_tree *t, const struct kvstore_stats *st,
	enum block_tier tier)
{
	Cognitora__V1__KvTierStats *to = PB_NEW(t, kv_tier_stats);
	to->tier = (Cognitora__V1__KvTier)tier; /* both enumerations have the same numbers */
	to->blocks = st->tier[tier].blocks;
	to->bytes = st->tier[tier].bytes;
	to->value_bytes = st->tier[tier].value_bytes;
	to->budget_bytes = st->tier[tier].budget;
	to->hits = st->tier[tier].hits;
	to->evictions = st->tier[tier].evictions;
	return to;
}

void kvcached_store_fill(const struct kvcached *d, struct pb_tree *t, Cognitora__V1__KvStatsResponse *to)
{
	struct kvstore_stats st;
	kvstore_stats(d->store, &st);
	to->ram = tier_new(t, &st, BLOCK_RAM);
	to->ssd = tier_new(t, &st, BLOCK_SSD);
	to->ssd_queue_bytes = st.ssd.queue_bytes;
	to->ssd_written_bytes = st.ssd.written_bytes;
	to->ssd_skipped = st.ssd.queue_full + st.ssd.index_full + st.ssd.failed;
	to->ssd_write_budget_bytes = st.ssd.budget_left;
	to->ssd_trouble = pb_tree_text(t, cgn_str_of(st.ssd.refusing ? st.ssd.why : ""));
	to->ssd_failed = st.ssd.failed;
	to->ssd_reopened = st.ssd.reopened;
	to->ssd_aside = st.ssd.aside;
	to->misses = st.misses;
	to->corrupt = st.corrupt;
	to->index_bytes = st.index_bytes;
}
