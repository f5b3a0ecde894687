/* SPDX-License-Identifier: Apache-2.0 */
/* The shell around policy/engine/supervise: carries out its orders and tells it what happened. */
#include <stdlib.h>
#include <unistd.h>

#include "agent/agent.h"
#include "agent/slotmgr.h"
#include "base/log/log.h"
#include "io/disk/disk.h"

#define PROBE_BYTES   ((size_t)1024 * 1024)
#define PROBE_TIMEOUT (5 * CGN_SEC)
#define KEY_BYTES     8192
#define STOP_GRACE    (10 * CGN_SEC)
/* uvicorn (vLLM, SGLang) and cpp-httplib (llama-server) close a connection that is idle for 5 s. Who sends on
 * it at that moment gets no answer, and what is not asked twice, as a slot's save is not, is lost. */
#define IDLE_CONNECTION (4 * CGN_SEC)
/* A stall is that many beats without a byte and that many checks without an answer: counted and not measured,
 * so that an agent that was itself stopped does not blame its engine. */
#define STALL_BEATS  5
#define STALL_CHECKS 2

static void step(struct engine *e, enum supervise_event ev);

static void set_trouble(struct engine *e, const char *what)
{
	(void)cgn_str_copyz(e->trouble, sizeof e->trouble, cgn_str_of(what));
}

/* ---- process ---- */
static void on_line(void *user, bool is_stderr, struct cgn_str line, unsigned long dropped)
{
	struct engine *e = user;
	if (dropped > 0)
		cgn_log(WARN, "engine.output_dropped", F_STR("engine", e->name), F_U64("lines", dropped));
	cgn_log(INFO, "engine.output", F_STR("engine", e->name),
		F_STR("stream", is_stderr ? "stderr" : "stdout"), F_STRN("line", line));
}

static void on_exit_(void *user, const struct proc_exit *why)
{
	struct engine *e = user;
	char text[128];
	CGN_LIVE(e, ENGINE_TAG);
	e->proc = NULL;
	(void)proc_exit_text(why, text, sizeof text);
	if (e->sup.state == SUPERVISE_STOPPING)
		cgn_log(INFO, "engine.exit", F_STR("engine", e->name), F_STR("how", text));
	else
		cgn_log(WARN, "engine.exit", F_STR("engine", e->name), F_STR("how", text),
			F_STR("state", supervise_state_name(e->sup.state)));
	set_trouble(e, text);
	fetch_cancel(&e->probe);
	step(e, SUPERVISE_EXITED);
}

static const struct proc_ops proc_ops = {.on_line = on_line, .on_exit = on_exit_};

static void spawn(struct engine *e)
{
	struct cgn_err err = {0};
	const struct proc_cfg cfg = {.argv = e->argv.v, .env = e->env, .grace = STOP_GRACE};
	fetch_cancel(&e->probe);
	set_trouble(e, "starting");
	if (e->sup.restarts > 0)
		metric_add(e->m_restarts, 1);
	if (cgn_ok(proc_spawn(e->agent->loop, &cfg, &proc_ops, e, &e->proc, &err))) {
		cgn_log(INFO, "engine.start", F_STR("engine", e->name), F_STR("program", e->argv.v[0]),
			F_U64("restarts", e->sup.restarts));
		return;
	}
	cgn_log(ERROR, "engine.start_failed", F_STR("engine", e->name), F_STR("why", err.msg));
	set_trouble(e, err.msg);
	step(e, SUPERVISE_SPAWN_FAILED);
}

/* ---- readiness ---- */
static enum supervise_event verdict(struct engine *e, const struct fetch_result *r)
{
	if (r->err->code == CGN_DEADLINE)
		engine_unanswered(e);
	if (r->err->code == CGN_FINE)
		engine_heard(e);
	if (r->err->code != CGN_FINE) {
		set_trouble(e, r->err->msg);
		return r->refused ? SUPERVISE_PROBE_REFUSED : SUPERVISE_PROBE_DOWN;
	}
	char text[160];
	(void)snprintf(text, sizeof text, "%s answered %d", e->ops->ready_path, r->status);
	switch (e->ops->health(r->status)) {
	case ENGINE_READINESS_UP:
		return SUPERVISE_PROBE_UP;
	case ENGINE_READINESS_LOADING:
		set_trouble(e, text);
		return SUPERVISE_PROBE_LOADING;
	case ENGINE_READINESS_DOWN:
		break;
	}
	set_trouble(e, text);
	return SUPERVISE_PROBE_DOWN;
}

