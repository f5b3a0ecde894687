/* SPDX-License-Identifier: Apache-2.0 */
#include "router/control/service/documents.h"

#include "router/control/control/peers.h"
#include "router/control/scaler/scaler.h"
#include "router/request/admission/admission.h"
#include "router/request/calibration/calibration.h"

#define DOCUMENT_LIMIT ((size_t)16 << 20) /* Bytes of one message. */

/* |path| has the query of a GET. */
static CGN_RC document_fill(enum proto_document_id id, struct router *r, struct cgn_str path,
	struct pb_tree *t, void *message, struct cgn_err *err)
{
	switch (id) {
	case PROTO_DOCUMENT_NODES:
		router_status_fill(r, t, message);
		break;
	case PROTO_DOCUMENT_MODELS:
		router_models_fill(r, t, message);
		break;
	case PROTO_DOCUMENT_QUEUE:
		((Cognitora__V1__Queues *)message)->max_queue = r->published.rules->max_queue;
		gw_admission_fill(r->shared.admission, t, message);
		break;
	case PROTO_DOCUMENT_SCALE:
		router_scaler_fill(r->scaler, t, message);
		break;
	case PROTO_DOCUMENT_PEERS:
		router_peers_fill(r, t, message);
		break;
	case PROTO_DOCUMENT_CASCADES:
		gw_calibrations_fill(r->shared.calibrations, t, message);
		break;
	case PROTO_DOCUMENT_TENANTS:
		router_tenants_fill(r, t, message);
		break;
	case PROTO_DOCUMENT_SESSIONS:
		return router_sessions_fill(r, path, t, message, err);
	case PROTO_DOCUMENTS:
		break;
	}
	return CGN_OK;
}

/* Build the message in |t|. CGN_NO_MEMORY, CGN_INVALID and CGN_NOT_FOUND say why not. */
static CGN_RC document_build(enum proto_document_id id, struct router *r, struct cgn_str path,
	struct pb_tree *t, void **message, struct cgn_err *err)
{
	pb_tree_init(t, DOCUMENT_LIMIT);
	*message = pb_tree_new(t, proto_documents[id].type);
	CGN_TRY(document_fill(id, r, path, t, *message, err));
	return t->bad ? CGN_FAIL(err, NO_MEMORY, "no memory for the document") : CGN_OK;
}

static enum proto_document_id document_find(struct cgn_str path)
{
	enum proto_document_id id = 0;
	while (id < PROTO_DOCUMENTS && !cgn_str_is(path, proto_documents[id].path))
		id++;
	CGN_MUST(id < PROTO_DOCUMENTS); /* The routes have these paths. */
	return id;
}

void router_document_get(void *state, const struct http_head *h, struct cgn_str body,
	struct svc_admin_reply *reply)
{
	(void)body;
	struct router *r = state;
	CGN_LIVE(r, ROUTER_TAG);
	struct cgn_str rest = h->path, path = cgn_str_split(&rest, '?');
	enum proto_document_id id = document_find(path);
	struct json_out j = json_out_to(&reply->body);
	CGN_ON_EXIT(pb_tree_fini) struct pb_tree t;
	void *message;
	struct cgn_err err;
	cgn_rc rc = document_build(id, r, h->path, &t, &message, &err);
	if (cgn_ok(rc))
		proto_document_put(id, message, &j);
	else
		svc_admin_error(reply, rc.code == CGN_NO_MEMORY ? 503 : cgn_code_http(rc.code),
			rc.code == CGN_INVALID             ? "bad_query"
				: rc.code == CGN_NOT_FOUND ? "no_record"
							   : "no_memory",
			err.msg);
}

/* cgn-ctl of the release before reads the document as JSON, from the field "json". */
static void json_fill(enum proto_document_id id, void *message, struct cgn_buf *text)
{
	struct json_out j = json_out_to(text);
	const ProtobufCFieldDescriptor *f =
		protobuf_c_message_descriptor_get_field_by_name(proto_documents[id].type, "json");
	if (f == NULL)
		return;
	proto_document_put(id, message, &j);
	const char *z = cgn_buf_z(text);
	memcpy((char *)message + f->offset, &z, sizeof z);
}

void router_document_send(struct router_call *k, enum proto_document_id id)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf json = {0};
	CGN_ON_EXIT(pb_tree_fini) struct pb_tree t;
	void *message;
	struct cgn_err err;
	cgn_rc rc = document_build(id, k->r, (struct cgn_str){0}, &t, &message, &err);
	if (cgn_ok(rc))
		json_fill(id, message, &json);
	if (json.bad)
		rc = CGN_FAIL(&err, NO_MEMORY, "no memory for the document");
	if (cgn_ok(rc))
		router_call_send(k, message);
	router_call_finish(k, rc.code, cgn_ok(rc) ? "" : err.msg);
}
