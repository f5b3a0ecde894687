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

struct cgn_str json_key_plain(struct cgn_str raw, char room[JSON_KEY_MAX])
{
	if (raw.n == 0 || memchr(raw.p, '\\', raw.n) == NULL)
		return raw;
	if (raw.n > 6 * JSON_KEY_MAX) /* No escape is longer than six times what it stands for. */
		return (struct cgn_str){NULL, 0};
	struct cgn_buf b = cgn_buf_over(room, JSON_KEY_MAX);
	json_str_to((struct json_val){JSON_STRING, {raw.p - 1, raw.n + 2}}, &b);
	return b.bad ? (struct cgn_str){NULL, 0} : cgn_buf_view(&b);
}

bool json_key_is(struct cgn_str raw, const char *key)
{
	char room[JSON_KEY_MAX];
	struct cgn_str plain = json_key_plain(raw, room);
	return plain.p != NULL && cgn_str_is(plain, key);
}

/* Return true if |object| itself has no member twice and at most |most| members. Not inlined: json_is_unique recurses, and
 * its frames must not have the array. */
__attribute__((noinline)) static bool members_are_unique(struct json_val object, size_t most)
{
	struct cgn_str seen[JSON_UNIQUE_MAX], key;
	char rooms[2][JSON_KEY_MAX];
	struct json_iter it = json_iter_of(object);
	struct json_val v;
	size_t n = 0;
	while (json_next_member(&it, &key, &v)) {
		struct cgn_str plain = json_key_plain(key, rooms[0]);
		if (n == most || plain.p == NULL)
			return false;
		for (size_t i = 0; i < n; i++)
			if (cgn_str_eq(json_key_plain(seen[i], rooms[1]), plain))
				return false;
		seen[n++] = key;
	}
	return true;
}

bool json_is_unique(struct json_val v, size_t most)
{
	struct cgn_str key;
	struct json_val inner;
	CGN_MUST(most <= JSON_UNIQUE_MAX);
	if (v.type != JSON_OBJECT && v.type != JSON_ARRAY)
		return true;
	if (v.type == JSON_OBJECT && !members_are_unique(v, most))
		return false;
	struct json_iter it = json_iter_of(v);
	while (v.type == JSON_OBJECT ? json_next_member(&it, &key, &inner) : json_next_elem(&it, &inner))
		if (!json_is_unique(inner, most))
			return false;
	return true;
}

bool json_pick(struct json_val object, const char *const *keys, size_t n, struct json_val *out)
{
	char room[JSON_KEY_MAX];
	size_t lengths[JSON_PICK_MAX];
	bool once = true;
	CGN_MUST(n <= JSON_PICK_MAX);
	for (size_t i = 0; i < n; i++) {
		out[i] = (struct json_val){JSON_NULL, {NULL, 0}};
		lengths[i] = strlen(keys[i]);
		CGN_MUST(lengths[i] <= JSON_KEY_MAX);
	}
	if (object.type != JSON_OBJECT)
		return true;
	struct json_iter it = json_iter_of(object);
	struct cgn_str raw;
	struct json_val v;
	while (json_next_member(&it, &raw, &v)) {
		struct cgn_str name = json_key_plain(raw, room);
		for (size_t i = 0; i < n; i++)
			if (name.n == lengths[i] && name.p != NULL && memcmp(name.p, keys[i], name.n) == 0) {
				once = once && out[i].raw.p == NULL;
				out[i] = v;
			}
	}
	return once;
}

bool json_get(struct json_val object, const char *key, struct json_val *out)
{
	struct json_val v;
	(void)json_pick(object, &key, 1, &v);
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
