/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/engine/usage.h"

#include <stdlib.h>

#include "base/json/json.h"

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

static bool take_number(struct json_val object, const char *key, bool *has, uint64_t *out)
{
	struct json_val v;
	uint64_t n = 0;
	if (!json_get(object, key, &v) || !json_u64(v, &n) || n > USAGE_MOST)
		return false;
	*has = true;
	*out = n;
	return true;
}

static void take_details(struct json_val usage, const char *key, struct usage *io)
{
	struct json_val details;
	if (json_get(usage, key, &details) && details.type == JSON_OBJECT)
		(void)take_number(details, "cached_tokens", &io->has_cached, &io->cached_tokens);
}

static bool usage_read(struct json_val u, void *to)
{
	struct usage *io = to;
	bool any = take_number(u, "prompt_tokens", &io->has_prompt, &io->prompt_tokens) ||
		take_number(u, "input_tokens", &io->has_prompt, &io->prompt_tokens);
	any |= take_number(u, "completion_tokens", &io->has_completion, &io->completion_tokens) ||
		take_number(u, "output_tokens", &io->has_completion, &io->completion_tokens);
	take_details(u, "prompt_tokens_details", io);
	take_details(u, "input_tokens_details", io);
	(void)take_number(u, "cache_read_input_tokens", &io->has_cached, &io->cached_tokens);
	return any;
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

void usage_tail_add(struct usage_tail *t, const void *p, size_t n)
{
	const char *from = p;
	if (t->p == NULL)
		t->p = malloc((size_t)2 * USAGE_TAIL);
	if (t->p == NULL)
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
