/* SPDX-License-Identifier: Apache-2.0 */
/* refused: handles a node whose status shows an error of its own settings (STATUS_NODE): its key, its models,
 * its routes. The request is sent to another node: if that one answers, the first one is misconfigured
 * (misfit/); if it refuses too, the client is told, and no node is blamed. */
#pragma once
#include "router/request/request/request.h"
#include "router/shared/misfit/misfit.h"

/* Return the failure of the node of |a| that its answer shows: as gw_attempt_status_failure, and
 * BREAKER_REFUSED where another node may answer. */
enum breaker_failure gw_refused_how(const struct gw_req *r, const struct gw_attempt *a);
/* Return true while the refusal of |a| waits for a node that may have the model since a moment: lists of models are seconds old. The
 * lists of all engines without an agent are read again, for half a second. */
bool gw_refused_looks(struct gw_req *r, const struct gw_attempt *a);
/* The request of |a|, which refused it, or answered 200 with an error, is sent elsewhere. */
void gw_refused_suspect(struct gw_req *r, const struct gw_attempt *a);
/* The current leg is answered: blame the suspects, and clear its own node. */
void gw_refused_settle(struct gw_req *r);
/* Append to the |n| |slots| the nodes that refuse such requests, unless a node is named by the client; as gw_misfits_add. */
size_t gw_refused_add(const struct gw_req *r, const struct plan_leg *leg, uint16_t *slots, size_t n,
	size_t cap);
