/* SPDX-License-Identifier: Apache-2.0 */
/* router: the control loop. Membership, the watches of agents, the gRPC port, keys and gauges; it tells
 * workers what changed. */
#pragma once
#include "io/grpc/grpc.h"
#include "io/loop/backoff.h"
#include "joint/state/state.h"
#include "joint/svc/svc.h"
#include "policy/routing/document.h"
#include "router/request/gateway.h"

#define ROUTER_TAG 0x640a7e01U

/* Agent.Watch of one node, opened again for as long as the node is a member. */
struct router_watch {
	uint32_t tag;
	struct router *r;
	uint16_t slot;
	char *address;
	struct grpc_channel *channel;
	struct grpc_call *call;
	struct cgn_timer retry;
	struct cgn_backoff backoff;
	struct cgn_grave grave;
	cgn_nsec opened_at; /* the call */
	/* what is known of its blocks was right then, for all we know; 0: it is right */
	cgn_nsec stale_since;
	/* for how long its source had not heard the engine, when it said so */
	cgn_nsec agent_stale, agent_stale_at;
	unsigned repairs_in_a_row;
	cgn_nsec repair_not_before;
	struct outlier_window window; /* of its node's tally */
	enum node_state shown;        /* last state that was logged and put on /metrics */
	char *shown_id;               /* under this id */
};

struct router_call; /* of the gRPC port; service.c */

struct router_model_logged; /* models.c */

struct router {
	uint32_t tag;
	struct svc *svc;
	struct cgn_loop *loop;
	const struct config *cfg; /* the last one loaded; keys that are not live are only read at the start */
	char cluster_name[128];
	const char *state_backend;
	struct cluster *cluster;
	struct state_watch *state;
	bool state_connected;
	struct route_document document;      /* the last good one; empty: there is none */
	char document_trouble[400];          /* why the one that is there now is refused; empty: it is not */
	struct tls_ctx *http_tls, *grpc_tls; /* NULL: in clear. Agents' is in shared */
	struct grpc_server *grpc;
	struct gw_shared shared;
	struct gw_store_cfg store;
	struct gw_worker **workers;
	size_t n_workers;
	_Atomic size_t busy_workers; /* while draining */
	struct cluster_view *view;
	struct gw_rules *rules;
	struct router_watch *watches[ROUTE_MAX_NODES];
	struct router_model_logged *shown; /* owned; what was logged last */
	size_t n_shown;
	struct cgn_hook publish;
	struct cgn_timer tick, sweep;
	uint64_t shed_shown;      /* on /metrics */
	cgn_nsec peers_turned;    /* windows turned over last */
	uint64_t forgotten_shown; /* buckets of limits */
	uint64_t dice;            /* state of the generator of jitter; 0: not seeded */
	uint64_t keys_seen;       /* fingerprint of the key file's inode, size and time */
	cgn_nsec started;
	char id[160]; /* who asks, for agents' logs */
};

/* control.c */
extern const struct state_watch_ops router_state_ops;
void router_control_open(struct router *r);
void router_control_close(struct router *r);
CGN_RC router_rules_load(struct router *r,
	struct cgn_err *err); /* from r->cfg; on failure the old ones stay */
void router_reload(void *state, const struct config *cfg);
/* What cluster_* ordered, done: watches, the record, the view. |o->slot| says of which node. */
void router_orders_apply(struct router *r, const struct cluster_orders *o);
void router_breaker_step(struct router *r, const struct cluster_node *n, enum breaker_event ev,
	enum breaker_reason why);

/* Since the node's agent told its load. 0: it has not yet. */
cgn_nsec router_load_age(const struct router *r, const struct cluster_node *n);

/* peers.c: who is worse than others; once a second. */
void router_outliers_reset(struct router_watch *w);
void router_outliers_check(struct router *r);

/* watch.c */
void router_watch_open(struct router *r, const struct cluster_node *n);
void router_watch_restart(struct router *r, const struct cluster_node *n);
void router_watch_close(struct router *r, uint16_t slot);

