/* SPDX-License-Identifier: Apache-2.0 */
/* gateway: workers, as the control loop sees them: a worker is a thread with a loop and a listener, and serves
 * the clients that connect to it. */
#pragma once
#include "router/request/limit/limit.h"
#include "router/request/tokens/tokens.h"
#include "router/shared/worker/breaker.h"
#include "router/shared/worker/worker.h"

/* INVALID: a route of router.extra_routes is one that the gateway has itself. */
CGN_RC gw_extra_routes_check(const struct config *cfg, struct cgn_err *err);

struct gw_worker_cfg {
	const struct gw_store_cfg *store; /* NULL: limits are this router's own */
	unsigned index;
	struct gw_shared *shared; /* outlives the worker */
	struct http_server_cfg http;
	size_t prompt_cache; /* bytes */
	size_t explain;      /* bytes; 0: no record */
};
/* Make a worker that listens; it serves once gw_worker_start was called. Takes references of |view| and |rules|.
 * INVALID, or why it can't listen. */
CGN_RC gw_worker_new(const struct gw_worker_cfg *cfg, struct cluster_view *view, struct gw_rules *rules,
	struct gw_worker **out, struct cgn_err *err);
CGN_RC gw_worker_start(struct gw_worker *w, struct cgn_err *err);
/* Let the worker listen as |http| says for the requests of |peer|. Before gw_worker_start. As gw_worker_new. */
CGN_RC gw_worker_gate(struct gw_worker *w, struct gw_peer *peer, const struct http_server_cfg *http,
	struct cgn_err *err);
/* Any thread: replace the worker's view and rules. Takes references; NULL: no change. */
void gw_worker_update(struct gw_worker *w, struct cluster_view *view, struct gw_rules *rules);
/* Any thread: stop listening; call |on_idle|, on the worker's loop, when no connection is left. */
void gw_worker_drain(struct gw_worker *w, void (*on_idle)(void *arg), void *arg);
/* Cut the connections that are left and end the thread. Call on the thread that made the worker. */
void gw_worker_free(struct gw_worker **take);
