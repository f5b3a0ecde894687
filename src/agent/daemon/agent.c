/* SPDX-License-Identifier: Apache-2.0 */
/* The agent's life: it opens and connects its parts, and leaves the cluster in good order. */
#include "agent/daemon/agent.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/log/log.h"
#include "io/os/disk/disk.h"
#include "joint/report/telemetry/scrape.h"

#define SCRATCH_BYTES  ((size_t)4 * 1024 * 1024)
#define POWER_INTERVAL CGN_SEC
#define POWER_TURNS    4                /* Routers are told so often of the energy that requests take */
#define DIRECT_WAIT    (500 * CGN_MSEC) /* Until routers have heard and told */
#define NO_ENGINE      "no engine is configured: cgn-agent needs an [engine] table, or several of [[engines]]"
#define MIN_STREAMS    4096
#define MESSAGE_SLACK  ((uint64_t)1024 * 1024) /* Beside the body: path, headers, digests */

/* ---- draining ---- */

static void on_left(void *arg);

static bool engines_are_stopped(const struct agent *a)
{
	for (size_t i = 0; i < a->n_engines; i++)
		if (!engine_is_stopped(&a->engines[i]))
			return false;
	return true;
}

/* The last request has ended: routers forget the node, and the engines stop. */
static void agent_leave(struct agent *a)
{
	a->drain.leaving = true;
	swap_end(&a->swap);
	cgn_log(INFO, "agent.leave", F_STR("node", a->node_id));
	watch_end_all(&a->watch, "the node has drained and goes away");
	state_announce_leave(a->announce, on_left, a);
	for (size_t i = 0; i < a->n_engines; i++)
		engine_stop(&a->engines[i]);
}

/* Continue draining after an event that may have been awaited. */
static void agent_drain_step(struct agent *a)
{
	if (!a->drain.on)
		return;
	if (a->drain.direct_timer.at == 0 && watch_direct(&a->watch, 0).inflight == 0)
		a->drain.direct_over = true;
	bool direct = a->direct_told && !a->drain.direct_over;
	if (!a->drain.leaving && !direct && a->relays.share.all.inflight == 0)
		agent_leave(a);
	if (a->drain.left && engines_are_stopped(a)) {
		a->drain.left = false; /* svc_drained is called once */
		svc_drained(a->svc);
	}
}

static void on_left(void *arg)
{
	struct agent *a = arg;
	CGN_LIVE(a, AGENT_TAG);
	a->drain.left = true;
	agent_drain_step(a);
}

/* Routers know by now that the node drains, and have reported the requests that they had sent before. */
static void on_direct_timer(struct cgn_timer *t)
{
	struct agent *a = CGN_CONTAINER(t, struct agent, drain.direct_timer);
	CGN_LIVE(a, AGENT_TAG);
	agent_drain_step(a);
}

/* The open requests had their time. The engines still get theirs to end (engine.stop_grace). */
static void on_drain_timer(struct cgn_timer *t)
{
	struct agent *a = CGN_CONTAINER(t, struct agent, drain.timer);
	CGN_LIVE(a, AGENT_TAG);
	if (a->drain.leaving)
		return;
	cgn_log(WARN, "agent.drain_timeout", F_STR("node", a->node_id),
		F_U64("requests_cut",
			(uint64_t)a->relays.share.all.inflight + watch_direct(&a->watch, 0).inflight));
	for (size_t i = 0; i < a->n_engines; i++)
		relay_end_all(&a->engines[i], "the node goes away and agent.drain_timeout is over");
	a->drain.direct_over = true; /* Requests that went straight to an engine end with it */
	agent_drain_step(a);
}

void agent_drain(void *state)
{
	struct agent *a = state;
	CGN_LIVE(a, AGENT_TAG);
	a->drain.on = true;
	cgn_timer_set(&a->drain.timer, a->engine_host.drain_timeout);
	if (a->direct_told)
		cgn_timer_set(&a->drain.direct_timer, DIRECT_WAIT);
	agent_changed(a);
	agent_drain_step(a);
}

