/* SPDX-License-Identifier: Apache-2.0 */
/* verdict: passes the outcome of an attempt on: to the breaker, to the comparison of nodes (outliers), and to
 * the node's pulse. The first verdict on an attempt counts, later ones do nothing. A node that took over the
 * slot meanwhile is not judged. */
#pragma once
#include "router/request/attempt/attempt.h"

/* Report the first byte: no verdict yet, but a probe has succeeded. */
void gw_verdict_begun(struct gw_attempt *a);
/* Report an answer that ended in good order. |steady|: the client read as fast as the answer came, so the
 * time per token is the node's. */
void gw_verdict_fine(struct gw_attempt *a, bool steady);
void gw_verdict_bad(struct gw_attempt *a, enum breaker_failure how);
/* Report that an answer, or its first byte, did not come in time. An engine that works for others is slow: that says nothing
 * against the node. */
void gw_verdict_late(struct gw_attempt *a, enum breaker_failure how);
/* Report a stall that the node's own agent has declared. */
void gw_verdict_stalled(struct gw_attempt *a);
/* Give no verdict: the client left, or the request is at fault. */
void gw_verdict_none(struct gw_attempt *a);

/* Report that the node |id| in |slot|, with the hash |node|, is at fault for an attempt that was given no verdict. */
void gw_verdict_witnessed(struct gw_worker *w, uint16_t slot, uint64_t node, const char *id);

/* Return true if the node was declared stalled after |since|, or its agent, which relays the answer, is silent. */
bool gw_attempt_node_stalled(const struct gw_attempt *a, cgn_nsec since);
/* Return true if the node is dead. May declare it stalled, and judge the attempt: the attempt and all streams of the node
 * brought no byte for longer than they may take, and no witness says that its engine lives. An engine that serves
 * others, or answers its checks, is slow. */
bool gw_attempt_node_dead(struct gw_attempt *a, cgn_nsec now);
/* Return why the answer, which has begun, is given up: its node is stalled, or the engine
 * was silent for too long. NULL: it is not. May declare the
 * node stalled, and judge the attempt. */
const char *gw_attempt_silence(struct gw_attempt *a, cgn_nsec now);
