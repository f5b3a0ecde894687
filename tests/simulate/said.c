/* SPDX-License-Identifier: Apache-2.0 */
#include "said.h"

#include <string.h>

#include "base/core/err.h"
#include "base/json/json.h"
#include "base/sse/sse.h"

void said_fini(struct said *s)
{
	for (size_t i = 0; i < SAID_CHOICES; i++) {
		cgn_buf_fini(&s->choice[i].text);
		cgn_buf_fini(&s->choice[i].finish);
		cgn_buf_fini(&s->choice[i].calls);
		cgn_buf_fini(&s->choice[i].logprobs);
	}
	cgn_buf_fini(&s->error);
	cgn_buf_fini(&s->id);
	cgn_buf_fini(&s->model);
}

static bool take_string(struct json_val object, const char *key, struct cgn_buf *out)
{
	struct json_val v;
	bool is = json_get(object, key, &v) && v.type == JSON_STRING;
	if (is)
		json_str_to(v, out);
	return is;
}

static bool text_is(struct json_val v, const char *text)
{
	size_t n = strlen(text);
	return v.type == JSON_STRING && v.raw.n == n + 2 && memcmp(v.raw.p + 1, text, n) == 0;
}

static bool bytes_are(const struct cgn_buf *b, struct json_val v)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	if (v.type == JSON_STRING)
		json_str_to(v, &text);
	return text.n == b->n && (b->n == 0 || memcmp(text.p, b->p, b->n) == 0);
}

/* ---- tool calls ---- */

/* Append the name of a call, and arguments: a text, or an object. */
static void take_call(struct json_val call, const char *arguments, struct cgn_buf *out)
{
	struct json_val v;
	if (json_get(call, "name", &v) && v.type == JSON_STRING) {
		cgn_buf_char(out, '\n');
		json_str_to(v, out);
		cgn_buf_char(out, ' ');
	}
	if (!take_string(call, arguments, out) && json_get(call, arguments, &v) && v.type == JSON_OBJECT)
		cgn_buf_str(out, v.raw);
}

static void take_calls(struct json_val message, struct cgn_buf *out)
{
	struct json_val list, call, function;
	if (!json_get(message, "tool_calls", &list) || list.type != JSON_ARRAY)
		return;
	for (struct json_iter it = json_iter_of(list); json_next_elem(&it, &call);)
		if (json_get(call, "function", &function))
			take_call(function, "arguments", out);
}

/* ---- OpenAI's chats and completions ---- */

static void take_logprobs(struct json_val choice, struct cgn_buf *out)
{
	struct json_val all, list, one;
	if (!json_get(choice, "logprobs", &all) || all.type != JSON_OBJECT)
		return;
	bool chat = json_get(all, "content", &list);
	if (!chat && !json_get(all, "tokens", &list))
		return;
	for (struct json_iter it = json_iter_of(list); json_next_elem(&it, &one);) {
		if (chat)
			(void)take_string(one, "token", out);
		else if (one.type == JSON_STRING)
			json_str_to(one, out);
		cgn_buf_char(out, '\n');
	}
}

static void take_choice(struct json_val choice, struct said *s)
{
	struct json_val inner;
	uint64_t i = json_get_u64(choice, "index", 0);
	struct said_choice *c = &s->choice[i < SAID_CHOICES ? i : SAID_CHOICES - 1];
	(void)take_string(choice, "text", &c->text);
	if (json_get(choice, "delta", &inner) || json_get(choice, "message", &inner)) {
		(void)take_string(inner, "content", &c->text);
		take_calls(inner, &c->calls);
	}
	(void)take_string(choice, "finish_reason", &c->finish);
	take_logprobs(choice, &c->logprobs);
}

/* ---- Anthropic's messages, OpenAI's responses, Ollama's API ---- */

/* Take the parts of a message, and the items of a response. */
static void take_parts(struct json_val list, struct said_choice *c)
{
	struct json_val part, inner, type;
	for (struct json_iter it = json_iter_of(list); json_next_elem(&it, &part);) {
		(void)take_string(part, "text", &c->text);
		if (json_get(part, "content", &inner) && inner.type == JSON_ARRAY)
			take_parts(inner, c);
		if (!json_get(part, "type", &type))
			continue;
		if (text_is(type, "tool_use"))
			take_call(part, "input", &c->calls);
		else if (text_is(type, "function_call"))
			take_call(part, "arguments", &c->calls);
	}
}

static void take_usage(struct json_val usage, struct said *s)
{
	if (usage.type != JSON_OBJECT)
		return;
	s->prompt_tokens = json_get_u64(usage, "prompt_tokens", json_get_u64(usage, "input_tokens", 0)) +
		json_get_u64(usage, "cache_read_input_tokens", 0);
	s->completion_tokens =
		json_get_u64(usage, "completion_tokens", json_get_u64(usage, "output_tokens", 0));
}

