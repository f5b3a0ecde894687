/* SPDX-License-Identifier: Apache-2.0 */
/* service, inside: a call of the gRPC port, for the files that answer methods. */
#pragma once
#include "base/pb/pb.h"
#include "router/control/service/service.h"

struct router_explain_query; /* nodes.c */
void router_announce(struct router_call *k, struct cgn_str message);
void router_leave(struct router_call *k, struct cgn_str message);
void router_cordon(struct router_call *k, struct cgn_str message);
void router_uncordon(struct router_call *k, struct cgn_str message);
void router_drain(struct router_call *k, struct cgn_str message);

/* explain_query.c */

#define ROUTER_CALL_TAG 0x645e4c01U

#define ROUTER_CALL_TRIES \
	64 /* Other changes of a document may come first: of those made at once each try lets one through. */

/* A call outlives its peer while the state backend works on its order. */
struct router_call {
	uint32_t tag;
	struct router *r;
	struct grpc_call *c; /* NULL: closed. */
	void (*act)(struct router_call *k, struct cgn_str message);
	/* End all that the method has begun. Called when the peer has gone, and before the call is freed; NULL: it has begun nothing. */
	void (*stop)(struct router_call *k);
	bool asked;   /* The one request message has arrived. */
	bool pending; /* The state backend has not answered yet. */
	char *node_id;
	bool cordons;                             /* The cordon is set, not lifted. */
	char *document;                           /* The policy document to store; NULL: none. */
	Cognitora__V1__SetPolicyRequest *policy;  /* Request of SetPolicy; NULL: none. */
	Cognitora__V1__ChangeModelRequest *order; /* Request of ChangeModel; NULL: none. */
	struct router_join *join;                 /* Request to join, or an invite; NULL: none. */
	unsigned tries;                           /* Attempts to store a document that met another change. */
	char by[128], from[80]; /* The caller's certificate and address, also after it has gone. */
	bool draining;          /* cluster_drain_begin was called for node_id. */
	struct router_explain_query *question; /* Query that the workers still search; NULL: none. */
	struct cgn_timer poll;
};

/* call.c */
/* Make the call's object; |act| gets its one message. */
void router_call_new(struct grpc_call *c, struct router *r,
	void (*act)(struct router_call *, struct cgn_str));
/* May the caller do |action| with |object|? CGN_FORBIDDEN says why not; CGN_CANCELLED: the caller has left. */
CGN_RC router_call_may(struct router_call *k, enum identity_action action, const char *object,
	struct cgn_err *err);
void router_call_send(struct router_call *k, const void *message); /* Send a generated message struct. */
/* End the call; does nothing when the peer has gone. */
void router_call_finish(struct router_call *k, enum cgn_code code, const char *sentence);
/* Write the end of an order into the audit log. */
void router_order_note(const struct router_call *k, const char *action, const char *object,
	const struct cgn_err *err);
/* Free the call if it is closed and not |pending|. */
void router_call_release(struct router_call *k);

/* nodes.c */
void router_announce(struct router_call *k, struct cgn_str message);
void router_leave(struct router_call *k, struct cgn_str message);
void router_cordon(struct router_call *k, struct cgn_str message);
void router_uncordon(struct router_call *k, struct cgn_str message);
void router_drain(struct router_call *k, struct cgn_str message);

/* explain_query.c */
void router_explain(struct router_call *k, struct cgn_str message);
void router_admin_explain(void *state, const struct http_head *h, struct cgn_str body,
	struct svc_admin_reply *reply);

/* stores.c */
void router_stores(struct router_call *k, struct cgn_str message);

/* set_policy.c */
void router_set_policy(struct router_call *k, struct cgn_str message);

/* change_model.c */
void router_change_model(struct router_call *k, struct cgn_str message);

/* join.c */
void router_invite(struct router_call *k, struct cgn_str message);

/* orders.c: POST /nodes/ID/cordon and /uncordon, for the page. */
void router_admin_order(void *state, const struct http_head *h, struct cgn_str body,
	struct svc_admin_reply *reply);

/* playground.c: POST /playground/PATH goes to /PATH of this router's gateway, and the answer comes back as it is. */
void router_admin_play(void *state, const struct http_head *h, struct cgn_str body,
	struct svc_admin_reply *reply);
