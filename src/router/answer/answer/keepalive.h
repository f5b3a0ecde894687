/* SPDX-License-Identifier: Apache-2.0 */
/* keepalive: comments between the events of a stream that brings nothing for a long time (router.sse_keepalive), so that proxies
 * and clients do not take it for dead. Where the client's API streams events, comments come before the engine's first byte
 * too: the head is then sent early, with status 200. Retries stay possible; a failure ends the stream with the error event of
 * the API. */
#pragma once
#include "router/request/request/request.h"

/* The request may go to an engine now: begin to watch its silence. Does nothing when that was begun, or is not set. */
void gw_keepalive_begin(struct gw_req *r);
/* The engine's head came. Decides whether its events may have comments between them. If the client has its
 * head already, an answer other than a plain event stream is kept, to be told as an error: answer.unfit. */
void gw_keepalive_head(struct gw_req *r, bool encoded);
/* Keep bytes of an answer that is unfit, up to GW_HELD_MAX. */
void gw_keepalive_keep(struct gw_req *r, struct cgn_str data);
/* Tell an answer that is unfit as an error event. The caller ends the answer. */
void gw_keepalive_unfit(struct gw_req *r);
/* Tell the refusal |how| with its JSON text |body| as an error event, and end the answer. */
void gw_keepalive_refuse(struct gw_req *r, const struct gw_refusal *how, struct cgn_str body);
