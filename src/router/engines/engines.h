/* SPDX-License-Identifier: Apache-2.0 */
/* engines: the nodes without an agent, those of [engine_nodes]. The control loop, its thread. */
#pragma once
#include "router/engines/node.h"

struct svc_problems;

struct engines_ops {
	/* |n| is new and not started. False: it cannot be a node, and is freed; the callee has said why. */
	bool (*came)(void *user, struct engine_node *n);
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
 * CGN_NO_MEMORY. Half-open engines are closed with engines_close. */
CGN_RC engines_open(const struct engines_cfg *cfg, struct engines **out, struct cgn_err *err);
/* Free the nodes without telling. Workers that use their TLS must have ended. NULL-safe. */
void engines_close(struct engines **take);
/* Note what is wrong with the settings and their files, without opening anything. */
void engines_check(const struct config *cfg, struct svc_problems *out);