/* ---- engines ---- */

/* Return an engine that must be ready before |e| is started, and is not; NULL: none. */
static const struct engine *engine_awaited(const struct agent *a, const struct engine *e)
{
	for (size_t i = 0; i < e->process.n_start_after; i++)
		for (size_t k = 0; k < a->n_engines; k++)
			if (strcmp(a->engines[k].name, e->process.start_after[i]) == 0 &&
				!engine_is_ready(&a->engines[k]))
				return &a->engines[k];
	return NULL;
}

/* Start the engines that waited for others (engine.start_after). */
static void engines_start_next(struct agent *a)
{
	char text[160];
	for (size_t i = 0; i < a->n_engines && !a->drain.on; i++) {
		struct engine *e = &a->engines[i];
		if (!engine_waits(e))
			continue;
		const struct engine *first = engine_awaited(a, e);
		if (first == NULL) {
			engine_wait_over(e);
			continue;
		}
		(void)snprintf(text, sizeof text, "waits for engine %s to be ready (start_after)",
			first->name);
		engine_trouble_set(e, text);
	}
}

static void on_engine_changed(void *user)
{
	struct agent *a = user;
	engines_start_next(a);
	if (!a->drain.on)
		wanted_step(&a->wanted);
	swap_step(&a->swap);
	agent_changed(user);
	agent_drain_step(user);
}

static void on_demand_changed(void *user)
{
	struct agent *a = user;
	swap_step(&a->swap);
	if (!a->drain.leaving)
		agent_changed(a);
}

/* The load changed: the energy from here on is that of others. */
static void load_changed(struct agent *a)
{
	const struct energy_load load = agent_energy_load(a);
	node_energy_load(&a->energy, &load, cgn_loop_now(a->loop));
	node_clocks_load(&a->clocks, &load);
	watch_load_changed(&a->watch);
}

static void on_load_changed(void *user)
{
	load_changed(user);
}

static void on_residency_changed(void *user)
{
	struct agent *a = user;
	watch_source_changed(&a->watch);
}

static void on_engine_stalled(void *user, struct engine *e)
{
	(void)user;
	relay_end_all(e, "the engine is stalled");
}

static uint32_t on_inflight_asked(const struct engine *e, struct cgn_str model)
{
	return relay_count(e, model);
}

static struct kvclient *on_store_asked(void *user)
{
	const struct agent *a = user;
	return a->store.client;
}

static void on_rewatch_asked(void *user)
{
	struct agent *a = user;
	node_store_rewatch(&a->store);
}

static void on_holdings_changed(void *user, uint64_t digest)
{
	struct agent *a = user;
	watch_digest_changed(&a->watch, digest);
}

static uint32_t smallest_block_bytes(const struct config *cfg)
{
	uint32_t least = 256;
	for (size_t i = 0; i < cfg->n_models; i++)
		if (cfg->models[i].block_bytes < least)
			least = cfg->models[i].block_bytes;
	return least;
}

/* Make the folder for the files of managed engines. Without it they run, but have no logs and cannot be found again. */
static void folder_make(struct agent *a, const struct config *cfg)
{
	struct cgn_err err = {0};
	bool any = false;
	for (size_t i = 0; i < cfg->n_engines; i++)
		any |= cfg->engines[i].managed;
	if (!any)
		return;
	int n = cfg->agent.engine_dir != NULL
		? snprintf(a->engine_dir, sizeof a->engine_dir, "%s", cfg->agent.engine_dir)
		: snprintf(a->engine_dir, sizeof a->engine_dir, "%s/engines/%s", cfg->cluster.state_dir,
			  a->node_id);
	cgn_rc rc = n > 0 && (size_t)n < sizeof a->engine_dir
		? disk_mkdirs(a->engine_dir, 0750, &err)
		: CGN_FAIL(&err, INVALID, "its path is too long");
	if (cgn_ok(rc) && access(a->engine_dir, W_OK) != 0)
		rc = CGN_FAIL(&err, STORAGE, "%s: %s", a->engine_dir, strerror(errno));
	if (cgn_ok(rc)) {
		a->engine_host.dir = a->engine_dir;
		return;
	}
	cgn_log(WARN, "agent.engine_dir_unusable", F_STR("why", err.msg),
		F_STR("then",
			"engines have no logs of their own, and end with this agent; set agent.engine_dir"));
}

