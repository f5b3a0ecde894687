/* SPDX-License-Identifier: Apache-2.0 */
/* agent: one per node. Supervises engines, relays requests to them, tells routers how it is doing. One loop
 * does it all. */
#pragma once
#include "agent/metrics.h"
#include "base/core/arena.h"
#include "base/core/list.h"
#include "base/json/json.h"
#include "io/grpc/grpc.h"
#include "io/http/http.h"
#include "io/loop/loop.h"
#include "io/proc/proc.h"
#include "io/tls/tls.h"
#include "joint/enginefeed/enginefeed.h"
#include "joint/powersrc/powersrc.h"
#include "joint/state/state.h"
#include "joint/svc/svc.h"
#include "policy/config/config.h"
#include "policy/engine/engine.h"
#include "policy/engine/residency.h"
#include "policy/engine/supervise.h"
#include "policy/holdings/holdings.h"
#include "policy/proto/proto.h"
#include "policy/share/share.h"

struct agent;
struct fetch;
struct keep;
struct kvclient;

/* ---- fetch.c: a bounded GET or POST, for what engines tell of themselves or are told ---- */
struct fetch_result {
	const struct cgn_err *err; /* CGN_FINE: an answer came whole */
	bool refused;              /* nobody listens there */
	int status;
	struct cgn_str body; /* borrowed */
};
struct fetch_ask {
	struct http_client *client;
	const struct engine_url *url;
	const char *path;          /* before the base */
	const char *authorization; /* NULL: none */
	struct cgn_str json;       /* body of a POST; p NULL: a GET */
	size_t max_bytes;          /* a longer answer is CGN_TOO_LARGE */
	cgn_nsec timeout;          /* in all */
};
/* |done| comes once, never inline, unless it is cancelled; the fetch is gone when it returns. */
CGN_RC fetch_start(struct cgn_loop *l, const struct fetch_ask *ask,
	void (*done)(void *user, const struct fetch_result *r), void *user, struct fetch **out,
	struct cgn_err *err);
void fetch_cancel(struct fetch **take); /* NULL-safe */

/* ---- engine.c, scrape.c: one engine ---- */
#define ENGINE_TAG 0xa9e17001U

/* How the agent knows what the engine holds: from what was sent there, from the engine's own events, or
 * because it assigns the slots itself. */
enum residency_by { RESIDENCY_BY_SENT, RESIDENCY_BY_EVENTS, RESIDENCY_BY_SLOTS };

struct engine {
	uint32_t tag;
	struct agent *agent;
	const struct engine_ops *ops;
	const char *resume; /* how it goes on with an answer: engine.h; static */
	char name[65];
	struct engine_url url;
	struct cgn_arena arena; /* argv, env: what must outlive a reload of the configuration */
	struct engine_argv argv;
	const char *env[3];
	char *authorization; /* "Bearer ..." or NULL */
	struct tls_ctx *tls;
	struct http_client *client;

	struct supervise sup;
	struct cgn_timer wake;
	struct proc *proc;
	struct fetch *probe;
	struct cgn_timer stall_timer; /* while it is ready */
	unsigned silent;              /* beats of that timer since a byte came from the engine */
	unsigned unanswered;          /* checks that nothing answered since then */
	cgn_nsec stall_timeout;       /* 0: never */
	char trouble[200];            /* why it is not ready, for people; empty when it is */

	struct cgn_timer scrape_timer;
	struct fetch *scrape;
	size_t scrape_at; /* source being asked */
	/* answered that it does not exist: not asked again until the engine is ready anew */
	bool source_gone[ENGINE_MAX_SOURCES];
	struct engine_load load, next_load;
	struct share_peak peak; /* of inflight */
	uint32_t foreign;       /* running and waiting beyond what was relayed, when it was asked last */
	struct fetch *models_fetch;
	struct cgn_arena models_arena;
	const char **models; /* of the configuration, or as the engine says */
	size_t n_models;
	bool models_configured, models_known;

	enum residency_by source;
	cgn_nsec unheard_since;     /* events: when they stopped coming; 0: they come */
	struct residency *resident; /* sent */
	struct feed *feed;          /* of its KV events; NULL: it has none */
	struct keep *keep;          /* of its slots' states; NULL: they are not kept */
	const char *model_path;     /* as configured; or NULL */
	const char **extra_args;
	size_t n_extra_args;
	char residency_text[256]; /* as in the node's description */
	uint32_t block_bytes;     /* the least of the blocks in it, a token taken as ENGINE_TOKEN_BYTES */
	struct cgn_link relays;
	uint32_t inflight;
	struct metric_cell *m_ready, *m_restarts, *m_running, *m_waiting, *m_kv, *m_seconds, *m_ok, *m_error,
		*m_cancelled;
};

CGN_RC engine_open(struct agent *a, const struct config *cfg, size_t i, struct engine *e,
	struct cgn_err *err);
void engine_start(struct engine *e);
void engine_stop(struct engine *e);           /* in good order: agent_engine_changed when it has stopped */
void engine_close(struct engine *e);          /* at once; half-opened too */
bool engine_is_ready(const struct engine *e); /* and its models are known */
bool engine_is_stopped(const struct engine *e);
bool engine_serves(const struct engine *e, struct cgn_str model);
void engine_check_soon(struct engine *e); /* a request found it dead */
/* Signs of life, and their absence: a byte came from it; a check of it ended without any answer in time. */
void engine_heard(struct engine *e);
void engine_unanswered(struct engine *e);
/* a chain with such blocks came; 0: of bytes */
void engine_blocks_seen(struct engine *e, uint32_t block_tokens);
void engine_scrape_init(struct engine *e);
void engine_scrape_start(struct engine *e); /* it is ready: load each second, models until they are known */
void engine_scrape_stop(struct engine *e);

