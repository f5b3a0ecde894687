/* SPDX-License-Identifier: Apache-2.0 */
/* worker: the state of one worker loop: its view of the cluster, its rules, its connections to agents and what
 * its requests share. client/gateway.h starts, updates and ends workers. */
#pragma once
#include "io/os/loop/loop.h"
#include "io/wire/http/client.h"
#include "io/wire/http/server.h"
#include "policy/node/breaker/budget.h"
#include "policy/route/chooser/chooser.h"
#include "policy/route/cluster/view.h"
#include "policy/route/explain/explain.h"
#include "router/metrics.h"
#include "router/shared/rules/rules.h"
#include "router/shared/worker/shared.h"

struct gw_hook_client; /* hooks/client.c: connections to an external check */
struct gw_link;
struct gw_peer;
struct gw_underways;     /* account/underway.c: requests under way */
struct gw_tenant_use;    /* account/tenants.c: metric cells of one tenant */
struct gw_series;        /* account/series.c: metric cells of one model */
struct gw_shadow;        /* account/explain.c: metric cells of one shadow policy */
struct gw_store;         /* limit/store.c: the Redis that routers share limits in */
struct gw_tokens_worker; /* tokens/tokens.c: prompt cache and facts of models */

/* The port where the requests of one peer, another cluster, come in. */
struct gw_gate {
	struct gw_worker *w;
	struct gw_peer *peer;
	struct http_server *server;
};

#define GW_WORKER_TAG  0x64305e01U
#define GW_COUNT_EVERY CGN_SEC /* period of count_timer */
#define GW_COUNT_LATE  (GW_COUNT_EVERY + 500 * CGN_MSEC)

struct gw_worker {
	uint32_t tag;
	unsigned index;
	struct gw_shared *shared;
	struct cgn_loop *loop;
	struct http_server *server;
	struct cluster_view *view; /* a reference */
	struct gw_rules *rules;    /* a reference */
	struct chooser *chooser;
	uint32_t sent; /* requests sent; picks the engine that is asked for tokens next */
	struct gw_link *links[ROUTE_MAX_NODES];
	struct gw_gate gates[CLUSTER_PEERS];
	size_t n_gates, n_draining;               /* |n_draining|: servers that have still connections */
	struct http_client *peers[CLUSTER_PEERS]; /* connections to each peer; NULL: none was needed yet */
	uint64_t random;                          /* state of the generator of request ids and jitter */
	struct retry_budget budget;
	cgn_nsec
		looked_at; /* when a request last found a refused model on no other node (plan/refused.c); 0: never */
	struct gw_underways *underway; /* NULL: nothing is counted */
	struct gw_tenant_use *tenants; /* NULL: none served yet */
	struct gw_series *series;
	size_t n_series;
	struct gw_series *other; /* Models beyond the bound have this one; NULL: none was served yet */
	struct gw_tokens_worker *tokens;
	struct explain_ring *explain; /* NULL when router.explain_size is 0 */
	uint64_t explained;           /* last request number given out for the explain ring */
	struct gw_shadow *shadows;    /* ROUTE_POLICIES */
	double shadow_due;            /* shadow decisions due; sampled when it reaches 1 */
	struct gw_store *store;       /* NULL: limits are this router's own */
	struct gw_hook_client
		*hooks[GW_HOOKS]; /* NULL: this check is not set, or its client could not be made */
	struct metric_cell *pick_seconds, *prompt_tokens, *completion_tokens;
	struct cgn_timer count_timer;
	cgn_nsec counted_at; /* last run of count_timer */
	cgn_nsec away_until; /* last run of count_timer that was late; 0: none */
	/* A request waited for nodes to tell their models, and none did: until then the default model does not wait for them. */
	cgn_nsec untold_until;
	_Atomic uint32_t connections; /* open client connections; read by the control loop */
	void (*on_idle)(void *arg);   /* called on the worker's loop when drained */
	void *idle_arg;
	struct cgn_post drain_post, stop_post;
};

/* Return true if this worker's thread itself stopped or lacked the CPU within the last second, so that silence
 * of a node proves nothing. */
bool gw_worker_was_away(const struct gw_worker *w);

/* Return a random number in [0, 1). */
double gw_random(struct gw_worker *w);