static void on_probe(void *user, const struct fetch_result *r)
{
	struct engine *e = user;
	CGN_LIVE(e, ENGINE_TAG);
	e->probe = NULL;
	step(e, verdict(e, r));
}

static void probe(struct engine *e)
{
	struct cgn_err err = {0};
	const struct fetch_ask ask = {
		.client = e->client,
		.url = &e->url,
		.path = e->ops->ready_path,
		.authorization = e->authorization,
		.max_bytes = PROBE_BYTES,
		.timeout = PROBE_TIMEOUT,
	};
	CGN_MUST(e->probe == NULL);
	if (cgn_ok(fetch_start(e->agent->loop, &ask, on_probe, e, &e->probe, &err)))
		return;
	set_trouble(e, err.msg);
	step(e, SUPERVISE_PROBE_DOWN);
}

/* ---- silence ---- */
void engine_heard(struct engine *e)
{
	e->silent = e->unanswered = 0;
}

void engine_unanswered(struct engine *e)
{
	e->unanswered++;
}

static void on_beat(struct cgn_timer *t)
{
	struct engine *e = CGN_CONTAINER(t, struct engine, stall_timer);
	char text[sizeof e->trouble];
	CGN_LIVE(e, ENGINE_TAG);
	cgn_timer_set(t, e->stall_timeout / STALL_BEATS);
	if (++e->silent < STALL_BEATS || e->unanswered < STALL_CHECKS)
		return;
	(void)snprintf(text, sizeof text,
		"stalled: it answers no check and brings no byte (%u requests there)", e->inflight);
	set_trouble(e, text);
	step(e, SUPERVISE_STALLED); /* routers are told first, so that they send what ends here elsewhere */
	relay_end_all(e, "the engine is stalled");
}

static void stall_watch(struct engine *e, bool on)
{
	engine_heard(e);
	if (on && e->stall_timeout > 0)
		cgn_timer_set(&e->stall_timer, e->stall_timeout / STALL_BEATS);
	else
		cgn_timer_cancel(&e->stall_timer);
}

static void ready_changed(struct engine *e, bool ready)
{
	stall_watch(e, ready);
	if (ready) {
		e->trouble[0] = '\0';
		cgn_log(INFO, "engine.ready", F_STR("engine", e->name), F_STR("url", e->url.addr));
		engine_scrape_start(e);
	} else {
		if (e->sup.state != SUPERVISE_STOPPING && e->sup.state != SUPERVISE_STOPPED)
			cgn_log(WARN, "engine.unready", F_STR("engine", e->name), F_STR("why", e->trouble));
		engine_scrape_stop(e);
		/* Whatever it held is gone or will be: most often it died. */
		engine_residency_clear(e);
	}
	slotmgr_engine_ready(e, ready);
	metric_set(e->m_ready, ready ? 1 : 0);
}

/* ---- the one door to the state machine ---- */
static void step(struct engine *e, enum supervise_event ev)
{
	struct supervise_orders o;
	enum supervise_state before = e->sup.state;
	cgn_nsec now = cgn_loop_now(e->agent->loop);
	supervise_step(&e->sup, ev, now, &o);
	if (o.wake_at != 0)
		cgn_timer_set(&e->wake, o.wake_at > now ? o.wake_at - now : 0);
	else
		cgn_timer_cancel(&e->wake);
	if (before != e->sup.state && (before == SUPERVISE_READY || e->sup.state == SUPERVISE_READY))
		ready_changed(e, e->sup.state == SUPERVISE_READY);
	if (before != e->sup.state)
		agent_engine_changed(e);
	if (o.kill && e->proc != NULL) {
		cgn_log(INFO, "engine.stop", F_STR("engine", e->name),
			F_STR("state", supervise_state_name(e->sup.state)), F_STR("last", e->trouble));
		proc_stop(e->proc);
	}
	if (o.probe)
		probe(e);
	if (o.spawn)
		spawn(e); /* last: it may step again */
}

