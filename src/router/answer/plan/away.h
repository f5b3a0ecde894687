/* SPDX-License-Identifier: Apache-2.0 */
/* away: requests that leave for a peer (router/shared/peers, docs/fleet/federation/README.md). One that would wait here, or that no node here
 * can answer, is offered to the peers that may have it, in front of the queue. Until the first byte of the peer's answer
 * nothing is lost: whatever goes wrong there, the request goes on here. After it a peer is as a node. */
#pragma once
#include "router/answer/plan/legs.h"

/* In GW_ROUTE, before anything is claimed for the current leg: send it to a peer if that is allowed and worth it. True: it
 * was sent, and the request is in GW_DISPATCH. |began|: when the decision began. */
bool gw_away_send(struct gw_req *r, cgn_nsec began);
/* May a peer, other than that of the current attempt, continue the answer by |leg|? */
bool gw_away_continues(struct gw_req *r, const struct plan_leg *leg);
/* Does the current attempt ask a peer? */
bool gw_away_is_on(const struct gw_req *r);
/* The head of a peer's answer came: is it an error that does not answer the request, or one that a node here
 * may not make? */
bool gw_away_refuses(const struct gw_req *r);
/* The peer gave no answer, for the reason |outcome|, a label of cgn_away_total: the request goes on in GW_ROUTE. */
enum gw_step gw_away_return(struct gw_req *r, const char *outcome);
/* The first byte of a peer's answer came: learn from it. */
void gw_away_begun(struct gw_req *r);
/* Count the end of the peer's part and pay for it. Call when its usage is known as far as it ever will be; safe when
 * there is nothing to pay. */
void gw_away_settle(struct gw_req *r, const char *outcome);
