/* SPDX-License-Identifier: Apache-2.0 */
#include "said.h"

#include <string.h>

#include "base/json/json.h"
#include "base/sse/sse.h"

void said_fini(struct said *s)
{
	cgn_buf_fini(&s->text);
	cgn_buf_fini(&s->finish);
	cgn_buf_fini(&s->error);
}

static void take_string(struct json_val object, const char *key, struct cgn_buf *out)
{
	struct json_val v;
	if (json_get(object, key, &v) && v.type == JSON_STRING)
		json_str_to(v, out);
}

/* The parts of a message of Anthropic, of a response of OpenAI, and of an answer of Ollama. */
static void take_parts(struct json_val list, struct said *s)
{
	struct json_val part, inner;
	for (struct json_iter it = json_iter_of(list); json_next_elem(&it, &part);) {
		take_string(part, "text", &s->text);
		if (json_get(part, "content", &inner) && inner.type == JSON_ARRAY)
			take_parts(inner, s);
	}
}

static void take_others(struct json_val doc, struct said *s)
{
	struct json_val v, type;
	bool typed = json_get(doc, "type", &type);
	if (json_get(doc, "content", &v) && v.type == JSON_ARRAY)
		take_parts(v, s);
	if (json_get(doc, "output", &v) && v.type == JSON_ARRAY)
		take_parts(v, s);
	if (json_get(doc, "message", &v) && !typed)
		take_string(v, "content", &s->text);
	if (!typed)
		return;
	if (cgn_str_eq(type.raw, CGN_STR("\"content_block_delta\"")) && json_get(doc, "delta", &v))
		take_string(v, "text", &s->text);
	if (cgn_str_eq(type.raw, CGN_STR("\"response.output_text.delta\"")))
		take_string(doc, "delta", &s->text);
	if (cgn_str_eq(type.raw, CGN_STR("\"error\"")) ||
		cgn_str_eq(type.raw, CGN_STR("\"response.failed\"")))
		cgn_buf_str(&s->error, doc.raw);
	s->done |= cgn_str_eq(type.raw, CGN_STR("\"message_stop\"")) ||
		cgn_str_eq(type.raw, CGN_STR("\"response.completed\"")) ||
		cgn_str_eq(type.raw, CGN_STR("\"response.incomplete\""));
}

static void take_choice(struct json_val choice, struct said *s)
{
	struct json_val inner;
	take_string(choice, "text", &s->text);
	if (json_get(choice, "delta", &inner) || json_get(choice, "message", &inner))
		take_string(inner, "content", &s->text);
	take_string(choice, "finish_reason", &s->finish);
}

static void take_document(struct cgn_str text, struct said *s)
{
	struct json_val doc, v;
	if (!cgn_ok(json_parse(text, &doc, NULL, NULL)) || doc.type != JSON_OBJECT) {
		s->odd = true;
		return;
	}
	if (json_get(doc, "error", &v) && v.type != JSON_NULL)
		cgn_buf_str(&s->error, v.raw);
	take_others(doc, s);
	s->done |= json_get_bool(doc, "done", false);
	if (json_get(doc, "choices", &v) && v.type == JSON_ARRAY) {
		struct json_iter it = json_iter_of(v);
		struct json_val choice;
		while (json_next_elem(&it, &choice))
			take_choice(choice, s);
	}
	if (json_get(doc, "usage", &v) && v.type == JSON_OBJECT) {
		s->prompt_tokens = json_get_u64(v, "prompt_tokens", json_get_u64(v, "input_tokens", 0)) +
			json_get_u64(v, "cache_read_input_tokens", 0);
		s->completion_tokens =
			json_get_u64(v, "completion_tokens", json_get_u64(v, "output_tokens", 0));
	}
}

static void on_event(void *arg, struct cgn_str name, struct cgn_str data)
{
	struct said *s = arg;
	(void)name;
	s->events++;
	if (s->done)
		s->odd = true; /* Something after the end */
	if (data.n == 6 && memcmp(data.p, "[DONE]", 6) == 0)
		s->done = true;
	else
		take_document(data, s);
}

void said_read(const struct http_got *got, struct said *s)
{
	struct cgn_str type = http_header(got, "content-type");
	*s = (struct said){0};
	if (type.n >= 17 && memcmp(type.p, "text/event-stream", 17) == 0) {
		struct sse_scan scan;
		sse_scan_init(&scan, 1 << 20, on_event, s);
		sse_scan_feed(&scan, cgn_buf_view(&got->body));
		sse_scan_fini(&scan);
	} else if (type.n >= 20 && memcmp(type.p, "application/x-ndjson", 20) == 0) {
		struct cgn_str rest = cgn_buf_view(&got->body);
		for (const char *end; (end = rest.n > 0 ? memchr(rest.p, '\n', rest.n) : NULL) != NULL;) {
			take_document((struct cgn_str){rest.p, (size_t)(end - rest.p)}, s);
			s->events++;
			rest.n -= (size_t)(end + 1 - rest.p);
			rest.p = end + 1;
		}
	} else if (got->body.n > 0) {
		take_document(cgn_buf_view(&got->body), s);
		s->done = true;
	}
}
