/* SPDX-License-Identifier: Apache-2.0 */
/* underway: records of what requests under way have used, so that a router that is killed has counted it. A stream has a
 * record from its first byte on, an answer that comes as a whole after UNDERWAY_WHOLE. A worker's records are brought up to date
 * together, each UNDERWAY_EVERY, or each UNDERWAY_SHARE for each of them where that is longer. */
#pragma once
#include "router/request/request/request.h"

#define UNDERWAY_WHOLE (200 * CGN_MSEC)
#define UNDERWAY_EVERY (10 * CGN_MSEC)
#define UNDERWAY_SHARE (100 * CGN_USEC)

void gw_underway_open(struct gw_worker *w);
void gw_underway_close(struct gw_worker *w); /* No request is under way. */
/* An engine is asked. Does nothing for a request that is under way. */
void gw_underway_begin(struct gw_req *r);
/* The request has ended: it changes no more. Before it is counted. */
void gw_underway_stop(struct gw_req *r);
/* Return the place of its record; NULL: it has none. */
struct usage_place *gw_underway_place(const struct gw_req *r);
/* The request was counted, or is not to be: forget its record. */
void gw_underway_end(struct gw_req *r);
