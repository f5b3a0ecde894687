/* SPDX-License-Identifier: Apache-2.0 */
/* summaries: the reports that clusters exchange about themselves (policy/route/peer,
 * router/shared/peers/summaries.h). The control loop makes the sets for peers (summary_tell.c) and asks the
 * peers (summary_ask.c); workers answer (answer/summary.c). */
#pragma once
#include "router/control/control/router.h"

struct router_tell;
/* Make a new set for each peer that asks, every |interval|. Closes with the loop at rest. */
struct router_tell *router_tell_open(struct router *r, cgn_nsec interval);
void router_tell_close(struct router_tell **take); /* NULL-safe. */

/* The asking of one peer. */
struct router_ask;
/* Ask |peer|, a cluster with an URL, every |interval|. As webclient_open. */
CGN_RC router_ask_open(struct router *r, struct gw_peer *peer, cgn_nsec interval, struct router_ask **out,
	struct cgn_err *err);
void router_ask_close(struct router_ask **take); /* NULL-safe. */

struct router;
/* Ask each peer that is a cluster for its summary, and make those that they are told
 * (router.federation.summary_interval). */
CGN_RC router_summaries_open(struct router *r, struct cgn_err *err);
void router_summaries_close(struct router *r);
