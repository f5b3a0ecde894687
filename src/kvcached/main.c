/* SPDX-License-Identifier: Apache-2.0 */
/* cgn-kvcached: keeps blocks of KV cache in RAM and on SSD, for the engines of this node and for its
 * peers. */
#include <stdlib.h>

#include "base/log/log.h"
#include "io/os/memlimit/memlimit.h"
#include "joint/cluster/state/state.h"
#include "kvcached/daemon/kvcached.h"
#include "kvcached/peers/peers.h"
#include "kvcached/peers/sites.h"

#define BESIDE_ARENA ((uint64_t)64 << 20) /* RocksDB's caches, workers, the last changes */

static void kvcached_stop(void **take)
{
	struct kvcached *d = CGN_TAKE(take);
	if (d == NULL)
		return;
	CGN_LIVE(d, KVCACHED_TAG);
	cgn_timer_cancel(&d->metrics_timer);
	kvcached_workers_close(d);
	peers_free(d);
	kvstore_free(&d->store);
	free(d->sites);
	tls_ctx_free(&d->tls);
	d->tag = 0;
	free(d);
}

static void log_if_unsealed(const struct kvcached *d)
{
	uint64_t bytes = 0;
	if (kvstore_arena(d->store, &bytes) < 0)
		cgn_log(WARN, "kvcached.arena_unsealed",
			F_STR("why", "this kernel can't seal memory against writing (Linux 5.1 can)"),
			F_STR("then",
				"values are copied to local clients, none is handed over by descriptor"));
}

/* Refuse or warn before the kernel kills the process for its memory. Beside the arena counts what docs/fleet/kv/README.md
 * says about the index and about connections. */
static CGN_RC check_memory(uint64_t ram, struct cgn_err *err)
{
	struct memlimit may;
	memlimit_find("", &may);
	if (ram > may.bytes && may.group)
		return CGN_FAIL(err, INVALID,
			"kv.ram is %llu bytes, but no more than %llu can be used here, says %s: lower kv.ram, or raise the limit",
			(unsigned long long)ram, (unsigned long long)may.bytes, may.who);
	if (ram + ram / 8 + BESIDE_ARENA > may.bytes)
		cgn_log(WARN, "kvcached.memory_tight", F_U64("ram_bytes", ram),
			F_U64("limit_bytes", may.bytes), F_STR("says", may.who),
			F_STR("then",
				"when the tier is full, the index and connections may need more than is left, and the kernel kills who takes more"),
			F_STR("do", "lower kv.ram"));
	return CGN_OK;
}

/* Returns false when this node has no SSD tier, which is logged. */
static bool ssd_cfg(const struct kvcached *d, struct kvstore_ssd_cfg *out)
{
	static const enum kvstore_admission admissions[] = {[SSD_AUTO] = KVSTORE_WRITE_AUTO,
		[SSD_REUSED] = KVSTORE_WRITE_REUSED,
		[SSD_ALL] = KVSTORE_WRITE_ALL};
	const struct config *cfg = d->cfg;
	*out = (struct kvstore_ssd_cfg){.dir = cfg->kv.ssd_dir,
		.index_dir = cfg->kv.index_dir,
		.bytes = cfg->kv.ssd,
		.ttl_ms = cfg->kv.ssd_ttl / CGN_MSEC,
		.admission = admissions[cfg->kv.ssd_admission],
		.writes_per_day = cfg->kv.ssd_writes_per_day,
		.flush_time = cfg->kv.drain_timeout,
		.goes_on = svc_long_goes_on,
		.user = d->svc};
	if (out->dir != NULL && out->bytes > 0)
		return true;
	cgn_log(INFO, "kvcached.no_ssd",
		F_STR("why", out->dir == NULL ? "kv.ssd_dir is not set" : "kv.ssd is 0"));
	return false;
}

static CGN_RC kvcached_open(struct kvcached *d, struct cgn_err *err)
{
	struct kvstore_ssd_cfg ssd;
	d->sites = sites_open(d->cfg);
	const struct kvstore_cfg store = {.telemetry = d->telemetry,
		.ram_bytes = d->cfg->kv.ram,
		.ssd = ssd_cfg(d, &ssd) ? &ssd : NULL,
		.sites = d->sites};
	CGN_TRY(check_memory(d->cfg->kv.ram, err));
	CGN_TRY(state_tls_server(d->cfg, &d->tls, err));
	svc_watch_certificate(d->svc, "security.cert_file", d->tls);
	svc_long_begin(d->svc);
	cgn_rc rc = kvstore_new(&store, &d->store, err);
	svc_long_end(d->svc);
	CGN_TRY(cgn_err_of(rc, store.ssd != NULL ? "[kv] ram, ssd, ssd_dir, index_dir" : "kv.ram", err));
	log_if_unsealed(d);
	CGN_TRY(kvcached_workers_open(d, err));
	kvcached_metrics_open(d);
	return kvcached_workers_start(d, err);
}

/* Workers read these at any time, so they are not read from |cfg|, which the next reload frees. */
static void set_live(struct kvcached *d, const struct config *cfg)
{
	atomic_store(&d->max_connections, cfg->kv.max_connections);
	atomic_store(&d->resp_idle_timeout, cfg->kv.resp_idle_timeout);
}

