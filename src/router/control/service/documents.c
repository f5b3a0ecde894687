/* SPDX-License-Identifier: Apache-2.0 */
#include "router/control/service/documents.h"

#define DOCUMENT(id, path, action, Type, type, select, help)                   \
	static bool fill_##type(const struct document_query *q, void *message) \
	{                                                                      \
		return router_fill_##type(q, message);                         \
	}
#include "policy/node/proto/documents.def"
#undef DOCUMENT

static bool (*const document_fills[PROTO_DOCUMENTS])(const struct document_query *q, void *message) = {
#define DOCUMENT(id, path, action, Type, type, select, help) fill_##type,
#include "policy/node/proto/documents.def"
#undef DOCUMENT
};

static enum proto_document_id document_find(struct cgn_str path)
{
	enum proto_document_id id = 0;
	while (id < PROTO_DOCUMENTS && !cgn_str_is(path, proto_documents[id].path))
		id++;
	CGN_MUST(id < PROTO_DOCUMENTS); /* The routes have these paths. */
	return id;
}

bool router_query_check(enum proto_document_id id, const struct http_head *h, struct svc_admin_reply *reply)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf why = {.limit = 1024};
	bool good = proto_query_check(id, h->path, &why);
	if (!good)
		svc_admin_error(reply, 400, "bad_query", cgn_buf_z(&why));
	return good;
}

void router_document_get(void *state, const struct http_head *h, struct cgn_str body,
	struct svc_admin_reply *reply)
{
	(void)body;
	struct router *r = state;
	CGN_LIVE(r, ROUTER_TAG);
	struct cgn_str rest = h->path, path = cgn_str_split(&rest, '?');
	enum proto_document_id id = document_find(path);
	if (!router_query_check(id, h, reply))
		return;
	CGN_ON_EXIT(pb_tree_fini) struct pb_tree t;
	pb_tree_init(&t, SVC_DOCUMENT_LIMIT);
	void *message = pb_tree_new(&t, proto_documents[id].type);
	if (document_fills[id](&(struct document_query){r, h, &t, reply}, message))
		svc_admin_message(reply, &t, message, proto_documents[id].select);
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

void router_document_finish(struct router_call *k, enum proto_document_id id, const struct pb_tree *t,
	void *message)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf json = {0};
	if (!t->bad)
		json_fill(id, message, &json);
	if (t->bad || json.bad) {
		router_call_finish(k, CGN_NO_MEMORY, "no memory for the document");
		return;
	}
	router_call_send(k, message);
	router_call_finish(k, CGN_FINE, "");
}

void router_document_send(struct router_call *k, enum proto_document_id id)
{
	CGN_ON_EXIT(pb_tree_fini) struct pb_tree t;
	pb_tree_init(&t, SVC_DOCUMENT_LIMIT);
	void *message = pb_tree_new(&t, proto_documents[id].type);
	(void)document_fills[id](&(struct document_query){.r = k->r, .t = &t}, message);
	router_document_finish(k, id, &t, message);
}
