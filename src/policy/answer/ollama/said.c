/* SPDX-License-Identifier: Apache-2.0 */
/* said: the texts, thoughts and tool calls in a choice of an engine's answer. */
#include <stdlib.h>

#include "policy/answer/ollama/ollama_priv.h"

/* ---- texts ---- */

void ollama_text_add(struct cgn_buf *text, struct cgn_str json)
{
	if (json.n <= 2)
		return;
	if (text->n == 0)
		cgn_buf_char(text, '"');
	cgn_buf_add(text, json.p + 1, json.n - 2);
}

void ollama_said_fini(struct ollama_said *s)
{
	cgn_buf_fini(&s->texts);
	cgn_buf_fini(&s->thoughts);
}

static bool string_at(struct json_val object, const char *key, struct json_val *out)
{
	return json_get(object, key, out) && out->type == JSON_STRING && out->raw.n > 2;
}

/* Add a part of a list to |to|: a string, or an object with a text. */
static bool text_part(struct json_val part, struct cgn_buf *to)
{
	struct json_val text = part;
	if (part.type == JSON_OBJECT && !json_get(part, "text", &text) && !json_get(part, "refusal", &text))
		return false;
	if (text.type != JSON_STRING)
		return false;
	ollama_text_add(to, text.raw);
	return true;
}

static bool text_parts(struct json_val list, struct cgn_buf *to)
{
	struct json_val part;
	for (struct json_iter it = json_iter_of(list); json_next_elem(&it, &part);)
		if (!text_part(part, to))
			return false;
	return true;
}

/* A part of Mistral's reasoning models: "thinking" is a text, or has parts of its own. */
static bool thought_part(struct json_val thinking, struct cgn_buf *to)
{
	return thinking.type == JSON_ARRAY ? text_parts(thinking, to) : text_part(thinking, to);
}

static bool content_parts(struct json_val list, struct ollama_said *s)
{
	struct json_val part, thinking;
	for (struct json_iter it = json_iter_of(list); json_next_elem(&it, &part);)
		if (json_get(part, "thinking", &thinking) ? !thought_part(thinking, &s->thoughts)
							  : !text_part(part, &s->texts))
			return false;
	return true;
}

static struct cgn_str text_close(struct cgn_buf *text)
{
	if (text->n > 0)
		cgn_buf_char(text, '"');
	return cgn_buf_view(text);
}

/* Read the text |key| of |object|: a string, a list of parts, or none. */
static bool content_read(struct json_val object, const char *key, struct ollama_said *s)
{
	struct json_val v;
	if (!json_get(object, key, &v) || !ollama_is_there(v))
		return true;
	if (v.type == JSON_STRING)
		s->content = v.raw.n > 2 ? v.raw : s->content;
	else if (v.type != JSON_ARRAY || !content_parts(v, s))
		return false;
	if (v.type == JSON_ARRAY) {
		s->content = text_close(&s->texts);
		s->thinking = text_close(&s->thoughts);
	}
	return !s->texts.bad && !s->thoughts.bad;
}

static bool message_read(struct json_val message, struct ollama_said *s)
{
	struct json_val v;
	if (!content_read(message, "content", s))
		return false;
	if (s->content.n == 0 && string_at(message, "refusal", &v))
		s->content = v.raw;
	if (s->thinking.n == 0 &&
		(string_at(message, "reasoning_content", &v) || string_at(message, "reasoning", &v)))
		s->thinking = v.raw;
	return true;
}

/* ---- tool calls ---- */

/* Return true if |text| is only what JSON calls white space. */
static bool is_blank(struct cgn_str text)
{
	size_t i = 0;
	while (i < text.n && memchr(" \t\r\n", text.p[i], 4) != NULL)
		i++;
	return i == text.n;
}

/* A piece of a tool call, as a list of an event has it. Missing members have no |raw|. */
struct call_piece {
	bool numbered;
	uint64_t index;
	struct json_val id, name, arguments;
};

static struct ollama_call *call_new(struct ollama_answer *a, uint64_t index)
{
	if (a->n_calls == OLLAMA_CALLS_MAX)
		return NULL;
	a->calls = CGN_GROWN(a->calls, a->n_calls + 1);
	a->calls[a->n_calls] = (struct ollama_call){.index = index, .arguments.limit = OLLAMA_TEXT_MAX};
	return &a->calls[a->n_calls++];
}

static bool is_other(const struct cgn_buf *known, struct json_val told)
{
	return told.raw.p != NULL && known->n > 0 && !cgn_str_eq(cgn_buf_view(known), told.raw);
}

/* An object is complete arguments, also an empty one. White space adds nothing to arguments that are complete. */
static bool adds_arguments(const struct call_piece *p)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.limit = OLLAMA_TEXT_MAX};
	if (p->arguments.raw.p == NULL || p->arguments.type != JSON_STRING)
		return p->arguments.raw.p != NULL;
	json_str_to(p->arguments, &text);
	return text.bad || !is_blank(cgn_buf_view(&text));
}

/* A piece that names another tool, or more arguments than the call can have, begins another call. */
static bool continues_call(const struct ollama_call *c, const struct call_piece *p)
{
	return !is_other(&c->name, p->name) && !(c->whole && adds_arguments(p));
}

/* Find the call that |p| continues: the last one of its id, else the last one of its index that has no other id.
 * Engines give several calls one index (0), or none; then ids and names tell them apart. NULL: a new call. */
