/* SPDX-License-Identifier: Apache-2.0 */
/* routers: the routers that metrics.routers names, for the page of several: GET /routers lists them, /routers/NAME/PATH is
 * answered by that router's admin port. Only what the page reads is relayed, and of changes those of a page on this
 * machine (svc_admin_may_change); the router then judges by its own rules. A router that does not answer within 5 s costs
 * its own requests alone. At most 64 routers, 8 connections and 32 waiting requests each. One loop, its thread. */
#pragma once
#include "cognitora/v1/metrics.pb-c.h"
#include "joint/daemon/svc/svc.h"

#define ROUTERS_MOST 64

struct routers;
/* Make the clients; fails as routers_check does, and for a CA file that cannot be used. */
CGN_RC routers_open(struct cgn_loop *l, const struct config *cfg, struct routers **out, struct cgn_err *err);
void routers_close(struct routers **take); /* Requests under way fail. NULL-safe. */
/* Check metrics.routers: "URL" or "NAME=URL", each name once. */
CGN_RC routers_check(const struct config *cfg, struct cgn_err *err);
void routers_fill(const struct routers *r, struct pb_tree *t, Cognitora__V1__Routers *to);
/* Answer a GET or POST of /routers/NAME/PATH. */
void routers_relay(struct routers *r, const struct http_head *h, struct cgn_str body,
	struct svc_admin_reply *reply);
