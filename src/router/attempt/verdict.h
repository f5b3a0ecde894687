/* SPDX-License-Identifier: Apache-2.0 */
/* verdict: what an attempt says of its node: to the breaker, to the comparison of nodes (outliers), and to the
 * node's pulse. The first verdict on an attempt counts, later ones do nothing. A node that took over the slot
 * meanwhile is not judged. */
#pragma once
#include "router/attempt/attempt.h"

/* Report the first byte: no verdict yet, but a probe has succeeded. */
void gw_verdict_begun(struct gw_attempt *a);
/* Report an answer that ended in good order. |steady|: the client read as fast as the answer came, so the
 * time per token is the node's. */
void gw_verdict_fine(struct gw_attempt *a, bool steady);
void gw_verdict_bad(struct gw_attempt *a, enum breaker_failure how);
/* Report a stall that the node's own agent has declared. */
void gw_verdict_stalled(struct gw_attempt *a);
/* Give no verdict: the client left, or the request is at fault. */
void gw_verdict_none(struct gw_attempt *a);

/* Return true if the node was declared stalled after |since|. */
bool gw_attempt_node_stalled(const struct gw_attempt *a, cgn_nsec since);
/* Return true if the stream brought nothing since a->last_byte for longer than its node may take. May declare
 * the node stalled, and judge the attempt. */
bool gw_attempt_is_stalled(struct gw_attempt *a, cgn_nsec now);
