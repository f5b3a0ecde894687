/* SPDX-License-Identifier: Apache-2.0 */
/* router: the control loop: membership, the watches of agents, the gRPC port, keys and gauges. It posts
 * changes to the workers. */
#pragma once
#include <limits.h>

#include "io/wire/grpc/grpc.h"
#include "joint/cluster/state/state.h"
#include "joint/daemon/svc/svc.h"
#include "policy/route/routing/document.h"
#include "router/answer/client/gateway.h"
#include "router/control/control/keys.h"
#include "router/control/control/parking.h"
#include "router/control/control/price.h"
#include "router/control/control/traffic.h"
#include "router/control/control/wanted.h"
#include "router/request/admission/admission.h"

#define ROUTER_TAG 0x640a7e01U

struct batch_runner;         /* batch/runner.h */
struct engine_node;          /* engines/node.h */
struct engines;              /* engines/engines.h */
struct gw_calibration_asker; /* calibration/calibration.h */
struct router_heartbeat;     /* heartbeat.c */
struct router_summaries;     /* summaries.c */
struct router_watch;         /* watch.h */
struct scaler;               /* scaler/scaler.h */
struct router_call;          /* A call of the gRPC port; service_priv.h. */

/* isolation.c */
/* Read the secret of security.isolation_secret_file, or make one of the router's own, if tenants are kept apart.
 * CGN_INVALID: the file cannot be used. */
CGN_RC router_isolation_load(struct router *r, struct cgn_err *err);
void router_isolation_reload(
	struct router *r); /* The same; a failure is logged and reported, the old secret stays. */
/* Append the ready nodes that do not keep tenants apart, with the kinds of their engines: at most 1,000 bytes. */
void router_isolation_leaky(const struct router *r, struct cgn_buf *out);
/* Log each ready node that does not keep tenants apart, once. */
void router_isolation_log_changes(struct router *r);
CGN_RC router_isolation_check(const struct config *cfg, struct cgn_err *err); /* Read the file that is set. */

/* budgets.c */
/* pause.c: tell the node's agent that a conversation waits for a tool. */
struct gw_pause;
void router_pause_tell(void *user, const struct gw_pause *pause);
void router_budgets_report(
	struct router *r); /* Once a second: files and metrics of budgets, usage and sessions. */
/* After the rules were replaced: forget the metrics of budgets that |before| has (NULL: there were no rules) and the
 * rules of now have not. */
void router_budgets_changed(struct router *r, const struct gw_rules *before);

struct router_model_logged; /* models.c */

/* Membership of the cluster, as the state backend and the agents' watches report it. control.c, watch.c */
struct router_members {
	struct cluster *cluster;
	struct state_watch *state;
	const char *backend;
	bool connected; /* The state backend is reachable. */
	bool lost;      /* The state backend was reached or tried, and it does not answer. */
	enum state_knowledge knowledge;
	struct router_watch *watches[ROUTE_MAX_NODES];
	struct engines *engines;    /* Nodes without an agent; owned. */
	struct engine_node *coming; /* The one that becomes a member in this call; NULL: none. */
};

/* The view and rules that the workers use. control.c */
struct router_published {
	struct cluster_view *view;
	struct gw_rules *rules;
	struct cgn_hook hook; /* Publishes a new view at the end of the turn. */
};

/* The policy document that operators write. policy.c */
struct router_policy {
	struct route_document document; /* Last valid document; empty: none. */
	char trouble[400];              /* Why the current document is refused; empty: it is not. */
};

/* Listening ports. main.c */
struct router_ports {
	struct tls_ctx *http_tls, *grpc_tls, *picker_tls; /* NULL: in clear. */
	struct tls_ctx *join_tls;                         /* NULL: no machine can join here. */
	struct grpc_server *grpc, *join;
	struct router_join_guard *guard; /* service/join.c */
	struct http_client *playground;  /* To this router's own gateway; NULL: not used yet. */
};

