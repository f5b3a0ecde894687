/* SPDX-License-Identifier: Apache-2.0 */
/* document: the documents of the router's admin port. Each is one message, and JSON of its members. */
#pragma once
#include "base/json/json.h"
#include "base/pb/pb.h"

enum proto_document_id {
#define DOCUMENT(id, path, action, Type, type, select, help) PROTO_DOCUMENT_##id,
#include "policy/node/proto/documents.def"
#undef DOCUMENT
	PROTO_DOCUMENTS
};

struct proto_document {
	const char *path;
	const ProtobufCMessageDescriptor *type;
	const char *select; /* Members for pb_json_select; NULL: all. */
};
extern const struct proto_document proto_documents[PROTO_DOCUMENTS];

/* Check the query of |path| against the document's rows in parameters.def. Returns false where a parameter is not known or has
 * a value that it does not take; |why| gets a sentence that names the known ones. An empty value counts as absent. TIME is
 * for the caller to check. */
bool proto_query_check(enum proto_document_id id, struct cgn_str path, struct cgn_buf *why);
/* Write |message|, which is of the document's type. */
void proto_document_put(enum proto_document_id id, const void *message, struct json_out *out);
