/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer regex: split patterns are written for Oniguruma and run by PCRE2. The pattern is parsed and
 * rewritten, so that only constructs that mean the same in both get through: literals become \x{...}, classes
 * get the reference's meaning, and anything else is refused. */
#include "policy/text/tokenizer/tokenizer_priv.h"

#define PATTERN_MAX ((size_t)16 << 10)
/* Steps of one match; the longest run of blanks that a text may hold needs fewer. */
#define MATCH_LIMIT    50000000
#define HEAP_LIMIT_KIB (64 << 10)
#define STACK_MAX      ((size_t)1 << 20)
#define GROUPS_MAX     64

struct reader {
	const char *p, *end;
	struct cgn_buf out;
	const char *at, *from;
	struct cgn_err *err;
	bool nocase[GROUPS_MAX]; /* A flag for each open group. */
	size_t depth;
	/* The previous literal, in a case-insensitive group: some pairs of letters equal one character. */
	uint32_t last_letter;
};

static cgn_rc regex_refuse(struct reader *r, const char *what)
{
	return CGN_FAIL(r->err, UNSUPPORTED, "%s: %s at byte %zu of the pattern is not supported", r->at,
		what, (size_t)(r->p - r->from));
}

static cgn_rc regex_malformed(struct reader *r, const char *what)
{
	return CGN_FAIL(r->err, INVALID, "%s: %s at byte %zu of the pattern", r->at, what,
		(size_t)(r->p - r->from));
}

static bool reader_take(struct reader *r, const char *z)
{
	if (!cgn_str_starts((struct cgn_str){r->p, (size_t)(r->end - r->p)}, z))
		return false;
	r->p += strlen(z);
	return true;
}

static void put_code(struct reader *r, uint32_t c)
{
	cgn_buf_fmt(&r->out, "\\x{%x}", c);
}

static CGN_RC check_point(struct reader *r, uint32_t first, uint32_t last)
{
	if (!tok_range_is_steady(first, last))
		return regex_refuse(r, "a character whose class depends on the version of Unicode");
	return CGN_OK;
}

/* ---- escapes ---- */

static const char *const properties[] = {"L", "Lu", "Ll", "Lt", "Lm", "Lo", "N", "Nd", "Nl", "No", "P", "Pc",
	"Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S", "Sm", "Sc", "Sk", "So", "M", "Mn", "Mc", "Me", "Z", "Zs",
	"Zl", "Zp", "Han"};

/* Read the rest of a "\p". Outside a class "\P" is the negated class; inside one it would be a set that
 * differs in PCRE2's older Unicode. */
static CGN_RC read_property(struct reader *r, bool negated)
{
	char name[16] = {0};
	if (!reader_take(r, "{"))
		return regex_malformed(r, "\\p without {name}");
	negated ^= reader_take(r, "^");
	const char *close = memchr(r->p, '}', (size_t)(r->end - r->p));
	if (close == NULL ||
		!cgn_str_copyz(name, sizeof name, (struct cgn_str){r->p, (size_t)(close - r->p)}))
		return regex_refuse(r, "this property");
	for (size_t i = 0; i < CGN_COUNT(properties); i++)
		if (strcmp(name, properties[i]) == 0) {
			r->p = close + 1;
			cgn_buf_fmt(&r->out, strcmp(name, "Han") == 0 ? "\\%c{sc:%s}" : "\\%c{%s}",
				negated ? 'P' : 'p', name);
			return CGN_OK;
		}
	return regex_refuse(r, "this property");
}

#define WORD_SET "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\xb2\\xb3\\xb9\\xbc-\\xbe"

