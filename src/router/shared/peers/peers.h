/* SPDX-License-Identifier: Apache-2.0 */
/* peers: the other sides of [peers] that requests may leave for, shared by all workers. All is constant from the start on,
 * but for the atomic counters. Times: by the loops' clock. */
#pragma once
#include <stdatomic.h>

#include "base/core/arena.h"
#include "policy/config/config.h"
#include "policy/node/engine/engine.h"
#include "policy/who/budget/budget.h"

struct gw_summaries; /* summaries.h */
struct tls_ctx;

/* A model that may leave, under our name and the peer's. */
struct gw_peer_model {
	struct cgn_str ours, theirs, json; /* |json|: |theirs| as a JSON string, quotes included */
	_Atomic uint32_t open;             /* requests of the model at the peer */
	_Atomic cgn_nsec rest_until;       /* as that of the peer, for the model alone */
};

/* A row of accepts_tenants. */
struct gw_peer_tenant {
	struct cgn_str theirs; /* Pattern, or a name where |ours| is set. */
	struct cgn_str ours;   /* Our tenant; empty: "PEER/TENANT". */
	struct cgn_str label;  /* Name of the row in metrics, usage and shares: "PEER/PATTERN", or |ours|. */
};

struct gw_peer {
	const char *name;
	const char *node;       /* "peer:NAME": where logs and metrics have a node's id */
	const char *url;        /* NULL: requests only come from there */
	struct cgn_str account; /* "p:NAME": in the book of budgets */
	uint16_t slot;          /* behind the slots of nodes: of its node_stats and its outlier_tally */
	int kind;               /* CONFIG_PEER_* */
	const char *key;        /* secret; NULL: none */
	const char *bearer;     /* "Bearer KEY"; NULL: none */
	const char *ca_file;
	struct tls_ctx *tls; /* owned; NULL: in clear, on this machine */
	struct gw_peer_model *models;
	size_t n_models;
	struct cgn_str *tenants; /* patterns */
	size_t n_tenants;
	/* A cluster: */
	const char *listen;      /* where its requests come in; NULL: none do */
	struct tls_ctx *gate;    /* owned; of |listen| */
	struct cgn_str *accepts; /* patterns of the models that it may ask for */
	size_t n_accepts;
	struct gw_peer_tenant *arrivals; /* Rows of accepts_tenants. */
	size_t n_arrivals;
	struct gw_summaries *summaries; /* owned; its summaries; NULL: there are none */
	_Atomic bool lost;              /* the heartbeat is silent */
	_Atomic cgn_nsec rtt;           /* round trip of the heartbeat; 0: not measured yet */
	unsigned min_priority;
	const struct engine_resume *resume; /* how it continues an answer; NULL: not at all */
	uint64_t input, output;             /* trillionths of the currency a token */
	struct budget_set budgets;          /* budget of the day; empty: the peer has no price */
	uint32_t max_concurrent;
	cgn_nsec expected_ttft, first_byte_timeout;
	_Atomic uint32_t open;       /* requests at the peer */
	_Atomic cgn_nsec ttft;       /* as peer_ttft_learn has it; 0: not measured yet */
	_Atomic cgn_nsec rest_until; /* the peer asked for a pause; 0: none */
};

struct gw_peers {
	uint32_t tag;
	struct cgn_arena arena;
	struct gw_peer *v;
	size_t n;
	const char *cluster; /* our name in X-Cgn-Via */
};

/* Make the table of cfg->peers; NULL when router.federation.enabled is not set. CGN_INVALID, CGN_TLS: a file cannot be
 * used; the message names the peer and the file. */
CGN_RC gw_peers_open(const struct config *cfg, struct gw_peers **out, struct cgn_err *err);
void gw_peers_close(struct gw_peers **take); /* NULL-safe; no worker runs. */

/* Return the row of our name |model| at the peer. NULL: requests for the model may not leave for it. */
struct gw_peer_model *gw_peer_model(const struct gw_peer *p, struct cgn_str model);
/* May requests of |tenant| leave for the peer? */
bool gw_peer_takes_tenant(const struct gw_peer *p, struct cgn_str tenant);
/* Is the peer another cluster? */
bool gw_peer_is_cluster(const struct gw_peer *p);
/* Return the row for requests of the peer's tenant |theirs|; NULL: it sends none here. */
const struct gw_peer_tenant *gw_peer_arrival(const struct gw_peer *p, struct cgn_str theirs);
/* Is |tenant| a name that only a peer's requests may have, "PEER/..."? |peers| may be NULL. */
bool gw_peers_own_tenant(const struct gw_peers *peers, struct cgn_str tenant);
/* May the peer ask for |model| here? */
bool gw_peer_may_ask(const struct gw_peer *p, struct cgn_str model);
/* Does the peer have the route |path|, a query included? */
bool gw_peer_has_route(const struct gw_peer *p, struct cgn_str path);
/* Return the price of the tokens, in the parts that policy/who/budget counts. */
uint64_t gw_peer_price(const struct gw_peer *p, uint64_t input, uint64_t output);
/* May any request for |model| leave? |peers| may be NULL. */
bool gw_peers_know(const struct gw_peers *peers, struct cgn_str model);
/* May any request leave? |peers| may be NULL. */
bool gw_peers_answer(const struct gw_peers *peers);
/* Return how many requests for |model| are away. |peers| may be NULL. */
uint32_t gw_peers_open_requests(const struct gw_peers *peers, struct cgn_str model);
