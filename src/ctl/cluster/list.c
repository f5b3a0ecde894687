/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/cluster/list.h"

#include <stdio.h>

#include "base/core/utc.h"
#include "cognitora/v1/control.pb-c.h"
#include "joint/ctl/client/client.h"

#define DEFAULT_TIMEOUT (10 * CGN_SEC)

static void time_cell(struct ctl_table *t, struct json_val v)
{
	uint64_t ms = 0;
	char text[32];
	bool known = json_u64(v, &ms) &&
		cgn_utc_text((int64_t)(ms / 1000), "%Y-%m-%d %H:%M:%S", text, sizeof text);
	ctl_table_cell(t, "%s", known ? text : "-");
}

static void number_put(struct json_val v, enum ctl_list_kind kind, struct cgn_buf *out)
{
	double number;
	if (!json_f64(v, &number))
		return;
	if (kind == CTL_LIST_AS_IS)
		cgn_buf_str(out, v.raw);
	else
		cgn_buf_fmt(out, kind == CTL_LIST_WHOLE ? "%.0f" : "%.4g", number);
}

static void list_cell(struct ctl_table *t, struct json_val row, const struct ctl_list_column *c)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	struct json_val v;
	bool has = json_get(row, c->key, &v);
	if (has && c->kind == CTL_LIST_TIME) {
		time_cell(t, v);
		return;
	}
	if (has && v.type == JSON_STRING)
		json_str_to(v, &text);
	else if (has)
		number_put(v, c->kind, &text);
	ctl_table_cell(t, "%s", text.n > 0 ? cgn_buf_z(&text) : "-");
}

CGN_RC ctl_list_show(struct json_val doc, const char *key, const struct ctl_list_column *columns, size_t n,
	struct cgn_err *err)
{
	struct ctl_table t = {0};
	struct json_val list, row;
	if (!json_get(doc, key, &list))
		return CGN_FAIL(err, BAD_GATEWAY, "the router's answer has no \"%s\"", key);
	for (size_t i = 0; i < n; i++)
		ctl_table_column(&t, columns[i].header,
			columns[i].kind != CTL_LIST_TEXT && columns[i].kind != CTL_LIST_TIME);
	struct json_iter it = json_iter_of(list);
	while (json_next_elem(&it, &row))
		for (size_t i = 0; i < n; i++)
			list_cell(&t, row, &columns[i]);
	return ctl_table_print(&t, false, err);
}

/* Return the field "json" of a message that has nothing else; NULL: the message has other fields, or no such. Routers of
 * the release before fill only "json". */
static const char *json_alone(ProtobufCMessage *m)
{
	const ProtobufCFieldDescriptor *f =
		protobuf_c_message_descriptor_get_field_by_name(m->descriptor, "json");
	const char *json, *none = "";
	if (f == NULL)
		return NULL;
	char *at = (char *)m + f->offset;
	memcpy(&json, at, sizeof json);
	memcpy(at, &none, sizeof none);
	bool alone = protobuf_c_message_get_packed_size(m) == 0 && json[0] != '\0';
	memcpy(at, &json, sizeof json);
	return alone ? json : NULL;
}

CGN_RC ctl_document_get(const struct ctl_args *a, const char *method, const void *request,
	enum proto_document_id id, struct cgn_buf *out, struct cgn_err *err)
{
	CGN_ON_EXIT(pb_free) ProtobufCMessage *rs = NULL;
	struct json_out j = json_out_to(out);
	struct ctl_call call = {.method = method,
		.answer = proto_documents[id].type,
		.request = request,
		.first = &rs};
	CGN_TRY(ctl_timeout(a, DEFAULT_TIMEOUT, &call.timeout, err));
	CGN_TRY(ctl_client_call(a, CTL_ROUTER, &call, err));
	const char *json = json_alone(rs);
	if (json != NULL)
		cgn_buf_putz(out, json);
	else
		proto_document_put(id, rs, &j);
	return CGN_OK;
}

CGN_RC ctl_document_show(const struct ctl_args *a, const char *method, enum proto_document_id id,
	cgn_rc (*show)(struct json_val doc, struct cgn_err *err), struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	const Cognitora__V1__StatusRequest rq = COGNITORA__V1__STATUS_REQUEST__INIT;
	struct json_val doc = {.type = JSON_NULL};
	CGN_TRY(ctl_document_get(a, method, &rq, id, &text, err));
	if (a->json) {
		cgn_buf_char(&text, '\n');
		return ctl_print(&text, err);
	}
	CGN_TRY(json_parse(cgn_buf_view(&text), &doc, NULL, err));
	return show(doc, err);
}