static void on_wake(struct cgn_timer *t)
{
	struct engine *e = CGN_CONTAINER(t, struct engine, wake);
	CGN_LIVE(e, ENGINE_TAG);
	step(e, SUPERVISE_TICK);
}

/* ---- life ---- */
static CGN_RC read_key(struct engine *e, const char *file, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	CGN_TRY(disk_read_file(file, KEY_BYTES, &text, err));
	struct cgn_str key = cgn_buf_view(&text), rest = key;
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
	e->authorization = cgn_arena_fmt(&e->arena, "Bearer %.*s", CGN_STR_ARG(key));
	if (e->authorization == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for the key of engine %s", e->name);
	return CGN_OK;
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
		.idle_timeout = IDLE_CONNECTION,
	};
	return http_client_new(e->agent->loop, &cfg, &e->client, err);
}

/* llama-server's own cache of what its slots held would keep the same bytes twice, outside of every budget,
 * and change slots behind the agent's back. By the environment, which a build that does not know it passes
 * over, and which extra_args override. */
static bool kept_by_us(const struct config *cfg, const struct config_engine *ce)
{
	char path[128];
	if (ce->kind != ENGINE_LLAMA_CPP || ce->slot_dir == NULL || cfg->agent.kv_uds[0] == '\0')
		return false;
	(void)snprintf(path, sizeof path, "%s.bulk", cfg->agent.kv_uds);
	return access(path, F_OK) == 0;
}

