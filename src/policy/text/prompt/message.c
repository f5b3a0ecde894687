/* SPDX-License-Identifier: Apache-2.0 */
/* message: one message, its content, its calls, and the tools. JSON strings are copied with their escapes. */
#include "policy/text/prompt/prompt_priv.h"

static struct cgn_str string_contents(struct json_val string)
{
	return (struct cgn_str){string.raw.p + 1, string.raw.n - 2};
}

/* ---- parts ---- */

enum part_key { PART_TYPE, PART_TEXT, PART_REFUSAL, PART_THINKING, PART_MEDIA, PART_KEYS = PART_MEDIA + 8 };

static void pick_part(struct json_val part, struct json_val v[PART_KEYS])
{
	static const char *const keys[PART_KEYS] = {"type", "text", "refusal", "thinking", "image_url",
		"video_url", "audio_url", "input_audio", "source", "file", "file_data", "file_id"};
	json_pick(part, keys, PART_KEYS, v);
}

/* Return the part's text as a JSON string; raw.p NULL: the part is a medium. */
static struct json_val part_text(struct json_val part, const struct json_val v[PART_KEYS])
{
	if (part.type == JSON_STRING)
		return part;
	for (size_t i = PART_TEXT; i < PART_MEDIA; i++)
		if (prompt_is_there(v[i]) && v[i].type == JSON_STRING)
			return v[i];
	return (struct json_val){0};
}

static struct json_val media_source(struct json_val part, const struct json_val v[PART_KEYS])
{
	static const char *const keys[] = {"url", "data", "file_data", "file_id"};
	struct json_val inner[CGN_COUNT(keys)], medium = part;
	for (size_t i = PART_KEYS; i > PART_MEDIA; i--)
		if (prompt_is_there(v[i - 1]))
			medium = v[i - 1];
	json_pick(medium, keys, CGN_COUNT(keys), inner);
	for (size_t i = 0; i < CGN_COUNT(keys); i++)
		if (prompt_is_there(inner[i]))
			return inner[i];
	return medium;
}

static struct digest media_digest(struct json_val source)
{
	struct digest_stream s;
	if (source.type != JSON_STRING)
		return digest_of(source.raw);
	digest_stream_start(&s);
	json_str_pieces(source, digest_stream_add, &s);
	return digest_stream_end(&s);
}

/* Write the medium's mark, without quotes. */
static void put_medium(struct prompt_writer *w, struct json_val part, const struct json_val v[PART_KEYS])
{
	static const char digits[] = "0123456789abcdef";
	struct prompt *p = w->p;
	char hex[2 * DIGEST_BYTES];
	if (p->n_media == PROMPT_MEDIA_MAX) {
		w->lacks = PROMPT_LACKS_SHAPE;
		return;
	}
	struct digest d = media_digest(media_source(part, v));
	p->media[p->n_media++] = d;
	for (size_t i = 0; i < DIGEST_BYTES; i++) {
		hex[2 * i] = digits[d.b[i] >> 4];
		hex[2 * i + 1] = digits[d.b[i] & 15];
	}
	cgn_buf_putz(&p->store, PROMPT_MEDIUM);
	cgn_buf_add(&p->store, hex, sizeof hex);
}

/* ---- content ---- */

/* Write the media first, or the texts, into an open JSON string. Return true once there was one. */
static bool put_joined(struct prompt_writer *w, struct json_val parts, bool media, bool begun,
	const char *separator)
{
	struct json_val part, v[PART_KEYS];
	for (struct json_iter it = json_iter_of(parts); w->lacks == NULL && json_next_elem(&it, &part);) {
		pick_part(part, v);
		struct json_val text = part_text(part, v);
		if (media == (text.raw.p != NULL))
			continue;
		if (begun)
			cgn_buf_putz(&w->p->store, separator);
		begun = true;
		if (media)
			put_medium(w, part, v);
		else
			cgn_buf_str(&w->p->store, string_contents(text));
	}
	return begun;
}

/* Write a message whose content is the text of these parts, joined with |separator|; a string is one part. */
static void prompt_put_text(struct prompt_writer *w, struct json_val content, const char *separator)
{
	struct cgn_buf *b = &w->p->store;
	cgn_buf_char(b, '"');
	if (content.type == JSON_STRING)
		cgn_buf_str(b, string_contents(content));
	else if (content.type == JSON_ARRAY)
		(void)put_joined(w, content, false, put_joined(w, content, true, false, separator),
			separator);
	else if (prompt_is_there(content))
		w->lacks = PROMPT_LACKS_SHAPE;
	cgn_buf_char(b, '"');
}

