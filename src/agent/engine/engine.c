/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/engine/engine.h"

#include <errno.h>
#include <unistd.h>

#include "io/disk/disk.h"
#include "joint/enginecall/enginecall.h"

#define KEY_BYTES 8192

/* ---- the slot manager's view ---- */

static struct slotmgr_engine on_slots_ask(void *user)
{
	const struct engine *e = user;
	return (struct slotmgr_engine){.ready = engine_is_ready(e),
		.model = e->models.n > 0 ? e->models.names[0] : NULL,
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
	(void)cgn_str_copyz(e->residency.text, sizeof e->residency.text,
		cgn_str_of(known ? "slots" : "sent"));
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
		.endpoint = e->endpoint,
		.holdings = e->host->holdings,
		.engine = ce,
		.ops = &ops,
		.user = e};
	if (e->ops->kind == ENGINE_LLAMA_CPP)
		CGN_TRY(slot_tenancy_new(&e->tenancy, err));
	e->mixes_slots = ce->managed ? engine_caches_in_ram(&e->process.launch)
				     : ce->cache_ram != CONFIG_CACHE_RAM_OFF;
	return slotmgr_open(&cfg, &e->slots, err);
}

/* ---- open and close ---- */

/* Read the key's file into |text|, and borrow the key from it. */
static CGN_RC key_of(const char *file, struct cgn_buf *text, struct cgn_str *out, struct cgn_err *err)
{
	CGN_TRY(cgn_err_of(disk_read_file(file, KEY_BYTES, text, err), "engine.api_key_file", err));
	struct cgn_str key = cgn_buf_view(text), rest = key;
	key = cgn_str_trim(cgn_str_split(&rest, '\n'));
	if (key.n > 0 && key.p[key.n - 1] == '\r')
		key.n--;
	for (size_t i = 0; i < key.n; i++)
		if (key.p[i] <= ' ' || key.p[i] > '~')
			key.n = 0;
	if (key.n == 0)
		return CGN_FAIL(err, INVALID,
			"engine.api_key_file %s: its first line must be a key of visible ASCII characters",
			file);
	*out = key;
	return CGN_OK;
}

static CGN_RC read_key(struct engine *e, const char *file, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	struct cgn_str key;
	CGN_TRY(key_of(file, &text, &key, err));
	e->authorization = cgn_arena_fmt(&e->arena, "Bearer %.*s", CGN_STR_ARG(key));
	if (e->authorization == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for the key of engine %s", e->name);
	return CGN_OK;
}

/* Note a file of a managed engine that cannot be read. */
static void check_readable(const char *key, const char *path, struct svc_problems *out)
{
	struct cgn_err err;
	if (path != NULL && access(path, R_OK) != 0)
		svc_problem(out, CGN_FAIL(&err, INVALID, "%s: %.300s: %s", key, path, strerror(errno)), &err);
}

void engine_check(const struct config *cfg, const struct config_engine *ce, struct svc_problems *out)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	const struct tls_cfg tls = {.ca_file = ce->ca_file};
	struct engine_url url;
	struct cgn_str key;
	struct cgn_err err;
	svc_problem(out, cgn_err_of(engine_url_parse(ce->url, &url, &err), "engine.url", &err), &err);
	svc_check_tls(out, "engine.", &tls);
	if (ce->api_key_file != NULL)
		svc_problem(out, key_of(ce->api_key_file, &text, &key, &err), &err);
	if (!ce->managed)
		return;
	svc_problem(out, engine_offload_check(ce, cfg->agent.role, &err), &err);
	if (ce->kind == ENGINE_LLAMA_CPP || (ce->model_path != NULL && ce->model_path[0] == '/'))
		check_readable("engine.model_path", ce->model_path, out); /* Others may be names on a hub. */
	if (ce->binary != NULL && strchr(ce->binary, '/') != NULL)
		check_readable("engine.binary", ce->binary, out);
}

static CGN_RC open_client(struct engine *e, const struct config_engine *ce, struct cgn_err *err)
{
	if (e->url.tls) {
		static const char *const alpn[] = {"http/1.1", NULL};
		const struct tls_cfg tls = {.ca_file = ce->ca_file, .alpn = alpn};
		CGN_TRY(tls_ctx_new(&tls, &e->tls, err));
	}
	const struct http_client_cfg cfg = {
		.addr = e->url.addr,
		.authority = e->url.authority,
		.tls = e->tls,
		.proto = HTTP_1,
		.max_conns = ce->max_conns,
		.idle_timeout = ENGINECALL_IDLE,
	};
	CGN_TRY(http_client_new(e->host->loop, &cfg, &e->client, err));
	e->endpoint = (struct enginefetch_endpoint){.client = e->client,
		.url = &e->url,
		.authorization = e->authorization};
	return CGN_OK;
}

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
		.resume = ops->resume(ce),
		.mixes_salts = engine_mixes_salts(ce),
		.max_conns = ce->max_conns};
	(void)cgn_str_copyz(e->name, sizeof e->name, cgn_str_of(ce->name));
	cgn_arena_init(&e->arena, (size_t)1024 * 1024);
	requests_init(e);
	engine_health_init(e, ce->stall_timeout);
	engine_load_init(e);
	engine_ondemand_init(e, cfg, ce);
	CGN_TRY(engine_models_init(e, ce, err));
	CGN_TRY(engine_residency_init(e, err));
	CGN_TRY(cgn_err_of(engine_url_parse(ce->url, &e->url, err), "engine.url", err));
	if (ce->api_key_file != NULL)
		CGN_TRY(read_key(e, ce->api_key_file, err));
	CGN_TRY(engine_process_open(e, cfg, ce, err));
	CGN_TRY(engine_unit_open(e, cfg, ce, err));
	CGN_TRY(open_client(e, ce, err));
	CGN_TRY(engine_handoff_init(e, cfg, ce, err));
	CGN_TRY(engine_feed_open(e, cfg, ce, err));
	return open_slots(e, ce, err);
}

