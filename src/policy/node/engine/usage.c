/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/node/engine/usage.h"

#include <stdlib.h>

#include "base/json/json.h"
#include "base/sse/sse.h"

static bool is_space(char c)
{
	return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/* Read the object that begins at text.p[at]. False: the text ends before the object does. */
static bool object_at(struct cgn_str text, size_t at, struct json_val *out)
{
	size_t depth = 0, i = at;
	bool in_string = false;
	for (; i < text.n; i++) {
		char c = text.p[i];
		if (in_string) {
			if (c == '\\')
				i++;
			in_string = c != '"';
		} else if (c == '"')
			in_string = true;
		else if (c == '{')
			depth++;
		else if (c == '}' && --depth == 0)
			break;
	}
	if (i >= text.n)
		return false;
	return cgn_ok(json_parse((struct cgn_str){text.p + at, i + 1 - at}, out, NULL, NULL));
}

/* |v|.raw.p is NULL when the object has no such member. */
static bool value_take(struct json_val v, bool *has, uint64_t *out)
{
	uint64_t n = 0;
	if (v.raw.p == NULL || !json_u64(v, &n) || n > USAGE_MOST)
		return false;
	*has = true;
	*out = n;
	return true;
}

static bool take_number(struct json_val object, const char *key, bool *has, uint64_t *out)
{
	struct json_val v;
	return json_get(object, key, &v) && value_take(v, has, out);
}

static void take_details(struct json_val details, struct usage *io)
{
	if (details.raw.p != NULL && details.type == JSON_OBJECT)
		(void)take_number(details, "cached_tokens", &io->has_cached, &io->cached_tokens);
}

enum usage_key {
	USAGE_PROMPT,
	USAGE_INPUT,
	USAGE_COMPLETION,
	USAGE_OUTPUT,
	USAGE_PROMPT_DETAILS,
	USAGE_INPUT_DETAILS,
	USAGE_CACHE_READ,
	USAGE_CACHE_WRITE,
	USAGE_KEYS
};

/* Anthropic's input_tokens are those that were neither read from the cache nor written to it. */
static void take_anthropic(const struct json_val *read, const struct json_val *written, struct usage *io)
{
	bool has = false;
	uint64_t n = 0;
	if (value_take(*read, &io->has_cached, &n)) {
		io->cached_tokens = n;
		io->prompt_tokens += n;
	}
	if (value_take(*written, &has, &n))
		io->prompt_tokens += n;
}

static bool is_absurd(struct json_val v)
{
	uint64_t n = 0;
	return v.raw.p != NULL && v.type == JSON_NUMBER && (!json_u64(v, &n) || n > USAGE_MOST);
}

static bool usage_read(struct json_val u, void *to)
{
	static const char *const keys[USAGE_KEYS] = {
		[USAGE_PROMPT] = "prompt_tokens",
		[USAGE_INPUT] = "input_tokens",
		[USAGE_COMPLETION] = "completion_tokens",
		[USAGE_OUTPUT] = "output_tokens",
		[USAGE_PROMPT_DETAILS] = "prompt_tokens_details",
		[USAGE_INPUT_DETAILS] = "input_tokens_details",
		[USAGE_CACHE_READ] = "cache_read_input_tokens",
		[USAGE_CACHE_WRITE] = "cache_creation_input_tokens",
	};
	struct json_val v[USAGE_KEYS];
	struct usage *io = to;
	json_pick(u, keys, USAGE_KEYS, v);
	for (size_t i = 0; i < USAGE_KEYS; i++)
		io->absurd = io->absurd || is_absurd(v[i]);
	bool any = value_take(v[USAGE_PROMPT], &io->has_prompt, &io->prompt_tokens);
	if (!any && (any = value_take(v[USAGE_INPUT], &io->has_prompt, &io->prompt_tokens)))
		take_anthropic(&v[USAGE_CACHE_READ], &v[USAGE_CACHE_WRITE], io);
	any |= value_take(v[USAGE_COMPLETION], &io->has_completion, &io->completion_tokens) ||
		value_take(v[USAGE_OUTPUT], &io->has_completion, &io->completion_tokens);
	take_details(v[USAGE_PROMPT_DETAILS], io);
	take_details(v[USAGE_INPUT_DETAILS], io);
	return any || io->absurd;
}

/* Find the last object named |key| (with its quotes) that |read| accepts. */
static bool find_object(struct cgn_str text, struct cgn_str key,
	bool (*read)(struct json_val object, void *io), void *io)
{
	for (size_t at = text.n >= key.n ? text.n - key.n + 1 : 0; at-- > 0;) {
		/* An escaped quote before the key: the text of a string mentions usage. */
		if (text.p[at] != '"' || memcmp(text.p + at, key.p, key.n) != 0 ||
			(at > 0 && text.p[at - 1] == '\\'))
			continue;
		size_t i = at + key.n;
		while (i < text.n && (is_space(text.p[i]) || text.p[i] == ':'))
			i++;
		struct json_val object;
		if (i < text.n && text.p[i] == '{' && object_at(text, i, &object) && read(object, io))
			return true;
	}
	return false;
}

bool usage_find(struct cgn_str text, struct usage *io)
{
	return find_object(text, CGN_STR("\"usage\""), usage_read, io);
}

static bool timings_read(struct json_val t, void *io)
{
	struct usage_timings *out = io;
	bool has = true;
	if (!take_number(t, "cache_n", &has, &out->cache_n) ||
		!take_number(t, "prompt_n", &has, &out->prompt_n) ||
		!take_number(t, "predicted_n", &has, &out->predicted_n))
		return false;
	out->prompt_ms = json_get_f64(t, "prompt_ms", 0);
	return true;
}

bool usage_find_timings(struct cgn_str text, struct usage_timings *out)
{
	return find_object(text, CGN_STR("\"timings\""), timings_read, out);
}

bool usage_find_own(struct cgn_str text, struct usage *io)
{
	struct usage_timings t;
	if (find_object(text, CGN_STR("\"meta_info\""), usage_read, io))
		return true;
	if (!usage_find_timings(text, &t))
		return false;
	*io = (struct usage){.has_prompt = true,
		.has_completion = true,
		.has_cached = true,
		.prompt_tokens = t.cache_n + t.prompt_n,
		.completion_tokens = t.predicted_n,
		.cached_tokens = t.cache_n};
	return true;
}

/* ---- the usage of a stream ---- */

void usage_ask_put(struct json_val own, struct cgn_buf *out)
{
	struct cgn_str key;
	struct json_val v;
	cgn_buf_putz(out, "{\"include_usage\":true");
	if (own.raw.p != NULL && own.type == JSON_OBJECT) {
		for (struct json_iter it = json_iter_of(own); json_next_member(&it, &key, &v);)
			if (!cgn_str_is(key, "include_usage") && !cgn_str_is(key, "continuous_usage_stats"))
				cgn_buf_fmt(out, ",\"%.*s\":%.*s", CGN_STR_ARG(key), CGN_STR_ARG(v.raw));
	}
	cgn_buf_char(out, '}');
}

/* Return true if |event| has the key "usage" before an object. */
static bool mentions_usage(struct cgn_str event)
{
	static const char key[] = "\"usage\"";
	const size_t n = sizeof key - 1;
	for (const char *at; (at = memmem(event.p, event.n, key, n)) != NULL;) {
		event = (struct cgn_str){at + n, event.n - (size_t)(at + n - event.p)};
		size_t i = 0;
		while (i < event.n && (is_space(event.p[i]) || event.p[i] == ':'))
			i++;
		if (i < event.n && event.p[i] == '{')
			return true;
	}
	return false;
}

static bool is_usage_chunk(struct cgn_str event)
{
	struct json_val root, choices, usage, one, error;
	const char *data = mentions_usage(event) ? memmem(event.p, event.n, "data:", 5) : NULL;
	if (data == NULL)
		return false;
	struct cgn_str text = {data + 5, event.n - (size_t)(data + 5 - event.p)};
	if (!cgn_ok(json_parse(cgn_str_trim(text), &root, NULL, NULL)) || root.type != JSON_OBJECT ||
		!json_get(root, "choices", &choices) || choices.type != JSON_ARRAY ||
		!json_get(root, "usage", &usage) || usage.type != JSON_OBJECT ||
		(json_get(root, "error", &error) && error.type != JSON_NULL))
		return false;
	struct json_iter it = json_iter_of(choices);
	return !json_next_elem(&it, &one);
}

bool usage_chunk_drop(struct cgn_str events, struct cgn_buf *out)
{
	bool dropped = false;
	if (!mentions_usage(events))
		return false;
	size_t from = out->n;
	while (events.n > 0) {
		size_t n = sse_event_end(events);
		struct cgn_str event = {events.p, n > 0 ? n : events.n};
		bool drop = is_usage_chunk(event);
		if (!drop)
			cgn_buf_str(out, event);
		dropped = dropped || drop;
		events = (struct cgn_str){events.p + event.n, events.n - event.n};
	}
	if (!dropped)
		out->n = from;
	return dropped;
}

void usage_tail_add(struct usage_tail *t, const void *p, size_t n)
{
	const char *from = p;
	if (t->p == NULL)
		t->p = CGN_NEW_ARRAY(char, (size_t)2 * USAGE_TAIL);
	if (n == 0)
		return;
	if (n > USAGE_TAIL) {
		from += n - USAGE_TAIL;
		n = USAGE_TAIL;
		t->n = 0; /* The earlier bytes are not adjacent to the new ones */
	}
	if (t->n + n > (size_t)2 * USAGE_TAIL) { /* Happens once every USAGE_TAIL bytes */
		memmove(t->p, t->p + t->n - USAGE_TAIL, USAGE_TAIL);
		t->n = USAGE_TAIL;
	}
	memcpy(t->p + t->n, from, n);
	t->n += n;
}

struct cgn_str usage_tail_view(const struct usage_tail *t)
{
	return (struct cgn_str){t->p, t->n};
}

void usage_tail_fini(struct usage_tail *t)
{
	free(t->p);
	*t = (struct usage_tail){NULL, 0};
}
