/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/engine/engine.h"

#include <errno.h>
#include <unistd.h>

#include "agent/engine/launch.h"
#include "base/log/log.h"

#define KEY_BYTES 8192

/* ---- the slot manager's view ---- */

static struct slotmgr_engine on_slots_ask(void *user)
{
	const struct engine *e = user;
	return (struct slotmgr_engine){.ready = engine_is_ready(e),
		.model = engineview_first(&e->view),
		.block_bytes = e->residency.block_bytes};
}

static struct kvclient *on_slots_store(void *user)
{
	const struct engine *e = user;
	return e->host->ops->store(e->host->user);
}

static void on_slots_rewatch(void *user)
{
	const struct engine *e = user;
	e->host->ops->rewatch_store(e->host->user);
}

static void on_slots_residency(void *user, bool known)
{
	struct engine *e = user;
	engine_residency_source(e, known ? RESIDENCY_BY_SLOTS : RESIDENCY_BY_SENT);
	e->host->ops->changed(e->host->user);
}

static CGN_RC open_slots(struct engine *e, const struct config_engine *ce, struct cgn_err *err)
{
	static const struct slotmgr_ops ops = {.engine = on_slots_ask,
		.store = on_slots_store,
		.rewatch_store = on_slots_rewatch,
		.residency_changed = on_slots_residency};
	const struct slotmgr_cfg cfg = {.loop = e->host->loop,
		.telemetry = e->host->telemetry,
		.name = e->name,
		.endpoint = e->view.at,
		.holdings = e->host->holdings,
		.engine = ce,
		.ops = &ops,
		.user = e};
	if (e->ops->kind == ENGINE_LLAMA_CPP)
		e->tenancy = slot_tenancy_new();
	e->mixes_slots = ce->managed ? engine_caches_in_ram(&e->process.launch)
				     : ce->cache_ram != CONFIG_CACHE_RAM_OFF;
	return slotmgr_open(&cfg, &e->slots, err);
}

/* ---- checks ---- */

/* Note a file of a managed engine that cannot be read. */
static void check_readable(const char *key, const char *path, struct svc_problems *out)
{
	struct cgn_err err;
	if (path != NULL && access(path, R_OK) != 0)
		svc_problem(out, CGN_FAIL(&err, INVALID, "%s: %.300s: %s", key, path, strerror(errno)), &err);
}

void engine_check(const struct config *cfg, const struct config_engine *ce, struct svc_problems *out)
{
	struct cgn_err err;
	engine_door_check("engine", ce, out);
	if (!ce->managed)
		return;
	svc_problem(out, engine_offload_check(ce, cfg->agent.role, &err), &err);
	if (ce->kind == ENGINE_LLAMA_CPP || (ce->model_path != NULL && ce->model_path[0] == '/'))
		check_readable("engine.model_path", ce->model_path, out); /* Others may be names on a hub. */
	if (ce->binary != NULL && strchr(ce->binary, '/') != NULL)
		check_readable("engine.binary", ce->binary, out);
}

/* ---- callbacks of joint/node/engineview ---- */

static bool on_view_is_ready(void *user)
{
	return engine_is_ready(user);
}

static void on_view_refused(void *user)
{
	engine_check_soon(user);
}

static void on_models_told(void *user, struct cgn_str body)
{
	(void)user;
	(void)body;
}

static void on_models_known(void *user)
{
	struct engine *e = user;
	CGN_LIVE(e, ENGINE_TAG);
	engine_trouble_set(e, "");
	slotmgr_models_known(e->slots);
	e->host->ops->changed(e->host->user);
}

static bool on_view_is_used(void *user, bool blind)
{
	const struct engine *e = user;
	CGN_LIVE(e, ENGINE_TAG);
	/* The slot manager has to see that others use its slots. */
	return e->requests.inflight + e->requests.direct > 0 || (blind && e->slots != NULL);
}

static void on_models_changed(void *user, bool emptied)
{
	struct engine *e = user;
	CGN_LIVE(e, ENGINE_TAG);
	/* An engine that slept has lost its KV cache. */
	if (emptied) {
		cgn_log(INFO, "engine.fell_asleep", F_STR("engine", e->name),
			F_STR("then", "the next request wakes it"));
		engine_residency_clear(e);
	}
	e->host->ops->changed(e->host->user);
}

