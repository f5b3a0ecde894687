/* SPDX-License-Identifier: Apache-2.0 */
/* breaker: the nodes' circuit breakers, which all workers and the control loop share. */
#pragma once
#include "policy/node/breaker/breaker.h"
#include "router/shared/worker/worker.h"

/* Ask to send a request to |node|. BREAKER_PASS: send it. BREAKER_PROBE: send it, and this request is the
 * breaker's probe. BREAKER_SHUT: the breaker is open, or another request has just become the probe. */
enum breaker_gate gw_breaker_claim(struct gw_worker *w, const struct view_node *node);
/* The same for the statistics in |slot|, of a node or a peer with that |id|. */
enum breaker_gate gw_breaker_claim_at(struct gw_worker *w, uint16_t slot, const char *id);
/* The request that asked is not sent: another one may be the probe. |gate|: the answer that it got. */
void gw_breaker_unclaim(struct gw_worker *w, uint16_t slot, const char *id, enum breaker_gate gate);
/* Apply |in| to the breaker of |cell|, log and count what changed, and return the change. |node|: its id, for
 * the log. Any thread. */
struct breaker_change gw_breaker_step(struct telemetry *t, struct node_stats *stats,
	const struct breaker_rules *rules, const char *node, const struct breaker_input *in);
/* Set the metric of |node|'s breaker state from the breaker's |word|. Any thread. */
void gw_breaker_show(struct telemetry *t, const char *node, uint64_t word, cgn_nsec now);