/* The last event of a response has all of it once more. */
static void take_response(struct json_val doc, struct said *s)
{
	struct said whole = {0};
	struct json_val response, v;
	if (!json_get(doc, "response", &response))
		return;
	if (json_get(response, "output", &v) && v.type == JSON_ARRAY)
		take_parts(v, &whole.choice[0]);
	struct said_choice *a = &whole.choice[0], *b = &s->choice[0];
	if (a->text.n != b->text.n || (a->text.n > 0 && memcmp(a->text.p, b->text.p, a->text.n) != 0))
		s->odd = "a response whose end repeats another text";
	if (a->calls.n != b->calls.n || (a->calls.n > 0 && memcmp(a->calls.p, b->calls.p, a->calls.n) != 0))
		s->odd = "a response whose end repeats another call";
	(void)take_string(response, "status", &b->finish);
	if (json_get(response, "usage", &v))
		take_usage(v, s);
	said_fini(&whole);
}

static void take_event(struct json_val doc, struct json_val type, struct said *s)
{
	struct said_choice *c = &s->choice[0];
	struct json_val v, kind;
	bool has = json_get(doc, "delta", &v);
	if (text_is(type, "content_block_delta") && has) {
		(void)take_string(v, "text", &c->text);
		(void)take_string(v, "partial_json", &c->calls);
	} else if (text_is(type, "message_delta") && has) {
		(void)take_string(v, "stop_reason", &c->finish);
	} else if (text_is(type, "response.output_text.delta") ||
		text_is(type, "response.function_call_arguments.delta")) {
		(void)take_string(doc, "delta", type.raw.n > 30 ? &c->calls : &c->text);
	} else if (text_is(type, "content_block_start") && json_get(doc, "content_block", &v)) {
		if (json_get(v, "type", &kind) && text_is(kind, "tool_use"))
			take_call(v, "", &c->calls);
	} else if (text_is(type, "response.output_item.added") && json_get(doc, "item", &v)) {
		if (json_get(v, "type", &kind) && text_is(kind, "function_call"))
			take_call(v, "", &c->calls);
	} else if (text_is(type, "response.output_text.done") && json_get(doc, "text", &v)) {
		if (!bytes_are(&c->text, v))
			s->odd = "an event that ends a text with another text";
	} else if (text_is(type, "response.completed") || text_is(type, "response.incomplete")) {
		take_response(doc, s);
		s->done = true;
	} else if (text_is(type, "error") || text_is(type, "response.failed")) {
		cgn_buf_str(&s->error, doc.raw);
	} else if (text_is(type, "message_stop")) {
		s->done = true;
	}
}

static void take_others(struct json_val doc, struct said *s)
{
	struct said_choice *c = &s->choice[0];
	struct json_val v, type;
	bool typed = json_get(doc, "type", &type);
	if (json_get(doc, "content", &v) && v.type == JSON_ARRAY)
		take_parts(v, c);
	if (json_get(doc, "output", &v) && v.type == JSON_ARRAY)
		take_parts(v, c);
	if (json_get(doc, "message", &v) && !typed) {
		(void)take_string(v, "content", &c->text);
		take_calls(v, &c->calls);
	}
	(void)take_string(doc, "response", &c->text);
	if (!take_string(doc, "stop_reason", &c->finish) && !take_string(doc, "done_reason", &c->finish))
		(void)take_string(doc, "status", &c->finish);
	if (json_get_bool(doc, "done", false)) {
		s->done = true;
		s->prompt_tokens = json_get_u64(doc, "prompt_eval_count", 0);
		s->completion_tokens = json_get_u64(doc, "eval_count", 0);
	}
	if (typed && type.type == JSON_STRING)
		take_event(doc, type, s);
}

/* ---- documents and streams ---- */

/* All that names a model names the same one. */
static void take_model(struct json_val doc, struct said *s)
{
	static const char *const inner[] = {"message", "response"};
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf name = {0};
	struct json_val v;
	for (size_t i = 0; i < CGN_COUNT(inner); i++)
		if (json_get(doc, inner[i], &v) && v.type == JSON_OBJECT)
			take_model(v, s);
	if (!take_string(doc, "model", &name))
		return;
	if (s->model.n == 0)
		cgn_buf_str(&s->model, cgn_buf_view(&name));
	else if (!cgn_str_eq(cgn_buf_view(&s->model), cgn_buf_view(&name)))
		s->odd = "an event of another model";
}

