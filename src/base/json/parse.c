/* SPDX-License-Identifier: Apache-2.0 */
/* json parser: one pass, no recursion, no allocation. A state tells what may come next; open brackets are a
 * stack of bits. */
#include "base/json/json_priv.h"

struct parser {
	const char *p, *end;
	const char *why;                         /* The first error; NULL: none so far. */
	uint64_t in_object[JSON_MAX_DEPTH / 64]; /* A bit per open bracket, outermost first. */
	unsigned depth;
};

enum expect { VALUE, VALUE_OR_CLOSE, KEY, KEY_OR_CLOSE, COMMA_OR_CLOSE, NOTHING, FAILED };

static bool parse_complain(struct parser *ps, const char *at, const char *why)
{
	ps->p = at;
	ps->why = why;
	return false;
}

static void skip_space(struct parser *ps)
{
	while (ps->p < ps->end && json_is_space(*ps->p))
		ps->p++;
}

static bool scan_code_point(struct parser *ps)
{
	const char *at = ps->p - 1;
	int32_t code = json_hex_quad(ps->p, ps->end);
	if (code < 0)
		return parse_complain(ps, at, "\\u wants four hexadecimal digits");
	ps->p += 5;
	if (code < 0xd800 || code > 0xdfff)
		return true;
	if (code > 0xdbff || ps->end - ps->p < 6 || ps->p[0] != '\\' || ps->p[1] != 'u')
		return parse_complain(ps, at, "a surrogate without its other half");
	int32_t low = json_hex_quad(ps->p + 1, ps->end);
	if (low < 0xdc00 || low > 0xdfff)
		return parse_complain(ps, at, "a surrogate without its other half");
	ps->p += 6;
	return true;
}

/* |p| is behind a backslash. */
static bool scan_escape(struct parser *ps)
{
	if (ps->p == ps->end)
		return parse_complain(ps, ps->p, "the text ends inside a string");
	if (*ps->p == 'u')
		return scan_code_point(ps);
	static const bool known[256] = {['"'] = true,
		['\\'] = true,
		['/'] = true,
		['b'] = true,
		['f'] = true,
		['n'] = true,
		['r'] = true,
		['t'] = true};
	if (!known[(unsigned char)*ps->p])
		return parse_complain(ps, ps->p - 1, "an unknown escape in a string");
	ps->p++;
	return true;
}

static bool check_utf8(struct parser *ps, const char *from)
{
	size_t n = (size_t)(ps->p - from), good = cgn_utf8_prefix(from, n);
	return good == n || parse_complain(ps, from + good, "a string that is not UTF-8");
}

/* |p| is behind the opening quote. */
static bool scan_string(struct parser *ps)
{
	const char *from = ps->p;
	bool wide = false;
	for (;;) {
		ps->p = json_plain_end(ps->p, ps->end, &wide);
		if (ps->p == ps->end)
			return parse_complain(ps, ps->p, "the text ends inside a string");
		if (*ps->p == '"')
			break;
		if (*ps->p != '\\')
			return parse_complain(ps, ps->p, "a raw control character in a string");
		do { /* Escapes often come in runs. */
			ps->p++;
			if (!scan_escape(ps))
				return false;
		} while (ps->p < ps->end && *ps->p == '\\');
	}
	if (wide && !check_utf8(ps, from))
		return false;
	ps->p++;
	return true;
}

static bool scan_digits(struct parser *ps)
{
	if (ps->p == ps->end || !json_is_digit(*ps->p))
		return parse_complain(ps, ps->p, "a number that lacks a digit here");
	while (ps->p < ps->end && json_is_digit(*ps->p))
		ps->p++;
	return true;
}

static bool scan_number(struct parser *ps)
{
	if (*ps->p == '-')
		ps->p++;
	if (ps->p < ps->end && *ps->p == '0') {
		ps->p++;
		if (ps->p < ps->end && json_is_digit(*ps->p))
			return parse_complain(ps, ps->p - 1, "a number with a leading zero");
	} else if (!scan_digits(ps)) {
		return false;
	}
	if (ps->p < ps->end && *ps->p == '.') {
		ps->p++;
		if (!scan_digits(ps))
			return false;
	}
	if (ps->p < ps->end && (*ps->p | 0x20) == 'e') {
		ps->p++;
		if (ps->p < ps->end && (*ps->p == '+' || *ps->p == '-'))
			ps->p++;
		return scan_digits(ps);
	}
	return true;
}

static bool scan_word(struct parser *ps, struct cgn_str word)
{
	if ((size_t)(ps->end - ps->p) < word.n || memcmp(ps->p, word.p, word.n) != 0)
		return parse_complain(ps, ps->p, "a value was expected here");
	ps->p += word.n;
	return true;
}

static bool scan_scalar(struct parser *ps)
{
	switch (*ps->p) {
	case '"':
		ps->p++;
		return scan_string(ps);
	case 't':
		return scan_word(ps, CGN_STR("true"));
	case 'f':
		return scan_word(ps, CGN_STR("false"));
	case 'n':
		return scan_word(ps, CGN_STR("null"));
	default:
		if (*ps->p != '-' && !json_is_digit(*ps->p))
			return parse_complain(ps, ps->p, "a value was expected here");
		return scan_number(ps);
	}
}

