/* SPDX-License-Identifier: Apache-2.0 */
/* isolation: the secret of tenants' salts, and the engines that cannot keep tenants apart. Control loop. */
#pragma once
#include "base/core/buf.h"
#include "base/core/err.h"
#include "base/digest/digest.h"
#include "policy/route/routing/routing.h"

struct config;
struct router;

/* The secret of tenants' salts. */
struct router_isolation {
	struct digest secret;
	bool own; /* The router keeps it itself: no file is set. */
	bool leaky
		[ROUTE_MAX_NODES]; /* By slot: the log says that the node's engine cannot keep tenants apart. */
};

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
