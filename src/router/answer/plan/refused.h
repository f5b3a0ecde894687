/* SPDX-License-Identifier: Apache-2.0 */
/* refused: decides whose fault a failure is. A request that an engine fails (5xx, nothing, an error, a connection that it closes) or refuses
 * (STATUS_NODE) may be the cause itself, so that one witness is not enough: the node is a suspect, and the request is sent to
 * another node. If that one answers, each suspect is at fault; one that refused is misconfigured (misfit/). If all nodes that
 * were asked fail, the request is taken for the cause, and no node is blamed. Where one node alone was asked, what else is known
 * of the tenant's requests decides (policy/node/breaker/witness.h). */
#pragma once
#include "router/request/request/request.h"
#include "router/shared/misfit/misfit.h"

/* Return the failure of the node of |a| that its answer shows: as gw_attempt_status_failure, and
 * BREAKER_REFUSED where another node may answer. */
enum breaker_failure gw_refused_how(const struct gw_req *r, const struct gw_attempt *a);
/* Return true while the refusal of |a| waits for a node that may have the model since a moment: lists of models are seconds old. The
 * lists of all engines without an agent are read again, for half a second. */
bool gw_refused_looks(struct gw_req *r, const struct gw_attempt *a);
/* Judge the failure |how| of |a|, whose answer is not used or is the client's error. Where the request may be the cause, the node
 * becomes a suspect, and a probe is given up. Does nothing when the attempt is judged already. */
void gw_refused_take(struct gw_req *r, struct gw_attempt *a, enum breaker_failure how);
/* The current leg's answer has begun: blame the suspects, and clear its own node. */
void gw_refused_begun(struct gw_req *r);
/* The current leg's answer broke off after its first byte: judge its node. Another one that continues the answer tells nothing
 * of its beginning. */
void gw_refused_cut(struct gw_req *r);
/* The current leg's answer ended in good order. */
void gw_refused_answered(struct gw_req *r);
/* A node says that the request is bad: no suspect is at fault. */
void gw_refused_forget(struct gw_req *r);
/* No other node is asked any more: decide what becomes of the suspects. Safe without any, and at any time. */
void gw_refused_over(struct gw_req *r);
/* Remember the request by its body, while that is at hand. */
void gw_refused_mark(struct gw_req *r);
/* Append to the |n| |slots| the nodes that refuse such requests, unless a node is named by the client; as gw_misfits_add. */
size_t gw_refused_add(const struct gw_req *r, const struct plan_leg *leg, uint16_t *slots, size_t n,
	size_t cap);