/* Write a named set of characters; returns false when |c| names none. */
static bool put_set(struct reader *r, char c, bool in_class)
{
	switch (c) {
	case 's':
		cgn_buf_putz(&r->out, "\\p{White_Space}");
		return true;
	case 'S':
		cgn_buf_putz(&r->out, "\\P{White_Space}");
		return true;
	case 'd':
		cgn_buf_putz(&r->out, "\\p{Nd}");
		return true;
	case 'D':
		cgn_buf_putz(&r->out, "\\P{Nd}");
		return true;
	case 'w':
		cgn_buf_putz(&r->out, in_class ? WORD_SET : "[" WORD_SET "]");
		return true;
	case 'W':
		if (!in_class)
			cgn_buf_putz(&r->out, "[^" WORD_SET "]");
		return !in_class;
	default:
		return false;
	}
}

static CGN_RC read_hex(struct reader *r, size_t min, size_t max, uint32_t *out)
{
	size_t n = 0;
	for (*out = 0; n < max && r->p < r->end; n++, r->p++) {
		char c = *r->p;
		int digit = c >= '0' && c <= '9'                 ? c - '0'
			: (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10
								 : -1;
		if (digit < 0)
			break;
		*out = *out << 4 | (uint32_t)digit;
	}
	return n >= min && *out <= 0x10ffff ? CGN_OK : regex_malformed(r, "a hexadecimal escape");
}

/* Read a character code behind a backslash. */
static CGN_RC read_code(struct reader *r, uint32_t *c)
{
	static const char names[] = "tnrfae", codes[] = "\t\n\r\f\a\x1b";
	char e = *r->p++;
	const char *name = memchr(names, e, sizeof names - 1);
	if (name != NULL) {
		*c = (uint32_t)codes[name - names];
		return CGN_OK;
	}
	if (e == 'u')
		return read_hex(r, 4, 4, c);
	if (e == 'x' && reader_take(r, "{")) {
		CGN_TRY(read_hex(r, 1, 6, c));
		return reader_take(r, "}") ? CGN_OK : regex_malformed(r, "\\x{ without }");
	}
	if (e == 'x') {
		CGN_TRY(read_hex(r, 2, 2, c));
		return *c < 0x80 ? CGN_OK : regex_refuse(r, "a raw byte");
	}
	*c = (unsigned char)e;
	bool letter = (*c | 0x20) >= 'a' && (*c | 0x20) <= 'z';
	if (letter || *c >= 0x80 || (*c >= '0' && *c <= '9') || *c < 0x20)
		return regex_refuse(r, "this escape");
	return CGN_OK;
}

/* Read an escape: a set (*is_set; already written), or one character in |*c|. */
static CGN_RC read_escape(struct reader *r, bool in_class, bool *is_set, uint32_t *c)
{
	*is_set = true;
	if (r->p == r->end)
		return regex_malformed(r, "a backslash at the end");
	if (*r->p == 'p' || *r->p == 'P') {
		bool negated = *r->p++ == 'P';
		if (in_class && (negated || (r->p + 1 < r->end && r->p[1] == '^')))
			return regex_refuse(r, "a negated property in a class");
		return read_property(r, negated);
	}
	if (put_set(r, *r->p, in_class)) {
		r->p++;
		return CGN_OK;
	}
	*is_set = false;
	return read_code(r, c);
}

/* ---- classes ---- */

static CGN_RC read_class_item(struct reader *r, bool *is_set, uint32_t *c)
{
	size_t n;
	*is_set = false;
	if (*r->p == '[')
		return regex_refuse(r, "a class within a class");
	if (r->end - r->p >= 2 && memcmp(r->p, "&&", 2) == 0)
		return regex_refuse(r, "an intersection of classes");
	if (reader_take(r, "\\"))
		return read_escape(r, true, is_set, c);
	*c = tok_char_at(r->p, r->end, &n);
	r->p += n;
	return CGN_OK;
}

static CGN_RC read_class_part(struct reader *r)
{
	bool is_set, last_is_set;
	uint32_t c, last;
	CGN_TRY(read_class_item(r, &is_set, &c));
	bool range = r->end - r->p >= 2 && r->p[0] == '-' && r->p[1] != ']';
	if (is_set)
		return range ? regex_refuse(r, "a range that begins with a set") : CGN_OK;
	last = c;
	if (range) {
		r->p++;
		CGN_TRY(read_class_item(r, &last_is_set, &last));
		if (last_is_set || last < c)
			return regex_malformed(r, "a range that does not end");
	}
	CGN_TRY(check_point(r, c, last));
	put_code(r, c);
	if (last != c) {
		cgn_buf_char(&r->out, '-');
		put_code(r, last);
	}
	return CGN_OK;
}

/* Read the rest of a class, after "[". */
static CGN_RC read_class(struct reader *r)
{
	if (r->nocase[r->depth])
		return regex_refuse(r, "a class in a case-insensitive group");
	cgn_buf_char(&r->out, '[');
	if (reader_take(r, "^"))
		cgn_buf_char(&r->out, '^');
	if (r->p < r->end && *r->p == ']')
		return regex_refuse(r, "an empty class");
	while (r->p < r->end && *r->p != ']')
		CGN_TRY(read_class_part(r));
	if (!reader_take(r, "]"))
		return regex_malformed(r, "a class without ]");
	cgn_buf_char(&r->out, ']');
	return CGN_OK;
}

/* ---- the rest ---- */

static CGN_RC read_group(struct reader *r)
{
	static const char *const kinds[] = {"?:", "?=", "?!", "?<=", "?<!", "?>"};
	if (r->depth + 1 == GROUPS_MAX)
		return regex_refuse(r, "nesting as deep as this");
	bool nocase = r->nocase[r->depth];
	const char *kind = "?:";
	if (reader_take(r, "?i:")) {
		nocase = true;
		kind = "?i:";
	} else if (r->p < r->end && *r->p == '?') {
		size_t i = 0;
		while (i < CGN_COUNT(kinds) && !reader_take(r, kinds[i]))
			i++;
		if (i == CGN_COUNT(kinds))
			return regex_refuse(r, "this kind of group");
		kind = kinds[i];
	}
	r->nocase[++r->depth] = nocase;
	cgn_buf_fmt(&r->out, "(%s", kind);
	return CGN_OK;
}

static CGN_RC read_number(struct reader *r, uint32_t *out)
{
	const char *from = r->p;
	for (*out = 0; r->p < r->end && *r->p >= '0' && *r->p <= '9'; r->p++)
		*out = *out * 10 + (uint32_t)(*r->p - '0') > 60000 ? 60001
								   : *out * 10 + (uint32_t)(*r->p - '0');
	return r->p > from && *out <= 60000 ? CGN_OK : regex_refuse(r, "this repetition");
}

/* Read the rest of a repeat, after "{". */
static CGN_RC read_interval(struct reader *r)
{
	uint32_t min, max;
	CGN_TRY(read_number(r, &min));
	cgn_buf_fmt(&r->out, "{%u", min);
	if (reader_take(r, ",")) {
		cgn_buf_char(&r->out, ',');
		if (r->p < r->end && *r->p != '}') {
			CGN_TRY(read_number(r, &max));
			if (max < min)
				return regex_refuse(r, "this repetition");
			cgn_buf_fmt(&r->out, "%u", max);
		}
	}
	if (!reader_take(r, "}"))
		return regex_refuse(r, "this repetition");
	cgn_buf_char(&r->out, '}');
	if (r->p < r->end && (*r->p == '+' || *r->p == '?'))
		return regex_refuse(r, "a sign behind {}");
	return CGN_OK;
}

/* Read the suffix of ?, * or +: lazy and possessive repeats mean the same in both languages. */
static CGN_RC read_repeat(struct reader *r, char sign)
{
	if (r->out.n == 0 || r->out.p[r->out.n - 1] == '|' || r->out.p[r->out.n - 1] == ':')
		return regex_malformed(r, "a repetition of nothing");
	if (sign == '{')
		return read_interval(r);
	cgn_buf_char(&r->out, sign);
	if (r->p < r->end && (*r->p == '?' || *r->p == '+'))
		cgn_buf_char(&r->out, *r->p++);
	return r->p < r->end && (*r->p == '?' || *r->p == '+' || *r->p == '*' || *r->p == '{')
		? regex_refuse(r, "a repetition of a repetition")
		: CGN_OK;
}

/* Without case, "ss" also matches U+00DF, "st" a ligature, and so on; refuse such pairs. */
static bool folds_together(uint32_t a, uint32_t b)
{
	static const char *const pairs[] = {"ss", "ff", "fi", "fl", "st", "ij"};
	for (size_t i = 0; i < CGN_COUNT(pairs); i++)
		if ((a | 0x20) == (uint32_t)pairs[i][0] && (b | 0x20) == (uint32_t)pairs[i][1])
			return true;
	return false;
}

static CGN_RC put_literal(struct reader *r, uint32_t c)
{
	CGN_TRY(check_point(r, c, c));
	if (r->nocase[r->depth] && (c >= 0x80 || folds_together(r->last_letter, c)))
		return regex_refuse(r, "this text without case");
	r->last_letter = c;
	put_code(r, c);
	return CGN_OK;
}

static CGN_RC read_one(struct reader *r)
{
	bool is_set;
	uint32_t c, before = r->last_letter;
	size_t n;
	r->last_letter = 0;
	switch (*r->p) {
	case '(':
		r->p++;
		return read_group(r);
	case ')':
		if (r->depth == 0)
			return regex_malformed(r, "a ) without (");
		r->depth--;
		break;
	case '[':
		r->p++;
		return read_class(r);
	case '?':
	case '*':
	case '+':
	case '{':
		return read_repeat(r, *r->p++);
	case '|':
	case '.':
		break;
	case '^':
	case '$':
		return regex_refuse(r, "an anchor");
	case '\\':
		r->p++;
		CGN_TRY(read_escape(r, false, &is_set, &c));
		r->last_letter = before;
		return is_set ? CGN_OK : put_literal(r, c);
	default:
		c = tok_char_at(r->p, r->end, &n);
		r->p += n;
		r->last_letter = before;
		return put_literal(r, c);
	}
	cgn_buf_char(&r->out, *r->p++);
	return CGN_OK;
}

static CGN_RC regex_translate(struct reader *r)
{
	if (reader_take(r, "(?i)")) { /* Elsewhere the scope of "(?i)" differs between the two languages. */
		r->nocase[0] = true;
		cgn_buf_putz(&r->out, "(?i)");
	}
	while (r->p < r->end)
		CGN_TRY(read_one(r));
	if (r->depth > 0)
		return regex_malformed(r, "a ( without )");
	return CGN_OK;
}

static CGN_RC regex_compile(struct cgn_str pattern, const char *at, struct tok_regex *out,
	struct cgn_err *err)
{
	int code = 0;
	PCRE2_SIZE offset = 0;
	uint32_t empty = 0;
	PCRE2_UCHAR why[120];
	pcre2_compile_context *c = pcre2_compile_context_create(NULL);
	if (c == NULL)
		cgn_out_of_memory(sizeof c, CGN_HERE);
	(void)pcre2_set_newline(c, PCRE2_NEWLINE_LF);
	(void)pcre2_set_parens_nest_limit(c, GROUPS_MAX);
	out->code = pcre2_compile((PCRE2_SPTR)pattern.p, pattern.n,
		PCRE2_UTF | PCRE2_UCP | PCRE2_NO_AUTO_CAPTURE | PCRE2_NEVER_BACKSLASH_C, &code, &offset, c);
	pcre2_compile_context_free(c);
	if (out->code == NULL) {
		(void)pcre2_get_error_message(code, why, sizeof why);
		return CGN_FAIL(err, UNSUPPORTED, "%s: the pattern can't be compiled: %s", at,
			(const char *)why);
	}
	(void)pcre2_pattern_info(out->code, PCRE2_INFO_MATCHEMPTY, &empty);
	if (empty != 0)
		return CGN_FAIL(err, UNSUPPORTED,
			"%s: a pattern that matches the empty text is not supported", at);
	/* Without JIT (MemoryDenyWriteExecute) the interpreter finds the same matches. */
	(void)pcre2_jit_compile(out->code, PCRE2_JIT_COMPLETE);
	return CGN_OK;
}

CGN_RC tok_regex_make(struct cgn_str pattern, const char *at, struct tok_regex *out, struct cgn_err *err)
{
	struct reader r = {.p = pattern.p,
		.end = pattern.p + pattern.n,
		.from = pattern.p,
		.at = at,
		.err = err,
		.out.limit = PATTERN_MAX * 8};
	if (pattern.n == 0 || pattern.n > PATTERN_MAX)
		return CGN_FAIL(err, UNSUPPORTED, "%s: a pattern of %zu bytes (1 to %zu are supported)", at,
			pattern.n, PATTERN_MAX);
	cgn_rc rc = regex_translate(&r);
	if (cgn_ok(rc) && r.out.bad)
		rc = CGN_FAIL(err, NO_MEMORY, "%s: out of memory", at);
	if (cgn_ok(rc))
		rc = regex_compile(cgn_buf_view(&r.out), at, out, err);
	out->shadow = true;
	cgn_buf_fini(&r.out);
	return rc;
}

CGN_RC tok_regex_own(struct cgn_str pattern, struct tok_regex *out, struct cgn_err *err)
{
	out->shadow = false;
	return regex_compile(pattern, "a pattern of ours", out, err);
}

void tok_regex_fini(struct tok_regex *re)
{
	pcre2_code_free(re->code);
	re->code = NULL;
}

size_t tok_regex_bytes(const struct tok_regex *re)
{
	size_t size = 0, jit = 0;
	if (re->code == NULL)
		return 0;
	(void)pcre2_pattern_info(re->code, PCRE2_INFO_SIZE, &size);
	(void)pcre2_pattern_info(re->code, PCRE2_INFO_JITSIZE, &jit);
	return size + jit;
}

void tok_matcher_init(struct tok_matcher *m)
{
	m->data = pcre2_match_data_create(1, NULL);
	m->limits = pcre2_match_context_create(NULL);
	m->stack = pcre2_jit_stack_create(32 << 10, STACK_MAX, NULL); /* NULL without JIT. */
	if (m->data == NULL || m->limits == NULL)
		cgn_out_of_memory(sizeof *m, CGN_HERE);
	(void)pcre2_set_match_limit(m->limits, MATCH_LIMIT);
	(void)pcre2_set_depth_limit(m->limits, MATCH_LIMIT);
	(void)pcre2_set_heap_limit(m->limits, HEAP_LIMIT_KIB);
	if (m->stack != NULL)
		pcre2_jit_stack_assign(m->limits, NULL, m->stack);
}

void tok_matcher_fini(struct tok_matcher *m)
{
	pcre2_match_data_free(m->data);
	pcre2_match_context_free(m->limits);
	pcre2_jit_stack_free(m->stack);
	*m = (struct tok_matcher){0};
}

CGN_RC tok_regex_next(const struct tok_regex *re, struct tok_matcher *m, struct cgn_str text, size_t from,
	size_t *start, size_t *end, struct cgn_err *err)
{
	*end = 0;
	if (from == text.n)
		return CGN_OK;
	int rc = pcre2_match(re->code, (PCRE2_SPTR)text.p, text.n, from, PCRE2_NO_UTF_CHECK, m->data,
		m->limits);
	if (rc == PCRE2_ERROR_NOMATCH)
		return CGN_OK;
	if (rc < 0)
		return CGN_FAIL(err, TOO_LARGE,
			"splitting the text took too much (PCRE2 error %d) behind byte %zu of a part of %zu",
			rc, from, text.n);
	const PCRE2_SIZE *where = pcre2_get_ovector_pointer(m->data);
	*start = where[0];
	*end = where[1];
	return *end > *start && *start >= from
		? CGN_OK
		: CGN_FAIL(err, UNSUPPORTED, "a split pattern matched nothing at byte %zu", from);
}
