/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/engine/engine.h"
#include "base/log/log.h"

#define SCRAPE_INTERVAL CGN_SEC
#define SCRAPE_TIMEOUT  (3 * CGN_SEC)
#define SCRAPE_BYTES    ((size_t)4 * 1024 * 1024)

static void load_ask_next_source(struct engine *e);

/* All sources were read. */
static void load_settle(struct engine *e)
{
	struct engine_scrape *s = &e->load;
	struct engine_load before = s->now;
	s->now = s->next;
	if (engine_load_restarted(&before, &s->now)) {
		cgn_log(WARN, "engine.restarted", F_STR("engine", e->name),
			F_STR("seen_by", "its counters fell between two readings"));
		engine_residency_clear(e);
	}
	s->foreign = share_foreign(&e->requests.peak, (uint64_t)s->now.running + s->now.waiting);
	metric_set(s->running, s->now.running);
	metric_set(s->waiting, s->now.waiting);
	metric_set(s->kv_usage, s->now.kv_usage);
	e->host->ops->load_changed(e->host->user);
	if (before.keeps_none != s->now.keeps_none)
		engine_residency_keeps(e);
	if (before.kv_blocks_total == s->now.kv_blocks_total &&
		before.kv_block_tokens == s->now.kv_block_tokens && before.slots == s->now.slots)
		return;
	engine_residency_fit(e);
	e->host->ops->changed(e->host->user);
}

static void on_load_source(void *user, const struct enginefetch_answer *r)
{
	struct engine *e = user;
	struct engine_scrape *s = &e->load;
	CGN_LIVE(e, ENGINE_TAG);
	s->fetch = NULL;
	if (r->err->code == CGN_FINE)
		engine_heard(e);
	else if (r->err->code == CGN_DEADLINE)
		engine_unanswered(e);
	if (enginefetch_is_ok(r)) {
		slotmgr_slots_told(e->slots, r->body); /* Ignores an answer that does not list slots */
		e->ops->sources[s->source].read(r->body, &s->next);
	} else if (r->err->code == CGN_FINE && r->status >= 400 && r->status < 500) {
		s->source_gone[s->source] = true;
	}
	bool dead = r->refused;
	s->source++;
	load_ask_next_source(e);
	if (dead) /* Seconds before the next regular check */
		engine_check_soon(e);
}

static void load_ask_next_source(struct engine *e)
{
	struct engine_scrape *s = &e->load;
	for (; s->source < ENGINE_MAX_SOURCES; s->source++) {
		const struct enginefetch_ask ask = {.path = e->ops->sources[s->source].path,
			.max_bytes = SCRAPE_BYTES,
			.timeout = SCRAPE_TIMEOUT};
		if (ask.path == NULL || s->source_gone[s->source])
			continue;
		if (cgn_ok(enginefetch_start(e->host->loop, &e->endpoint, &ask, on_load_source, e, &s->fetch,
			    NULL)))
			return;
	}
	load_settle(e);
	engine_models_ask_again(e); /* After the other questions, so that one connection is enough */
	cgn_timer_set(&s->timer, SCRAPE_INTERVAL);
}

static void on_load_tick(struct cgn_timer *t)
{
	struct engine *e = CGN_CONTAINER(t, struct engine, load.timer);
	CGN_LIVE(e, ENGINE_TAG);
	e->load.source = 0;
	share_peak_next(&e->requests.peak, e->requests.inflight + e->requests.direct);
	/* A failed reading must not look like a counter that fell. */
	e->load.next = (struct engine_load){.work = e->load.now.work, .keeps_none = e->load.now.keeps_none};
	engine_models_ask(e);
	engine_handoff_ask(e);
	load_ask_next_source(e);
}

void engine_load_init(struct engine *e)
{
	struct engine_scrape *s = &e->load;
	cgn_timer_init(&s->timer, e->host->loop, on_load_tick);
	s->running = METRIC_OF(e->host->telemetry, ENGINE_RUNNING, e->name);
	s->waiting = METRIC_OF(e->host->telemetry, ENGINE_WAITING, e->name);
	s->kv_usage = METRIC_OF(e->host->telemetry, ENGINE_KV_USAGE, e->name);
}

void engine_load_start(struct engine *e)
{
	struct engine_scrape *s = &e->load;
	CGN_MUST(s->fetch == NULL);
	for (size_t i = 0; i < ENGINE_MAX_SOURCES; i++)
		s->source_gone[i] = false;
	engine_models_reset(e);
	engine_handoff_reset(e);
	cgn_timer_set(&s->timer, 0);
}

void engine_load_stop(struct engine *e)
{
	struct engine_scrape *s = &e->load;
	cgn_timer_cancel(&s->timer);
	enginefetch_cancel(&s->fetch);
	enginefetch_cancel(&e->models.fetch);
	cgn_hook_drop(&e->models.again);
	enginefetch_cancel(&e->handoff.fetch);
	s->now = (struct engine_load){.slots = s->now.slots,
		.kv_blocks_total = s->now.kv_blocks_total,
		.kv_block_tokens = s->now.kv_block_tokens,
		.keeps_none = s->now.keeps_none};
	s->foreign = e->requests.peak.beyond = 0;
	metric_set(s->running, 0);
	metric_set(s->waiting, 0);
	metric_set(s->kv_usage, 0);
}