static CGN_RC open_engines(struct agent *a, const struct config *cfg, struct cgn_err *err)
{
	static const struct engine_host_ops ops = {.changed = on_engine_changed,
		.load_changed = on_load_changed,
		.residency_changed = on_residency_changed,
		.demand_changed = on_demand_changed,
		.stalled = on_engine_stalled,
		.inflight = on_inflight_asked,
		.store = on_store_asked,
		.rewatch_store = on_rewatch_asked};
	if (cfg->n_engines == 0)
		return CGN_FAIL(err, INVALID, NO_ENGINE);
	if (cfg->n_engines > PROTO_MAX_ENGINES)
		return CGN_FAIL(err, INVALID, "%zu engines are configured, at most %d are possible",
			cfg->n_engines, PROTO_MAX_ENGINES);
	a->holdings = holdings_new(NODE_MAX_BLOCKS, on_holdings_changed, a);
	a->engine_host = (struct engine_host){.loop = a->loop,
		.dir = a->engine_host.dir,
		.telemetry = a->telemetry,
		.holdings = a->holdings,
		.block_bytes = smallest_block_bytes(cfg),
		.output_level = a->engine_host.output_level,
		.drain_timeout = a->engine_host.drain_timeout,
		.ops = &ops,
		.user = a};
	folder_make(a, cfg);
	a->engines = CGN_NEW_ARRAY(struct engine, cfg->n_engines);
	for (size_t i = 0; i < cfg->n_engines; i++) {
		a->n_engines = i + 1;
		CGN_TRY(engine_open(&a->engine_host, cfg, i, &a->engines[i], err));
	}
	return CGN_OK;
}

/* ---- the block store ---- */

static void on_store_ready(void *user, bool ready)
{
	struct agent *a = user;
	CGN_LIVE(a, AGENT_TAG);
	for (size_t i = 0; i < a->n_engines; i++)
		slotmgr_store_ready(a->engines[i].slots, ready);
}

static void on_store_changed(void *user, bool reset, const struct block_change *changes, size_t n)
{
	struct agent *a = user;
	CGN_LIVE(a, AGENT_TAG);
	for (size_t i = 0; i < a->n_engines; i++)
		slotmgr_store_changed(a->engines[i].slots, reset, changes, n);
}

static void on_store_address(void *user)
{
	agent_changed(user);
}

static const struct node_store_ops store_ops = {.ready = on_store_ready,
	.changed = on_store_changed,
	.address_changed = on_store_address};

/* ---- requests ---- */

static CGN_RC on_request_admit(void *user, struct cgn_err *err)
{
	const struct agent *a = user;
	if (a->drain.on)
		return CGN_FAIL(err, UNAVAILABLE, "node %s is draining", a->node_id);
	uint32_t inflight = a->relays.share.all.inflight + watch_direct(&a->watch, 0).inflight;
	if (inflight >= a->max_inflight)
		return CGN_FAIL(err, OVERLOADED,
			"node %s has %u requests in flight, as many as agent.max_inflight allows", a->node_id,
			inflight);
	return CGN_OK;
}

static struct engine *on_request_pick(void *user, const struct proto_facts *facts, struct cgn_err *err)
{
	return agent_pick(user, facts->engine, facts->model, err);
}

static bool on_wait_asked(void *user, const struct engine *e, char *why, size_t cap,
	struct engine_refusal *no)
{
	const struct agent *a = user;
	return !swap_refuses(&a->swap, e, why, cap, no);
}

static void on_request_done(void *user)
{
	on_load_changed(user);
	agent_drain_step(user);
}

static const struct relays_ops relay_ops = {.admit = on_request_admit,
	.pick = on_request_pick,
	.may_wait = on_wait_asked,
	.load_changed = on_load_changed,
	.request_done = on_request_done};

