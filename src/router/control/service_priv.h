/* SPDX-License-Identifier: Apache-2.0 */
/* service, inside: one call of the gRPC port, for the files that answer its methods. */
#pragma once
#include "base/pb/pb.h"
#include "router/control/router.h"

#define ROUTER_CALL_TAG 0x645e4c01U

/* It outlives its peer while the state backend still works on its order. */
struct router_call {
	uint32_t tag;
	struct router *r;
	struct grpc_call *c; /* NULL once it is closed */
	void (*act)(struct router_call *k, struct cgn_str message);
	bool asked;   /* its one message came */
	bool pending; /* the state backend has not answered */
	char *node_id;
	bool draining;                         /* cluster_drain_begin was called for node_id */
	struct router_explain_query *question; /* that workers still look into; NULL: none */
	struct cgn_timer poll;
};

void router_call_send(struct router_call *k, const void *message); /* a generated struct */
/* Nothing when its peer has gone. */
void router_call_finish(struct router_call *k, enum cgn_code code, const char *sentence);
/* After |pending| was cleared: it may be freed when this returns. */
void router_call_release(struct router_call *k);

/* explain_ask.c */
void router_explain(struct router_call *k, struct cgn_str message);

/* stores.c */
void router_stores(struct router_call *k, struct cgn_str message);

/* policy.c */
void router_set_policy(struct router_call *k, struct cgn_str message);