static CGN_RC kvcached_start(struct svc *s, const struct config *cfg, void **state, struct cgn_err *err)
{
	struct kvcached *d = CGN_NEW(struct kvcached);
	*d = (struct kvcached){.tag = KVCACHED_TAG,
		.svc = s,
		.telemetry = svc_telemetry(s),
		.tracing = svc_tracing(s),
		.cfg = cfg,
		.started = cgn_clock_now(),
		.held_max = cfg->kv.ram / 2};
	set_live(d, cfg);
	cgn_timer_init(&d->metrics_timer, svc_loop(s), NULL);
	cgn_rc rc = kvcached_open(d, err);
	if (!cgn_ok(rc)) {
		void *take = d;
		kvcached_stop(&take);
		return rc;
	}
	cgn_log(INFO, "kvcached.start", F_U64("ram_bytes", cfg->kv.ram), F_U64("workers", d->n_workers));
	*state = d;
	return CGN_OK;
}

static void kvcached_reload(void *state, const struct config *cfg)
{
	struct kvcached *d = state;
	struct cgn_err err = {0};
	CGN_LIVE(d, KVCACHED_TAG);
	set_live(d, cfg);
	if (d->tls != NULL && !cgn_ok(tls_ctx_reload(d->tls, &err))) {
		cgn_log(ERROR, "kvcached.tls_reload", F_STR("why", err.msg),
			F_STR("then", "the old certificate stays"));
		svc_reload_refused(d->svc, err.msg);
	}
	kvcached_workers_reload(d);
}

static void kvcached_check(const struct config *cfg, struct svc_problems *out)
{
	struct cgn_err err;
	svc_check_cluster(out, cfg);
	svc_problem(out, resp_check(cfg, &err), &err);
	svc_problem(out, sites_check(cfg, &err), &err);
}

static void kvcached_drain(void *state)
{
	kvcached_workers_drain(state);
}

static const char *grpc_addr(const struct config *cfg)
{
	return cfg->kv.listen;
}

static const char *admin_addr(const struct config *cfg)
{
	return cfg->kv.listen_admin;
}

static cgn_nsec drain_timeout(const struct config *cfg)
{
	return cfg->kv.drain_timeout;
}

static const struct svc_flag flags[] = {
	{"ram", "kv.ram", "SIZE", "memory of the RAM tier"},
	{"ssd", "kv.ssd", "SIZE", "bytes of the SSD tier; 0: none"},
	{"ssd-dir", "kv.ssd_dir", "PATH", "its folder; unset: none"},
	{"listen", "kv.listen", "ADDR", "address of gRPC"},
	{"uds", "kv.uds", "PATH",
		"Unix socket of gRPC; beside it PATH.bulk (values by descriptor) and PATH.resp (Redis clients)"},
	{"resp", "kv.resp_listen", "ADDR", "address for Redis clients; empty: none"},
	{"quic", "kv.quic_listen", "ADDR", "UDP address for other nodes' stores"},
	{"admin", "kv.listen_admin", "ADDR", "address of metrics and health"},
	{"workers", "kv.worker_threads", "N", "event loops; 0: one per core"},
};

static bool store_fill(void *state, struct pb_tree *t, void *message, struct svc_admin_reply *r)
{
	const struct kvcached *d = state;
	(void)r;
	CGN_LIVE(d, KVCACHED_TAG);
	kvcached_store_fill(d, t, message);
	return true;
}

static bool peers_fill(void *state, struct pb_tree *t, void *message, struct svc_admin_reply *r)
{
	(void)t;
	(void)message;
	peers_visit(state, r);
	return false;
}

const struct svc_admin_route kvcached_documents[KVCACHED_DOCUMENTS] = {
#define DOCUMENT SVC_DOCUMENT
#include "kvcached/daemon/documents.def"
#undef DOCUMENT
};

static const struct metric_row metrics[] = {
#define METRIC METRIC_ROW
#include "kvcached/daemon/metrics.def"
#undef METRIC
};

int main(int argc, char **argv)
{
	static const struct svc_program program = {
		.name = "cgn-kvcached",
		.summary =
			"keeps blocks of KV cache in RAM and on SSD, for the engines of this node and for its peers",
		.examples = "  cgn-kvcached --config /etc/cognitora/cognitora.toml\n"
			    "  cgn-kvcached --ram 8GiB --ssd 200GiB --ssd-dir /var/lib/cognitora/kv\n",
		.flags = flags,
		.n_flags = CGN_COUNT(flags),
		.metrics = metrics,
		.n_metrics = CGN_COUNT(metrics),
		.admin = {"kv.listen_admin", admin_addr},
		.grpc = {"kv.listen", grpc_addr},
		.drain_timeout = drain_timeout,
		.routes = kvcached_documents,
		.n_routes = KVCACHED_DOCUMENTS,
		.start = kvcached_start,
		.check = kvcached_check,
		.reload = kvcached_reload,
		.drain = kvcached_drain,
		.stop = kvcached_stop,
	};
	return svc_main(&program, argc, argv);
}
