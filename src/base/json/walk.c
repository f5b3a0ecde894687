/* SPDX-License-Identifier: Apache-2.0 */
/* json walkers: over bytes that json_parse accepted, so syntax errors cannot occur here. */
#include "base/json/json_priv.h"

struct json_iter json_iter_of(struct json_val container)
{
	CGN_MUST(container.type == JSON_ARRAY || container.type == JSON_OBJECT);
	return (struct json_iter){{container.raw.p + 1, container.raw.n - 2}};
}

static const char *skip_container(const char *p, const char *end)
{
	size_t depth = 0;
	for (; (p = json_mark_end(p, end)) < end; p++) {
		if (*p == '"')
			p = json_string_end(p + 1, end);
		else if ((*p | 0x20) == '{')
			depth++;
		else if (--depth == 0)
			return p + 1;
	}
	return end;
}

static const char *skip_word(const char *p, const char *end)
{
	while (p < end && *p != ',' && !json_is_space(*p))
		p++;
	return p;
}

static enum json_type type_at(char first)
{
	return first == 't' || first == 'f' ? JSON_BOOL : first == 'n' ? JSON_NULL : JSON_NUMBER;
}

/* Take the value at the start of |*rest|. */
static struct json_val take_value(struct cgn_str *rest)
{
	const char *p = rest->p, *end = p + rest->n, *behind;
	struct json_val v;
	if (*p == '"') {
		v.type = JSON_STRING;
		behind = json_string_end(p + 1, end) + 1;
	} else if (*p == '{' || *p == '[') {
		v.type = *p == '{' ? JSON_OBJECT : JSON_ARRAY;
		behind = skip_container(p, end);
	} else {
		v.type = type_at(*p);
		behind = skip_word(p, end);
	}
	v.raw = (struct cgn_str){p, (size_t)(behind - p)};
	*rest = (struct cgn_str){behind, (size_t)(end - behind)};
	return v;
}

/* Skip commas and colons; json_parse checked their places. */
static bool skip_separators(struct cgn_str *rest)
{
	while (rest->n > 0 && (json_is_space(*rest->p) || *rest->p == ',' || *rest->p == ':')) {
		rest->p++;
		rest->n--;
	}
	return rest->n > 0;
}

bool json_next_elem(struct json_iter *it, struct json_val *elem)
{
	if (!skip_separators(&it->rest))
		return false;
	*elem = take_value(&it->rest);
	return true;
}

bool json_next_member(struct json_iter *it, struct cgn_str *key, struct json_val *value)
{
	if (!skip_separators(&it->rest))
		return false;
	struct cgn_str quoted = take_value(&it->rest).raw;
	*key = (struct cgn_str){quoted.p + 1, quoted.n - 2};
	CGN_MUST(skip_separators(&it->rest));
	*value = take_value(&it->rest);
	return true;
}

struct compare {
	const char *rest;
	bool same;
};

static void compare_piece(void *arg, struct cgn_str piece)
{
	struct compare *c = arg;
	c->same =
		c->same && strncmp(c->rest, piece.p, piece.n) == 0 && memchr(piece.p, '\0', piece.n) == NULL;
	c->rest += c->same ? piece.n : 0;
}

/* Keys may contain escapes, but rarely do. */
static bool key_is(struct cgn_str raw, const char *key)
{
	if (memchr(raw.p, '\\', raw.n) == NULL)
		return cgn_str_is(raw, key);
	struct compare c = {key, true};
	json_str_pieces((struct json_val){JSON_STRING, {raw.p - 1, raw.n + 2}}, compare_piece, &c);
	return c.same && *c.rest == '\0';
}

void json_pick(struct json_val object, const char *const *keys, size_t n, struct json_val *out)
{
	for (size_t i = 0; i < n; i++)
		out[i] = (struct json_val){JSON_NULL, {NULL, 0}};
	if (object.type != JSON_OBJECT)
		return;
	struct json_iter it = json_iter_of(object);
	struct cgn_str name;
	struct json_val v;
	while (json_next_member(&it, &name, &v))
		for (size_t i = 0; i < n; i++)
			if (key_is(name, keys[i]))
				out[i] = v;
}

bool json_get(struct json_val object, const char *key, struct json_val *out)
{
	struct json_val v;
	json_pick(object, &key, 1, &v);
	if (v.raw.p == NULL)
		return false;
	*out = v;
	return true;
}

struct cgn_str json_get_str(struct json_val object, const char *key, struct cgn_arena *a)
{
	struct json_val v;
	if (!json_get(object, key, &v) || v.type != JSON_STRING)
		return (struct cgn_str){NULL, 0};
	return json_str(v, a);
}

uint64_t json_get_u64(struct json_val object, const char *key, uint64_t fallback)
{
	struct json_val v;
	uint64_t n;
	return json_get(object, key, &v) && json_u64(v, &n) ? n : fallback;
}

double json_get_f64(struct json_val object, const char *key, double fallback)
{
	struct json_val v;
	double f;
	return json_get(object, key, &v) && json_f64(v, &f) ? f : fallback;
}

bool json_get_bool(struct json_val object, const char *key, bool fallback)
{
	struct json_val v;
	return json_get(object, key, &v) ? json_bool(v, fallback) : fallback;
}
