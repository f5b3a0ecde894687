/* SPDX-License-Identifier: Apache-2.0 */
/* rules: the settings of the configuration and the key file that apply to requests, in the form that workers
 * read: immutable and counted. A worker holds no pointer into the configuration, which SIGHUP replaces. */
#pragma once
#include <stdatomic.h>

#include "base/core/arena.h"
#include "policy/answer/passing/passing.h"
#include "policy/config/config.h"
#include "policy/node/breaker/breaker.h"
#include "policy/route/arms/arms.h"
#include "policy/route/explain/explain.h"
#include "policy/route/peer/worth.h"
#include "policy/route/queue/queue.h"
#include "policy/route/routing/routing.h"
#include "policy/who/auth/auth.h"
#include "policy/who/budget/budget.h"
#include "policy/who/identity/identity.h"
#include "policy/who/isolation/isolation.h"
#include "policy/who/rate/rate.h"
#include "policy/who/site/site.h"
#include "router/shared/rules/cascade.h"
#include "router/shared/rules/hooks.h"

#define GW_BLOCK_BYTES  256 /* Block size of models that are not configured. */
#define GW_BLOCK_TOKENS 16

struct gw_tokenizer_set;
struct oidc;

struct gw_model {
	struct cgn_str name;
	const struct cgn_str *aliases;
	size_t n_aliases;
	uint32_t block_bytes, block_tokens;
	int tokens;                          /* TOKENS_* of the configuration. */
	struct gw_tokenizer_set *tokenizers; /* Owned; NULL: no tokenizer is configured. */
};

/* A name of a model: its own, or an alias. */
struct gw_model_name {
	struct cgn_str name;
	const struct gw_model *model;
};

struct gw_rates {
	struct rate requests, tokens; /* Each may be unset. */
};

/* Settings of the tenant that keys belong to. */
struct gw_tenant {
	struct cgn_str name; /* Empty: the row for tenants without one. */
	uint32_t weight, max_priority;
	struct gw_rates rates; /* For all keys of the tenant together. */
	struct cgn_str share;  /* Group of tenants that share caches; empty: none. */
	struct budget_set budgets;
};

/* Whether tenants share caches. */
struct gw_isolation {
	bool on;     /* Tenants do not. False without authentication: there is one tenant. */
	bool strict; /* Requests for engines that cannot keep tenants apart are refused. */
	struct digest secret;
};

/* The prices of a model: trillionths of the currency a token. */
struct gw_price {
	struct cgn_str pattern;
	uint64_t input, cached_input, output;
};

/* Where the access log goes. */
enum gw_access { GW_ACCESS_STDERR, GW_ACCESS_OFF, GW_ACCESS_FILE };

struct gw_access_rules {
	enum gw_access to;
	double sample; /* Share of the requests that are logged, besides those that failed. */
};

/* Policies that are asked too. */
struct gw_shadow_rules {
	struct arms_rules arms; /* The policies, and the share of sessions that follows them. */
	double sample;          /* Share of the decisions for which they are asked. */
};

/* The rules for callers. */
struct gw_auth_rules {
	bool asks; /* A key or a token is needed. */
	struct identity_roles *roles;
	struct auth_keys *keys; /* A reference; NULL: there are no keys. */
	struct oidc *oidc;      /* Borrowed; NULL: tokens are not taken. */
};

/* Requests that are sent again, and the pause before. */
struct gw_retry_rules {
	uint32_t attempts;
	unsigned on; /* Bits of enum breaker_failure. */
	double budget;
	cgn_nsec backoff;
};
/* Longest times of an engine. */
struct gw_timeout_rules {
	cgn_nsec first_byte, stream_idle, tokenize;
	cgn_nsec stall; /* 0: never. */
};
/* The queue of requests that wait for room. */
struct gw_queue_rules {
	uint32_t most; /* 0: requests do not wait. */
	enum queue_policy policy;
	cgn_nsec timeout, ttft_slo /* 0: none. */, node_wait;
};
struct gw_outlier_rules {
	bool on;
	double failure_share, max_ejected;
};
struct gw_quote_rules {
	bool on;                    /* router.quote.enabled */
	double deadline_confidence; /* 0: the prediction decides. */
	double coverage;
};
/* Routes and fields of clients' heads that engines get too. */
struct gw_pass_rules {
	struct passing_route *routes;
	size_t n_routes;
	struct cgn_str *headers;
	size_t n_headers;
};
struct gw_price_rules {
	struct gw_price *rows; /* Without patterns first. */
	size_t n;
	char currency[BUDGET_CURRENCY];
};

