/* SPDX-License-Identifier: Apache-2.0 */
/* limit: the reservations of one request. Belongs to the request, on its worker's loop. */
#pragma once
#include "base/digest/digest.h"
#include "io/net/net/addr.h"
#include "policy/text/prompt/prompt.h"
#include "policy/who/budget/budget.h"
#include "policy/who/rate/rate.h"
#include "router/request/account/account.h"
#include "router/request/limit/limit.h"

enum limit_unit { LIMIT_REQUESTS, LIMIT_TOKENS, LIMIT_UNITS };
enum limit_subject { LIMIT_KEY, LIMIT_ADDRESS, LIMIT_TENANT, LIMIT_SUBJECTS };
#define GW_MAX_LIMITS      4   /* A key or an address, and a tenant, each with both units */
#define LIMIT_NAME_MAX     112 /* Length of a bucket's name, such as "k:3f9a12c4:r:10000/10" */
#define LIMIT_DURATION_MAX 40

struct gw_limit {
	enum limit_subject subject;
	enum limit_unit unit;
	struct rate rate;  /* Rate at the request's arrival: SIGHUP may change the rules meanwhile */
	uint64_t key;      /* Hash of the bucket's name, the key in the table */
	uint64_t reserved; /* units */
	struct rate_answer answer;
	char name[LIMIT_NAME_MAX];
};
/* A subject with budgets. */
struct gw_spender {
	enum limit_subject subject;
	char name[BUDGET_NAME_MAX + 1];
	struct budget_set set;
	struct budget_amounts want;
	struct budget_answer answers[BUDGET_MAX];
	struct budget_held held;
};
#define GW_SPENDERS   2 /* A key, and a tenant. */
#define GW_STORE_KEYS (GW_MAX_LIMITS + GW_SPENDERS * BUDGET_MAX)

struct gw_limits {
	uint32_t tag;
	unsigned n;
	struct gw_limit v[GW_MAX_LIMITS];
	bool reserved; /* True: every limit is reserved; false: none */
	bool stored;   /* True: reserved in the store; false: in the worker's table */
	bool asking;   /* A call of the store is open */
	struct gw_worker *w;
	struct gw_req *r; /* NULL: the request has ended, and the store has still to answer */
	bool never;       /* refused, and a later attempt would be refused too */
	struct gw_spender spenders[GW_SPENDERS];
	unsigned n_spenders;
};

/* Settle and free |l|. |used|: units used of each limit; |spent| of each budget; NULL: none. The store must not be asked at the
 * moment. */
void limit_end(struct gw_limits *l, const uint64_t *used, const struct budget_amounts *spent);

/* budgets.c */
bool gw_budgets_apply(const struct gw_req *r);
/* Note the request's budgets in |l|, and what it may use. */
void gw_budgets_begin(const struct gw_req *r, struct gw_limits *l);
/* Reserve in this router's book; false: a budget refuses. gw_budgets_settle gives the reserved amounts
 * back. */
bool gw_budgets_take(struct gw_limits *l);
/* Redis has reserved: copy what it says to this router's book. */
void gw_budgets_mirror(struct gw_limits *l);
/* Can a budget never hold the request? */
bool gw_budgets_never(const struct gw_limits *l);
/* |spent| NULL: nothing. */
void gw_budgets_settle(struct gw_limits *l, const struct budget_amounts *spent);
void gw_budgets_spent(const struct gw_used *used, struct budget_amounts *out);
/* Refuse the request if a budget does; false: none does. */
bool gw_budgets_refuse(struct gw_req *r);
size_t gw_budgets_fields(struct gw_req *r, struct http_field *f);

/* store.c: reserve in Redis. Returns false without Redis: then the worker's table decides. Otherwise
 * gw_wake(r) follows, with l->stored set if the call succeeded. */
bool gw_store_ask(struct gw_req *r, struct gw_limits *l);
void gw_store_settle(struct gw_worker *w, const struct gw_limits *l, const uint64_t *used,
	const struct budget_amounts *spent);

void limit_duration(cgn_nsec d, char out[LIMIT_DURATION_MAX]);