static void on_models_unknown(void *user, const char *why)
{
	struct engine *e = user;
	CGN_LIVE(e, ENGINE_TAG);
	engine_trouble_set(e, why);
	e->host->ops->changed(e->host->user);
}

static void on_events_changed(void *user, bool counts, bool heard)
{
	struct engine *e = user;
	CGN_LIVE(e, ENGINE_TAG);
	engine_residency_source(e, counts ? RESIDENCY_BY_EVENTS : RESIDENCY_BY_SENT);
	if (counts)
		engine_residency_heard(e, heard);
	e->host->ops->changed(e->host->user);
}

static const struct engineview_ops view_ops = {.probed = engine_probed,
	.slow = engine_probe_slow,
	.stalled = engine_stalled,
	.is_ready = on_view_is_ready,
	.is_used = on_view_is_used,
	.refused = on_view_refused,
	.load_begins = engine_load_begins,
	.load_answered = engine_load_answered,
	.load_read = engine_load_read,
	.models_told = on_models_told,
	.models_known = on_models_known,
	.models_changed = on_models_changed,
	.models_unknown = on_models_unknown,
	.events_changed = on_events_changed};

static CGN_RC open_feed(struct engine *e, const struct config *cfg, const struct config_engine *ce,
	struct cgn_err *err)
{
	struct engine_events events;
	const char *prefix;
	CGN_TRY(engine_prefix(cfg, ce, &e->arena, &prefix, err));
	CGN_TRY(engine_events_of(ce, e->door.url.port, prefix, &e->arena, &events, err));
	const struct engineview_feed_at at = {.events = &events,
		.holdings = e->host->holdings,
		.telemetry = e->host->telemetry};
	return engineview_feed_open(&e->view, cfg, ce, &at, &e->arena, err);
}

bool engine_serves(const struct engine *e, struct cgn_str model)
{
	const char *served = engineview_served(&e->view);
	return engineview_lists(&e->view, model) || engine_adapter_serves(e, model) ||
		(served[0] != '\0' && cgn_str_is(model, served));
}

/* ---- open and close ---- */

static void requests_init(struct engine *e)
{
	struct engine_requests *r = &e->requests;
	cgn_list_init(&r->relays);
	r->seconds = METRIC_OF(e->host->telemetry, RELAY_SECONDS, e->name);
	r->ok = METRIC_OF(e->host->telemetry, RELAYS, e->name, "ok");
	r->error = METRIC_OF(e->host->telemetry, RELAYS, e->name, "error");
	r->cancelled = METRIC_OF(e->host->telemetry, RELAYS, e->name, "cancelled");
}

CGN_RC engine_open(const struct engine_host *host, const struct config *cfg, size_t i, struct engine *e,
	struct cgn_err *err)
{
	const struct config_engine *ce = &cfg->engines[i];
	const struct engine_ops *ops = engine_ops_of(ce->kind);
	*e = (struct engine){.tag = ENGINE_TAG,
		.host = host,
		.ops = ops,
		.resume = engine_resume_of(ce),
		.mixes_salts = engine_mixes_salts(ce),
		.max_conns = ce->max_conns};
	(void)cgn_str_copyz(e->name, sizeof e->name, cgn_str_of(ce->name));
	cgn_arena_init(&e->arena, (size_t)1024 * 1024);
	requests_init(e);
	e->view = (struct engineview){.loop = host->loop,
		.name = e->name,
		.kind = ops,
		.at = {.url = &e->door.url},
		.ops = &view_ops,
		.user = e};
	engine_trouble_set(e, "not started");
	engine_load_init(e);
	engine_ondemand_init(e, cfg, ce);
	if (ce->managed && ce->model == NULL && ce->model_path != NULL)
		e->planned = cgn_arena_strz(&e->arena, cgn_str_of(ce->model_path));
	CGN_TRY(engineview_init(&e->view, ce, err));
	engine_residency_init(e);
	CGN_TRY(engine_door_open(&e->door, "engine", ce, &e->arena, err));
	e->view.at.authorization = e->door.authorization;
	CGN_TRY(engine_process_open(e, cfg, ce, err));
	CGN_TRY(engine_unit_open(e, cfg, ce, err));
	CGN_TRY(engine_door_client(&e->door, host->loop, ce->max_conns, &e->view.at.client, err));
	CGN_TRY(engine_handoff_init(e, cfg, ce, err));
	CGN_TRY(open_feed(e, cfg, ce, err));
	return open_slots(e, ce, err);
}

