/* SPDX-License-Identifier: Apache-2.0 */
/* cgn-router: OpenAI-compatible gateway that puts each request on the replica that can answer it soonest. */
#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/log/log.h"
#include "joint/daemon/page/page.h"
#include "router/answer/batch/runner.h"
#include "router/answer/quote/quote.h"
#include "router/answer/selection/reservations.h"
#include "router/control/control/access.h"
#include "router/control/control/batching.h"
#include "router/control/control/enginenodes.h"
#include "router/control/control/heartbeat.h"
#include "router/control/control/isolation.h"
#include "router/control/control/keys.h"
#include "router/control/control/models.h"
#include "router/control/control/pause.h"
#include "router/control/control/price.h"
#include "router/control/control/self.h"
#include "router/control/control/summaries.h"
#include "router/control/control/watch.h"
#include "router/control/scaler/scaler.h"
#include "router/control/service/service.h"
#include "router/request/account/sessions.h"
#include "router/request/account/usage.h"
#include "router/request/admission/admission.h"
#include "router/request/calibration/calibration.h"
#include "router/request/limit/budgets.h"
#include "router/shared/age/age.h"
#include "router/shared/arms/arms.h"
#include "router/shared/enginenodes/enginenodes.h"
#include "router/shared/filestore/filestore.h"
#include "router/shared/misfit/misfit.h"
#include "router/shared/peers/peers.h"
#include "router/shared/picker/picker.h"
#include "router/shared/pregate/pregate.h"
#include "router/shared/quotas/quotas.h"
#include "router/shared/rules/tokenizer_set.h"

#define MAX_WORKERS 256
/* 4 MiB when all are in use: two for each of 65,536 keys that are busy at a time, plus tenants. */
#define LIMIT_BUCKETS ((size_t)1 << 18)

static const char *const http_alpn[] = {"h2", "http/1.1", NULL};

/* ---- TLS ---- */

/* Let |*out| be the TLS of a port with the certificate and key of |section|; NULL: it has none. */
static CGN_RC port_tls(const char *section, const char *cert, const char *key, struct tls_ctx **out,
	struct cgn_err *err)
{
	if (cert == NULL && key == NULL)
		return CGN_OK;
	if (cert == NULL || key == NULL)
		return CGN_FAIL(err, INVALID,
			"%s.tls_cert_file and %s.tls_key_file go together: one of them is not set", section,
			section);
	struct tls_cfg c = {.server = true, .cert_file = cert, .key_file = key, .alpn = http_alpn};
	return tls_ctx_new(&c, out, err);
}

/* ---- the endpoint picker ---- */

static CGN_RC picker_check(const struct config *cfg, struct cgn_err *err)
{
	if (cfg->router.picker.listen[0] != '\0' && !cfg->router.selection.enabled)
		return CGN_FAIL(err, INVALID, "router.picker.listen needs router.selection.enabled = true");
	for (size_t i = 0; i < cfg->router.picker.objectives.n; i++)
		CGN_TRY(picker_objective_check(cfg->router.picker.objectives.v[i], err));
	return CGN_OK;
}

/* Open the port of the endpoint picker, once workers listen. */
static CGN_RC picker_open(struct router *r, struct cgn_err *err)
{
	const struct config *cfg = r->cfg;
	struct tls_ctx *tls = NULL;
	struct router_self self;
	CGN_TRY(picker_check(cfg, err));
	if (cfg->router.picker.listen[0] == '\0')
		return CGN_OK;
	CGN_TRY(port_tls("router.picker", cfg->router.picker.tls_cert_file, cfg->router.picker.tls_key_file,
		&tls, err));
	cgn_rc rc = router_self_find(r, &self, err);
	if (cgn_ok(rc)) {
		const struct picker_cfg picker = {.listen = {.addr = cfg->router.picker.listen,
							  .setting = "router.picker.listen",
							  .tls = tls},
			.addr = self.addr,
			.tls = self.tls,
			.server_name = self.name[0] != '\0' ? self.name : NULL,
			.max_body = cfg->router.max_body,
			.max_inflight = cfg->router.max_inflight_body,
			.objectives = (const char *const *)cfg->router.picker.objectives.v,
			.n_objectives = cfg->router.picker.objectives.n,
			.telemetry = r->shared.telemetry};
		rc = picker_new(&picker, &r->picker, err);
		tls_ctx_free(&self.tls);
		if (cgn_ok(rc))
			svc_watch_certificate(r->svc, "router.picker.tls_cert_file", tls);
	}
	r->ports.picker_tls = tls;
	return rc;
}

