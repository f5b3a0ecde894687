/* SPDX-License-Identifier: Apache-2.0 */
/* client: the client's side of a request: its exchange, its head, who it is, and its body. The folder client/
 * fills it in. Strings are in the request's arena. */
#pragma once
#include "base/coding/coding.h"
#include "io/wire/http/server.h"
#include "joint/who/oidc/oidc.h"
#include "policy/answer/tracing/tracing.h"
#include "policy/node/proto/proto.h"
#include "policy/route/session/session.h"
#include "policy/who/budget/budget.h"
#include "policy/who/identity/identity.h"
#include "policy/who/quota/quota.h"
#include "router/request/route/route.h"

/* A request that another cluster sent, which names itself by its certificate. */
struct gw_arrival {
	struct gw_peer *peer;  /* NULL: the request is a client's */
	struct cgn_str via;    /* clusters that it has left, the first one first: X-Cgn-Via */
	unsigned hops;         /* number of those clusters */
	struct cgn_str tenant; /* X-Cgn-Tenant; empty: none */
	const char *holder;    /* Name in the certificate that was shown; NULL: the request is a client's. */
	bool is_router;        /* |holder| has the role router. */
	const char *twice; /* X-Cgn-Via or X-Cgn-Tenant where the head has it several times; NULL: neither. */
};

/* The exchange and the head. */
struct gw_client {
	struct http_exchange *x; /* NULL once the client's side has ended */
	struct cgn_err why;      /* how it ended */
	const struct gw_route_row *route;
	cgn_nsec started;   /* arrival of the head */
	struct cgn_str id;  /* X-Request-Id, which is echoed; else as |own| */
	struct cgn_str own; /* made here for this request: no client chooses it */
	/* Name of the request at engines: |own|, so that no tenant takes or ends what another's name stands for; |id| where
	 * requests need no key */
	struct cgn_str name;
	struct cgn_str method, path, peer;
	struct cgn_str target;        /* path at engines: |path|, unless the request is translated */
	struct cgn_str pin;           /* node that X-Cgn-Node names; empty: any */
	struct session_name session;  /* with an empty id: none; the tenant is set once the body is read */
	struct session_turn turn;     /* all zero: the request belongs to no session that is kept */
	struct cgn_str set_cookie;    /* field that makes the client keep its session; empty: none */
	struct cgn_str resume_asked;  /* X-Cgn-Resume */
	struct cgn_str cascade_asked; /* X-Cgn-Cascade */
	struct cgn_str priority_text, budget_text; /* X-Cgn-Priority, X-Cgn-Deadline-Ms */
	unsigned priority;                         /* 9 goes first */
	cgn_nsec first_byte_budget;                /* from arrival; 0: the client names none */
	struct proto_header *headers;              /* fields that engines get */
	size_t n_headers;
	struct proto_header *traceparent; /* points into |headers|; NULL: tracing is off */
	struct tracing_context trace;
	bool explain_asked;         /* X-Cgn-Explain */
	bool quote_asked;           /* X-Cgn-Quote */
	struct cgn_str retry_asked; /* X-Cgn-Retry */
	bool retry_off;             /* X-Cgn-Retry: off */
	bool once;                  /* Another node gets it only where the engine did not begin. */
	bool stays;                 /* X-Cgn-Away: off */
	bool if_available;          /* Prefer: if-available */
	struct gw_arrival from;
	bool quotes;           /* asks only for a quote of a request to |target| */
	struct cgn_str subset; /* endpoints that may be selected, with commas between them */
	bool subset_told;
	bool reads_trailers;         /* TE names trailers */
	bool wants_websocket;        /* Upgrade names websocket */
	enum site_verdict site;      /* the verdict on its page and name, where no keys are asked for */
	bool preflight;              /* a browser asks what a page's request may have */
	bool wants_html, wants_text; /* Accept names text/html, or text/plain */
};

struct gw_decoding;
struct gw_peer; /* router/shared/peers */
struct gw_rates;
/* The client's identity, by its key or its token. */
struct gw_identity {
	struct cgn_str authorization, api_key; /* wiped at the end of GW_AUTH */
	enum identity_kind kind;               /* IDENTITY_NONE: no keys are asked for */
	const char *name;                      /* id of the key, or subject of the token; NULL: none */
	const char
		*key_id; /* id of the key, or account of the token's holder: for rates, budgets and usage */
	struct cgn_str tenant; /* "-": no keys are asked for */
	struct cgn_str
		label; /* Common name of the tenants that count as one in metrics, usage and shares; empty: |tenant|. */
	unsigned scopes;
	struct oidc_wait key_wait; /* Wait for the provider's key of a token. */
	bool two_keys;             /* The fields show different keys. */
	bool own;       /* This router asks itself, to calibrate a cascade: nothing is billed or limited. */
	uint64_t roles; /* As principal.roles, for model.use. */
	const char *models;           /* Patterns of the key's models; empty: all; NULL: no key. */
	const struct gw_rates *rates; /* rates of the key, in the request's arena; NULL: those of all keys */
	/* the token's holder, in the request's arena, for routes of kind GW_BATCH; NULL: no token */
	const struct claims_holder *holder;
	const char *cascade;              /* as auth_limits.cascade; NULL: as the client asks */
	const struct budget_set *budgets; /* budgets of the key, in the request's arena; NULL: none */
};

/* Return true if the request is a tenant's, not one that needs no key. */
static inline bool gw_identity_has_tenant(const struct gw_identity *who)
{
	return who->tenant.n > 0 && !cgn_str_is(who->tenant, "-");
}

/* Return the name under which the tenant is counted: of a peer's tenants, however many it invents, the row that accepts
 * them. */
static inline struct cgn_str gw_identity_label(const struct gw_identity *who)
{
	return who->label.n > 0 ? who->label : who->tenant.n > 0 ? who->tenant : CGN_STR("-");
}

/* Return the tenant as agents and rules of peers know it: "-" for requests that need no key. */
static inline struct cgn_str gw_identity_tenant(const struct gw_identity *who)
{
	return who->tenant.n > 0 ? who->tenant : CGN_STR("-");
}

struct gw_body {
	struct cgn_buf bytes;
	uint64_t booked; /* bytes booked of router.max_inflight_body */
	int64_t length;  /* as the head claims it; -1: unknown */
	/* bodies of a leg and of the leg beside it that are not the client's; booked in |booked| too */
	struct cgn_buf leg, beside;
	enum coding_kind coding;      /* as the head says; IDENTITY once the body is decoded */
	struct gw_decoding *decoding; /* in the request's arena, while the body is decoded; decode.c */
	bool done;
	enum cgn_code bad;      /* CGN_FINE, or the reason for refusing it */
	uint64_t shared;        /* bytes that count in the tenant's share of router.max_inflight_body */
	struct quota_told told; /* the tenant's share when more was refused */
};
