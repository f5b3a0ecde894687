/* SPDX-License-Identifier: Apache-2.0 */
/* router: the control loop: membership, the watches of agents, the gRPC port, keys and gauges. It posts
 * changes to the workers. */
/* control, the room: the control loop: membership, the watches of agents, the gRPC port, keys and gauges. */
#pragma once
#include <limits.h>

#include "io/wire/grpc/grpc.h"
#include "joint/cluster/state/state.h"
#include "joint/daemon/svc/svc.h"
#include "router/answer/client/gateway.h"
#include "router/control/control/isolation.h"
#include "router/control/control/keys.h"
#include "router/control/control/parking.h"
#include "router/control/control/policy.h"
#include "router/control/control/powerbudget.h"
#include "router/control/control/price.h"
#include "router/control/control/traffic.h"
#include "router/control/control/wanted.h"
#include "router/request/admission/admission.h"

#define ROUTER_TAG 0x640a7e01U

struct batch_runner;         /* batch/runner.h */
struct engine_node;          /* enginenodes/node.h */
struct engine_nodes;         /* enginenodes/enginenodes.h */
struct gw_calibration_asker; /* calibration/calibration.h */
struct router_heartbeat;     /* heartbeat.c */
struct router_summaries;     /* summaries.c */
struct router_watch;         /* watch.h */
struct scaler;               /* scaler/scaler.h */
struct router_call;          /* A call of the gRPC port; service_priv.h. */

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
	struct engine_nodes *engine_nodes; /* Nodes without an agent; owned. */
	struct engine_node *coming;        /* The one that becomes a member in this call; NULL: none. */
};

/* The view and rules that the workers use. control.c */
struct router_published {
	struct cluster_view *view;
	struct gw_rules *rules;
	struct cgn_hook hook; /* Publishes a new view at the end of the turn. */
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

struct router {
	uint32_t tag;
	struct svc *svc;
	struct cgn_loop *loop;
	/* Last loaded configuration; keys that are not live are read at the start only. */
	const struct config *cfg;
	char cluster_name[128];
	char id[160];      /* Names this router in the agents' logs. */
	char machine[128]; /* Name of the machine. */
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
	struct router_power power;
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
