/* SPDX-License-Identifier: Apache-2.0 */
/* control: keeps the objects of Kubernetes as the InferenceClusters, ModelPools and RoutingPolicies want them. A resource is
 * reconciled once for each change: of its spec, of a resource that it depends on, or of an object that it owns and
 * that was not changed by this program (drift). At rest nothing is asked and nothing is written. One loop, its
 * thread. */
#pragma once
#include "base/pb/pb_tree.h"
#include "cognitora/v1/operator.pb-c.h"
#include "io/wire/k8s/k8s.h"
#include "joint/report/telemetry/telemetry.h"
#include "policy/fleet/desired/desired.h"

struct control;
struct control_cfg {
	const char *space;  /* Namespace; NULL: all. Copied. */
	const char *prefix; /* Beginning of images' names; copied. */
	const char *tag;    /* Copied. */
};
CGN_RC control_open(struct cgn_loop *l, struct k8s *k, struct telemetry *t, const struct control_cfg *cfg,
	struct control **out, struct cgn_err *err);
void control_close(struct control **take);
/* Fill in a message that |t| made. */
void control_fill(const struct control *c, struct pb_tree *t, Cognitora__V1__OperatorWork *to);