/* ---- --check ---- */

static void check_tokenizers(const struct config *cfg, struct svc_problems *out)
{
	for (size_t i = 0; i < cfg->n_models; i++) {
		struct gw_tokenizer_set *k = NULL;
		struct cgn_err err;
		if (gw_reads_tokenizer(&cfg->models[i]))
			svc_problem(out, gw_tokenizer_set_load(&cfg->models[i], &k, &err), &err);
		gw_tokenizer_set_unref(&k);
	}
}

static void check_peers(const struct config *cfg, struct svc_problems *out)
{
	struct gw_peers *peers = NULL;
	struct cgn_err err;
	svc_problem(out, gw_peers_open(cfg, &peers, &err), &err);
	gw_peers_close(&peers);
}

static void check_cascade(const struct config *cfg, struct svc_problems *out)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf cost = {.n = 0};
	cascade_cost_put(cfg, &cost);
	svc_remark(out, cgn_buf_view(&cost));
}

static void router_check(const struct config *cfg, struct svc_problems *out)
{
	struct gw_store_cfg store;
	struct cgn_err err;
	const struct tls_cfg gateway = {.server = true,
		.cert_file = cfg->router.tls_cert_file,
		.key_file = cfg->router.tls_key_file};
	const struct tls_cfg picker = {.server = true,
		.cert_file = cfg->router.picker.tls_cert_file,
		.key_file = cfg->router.picker.tls_key_file};
	const struct tls_cfg redis = {.ca_file = cfg->router.rate_limit.redis_ca_file};
	svc_check_cluster(out, cfg);
	svc_check_tls(out, "router.tls_", &gateway);
	svc_check_tls(out, "router.picker.tls_", &picker);
	svc_problem(out, picker_check(cfg, &err), &err);
	if (router_wants_keys(cfg))
		svc_problem(out, router_keys_check(cfg, &err), &err);
	svc_problem(out, router_isolation_check(cfg, &err), &err);
	svc_problem(out, router_power_check(cfg, &err), &err);
	check_tokenizers(cfg, out);
	check_peers(cfg, out);
	check_cascade(cfg, out);
	engine_nodes_check(cfg, out);
	svc_problem(out, gw_hook_rules_check(cfg, &err), &err);
	svc_problem(out, gw_extra_routes_check(cfg, &err), &err);
	size_t before = out->n;
	if (cfg->router.rate_limit.redis_url != NULL)
		svc_check_tls(out, "router.rate_limit.redis_", &redis);
	if (out->n > before)
		return; /* The next check would fail for the same reason. */
	svc_problem(out, gw_store_cfg(cfg, &store, &err), &err);
	gw_store_cfg_fini(&store);
}

/* ---- ports ---- */

static struct http_server_cfg http_cfg(const struct router *r, const char *addr)
{
	const struct config *cfg = r->cfg;
	return (struct http_server_cfg){
		.listen = {.addr = addr,
			.setting = "router.listen",
			.tls = r->ports.http_tls,
			.reuse_port = true,
			.keep = true,
			.max_conns = cfg->router.max_connections},
		.head_timeout = cfg->router.head_timeout,
		.body_timeout = cfg->router.body_timeout,
		.body_rate = cfg->router.body_rate != 0 ? cfg->router.body_rate : HTTP_ANY_RATE,
		.idle_timeout = cfg->router.idle_timeout,
		.write_timeout = cfg->router.write_timeout,
	};
}

