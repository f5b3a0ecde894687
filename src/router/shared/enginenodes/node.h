/* SPDX-License-Identifier: Apache-2.0 */
/* node: one engine without an agent as a node of the router. It stands in for the agent: it asks the engine (joint/node/engineview)
 * and tells the events that an Agent.Watch call would bring. The control loop, its thread. */
#pragma once
#include "policy/node/proto/proto.h"

struct cgn_loop;
struct cluster_door;
struct config;
struct config_engine;
struct engine_door; /* joint/node/engineview/door.h */
struct telemetry;

/* The things that several nodes have in common. Borrowed; outlives them. */
struct engine_node_kin {
	struct cgn_loop *loop;
	struct telemetry *telemetry;
	const struct config *cfg;       /* Needed by engine_node_new only */
	const struct engine_door *door; /* Key and TLS; its URL is not used */
};
struct engine_node_cfg {
	const char *id;
	const struct config_engine *engine; /* Needed by engine_node_new only; |kind| and |url| are set */
	bool guess;                         /* The kind is told by the engine's list of models */
	const char *origin;                 /* Where the node comes from, for people */
};
struct engine_node_ops {
	/* A numbered event, never inline; borrowed. Do not stop or free the node in it. */
	void (*event)(void *user, const Cognitora__V1__WatchEvent *ev);
	/* The engine answers nothing and brings no byte: its requests will not end by themselves. */
	void (*stalled)(void *user);
};

struct engine_node;
/* CGN_INVALID: the URL or the KV events are wrong; CGN_NO_MEMORY. Nothing is asked. */
CGN_RC engine_node_new(const struct engine_node_kin *kin, const struct engine_node_cfg *cfg,
	struct engine_node **out, struct cgn_err *err);
void engine_node_free(struct engine_node **take); /* Stops it too; NULL-safe. */
/* Ask the engine, and tell events: a snapshot first. */
void engine_node_start(struct engine_node *n, const struct engine_node_ops *ops, void *user);
/* Tell a snapshot again. */
void engine_node_repeat(struct engine_node *n);
/* Nothing is told any more. */
void engine_node_stop(struct engine_node *n);
/* The router has |inflight| requests there; |heard|: the engine brought bytes for them since the last call. */
void engine_node_told(struct engine_node *n, uint32_t inflight, bool heard);
/* The engine refused a request that it should serve: see engineview_models_doubt. */
void engine_node_doubt(struct engine_node *n);
/* Tell the blocks of the |n_ranges| ranges again. */
void engine_node_resend(struct engine_node *n, const uint32_t *ranges, size_t n_ranges);
/* The engine is to get no new requests: its pod ends. */
void engine_node_drain(struct engine_node *n);
const char *engine_node_id(const struct engine_node *n);
const char *engine_node_origin(const struct engine_node *n);
const struct cluster_door *engine_node_door(const struct engine_node *n); /* Lives as long as |n|. */
