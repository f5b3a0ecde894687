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
/* |h| has the query. Return false where |reply| has the answer. */
bool router_usage_fill(struct router *r, const struct http_head *h, struct pb_tree *t,
	Cognitora__V1__Usage *to, struct svc_admin_reply *reply); /* usage.c */
bool router_index_fill(struct router *r, const struct http_head *h, struct pb_tree *t,
	Cognitora__V1__Index *to, struct svc_admin_reply *reply); /* index.c */
bool router_sessions_fill(struct router *r, const struct http_head *h, struct pb_tree *t,
	Cognitora__V1__Sessions *to, struct svc_admin_reply *reply); /* sessions_query.c */

/* Check the parameters of a document's query; false: |reply| has the error. */
bool router_query_check(enum proto_document_id id, const struct http_head *h, struct svc_admin_reply *reply);
/* GET of a document's path. */
void router_document_get(void *state, const struct http_head *h, struct cgn_str body,
	struct svc_admin_reply *reply);
/* Answer a call with a document, and end it. */
void router_document_send(struct router_call *k, enum proto_document_id id);
/* The same with a message that |t| made. */
void router_document_finish(struct router_call *k, enum proto_document_id id, const struct pb_tree *t,
	void *message);