/* Values that were last logged or counted on /metrics. */
struct router_reported {
	struct router_model_logged *models; /* Owned; models.c. */
	size_t n_models;
	uint64_t sheds;          /* Blocks that the index shed; residency.c. */
	uint64_t access_dropped; /* Lines of the access log; access.c. */
	uint64_t forgotten;      /* Buckets of limits; control.c. */
};

/* The secret of tenants' salts. isolation.c */
struct router_isolation {
	struct digest secret;
	bool own; /* The router keeps it itself: no file is set. */
	bool leaky
		[ROUTE_MAX_NODES]; /* By slot: the log says that the node's engine cannot keep tenants apart. */
};

struct router {
	uint32_t tag;
	struct svc *svc;
	struct cgn_loop *loop;
	/* Last loaded configuration; keys that are not live are read at the start only. */
	const struct config *cfg;
	char cluster_name[128];
	char id[160]; /* Names this router in the agents' logs. */
	cgn_nsec started;
	struct router_members members;
	struct router_published published;
	struct router_keys keys;
	struct router_isolation isolation;
	struct router_policy policy;
	struct router_wanted wanted;
	struct cgn_buf invites; /* The document of invites (policy/who/invite). */
	struct router_ports ports;
	struct router_reported reported;
	struct router_traffic traffic;
	struct router_history history;
	struct router_price price;
	struct router_parking parking;
	struct router_heartbeat *heartbeats; /* heartbeats of the peers, by place; NULL: none */
	struct router_summaries *summaries;  /* NULL: peers are not asked for theirs, nor told ours. */
	struct scaler *scaler;               /* Owned. */
	/* True if a request for the model wakes a node; set by router_scaler_open. |s| may be NULL. NULL: there is no autoscaler yet. */
	bool (*model_wakes)(const struct scaler *s, struct cgn_str model);
	struct picker *picker;                    /* NULL: router.picker.listen is not set. */
	struct gw_calibration_asker *calibration; /* NULL: no prompt is asked again. */
	struct batch_runner *batch;               /* NULL: batch.enabled is not set. */
	struct gw_shared shared;
	struct gw_store_cfg store;
	struct gw_worker **workers;
	size_t n_workers;
	_Atomic size_t busy_workers; /* Workers that have not drained yet. */
	struct cgn_timer tick, sweep, direct_timer;
	cgn_nsec outliers_turned_at; /* When the windows of outliers.c were turned last. */
	uint64_t jitter_state;       /* State of the jitter generator; 0: not seeded. */
};

/* control.c */
extern const struct state_watch_ops router_state_ops;
/* Start the timers of the control loop. */
void router_control_open(struct router *r);
void router_control_close(struct router *r);
/* Load rules from r->cfg and publish them with the keys in use. On failure the old ones stay. */
CGN_RC router_rules_load(struct router *r, struct cgn_err *err);
void router_rules_refresh(struct router *r); /* The same; a failure is logged, and reported to a reload. */
/* Use |cfg|, which replaces the configuration after SIGHUP, and read certificates again. */
void router_reload(void *state, const struct config *cfg);
/* Perform the orders of a cluster_* call for the node of |o->slot|: watch, record, view. */
void router_orders_apply(struct router *r, const struct cluster_orders *o);
/* Step the breaker of |n| with event |ev| for reason |why|. */
void router_breaker_step(struct router *r, const struct cluster_node *n, enum breaker_event ev,
	enum breaker_reason why);

/* Return the time since the last load report of the node's agent; 0: there was none. */
cgn_nsec router_load_age(const struct router *r, const struct cluster_node *n);

/* Forget the member |id|: close its watch, and drop its state. */
void router_node_gone(struct router *r, const char *id);
/* All members are known, or not: tell it with the next view. */
void router_heard_update(struct router *r);

