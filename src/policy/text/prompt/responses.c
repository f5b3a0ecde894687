/* SPDX-License-Identifier: Apache-2.0 */
/* responses: instructions and items of /v1/responses. The text, reasoning and calls of an assistant come in
 * several items and become one message: an item joins the assistant's message before it unless that already
 * has such a part. */
#include "policy/text/prompt/prompt_priv.h"

/* The assistant's message while it may still grow. Its calls are collected separately, because its content
 * may come after them. */
struct turn {
	bool open;
	struct json_val content, reasoning;
	struct cgn_buf calls; /* JSON objects separated by commas. */
};

enum item_key {
	ITEM_TYPE,
	ITEM_ROLE,
	ITEM_CONTENT,
	ITEM_SUMMARY,
	ITEM_NAME,
	ITEM_ARGUMENTS,
	ITEM_CALL_ID,
	ITEM_OUTPUT,
	ITEM_KEYS
};

static void turn_flush(struct prompt_writer *w, struct turn *t)
{
	if (!t->open)
		return;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf calls = {0};
	struct prompt_message m = {.role = prompt_literal(CGN_STR("\"assistant\"")),
		.content = t->content,
		.reasoning = t->reasoning};
	if (t->calls.n > 0)
		m.tool_calls = prompt_list_of(&t->calls, &calls);
	if (t->calls.bad || calls.bad)
		w->lacks = PROMPT_LACKS_MEMORY;
	else
		prompt_put_message(w, &m);
	cgn_buf_fini(&t->calls);
	*t = (struct turn){0};
}

/* Return the text of the first part. */
static struct json_val first_text(struct json_val content)
{
	struct json_val part, text = {0};
	if (content.type == JSON_STRING || !prompt_is_there(content))
		return content;
	struct json_iter it = content.type == JSON_ARRAY ? json_iter_of(content) : (struct json_iter){0};
	if (content.type != JSON_ARRAY || !json_next_elem(&it, &part))
		return prompt_literal(CGN_STR("\"\""));
	if (part.type == JSON_STRING)
		return part;
	return json_get(part, "text", &text) && text.type == JSON_STRING ? text
									 : prompt_literal(CGN_STR("\"\""));
}

static void take_text(struct prompt_writer *w, struct turn *t, struct json_val text)
{
	if (t->open && prompt_is_there(t->content))
		turn_flush(w, t);
	t->open = true;
	t->content = prompt_is_there(text) ? text : prompt_literal(CGN_STR("\"\""));
}

static void take_reasoning(struct prompt_writer *w, struct turn *t, const struct json_val v[ITEM_KEYS])
{
	if (t->open && prompt_is_there(t->reasoning))
		turn_flush(w, t);
	t->open = true;
	t->reasoning = first_text(prompt_is_there(v[ITEM_CONTENT]) ? v[ITEM_CONTENT] : v[ITEM_SUMMARY]);
}

static struct cgn_str raw_or(struct json_val v, struct cgn_str otherwise)
{
	return prompt_is_there(v) ? v.raw : otherwise;
}

static void take_call(struct turn *t, const struct json_val v[ITEM_KEYS])
{
	t->open = true;
	cgn_buf_putz(&t->calls, t->calls.n > 0 ? ",{\"id\":" : "{\"id\":");
	cgn_buf_str(&t->calls, raw_or(v[ITEM_CALL_ID], CGN_STR("null")));
	cgn_buf_putz(&t->calls, ",\"function\":{\"name\":");
	cgn_buf_str(&t->calls, raw_or(v[ITEM_NAME], CGN_STR("null")));
	cgn_buf_putz(&t->calls, ",\"arguments\":");
	cgn_buf_str(&t->calls, raw_or(v[ITEM_ARGUMENTS], CGN_STR("\"{}\"")));
	cgn_buf_putz(&t->calls, "},\"type\":\"function\"}");
}

static void take_item(struct prompt_writer *w, struct turn *t, struct json_val item)
{
	static const char *const keys[ITEM_KEYS] = {"type", "role", "content", "summary", "name", "arguments",
		"call_id", "output"};
	struct json_val v[ITEM_KEYS];
	json_pick(item, keys, ITEM_KEYS, v);
	if (cgn_str_is(v[ITEM_TYPE].raw, "\"function_call\"")) {
		take_call(t, v);
		return;
	}
	if (cgn_str_is(v[ITEM_TYPE].raw, "\"reasoning\"")) {
		take_reasoning(w, t, v);
		return;
	}
	if (cgn_str_is(v[ITEM_ROLE].raw, "\"assistant\"")) {
		take_text(w, t, first_text(v[ITEM_CONTENT]));
		return;
	}
	turn_flush(w, t);
	struct prompt_message m = {.role = v[ITEM_ROLE], .content = v[ITEM_CONTENT], .name = v[ITEM_NAME]};
	if (cgn_str_is(v[ITEM_TYPE].raw, "\"function_call_output\""))
		m = (struct prompt_message){.role = prompt_literal(CGN_STR("\"tool\"")),
			.content = v[ITEM_OUTPUT],
			.tool_call_id = v[ITEM_CALL_ID]};
	prompt_put_message(w, &m);
}

void prompt_put_responses(struct prompt_writer *w, struct json_val body)
{
	static const char *const keys[] = {"instructions", "input"};
	struct json_val v[CGN_COUNT(keys)], item;
	struct turn t = {0};
	json_pick(body, keys, CGN_COUNT(keys), v);
	if (prompt_is_there(v[0]))
		prompt_put_message(w,
			&(struct prompt_message){.role = prompt_literal(CGN_STR("\"system\"")),
				.content = v[0]});
	if (v[1].type == JSON_STRING) {
		prompt_put_message(w,
			&(struct prompt_message){.role = prompt_literal(CGN_STR("\"user\"")),
				.content = v[1]});
		return;
	}
	if (v[1].type != JSON_ARRAY) {
		w->lacks = PROMPT_LACKS_SHAPE;
		return;
	}
	for (struct json_iter it = json_iter_of(v[1]); w->lacks == NULL && json_next_elem(&it, &item);)
		take_item(w, &t, item);
	turn_flush(w, &t);
	cgn_buf_fini(&t.calls);
}
