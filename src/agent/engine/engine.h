/* SPDX-License-Identifier: Apache-2.0 */
/* engine: one inference engine of the node, from its process to what it holds. The parts have a header each;
 * struct engine owns them. One loop, its thread. */
#pragma once
#include "agent/engine/adapters.h"
#include "agent/engine/change.h"
#include "agent/engine/handoff.h"
#include "agent/engine/health.h"
#include "agent/engine/load.h"
#include "agent/engine/ondemand.h"
#include "agent/engine/process.h"
#include "agent/engine/residency.h"
#include "agent/engine/rest.h"
#include "agent/engine/unit.h"
#include "agent/metrics.h"
#include "base/core/list.h"
#include "base/json/json.h"
#include "base/pb/pb_tree.h"
#include "cognitora/v1/engines.pb-c.h"
#include "joint/daemon/svc/svc.h"
#include "joint/kv/slotmgr/slotmgr.h"
#include "joint/node/engineview/door.h"
#include "joint/node/engineview/engineview.h"
#include "policy/kv/slots/tenancy.h"
#include "policy/who/share/share.h"

#define ENGINE_TAG 0xa9e17001U

struct engine;
struct engine_host_ops {
	/* Readiness, models, size or residency of an engine changed. */
	void (*changed)(void *user);
	/* The load of an engine changed. */
	void (*load_changed)(void *user);
	/* Where the knowledge of an engine's blocks comes from, or how old it is, changed. */
	void (*residency_changed)(void *user);
	/* The requests of an engine that is loaded on demand changed. */
	void (*demand_changed)(void *user);
	/* The engine neither answers checks nor sends bytes: its requests will not end by themselves. */
	void (*stalled)(void *user, struct engine *e);
	/* Return how many requests for the model the engine has. */
	uint32_t (*inflight)(const struct engine *e, struct cgn_str model);
	/* Return the client of the node's block store, or NULL when none is configured. */
	struct kvclient *(*store)(void *user);
	/* Watch the block store from the beginning again. */
	void (*rewatch_store)(void *user);
};
/* The agent's side of an engine; outlives the engine. */
struct engine_host {
	struct cgn_loop *loop;
	struct telemetry *telemetry;
	struct holdings *holdings; /* Blocks that the node holds, all engines together */
	uint32_t block_bytes;      /* Smallest configured bytes of prompt per block */
	const char *dir;           /* Folder of managed engines' files; NULL: none */
	int output_level;          /* Level of engines' lines: a LOG_*; a reload may change it */
	cgn_nsec drain_timeout;    /* Longest drain of an engine; a reload may change it */
	const struct engine_host_ops *ops;
	void *user;
};

/* The requests that an engine has. */
struct engine_requests {
	struct cgn_link relays; /* relay.link */
	uint32_t inflight;      /* Requests that the agent relays */
	uint32_t direct;        /* Requests that routers have straight at the engine, as they told */
	struct share_peak peak; /* Peak of |inflight| + |direct| */
	struct metric_cell *seconds, *ok, *error, *cancelled;
};

struct engine {
	uint32_t tag;
	const struct engine_host *host;
	const struct engine_ops *ops;
	const char *resume; /* Name of the engine's struct engine_resume; static */
	char name[65];
	struct engine_door door;
	struct cgn_arena arena; /* Copies of settings, which outlive a reload of the configuration */
	struct engineview view; /* The engine as it shows itself: readiness, load, models, KV events */
	const char *planned;    /* Name or path with which a managed engine is started; NULL: unknown */

	struct engine_process process;
	struct engine_checks health;
	struct engine_gauges gauges;
	struct engine_adapters adapters;
	struct engine_rest rest;
	struct engine_unit unit;
	struct engine_ondemand ondemand;
	struct engine_handoff handoff;
	struct engine_residency residency;
	struct slotmgr *slots; /* NULL: the engine's slots are not kept */
	/* Knows whose prompts the slots hold; NULL: the engine has no slots that the agent may choose. */
	struct slot_tenancy *tenancy;
	bool mixes_slots; /* The engine copies prompts between slots, unseen: no prompt may be reused */
	bool mixes_salts; /* engine_mixes_salts */
	bool has_tenants; /* A request had a cache_salt: the agent chooses the slots of all from then on. */
	struct engine_requests requests;
	uint32_t max_conns; /* Most connections to the engine */
};

/* Note errors in an engine's URL and files, without starting or asking it. */
void engine_check(const struct config *cfg, const struct config_engine *ce, struct svc_problems *out);
/* Open engine |i| of the configuration; nothing runs before engine_start. A half-open engine is closed with
 * engine_close. CGN_INVALID: the URL, the key file or the launch settings are wrong. */
CGN_RC engine_open(const struct engine_host *host, const struct config *cfg, size_t i, struct engine *e,
	struct cgn_err *err);
void engine_start(struct engine *e);
/* Stop the engine in good order; |changed| is called when it has stopped. */
void engine_stop(struct engine *e);
/* Close at once; does nothing for an engine that was not opened. */
void engine_close(struct engine *e);
/* True when the engine takes requests: it is ready and awake, and its models are known. */
bool engine_is_ready(const struct engine *e);
/* True if the model is on the engine's list, or an adapter that operators had loaded. */
bool engine_serves(const struct engine *e, struct cgn_str model);
/* True when the agent adds nothing to the engine's requests and loses nothing that it does not see: routers may go
 * straight to the engine. */
bool engine_needs_no_agent(const struct engine *e);
/* Routers have reported |n| requests straight at the engine; |heard|: its answers bring bytes. */
void engine_direct_told(struct engine *e, uint32_t n, bool heard);
bool engine_is_stopped(const struct engine *e);
/* Fill the engine's part of /engines. */
void engine_report_fill(const struct engine *e, struct pb_tree *t, Cognitora__V1__EngineReport *to);
