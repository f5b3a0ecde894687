/* SPDX-License-Identifier: Apache-2.0 */
/* question: the JSON document that a hook gets. */
#include "base/codec/codec.h"
#include "base/json/json.h"
#include "base/sse/sse.h"
#include "policy/answer/hook/hook.h"

static void text_put(struct json_out *j, const char *key, struct cgn_str s)
{
	json_key(j, key);
	if (s.n > 0)
		json_put_str(j, s);
	else
		json_put_null(j);
}

static bool is_json(struct cgn_str s)
{
	struct json_val v;
	return cgn_ok(json_parse(s, &v, NULL, NULL));
}

/* ---- bodies ---- */

static void bytes_put(struct json_out *j, struct cgn_str bytes)
{
	json_key(j, "body_base64");
	cgn_buf_char(j->b, '"');
	base64_put(j->b, bytes);
	cgn_buf_char(j->b, '"');
	j->comma = true;
}

/* The mark of the end of OpenAI's streams is not a document and has no text. */
static void piece_put(struct json_out *j, struct cgn_str data)
{
	if (cgn_str_is(data, "[DONE]"))
		return;
	if (is_json(data))
		json_put_raw(j, data);
	else
		json_put_str(j, data);
}

static void on_event(void *arg, struct cgn_str name, struct cgn_str data)
{
	(void)name;
	piece_put(arg, data);
}

static void events_put(struct json_out *j, struct cgn_str body)
{
	struct sse_scan scan;
	sse_scan_init(&scan, body.n + 1, on_event, j);
	sse_scan_feed(&scan, body);
	sse_scan_feed(&scan, CGN_STR("\n\n")); /* The client may take an event whose end did not come. */
	j->b->bad = j->b->bad || scan.lost_events > 0;
	sse_scan_fini(&scan);
}

static void lines_put(struct json_out *j, struct cgn_str body)
{
	while (body.p != NULL) {
		struct cgn_str line = cgn_str_trim(cgn_str_split(&body, '\n'));
		if (line.n > 0)
			piece_put(j, line);
	}
}

static void body_put(struct json_out *j, enum hook_body form, struct cgn_str body)
{
	switch (form) {
	case HOOK_NO_BODY:
		break;
	case HOOK_JSON:
	case HOOK_CHECKED:
		if (form == HOOK_JSON && !is_json(body)) {
			bytes_put(j, body);
			break;
		}
		json_key(j, "body");
		json_put_raw(j, body);
		break;
	case HOOK_EVENTS:
	case HOOK_LINES:
		json_key_open(j, "events", '[');
		(form == HOOK_EVENTS ? events_put : lines_put)(j, body);
		json_close(j, ']');
		break;
	case HOOK_BYTES:
		bytes_put(j, body);
		break;
	}
}

/* ---- the document ---- */

void hook_question_open(struct cgn_buf *out, const struct hook_question *q)
{
	struct json_out j = json_out_to(out);
	json_open(&j, '{');
	json_key_z(&j, "hook", q->hook);
	json_key_open(&j, "request", '{');
	json_key_str(&j, "id", q->id);
	text_put(&j, "client_id", q->client_id);
	json_key_str(&j, "method", q->method);
	json_key_str(&j, "path", q->path);
	text_put(&j, "model", q->model);
	json_key_bool(&j, "stream", q->stream);
	json_close(&j, '}');
	json_key_open(&j, "principal", '{');
	json_key_z(&j, "kind", q->kind);
	text_put(&j, "name", q->name);
	text_put(&j, "tenant", q->tenant);
	json_key_open(&j, "roles", '[');
	for (size_t i = 0; i < q->n_roles; i++)
		json_put_z(&j, q->roles[i]);
	json_close(&j, ']');
	json_close(&j, '}');
	json_key_str(&j, "from", q->from);
	if (q->status != 0) {
		json_key_open(&j, "response", '{');
		json_key_u64(&j, "status", (uint64_t)q->status);
		text_put(&j, "content_type", q->type);
		json_key_bool(&j, "complete", q->complete);
		json_close(&j, '}');
	}
}

void hook_question_close(struct cgn_buf *out, enum hook_body form, struct cgn_str body)
{
	struct json_out j = {.b = out, .depth = 1, .comma = true};
	body_put(&j, form, body);
	json_close(&j, '}');
}
