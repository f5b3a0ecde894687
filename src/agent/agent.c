/* SPDX-License-Identifier: Apache-2.0 */
/* What the node is and what it tells of itself; which engine a request goes to; the end in good order. */
#include "agent/agent.h"

#include <stdlib.h>
#include <unistd.h>

#include "agent/run.h"
#include "base/log/log.h"
#include "joint/telemetry/scrape.h"

#define SCRATCH_BYTES  ((size_t)2 * 1024 * 1024)
#define POWER_INTERVAL CGN_SEC
#define LEAST_STREAMS  4096
#define MESSAGE_SLACK  ((uint64_t)1024 * 1024) /* beside the body: path, headers, digests */

/* ---- what the node is ---- */
static Cognitora__V1__Engine *engine_describe(struct agent *a, struct engine *e)
{
	Cognitora__V1__Engine *m = cgn_arena_get(&a->scratch, sizeof *m);
	char **models = cgn_arena_get(&a->scratch, (e->n_models + 1) * sizeof *models);
	if (m == NULL || models == NULL)
		return NULL;
	cognitora__v1__engine__init(m);
	for (size_t i = 0; i < e->n_models; i++)
		models[i] = cgn_arena_strz(&a->scratch, cgn_str_of(e->models[i]));
	m->name = e->name;
	m->kind = cgn_arena_strz(&a->scratch, cgn_str_of(config_enum_text(e->ops->kind)));
	m->models = models;
	m->n_models = e->n_models;
	m->ready = engine_is_ready(e);
	m->slots = e->load.slots;
	m->kv_blocks_total = e->load.kv_blocks_total;
	m->kv_block_tokens = e->load.kv_block_tokens;
	m->residency = e->residency_text;
	m->resume = cgn_arena_strz(&a->scratch, cgn_str_of(e->resume));
	return m->kind != NULL && m->resume != NULL ? m : NULL;
}

/* A node in the scratch arena; NULL when that is too small. */
static Cognitora__V1__Node *describe(struct agent *a)
{
	cgn_arena_reset(&a->scratch);
	Cognitora__V1__Node *n = cgn_arena_get(&a->scratch, sizeof *n);
	Cognitora__V1__Engine **engines = cgn_arena_get(&a->scratch, a->n_engines * sizeof(void *));
	char *version = cgn_arena_strz(&a->scratch, CGN_STR(CGN_VERSION));
	if (n == NULL || engines == NULL || version == NULL)
		return NULL;
	cognitora__v1__node__init(n);
	for (size_t i = 0; i < a->n_engines; i++)
		if ((engines[i] = engine_describe(a, &a->engines[i])) == NULL)
			return NULL;
	n->id = a->node_id;
	n->address = a->address;
	n->role = (Cognitora__V1__Role)a->role; /* numbered alike: both, prefill, decode */
	n->engines = engines;
	n->n_engines = a->n_engines;
	n->draining = a->draining;
	n->version = version;
	n->started_unix_ms = a->started_unix_ms;
	if (a->kv_quic[0] == '\0')
		return n;
	n->kv = cgn_arena_get(&a->scratch, sizeof *n->kv);
	if (n->kv == NULL)
		return NULL;
	cognitora__v1__kv_store__init(n->kv);
	n->kv->quic_address = a->kv_quic;
	n->kv->rack = a->kv_rack;
	n->kv->region = a->kv_region;
	return n;
}

void agent_changed(struct agent *a)
{
	CGN_LIVE(a, AGENT_TAG);
	const Cognitora__V1__Node *now = describe(a);
	if (now == NULL || a->announce == NULL || (a->node != NULL && proto_node_equal(now, a->node)))
		return;
	Cognitora__V1__Node *copy = proto_node_dup(now);
	if (copy == NULL) /* the next change tells it */
		return;
	proto_node_free(&a->node);
	a->node = copy;
	grpc_server_serving(a->grpc, !a->draining && agent_is_ready(a));
	watch_node_changed(a);
	if (!a->leaving)
		state_announce_update(a->announce, a->node);
}

