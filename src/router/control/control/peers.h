/* SPDX-License-Identifier: Apache-2.0 */
/* peers: gauges and the document of the peers. Control loop. */
#pragma once

#include "base/pb/pb_tree.h"
#include "cognitora/v1/control.pb-c.h"

struct router;

void router_peers_report(const struct router *r); /* Once a second: the gauges of the peers. */
/* Fill in the peers, without secrets; |to| borrows from |r|. */
void router_peers_fill(struct router *r, struct pb_tree *t, Cognitora__V1__PeersResponse *to);