static struct ollama_call *call_find(struct ollama_answer *a, const struct call_piece *p)
{
	struct ollama_call *last = NULL;
	for (size_t i = a->n_calls; i > 0; i--) {
		struct ollama_call *c = &a->calls[i - 1];
		bool same_index = c->index == p->index;
		bool same_id = p->id.raw.p != NULL && c->id.n > 0 && !is_other(&c->id, p->id);
		if (same_id && (same_index || !p->numbered))
			return continues_call(c, p) ? c : NULL;
		if (last == NULL && same_index)
			last = c;
	}
	return last != NULL && !is_other(&last->id, p->id) && continues_call(last, p) ? last : NULL;
}

/* Follow the depth of the brackets in |text|: where it comes back to 0, the arguments are complete. */
static void depth_follow(struct ollama_call *c, struct cgn_str text)
{
	for (size_t i = 0; i < text.n; i++) {
		char ch = text.p[i];
		if (c->in_string) {
			c->in_string = c->escaped || ch != '"';
			c->escaped = !c->escaped && ch == '\\';
		} else if (ch == '"') {
			c->in_string = true;
		} else if (ch == '{' || ch == '[') {
			c->depth++;
		} else if ((ch == '}' || ch == ']') && c->depth > 0) {
			c->depth--;
			c->whole = c->whole || c->depth == 0;
		}
	}
}

/* Add the arguments of a piece: a string of JSON, as the API has it, or the object itself. */
static bool arguments_add(struct ollama_call *c, struct json_val v)
{
	size_t before = c->arguments.n;
	if (v.raw.p == NULL)
		return true;
	if (v.type == JSON_STRING)
		json_str_to(v, &c->arguments);
	else if (v.type == JSON_OBJECT && before == 0)
		cgn_buf_str(&c->arguments, v.raw);
	else
		return false;
	if (!c->arguments.bad)
		depth_follow(c, (struct cgn_str){c->arguments.p + before, c->arguments.n - before});
	return true;
}

static void call_add(struct ollama_answer *a, const struct call_piece *p)
{
	struct ollama_call *c = call_find(a, p);
	if (c == NULL)
		c = call_new(a, p->index);
	if (c == NULL) {
		ollama_error_put(a, CGN_STR("the answer has more than 128 tool calls"));
		return;
	}
	if (c->id.n == 0 && p->id.raw.p != NULL)
		cgn_buf_str(&c->id, p->id.raw);
	if (c->name.n == 0 && p->name.raw.p != NULL)
		cgn_buf_str(&c->name, p->name.raw);
	if (!arguments_add(c, p->arguments))
		ollama_error_put(a, CGN_STR(OLLAMA_NO_ARGUMENTS));
	else if (c->id.bad || c->name.bad || c->arguments.bad)
		ollama_error_put(a, CGN_STR("the answer has a tool call that is too long"));
}

static void function_read(struct json_val function, struct call_piece *p)
{
	struct json_val v;
	if (string_at(function, "name", &v))
		p->name = v;
	if (json_get(function, "arguments", &v) && ollama_is_there(v))
		p->arguments = v;
}

static void calls_add(struct ollama_answer *a, struct json_val list)
{
	struct json_val one, v;
	size_t position = 0;
	if (list.type != JSON_ARRAY) {
		ollama_error_put(a, CGN_STR("the engine's tool calls are not a list"));
		return;
	}
	for (struct json_iter it = json_iter_of(list); !a->failed && json_next_elem(&it, &one); position++) {
		struct call_piece p = {.index = position};
		p.numbered = json_get(one, "index", &v) && json_u64(v, &p.index);
		if (string_at(one, "id", &v))
			p.id = v;
		if (json_get(one, "function", &v))
			function_read(v, &p);
		call_add(a, &p);
	}
}

static void message_calls(struct ollama_answer *a, struct json_val message, struct ollama_said *s)
{
	struct json_val calls;
	if (json_get(message, "tool_calls", &calls) && ollama_is_there(calls)) {
		s->calls = true;
		calls_add(a, calls);
	}
	/* Before tools there was one function. */
	if (!a->failed && json_get(message, "function_call", &calls) && calls.type == JSON_OBJECT) {
		struct call_piece p = {.index = 0};
		s->calls = true;
		function_read(calls, &p);
		call_add(a, &p);
	}
}

bool ollama_calls_check(struct ollama_answer *a)
{
	struct json_val v;
	for (size_t i = 0; i < a->n_calls && !a->failed; i++) {
		struct cgn_buf *text = &a->calls[i].arguments;
		bool none = is_blank(cgn_buf_view(text));
		if (none)
			text->n = 0;
		if (!none &&
			(!cgn_ok(json_parse(cgn_buf_view(text), &v, NULL, NULL)) || v.type != JSON_OBJECT))
			ollama_error_put(a, CGN_STR(OLLAMA_NO_ARGUMENTS));
		else if (a->calls[i].name.n == 0)
			ollama_error_put(a, CGN_STR("the engine's tool call names no function"));
	}
	return !a->failed;
}

/* ---- the choice ---- */

static bool object_at(struct json_val object, const char *key, struct json_val *out)
{
	return json_get(object, key, out) && out->type == JSON_OBJECT;
}

bool ollama_said_read(struct ollama_answer *a, struct json_val choice, struct ollama_said *out)
{
	struct json_val message, text;
	bool sound = choice.type == JSON_OBJECT;
	if (object_at(choice, "delta", &message) || object_at(choice, "message", &message)) {
		a->answered = true;
		sound = sound && message_read(message, out);
		if (sound)
			message_calls(a, message, out);
	} else if (json_get(choice, "text", &text)) {
		a->answered = true;
		sound = sound && content_read(choice, "text", out);
	}
	if (!sound && !a->failed)
		ollama_error_put(a, CGN_STR("the engine's answer has a text of an unknown shape"));
	return !a->failed;
}
