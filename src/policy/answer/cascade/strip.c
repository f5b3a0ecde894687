/* SPDX-License-Identifier: Apache-2.0 */
/* strip: a walk over the bytes of an answer that leaves a member of each choice out. */
#include "policy/answer/cascade/cascade.h"

enum doc_part { AT_PLAIN, AT_KEY, AT_KEY_ESCAPE, AT_STRING, AT_STRING_ESCAPE };
enum skip_kind { SKIP_NONE, SKIP_SCALAR, SKIP_ENCLOSED };

#define DEPTH_ROOT   1U
#define DEPTH_CHOICE 3U

static void doc_begin(struct cascade_strip *s)
{
	s->at = AT_PLAIN;
	s->skip = SKIP_NONE;
	s->is_key = s->in_choices = s->is_choices = s->holding = s->found = s->drop_comma = false;
	s->depth = s->held_n = 0;
	s->name_n = 0;
}

void cascade_strip_init(struct cascade_strip *s, enum cascade_blank blank, bool events)
{
	*s = (struct cascade_strip){.blank = blank, .events = events};
	doc_begin(s);
}

static bool is_space(char c)
{
	return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static bool in_choice(const struct cascade_strip *s)
{
	return s->in_choices && s->depth == DEPTH_CHOICE;
}

/* ---- output ---- */

/* Give up the held bytes: they belong to another member. */
static void held_flush(struct cascade_strip *s, struct cgn_buf *out)
{
	cgn_buf_add(out, s->held, s->held_n);
	s->held_n = 0;
	s->holding = s->found = false;
}

static void byte_put(struct cascade_strip *s, char c, struct cgn_buf *out)
{
	if (s->holding && s->held_n == CASCADE_KEY_MAX)
		held_flush(s, out);
	if (s->holding)
		s->held[s->held_n++] = c;
	else
		cgn_buf_char(out, c);
}

/* ---- the value that is left out ---- */

static void value_begin(struct cascade_strip *s, char c, struct cgn_buf *out)
{
	if (s->blank == CASCADE_BLANK_NULL) {
		held_flush(s, out);
		cgn_buf_putz(out, "null");
	} else {
		s->drop_comma = s->held_n == 0 || s->held[0] != ',';
		s->held_n = 0;
		s->holding = s->found = false;
	}
	s->skip = SKIP_SCALAR;
	if (c == '{' || c == '[' || c == '"')
		s->skip = SKIP_ENCLOSED;
	if (c == '"')
		s->at = AT_STRING;
	s->depth += c == '{' || c == '[';
}

static void string_byte(struct cascade_strip *s, char c)
{
	if (s->at == AT_STRING_ESCAPE)
		s->at = AT_STRING;
	else if (c == '\\')
		s->at = AT_STRING_ESCAPE;
	else if (c == '"')
		s->at = AT_PLAIN;
}

/* Return true if |c| belongs to the value that is left out. */
static bool value_byte(struct cascade_strip *s, char c)
{
	if (s->skip == SKIP_SCALAR) {
		if (c != ',' && c != '}' && c != ']' && !is_space(c))
			return true;
		s->skip = SKIP_NONE;
		return false;
	}
	if (s->at != AT_PLAIN) {
		string_byte(s, c);
	} else if (c == '"') {
		s->at = AT_STRING;
	} else if (c == '{' || c == '[') {
		s->depth++;
	} else if (c == '}' || c == ']') {
		s->depth--;
	}
	if (s->at == AT_PLAIN && s->depth == DEPTH_CHOICE)
		s->skip = SKIP_NONE;
	return true;
}

/* ---- the document ---- */

static void key_end(struct cascade_strip *s, struct cgn_buf *out)
{
	struct cgn_str name = {s->name, s->name_n};
	s->at = AT_PLAIN;
	byte_put(s, '"', out);
	s->is_choices = s->depth == DEPTH_ROOT && cgn_str_is(name, "choices");
	if (in_choice(s) && cgn_str_is(name, "logprobs"))
		s->found = s->holding;
	else if (s->holding)
		held_flush(s, out);
}

static void key_byte(struct cascade_strip *s, char c, struct cgn_buf *out)
{
	if (s->at == AT_KEY && c == '"') {
		key_end(s, out);
		return;
	}
	bool escape = s->at == AT_KEY && c == '\\';
	s->at = escape ? AT_KEY_ESCAPE : AT_KEY;
	if (escape || s->name_n == CASCADE_NAME_MAX)
		s->name_n = CASCADE_NAME_MAX; /* A key with an escape is none that matters. */
	else
		s->name[s->name_n++] = c;
	byte_put(s, c, out);
}

static void doc_open(struct cascade_strip *s, char c, struct cgn_buf *out)
{
	held_flush(s, out);
	byte_put(s, c, out);
	s->depth++;
	s->in_choices = s->in_choices || (c == '[' && s->is_choices && s->depth == DEPTH_ROOT + 1);
	s->is_choices = false;
	s->is_key = c == '{' && (s->depth == DEPTH_ROOT || in_choice(s));
	s->holding = c == '{' && in_choice(s);
}

static void doc_close(struct cascade_strip *s, char c, struct cgn_buf *out)
{
	held_flush(s, out);
	byte_put(s, c, out);
	s->depth -= s->depth > 0;
	s->in_choices = s->in_choices && s->depth > DEPTH_ROOT;
	s->is_choices = s->is_key = s->drop_comma = false;
}

static void comma_byte(struct cascade_strip *s, struct cgn_buf *out)
{
	bool dropped = s->drop_comma && in_choice(s);
	held_flush(s, out);
	s->is_choices = false;
	s->is_key = s->depth == DEPTH_ROOT || in_choice(s);
	s->holding = in_choice(s);
	if (dropped)
		s->drop_comma = false;
	else
		byte_put(s, ',', out);
}

static void plain_byte(struct cascade_strip *s, char c, struct cgn_buf *out)
{
	if (c == '"') {
		s->at = s->is_key ? AT_KEY : AT_STRING;
		s->name_n = s->is_key ? 0 : s->name_n;
		s->is_key = false;
		byte_put(s, c, out);
	} else if (c == '{' || c == '[') {
		doc_open(s, c, out);
	} else if (c == '}' || c == ']') {
		doc_close(s, c, out);
	} else if (c == ',') {
		comma_byte(s, out);
	} else {
		byte_put(s, c, out);
	}
}

static void doc_byte(struct cascade_strip *s, char c, struct cgn_buf *out)
{
	if (s->skip != SKIP_NONE && value_byte(s, c))
		return;
	if (s->at == AT_KEY || s->at == AT_KEY_ESCAPE) {
		key_byte(s, c, out);
	} else if (s->at != AT_PLAIN) {
		string_byte(s, c);
		byte_put(s, c, out);
	} else if (s->found && c != ':' && !is_space(c)) {
		value_begin(s, c, out);
	} else if (s->depth == 0 && c != '{') {
		byte_put(s, c, out);
	} else {
		plain_byte(s, c, out);
	}
}

void cascade_strip_feed(struct cascade_strip *s, struct cgn_str data, struct cgn_buf *out)
{
	for (size_t i = 0; i < data.n; i++) {
		if (s->events && data.p[i] == '\n') {
			cascade_strip_end(s, out);
			doc_begin(s);
		}
		doc_byte(s, data.p[i], out);
	}
}

void cascade_strip_end(struct cascade_strip *s, struct cgn_buf *out)
{
	held_flush(s, out);
}
