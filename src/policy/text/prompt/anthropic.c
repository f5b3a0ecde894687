/* SPDX-License-Identifier: Apache-2.0 */
/* anthropic: converts system and messages of /v1/messages to chat messages, as vLLM does. */
#include "policy/text/prompt/prompt_priv.h"

enum part_key {
	PART_TYPE,
	PART_TEXT,
	PART_ID,
	PART_NAME,
	PART_INPUT,
	PART_TOOL_USE_ID,
	PART_CONTENT,
	PART_KEYS
};

static void pick_block(struct json_val block, struct json_val v[PART_KEYS])
{
	static const char *const keys[PART_KEYS] = {"type", "text", "id", "name", "input", "tool_use_id",
		"content"};
	json_pick(block, keys, PART_KEYS, v);
}

/* Write the texts of the system's parts one after the other. */
static void put_system(struct prompt_writer *w, struct json_val system)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf joined = {0};
	struct json_val block, text;
	if (system.type == JSON_ARRAY) {
		cgn_buf_char(&joined, '"');
		for (struct json_iter it = json_iter_of(system); json_next_elem(&it, &block);)
			if (json_get(block, "text", &text) && text.type == JSON_STRING)
				cgn_buf_add(&joined, text.raw.p + 1, text.raw.n - 2);
		cgn_buf_char(&joined, '"');
		system = prompt_literal(cgn_buf_view(&joined));
	}
	if (joined.bad)
		w->lacks = PROMPT_LACKS_MEMORY;
	else
		prompt_put_message(w,
			&(struct prompt_message){.role = prompt_literal(CGN_STR("\"system\"")),
				.content = system});
}

/* The message made of one message with parts, without the tool results in it. */
struct gathered {
	struct cgn_buf parts, calls;
	size_t n_parts;
	struct json_val only; /* The text of its only part; raw.p NULL: not a text. */
};

static void take_call(struct gathered *g, const struct json_val v[PART_KEYS])
{
	struct cgn_str id = prompt_is_there(v[PART_ID]) ? v[PART_ID].raw : CGN_STR("\"\"");
	struct cgn_str name = prompt_is_there(v[PART_NAME]) ? v[PART_NAME].raw : CGN_STR("\"\"");
	struct cgn_str input = v[PART_INPUT].type == JSON_OBJECT ? v[PART_INPUT].raw : CGN_STR("{}");
	cgn_buf_fmt(&g->calls, "%s{\"id\":", g->calls.n > 0 ? "," : "");
	cgn_buf_str(&g->calls, id);
	cgn_buf_putz(&g->calls, ",\"type\":\"function\",\"function\":{\"name\":");
	cgn_buf_str(&g->calls, name);
	cgn_buf_putz(&g->calls, ",\"arguments\":");
	cgn_buf_str(&g->calls, input);
	cgn_buf_putz(&g->calls, "}}");
}

static void put_result(struct prompt_writer *w, const struct json_val v[PART_KEYS])
{
	struct json_val id = prompt_is_there(v[PART_TOOL_USE_ID]) ? v[PART_TOOL_USE_ID] : v[PART_ID];
	prompt_put_message(w,
		&(struct prompt_message){.role = prompt_literal(CGN_STR("\"tool\"")),
			.content = v[PART_CONTENT],
			.tool_call_id = id});
}

static void take_part(struct gathered *g, struct json_val block, struct json_val text)
{
	if (g->n_parts++ > 0)
		cgn_buf_char(&g->parts, ',');
	cgn_buf_str(&g->parts, block.raw);
	g->only = g->n_parts == 1 ? text : (struct json_val){0};
}

static void take_block(struct prompt_writer *w, struct gathered *g, struct json_val block)
{
	struct json_val v[PART_KEYS];
	pick_block(block, v);
	if (cgn_str_is(v[PART_TYPE].raw, "\"tool_use\""))
		take_call(g, v);
	else if (cgn_str_is(v[PART_TYPE].raw, "\"tool_result\""))
		put_result(w, v);
	else if (cgn_str_is(v[PART_TYPE].raw, "\"text\"") && v[PART_TEXT].type == JSON_STRING &&
		v[PART_TEXT].raw.n > 2)
		take_part(g, block, v[PART_TEXT]);
	else if (cgn_str_is(v[PART_TYPE].raw, "\"image\"") || cgn_str_is(v[PART_TYPE].raw, "\"document\""))
		take_part(g, block, (struct json_val){0});
}

static void put_gathered(struct prompt_writer *w, struct json_val role, struct gathered *g)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf parts = {0};
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf calls = {0};
	struct prompt_message m = {.role = role, .content = g->only};
	if (g->n_parts > 0 && g->only.raw.p == NULL)
		m.content = prompt_list_of(&g->parts, &parts);
	if (g->calls.n > 0)
		m.tool_calls = prompt_list_of(&g->calls, &calls);
	if (g->parts.bad || g->calls.bad || parts.bad || calls.bad)
		w->lacks = PROMPT_LACKS_MEMORY;
	else if (g->n_parts > 0 || g->calls.n > 0)
		prompt_put_message(w, &m);
}

static void put_one(struct prompt_writer *w, struct json_val message)
{
	static const char *const keys[] = {"role", "content"};
	struct json_val v[CGN_COUNT(keys)], block;
	struct gathered g = {0};
	json_pick(message, keys, CGN_COUNT(keys), v);
	if (v[1].type != JSON_ARRAY) {
		prompt_put_message(w, &(struct prompt_message){.role = v[0], .content = v[1]});
		return;
	}
	for (struct json_iter it = json_iter_of(v[1]); w->lacks == NULL && json_next_elem(&it, &block);)
		take_block(w, &g, block);
	if (w->lacks == NULL)
		put_gathered(w, v[0], &g);
	cgn_buf_fini(&g.parts);
	cgn_buf_fini(&g.calls);
}

void prompt_put_anthropic(struct prompt_writer *w, struct json_val body)
{
	static const char *const keys[] = {"system", "messages"};
	struct json_val v[CGN_COUNT(keys)], message;
	json_pick(body, keys, CGN_COUNT(keys), v);
	if (prompt_is_there(v[0]))
		put_system(w, v[0]);
	if (v[1].type != JSON_ARRAY) {
		w->lacks = PROMPT_LACKS_SHAPE;
		return;
	}
	for (struct json_iter it = json_iter_of(v[1]); w->lacks == NULL && json_next_elem(&it, &message);)
		put_one(w, message);
}
