/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/node/handoff/cached.h"

#include <string.h>

#include "base/json/json.h"

enum doc_part { AT_PLAIN, AT_KEY, AT_KEY_ESCAPE, AT_STRING, AT_STRING_ESCAPE };
enum doc_key { KEY_OTHER, KEY_NEST, KEY_USAGE };

static void doc_begin(struct cached_filter *f)
{
	f->at = AT_PLAIN;
	f->key = KEY_OTHER;
	f->is_key = false;
	f->depth = f->inside = f->usage = f->kept_n = 0;
}

void cached_filter_init(struct cached_filter *f, bool events)
{
	*f = (struct cached_filter){.events = events};
	doc_begin(f);
}

/* ---- the usage object ---- */

/* An edit replaces a number of the usage object. */
struct edit {
	struct cgn_str raw;
	uint64_t value;
};

/* Add an edit of the member |key| of |object|, which is a count; |*was| is its value. */
static bool edit_add(struct json_val object, const char *key, uint64_t value, struct edit *edits, size_t *n,
	uint64_t *was)
{
	struct json_val v;
	if (!json_get(object, key, &v) || !json_u64(v, was))
		return false;
	edits[(*n)++] = (struct edit){v.raw, value};
	return true;
}

/* Anthropic counts tokens that are not read from the cache beside those that are: the sum stays. */
static void anthropic_edits(struct json_val usage, uint64_t cached, struct edit *edits, size_t *n)
{
	uint64_t input = 0, read = 0;
	size_t at = *n;
	if (!edit_add(usage, "cache_read_input_tokens", cached, edits, n, &read) ||
		!edit_add(usage, "input_tokens", input, edits, n, &input))
		return;
	uint64_t sum = input < UINT64_MAX - read ? input + read : UINT64_MAX;
	edits[at].value = cached < sum ? cached : sum;
	edits[at + 1].value = sum - edits[at].value;
}

static void edits_sort(struct edit *edits, size_t n)
{
	for (size_t i = 1; i < n; i++)
		for (size_t j = i; j > 0 && edits[j].raw.p < edits[j - 1].raw.p; j--) {
			struct edit e = edits[j];
			edits[j] = edits[j - 1];
			edits[j - 1] = e;
		}
}

/* There may be one edit in usage, one in each of the details, and two of Anthropic. */
#define EDITS_MAX 5

static size_t usage_edits(struct json_val usage, uint64_t cached, struct edit edits[EDITS_MAX])
{
	static const char *const details[] = {"prompt_tokens_details", "input_tokens_details"};
	struct json_val in;
	uint64_t was;
	size_t n = 0;
	(void)edit_add(usage, "cached_tokens", cached, edits, &n, &was);
	for (size_t i = 0; i < CGN_COUNT(details); i++)
		if (json_get(usage, details[i], &in))
			(void)edit_add(in, "cached_tokens", cached, edits, &n, &was);
	anthropic_edits(usage, cached, edits, &n);
	edits_sort(edits, n);
	return n;
}

/* Append the usage object that is complete now. */
static void usage_write(struct cached_filter *f, struct cgn_buf *out)
{
	struct cgn_str text = {f->kept, f->kept_n};
	struct edit edits[EDITS_MAX];
	struct json_val usage;
	size_t n = cgn_ok(json_parse(text, &usage, NULL, NULL)) ? usage_edits(usage, f->cached, edits) : 0;
	const char *from = text.p;
	for (size_t i = 0; i < n; i++) {
		cgn_buf_add(out, from, (size_t)(edits[i].raw.p - from));
		cgn_buf_u64(out, edits[i].value);
		from = edits[i].raw.p + edits[i].raw.n;
	}
	cgn_buf_add(out, from, (size_t)(text.p + text.n - from));
	f->kept_n = 0;
	f->usage = 0;
}

/* Pass the kept part of a usage object as it is. */
static void usage_give_up(struct cached_filter *f, struct cgn_buf *out)
{
	cgn_buf_add(out, f->kept, f->kept_n);
	f->kept_n = 0;
	f->usage = 0;
}

/* ---- the document around it ---- */

