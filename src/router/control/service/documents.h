/* SPDX-License-Identifier: Apache-2.0 */
/* documents: the nouns of the router's control interface. Each is one message, which gRPC serves as it is and the admin
 * port as JSON. Control loop. */
#pragma once
#include "base/pb/pb_tree.h"
#include "cognitora/v1/control.pb-c.h"
#include "policy/node/proto/document.h"
#include "router/control/service/service_priv.h"

/* Fill a message, which |t| made; a part that |t| has no memory for marks it bad. Texts and messages may be |r|'s. */
void router_status_fill(struct router *r, struct pb_tree *t,
	Cognitora__V1__StatusResponse *to); /* status.c */
void router_models_fill(struct router *r, struct pb_tree *t, Cognitora__V1__ModelList *to);
void router_tenants_fill(struct router *r, struct pb_tree *t, Cognitora__V1__Tenants *to); /* usage.c */
/* sessions_query.c: |path| has the query. CGN_INVALID: the query is wrong; CGN_NOT_FOUND: no sessions are kept. */
CGN_RC router_sessions_fill(struct router *r, struct cgn_str path, struct pb_tree *t,
	Cognitora__V1__Sessions *to, struct cgn_err *err);

/* GET of a document's path. */
void router_document_get(void *state, const struct http_head *h, struct cgn_str body,
	struct svc_admin_reply *reply);
/* Answer a call with a document, and end it. */
void router_document_send(struct router_call *k, enum proto_document_id id);
