/* SPDX-License-Identifier: Apache-2.0 */
/* template lex: text and tags, with white space handled as "-", "+", trim_blocks and lstrip_blocks request.
 * Source of the rules: Jinja 3.1 documentation, "Whitespace Control". */
#include "template_priv.h"

static bool is_space(char c)
{
	return c == ' ' || (c >= '\t' && c <= '\r');
}

static bool is_word(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
		(unsigned char)c >= 0x80;
}

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

static char lex_peek(const struct lexer *lx, size_t ahead)
{
	return lx->src.n - lx->at > ahead ? lx->src.p[lx->at + ahead] : '\0';
}

static struct token token_of(struct lexer *lx, enum token_kind kind, size_t n)
{
	struct token t = {kind, (uint32_t)lx->at, {lx->src.p + lx->at, n}};
	lx->at += n;
	return t;
}

static struct token lex_wrong(struct lexer *lx, const char *why)
{
	lx->why = why;
	return (struct token){T_END, (uint32_t)lx->at, {NULL, 0}};
}

static void skip_space(struct lexer *lx)
{
	while (lx->at < lx->src.n && is_space(lx->src.p[lx->at]))
		lx->at++;
}

/* Trim the text behind the tag that just ended. */
static void trim_begin(struct lexer *lx)
{
	if (lx->trim)
		skip_space(lx);
	else if (lx->trim_line && lex_peek(lx, 0) == '\n')
		lx->at++;
	lx->trim = lx->trim_line = false;
}

/* Return the offset of the next "{{", "{%" or "{#", or the end. */
static size_t tag_at(const struct lexer *lx)
{
	for (size_t i = lx->at; i + 1 < lx->src.n; i++) {
		const char *brace = memchr(lx->src.p + i, '{', lx->src.n - 1 - i);
		if (brace == NULL)
			break;
		i = (size_t)(brace - lx->src.p);
		if (brace[1] == '{' || brace[1] == '%' || brace[1] == '#')
			return i;
	}
	return lx->src.n;
}

/* Trim the text before the tag at |tag|; the text begins at |from|. */
static size_t trim_end(const struct lexer *lx, size_t from, size_t tag)
{
	char kind = tag + 1 < lx->src.n ? lx->src.p[tag + 1] : '\0',
	     sign = tag + 2 < lx->src.n ? lx->src.p[tag + 2] : '\0';
	size_t end = tag;
	if (kind != '\0' && sign == '-') {
		while (end > from && is_space(lx->src.p[end - 1]))
			end--;
		return end;
	}
	if (kind == '{' || kind == '\0' || sign == '+')
		return tag;
	while (end > from && (lx->src.p[end - 1] == ' ' || lx->src.p[end - 1] == '\t'))
		end--;
	/* lstrip_blocks applies when only blanks precede the tag on its line. */
	return end == 0 || lx->src.p[end - 1] == '\n' ? end : tag;
}

static bool skip_comment(struct lexer *lx)
{
	const char *from = lx->src.p + lx->at + 2;
	const char *close = memmem(from, lx->src.n - lx->at - 2, "#}", 2);
	if (close == NULL)
		return false;
	lx->at = (size_t)(close - lx->src.p) + 2;
	lx->trim = close > from && close[-1] == '-';
	lx->trim_line = !(close > from && close[-1] == '+');
	trim_begin(lx);
	return true;
}

static void open_tag(struct lexer *lx, bool block)
{
	lx->where = block ? IN_BLOCK : IN_VAR;
	lx->depth = 0;
	lx->at += 2;
	if (lex_peek(lx, 0) == '-' || lex_peek(lx, 0) == '+')
		lx->at++;
}

/* Is the tag at lx->at "{% word %}"? If so, |*behind| is the position after it, with its trimming. */
static bool tag_is(struct lexer at, const char *word, struct lexer *behind)
{
	open_tag(&at, true);
	skip_space(&at);
	size_t n = strlen(word);
	if (at.src.n - at.at < n || memcmp(at.src.p + at.at, word, n) != 0)
		return false;
	at.at += n;
	skip_space(&at);
	at.trim = lex_peek(&at, 0) == '-';
	at.trim_line = lex_peek(&at, 0) != '+';
	at.at += lex_peek(&at, 0) == '-' || lex_peek(&at, 0) == '+';
	if (lex_peek(&at, 0) != '%' || lex_peek(&at, 1) != '}')
		return false;
	at.at += 2;
	*behind = at;
	return true;
}

static struct token raw_text(struct lexer *lx, struct lexer behind)
{
	*lx = behind;
	lx->trim_line = false; /* trim_blocks does not apply to it. */
	trim_begin(lx);
	size_t from = lx->at;
	for (struct lexer at = *lx; at.at < at.src.n; at.at++) {
		at.at = tag_at(&at);
		if (at.at < at.src.n && at.src.p[at.at + 1] == '%' && tag_is(at, "endraw", &behind)) {
			size_t end = trim_end(&at, from, at.at);
			*lx = behind;
			lx->where = IN_TEXT;
			trim_begin(lx);
			return (struct token){T_TEXT, (uint32_t)from, {lx->src.p + from, end - from}};
		}
	}
	return lex_wrong(lx, "{% raw %} without {% endraw %}");
}