struct gw_rules {
	uint32_t tag;
	_Atomic uint32_t refs;
	struct cgn_arena arena;
	struct route_rules route;
	struct cgn_str session_cookie; /* Cookie name; empty: none. */
	bool session_secure;           /* The cookie is for https only, as the gateway is. */
	struct cgn_str
		default_model; /* For requests whose model is missing or unknown; n 0: they are refused. */
	uint64_t max_body, max_inflight_body, resume_size;
	bool resume;
	cgn_nsec sse_keepalive; /* 0: never. */
	struct gw_pass_rules pass;
	struct gw_access_rules access;
	struct gw_timeout_rules timeout;
	struct gw_retry_rules retry;
	struct breaker_rules breaker;
	struct gw_outlier_rules outlier;
	struct gw_shadow_rules shadow;
	struct gw_rates rates; /* For each key, or for each address when authentication is off. */
	struct gw_queue_rules queue;
	struct peer_rules away; /* router.federation: which requests leave */
	unsigned away_hops;     /* router.federation.max_hops */
	struct gw_quote_rules quote;
	struct gw_auth_rules auth;
	struct site_rules site;  /* The web pages that may ask; machine is set by gw_rules_take_machine. */
	struct gw_model *models; /* In the order of the configuration. */
	size_t n_models;
	struct gw_model_name *names; /* All names of the models, sorted. */
	size_t n_names;
	struct gw_tenant *tenants; /* Sorted by name; the row after the last is for all other tenants. */
	size_t n_tenants;
	struct gw_isolation isolation;
	struct gw_hook_rules hooks;
	struct gw_cascade_rules cascade;
	struct gw_price_rules price;
};

/* Make rules with one reference. They take a reference to |keys|; NULL when authentication is off, or has no file. |secret|: of
 * security.isolation_secret_file. */
CGN_RC gw_rules_new(const struct config *cfg, struct auth_keys *keys, const struct digest *secret,
	struct gw_rules **out, struct cgn_err *err);
/* Take tokens of that provider too, where keys are asked for; |oidc| lives longer. Before any worker has the rules. */
void gw_rules_take_tokens(struct gw_rules *r, struct oidc *oidc);
/* Let |name|, which lives longer, be a name of the gateway. Before any worker has the rules. */
void gw_rules_take_machine(struct gw_rules *r, const char *name);
/* Load the tokenizers of each model that has some, before any worker has the rules. Unchanged ones are shared
 * with |old| (NULL: none).
 *
 * With |keep|, a model whose files are refused keeps its old tokenizers, or has none, and |refused| is
 * called; without, that is an error. */
CGN_RC gw_rules_load_tokenizers(struct gw_rules *r, const struct config *cfg, const struct gw_rules *old,
	bool keep, void (*refused)(void *user, const char *model, bool has_old, const struct cgn_err *why),
	void *user, struct cgn_err *err);
/* Does the router read the tokenizer's file of this model? */
bool gw_reads_tokenizer(const struct config_model *m);
void gw_rules_ref(struct gw_rules *r);       /* Any thread. */
void gw_rules_unref(struct gw_rules **take); /* Any thread. */
const struct gw_model *gw_rules_model(const struct gw_rules *r,
	struct cgn_str name); /* Return the model by name or alias; NULL: not configured. */
/* Return the name under which the router knows |name|: the model's own name for an alias, else |name|. A
 * view_name_fn; |rules| is a struct gw_rules. */
struct cgn_str gw_rules_name_of(const void *rules, struct cgn_str name);
/* Return the tenant |name| as an owner of caches. Borrowed from |name| and the rules. */
struct isolation_owner gw_rules_owner(const struct gw_rules *r, struct cgn_str name);
/* Return the prices of the model: of its name, else of the first pattern that matches it; NULL: none. */
const struct gw_price *gw_rules_price(const struct gw_rules *r, struct cgn_str model);
/* Return the row of |name|, or the row for all other tenants; never NULL. */
const struct gw_tenant *gw_rules_tenant(const struct gw_rules *r, struct cgn_str name);