static size_t worker_count(const struct config *cfg)
{
	long cores = sysconf(_SC_NPROCESSORS_ONLN);
	size_t n =
		cfg->router.worker_threads > 0 ? cfg->router.worker_threads : (size_t)(cores > 0 ? cores : 1);
	return n < MAX_WORKERS ? n : MAX_WORKERS;
}

/* Open the workers. With port 0 the kernel chooses a port for the first worker, and the others use the
 * same. */
static CGN_RC workers_open(struct router *r, struct cgn_err *err)
{
	char addr[300];
	size_t want = worker_count(r->cfg);
	(void)cgn_str_copyz(addr, sizeof addr, cgn_str_of(r->cfg->router.listen));
	r->workers = CGN_NEW_ARRAY(struct gw_worker *, want);
	for (size_t i = 0; i < want; i++) {
		struct gw_worker_cfg cfg = {.index = (unsigned)i,
			.shared = &r->shared,
			.store = &r->store,
			.http = http_cfg(r, addr),
			.prompt_cache = r->cfg->router.prompt_cache / want,
			.explain = r->cfg->router.explain_size / want};
		CGN_TRY(gw_worker_new(&cfg, r->published.view, r->published.rules, &r->workers[i], err));
		r->n_workers++;
		char *colon = strrchr(addr, ':');
		if (i == 0 && colon != NULL && strcmp(colon, ":0") == 0)
			(void)snprintf(colon, sizeof addr - (size_t)(colon - addr), ":%u",
				http_server_port(r->workers[0]->server));
	}
	return CGN_OK;
}

/* Open the ports of the peers on each worker. */
static CGN_RC gates_open(struct router *r, struct cgn_err *err)
{
	for (size_t i = 0; r->shared.peers != NULL && i < r->shared.peers->n; i++) {
		struct gw_peer *p = &r->shared.peers->v[i];
		if (p->listen == NULL)
			continue;
		struct http_server_cfg http = http_cfg(r, p->listen);
		http.listen.setting = "peers.NAME.listen";
		http.listen.tls = p->gate;
		for (size_t k = 0; k < r->n_workers; k++)
			CGN_TRY(gw_worker_gate(r->workers[k], p, &http, err));
	}
	return CGN_OK;
}

static CGN_RC grpc_open(struct router *r, struct cgn_err *err)
{
	struct grpc_server_cfg cfg = {
		.listen = {.addr = r->cfg->router.listen_grpc,
			.setting = "router.listen_grpc",
			.keep = true,
			.tls = r->ports.grpc_tls},
		.methods = router_methods,
		.n_methods = router_n_methods,
		.admit = access_admit,
		.gate = svc_access(r->svc),
		.health = true,
	};
	CGN_TRY(grpc_server_new(r->loop, &cfg, r, &r->ports.grpc, err));
	grpc_server_serving(r->ports.grpc, true);
	return router_join_open(r, err);
}

/* ---- svc ---- */

/* Free the objects that workers and the control loop shared. */
static void shared_close(struct router *r)
{
	cluster_view_unref(&r->published.view);
	gw_rules_unref(&r->published.rules);
	cluster_free(&r->members.cluster);
	kvindex_free(&r->shared.choice.index);
	route_record_free(&r->shared.choice.record);
	prompttail_free(&r->shared.tails);
	free(r->shared.tallies);
	gw_misfits_free(&r->shared.misfits);
	rate_table_free(&r->shared.limits);
	gw_budgets_close(&r->shared.budgets);
	gw_peers_close(&r->shared.peers);
	gw_usage_close(&r->shared.usage);
	gw_age_close(&r->shared.age);
	gw_sessions_close(&r->shared.sessions);
	gw_reservations_close(&r->shared.reservations);
	gw_quotas_close(&r->shared.quotas);
	gw_quotes_close(&r->shared.quotes);
	gw_arms_close(&r->shared.arms);
	gw_store_cfg_fini(&r->store);
	hotprefix_free(&r->shared.choice.hotprefix);
	transfer_free(&r->shared.choice.transfer);
	energy_board_free(&r->shared.choice.energy);
	pending_free(&r->shared.choice.pending);
}