/* ---- watchers ---- */

static void on_watch_load(void *user, uint64_t router, Cognitora__V1__Load *out)
{
	agent_load(user, router, out);
}

static Cognitora__V1__ResidencySource on_watch_source(void *user)
{
	const struct agent *a = user;
	return engines_residency_source(a->engines, a->n_engines);
}

static uint64_t on_watch_stale_ms(void *user)
{
	const struct agent *a = user;
	return engines_stale_ms(a->engines, a->n_engines, cgn_loop_now(a->loop));
}

static bool on_energy_asked(void *user, Cognitora__V1__Energy *out, float *watts)
{
	struct agent *a = user;
	CGN_LIVE(a, AGENT_TAG);
	node_energy_tell(&a->energy, out, watts, cgn_loop_now(a->loop));
	return node_energy_speaks(&a->energy);
}

static void on_direct_changed(void *user, bool heard)
{
	struct agent *a = user;
	CGN_LIVE(a, AGENT_TAG);
	engine_direct_told(&a->engines[0], watch_direct(&a->watch, 0).inflight, heard);
	load_changed(a);
	agent_drain_step(a);
}

static void on_wanted_told(void *user, const Cognitora__V1__WantedModels *doc)
{
	struct agent *a = user;
	CGN_LIVE(a, AGENT_TAG);
	wanted_told(&a->wanted, doc);
}

static void on_pause_told(void *user, const Cognitora__V1__Pause *pause)
{
	struct agent *a = user;
	for (size_t i = 0; i < a->n_engines; i++)
		slotmgr_pause(a->engines[i].slots, pause->last, pause->p50_ms * CGN_MSEC,
			pause->p90_ms * CGN_MSEC);
}

static const struct watch_ops watch_ops = {.wanted_told = on_wanted_told,
	.pause_told = on_pause_told,
	.direct_changed = on_direct_changed,
	.energy = on_energy_asked,
	.load = on_watch_load,
	.source = on_watch_source,
	.stale_ms = on_watch_stale_ms};

/* ---- calls ---- */

static void on_generate(struct grpc_call *c, void *agent)
{
	struct agent *a = agent;
	relay_open(&a->relays, c);
}

static void on_watch(struct grpc_call *c, void *agent)
{
	struct agent *a = agent;
	watch_open(&a->watch, c);
}

static void on_scrape(struct grpc_call *c, void *agent)
{
	const struct agent *a = agent;
	scrape_answer(c, a->telemetry);
}

static CGN_RC open_server(struct agent *a, const struct config *cfg, struct cgn_err *err)
{
	static const struct grpc_method methods[] = {{PROTO_AGENT_GENERATE, on_generate,
							     ACTION_NODE_GENERATE},
		{PROTO_AGENT_WATCH, on_watch, ACTION_NODE_WATCH},
		{SCRAPE_PATH, on_scrape, ACTION_METRICS_READ}};
	uint64_t message = cfg->router.max_body + MESSAGE_SLACK;
	CGN_TRY(state_tls_server(cfg, &a->tls, err));
	svc_watch_certificate(a->svc, "security.cert_file", a->tls);
	const struct grpc_server_cfg server = {
		.listen = {.addr = cfg->agent.listen, .setting = "agent.listen", .tls = a->tls},
		.max_message = message < UINT32_MAX ? (uint32_t)message : UINT32_MAX,
		/* Above agent.max_inflight, which on_request_admit enforces with a reason and which a reload
		 * may raise. */
		.max_streams =
			(cfg->agent.max_inflight > MIN_STREAMS ? cfg->agent.max_inflight : MIN_STREAMS) +
			WATCH_MAX_WATCHERS,
		.methods = methods,
		.n_methods = CGN_COUNT(methods),
		.health = true,
		.budget = &a->budget,
		.admit = access_admit,
		.gate = svc_access(a->svc),
	};
	a->budget.setting = "agent.max_inflight_body";
	return grpc_server_new(a->loop, &server, a, &a->grpc, err);
}

/* ---- power ---- */