void engine_start(struct engine *e)
{
	CGN_LIVE(e, ENGINE_TAG);
	if (e->view.models.known)
		engineview_feed_models_known(&e->view);
	if (engine_wanted(e) == COGNITORA__V1__WANTED_STATE__WANTED_UNLOADED && e->process.sup.cfg.managed) {
		e->process.waits = false;
		(void)engine_rest_step(e); /* Keeps it stopped. */
	}
	if (!e->process.waits && e->rest.state != REST_STOPPED)
		engine_step(e, SUPERVISE_START);
}

bool engine_waits(const struct engine *e)
{
	return e->process.waits;
}

void engine_wait_over(struct engine *e)
{
	CGN_LIVE(e, ENGINE_TAG);
	e->process.waits = false;
	engine_step(e, SUPERVISE_START);
}

void engine_close(struct engine *e)
{
	if (e->tag == 0)
		return;
	CGN_LIVE(e, ENGINE_TAG);
	engine_adapters_close(e);
	engine_rest_close(e);
	engine_unit_close(e);
	engine_load_stop(e);
	slotmgr_close(&e->slots);
	slot_tenancy_free(&e->tenancy);
	engine_process_close(e);
	engine_handoff_close(e);
	engineview_close(&e->view);
	http_client_free(&e->view.at.client);
	engine_door_close(&e->door);
	residency_free(&e->residency.sent);
	cgn_arena_fini(&e->arena);
	e->tag = 0;
}

bool engine_needs_no_agent(const struct engine *e)
{
	return engine_is_ready(e) && !e->ondemand.on && !e->door.url.tls && e->door.url.base[0] == '\0' &&
		e->door.authorization == NULL && e->slots == NULL && e->residency.by == RESIDENCY_BY_EVENTS;
}

void engine_direct_told(struct engine *e, uint32_t n, bool heard)
{
	e->requests.direct = n;
	share_peak_note(&e->requests.peak, e->requests.inflight + n);
	if (heard)
		engineview_worked(&e->view);
}

/* ---- /engines ---- */

static void load_fill(const struct engine_load *l, Cognitora__V1__EngineLoad *to)
{
	to->running = l->running;
	to->waiting = l->waiting;
	to->kv_usage = l->kv_usage;
	to->slots = l->slots;
	to->kv_blocks_total = l->kv_blocks_total;
	to->kv_block_tokens = l->kv_block_tokens;
}

void engine_report_fill(const struct engine *e, struct pb_tree *t, Cognitora__V1__EngineReport *to)
{
	to->name = pb_text(e->name);
	to->kind = pb_text(config_enum_text(e->ops->kind));
	to->address = pb_text(e->door.url.addr);
	to->managed = e->process.sup.cfg.managed;
	to->state = pb_text(supervise_state_name(e->process.sup.state));
	to->ready = engine_is_ready(e);
	to->rest = pb_text(engine_rest_text(e));
	to->on_demand = engine_ondemand_new(e, t);
	to->trouble = pb_text(e->health.trouble);
	to->pid = e->process.proc != NULL ? (uint64_t)proc_pid(e->process.proc) : 0;
	to->restarts = e->process.sup.restarts;
	to->inflight = (uint64_t)e->requests.inflight + e->requests.direct;
	to->direct = e->requests.direct;
	to->resident_blocks = residency_count(e->residency.sent);
	to->residency = pb_text(engine_residency_text(e));
	to->kv_events = engineview_feed_new(&e->view, t);
	to->handoff = engine_handoff_new(e, t);
	to->kept_slots = slotmgr_report_new(e->slots, t);
	to->models = pb_tree_array(t, e->view.models.list.n, sizeof *to->models);
	for (size_t i = 0; to->models != NULL && i < e->view.models.list.n; i++)
		to->models[to->n_models++] = pb_text(e->view.models.list.v[i].name);
	load_fill(&e->view.load.now, to->load = PB_NEW(t, engine_load));
}