static void router_stop(void **take)
{
	struct router *r = CGN_TAKE(take);
	if (r == NULL)
		return;
	CGN_LIVE(r, ROUTER_TAG);
	if (r->shared.files != NULL)
		filestore_stop(r->shared.files);
	batch_runner_free(&r->batch);
	gw_calibration_asker_free(&r->calibration);
	picker_free(&r->picker);
	for (size_t i = 0; i < r->n_workers; i++)
		gw_worker_free(&r->workers[i]);
	free(r->workers);
	gw_calibrations_close(&r->shared.calibrations);
	gw_pregate_close(&r->shared.pregate);
	filestore_close(&r->shared.files);
	batches_close(&r->shared.batches);
	gw_admission_close(&r->shared.admission);
	router_summaries_close(r);
	router_heartbeat_close(r);
	router_control_close(r);
	router_key_use_close(r);
	router_keys_close(r);
	router_access_close(r);
	router_price_close(r);
	router_power_close(r);
	for (uint16_t i = 0; i < ROUTE_MAX_NODES; i++)
		router_watch_close(r, i);
	engine_nodes_close(&r->members.engine_nodes);
	state_watch_close(&r->members.state);
	router_scaler_close(&r->scaler); /* After the orders that the state backend works on. */
	pb_free(&r->wanted.doc);
	grpc_server_free(&r->ports.grpc);
	router_join_close(r);
	cgn_buf_fini(&r->invites);
	http_client_free(&r->ports.playground);
	router_models_close(r);
	shared_close(r);
	tls_ctx_free(&r->ports.http_tls);
	tls_ctx_free(&r->ports.picker_tls);
	tls_ctx_free(&r->ports.grpc_tls);
	tls_ctx_free(&r->shared.agent_tls);
	r->tag = 0;
	free(r);
}

static void id_make(struct router *r)
{
	char host[128] = "router";
	(void)gethostname(host, sizeof host - 1);
	(void)cgn_str_copyz(r->machine, sizeof r->machine, cgn_str_of(host));
	(void)snprintf(r->id, sizeof r->id, "%s/%ld", host, (long)getpid());
	cgn_random(&r->shared.instance, sizeof r->shared.instance);
	r->shared.instance |= 1;
	r->shared.workers = (uint32_t)worker_count(r->cfg);
	if (!proc_host_id(r->shared.host_id, sizeof r->shared.host_id))
		r->shared.host_id[0] = '\0';
}

static CGN_RC kvindex_open(struct router *r, struct cgn_err *err)
{
	struct kvindex_cfg cfg = {.max_bytes = r->cfg->router.index_size,
		.max_readers = (unsigned)worker_count(r->cfg)};
	size_t least = kvindex_least_bytes(cfg.max_readers);
	cgn_random(&cfg.seed, sizeof cfg.seed);
	if (cfg.max_bytes < least)
		return CGN_FAIL(err, INVALID, "router.index_size: %zu bytes, %u workers need at least %zu",
			cfg.max_bytes, cfg.max_readers, least);
	return kvindex_new(&cfg, &r->shared.choice.index, err);
}