static void on_power_timer(struct cgn_timer *t)
{
	struct agent *a = CGN_CONTAINER(t, struct agent, power_timer);
	CGN_LIVE(a, AGENT_TAG);
	if (a->power_turn++ % POWER_TURNS == 0) {
		(void)powersrc_step(&a->power, cgn_loop_now(a->loop));
		struct power_sum sum;
		bool measured = node_power_sum(a->node_power, &sum);
		node_energy_read(&a->energy, &a->gpus, &a->power, measured ? &sum : NULL,
			cgn_loop_now(a->loop));
		watch_energy_changed(&a->watch);
	} else if (a->energy.known && a->relays.share.all.inflight > 0) {
		watch_energy_changed(&a->watch);
	}
	cgn_timer_set(&a->power_timer, POWER_INTERVAL / POWER_TURNS);
}

/* ---- start and stop ---- */

static void on_connected(void *user, bool connected, const char *why)
{
	const struct agent *a = user;
	cgn_log(DEBUG, "agent.membership", F_STR("node", a->node_id), F_BOOL("connected", connected),
		F_STR("why", why != NULL ? why : ""));
}

static CGN_RC open_all(struct agent *a, const struct config *cfg, struct cgn_err *err)
{
	static const struct state_announce_ops announce = {.on_connected = on_connected};
	CGN_TRY(state_node_id(cfg, a->node_id, sizeof a->node_id, err));
	a->insecure = cfg->security.insecure && !identity_is_local(cgn_str_of(cfg->agent.listen));
	wanted_open(&a->wanted, a->loop, cfg, a->node_id);
	swap_open(&a->swap, a->loop, a->telemetry, cfg);
	CGN_TRY(open_engines(a, cfg, err));
	CGN_TRY(node_store_open(&a->store, a->loop, cfg, &store_ops, a, err));
	CGN_TRY(open_server(a, cfg, err));
	/* The port is known only now: "listen = 127.0.0.1:0" is allowed. */
	CGN_TRY(state_advertised(cfg, cfg->agent.advertise, cfg->agent.listen, grpc_server_port(a->grpc),
		"agent.advertise", a->address, sizeof a->address, err));
	return state_announce_open(a->loop, cfg, a->telemetry, &announce, a, &a->announce, err);
}

static void set_reloadable(struct agent *a, const struct config *cfg)
{
	a->max_inflight = cfg->agent.max_inflight;
	a->engine_host.drain_timeout = cfg->agent.drain_timeout;
	a->engine_host.output_level = cfg->log.engine_output - CONFIG_LOG_DEBUG;
	a->budget.limit = cfg->agent.max_inflight_body;
}

static struct agent *agent_new(struct svc *s, const struct config *cfg)
{
	struct agent *a = CGN_NEW(struct agent);
	*a = (struct agent){.tag = AGENT_TAG,
		.svc = s,
		.loop = svc_loop(s),
		.telemetry = svc_telemetry(s),
		.role = cfg->agent.role - ROLE_BOTH,
		.relays = {.loop = svc_loop(s),
			.tracing = svc_tracing(s),
			.ops = &relay_ops,
			.user = a,
			.budget = &a->budget}};
	a->started_unix_ms = cgn_clock_wall_ms();
	set_reloadable(a, cfg);
	svc_memory_tune(s);
	cgn_arena_init(&a->scratch, SCRATCH_BYTES);
	watch_init(&a->watch, a->loop, &watch_ops, a);
	char powercap[200];
	(void)snprintf(powercap, sizeof powercap, "%s/" POWERSRC_POWERCAP, cfg->agent.sysfs);
	powersrc_init(&a->power, powercap);
	node_energy_init(&a->energy, a->telemetry, cgn_loop_now(a->loop));
	cgn_timer_init(&a->power_timer, a->loop, on_power_timer);
	cgn_timer_init(&a->drain.timer, a->loop, on_drain_timer);
	cgn_timer_init(&a->drain.direct_timer, a->loop, on_direct_timer);
	a->direct = cfg->agent.direct;
	if (!proc_host_id(a->host_id, sizeof a->host_id))
		a->host_id[0] = '\0';
	return a;
}