bool agent_is_ready(const struct agent *a)
{
	for (size_t i = 0; i < a->n_engines; i++)
		if (engine_is_ready(&a->engines[i]))
			return true;
	return false;
}

void agent_engine_changed(struct engine *e)
{
	struct agent *a = e->agent;
	agent_changed(a);
	agent_drain_step(a);
}

/* ---- how it is doing ---- */
void agent_load(const struct agent *a, uint64_t router, Cognitora__V1__Load *out)
{
	struct share_row yours = share_of(&a->share, router);
	cognitora__v1__load__init(out);
	out->shared = true;
	out->inflight = a->share.all.inflight;
	out->queued_tokens = a->share.all.queued_tokens;
	out->decoding = a->share.all.decoding;
	out->yours = yours.inflight;
	out->yours_queued_tokens = yours.queued_tokens;
	out->yours_decoding = yours.decoding;
	out->requests_total = a->requests_total;
	out->power_headroom = (float)a->power.headroom;
	for (size_t i = 0; i < a->n_engines; i++) {
		const struct engine_load *l = &a->engines[i].load;
		out->running += l->running;
		out->waiting += l->waiting;
		out->foreign += a->engines[i].foreign;
		if ((float)l->kv_usage > out->kv_usage)
			out->kv_usage = (float)l->kv_usage;
	}
}

static void on_power(struct cgn_timer *t)
{
	struct agent *a = CGN_CONTAINER(t, struct agent, power_timer);
	CGN_LIVE(a, AGENT_TAG);
	(void)powersrc_step(&a->power, cgn_loop_now(a->loop));
	watch_load_changed(a);
	cgn_timer_set(&a->power_timer, POWER_INTERVAL);
}

/* ---- which engine ---- */
static struct engine *by_name(struct agent *a, struct cgn_str name)
{
	for (size_t i = 0; i < a->n_engines; i++)
		if (cgn_str_is(name, a->engines[i].name))
			return &a->engines[i];
	return NULL;
}

/* Of several that serve the model, the one with the least to do. */
static struct engine *by_model(struct agent *a, struct cgn_str model, const struct engine **unready)
{
	struct engine *best = NULL;
	for (size_t i = 0; i < a->n_engines; i++) {
		struct engine *e = &a->engines[i];
		if (model.n > 0 && e->models_known && !engine_serves(e, model))
			continue;
		if (!engine_is_ready(e))
			*unready = e;
		else if (best == NULL || e->inflight < best->inflight)
			best = e;
	}
	return best;
}

static struct engine *not_ready(const struct engine *e, struct cgn_err *err)
{
	(void)CGN_FAIL(err, UNAVAILABLE, "engine %s is %s: %s", e->name, supervise_state_name(e->sup.state),
		e->trouble[0] != '\0' ? e->trouble : "its models are not known yet");
	return NULL;
}

struct engine *agent_pick(struct agent *a, struct cgn_str name, struct cgn_str model, struct cgn_err *err)
{
	const struct engine *unready = NULL;
	if (name.n > 0) {
		struct engine *e = by_name(a, name);
		if (e == NULL)
			(void)CGN_FAIL(err, NOT_FOUND, "node %s has no engine \"%.*s\"", a->node_id,
				(int)(name.n < 64 ? name.n : 64), name.p);
		return e == NULL || engine_is_ready(e) ? e : not_ready(e, err);
	}
	struct engine *best = by_model(a, model, &unready);
	if (best != NULL)
		return best;
	if (unready != NULL)
		return not_ready(unready, err);
	(void)CGN_FAIL(err, NOT_FOUND, "no engine of node %s serves model \"%.*s\"", a->node_id,
		(int)(model.n < 200 ? model.n : 200), model.p);
	return NULL;
}

static void nothing_more(struct grpc_call *c, void *user, const struct cgn_err *why)
{
	(void)c;
	(void)user;
	(void)why;
}