static CGN_RC budgets_open(struct router *r, struct cgn_err *err)
{
	char path[PATH_MAX];
	CGN_TRY(router_state_path(r, "budgets", path, err));
	r->shared.budgets = gw_budgets_open(r->loop, path);
	CGN_TRY(router_state_path(r, "age", path, err));
	r->shared.age = gw_age_open(r->loop, path);
	CGN_TRY(router_state_path(r, "usage", path, err));
	r->shared.usage = gw_usage_open(r->loop, path, r->shared.age,
		&(struct gw_usage_budgets){gw_budgets_digest(r->shared.budgets), gw_budgets_spend,
			r->shared.budgets});
	gw_budgets_journal(r->shared.budgets, r->shared.usage);
	return CGN_OK;
}

static CGN_RC scaler_load(struct router *r, struct cgn_err *err)
{
	char path[PATH_MAX];
	CGN_TRY(router_state_path(r, "autoscaler", path, err));
	router_scaler_load(r->scaler, path);
	CGN_TRY(router_state_path(r, "scaler-cordons", path, err));
	router_scaler_cordons(r->scaler, path);
	CGN_TRY(router_state_path(r, "power", path, err));
	router_power_open(r, path);
	return CGN_OK;
}

static CGN_RC keys_open(struct router *r, struct cgn_err *err)
{
	char path[PATH_MAX];
	CGN_TRY(router_keys_open(r, err));
	CGN_TRY(router_state_path(r, "key-use", path, err));
	router_key_use_open(r, path);
	return CGN_OK;
}

static bool calibration_is_on(const struct router *r)
{
	return r->cfg->router.cascade.enabled && r->cfg->router.cascade.calibration_share > 0;
}

static void cascade_cost_log(const struct router *r)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf cost = {.n = 0};
	cascade_cost_put(r->cfg, &cost);
	if (cost.n > 0)
		cgn_log(INFO, "cascade.cost", F_STRN("what", cgn_buf_view(&cost)));
}

static CGN_RC calibrations_open(struct router *r, struct cgn_err *err)
{
	char path[PATH_MAX];
	r->shared.calibrations = gw_calibrations_open(r->shared.telemetry, r->cfg->router.cascade.judge_model,
		r->cfg->router.cascade.judge_similarity);
	CGN_TRY(router_state_path(r, "cascade", path, err));
	gw_calibrations_keep(r->shared.calibrations, r->loop, path);
	return CGN_OK;
}

static CGN_RC pregate_open(struct router *r, struct cgn_err *err)
{
	char path[PATH_MAX];
	CGN_TRY(router_state_path(r, "cascade-rates", path, err));
	r->shared.pregate = gw_pregate_open(r->loop, path);
	return CGN_OK;
}

static void reservations_open(struct router *r)
{
	const struct gw_reservations_cfg cfg = {.max = r->cfg->router.selection.max,
		.lease = r->cfg->router.selection.lease,
		.telemetry = r->shared.telemetry,
		.quotas = r->shared.quotas};
	if (r->cfg->router.selection.enabled)
		r->shared.reservations = gw_reservations_open(&cfg);
}

