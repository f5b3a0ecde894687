/* SPDX-License-Identifier: Apache-2.0 */
/* What a ready engine tells of its load, each second, and of its models, until it has. */
#include "agent/agent.h"
#include "agent/slotmgr.h"
#include "base/log/log.h"

#define SCRAPE_INTERVAL CGN_SEC
#define SCRAPE_TIMEOUT  (3 * CGN_SEC)
#define SCRAPE_BYTES    ((size_t)4 * 1024 * 1024)

static void ask_next_source(struct engine *e);

static struct fetch_ask ask_of(const struct engine *e, const char *path)
{
	return (struct fetch_ask){
		.client = e->client,
		.url = &e->url,
		.path = path,
		.authorization = e->authorization,
		.max_bytes = SCRAPE_BYTES,
		.timeout = SCRAPE_TIMEOUT,
	};
}

/* ---- load ---- */
static void capacity_set(struct engine *e)
{
	engine_residency_limit(e, engine_chain_capacity(&e->load, e->block_bytes, RESIDENCY_MAX));
}

/* The record is bounded by what the engine's cache can hold, in blocks of the smallest kind that routers have
 * sent. */
void engine_blocks_seen(struct engine *e, uint32_t block_tokens)
{
	uint64_t bytes = (uint64_t)block_tokens * ENGINE_TOKEN_BYTES;
	if (bytes == 0 || bytes >= e->block_bytes)
		return;
	e->block_bytes = (uint32_t)bytes;
	capacity_set(e);
}

static void load_known(struct engine *e)
{
	struct engine_load before = e->load;
	e->load = e->next_load;
	if (engine_load_restarted(&before, &e->load)) {
		cgn_log(WARN, "engine.restarted", F_STR("engine", e->name),
			F_STR("seen_by", "its counters fell between two readings"));
		engine_residency_clear(e);
	}
	e->foreign = share_foreign(&e->peak, (uint64_t)e->load.running + e->load.waiting);
	metric_set(e->m_running, e->load.running);
	metric_set(e->m_waiting, e->load.waiting);
	metric_set(e->m_kv, e->load.kv_usage);
	watch_load_changed(e->agent);
	if (before.kv_blocks_total == e->load.kv_blocks_total &&
		before.kv_block_tokens == e->load.kv_block_tokens && before.slots == e->load.slots)
		return;
	capacity_set(e);
	agent_changed(e->agent);
}

static void on_source(void *user, const struct fetch_result *r)
{
	struct engine *e = user;
	CGN_LIVE(e, ENGINE_TAG);
	e->scrape = NULL;
	if (r->err->code == CGN_FINE)
		engine_heard(e);
	else if (r->err->code == CGN_DEADLINE)
		engine_unanswered(e);
	if (r->err->code == CGN_FINE && r->status == 200)
		slotmgr_slots_told(e, r->body); /* which looks twice whether it is of slots */
	if (r->err->code == CGN_FINE && r->status == 200)
		e->ops->sources[e->scrape_at].read(r->body, &e->next_load);
	else if (r->err->code == CGN_FINE && r->status >= 400 && r->status < 500)
		e->source_gone[e->scrape_at] = true;
	bool dead = r->refused;
	e->scrape_at++;
	ask_next_source(e);
	if (dead) /* seen here seconds before the next check */
		engine_check_soon(e);
}

static void ask_next_source(struct engine *e)
{
	for (; e->scrape_at < ENGINE_MAX_SOURCES; e->scrape_at++) {
		const char *path = e->ops->sources[e->scrape_at].path;
		if (path == NULL || e->source_gone[e->scrape_at])
			continue;
		struct fetch_ask ask = ask_of(e, path);
		if (cgn_ok(fetch_start(e->agent->loop, &ask, on_source, e, &e->scrape, NULL)))
			return;
	}
	load_known(e);
	cgn_timer_set(&e->scrape_timer, SCRAPE_INTERVAL);
}

/* ---- models ---- */
static void no_models(struct engine *e, const char *why)
{
	if (strcmp(e->trouble, why) == 0) /* said already */
		return;
	(void)cgn_str_copyz(e->trouble, sizeof e->trouble, cgn_str_of(why));
	cgn_log(WARN, "engine.models_unknown", F_STR("engine", e->name), F_STR("why", why),
		F_STR("then", "asked again; or set engine.model"));
}

static void models_read(struct engine *e, struct cgn_str body)
{
	struct cgn_err err = {0};
	cgn_arena_reset(&e->models_arena);
	e->n_models = 0;
	if (!cgn_ok(engine_models_read(body, &e->models_arena, PROTO_MAX_MODELS, &e->models, &e->n_models,
		    &err))) {
		e->n_models = 0;
		no_models(e, err.msg);
		return;
	}
	if (e->n_models == 0) {
		no_models(e, "/v1/models lists none");
		return;
	}
	e->models_known = true;
	e->trouble[0] = '\0';
	cgn_log(INFO, "engine.models", F_STR("engine", e->name), F_STR("first", e->models[0]),
		F_U64("models", e->n_models));
	feed_models_known(e);
	slotmgr_models_known(e);
	agent_engine_changed(e);
}

static void on_models(void *user, const struct fetch_result *r)
{
	struct engine *e = user;
	char why[sizeof e->trouble];
	CGN_LIVE(e, ENGINE_TAG);
	e->models_fetch = NULL;
	if (r->err->code == CGN_FINE && r->status == 200) {
		models_read(e, r->body);
		return;
	}
	(void)snprintf(why, sizeof why, "/v1/models: %.150s",
		r->err->code != CGN_FINE ? r->err->msg : "not answered with 200");
	no_models(e, why);
}

static void ask_models(struct engine *e)
{
	struct fetch_ask ask = ask_of(e, "/v1/models");
	if (!e->models_known && e->models_fetch == NULL)
		(void)fetch_start(e->agent->loop, &ask, on_models, e, &e->models_fetch, NULL)
			.code; /* the next tick tries again */
}

static void on_tick(struct cgn_timer *t)
{
	struct engine *e = CGN_CONTAINER(t, struct engine, scrape_timer);
	CGN_LIVE(e, ENGINE_TAG);
	e->scrape_at = 0;
	share_peak_next(&e->peak, e->inflight);
	e->next_load = (struct engine_load){.work = e->load.work}; /* a reading that fails is no fall */
	ask_models(e);
	ask_next_source(e);
}

void engine_scrape_init(struct engine *e)
{
	cgn_timer_init(&e->scrape_timer, e->agent->loop, on_tick);
}

void engine_scrape_start(struct engine *e)
{
	CGN_MUST(e->scrape == NULL);
	for (size_t i = 0; i < ENGINE_MAX_SOURCES; i++)
		e->source_gone[i] = false;
	if (!e->models_configured) /* it may serve another one than before */
		e->models_known = false;
	cgn_timer_set(&e->scrape_timer, 0);
}

void engine_scrape_stop(struct engine *e)
{
	cgn_timer_cancel(&e->scrape_timer);
	fetch_cancel(&e->scrape);
	fetch_cancel(&e->models_fetch);
	e->load = (struct engine_load){.slots = e->load.slots,
		.kv_blocks_total = e->load.kv_blocks_total,
		.kv_block_tokens = e->load.kv_block_tokens};
	e->foreign = e->peak.beyond = 0;
	metric_set(e->m_running, 0);
	metric_set(e->m_waiting, 0);
	metric_set(e->m_kv, 0);
}
