/* SPDX-License-Identifier: Apache-2.0 */
/* selection: tells a client which node should get a request that the client sends there itself (docs/fleet/traffic/selection.md):
 * POST /select chooses, POST /select_and_reserve waits for room and books the node's load too, POST /reservations books a
 * certain node, and the routes below /reservations/ID report how the request goes on. A request for a selection goes
 * through the states as the request that it is about would: key, limits, hooks, tokens, queue; it ends where that one
 * would be sent. Only nodes whose engines take requests of others (agent.direct) can be chosen. */
#pragma once
#include "router/request/request/request.h"

/* Let a request for a selection be of the route that its query names, so that it is read as that request would be.
 * Leaves GW_AUTH when it names none. Other requests are left alone. */
enum gw_step gw_select_route(struct gw_req *r);
/* Read the body if it is one of the selection API, and make it one of an engine; call before anything else reads it. True: go
 * on. False: the request is refused, or |then| is called in GW_ROUTE, which calls this again. */
bool gw_select_read(struct gw_req *r, void (*then)(struct gw_req *r));
/* Add the slots of the model's ready nodes that can't be chosen to the |n| slots of |tried|; return both, in the
 * request's arena. */
const uint16_t *gw_select_excluded(struct gw_req *r, const struct view_model *m, const uint16_t *tried,
	size_t *n);
/* No node can be chosen at all, or the body has to change in a way that its client cannot follow: then the request is
 * refused. */
bool gw_select_refuses(struct gw_req *r);
/* The request is only about the choice: nothing is booked, and it waits for nothing. */
bool gw_select_only_picks(const struct gw_req *r);
/* Answer with the node that |p| picked, without booking it. */
enum gw_step gw_select_reply(struct gw_req *r, const struct chooser_ask *ask,
	const struct chooser_pick_result *p);
/* Book the place that |p| has claimed, and answer with its node; without memory, or if the id is in use, the place is given
 * back. */
enum gw_step gw_select_book(struct gw_req *r, const struct chooser_ask *ask, struct chooser_pick_result *p);
/* Answer the routes about a reservation, and the list of workers: GET /workers. There may be room afterwards. */
enum gw_step gw_select_local(struct gw_req *r);
void gw_select_end(struct gw_req *r); /* The request is over. */
/* Once a second: end the reservations whose lease is over. Returns true if there were some: then there is room. */
bool gw_select_sweep(struct gw_worker *w);