static CGN_RC router_open(struct router *r, struct cgn_err *err)
{
	CGN_TRY(port_tls("router", r->cfg->router.tls_cert_file, r->cfg->router.tls_key_file,
		&r->ports.http_tls, err));
	CGN_TRY(state_tls_server(r->cfg, &r->ports.grpc_tls, err));
	CGN_TRY(state_tls_client(r->cfg, &r->shared.agent_tls, err));
	r->shared.agent_name = r->cfg->security.node_name;
	svc_watch_certificate(r->svc, "router.tls_cert_file", r->ports.http_tls);
	svc_watch_certificate(r->svc, "security.cert_file", r->ports.grpc_tls);
	CGN_TRY(router_state_lock(r, err));
	r->members.cluster = cluster_new();
	r->shared.choice.stats = r->members.cluster->stats;
	r->shared.tallies = CGN_NEW_ARRAY(struct outlier_tally, CLUSTER_STATS);
	r->shared.misfits = gw_misfits_new();
	CGN_TRY(kvindex_open(r, err));
	CGN_TRY(route_record_new(r->cfg->router.record_size, &r->shared.choice.record, err));
	r->shared.choice.turns = &r->shared.turns;
	r->shared.choice.pending = pending_new(PENDING_BYTES);
	r->shared.choice.hotprefix = hotprefix_new(HOTPREFIX_BYTES);
	r->shared.choice.transfer = transfer_new();
	r->shared.choice.energy = energy_board_new(ROUTE_MAX_NODES);
	CGN_TRY(prompttail_new(r->cfg->router.record_size / 8, &r->shared.tails, err));
	cgn_random(&r->shared.limit_seed, sizeof r->shared.limit_seed);
	CGN_TRY(gw_store_cfg(r->cfg, &r->store, err));
	r->shared.limits = rate_table_new(LIMIT_BUCKETS);
	r->shared.quotas = gw_quotas_open(r->shared.telemetry);
	r->shared.quotes = gw_quotes_open(r->shared.telemetry);
	r->shared.arms = gw_arms_open();
	CGN_TRY(budgets_open(r, err));
	CGN_TRY(gw_peers_open(r->cfg, &r->shared.peers, err));
	const struct gw_sessions_cfg sessions = {r->cfg->router.sessions, r->loop, router_pause_tell, r};
	if (sessions.max > 0)
		CGN_TRY(gw_sessions_open(&sessions, &r->shared.sessions, err));
	reservations_open(r);
	CGN_TRY(pregate_open(r, err));
	cascade_cost_log(r);
	if (calibration_is_on(r))
		CGN_TRY(calibrations_open(r, err));
	CGN_TRY(router_access_open(r, err));
	CGN_TRY(keys_open(r, err));
	CGN_TRY(router_isolation_load(r, err));
	CGN_TRY(router_rules_load(r, err));
	CGN_TRY(scaler_load(r, err));
	CGN_TRY(cluster_view_new(r->members.cluster, gw_rules_name_of, r->published.rules, &r->published.view,
		err));
	r->shared.admission = gw_admission_open(r->loop, &r->shared, r->published.rules,
		r->members.cluster->stats, r->published.view, r->started);
	CGN_TRY(router_batches_load(r, err));
	CGN_TRY(workers_open(r, err));
	CGN_TRY(gates_open(r, err));
	CGN_TRY(router_heartbeat_open(r, err));
	CGN_TRY(router_summaries_open(r, err));
	CGN_TRY(state_watch_open(r->loop, r->cfg, r->shared.telemetry, &router_state_ops, r,
		&r->members.state, err));
	CGN_TRY(router_engine_nodes_open(r, err));
	CGN_TRY(grpc_open(r, err));
	for (size_t i = 0; i < r->n_workers; i++)
		CGN_TRY(gw_worker_start(r->workers[i], err));
	CGN_TRY(picker_open(r, err));
	CGN_TRY(router_calibration_run(r, err));
	return router_batches_run(r, err);
}

static CGN_RC router_start(struct svc *s, const struct config *cfg, void **state, struct cgn_err *err)
{
	struct router *r = CGN_NEW(struct router);
	*r = (struct router){.tag = ROUTER_TAG, .svc = s, .loop = svc_loop(s), .cfg = cfg};
	r->shared.telemetry = svc_telemetry(s);
	r->shared.tracing = svc_tracing(s);
	r->shared.audit = svc_audit(s);
	r->started = cgn_loop_now(r->loop);
	r->shared.started_unix = cgn_clock_wall_ms() / 1000;
	r->members.backend = config_enum_text(cfg->cluster.state_backend);
	(void)cgn_str_copyz(r->cluster_name, sizeof r->cluster_name, cgn_str_of(cfg->cluster.name));
	id_make(r);
	router_pool_size(cfg);
	svc_memory_tune(s);
	router_control_open(r);
	r->scaler = router_scaler_open(r);
	cgn_rc rc = router_open(r, err);
	if (!cgn_ok(rc)) {
		void *take = r;
		router_stop(&take);
		return rc;
	}
	cgn_log(INFO, "router.listening", F_STR("http", cfg->router.listen),
		F_U64("port", http_server_port(r->workers[0]->server)),
		F_BOOL("tls", r->ports.http_tls != NULL), F_STR("grpc", cfg->router.listen_grpc),
		F_U64("workers", r->n_workers));
	router_gateway_warn(cfg);
	*state = r;
	return CGN_OK;
}

