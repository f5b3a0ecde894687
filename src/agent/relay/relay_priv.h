/* SPDX-License-Identifier: Apache-2.0 */
/* relay, inside: one request. */
#pragma once
#include "agent/relay/relay.h"
#include "joint/node/enginecall/enginecall.h"
#include "policy/node/engine/usagescan.h"

#define RELAY_TAG         0xa9e17004U
#define RELAY_BODY_PIECES HTTP_LENT_PIECES

struct relay {
	uint32_t tag;
	struct relays *all;
	struct engine *engine; /* NULL before an engine is picked and after the request has left it */
	struct grpc_call *call;
	struct http_call *http;
	struct cgn_link link; /* In engine_requests.relays */
	struct cgn_arena arena;
	/* The request message, booked in the budget; kept until the engine answers, for a retry */
	struct cgn_buf message;
	char insert[SLOT_BODY_INSERT]; /* The slot, as it is inserted into the body */
	struct cgn_buf own;            /* The body of a prefill leg, which is made here and booked too */
	uint64_t booked;               /* Bytes of both in the budget */
	struct proto_generate rq;      /* Read by relay_request; forgotten when the engine answers */
	uint64_t model;                /* sum64 of the model's name, for as long as the request is here */
	struct share_ticket share;
	char id[65]; /* First bytes of the request id, for the log */
	cgn_nsec began;
	struct tracing_context trace;   /* Span 0: tracing is off */
	cgn_nsec asked_at, answered_at; /* Times of the call to the engine and of its head; 0: none */
	struct slot_placement placement;
	struct engine_waiter waiter; /* While the engine is loaded for the request */
	struct slot_guest guest;
	bool is_guest;                   /* slot_tenancy_leave is to come */
	uint32_t slot;                   /* The slot that the engine is told; SLOTS_NONE: it chooses */
	bool computes;                   /* The engine is told to compute the whole prompt */
	struct enginecall_gather gather; /* Data of this turn that was not sent yet */
	struct usagescan told;           /* Counts of the answer, for the slot manager */
	int status;                      /* The engine's HTTP status */
	unsigned returns;                /* How often it waited again, for an engine that went away */
	bool asked, retried, forgotten, head_sent, finished, failed;
	struct cgn_grave grave;
};

/* The request, while it is there: fields that are needed after the engine's answer lie elsewhere in |r|. */
static inline const struct proto_generate *relay_request(const struct relay *r)
{
	CGN_MUST(!r->forgotten);
	return &r->rq;
}

/* ---- request.c ---- */
/* Write the pieces of the body: unchanged, or with the slot and what may be used of it, or the prompt alone. Returns how many. They
 * lie in |r| until the request is forgotten. */
size_t relay_request_body(struct relay *r, struct iovec out[RELAY_BODY_PIECES]);
/* Set r->slot and r->computes, after slotmgr_place: no request is answered from another tenant's prompt. */
void relay_settle(struct relay *r);
void relay_unsettle(struct relay *r); /* The request has ended. A second call does nothing. */
/* Continue the router's trace: the engine continues below this agent's call. trace.c */
void relay_trace_begin(struct relay *r);
/* Add the spans of a request that has ended, if it is sampled. */
void relay_trace_end(struct relay *r, bool cancelled);
/* True for the prefill leg: the prompt is computed and stored, and no answer is wanted. */
bool relay_is_prefill(const struct relay *r);
/* Return true for a path at which the engine computes a prompt, and so fills a slot. */
bool relay_computes(struct cgn_str path);
