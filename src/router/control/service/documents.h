/* SPDX-License-Identifier: Apache-2.0 */
/* documents: the nouns of the router's control interface. Each is one message, which gRPC serves as it is and the admin
 * port as JSON. Control loop. */
#pragma once
#include "base/pb/pb_tree.h"
#include "cognitora/v1/control.pb-c.h"
#include "policy/node/proto/document.h"
#include "router/control/service/service_priv.h"

/* A question for a document. A call of gRPC has no query: |h| and |reply| are NULL. */
struct document_query {
	struct router *r;
	const struct http_head *h;
	struct pb_tree *t;
	struct svc_admin_reply *reply;
};

/* router_fill_queues, and so on: fill a message, which |q->t| made; a part that it has no memory for marks it bad. Texts
 * and messages may be the router's. Return false where |q->reply| has the answer, or gets it later. */
#define DOCUMENT(id, path, action, Type, type, select, help) \
	bool router_fill_##type(const struct document_query *q, Cognitora__V1__##Type *to);
#include "policy/node/proto/documents.def"
#undef DOCUMENT

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
