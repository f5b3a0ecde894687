/* SPDX-License-Identifier: Apache-2.0 */
/* hooks: the external checks ([hooks], docs/fleet/access/hooks.md): one is asked before a request goes to an engine, the other before
 * its client gets the answer. Questions go over kept connections of the worker, and nothing waits but the request. */
#pragma once
#include "router/request/request/request.h"

/* ---- the worker ---- */

/* Make the clients of the URLs that w->rules have; earlier ones end with their last question. A client that cannot be
 * made is logged, and each question to it fails. */
void gw_hooks_open(struct gw_worker *w);
void gw_hooks_close(struct gw_worker *w); /* After the last request has ended. */

/* ---- before ---- */

/* Must the question before be asked now? True once per request at most, when its body was read. */
bool gw_hook_is_due(const struct gw_req *r);
/* The state GW_HOOK. */
enum gw_step gw_hook(struct gw_req *r);

/* ---- after: all that an engine's answer makes for the client goes through these ---- */

/* As http_exchange_head, http_exchange_body and http_exchange_end, or kept until it is allowed. */
void gw_out_head(struct gw_req *r, int status, const struct http_field *fields, size_t n, int64_t length);
void gw_out_body(struct gw_req *r, struct cgn_str bytes);
void gw_out_end(struct gw_req *r, const struct http_field *trailers, size_t n);

/* Would gw_out_head hold back an answer with |status| to this request? */
bool gw_hold_applies(const struct gw_req *r, int status);
/* Is the answer, or a part of it, held back? */
bool gw_hold_is_on(const struct gw_req *r);
/* Is there something to do for gw_hold_step since it was called last? */
bool gw_hold_is_due(const struct gw_req *r);
/* Ask about the bytes that have come, and send the allowed ones. False: the client gets no more; go to
 * GW_CHECK. Call from a state's handler. */
bool gw_hold_step(struct gw_req *r);
/* The engine's answer broke off: drop bytes that were not allowed, and let the client have the error. */
void gw_hold_cut(struct gw_req *r, const char *why);
/* The state GW_CHECK. */
enum gw_step gw_check(struct gw_req *r);

/* Cancel questions under way and free everything; safe when there are none. */
void gw_hook_end(struct gw_req *r);