/* ---- relay.c: Agent.Generate ---- */
void relay_on_call(struct grpc_call *c, void *agent);
void relay_end_all(struct engine *e, const char *sentence); /* what it has in work will not end by itself */

/* ---- holds.c: what the node holds ---- */
/* over all engines; about 24 bytes each while they are held */
#define AGENT_MAX_BLOCKS ((size_t)16 * 1024 * 1024)
CGN_RC residency_report_open(struct agent *a, struct cgn_err *err);
/* The record of what was sent to an engine; engine_residency_sent does nothing while the engine has a better source. */
void engine_residency_sent(struct engine *e, const uint64_t *chain, size_t n);
void engine_residency_clear(struct engine *e);
void engine_residency_limit(struct engine *e, size_t capacity);
/* The hook for a source of events, which itself calls holdings_add and holdings_drop on agent->holdings,
 * whose changes reach routers by themselves; it drops only what it added. With RESIDENCY_BY_EVENTS the record of
 * what was sent is dropped and not kept. With RESIDENCY_BY_SENT, which an engine begins with, it counts beside
 * whatever the source is sure of. */
void engine_residency_source(struct engine *e, enum residency_by source);
/* The source lost touch with the engine, or has it again: routers are told since when. */
void engine_residency_heard(struct engine *e, bool heard);

/* ---- feed.c: an engine's KV events ---- */
/* Read the configuration; nothing is opened before the engine's models are known, whose name enters the
 * digests. */
CGN_RC feed_open(struct engine *e, const struct config *cfg, const struct config_engine *ce,
	struct cgn_err *err);
void feed_models_known(struct engine *e); /* they are, or are others than before; no-op without a feed */
void feed_close(struct engine *e);
void feed_put(const struct engine *e, struct json_out *o); /* for /engines: an object, or null */

/* ---- kv.c: the node's block store ---- */
/* a->kv stays NULL when none is configured */
CGN_RC kv_open(struct agent *a, const struct config *cfg, struct cgn_err *err);
void kv_close(struct agent *a);
void kv_watch_again(struct agent *a); /* be told from the beginning */

/* ---- watch.c: Agent.Watch ---- */
#define AGENT_MAX_WATCHERS 64
#define WATCH_INTERVAL     (20 * CGN_MSEC) /* between two reports of load while it changes */
#define WATCH_BEAT         CGN_SEC         /* between two that say the same, at most */
/* from a change of what is held to its report, so that changes go together */
#define WATCH_BLOCKS_DELAY (25 * CGN_MSEC)
/* between two checks of a watcher's knowledge, while things change */
#define WATCH_CHECK_INTERVAL (2 * CGN_SEC)
void watch_init(struct agent *a);
void watch_fini(struct agent *a);
void watch_on_call(struct grpc_call *c, void *agent);
void watch_digest_changed(struct agent *a, uint64_t digest);
void watch_source_changed(struct agent *a);
void watch_node_changed(struct agent *a);
void watch_load_changed(struct agent *a);
void watch_end_all(struct agent *a, const char *sentence);

/* ---- agent.c ---- */
#define AGENT_TAG 0xa9e17002U

struct agent {
	uint32_t tag;
	struct svc *svc;
	struct telemetry *telemetry; /* of svc */
	struct cgn_loop *loop;
	struct engine *engines;
	size_t n_engines;
	struct grpc_server *grpc;
	struct tls_ctx *tls; /* of the gRPC server; NULL in clear */
	struct state_announce *announce;

	char node_id[PROTO_MAX_ID + 1], address[300];
	int role;
	uint64_t started_unix_ms;
	/* of the digest chain: the smallest of all models, so that no record is bounded too low */
	uint32_t block_bytes;
	uint32_t max_inflight;
	uint32_t max_message;
	Cognitora__V1__Node *node; /* as last told */
	struct cgn_arena scratch;

	struct share share; /* of what is relayed now */
	uint64_t requests_total;
	struct powersrc power;
	struct cgn_timer power_timer;

	struct holdings *holdings; /* of all engines together */
	struct kvclient *kv;
	struct grpc_channel *kv_stats; /* of the same store: where peers reach it */
	struct cgn_timer kv_timer;
	bool kv_ready, kv_asked;
	char kv_uds[108], kv_quic[300], kv_rack[65], kv_region[65];
	struct cgn_link watchers;
	size_t n_watchers;
	struct cgn_timer watch_timer, check_timer, beat_timer;
	cgn_nsec watch_last;

	bool draining, leaving, left;
};

/* Readiness, models, size or draining of anything changed: tell routers and the state backend if it makes a
 * difference. */
void agent_changed(struct agent *a);
void agent_engine_changed(struct engine *e);
void agent_request_done(struct agent *a); /* it was taken out of the share */
void agent_refuse_call(struct grpc_call *c, enum cgn_code code,
	const char *sentence); /* takes it, and ends it */
struct engine *agent_pick(struct agent *a, struct cgn_str name, struct cgn_str model,
	struct cgn_err *err);                                       /* NULL and why */
Cognitora__V1__ResidencySource agent_source(const struct agent *a); /* events, if every engine has them */
/* since when the longest unheard source is unheard; 0: all are heard */
uint64_t agent_stale_ms(const struct agent *a);
/* As |router| is told it: what is there, and its share of that. */
void agent_load(const struct agent *a, uint64_t router, Cognitora__V1__Load *out);
void agent_admin_engines(void *agent, const struct http_head *h, struct cgn_str body,
	struct svc_admin_reply *r);
