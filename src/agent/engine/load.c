/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/engine/engine.h"
#include "base/log/log.h"

void engine_load_read(void *user, const struct engine_load *before, bool restarted)
{
	struct engine *e = user;
	const struct engine_load *now = &e->view.load.now;
	CGN_LIVE(e, ENGINE_TAG);
	if (restarted)
		engine_residency_clear(e);
	e->gauges.foreign = share_foreign(&e->requests.peak, (uint64_t)now->running + now->waiting);
	metric_set(e->gauges.running, now->running);
	metric_set(e->gauges.waiting, now->waiting);
	metric_set(e->gauges.kv_usage, now->kv_usage);
	e->host->ops->load_changed(e->host->user);
	if (before->keeps_none != now->keeps_none)
		engine_residency_keeps(e);
	if (before->kv_blocks_total == now->kv_blocks_total &&
		before->kv_block_tokens == now->kv_block_tokens && before->slots == now->slots)
		return;
	engine_residency_fit(e);
	e->host->ops->changed(e->host->user);
}

void engine_load_answered(void *user, struct cgn_str body)
{
	struct engine *e = user;
	CGN_LIVE(e, ENGINE_TAG);
	slotmgr_slots_told(e->slots, body); /* Ignores an answer that does not list slots */
}

void engine_load_begins(void *user)
{
	struct engine *e = user;
	CGN_LIVE(e, ENGINE_TAG);
	share_peak_next(&e->requests.peak, e->requests.inflight + e->requests.direct);
	engine_handoff_ask(e);
}

void engine_load_init(struct engine *e)
{
	struct engine_gauges *g = &e->gauges;
	g->running = METRIC_OF(e->host->telemetry, ENGINE_RUNNING, e->name);
	g->waiting = METRIC_OF(e->host->telemetry, ENGINE_WAITING, e->name);
	g->kv_usage = METRIC_OF(e->host->telemetry, ENGINE_KV_USAGE, e->name);
}

void engine_load_start(struct engine *e)
{
	engine_handoff_reset(e);
	engineview_load_start(&e->view);
}

void engine_load_stop(struct engine *e)
{
	engineview_load_stop(&e->view);
	webask_cancel(&e->handoff.fetch);
	e->gauges.foreign = e->requests.peak.beyond = 0;
	metric_set(e->gauges.running, 0);
	metric_set(e->gauges.waiting, 0);
	metric_set(e->gauges.kv_usage, 0);
}
