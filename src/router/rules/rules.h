/* SPDX-License-Identifier: Apache-2.0 */
/* rules: what a configuration and a key file say about requests, in the form that workers read: immutable,
 * counted. A worker holds no pointer into the configuration, which SIGHUP replaces. */
#pragma once
#include <stdatomic.h>

#include "base/core/arena.h"
#include "policy/auth/auth.h"
#include "policy/breaker/breaker.h"
#include "policy/config/config.h"
#include "policy/explain/explain.h"
#include "policy/limit/limit.h"
#include "policy/queue/queue.h"
#include "policy/routing/routing.h"

#define GW_BLOCK_BYTES  256 /* of models without a row of their own */
#define GW_BLOCK_TOKENS 16

struct gw_tokenizer_set;

struct gw_model {
	struct cgn_str name;
	const struct cgn_str *aliases;
	size_t n_aliases;
	uint32_t block_bytes, block_tokens;
	int tokens;                          /* TOKENS_* of the configuration */
	struct gw_tokenizer_set *tokenizers; /* owned; NULL: no tokenizer is configured */
};

struct gw_rates {
	struct limit_rate requests, tokens; /* each may be none */
};

/* What the configuration says of whom keys belong to. */
struct gw_tenant {
	struct cgn_str name; /* empty: the row of those that have none */
	uint32_t weight, max_priority;
	struct gw_rates rates; /* of all its keys together */
};

struct gw_rules {
	uint32_t tag;
	_Atomic uint32_t refs;
	struct cgn_arena arena;
	struct route_rules route;
	struct cgn_str session_cookie; /* its name; empty: none */
	bool session_secure;           /* it is for https alone, as the gateway is */
	uint64_t max_body, max_inflight_body, resume_size;
	bool resume;
	bool disagg;
	uint32_t colocate_below; /* tokens */
	cgn_nsec first_byte_timeout, stream_idle_timeout, retry_backoff, tokenize_timeout;
	cgn_nsec stall_timeout; /* 0: never */
	uint32_t attempts;
	enum route_policy shadows[EXPLAIN_SHADOWS];
	size_t n_shadows;
	double shadow_sample;
	unsigned retry_on; /* bits of enum breaker_failure */
	double retry_budget;
	struct breaker_rules breaker;
	double failure_share, max_ejected;
	bool outliers;
	struct gw_rates rates; /* of each key; of each address where nobody is asked for one */
	uint32_t max_queue;    /* 0: nobody waits */
	enum queue_policy queue_policy;
	cgn_nsec queue_timeout, ttft_slo /* 0: none */, node_wait;
	struct auth_keys *keys;  /* owned; NULL: nobody is asked */
	struct gw_model *models; /* of the configuration, in its order */
	size_t n_models;
	struct gw_tenant *tenants; /* by name; behind the last, the one of all others */
	size_t n_tenants;
};

/* |*keys| is taken, success or failure; NULL when authentication is off. */
CGN_RC gw_rules_new(const struct config *cfg, struct auth_keys **keys, struct gw_rules **out,
	struct cgn_err *err); /* refs 1 */
/* Before any worker has them: each model that has a tokenizer gets its tokenizers. An unchanged one is taken from
 * |old| (NULL: none). With
 * |keep|, a model whose files are refused keeps the old tokenizers, or has none, and |refused| is called; else that
 * is an error. */
CGN_RC gw_rules_load_tokenizers(struct gw_rules *r, const struct config *cfg, const struct gw_rules *old,
	bool keep, void (*refused)(const char *model, bool has_old, const struct cgn_err *why),
	struct cgn_err *err);
void gw_rules_ref(struct gw_rules *r);       /* any thread */
void gw_rules_unref(struct gw_rules **take); /* any thread */
const struct gw_model *gw_rules_model(const struct gw_rules *r,
	struct cgn_str name); /* by name or alias; NULL */
/* The row of |name|, else the one of all others: never NULL. */
const struct gw_tenant *gw_rules_tenant(const struct gw_rules *r, struct cgn_str name);
