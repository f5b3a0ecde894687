/* SPDX-License-Identifier: Apache-2.0 */
/* The status of the store: metrics, and GET /store. */
#include "kvcached/daemon/metrics.h"
#include "base/json/json.h"
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

void kvcached_admin_store(void *state, const struct http_head *h, struct cgn_str body,
	struct svc_admin_reply *r)
{
	struct kvcached *d = state;
	struct kvstore_stats st;
	(void)h;
	(void)body;
	CGN_LIVE(d, KVCACHED_TAG);
	kvstore_stats(d->store, &st);
	struct json_out o = json_out_to(&r->body);
	json_open(&o, '{');
	for (enum block_tier tier = BLOCK_RAM; tier <= BLOCK_SSD; tier++) {
		const struct kvstore_tier_stats *t = &st.tier[tier];
		json_key_open(&o, tier_names[tier], '{');
		json_key_u64(&o, "blocks", t->blocks);
		json_key_u64(&o, "bytes", t->bytes);
		json_key_u64(&o, "value_bytes", t->value_bytes);
		json_key_u64(&o, "budget_bytes", t->budget);
		json_key_u64(&o, "hits", t->hits);
		json_key_u64(&o, "evictions", t->evictions);
		json_close(&o, '}');
	}
	json_key_u64(&o, "ssd_queue_bytes", st.ssd.queue_bytes);
	json_key_u64(&o, "ssd_written_bytes", st.ssd.written_bytes);
	json_key_u64(&o, "ssd_skipped", st.ssd.queue_full + st.ssd.index_full + st.ssd.failed);
	json_key_u64(&o, "ssd_write_budget_bytes", st.ssd.budget_left);
	json_key_z(&o, "ssd_trouble", st.ssd.refusing ? st.ssd.why : "");
	json_key_u64(&o, "ssd_reopened", st.ssd.reopened);
	json_key_u64(&o, "ssd_aside", st.ssd.aside);
	json_key_u64(&o, "misses", st.misses);
	json_key_u64(&o, "corrupt", st.corrupt);
	json_key_u64(&o, "index_bytes", st.index_bytes);
	json_close(&o, '}');
}