static void put_text_part(struct prompt_writer *w, struct cgn_str text)
{
	cgn_buf_putz(&w->p->store, "{\"type\":\"text\",\"text\":\"");
	cgn_buf_str(&w->p->store, text);
	cgn_buf_putz(&w->p->store, "\"}");
}

static void put_part(struct prompt_writer *w, struct json_val part)
{
	struct json_val v[PART_KEYS];
	pick_part(part, v);
	struct json_val text = part_text(part, v);
	if (text.raw.p != NULL) {
		put_text_part(w, string_contents(text));
		return;
	}
	cgn_buf_putz(&w->p->store, "{\"type\":\"text\",\"text\":\"");
	put_medium(w, part, v);
	cgn_buf_putz(&w->p->store, "\"}");
}

static void put_parts(struct prompt_writer *w, struct json_val content)
{
	struct cgn_buf *b = &w->p->store;
	struct json_iter it = content.type == JSON_ARRAY ? json_iter_of(content) : (struct json_iter){0};
	struct json_val part;
	cgn_buf_char(b, '[');
	if (content.type == JSON_STRING)
		put_text_part(w, string_contents(content));
	else if (content.type != JSON_ARRAY && prompt_is_there(content))
		w->lacks = PROMPT_LACKS_SHAPE;
	for (bool first = true; content.type == JSON_ARRAY && w->lacks == NULL && json_next_elem(&it, &part);
		first = false) {
		if (!first)
			cgn_buf_char(b, ',');
		put_part(w, part);
	}
	cgn_buf_char(b, ']');
}

static void put_content(struct prompt_writer *w, struct json_val role, struct json_val content)
{
	bool is_list = content.type == JSON_ARRAY;
	bool of_tool = cgn_str_is(role.raw, "\"tool\"");
	if ((w->format == PROMPT_RAW || w->format == PROMPT_KEPT) && !is_list)
		cgn_buf_str(&w->p->store, prompt_is_there(content) ? content.raw : CGN_STR("null"));
	else if (w->format == PROMPT_STRING || (of_tool && w->format == PROMPT_PARTS))
		prompt_put_text(w, content, "\\n");
	else
		put_parts(w, content);
}

/* ---- calls ---- */

/* Write a function's arguments as JSON; invalid arguments become {}. */
static void put_arguments(struct prompt_writer *w, struct json_val arguments)
{
	struct cgn_buf *b = &w->p->store;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	struct json_val parsed;
	if (arguments.type == JSON_STRING) {
		json_str_to(arguments, &text);
		if (!text.bad && cgn_ok(json_parse(cgn_buf_view(&text), &parsed, NULL, NULL)))
			cgn_buf_str(b, parsed.raw);
		else
			cgn_buf_putz(b, "{}");
		return;
	}
	bool keeps = arguments.type == JSON_OBJECT || arguments.type == JSON_ARRAY;
	cgn_buf_str(b, keeps ? arguments.raw : CGN_STR("{}"));
}

/* Write the object's members unchanged, except |name|, which |put| writes. */
static void put_but(struct prompt_writer *w, struct json_val object, const char *name,
	void (*put)(struct prompt_writer *w, struct json_val value), bool always)
{
	struct cgn_buf *b = &w->p->store;
	struct cgn_str key;
	struct json_val value;
	bool first = true, seen = false;
	cgn_buf_char(b, '{');
	for (struct json_iter it = json_iter_of(object); json_next_member(&it, &key, &value); first = false) {
		cgn_buf_putz(b, first ? "\"" : ",\"");
		cgn_buf_str(b, key);
		cgn_buf_putz(b, "\":");
		if (!json_key_is(key, name)) {
			cgn_buf_str(b, value.raw);
			continue;
		}
		seen = true;
		put(w, value);
	}
	if (!seen && always) {
		cgn_buf_fmt(b, "%s\"%s\":", first ? "" : ",", name);
		put(w, (struct json_val){0});
	}
	cgn_buf_char(b, '}');
}

static void put_function(struct prompt_writer *w, struct json_val function)
{
	if (function.type == JSON_OBJECT)
		put_but(w, function, "arguments", put_arguments, true);
	else
		w->lacks = PROMPT_LACKS_SHAPE;
}

static void put_calls(struct prompt_writer *w, struct json_val calls)
{
	struct json_val call;
	bool first = true;
	cgn_buf_char(&w->p->store, '[');
	for (struct json_iter it = json_iter_of(calls); w->lacks == NULL && json_next_elem(&it, &call);
		first = false) {
		if (!first)
			cgn_buf_char(&w->p->store, ',');
		if (call.type == JSON_OBJECT)
			put_but(w, call, "function", put_function, false);
		else
			w->lacks = PROMPT_LACKS_SHAPE;
	}
	cgn_buf_char(&w->p->store, ']');
}

