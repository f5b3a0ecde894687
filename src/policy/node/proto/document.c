/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/node/proto/document.h"

#include "base/pb/pb_json.h"
#include "cognitora/v1/control.pb-c.h"

const struct proto_document proto_documents[PROTO_DOCUMENTS] = {
#define DOCUMENT(id, path, action, Type, type, select, help) \
	{path, &cognitora__v1__##type##__descriptor, select},
#include "policy/node/proto/documents.def"
#undef DOCUMENT
};

void proto_document_put(enum proto_document_id id, const void *message, struct json_out *out)
{
	if (proto_documents[id].select != NULL)
		pb_json_select(out, message, proto_documents[id].select);
	else
		pb_json_put(out, message, PB_JSON_PLAIN);
}
