/* SPDX-License-Identifier: Apache-2.0 */
/* enginenodes: nodes without an agent become members. Control loop. */
#pragma once
#include "base/pb/pb_tree.h"
#include "cognitora/v1/control.pb-c.h"

struct router;

/* Fill in the pools of nodes without an agent. */
void router_pools_fill(const struct router *r, struct pb_tree *t, Cognitora__V1__StatusResponse *rs);
/* Make the engines without an agent members. CGN_INVALID, CGN_TLS: settings or files are wrong; CGN_NO_MEMORY. */
CGN_RC router_engine_nodes_open(struct router *r, struct cgn_err *err);
