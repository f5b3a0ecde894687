/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/handoff/cached.h"

#include <string.h>

enum doc_part { AT_PLAIN, AT_KEY, AT_KEY_ESCAPE, AT_STRING, AT_STRING_ESCAPE, AT_NUMBER };
enum doc_key { KEY_OTHER, KEY_NEST, KEY_USAGE, KEY_DETAILS, KEY_COUNT };

static void doc_begin(struct cached_filter *f)
{
	f->at = AT_PLAIN;
	f->key = KEY_OTHER;
	f->is_key = false;
	f->depth = f->inside = f->usage = 0;
}

void cached_filter_init(struct cached_filter *f, bool events)
{
	*f = (struct cached_filter){.events = events};
	doc_begin(f);
}

static enum doc_key key_of(const struct cached_filter *f)
{
	struct cgn_str text = {f->key_text, f->key_n};
	if (f->usage == 0 && cgn_str_is(text, "usage"))
		return KEY_USAGE;
	if (f->usage == 0)
		return f->inside == 1 && (cgn_str_is(text, "message") || cgn_str_is(text, "response"))
			? KEY_NEST
			: KEY_OTHER;
	if (cgn_str_is(text, "prompt_tokens_details") || cgn_str_is(text, "input_tokens_details"))
		return KEY_DETAILS;
	return cgn_str_is(text, "cached_tokens") || cgn_str_is(text, "cache_read_input_tokens") ? KEY_COUNT
												: KEY_OTHER;
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

/* Enter an object or an array. Only objects that may lead to the number are looked into. */
static void doc_open(struct cached_filter *f, char c)
{
	bool looked = c == '{' && f->depth == f->inside &&
		(f->depth == 0 || f->key == KEY_NEST || f->key == KEY_USAGE || f->key == KEY_DETAILS);
	f->depth++;
	f->inside += looked;
	f->is_key = looked;
	if (looked && f->key == KEY_USAGE)
		f->usage = f->depth;
	f->key = KEY_OTHER;
}

static void doc_close(struct cached_filter *f)
{
	if (f->depth == 0)
		return;
	if (f->usage == f->depth)
		f->usage = 0;
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

static bool is_of_number(char c)
{
	return (c >= '0' && c <= '9') || (c != '\0' && strchr("+-.eE", c) != NULL);
}

/* Take a byte outside of strings and of the number. Return true if the number begins here. */
static bool plain_byte(struct cached_filter *f, char c)
{
	if (f->depth == 0 && c != '{')
		return false;
	if (c == '"') {
		string_begin(f);
	} else if (c == '{' || c == '[') {
		doc_open(f, c);
	} else if (c == '}' || c == ']') {
		doc_close(f);
	} else if (c == ',') {
		f->is_key = f->depth == f->inside;
		f->key = KEY_OTHER;
	} else if (f->key == KEY_COUNT && f->depth == f->inside && c >= '0' && c <= '9') {
		f->key = KEY_OTHER;
		f->at = f->known ? AT_NUMBER : AT_PLAIN;
		return f->known;
	}
	return false;
}

static void string_byte(struct cached_filter *f, char c)
{
	if (c == '"' || c == '\\')
		f->at = c == '"' ? AT_PLAIN : AT_STRING_ESCAPE;
}

/* Take one byte. Return true if the number begins here. */
static bool doc_byte(struct cached_filter *f, char c)
{
	if (f->at == AT_NUMBER && !is_of_number(c))
		f->at = AT_PLAIN;
	switch ((enum doc_part)f->at) {
	case AT_PLAIN:
		return plain_byte(f, c);
	case AT_KEY:
		key_byte(f, c);
		break;
	case AT_KEY_ESCAPE:
		f->at = AT_KEY;
		break;
	case AT_STRING:
		string_byte(f, c);
		break;
	case AT_STRING_ESCAPE:
		f->at = AT_STRING;
		break;
	case AT_NUMBER:
		break;
	}
	return false;
}

/* Return true if |c| begins a number whose value is not known yet. */
static bool must_wait(const struct cached_filter *f, char c)
{
	return f->waits && !f->known && f->at == AT_PLAIN && f->key == KEY_COUNT && f->depth == f->inside &&
		c >= '0' && c <= '9';
}

size_t cached_filter_feed(struct cached_filter *f, struct cgn_str data, struct cgn_buf *out)
{
	size_t from = 0; /* Bytes before |from| are dealt with. */
	size_t i = 0;
	for (; i < data.n && !must_wait(f, data.p[i]); i++) {
		if (f->events && data.p[i] == '\n')
			doc_begin(f);
		if (doc_byte(f, data.p[i])) {
			cgn_buf_add(out, data.p + from, i - from);
			cgn_buf_u64(out, f->cached);
		}
		if (f->at == AT_NUMBER)
			from = i + 1;
	}
	cgn_buf_add(out, data.p + from, i - from);
	return i;
}
