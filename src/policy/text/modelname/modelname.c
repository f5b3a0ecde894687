/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/text/modelname/modelname.h"

#include <string.h>

enum line_part { LINE_START, LINE_FIELD, LINE_DATA, LINE_OTHER };
enum doc_part { AT_PLAIN, AT_KEY, AT_KEY_ESCAPE, AT_STRING, AT_STRING_ESCAPE, AT_OLD, AT_OLD_ESCAPE };
enum doc_key { KEY_OTHER, KEY_MODEL, KEY_NEST };

static const char data_field[] = "data:";

static void doc_begin(struct modelname *f)
{
	f->at = AT_PLAIN;
	f->key = KEY_OTHER;
	f->done = f->is_key = false;
	f->depth = f->inside = 0;
}

void modelname_init(struct modelname *f, enum modelname_shape shape, struct cgn_str name)
{
	*f = (struct modelname){.name = name, .shape = shape, .line = LINE_START};
	doc_begin(f);
}

/* ---- the document ---- */

static enum doc_key key_of(const struct modelname *f)
{
	struct cgn_str text = {f->key_text, f->key_n};
	if (cgn_str_is(text, "model"))
		return KEY_MODEL;
	bool nests = f->inside == 1 && (cgn_str_is(text, "message") || cgn_str_is(text, "response"));
	return nests ? KEY_NEST : KEY_OTHER;
}

static void key_byte(struct modelname *f, char c)
{
	if (c == '"') {
		f->key = (uint8_t)key_of(f);
		f->at = AT_PLAIN;
	} else if (c == '\\') {
		f->key_n = MODELNAME_KEY_MAX; /* A key with an escape is none that matters. */
		f->at = AT_KEY_ESCAPE;
	} else if (f->key_n < MODELNAME_KEY_MAX) {
		f->key_text[f->key_n++] = c;
	}
}

/* Enter an object or an array. Only the document's object, and an object that may have the name, is looked into. */
static void doc_open(struct modelname *f, char c)
{
	bool looked = c == '{' && f->depth == f->inside && (f->depth == 0 || f->key == KEY_NEST);
	f->depth++;
	f->inside += looked;
	f->is_key = looked;
}

static void doc_close(struct modelname *f)
{
	if (f->depth == 0)
		return;
	f->inside -= f->inside == f->depth;
	f->depth--;
	f->key = KEY_OTHER;
	f->is_key = false;
}

/* A quote at |c| begins a string. Return true if the string is the name that is to be replaced. */
static bool string_begin(struct modelname *f)
{
	bool here = f->depth == f->inside && f->depth > 0;
	f->at = AT_STRING;
	if (here && f->is_key) {
		f->at = AT_KEY;
		f->key_n = 0;
		f->is_key = false;
	} else if (here && f->key == KEY_MODEL) {
		f->at = AT_OLD;
	}
	return f->at == AT_OLD;
}

/* Take a byte outside of strings. Return true if the name to replace begins here. */
static bool plain_byte(struct modelname *f, char c)
{
	switch (c) {
	case '"':
		return string_begin(f);
	case '{':
	case '[':
		doc_open(f, c);
		break;
	case '}':
	case ']':
		doc_close(f);
		break;
	case ',':
		f->is_key = f->depth == f->inside && f->depth > 0;
		break;
	default:
		break;
	}
	return false;
}

/* Return how many leading bytes of |s| a string can't end in. */
static size_t string_run(struct cgn_str s)
{
	size_t i = 0;
	while (i < s.n && s.p[i] != '"' && s.p[i] != '\\')
		i++;
	return i;
}

/* Take a byte of a string that is passed on or, if it is the old name, left out. */
static void string_byte(struct modelname *f, char c)
{
	bool old = f->at == AT_OLD;
	if (c == '\\')
		f->at = old ? AT_OLD_ESCAPE : AT_STRING_ESCAPE;
	else if (c == '"')
		f->at = AT_PLAIN;
	f->done = f->done || (old && c == '"');
}

