/* SPDX-License-Identifier: Apache-2.0 */
/* arms: which policy a request follows (router.shadow_share), and its outcome. */
#pragma once
#include "policy/route/chooser/chooser.h"
#include "router/request/request/request.h"

/* Let |ask| follow the policy of the request's arm. The first call gives the request its arm. */
void gw_arms_follow(struct gw_req *r, struct chooser_ask *ask);
/* Count how the request ended. |outcome|: "ok" for an answer that came whole. */
void gw_arms_end(struct gw_req *r, int status, const char *outcome, cgn_nsec now);