/* The events of a stream have one id, and numbers without a gap. */
static void take_order(struct json_val doc, struct said *s)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf id = {0};
	struct json_val v;
	if (take_string(doc, "id", &id)) {
		if (s->id.n == 0)
			cgn_buf_str(&s->id, cgn_buf_view(&id));
		else if (s->id.n != id.n || memcmp(s->id.p, id.p, id.n) != 0)
			s->odd = "an event with another id";
	}
	if (!json_get(doc, "sequence_number", &v))
		return;
	if (json_get_u64(doc, "sequence_number", UINT64_MAX) != s->number)
		s->odd = "an event with a wrong number";
	s->number++;
}

static void take_document(struct cgn_str text, struct said *s)
{
	struct json_val doc, v;
	if (!cgn_ok(json_parse(text, &doc, NULL, NULL)) || doc.type != JSON_OBJECT) {
		s->odd = "not JSON";
		return;
	}
	take_order(doc, s);
	take_model(doc, s);
	if (json_get(doc, "error", &v) && v.type != JSON_NULL)
		cgn_buf_str(&s->error, v.raw);
	take_others(doc, s);
	if (json_get(doc, "choices", &v) && v.type == JSON_ARRAY) {
		struct json_iter it = json_iter_of(v);
		struct json_val choice;
		while (json_next_elem(&it, &choice))
			take_choice(choice, s);
	}
	if (json_get(doc, "usage", &v))
		take_usage(v, s);
}

static void on_event(void *arg, struct cgn_str name, struct cgn_str data)
{
	struct said *s = arg;
	(void)name;
	s->events++;
	if (s->done)
		s->odd = "an event behind the end";
	if (cgn_str_is(data, "[DONE]"))
		s->done = true;
	else
		take_document(data, s);
}

static void take_lines(struct cgn_str rest, struct said *s)
{
	for (const char *end; (end = rest.n > 0 ? memchr(rest.p, '\n', rest.n) : NULL) != NULL;) {
		on_event(s, (struct cgn_str){0}, (struct cgn_str){rest.p, (size_t)(end - rest.p)});
		rest.n -= (size_t)(end + 1 - rest.p);
		rest.p = end + 1;
	}
}

void said_read(const struct http_got *got, struct said *s)
{
	struct cgn_str type = http_header(got, "content-type");
	*s = (struct said){0};
	if (cgn_str_starts(type, "text/event-stream")) {
		struct sse_scan scan;
		sse_scan_init(&scan, 1 << 20, on_event, s);
		sse_scan_feed(&scan, cgn_buf_view(&got->body));
		sse_scan_fini(&scan);
	} else if (cgn_str_starts(type, "application/x-ndjson")) {
		take_lines(cgn_buf_view(&got->body), s);
	} else if (got->body.n > 0) {
		take_document(cgn_buf_view(&got->body), s);
		s->done = true;
	}
}

/* ---- comparing ---- */

static bool differs_always(struct cgn_str key)
{
	static const char *const keys[] = {"id", "created", "created_at", "request_id", "call_id", "model",
		"cached_tokens", "input_tokens", "cache_read_input_tokens", "prompt_tokens_details",
		"kv_transfer_params", "system_fingerprint", "total_duration", "prompt_eval_duration",
		"eval_duration", "load_duration"};
	for (size_t i = 0; i < CGN_COUNT(keys); i++)
		if (json_key_is(key, keys[i]))
			return true;
	return false;
}

static bool vals_same(struct json_val a, struct json_val b);

/* Return true if |b| has each member of |a|. */
static bool members_same(struct json_val a, struct json_val b)
{
	struct json_val v, other;
	struct cgn_str key;
	char name[128];
	for (struct json_iter it = json_iter_of(a); json_next_member(&it, &key, &v);) {
		(void)cgn_str_copyz(name, sizeof name, key);
		(void)json_get(a, name, &v); /* The last of two with one name counts */
		if (!differs_always(key) && v.type != JSON_NULL &&
			!(json_get(b, name, &other) && vals_same(v, other)))
			return false;
	}
	return true;
}

static bool vals_same(struct json_val a, struct json_val b)
{
	struct json_val x, y;
	if (a.type != b.type)
		return false;
	if (a.type == JSON_OBJECT)
		return members_same(a, b) && members_same(b, a);
	if (a.type != JSON_ARRAY)
		return cgn_str_eq(a.raw, b.raw);
	struct json_iter ia = json_iter_of(a), ib = json_iter_of(b);
	bool more;
	while ((more = json_next_elem(&ia, &x)) && json_next_elem(&ib, &y))
		if (!vals_same(x, y))
			return false;
	return !more && !json_next_elem(&ib, &y);
}

bool said_same(struct cgn_str a, struct cgn_str b)
{
	struct json_val x, y;
	return cgn_ok(json_parse(a, &x, NULL, NULL)) && cgn_ok(json_parse(b, &y, NULL, NULL)) &&
		vals_same(x, y);
}