static CGN_RC make_argv(struct engine *e, const struct config *cfg, const struct config_engine *ce,
	struct cgn_err *err)
{
	if (!ce->managed)
		return CGN_OK;
	e->argv.arena = &e->arena;
	CGN_TRY(engine_argv_make(ce, &e->url, &e->argv, err));
	size_t n = 0;
	if (kept_by_us(cfg, ce))
		e->env[n++] = "LLAMA_ARG_CACHE_RAM=0";
	if (cfg->agent.gpu_index == NULL)
		return CGN_OK;
	e->env[n] = cgn_arena_fmt(&e->arena, "CUDA_VISIBLE_DEVICES=%s", cfg->agent.gpu_index);
	if (e->env[n] == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for the environment of engine %s", e->name);
	return CGN_OK;
}

static CGN_RC set_model(struct engine *e, const struct config_engine *ce, struct cgn_err *err)
{
	if (ce->model == NULL)
		return CGN_OK;
	e->models = cgn_arena_get(&e->models_arena, sizeof *e->models);
	const char *name = cgn_arena_strz(&e->models_arena, cgn_str_of(ce->model));
	if (e->models == NULL || name == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for the model of engine %s", e->name);
	e->models[0] = name;
	e->n_models = 1;
	e->models_configured = e->models_known = true;
	return CGN_OK;
}

static void get_metrics(struct engine *e)
{
	e->m_ready = METRIC_OF(e->agent->telemetry, ENGINE_READY, e->name);
	e->m_restarts = METRIC_OF(e->agent->telemetry, ENGINE_RESTARTS, e->name);
	e->m_running = METRIC_OF(e->agent->telemetry, ENGINE_RUNNING, e->name);
	e->m_waiting = METRIC_OF(e->agent->telemetry, ENGINE_WAITING, e->name);
	e->m_kv = METRIC_OF(e->agent->telemetry, ENGINE_KV_USAGE, e->name);
	e->m_seconds = METRIC_OF(e->agent->telemetry, RELAY_SECONDS, e->name);
	e->m_ok = METRIC_OF(e->agent->telemetry, RELAYS, e->name, "ok");
	e->m_error = METRIC_OF(e->agent->telemetry, RELAYS, e->name, "error");
	e->m_cancelled = METRIC_OF(e->agent->telemetry, RELAYS, e->name, "cancelled");
}

CGN_RC engine_open(struct agent *a, const struct config *cfg, size_t i, struct engine *e, struct cgn_err *err)
{
	const struct config_engine *ce = &cfg->engines[i];
	const struct engine_ops *ops = engine_ops_of(ce->kind);
	*e = (struct engine){.tag = ENGINE_TAG, .agent = a, .ops = ops, .resume = ops->resume(ce)};
	(void)cgn_str_copyz(e->name, sizeof e->name, cgn_str_of(ce->name));
	cgn_arena_init(&e->arena, (size_t)1024 * 1024);
	cgn_arena_init(&e->models_arena, (size_t)1024 * 1024);
	cgn_list_init(&e->relays);
	cgn_timer_init(&e->wake, a->loop, on_wake);
	cgn_timer_init(&e->stall_timer, a->loop, on_beat);
	e->stall_timeout = ce->stall_timeout;
	engine_scrape_init(e);
	set_trouble(e, "not started");
	(void)cgn_str_copyz(e->residency_text, sizeof e->residency_text, CGN_STR("sent"));
	get_metrics(e);
	CGN_TRY(engine_url_parse(ce->url, &e->url, err));
	if (ce->api_key_file != NULL)
		CGN_TRY(read_key(e, ce->api_key_file, err));
	CGN_TRY(make_argv(e, cfg, ce, err));
	CGN_TRY(set_model(e, ce, err));
	e->block_bytes = a->block_bytes;
	CGN_TRY(residency_new(RESIDENCY_MAX, &e->resident, err));
	CGN_TRY(open_client(e, ce, err));
	CGN_TRY(feed_open(e, cfg, ce, err));
	CGN_TRY(slotmgr_open(e, ce, err));
	const struct supervise_cfg sup = {
		.managed = ce->managed,
		.ready_timeout = ce->ready_timeout,
		.ready_interval = ce->ready_interval,
		.check_interval = ops->check_every,
		.backoff = ce->restart_backoff,
	};
	supervise_init(&e->sup, &sup);
	metric_set(e->m_ready, 0);
	return CGN_OK;
}

void engine_start(struct engine *e)
{
	CGN_LIVE(e, ENGINE_TAG);
	if (e->models_known)
		feed_models_known(e);
	step(e, SUPERVISE_START);
}

void engine_stop(struct engine *e)
{
	CGN_LIVE(e, ENGINE_TAG);
	fetch_cancel(&e->probe);
	step(e, SUPERVISE_STOP);
}

void engine_close(struct engine *e)
{
	if (e->tag == 0)
		return;
	CGN_LIVE(e, ENGINE_TAG);
	cgn_timer_cancel(&e->wake);
	cgn_timer_cancel(&e->stall_timer);
	fetch_cancel(&e->probe);
	engine_scrape_stop(e);
	slotmgr_close(e);
	proc_free(&e->proc);
	http_client_free(&e->client);
	tls_ctx_free(&e->tls);
	feed_close(e);
	residency_free(&e->resident);
	cgn_arena_fini(&e->arena);
	cgn_arena_fini(&e->models_arena);
	e->tag = 0;
}

bool engine_is_ready(const struct engine *e)
{
	return e->sup.state == SUPERVISE_READY && e->models_known;
}

bool engine_is_stopped(const struct engine *e)
{
	return e->sup.state == SUPERVISE_STOPPED;
}

bool engine_serves(const struct engine *e, struct cgn_str model)
{
	for (size_t i = 0; i < e->n_models; i++)
		if (cgn_str_is(model, e->models[i]))
			return true;
	return false;
}

void engine_check_soon(struct engine *e)
{
	CGN_LIVE(e, ENGINE_TAG);
	if (e->sup.state != SUPERVISE_READY || e->sup.probing)
		return;
	e->sup.next_probe = cgn_loop_now(e->agent->loop);
	step(e, SUPERVISE_TICK);
}
