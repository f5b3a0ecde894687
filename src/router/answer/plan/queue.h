/* SPDX-License-Identifier: Apache-2.0 */
/* queue: the worker's side of waiting for room on a node. The queues are in admission/. */
#pragma once
#include "router/request/request/request.h"

/* Read X-Cgn-Priority and X-Cgn-Deadline-Ms; refuse values that they can't have. */
enum gw_step gw_queue_check(struct gw_req *r);
/* Take the priority that the body hints at, unless X-Cgn-Priority has set one. */
void gw_queue_hint(struct gw_req *r);
/* Return true if there is anything to decide before the pick: a time to first token to keep, other requests that
 * wait for the model, or a client that does not wait. */
bool gw_queue_concerns(const struct gw_req *r);
/* Return true if the request must wait, |verdict| having been picked. */
bool gw_queue_must_wait(const struct gw_req *r, enum route_verdict verdict);
/* Predict the time to first token from the candidates of |p|: sets plan.ttft. */
void gw_queue_predict(struct gw_req *r, const struct chooser_pick_result *p);
/* Refuse the request if its time to first token can't be kept. */
bool gw_queue_refuse_unmeetable(struct gw_req *r);
/* Refuse a request with Prefer: if-available that |p| would let wait until an engine is loaded. */
bool gw_queue_refuse_load(struct gw_req *r, const struct chooser_pick_result *p);
/* Refuse the request if the budget of power has no room for it even without any other. Call after gw_queue_predict. */
bool gw_queue_refuse_power(struct gw_req *r);
/* Go to GW_QUEUE, which comes back to GW_ROUTE. A request with Prefer: if-available of which the
 * client has seen nothing is refused instead. */
void gw_queue_enter(struct gw_req *r, enum route_verdict verdict);
/* The place is booked, or given up; safe when the request does not wait. */
void gw_queue_end(struct gw_req *r);
/* A booking was given back: tell the queues. */
void gw_queue_room(struct gw_worker *w);
