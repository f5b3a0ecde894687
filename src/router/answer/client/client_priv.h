/* SPDX-License-Identifier: Apache-2.0 */
/* client, the room: the connections of clients on a worker: heads and bodies come in, and the machine of each request is driven. */
#pragma once
#include "router/request/request/request.h"

extern const struct http_server_ops gw_http_ops;            /* exchange.c */
extern const struct http_server_ops gw_gate_ops;            /* exchange.c: of the ports of peers */
extern const struct gw_state_row gw_states[GW_STATE_COUNT]; /* states.c */

/* head.c: fill in r->client, r->identity and r->body from the head. False: out of memory. */
bool gw_head_take(struct gw_req *r, const struct http_head *h);
/* head.c: name the request and its Idempotency-Key at engines as the tenant's own. The tenant is known and nothing was
 * asked yet; once. */
enum gw_step gw_head_bind(struct gw_req *r);
/* head.c: the path that |path|, without a query, is another name of; else |path|. */
struct cgn_str gw_alias_resolve(struct cgn_str path);
/* site.c: note the web page that a browser's request comes from, and let its answer have the fields of CORS. False: out of
 * memory. */
bool gw_site_take(struct gw_req *r, const struct http_head *h);
/* site.c: refuse a request of a page that may not ask, and answer a preflight. */
enum gw_step gw_site_check(struct gw_req *r);
/* session.c: the client's session, or a new one. False: out of memory. */
bool gw_session_take(struct gw_req *r, const struct http_head *h);

enum gw_step gw_auth(struct gw_req *r);   /* auth.c */
enum gw_step gw_body(struct gw_req *r);   /* auth.c */
enum gw_step gw_finish(struct gw_req *r); /* exchange.c */
