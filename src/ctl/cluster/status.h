/* SPDX-License-Identifier: Apache-2.0 */
/* status: a router's account of its cluster, for the verbs that show it. */
/* cluster, the room: the verbs that show and change a running cluster: nodes, decisions, policy, tenants, sessions. */
#pragma once
#include "cognitora/v1/control.pb-c.h"
#include "joint/ctl/client/client.h"

/* Ask the router within --timeout, else within |fallback|. The caller frees |*out| with pb_free. */
CGN_RC ctl_status_ask(const struct ctl_args *a, cgn_nsec fallback, Cognitora__V1__StatusResponse **out,
	struct cgn_err *err);
size_t ctl_status_nodes_in(const Cognitora__V1__StatusResponse *s, const char *state);
/* Append the names of the models that the node's engines have, with commas and their states; of each engine at most |most|,
 * then how many there are beside them. */
void ctl_status_models(const Cognitora__V1__Node *node, size_t most, struct cgn_buf *out);
