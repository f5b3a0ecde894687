/* SPDX-License-Identifier: Apache-2.0 */
/* limit: rate limits of keys, client addresses and tenants. */
#pragma once
#include "io/wire/redis/redis.h"
#include "router/request/request/request.h"

/* The state GW_LIMIT: reserve a request and its tokens, or refuse it. */
enum gw_step gw_limit(struct gw_req *r);
/* Give back the reserved amounts that were not used. Call when usage is known as far as it ever will be; safe
 * when nothing is reserved. */
void gw_limit_settle(struct gw_req *r);
/* Return the expected tokens of the answer. */
uint64_t limit_answer_estimate(const struct gw_req *r);
#define GW_LIMIT_FIELDS 10
/* Write the x-ratelimit fields to |f|, with strings in the request's arena. Returns how many. */
size_t gw_limit_fields(struct gw_req *r, struct http_field *f);

/* ---- limits that routers share ---- */

struct gw_store_cfg {
	bool set; /* false: each router counts for itself */
	struct redis_url url;
	struct tls_ctx *tls; /* owned */
	char prefix[100];    /* prefix of all keys */
	cgn_nsec timeout;    /* budget of one call */
};
/* Read the settings, and the password's file. INVALID: a setting or that file. */
CGN_RC gw_store_cfg(const struct config *cfg, struct gw_store_cfg *out, struct cgn_err *err);
void gw_store_cfg_fini(struct gw_store_cfg *c);
/* |cfg| NULL or not set: no store. */
void gw_store_open(struct gw_worker *w, const struct gw_store_cfg *cfg);
void gw_store_close(struct gw_worker *w);