void agent_refuse_call(struct grpc_call *c, enum cgn_code code, const char *sentence)
{
	static const struct grpc_call_ops ops = {.on_close = nothing_more};
	grpc_call_take(c, &ops, NULL);
	grpc_finish(c, code, sentence);
}

/* ---- the end ---- */
void agent_request_done(struct agent *a)
{
	watch_load_changed(a);
	agent_drain_step(a);
}

static void on_left(void *arg)
{
	struct agent *a = arg;
	CGN_LIVE(a, AGENT_TAG);
	a->left = true;
	agent_drain_step(a);
}

static bool all_stopped(const struct agent *a)
{
	for (size_t i = 0; i < a->n_engines; i++)
		if (!engine_is_stopped(&a->engines[i]))
			return false;
	return true;
}

/* First what runs ends, then routers are told to forget us, then the engines stop. */
static void leave(struct agent *a)
{
	a->leaving = true;
	cgn_log(INFO, "agent.leave", F_STR("node", a->node_id));
	watch_end_all(a, "the node has drained and goes away");
	state_announce_close(&a->announce, on_left, a);
	for (size_t i = 0; i < a->n_engines; i++)
		engine_stop(&a->engines[i]);
}

void agent_drain_step(struct agent *a)
{
	if (!a->draining)
		return;
	if (!a->leaving && a->share.all.inflight == 0)
		leave(a);
	if (a->left && all_stopped(a)) {
		a->left = false; /* once */
		svc_drained(a->svc);
	}
}

void agent_drain(void *state)
{
	struct agent *a = state;
	CGN_LIVE(a, AGENT_TAG);
	a->draining = true;
	agent_changed(a);
	agent_drain_step(a);
}

void agent_stop(void **take)
{
	struct agent *a = *take;
	*take = NULL;
	if (a == NULL)
		return;
	CGN_LIVE(a, AGENT_TAG);
	a->draining = a->leaving = true;
	cgn_timer_cancel(&a->power_timer);
	grpc_server_free(&a->grpc);
	watch_fini(a);
	for (size_t i = 0; i < a->n_engines; i++)
		engine_close(&a->engines[i]);
	kv_close(a);
	holdings_free(&a->holdings);
	if (a->announce != NULL)
		state_announce_close(&a->announce, NULL, NULL);
	tls_ctx_free(&a->tls);
	proto_node_free(&a->node);
	cgn_arena_fini(&a->scratch);
	a->tag = 0;
	free(a->engines);
	free(a);
}

/* ---- the beginning ---- */
/* Known only once the port is: "listen = 127.0.0.1:0" is allowed. */
static CGN_RC set_address(struct agent *a, const struct config *cfg, struct cgn_err *err)
{
	return state_advertised(cfg, cfg->agent.advertise, cfg->agent.listen, grpc_server_port(a->grpc),
		"agent.advertise", a->address, sizeof a->address, err);
}

static void on_scrape(struct grpc_call *c, void *server_user)
{
	scrape_answer(c, ((struct agent *)server_user)->telemetry);
}

static CGN_RC serve(struct agent *a, const struct config *cfg, struct cgn_err *err)
{
	static const struct grpc_method methods[] = {{PROTO_AGENT_GENERATE, relay_on_call},
		{PROTO_AGENT_WATCH, watch_on_call}, {SCRAPE_PATH, on_scrape}};
	uint64_t message = cfg->router.max_body + MESSAGE_SLACK;
	CGN_TRY(state_tls_server(cfg, &a->tls, err));
	svc_watch_certificate(a->svc, "security.cert_file", a->tls);
	const struct grpc_server_cfg server = {
		.listen = {.addr = cfg->agent.listen, .setting = "agent.listen", .tls = a->tls},
		.max_message = message < UINT32_MAX ? (uint32_t)message : UINT32_MAX,
		/* Not the limit: that is admit's, says why, and may grow on a reload. */
		.max_streams =
			(cfg->agent.max_inflight > LEAST_STREAMS ? cfg->agent.max_inflight : LEAST_STREAMS) +
			AGENT_MAX_WATCHERS,
		.methods = methods,
		.n_methods = CGN_COUNT(methods),
		.health = true,
	};
	return grpc_server_new(a->loop, &server, a, &a->grpc, err);
}