/* residency.c: what a watch tells of its node's blocks */
void router_residency_init(struct router *r);
void router_residency_open(struct router_watch *w);
void router_residency_remove(struct router *r, uint16_t index_id);
void router_residency_reset(struct router_watch *w);
void router_residency_apply(struct router_watch *w, const Cognitora__V1__Residency *res);
void router_residency_compare(struct router_watch *w, const Cognitora__V1__ResidencyCheck *check);
void router_residency_lost(struct router_watch *w);
/* for how long what is known may have been wrong; 0: it is current */
cgn_nsec router_residency_staleness(const struct router_watch *w);
/* What is known of a node's cache, for people. */
struct router_residency_status {
	const char *source; /* "events", "sent" */
	/* "agreed", "repairing", "incomplete" (told, not compared yet), "lost" (its watch is), "shed" (too
	 * little memory) */
	const char *state;
	uint64_t blocks;   /* in the index */
	uint64_t recorded; /* in the record of what was sent */
	uint64_t tier_blocks[BLOCK_TIERS];
	uint64_t sums; /* fingerprint of the sums: equal on routers that agree */
	cgn_nsec staleness;
	double trust;
};
void router_residency_status(const struct router *r, const struct cluster_node *n,
	struct router_residency_status *out);
void router_residency_metrics(struct router *r);    /* metrics, once a second */
size_t router_record_bytes(const struct router *r); /* memory of all that is kept of what was sent */

/* explain_ask.c: what workers wrote down of decisions. */
struct router_explain_query;
struct router_explain_answer { /* borrowed until |done| returns */
	const char *id;
	const struct cgn_buf *found; /* of each worker: explain_write */
	size_t n, most;
	struct explain_reach reach; /* of all; oldest_ms: from then on every worker knows */
};
/* About |id|, or the last |last| requests. |done| comes once, never inline, unless router_explain_cancel was
 * called before. CGN_NOT_FOUND: nothing is recorded here; CGN_INVALID: no possible id. */
CGN_RC router_explain_ask(struct router *r, struct cgn_str id, size_t last,
	void (*done)(void *user, const struct router_explain_answer *a), void *user,
	struct router_explain_query **out, struct cgn_err *err);
void router_explain_cancel(struct router_explain_query **take); /* safe on NULL */
void router_admin_explain(void *state, const struct http_head *h, struct cgn_str body,
	struct svc_admin_reply *reply);

/* policy.c */
void router_policy_update(struct router *r, struct cgn_str text, const char *where);
void router_shadows_fill(const struct router *r, Cognitora__V1__ShadowStatus rows[EXPLAIN_SHADOWS],
	Cognitora__V1__ShadowStatus **list, size_t *n);
void router_policy_fill(struct router *r, Cognitora__V1__PolicyStatus *to); /* borrows from |r| */

/* service.c */
extern const struct grpc_method router_methods[];
extern const size_t router_n_methods;

/* keys.c: the key file. Empty keys when authentication is off. */
CGN_RC router_keys_load(const struct config *cfg, struct auth_keys **out, struct cgn_err *err);
uint64_t router_keys_fingerprint(const struct config *cfg); /* changes when the file does; 0: no file */

/* models.c: what each model's prompts are cut into. */
struct router_model {
	enum gw_tokens_mode mode;
	const char *why;
	const struct gw_tokenizer_set *tokenizers; /* NULL: it has none */
	size_t n_ready;
	uint32_t block_tokens, block_bytes; /* the mode says which counts */
};
struct router_model router_model_of(const struct router *r, struct cgn_str name);
/* Models that nodes have, then configured ones that none has. */
void router_models_each(const struct router *r, void (*fn)(void *user, struct cgn_str name), void *user);
void router_models_log_changes(struct router *r); /* log what changed */
void router_models_close(struct router *r);
void router_admin_models(void *state, const struct http_head *h, struct cgn_str body,
	struct svc_admin_reply *reply);

/* admin.c */
/* as it stands there; empty: it has none */
struct cgn_str router_query_get(const struct http_head *h, const char *key);
extern const struct svc_admin_route router_admin_routes[];
extern const size_t router_n_admin_routes;