/* Take one byte of a document. Return true if the name to replace begins here. */
static bool doc_byte(struct modelname *f, char c)
{
	switch ((enum doc_part)f->at) {
	case AT_PLAIN:
		return plain_byte(f, c);
	case AT_KEY:
		key_byte(f, c);
		break;
	case AT_STRING:
	case AT_OLD:
		string_byte(f, c);
		break;
	case AT_KEY_ESCAPE:
		f->at = AT_KEY;
		break;
	case AT_STRING_ESCAPE:
		f->at = AT_STRING;
		break;
	case AT_OLD_ESCAPE:
		f->at = AT_OLD;
		break;
	}
	return false;
}

/* Pass a part of a document, with its name replaced. */
static void doc_feed(struct modelname *f, struct cgn_str s, struct cgn_buf *out)
{
	size_t from = 0, i = 0; /* Bytes before |from| are dealt with. */
	while (i < s.n && !f->done) {
		bool left_out = f->at == AT_OLD || f->at == AT_OLD_ESCAPE;
		if (f->at == AT_STRING || f->at == AT_OLD)
			i += string_run((struct cgn_str){s.p + i, s.n - i});
		if (i < s.n && doc_byte(f, s.p[i++])) {
			cgn_buf_add(out, s.p + from, i - 1 - from);
			cgn_buf_str(out, f->name);
			left_out = true;
		}
		if (left_out)
			from = i;
	}
	cgn_buf_add(out, s.p + from, s.n - from);
}

/* ---- the lines of an event stream ---- */

static bool is_line_end(char c)
{
	return c == '\n' || c == '\r';
}

/* Take a byte that ends a line. An empty line ends an event; CR LF is one end. */
static void line_end(struct modelname *f, char c)
{
	bool second = c == '\n' && f->after_cr;
	f->after_cr = c == '\r';
	if (second)
		return;
	if (f->line == LINE_START)
		doc_begin(f);
	f->line = LINE_START;
}

/* Take a byte before the content of a line. A brace begins a document. */
static void line_byte(struct modelname *f, char c)
{
	if (is_line_end(c)) {
		line_end(f, c);
		return;
	}
	f->after_cr = false;
	if (f->line == LINE_START && c == '{') {
		doc_begin(f);
		f->line = LINE_DATA;
	} else {
		f->matched = f->line == LINE_START ? 0 : f->matched;
		f->line = c == data_field[f->matched] ? LINE_FIELD : LINE_OTHER;
		f->matched++;
		if (f->line == LINE_FIELD && data_field[f->matched] == '\0')
			f->line = LINE_DATA;
	}
}

static size_t line_run(struct cgn_str s)
{
	size_t i = 0;
	while (i < s.n && !is_line_end(s.p[i]))
		i++;
	return i;
}

/* Pass bytes up to the end of the line or of its name. Return how many of |s|. */
static size_t line_feed(struct modelname *f, struct cgn_str s, struct cgn_buf *out)
{
	bool begins = f->line != LINE_DATA && f->line != LINE_OTHER;
	if (begins && !(f->line == LINE_START && s.p[0] == '{')) {
		line_byte(f, s.p[0]);
		cgn_buf_char(out, s.p[0]);
		return 1;
	}
	if (begins)
		line_byte(f, s.p[0]);
	size_t n = line_run(s);
	if (f->line == LINE_DATA)
		doc_feed(f, (struct cgn_str){s.p, n}, out);
	else
		cgn_buf_add(out, s.p, n);
	if (n == s.n)
		return n;
	cgn_buf_char(out, s.p[n]);
	line_end(f, s.p[n]);
	return n + 1;
}

void modelname_feed(struct modelname *f, struct cgn_str data, struct cgn_buf *out)
{
	if (f->shape == MODELNAME_DOCUMENT) {
		doc_feed(f, data, out);
		return;
	}
	for (size_t at = 0; at < data.n;)
		at += line_feed(f, (struct cgn_str){data.p + at, data.n - at}, out);
}
