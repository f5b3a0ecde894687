/* SPDX-License-Identifier: Apache-2.0 */
/* policy: the policy document that operators write, and the decisions of shadow policies. Control loop. */
#pragma once
#include "base/core/str.h"
#include "base/pb/pb_tree.h"
#include "cognitora/v1/control.pb-c.h"
#include "policy/route/explain/explain.h"
#include "policy/route/routing/document.h"

struct router;

/* The policy document that operators write. */
struct router_policy {
	struct route_document document; /* Last valid document; empty: none. */
	char trouble[400];              /* Why the current document is refused; empty: it is not. */
};

/* Apply the policy document |text| (empty: none) that was read from |where|. A bad document is logged and the
 * last good one stays. */
void router_policy_update(struct router *r, struct cgn_str text, const char *where);
struct gw_rules;
/* Before the workers get |rules|: complete the rules of the comparison with the policy in use, and compare by them. */
void router_shadows_follow(struct router *r, struct gw_rules *rules);
/* Set the gauges of the policies that sessions follow. */
void router_shadows_note(const struct router *r);
/* Fill in the decisions of each shadow policy, and the measured figures of the sessions that follow it. */
void router_shadows_fill(const struct router *r, struct pb_tree *t, Cognitora__V1__StatusResponse *rs);
/* Fill |to|, which borrows from |r|. */
void router_policy_fill(struct router *r, Cognitora__V1__PolicyStatus *to);
