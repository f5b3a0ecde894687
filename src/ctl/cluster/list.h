/* SPDX-License-Identifier: Apache-2.0 */
/* list: a list of objects in the JSON that a router answers with, as a table. */
#pragma once
#include "ctl/ctl.h"
#include "policy/node/proto/document.h"

enum ctl_list_kind {
	CTL_LIST_TEXT,  /* aligned on the left; the others on the right */
	CTL_LIST_SHORT, /* a number in four digits */
	CTL_LIST_WHOLE, /* a number without a fraction */
	CTL_LIST_AS_IS, /* a number as the router wrote it */
	CTL_LIST_TIME,  /* Unix milliseconds as a time (UTC), on the left */
};
/* A member of each object. */
struct ctl_list_column {
	const char *key, *header;
	enum ctl_list_kind kind;
};
/* Ask the router for a document by |method|, and append it as JSON. */
CGN_RC ctl_document_get(const struct ctl_args *a, const char *method, const void *request,
	enum proto_document_id id, struct cgn_buf *out, struct cgn_err *err);
/* Ask the router for a document by |method|, whose request has no fields, and print it: as JSON for -o json, else by |show|,
 * which gets the JSON. */
CGN_RC ctl_document_show(const struct ctl_args *a, const char *method, enum proto_document_id id,
	cgn_rc (*show)(struct json_val doc, struct cgn_err *err), struct cgn_err *err);
/* Print the list |key| of |doc|. BAD_GATEWAY: there is none. */
CGN_RC ctl_list_show(struct json_val doc, const char *key, const struct ctl_list_column *columns, size_t n,
	struct cgn_err *err);
