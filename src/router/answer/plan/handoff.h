/* SPDX-License-Identifier: Apache-2.0 */
/* handoff: the router's side of engines that hand computed prompts to each other (policy/node/handoff). The bodies of both legs
 * are written here, and the prefill leg's answer is read here. In sequence, the prefill leg is a leg of the plan; at once,
 * it is an attempt beside the answer leg (r->beside), and both end together. Memory: the bodies of both legs, counted in
 * router.max_inflight_body, and at most GW_PREFILL_ANSWER bytes of the prefill leg's answer. */
#pragma once
#include "router/answer/plan/legs.h"

#define GW_PREFILL_ANSWER ((size_t)1024 * 1024)

/* Prepare the hand-off between the pair of r->plan.split. False: it is not possible, and |*why| is a label of
 * cgn_handoffs_total. Does nothing for a pair whose agents hand over through the block stores. */
bool gw_handoff_open(struct gw_req *r, const char **why);
/* Return true if both legs are sent at once: then the current leg is the answer leg, and gw_beside_send follows it. */
bool gw_handoff_is_at_once(const struct gw_req *r);
/* Give |g| the body of the current leg, if the hand-off changes it. A decode leg whose body finds no memory becomes one
 * that computes everything. */
void gw_handoff_write(struct gw_req *r, struct proto_generate *g, struct cgn_str model);
/* Bytes of the prefill leg's answer arrived. */
void gw_handoff_data(struct gw_req *r, struct cgn_str data);
/* The prefill leg has ended well. False: its answer gives nothing to the decode leg, for the reason |*why|. */
bool gw_handoff_computed(struct gw_req *r, const char **why);
/* Before a node is chosen for the current leg: a decode leg whose hand-off is lost computes everything, or is decided on
 * again. */
void gw_handoff_settle(struct gw_req *r);
/* Note that the prefill node in |slot| failed; return true if another pair may be tried. */
bool gw_handoff_may_repeat(struct gw_req *r, uint16_t slot);
void gw_handoff_drop(struct gw_req *r);

/* ---- the leg beside ---- */

/* Send the prefill leg; the decode leg has just been sent. */
void gw_beside_send(struct gw_req *r);
/* In GW_DISPATCH, once the decode leg answered with an error: return true while it is not clear whether the prefill leg is
 * the cause, for a moment at most. */
bool gw_beside_is_suspected(struct gw_req *r);
/* In GW_STREAM, once the decode leg has ended: return true while the end of the answer waits for the prefill leg, which has
 * a moment left to say how many tokens it found cached. */
bool gw_beside_is_awaited(struct gw_req *r);
/* In GW_DISPATCH: return true if the prefill leg failed, which the decode leg waits for. Then both legs have ended,
 * and |*report| says how. */
bool gw_beside_has_failed(struct gw_req *r, struct gw_leg_report *report);