void engine_start(struct engine *e)
{
	CGN_LIVE(e, ENGINE_TAG);
	if (e->models.known)
		engine_feed_models_known(e);
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

void engine_stop(struct engine *e)
{
	CGN_LIVE(e, ENGINE_TAG);
	engine_probe_cancel(e);
	e->process.waits = false;
	engine_step(e, SUPERVISE_STOP);
}

void engine_close(struct engine *e)
{
	if (e->tag == 0)
		return;
	CGN_LIVE(e, ENGINE_TAG);
	engine_health_close(e);
	engine_adapters_close(e);
	engine_rest_close(e);
	engine_unit_close(e);
	engine_load_stop(e);
	slotmgr_close(&e->slots);
	slot_tenancy_free(&e->tenancy);
	engine_process_close(e);
	engine_handoff_close(e);
	http_client_free(&e->client);
	tls_ctx_free(&e->tls);
	engine_feed_close(e);
	residency_free(&e->residency.sent);
	cgn_arena_fini(&e->arena);
	cgn_arena_fini(&e->models.arena);
	e->tag = 0;
}

bool engine_is_ready(const struct engine *e)
{
	return e->process.sup.state == SUPERVISE_READY && e->models.known && !engine_rest_sleeps(e);
}

bool engine_needs_no_agent(const struct engine *e)
{
	return engine_is_ready(e) && !e->ondemand.on && !e->url.tls && e->url.base[0] == '\0' &&
		e->authorization == NULL && e->slots == NULL && e->residency.by == RESIDENCY_BY_EVENTS;
}

void engine_direct_told(struct engine *e, uint32_t n, bool heard)
{
	e->requests.direct = n;
	share_peak_note(&e->requests.peak, e->requests.inflight + n);
	if (heard)
		engine_heard(e);
}

bool engine_is_stopped(const struct engine *e)
{
	return e->process.sup.state == SUPERVISE_STOPPED;
}

/* ---- /engines ---- */

static void put_load(struct json_out *o, const struct engine_load *l)
{
	json_key_open(o, "load", '{');
	json_key_u64(o, "running", l->running);
	json_key_u64(o, "waiting", l->waiting);
	json_key_f64(o, "kv_usage", l->kv_usage);
	json_key_u64(o, "slots", l->slots);
	json_key_u64(o, "kv_blocks_total", l->kv_blocks_total);
	json_key_u64(o, "kv_block_tokens", l->kv_block_tokens);
	json_close(o, '}');
}

void engine_report(const struct engine *e, struct json_out *o)
{
	json_open(o, '{');
	json_key_z(o, "name", e->name);
	json_key_z(o, "kind", config_enum_text(e->ops->kind));
	json_key_z(o, "address", e->url.addr);
	json_key_bool(o, "managed", e->process.sup.cfg.managed);
	json_key_z(o, "state", supervise_state_name(e->process.sup.state));
	json_key_bool(o, "ready", engine_is_ready(e));
	json_key_z(o, "rest", engine_rest_text(e));
	json_key(o, "on_demand");
	engine_ondemand_report(e, o);
	json_key_z(o, "trouble", e->health.trouble);
	json_key_u64(o, "pid", e->process.proc != NULL ? (uint64_t)proc_pid(e->process.proc) : 0);
	json_key_u64(o, "restarts", e->process.sup.restarts);
	json_key_u64(o, "inflight", (uint64_t)e->requests.inflight + e->requests.direct);
	json_key_u64(o, "direct", e->requests.direct);
	json_key_u64(o, "resident_blocks", residency_count(e->residency.sent));
	json_key_z(o, "residency", engine_residency_text(e));
	json_key(o, "kv_events");
	engine_feed_report(e, o);
	json_key(o, "handoff");
	engine_handoff_report(e, o);
	json_key(o, "kept_slots");
	slotmgr_report(e->slots, o);
	json_key_open(o, "models", '[');
	for (size_t i = 0; i < e->models.n; i++)
		json_put_z(o, e->models.names[i]);
	json_close(o, ']');
	put_load(o, &e->load.now);
	json_close(o, '}');
}
