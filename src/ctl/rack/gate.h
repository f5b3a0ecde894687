/* SPDX-License-Identifier: Apache-2.0 */
/* gate: takes a node out of the routers' choice while its agent restarts, by this program's own cluster verbs. */
#pragma once
#include "policy/fleet/rack/rack.h"

struct rack_gate {
	const struct rack *rack;
	const char *pki, *drain_timeout; /* Folder with ca.pem and admin.pem; a duration such as "10m". */
	cgn_nsec ready_timeout;
};
struct rack_gate_node {
	bool known;   /* A router answered and knows the node. */
	bool ready;   /* The node served requests. */
	bool drained; /* The node was cordoned here, and must be uncordoned. */
};
/* Cordon the node and wait until nothing is in flight there. A node that no router knows or that was cordoned before is
 * left alone; that no router answers is printed. DEADLINE: requests are still in flight; the cordon is lifted again. */
CGN_RC rack_gate_close(const struct rack_gate *g, const char *node, struct rack_gate_node *out,
	struct cgn_err *err);
/* Lift the cordon, and wait until a node that was ready is ready again. */
CGN_RC rack_gate_open(const struct rack_gate *g, const char *node, const struct rack_gate_node *was,
	struct cgn_err *err);
