/* SPDX-License-Identifier: Apache-2.0 */
/* batching: files and batches: where they are, and the pool that reads them. Control loop. */
#pragma once
#include <limits.h>

#include "base/core/err.h"

struct config;
struct router;

/* Write the path of this router's file |kind| in cluster.state_dir. Several routers of a machine may share the folder:
 * the gateway's address tells them apart. */
CGN_RC router_state_path_by(const struct config *cfg, const char *kind, char out[PATH_MAX],
	struct cgn_err *err);
CGN_RC router_state_path(const struct router *r, const char *kind, char out[PATH_MAX], struct cgn_err *err);
/* Lock these files until the process ends, before one of them is read. CGN_CONFLICT: another process has them. A folder
 * that cannot have a lock is used without one, and so is that of a router whose port the system chooses. */
CGN_RC router_state_lock(const struct router *r, struct cgn_err *err);
/* Enlarge libuv's pool where files are in a bucket. Before the pool's first job. */
void router_pool_size(const struct config *cfg);
CGN_RC router_batches_load(struct router *r, struct cgn_err *err); /* Before workers run. */
CGN_RC router_batches_run(struct router *r, struct cgn_err *err);  /* Once they listen. */
