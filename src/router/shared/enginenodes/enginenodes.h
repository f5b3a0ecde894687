/* SPDX-License-Identifier: Apache-2.0 */
/* enginenodes: the nodes without an agent: those of [engine_nodes], and the pods of [inference_pools]. The control loop, its
 * thread. */
#pragma once
#include "router/shared/enginenodes/node.h"
#include "router/shared/enginenodes/pool.h"

struct svc_problems;

struct engine_nodes_ops {
	/* |n| is new and not started. False: it cannot be a node, and is freed; the callee has said why. */
	bool (*came)(void *user, struct engine_node *n);
	/* |n| has left, and is freed when this returns. */
	void (*gone)(void *user, struct engine_node *n);
	/* The nodes of a pool are known. */
	void (*heard)(void *user); /* engine_nodes_are_heard or engine_nodes_are_away may have changed. */
};
struct engine_nodes_cfg {
	struct cgn_loop *loop;
	struct telemetry *telemetry;
	const struct config *config; /* Lives as long as the nodes */
	const struct engine_nodes_ops *ops;
	void *user;
};

struct engine_nodes;
/* Read the settings and tell the nodes. CGN_INVALID, CGN_TLS: the settings of a node or its files are wrong;
 * CGN_UNAVAILABLE: there are pools, and no credentials for a Kubernetes API; CGN_NO_MEMORY. Half-open ones are closed with engine_nodes_close. */
CGN_RC engine_nodes_open(const struct engine_nodes_cfg *cfg, struct engine_nodes **out, struct cgn_err *err);
/* Free the nodes without telling. Workers that use their TLS must have ended. NULL-safe. */
void engine_nodes_close(struct engine_nodes **take);
/* True once all pools were heard. */
bool engine_nodes_are_heard(const struct engine_nodes *e);
/* True if the source of a pool does not answer now: its nodes may have changed. */
bool engine_nodes_are_away(const struct engine_nodes *e);
size_t engine_nodes_pools(const struct engine_nodes *e);
const struct engine_pool *engine_nodes_pool(const struct engine_nodes *e, size_t at);
/* Read the certificates of the Kubernetes API again. */
CGN_RC engine_nodes_reload_tls(struct engine_nodes *e, struct cgn_err *err);
/* Return the kind of an engine as an agent's setting has it; |node_kind|: a value of NODE_KIND. */
int engine_nodes_kind(int node_kind);
/* Note errors in the settings and their files, without opening anything. */
void engine_nodes_check(const struct config *cfg, struct svc_problems *out);