static struct token lex_tag(struct lexer *lx)
{
	struct lexer behind;
	size_t tag = lx->at;
	bool block = lx->src.p[tag + 1] == '%';
	if (block && tag_is(*lx, "raw", &behind))
		return raw_text(lx, behind);
	open_tag(lx, block);
	return (struct token){block ? T_BLOCK : T_VAR, (uint32_t)tag, {lx->src.p + tag, 2}};
}

static struct token lex_text(struct lexer *lx)
{
	for (;;) {
		trim_begin(lx);
		size_t from = lx->at, tag = tag_at(lx), end = trim_end(lx, from, tag);
		lx->at = tag;
		if (end > from)
			return (struct token){T_TEXT, (uint32_t)from, {lx->src.p + from, end - from}};
		if (tag == lx->src.n)
			return (struct token){T_END, (uint32_t)tag, {NULL, 0}};
		if (lx->src.p[tag + 1] != '#')
			return lex_tag(lx);
		if (!skip_comment(lx))
			return lex_wrong(lx, "a comment that does not end");
	}
}

static bool lex_close(struct lexer *lx, struct token *out)
{
	bool block = lx->where == IN_BLOCK;
	char sign = lex_peek(lx, 0);
	size_t skip = sign == '-' || (block && sign == '+') ? 1 : 0;
	if (lx->depth > 0 || lex_peek(lx, skip) != (block ? '%' : '}') || lex_peek(lx, skip + 1) != '}')
		return false;
	*out = token_of(lx, block ? T_BLOCK_END : T_VAR_END, skip + 2);
	lx->trim = sign == '-';
	lx->trim_line = block && sign != '+';
	lx->where = IN_TEXT;
	return true;
}

static struct token lex_string(struct lexer *lx)
{
	char quote = lex_peek(lx, 0);
	size_t i = lx->at + 1;
	while (i < lx->src.n && lx->src.p[i] != quote)
		i += lx->src.p[i] == '\\' ? 2 : 1;
	if (i >= lx->src.n)
		return lex_wrong(lx, "a string that does not end");
	struct token t = {T_STR, (uint32_t)lx->at, {lx->src.p + lx->at + 1, i - lx->at - 1}};
	lx->at = i + 1;
	return t;
}

static struct token lex_number(struct lexer *lx)
{
	size_t n = 0;
	enum token_kind kind = T_INT;
	while (is_digit(lex_peek(lx, n)) || (lex_peek(lx, n) == '_' && is_digit(lex_peek(lx, n + 1))))
		n++;
	if (lex_peek(lx, n) == '.' && is_digit(lex_peek(lx, n + 1))) {
		kind = T_FLOAT;
		for (n++; is_digit(lex_peek(lx, n)); n++)
			;
	}
	size_t e = n + 1;
	if ((lex_peek(lx, n) | 0x20) == 'e') {
		e += lex_peek(lx, e) == '-' || lex_peek(lx, e) == '+';
		if (is_digit(lex_peek(lx, e))) {
			kind = T_FLOAT;
			for (n = e; is_digit(lex_peek(lx, n)); n++)
				;
		}
	}
	return token_of(lx, kind, n);
}

static struct token lex_operator(struct lexer *lx)
{
	static const char *const twos[] = {"==", "!=", "<=", ">=", "//", "**"};
	static const char ones[] = "+-*/%~<>=.,:|()[]{}";
	char two[3] = {lex_peek(lx, 0), lex_peek(lx, 1), '\0'};
	for (size_t i = 0; i < CGN_COUNT(twos); i++)
		if (strcmp(two, twos[i]) == 0)
			return token_of(lx, T_OP, 2);
	if (two[0] == '\0' || strchr(ones, two[0]) == NULL)
		return lex_wrong(lx, "a character that has no meaning here");
	lx->depth += strchr("([{", two[0]) != NULL;
	if (strchr(")]}", two[0]) != NULL && lx->depth > 0)
		lx->depth--;
	return token_of(lx, T_OP, 1);
}

struct token lex_next(struct lexer *lx)
{
	struct token t;
	if (lx->where == IN_TEXT)
		return lex_text(lx);
	skip_space(lx);
	if (lx->at >= lx->src.n)
		return lex_wrong(lx, "a tag that does not end");
	if (lex_close(lx, &t))
		return t;
	char c = lex_peek(lx, 0);
	if (c == '"' || c == '\'')
		return lex_string(lx);
	if (is_digit(c))
		return lex_number(lx);
	size_t n = 0;
	while (is_word(lex_peek(lx, n)))
		n++;
	return n > 0 ? token_of(lx, T_NAME, n) : lex_operator(lx);
}