static bool innermost_is_object(const struct parser *ps)
{
	unsigned top = ps->depth - 1;
	return (ps->in_object[top / 64] >> top % 64 & 1) != 0;
}

static enum expect after_value(const struct parser *ps)
{
	return ps->depth == 0 ? NOTHING : COMMA_OR_CLOSE;
}

static enum expect open_bracket(struct parser *ps, bool object)
{
	if (ps->depth == JSON_MAX_DEPTH) {
		parse_complain(ps, ps->p, "nested deeper than 128 levels");
		return FAILED;
	}
	uint64_t bit = UINT64_C(1) << ps->depth % 64, *word = &ps->in_object[ps->depth / 64];
	*word = object ? *word | bit : *word & ~bit;
	ps->depth++;
	ps->p++;
	return object ? KEY_OR_CLOSE : VALUE_OR_CLOSE;
}

static enum expect close_bracket(struct parser *ps)
{
	ps->p++;
	ps->depth--;
	return after_value(ps);
}

static enum expect on_value(struct parser *ps)
{
	if (*ps->p == '{' || *ps->p == '[')
		return open_bracket(ps, *ps->p == '{');
	return scan_scalar(ps) ? after_value(ps) : FAILED;
}

static enum expect on_key(struct parser *ps)
{
	if (*ps->p != '"') {
		parse_complain(ps, ps->p, "a key in double quotes was expected here");
		return FAILED;
	}
	ps->p++;
	if (!scan_string(ps))
		return FAILED;
	skip_space(ps);
	if (ps->p == ps->end || *ps->p != ':') {
		parse_complain(ps, ps->p, "a colon was expected here");
		return FAILED;
	}
	ps->p++;
	return VALUE;
}

static enum expect on_comma(struct parser *ps)
{
	bool object = innermost_is_object(ps);
	if (*ps->p == (object ? '}' : ']'))
		return close_bracket(ps);
	if (*ps->p != ',') {
		parse_complain(ps, ps->p,
			object ? "a comma or } was expected here" : "a comma or ] was expected here");
		return FAILED;
	}
	ps->p++;
	return object ? KEY : VALUE;
}

static enum expect parse_step_value(struct parser *ps, enum expect want)
{
	switch (want) {
	case VALUE_OR_CLOSE:
		return *ps->p == ']' ? close_bracket(ps) : on_value(ps);
	case VALUE:
		return on_value(ps);
	case KEY_OR_CLOSE:
		return *ps->p == '}' ? close_bracket(ps) : on_key(ps);
	case KEY:
		return on_key(ps);
	case COMMA_OR_CLOSE:
		return on_comma(ps);
	case NOTHING:
		parse_complain(ps, ps->p, "more text behind the value");
		break;
	case FAILED:
		break;
	}
	return FAILED;
}

static bool scan_document(struct parser *ps)
{
	enum expect want = VALUE;
	while (want != FAILED) {
		skip_space(ps);
		if (ps->p == ps->end)
			return want == NOTHING || parse_complain(ps, ps->p, "the text ends too early");
		want = parse_step_value(ps, want);
	}
	return false;
}

static cgn_rc fail_at(struct cgn_str text, const struct parser *ps, struct cgn_err *err)
{
	size_t line = 1, column = 1;
	for (const char *p = text.p; p < ps->p; p++) {
		if (*p == '\n') {
			line++;
			column = 1;
		} else if (((unsigned char)*p & 0xc0) != 0x80) { /* Columns count characters, not bytes. */
			column++;
		}
	}
	return CGN_FAIL(err, INVALID, "line %zu column %zu: %s", line, column, ps->why);
}

static enum json_type type_of(char first)
{
	switch (first) {
	case '{':
		return JSON_OBJECT;
	case '[':
		return JSON_ARRAY;
	case '"':
		return JSON_STRING;
	case 't':
	case 'f':
		return JSON_BOOL;
	case 'n':
		return JSON_NULL;
	default:
		return JSON_NUMBER;
	}
}

static struct cgn_str trim_space(struct cgn_str text)
{
	while (text.n > 0 && json_is_space(text.p[0])) {
		text.p++;
		text.n--;
	}
	while (text.n > 0 && json_is_space(text.p[text.n - 1]))
		text.n--;
	return text;
}

struct cgn_str json_skip_bom(struct cgn_str text)
{
	const size_t n = cgn_str_starts(text, "\xef\xbb\xbf") ? 3 : 0;
	return n > 0 ? (struct cgn_str){text.p + n, text.n - n} : text;
}

cgn_rc json_parse(struct cgn_str text, struct json_val *out, size_t *offset, struct cgn_err *err)
{
	text.p = text.p != NULL ? text.p : "";
	struct parser ps = {.p = text.p, .end = text.p + text.n};
	if (!scan_document(&ps)) {
		if (offset != NULL)
			*offset = (size_t)(ps.p - text.p);
		return fail_at(text, &ps, err);
	}
	struct cgn_str raw = trim_space(text);
	*out = (struct json_val){type_of(raw.p[0]), raw};
	return CGN_OK;
}
