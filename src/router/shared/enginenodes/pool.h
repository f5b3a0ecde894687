/* SPDX-License-Identifier: Apache-2.0 */
/* pool: the pods of an InferencePool as nodes without an agent. The pool and the pods that its selector matches are watched
 * (io/wire/k8s): each ready pod is a node for each of the pool's target ports; one that is being deleted gets nothing new, and leaves
 * with its deletion. While the API server is away the last known nodes stay. The control loop, its thread. */
#pragma once
#include "io/wire/k8s/k8s.h"
#include "router/shared/enginenodes/node.h"

struct engine_nodes_cfg;
struct engine_pool_cfg {
	const struct engine_nodes_cfg *all; /* Outlives the pool */
	struct k8s *k8s;                    /* The same */
	const struct config_inference_pool *pool;
	const char *space; /* Namespace; copied */
};

struct engine_pool;
/* Watch the pool. Nothing is told inline. CGN_INVALID: the key's file is wrong; CGN_NO_MEMORY. A half-open pool is closed with
 * engine_pool_close. */
CGN_RC engine_pool_open(const struct engine_pool_cfg *cfg, struct engine_pool **out, struct cgn_err *err);
/* Free the nodes without telling. NULL-safe. */
void engine_pool_close(struct engine_pool **take);
/* True once the pool and its pods were told, or that there is no pool. */
bool engine_pool_is_heard(const struct engine_pool *p);
bool engine_pool_is_away(const struct engine_pool *p); /* The Kubernetes API does not answer now. */

struct engine_pool_status {
	const char *name; /* "NAMESPACE/NAME"; borrowed */
	size_t nodes;     /* Nodes of its pods, also those that leave */
	bool connected;   /* The API server is reachable */
	char why[400];    /* Why there is no node, or the error; empty: neither */
};
void engine_pool_status(const struct engine_pool *p, struct engine_pool_status *out);
/* Note errors in the settings and their files. */
struct svc_problems;
void engine_pool_check(const struct config_inference_pool *pool, struct svc_problems *out);
