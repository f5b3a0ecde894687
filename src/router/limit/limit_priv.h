/* SPDX-License-Identifier: Apache-2.0 */
/* limit: what of one request is reserved. Belongs to the request; of its worker's loop. */
#pragma once
#include "base/digest/digest.h"
#include "io/redis/redis.h"
#include "policy/limit/limit.h"
#include "policy/prompt/prompt.h"
#include "router/request/gateway.h"

enum limit_unit { LIMIT_REQUESTS, LIMIT_TOKENS, LIMIT_UNITS };
enum limit_subject { LIMIT_KEY, LIMIT_ADDRESS, LIMIT_TENANT, LIMIT_SUBJECTS };
#define GW_MAX_LIMITS      4   /* a key's or an address's, and a tenant's, of both units */
#define LIMIT_ADDRESS_MAX  56  /* "2001:db8:1:2::/64" */
#define LIMIT_NAME_MAX     112 /* of a bucket: "k:3f9a12c4:r:10000/10" */
#define LIMIT_DURATION_MAX 40

struct gw_limit {
	enum limit_subject subject;
	enum limit_unit unit;
	struct limit_rate rate; /* as it was when the request came: SIGHUP may change it meanwhile */
	uint64_t key;           /* of the bucket in the table */
	uint64_t reserved;      /* units */
	struct limit_answer answer;
	char name[LIMIT_NAME_MAX];
};
struct gw_limits {
	uint32_t tag;
	unsigned n;
	struct gw_limit v[GW_MAX_LIMITS];
	bool reserved; /* all of them, or none */
	bool stored;   /* in the store, not in our table */
	bool asking;   /* the store: it will answer */
	struct gw_worker *w;
	struct gw_req *r; /* NULL: gone, and an answer is still to come */
	bool never;       /* refused, and would be again */
	uint64_t prompt_tokens, events;
};

/* Settle and free them. |used|: of each, units; NULL: none was. Not while the store is asked. */
void limit_end(struct gw_limits *l, const uint64_t *used);

/* limit_store.c: Redis. False: it is not there, so our own table decides. Else gw_wake(r) follows, with
 * l->stored unless it failed. */
bool gw_store_ask(struct gw_req *r, struct gw_limits *l);
void gw_store_settle(struct gw_worker *w, const struct gw_limits *l, const uint64_t *used);

/* The client's address of "host:port" as limits count it: an IPv4 address, the /64 of an IPv6 one, "unix". */
void limit_address(struct cgn_str peer, char out[LIMIT_ADDRESS_MAX]);
void limit_duration(cgn_nsec d, char out[LIMIT_DURATION_MAX]);
