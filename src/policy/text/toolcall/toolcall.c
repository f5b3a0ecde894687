/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/text/toolcall/toolcall.h"

#include <string.h>

#include "base/json/json.h"

static bool text_has(struct cgn_str text, const char *part)
{
	return text.n > 0 && memmem(text.p, text.n, part, strlen(part)) != NULL;
}

/* Inside a string the quotes would be escaped, so text about tool calls has no such mark. */
static bool is_marked(struct cgn_str text)
{
	return text_has(text, "\"name\"") &&
		(text_has(text, "\"tool_calls\"") || text_has(text, "\"tool_use\"") ||
			text_has(text, "\"function_call\""));
}

static void name_take(struct toolcall *t, struct json_val object)
{
	struct json_val v;
	if (!json_get(object, "name", &v) || v.type != JSON_STRING || t->n == TOOLCALL_NAMES)
		return;
	struct cgn_buf name = cgn_buf_over(t->text[t->n], TOOLCALL_NAME_MAX);
	json_str_to(v, &name);
	struct cgn_str text = cgn_buf_view(&name);
	if (name.bad || text.n == 0)
		return;
	for (size_t i = 0; i < t->n; i++)
		if (cgn_str_eq(t->names[i], text))
			return;
	t->names[t->n++] = text;
}

static bool has_type(struct json_val object, const char *type)
{
	struct json_val v;
	char room[32];
	struct cgn_buf text = cgn_buf_over(room, sizeof room);
	if (!json_get(object, "type", &v) || v.type != JSON_STRING)
		return false;
	json_str_to(v, &text);
	return !text.bad && cgn_str_is(cgn_buf_view(&text), type);
}

static void chat_take(struct toolcall *t, struct json_val message)
{
	struct json_val calls, call, function;
	if (json_get(message, "function_call", &function))
		name_take(t, function);
	if (!json_get(message, "tool_calls", &calls) || calls.type != JSON_ARRAY)
		return;
	struct json_iter it = json_iter_of(calls);
	while (json_next_elem(&it, &call))
		if (json_get(call, "function", &function))
			name_take(t, function);
}

static void choices_take(struct toolcall *t, struct json_val choices)
{
	struct json_val choice, message;
	if (choices.type != JSON_ARRAY)
		return;
	struct json_iter it = json_iter_of(choices);
	while (json_next_elem(&it, &choice))
		if (json_get(choice, "delta", &message) || json_get(choice, "message", &message))
			chat_take(t, message);
}

static void item_take(struct toolcall *t, struct json_val item)
{
	if (has_type(item, "tool_use") || has_type(item, "function_call"))
		name_take(t, item);
}

static void items_take(struct toolcall *t, struct json_val items)
{
	struct json_val item;
	if (items.type != JSON_ARRAY)
		return;
	struct json_iter it = json_iter_of(items);
	while (json_next_elem(&it, &item))
		item_take(t, item);
}

/* Read an event's data, or a document. */
static void json_take(struct toolcall *t, struct cgn_str text)
{
	struct json_val doc, v;
	if (!is_marked(text) || !cgn_ok(json_parse(text, &doc, NULL, NULL)) || doc.type != JSON_OBJECT)
		return;
	if (json_get(doc, "choices", &v))
		choices_take(t, v);
	if (json_get(doc, "content_block", &v) || json_get(doc, "item", &v))
		item_take(t, v);
	if (json_get(doc, "content", &v) || json_get(doc, "output", &v))
		items_take(t, v);
}

static void on_event(void *arg, struct cgn_str name, struct cgn_str data)
{
	(void)name;
	json_take(arg, data);
}

void toolcall_init(struct toolcall *t, bool events)
{
	memset(t, 0, sizeof *t);
	t->events = events;
	if (events)
		sse_scan_init(&t->scan, TOOLCALL_EVENT_MAX, on_event, t);
	t->document.limit = TOOLCALL_DOCUMENT_MAX;
}

void toolcall_feed(struct toolcall *t, struct cgn_str bytes)
{
	if (t->events) {
		sse_scan_feed(&t->scan, bytes);
		return;
	}
	if (t->lost)
		return;
	cgn_buf_add(&t->document, bytes.p, bytes.n);
	t->lost = t->document.bad;
	if (t->lost)
		cgn_buf_fini(&t->document);
}

void toolcall_end(struct toolcall *t)
{
	if (t->events)
		sse_scan_end(&t->scan);
	else if (!t->lost)
		json_take(t, cgn_buf_view(&t->document));
}

void toolcall_fini(struct toolcall *t)
{
	if (t->events)
		sse_scan_fini(&t->scan);
	cgn_buf_fini(&t->document);
}
