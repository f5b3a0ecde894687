/* SPDX-License-Identifier: Apache-2.0 */
/* place: a request's place among those that its tenant may have at the nodes of a model. A request has one from its first leg that
 * is sent, whatever legs follow, until it ends. */
#pragma once
#include "router/request/request/request.h"
#include "router/shared/quotas/quotas.h"

/* Take a place for the request that |p| was picked for. True: it has one. False: its tenant has its share. */
bool gw_place_take(struct gw_req *r, const struct chooser_pick_result *p);
/* Take over the place that the request's ticket got. */
void gw_place_admitted(struct gw_req *r);
/* Give the place back, if there is one. Safe for every request. */
void gw_place_give(struct gw_req *r);
/* Is it the tenant's share that keeps the request from being sent? Then |told| says how much it has. */
bool gw_place_lacks(struct gw_req *r, struct quota_told *told);
/* Refuse the request because of that. */
enum gw_step gw_place_refuse(struct gw_req *r, const struct quota_told *told, unsigned retry_after);
