/* SPDX-License-Identifier: Apache-2.0 */
/* legs: the shell of policy/answer/plan: it chooses nodes for legs, sends them, and does what follows their ends. */
/* plan, the room: the shell of policy/answer/plan: it chooses nodes for legs, sends them, and does what follows their ends. */
#pragma once
#include "router/request/request/request.h"

/* ---- body.c ---- */

/* Read the body: model, options, and the chain of its prompt. Leaves GW_ROUTE when the request is refused or its
 * tokens are made elsewhere. */
void gw_body_parse(struct gw_req *r);
/* Return true while the body waits for its model: no node is known to have it, and not all nodes have told their
 * models yet. Then the request is to be looked at again soon. */
bool gw_body_awaits(const struct gw_req *r);
/* The body, which was read, waits no more. Leaves GW_ROUTE as gw_body_parse. */
void gw_body_go_on(struct gw_req *r);

/* ---- choose.c ---- */

/* Return the chooser's question for |leg|. Borrows from the request; one at a time. */
struct chooser_ask gw_choose_ask(struct gw_req *r, const struct plan_leg *leg);
/* Return true if |leg| could be sent to a node, now or after waiting. */
bool gw_can_send(struct gw_req *r, const struct plan_leg *leg);

/* ---- send.c ---- */

/* Book the node that |p| picked, and send the current leg to it. |gate|: what gw_breaker_claim said; |began|:
 * when the pick began. */
void gw_leg_send(struct gw_req *r, const struct chooser_ask *ask, const struct chooser_pick_result *p,
	enum breaker_gate gate, cgn_nsec began);
/* Send the current leg to |peer|, which knows its model as |model|. */
struct gw_peer_model;
void gw_leg_leave(struct gw_req *r, struct gw_peer *peer, struct gw_peer_model *model,
	enum breaker_gate gate);
/* End the attempt of the current leg, if there is one, and give its booking back. */
void gw_leg_close(struct gw_req *r);

/* ---- prefill.c ---- */

/* Decide whether another node computes the prompt. If so, its leg is sent, the request is in GW_PREFILL, and the
 * result is true. */
bool gw_prefill_begin(struct gw_req *r, const struct chooser_ask *ask);

/* Return true if a prefill node would answer the request now: nodes that answer are full, or it costs less. */
bool gw_prefill_answers(struct gw_req *r, const struct chooser_ask *ask);
/* The place for a whole request that was decided on is gone: decide again when there is room. */
void gw_prefill_undecide(struct gw_req *r);
/* Let plan.ttft, which is of single nodes, be that of a pair of nodes if that is sooner. */
void gw_prefill_predict(struct gw_req *r, const struct chooser_ask *ask);

/* ---- legs.c ---- */

struct gw_leg_report {
	struct leg_outcome outcome;
	enum cgn_code code; /* code of a failure, for the client */
	const char *why;    /* sentence of a failure */
};
/* Take the plan's next step, now that the current leg has ended or answers with an error. */
enum gw_step gw_leg_ended(struct gw_req *r, const struct gw_leg_report *report);
/* Stop counting the prompt behind its first |keep| blocks as held by the node of the attempt, which did not compute it. */
void gw_leg_unlearn(struct gw_req *r, size_t keep);

/* ---- fail.c ---- */

/* End a plan that has no answer: refuse the request, or cut the answer that has begun. */
enum gw_step gw_plan_fail(struct gw_req *r, const struct gw_refusal *how, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