static bool has_elements(struct json_val v)
{
	struct json_val elem;
	struct json_iter it = v.type == JSON_ARRAY ? json_iter_of(v) : (struct json_iter){0};
	return v.type == JSON_ARRAY && json_next_elem(&it, &elem);
}

struct json_val prompt_list_of(const struct cgn_buf *items, struct cgn_buf *out)
{
	cgn_buf_char(out, '[');
	cgn_buf_str(out, cgn_buf_view(items));
	cgn_buf_char(out, ']');
	return (struct json_val){JSON_ARRAY, cgn_buf_view(out)};
}

/* ---- message ---- */

static void put_field(struct prompt_writer *w, const char *key, struct json_val v)
{
	if (!prompt_is_there(v))
		return;
	json_key(&w->j, key);
	json_put_raw(&w->j, v.raw);
}

void prompt_put_message(struct prompt_writer *w, const struct prompt_message *m)
{
	if (!prompt_is_there(m->role) || m->role.type != JSON_STRING) {
		w->lacks = PROMPT_LACKS_SHAPE;
		return;
	}
	json_open(&w->j, '{');
	put_field(w, "role", m->role);
	json_key(&w->j, "content");
	put_content(w, m->role, m->content);
	w->j.comma = true;
	put_field(w, "name", m->name);
	put_field(w, "tool_call_id", m->tool_call_id);
	put_field(w, "reasoning", m->reasoning);
	put_field(w, "reasoning_content", m->reasoning);
	if (has_elements(m->tool_calls)) {
		json_key(&w->j, "tool_calls");
		if (w->format == PROMPT_RAW)
			cgn_buf_str(&w->p->store, m->tool_calls.raw);
		else
			put_calls(w, m->tool_calls);
		w->j.comma = true;
	}
	json_close(&w->j, '}');
}

/* ---- tools ---- */

static void put_or_null(struct prompt_writer *w, const char *key, struct json_val v)
{
	json_key(&w->j, key);
	if (prompt_is_there(v))
		json_put_raw(&w->j, v.raw);
	else
		json_put_null(&w->j);
}

/* Write the members that have no field of their own unchanged, after the others. */
static void put_rest(struct prompt_writer *w, struct json_val object, const char *const *known, size_t n)
{
	struct cgn_str key;
	struct json_val value;
	for (struct json_iter it = json_iter_of(object); json_next_member(&it, &key, &value);) {
		bool is_known = false;
		for (size_t i = 0; i < n && !is_known; i++)
			is_known = json_key_is(key, known[i]);
		if (is_known)
			continue;
		cgn_buf_putz(&w->p->store, w->j.comma ? ",\"" : "\"");
		cgn_buf_str(&w->p->store, key);
		cgn_buf_putz(&w->p->store, "\":");
		cgn_buf_str(&w->p->store, value.raw);
		w->j.comma = true;
	}
}

static void put_tool(struct prompt_writer *w, struct json_val tool)
{
	static const char *const keys[] = {"type", "function", "name", "description", "parameters",
		"input_schema"};
	struct json_val v[CGN_COUNT(keys)], function = tool, inner[CGN_COUNT(keys)];
	json_pick(tool, keys, CGN_COUNT(keys), v);
	bool nested = prompt_is_there(v[1]), anthropic = prompt_is_there(v[5]);
	if (nested)
		function = v[1];
	json_pick(function, keys, CGN_COUNT(keys), inner);
	json_open(&w->j, '{');
	json_key(&w->j, "type");
	json_put_raw(&w->j, nested && prompt_is_there(v[0]) ? v[0].raw : CGN_STR("\"function\""));
	json_key_open(&w->j, "function", '{');
	put_or_null(w, "name", inner[2]);
	put_or_null(w, "description", inner[3]);
	put_or_null(w, "parameters", anthropic ? v[5] : inner[4]);
	if (!anthropic && function.type == JSON_OBJECT)
		put_rest(w, function, nested ? keys + 2 : keys, nested ? 3 : 5);
	json_close(&w->j, '}');
	if (nested)
		put_rest(w, tool, keys, 2);
	json_close(&w->j, '}');
}

void prompt_put_tools(struct prompt_writer *w, struct json_val tools)
{
	struct json_val tool;
	if (!has_elements(tools))
		return; /* Treated as absent. */
	if (w->format == PROMPT_RAW) {
		cgn_buf_str(&w->p->store, tools.raw);
		return;
	}
	json_open(&w->j, '[');
	for (struct json_iter it = json_iter_of(tools); json_next_elem(&it, &tool);)
		if (tool.type == JSON_OBJECT)
			put_tool(w, tool);
		else
			w->lacks = PROMPT_LACKS_SHAPE;
	json_close(&w->j, ']');
}