static enum doc_key key_of(const struct cached_filter *f)
{
	struct cgn_str text = {f->key_text, f->key_n};
	if (cgn_str_is(text, "usage"))
		return KEY_USAGE;
	bool nest = f->inside == 1 && (cgn_str_is(text, "message") || cgn_str_is(text, "response"));
	return nest ? KEY_NEST : KEY_OTHER;
}

static void key_byte(struct cached_filter *f, char c)
{
	if (c == '"') {
		f->key = (uint8_t)key_of(f);
		f->at = AT_PLAIN;
	} else if (c == '\\') {
		f->key_n = CACHED_KEY_MAX; /* A key with an escape is none that matters. */
		f->at = AT_KEY_ESCAPE;
	} else if (f->key_n < CACHED_KEY_MAX) {
		f->key_text[f->key_n++] = c;
	}
}

/* Return true if |c| begins a usage object. */
static bool is_usage(const struct cached_filter *f, char c)
{
	return c == '{' && f->at == AT_PLAIN && f->key == KEY_USAGE && f->depth == f->inside;
}

/* Enter an object or an array. Only objects that may lead to the usage are looked into. */
static void doc_open(struct cached_filter *f, char c)
{
	bool looked = c == '{' && f->depth == f->inside && (f->depth == 0 || f->key == KEY_NEST);
	bool usage = is_usage(f, c);
	f->depth++;
	f->inside += looked;
	f->is_key = looked;
	if (usage && f->known)
		f->usage = f->depth;
	f->key = KEY_OTHER;
}

static void doc_close(struct cached_filter *f)
{
	if (f->depth == 0)
		return;
	f->inside -= f->inside == f->depth;
	f->depth--;
	f->key = KEY_OTHER;
	f->is_key = false;
}

static void string_begin(struct cached_filter *f)
{
	bool is_key = f->is_key && f->depth == f->inside && f->depth > 0;
	f->at = is_key ? AT_KEY : AT_STRING;
	f->key_n = is_key ? 0 : f->key_n;
	f->is_key = false;
}

/* Take a byte outside of strings. */
static void plain_byte(struct cached_filter *f, char c)
{
	if (f->depth == 0 && c != '{')
		return;
	if (c == '"') {
		string_begin(f);
	} else if (c == '{' || c == '[') {
		doc_open(f, c);
	} else if (c == '}' || c == ']') {
		doc_close(f);
	} else if (c == ',') {
		f->is_key = f->depth == f->inside;
		f->key = KEY_OTHER;
	}
}

static void doc_byte(struct cached_filter *f, char c)
{
	switch ((enum doc_part)f->at) {
	case AT_PLAIN:
		plain_byte(f, c);
		break;
	case AT_KEY:
		key_byte(f, c);
		break;
	case AT_KEY_ESCAPE:
		f->at = AT_KEY;
		break;
	case AT_STRING:
		if (c == '"' || c == '\\')
			f->at = c == '"' ? AT_PLAIN : AT_STRING_ESCAPE;
		break;
	case AT_STRING_ESCAPE:
		f->at = AT_STRING;
		break;
	}
}

/* Keep a byte of a usage object, and write the object after its last one. */
static void usage_byte(struct cached_filter *f, char c, struct cgn_buf *out)
{
	f->kept[f->kept_n++] = c;
	if (f->depth < f->usage)
		usage_write(f, out);
	else if (f->kept_n == CACHED_USAGE_MAX)
		usage_give_up(f, out);
}

size_t cached_filter_feed(struct cached_filter *f, struct cgn_str data, struct cgn_buf *out)
{
	size_t from = 0; /* Bytes before |from| are dealt with. */
	size_t i = 0;
	for (; i < data.n && !(f->waits && !f->known && is_usage(f, data.p[i])); i++) {
		if (f->events && data.p[i] == '\n') {
			usage_give_up(f, out);
			doc_begin(f);
		}
		doc_byte(f, data.p[i]);
		if (f->usage == 0)
			continue;
		cgn_buf_add(out, data.p + from, i - from);
		usage_byte(f, data.p[i], out);
		from = i + 1;
	}
	cgn_buf_add(out, data.p + from, i - from);
	return i;
}

void cached_filter_end(struct cached_filter *f, struct cgn_buf *out)
{
	usage_give_up(f, out);
}