/* Runs on a worker's loop. */
static void worker_is_idle(void *arg)
{
	struct router *r = arg;
	if (atomic_fetch_sub(&r->busy_workers, 1) == 1)
		svc_drained(r->svc);
}

static void settings_reload(void *state, const struct config *cfg)
{
	struct router *r = state;
	router_reload(r, cfg);
	router_scaler_reload(r->scaler);
}

static void router_drain(void *state)
{
	struct router *r = state;
	CGN_LIVE(r, ROUTER_TAG);
	atomic_store(&r->shared.draining, true);
	atomic_store(&r->busy_workers, r->n_workers);
	grpc_server_serving(r->ports.grpc, false);
	gw_admission_drain(r->shared.admission, r->cfg->router.drain_timeout / 2);
	for (size_t i = 0; i < r->n_workers; i++)
		gw_worker_drain(r->workers[i], worker_is_idle, r);
}

/* Can the router answer, or wake a node that does? */
static bool nodes_are_ready(const struct router *r)
{
	const struct cluster_view *v = r->published.view;
	bool any = r->members.cluster->count[NODE_READY] > 0;
	for (size_t i = 0; v != NULL && !any && i < v->n_models; i++)
		any = v->models[i].wakes;
	return any;
}

static bool router_is_ready(void *state, struct cgn_buf *why)
{
	struct router *r = state;
	CGN_LIVE(r, ROUTER_TAG);
	if (nodes_are_ready(r) || gw_peers_answer(r->shared.peers))
		return true;
	cgn_buf_putz(why, "no node is ready");
	return false;
}

static const char *grpc_addr(const struct config *cfg)
{
	return cfg->router.listen_grpc;
}

static const char *admin_addr(const struct config *cfg)
{
	return cfg->router.listen_admin;
}

static cgn_nsec drain_timeout(const struct config *cfg)
{
	return cfg->router.drain_timeout;
}

static const struct svc_flag flags[] = {
	{"listen", "router.listen", "ADDR", "HTTP gateway"},
	{"listen-grpc", "router.listen_grpc", "ADDR", "registration and control"},
	{"listen-admin", "router.listen_admin", "ADDR", "metrics, health, nodes"},
	{"workers", "router.worker_threads", "N", "event loops; 0: one per core"},
};

static const struct metric_row metrics[] = {
#define METRIC METRIC_ROW
#include "router/metrics.def"
#undef METRIC
};

int main(int argc, char **argv)
{
	struct svc_program p = {
		.name = "cgn-router",
		.summary =
			"OpenAI-compatible gateway that puts each request on the replica that can answer it soonest.",
		.examples = "  cgn-router --config /etc/cognitora/cognitora.toml\n"
			    "  cgn-router --listen 127.0.0.1:8080 --set log.level=debug\n",
		.flags = flags,
		.n_flags = CGN_COUNT(flags),
		.metrics = metrics,
		.n_metrics = CGN_COUNT(metrics),
		.admin = {"router.listen_admin", admin_addr},
		.grpc = {"router.listen_grpc", grpc_addr},
		.root = page_redirect,
		.drain_timeout = drain_timeout,
		.routes = router_admin_routes,
		.n_routes = router_n_admin_routes,
		.start = router_start,
		.check = router_check,
		.reload = settings_reload,
		.drain = router_drain,
		.ready = router_is_ready,
		.stop = router_stop,
	};
	return svc_main(&p, argc, argv);
}
