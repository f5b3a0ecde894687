/* SPDX-License-Identifier: Apache-2.0 */
/* roll: carries out the plans of all hosts, in an order that keeps the cluster serving. */
#pragma once
#include "ctl/rack/fleet.h"
#include "ctl/rack/gate.h"
#include "ctl/rack/members.h"
#include "ctl/rack/plan.h"

struct rack_roll {
	struct fleet *fleet;
	struct rack_node **nodes;
	size_t n;
	char stage[4096]; /* Folder for the files to send, of mode 0700; made and removed here. */
	struct rack_gate gate;
	struct rack_etcd *etcd;
};
/* Write the files of all hosts, then restart what changed: etcd, whose members leave and join one at a time,
 * stores, routers one at a time, agents one at a time with drain, metrics. Stops at the first failure; each
 * node has the steps that were done. */
CGN_RC rack_roll_apply(struct rack_roll *r, struct cgn_err *err);