CGN_RC agent_start(struct svc *s, const struct config *cfg, void **state, struct cgn_err *err)
{
	struct agent *a = agent_new(s, cfg);
	cgn_rc rc = open_all(a, cfg, err);
	if (!cgn_ok(rc)) {
		void *take = a;
		agent_stop(&take);
		return rc;
	}
	a->watch.holdings = a->holdings;
	if (a->power.n > 0 || cfg->agent.nvml[0] != '\0')
		cgn_timer_set(&a->power_timer, 0);
	gpus_open(&a->gpus, a->loop, a->telemetry, cfg);
	node_clocks_open(&a->clocks, a->loop, a->telemetry, cfg, a->node_id);
	rc = node_power_open(a->loop, a->telemetry, a->node_id, cfg->agent.sysfs, &a->gpus, &a->node_power,
		err);
	if (!cgn_ok(rc)) {
		void *take = a;
		agent_stop(&take);
		return rc;
	}
	cgn_log(INFO, "agent.start", F_STR("node", a->node_id), F_STR("listen", cfg->agent.listen),
		F_STR("address", a->address), F_U64("engines", a->n_engines),
		F_U64("power_zones", a->power.n));
	*state = a;
	agent_changed(a);
	for (size_t i = 0; i < a->n_engines; i++)
		engine_start(&a->engines[i]);
	a->wanted.engines = a->engines;
	a->wanted.n_engines = a->n_engines;
	engines_start_next(a);
	wanted_step(&a->wanted);
	swap_begin(&a->swap, a->engines, a->n_engines);
	agent_changed(a);
	return CGN_OK;
}

static void certificate_refused(struct agent *a, const struct cgn_err *why)
{
	cgn_log(ERROR, "agent.tls_reload", F_STR("why", why->msg),
		F_STR("then", "the old certificate stays"));
	svc_reload_refused(a->svc, why->msg);
}

void agent_reload(void *state, const struct config *cfg)
{
	struct agent *a = state;
	struct cgn_err err = {0};
	CGN_LIVE(a, AGENT_TAG);
	set_reloadable(a, cfg);
	node_clocks_follow(&a->clocks, cfg);
	swap_follow(&a->swap, cfg);
	if (a->tls != NULL && !cgn_ok(tls_ctx_reload(a->tls, &err)))
		certificate_refused(a, &err);
	if (a->announce != NULL && !cgn_ok(state_announce_reload_tls(a->announce, &err)))
		certificate_refused(a, &err);
}

void agent_check(const struct config *cfg, struct svc_problems *out)
{
	struct cgn_err err;
	svc_check_cluster(out, cfg);
	if (cfg->n_engines == 0)
		svc_problem(out, CGN_FAIL(&err, INVALID, NO_ENGINE), &err);
	for (size_t i = 0; i < cfg->n_engines; i++)
		engine_check(cfg, &cfg->engines[i], out);
}

void agent_stop(void **take)
{
	struct agent *a = CGN_TAKE(take);
	if (a == NULL)
		return;
	CGN_LIVE(a, AGENT_TAG);
	a->drain.on = a->drain.leaving = true;
	swap_end(&a->swap);
	cgn_timer_cancel(&a->power_timer);
	node_power_close(&a->node_power);
	node_clocks_close(&a->clocks);
	gpus_close(&a->gpus);
	cgn_timer_cancel(&a->drain.timer);
	cgn_timer_cancel(&a->drain.direct_timer);
	grpc_server_free(&a->grpc);
	watch_fini(&a->watch);
	wanted_close(&a->wanted);
	for (size_t i = 0; i < a->n_engines; i++)
		engine_close(&a->engines[i]);
	node_store_close(&a->store);
	holdings_free(&a->holdings);
	state_announce_close(&a->announce);
	tls_ctx_free(&a->tls);
	proto_node_free(&a->node);
	cgn_arena_fini(&a->scratch);
	a->tag = 0;
	free(a->engines);
	free(a);
}