static uint32_t least_block_bytes(const struct config *cfg)
{
	uint32_t least = 256;
	for (size_t i = 0; i < cfg->n_models; i++)
		if (cfg->models[i].block_bytes < least)
			least = cfg->models[i].block_bytes;
	return least;
}

static CGN_RC open_engines(struct agent *a, const struct config *cfg, struct cgn_err *err)
{
	if (cfg->n_engines == 0)
		return CGN_FAIL(err, INVALID,
			"no engine is configured: cgn-agent needs an [engine] table, or several of [[engines]]");
	if (cfg->n_engines > PROTO_MAX_ENGINES)
		return CGN_FAIL(err, INVALID, "%zu engines are configured, at most %d are possible",
			cfg->n_engines, PROTO_MAX_ENGINES);
	a->engines = calloc(cfg->n_engines, sizeof *a->engines);
	if (a->engines == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for %zu engines", cfg->n_engines);
	for (size_t i = 0; i < cfg->n_engines; i++) {
		a->n_engines = i + 1;
		CGN_TRY(engine_open(a, cfg, i, &a->engines[i], err));
	}
	return CGN_OK;
}

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
	CGN_TRY(residency_report_open(a, err));
	CGN_TRY(open_engines(a, cfg, err));
	CGN_TRY(kv_open(a, cfg, err));
	CGN_TRY(serve(a, cfg, err));
	CGN_TRY(set_address(a, cfg, err));
	return state_announce_open(a->loop, cfg, a->telemetry, &announce, a, &a->announce, err);
}

static void set_live(struct agent *a, const struct config *cfg)
{
	a->max_inflight = cfg->agent.max_inflight;
}

CGN_RC agent_start(struct svc *s, const struct config *cfg, void **state, struct cgn_err *err)
{
	struct agent *a = calloc(1, sizeof *a);
	if (a == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for the agent");
	*a = (struct agent){.tag = AGENT_TAG,
		.svc = s,
		.telemetry = svc_telemetry(s),
		.loop = svc_loop(s),
		.role = cfg->agent.role - ROLE_BOTH};
	a->started_unix_ms = cgn_clock_wall_ms();
	a->block_bytes = least_block_bytes(cfg);
	set_live(a, cfg);
	cgn_arena_init(&a->scratch, SCRATCH_BYTES);
	watch_init(a);
	powersrc_init(&a->power, POWERSRC_ROOT);
	cgn_timer_init(&a->power_timer, a->loop, on_power);
	cgn_rc rc = open_all(a, cfg, err);
	if (!cgn_ok(rc)) {
		void *take = a;
		agent_stop(&take);
		return rc;
	}
	if (a->power.n > 0)
		cgn_timer_set(&a->power_timer, 0);
	cgn_log(INFO, "agent.start", F_STR("node", a->node_id), F_STR("listen", cfg->agent.listen),
		F_STR("address", a->address), F_U64("engines", a->n_engines),
		F_U64("power_zones", a->power.n));
	*state = a;
	agent_changed(a);
	for (size_t i = 0; i < a->n_engines; i++)
		engine_start(&a->engines[i]);
	return CGN_OK;
}

void agent_reload(void *state, const struct config *cfg)
{
	struct agent *a = state;
	struct cgn_err err = {0};
	CGN_LIVE(a, AGENT_TAG);
	set_live(a, cfg);
	if (a->tls != NULL && !cgn_ok(tls_ctx_reload(a->tls, &err)))
		cgn_log(ERROR, "agent.tls_reload", F_STR("why", err.msg),
			F_STR("then", "the old certificate stays"));
	if (a->announce != NULL && !cgn_ok(state_announce_reload_tls(a->announce, &err)))
		cgn_log(ERROR, "agent.tls_reload", F_STR("why", err.msg),
			F_STR("then", "the old certificate stays"));
}
