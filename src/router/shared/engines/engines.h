/* SPDX-License-Identifier: Apache-2.0 */
/* engines: the nodes without an agent: those of [engine_nodes], and the pods of [inference_pools]. The control loop, its
 * thread. */
#pragma once
#include "router/shared/engines/node.h"
#include "router/shared/engines/pool.h"

struct svc_problems;

struct engines_ops {
	/* |n| is new and not started. False: it cannot be a node, and is freed; the callee has said why. */
	bool (*came)(void *user, struct engine_node *n);
	/* |n| has left, and is freed when this returns. */
	void (*gone)(void *user, struct engine_node *n);
	/* The nodes of a pool are known. */
	void (*heard)(void *user); /* engines_are_heard or engines_are_away may have changed. */
};
struct engines_cfg {
	struct cgn_loop *loop;
	struct telemetry *telemetry;
	const struct config *config; /* Lives as long as the nodes */
	const struct engines_ops *ops;
	void *user;
};

struct engines;
/* Read the settings and tell the nodes. CGN_INVALID, CGN_TLS: the settings of a node or its files are wrong;
 * CGN_UNAVAILABLE: there are pools, and no credentials for a Kubernetes API; CGN_NO_MEMORY. Half-open engines are closed with engines_close. */
CGN_RC engines_open(const struct engines_cfg *cfg, struct engines **out, struct cgn_err *err);
/* Free the nodes without telling. Workers that use their TLS must have ended. NULL-safe. */
void engines_close(struct engines **take);
/* True once all pools were heard. */
bool engines_are_heard(const struct engines *e);
/* True if the source of a pool does not answer now: its nodes may have changed. */
bool engines_are_away(const struct engines *e);
size_t engines_pools(const struct engines *e);
const struct engine_pool *engines_pool(const struct engines *e, size_t at);
/* Read the certificates of the Kubernetes API again. */
CGN_RC engines_reload_tls(struct engines *e, struct cgn_err *err);
/* Return the kind of an engine as an agent's setting has it; |node_kind|: a value of NODE_KIND. */
int engines_kind(int node_kind);
/* Note errors in the settings and their files, without opening anything. */
void engines_check(const struct config *cfg, struct svc_problems *out);