/* engines.c */
struct json_out;
/* Fill |rs|, in |a|. False: out of memory. */
bool router_pools_fill(const struct router *r, Cognitora__V1__StatusResponse *rs, struct cgn_arena *a);
/* Write the pools of nodes without an agent, an array of objects. */
void router_pools_json(const struct router *r, struct json_out *j);
/* Make the engines without an agent members. CGN_INVALID, CGN_TLS: settings or files are wrong; CGN_NO_MEMORY. */
CGN_RC router_engines_open(struct router *r, struct cgn_err *err);

/* policy.c */
/* Apply the policy document |text| (empty: none) that was read from |where|. A bad document is logged and the
 * last good one stays. */
void router_policy_update(struct router *r, struct cgn_str text, const char *where);
/* Fill |rows| and |*list|, which points into them, with the decisions of each shadow policy. */
void router_shadows_fill(const struct router *r, Cognitora__V1__ShadowStatus rows[EXPLAIN_SHADOWS],
	Cognitora__V1__ShadowStatus **list, size_t *n);
/* Fill |to|, which borrows from |r|. */
void router_policy_fill(struct router *r, Cognitora__V1__PolicyStatus *to);

/* access.c */
/* Open the file of the access log, or open it again; does nothing when no file is set. */
CGN_RC router_access_open(struct router *r, struct cgn_err *err);
void router_access_reload(struct router *r); /* The same at a reload: a failure is logged. */
void router_access_report(
	struct router *r); /* Count and log the lines that were dropped since the last call. */
void router_access_close(struct router *r);

/* How the prompts of a model are tokenised; models.c. */
struct router_model {
	enum gw_tokens_mode mode;
	const char *why;
	const struct gw_tokenizer_set *tokenizers; /* NULL: none. */
	size_t n_ready;
	uint32_t block_tokens, block_bytes; /* |mode| decides which one counts. */
};
/* Return how the prompts of model |name| are tokenised now. */
struct router_model router_model_of(const struct router *r, struct cgn_str name);
/* Call |fn| for each model that a node has, then for each other configured one. */
void router_models_each(const struct router *r, void (*fn)(void *user, struct cgn_str name), void *user);
void router_models_log_changes(struct router *r); /* Log each model whose mode has changed. */
void router_models_close(struct router *r);

/* batching.c */
/* Write the path of this router's file |kind| in cluster.state_dir. Several routers of a machine may share the folder:
 * the gateway's address tells them apart. */
CGN_RC router_state_path(const struct router *r, const char *kind, char out[PATH_MAX], struct cgn_err *err);
/* Enlarge libuv's pool where files are in a bucket. Before the pool's first job. */
void router_pool_size(const struct config *cfg);
CGN_RC router_batches_load(struct router *r, struct cgn_err *err); /* Before workers run. */
CGN_RC router_batches_run(struct router *r, struct cgn_err *err);  /* Once they listen. */
/* price.c */
void router_energy_follow(struct router *r,
	cgn_nsec now); /* Show the nodes' power; read the series if it is time. */
void router_price_close(struct router *r);

/* peers.c */
/* heartbeat.c: ask each peer that is a cluster four times a second whether it is there, and measure the way. One that is
 * silent for a second is lost: its calls fail, and no request leaves for it until it answers again. */
CGN_RC router_heartbeat_open(struct router *r, struct cgn_err *err);
void router_heartbeat_close(struct router *r);
/* summaries.c: ask each peer that is a cluster for its summary, and make those that they are told
 * (router.federation.summary_interval). */
CGN_RC router_summaries_open(struct router *r, struct cgn_err *err);
void router_summaries_close(struct router *r);
void router_peers_report(const struct router *r); /* Once a second: the gauges of the peers. */
void router_peers_json(const struct router *r, struct json_out *j); /* The body of /peers; no secrets. */

/* parking.c */
void router_parking_follow(struct router *r, cgn_nsec now); /* Once a second: park or wake a node. */
