/* SPDX-License-Identifier: Apache-2.0 */
/* format: detects whether a template loops over the parts of a message's content, as vLLM does in the syntax
 * tree (chat_utils.py, _detect_content_format). It collects the names of the messages (messages itself and
 * variables set to it), the loop variables over these, and variables set to those, and then looks for a loop
 * over .content or ['content'] of one of them. Slices and filters after a name are skipped. */
#include "policy/text/prompt/prompt.h"

#define NAMES_MAX 64

struct names {
	struct cgn_str v[NAMES_MAX];
	size_t n;
};

struct words {
	struct cgn_str rest; /* Rest of one {% ... %}. */
};

static bool is_word_char(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/* Return a name, a string with its quotes, or one other character. */
static struct cgn_str next_word(struct words *w)
{
	struct cgn_str s = w->rest;
	size_t i = 0, n = 0;
	while (i < s.n && (s.p[i] == ' ' || s.p[i] == '\t' || s.p[i] == '\n' || s.p[i] == '\r'))
		i++;
	if (i == s.n)
		return (struct cgn_str){NULL, 0};
	if (s.p[i] == '"' || s.p[i] == '\'')
		for (n = 1; i + n < s.n && s.p[i + n] != s.p[i]; n++)
			n += s.p[i + n] == '\\';
	else
		while (i + n < s.n && is_word_char(s.p[i + n]))
			n++;
	bool quoted = s.p[i] == '"' || s.p[i] == '\'';
	n = quoted || n == 0 ? n + 1 : n;
	n = n < s.n - i ? n : s.n - i;
	w->rest = (struct cgn_str){s.p + i + n, s.n - i - n};
	return (struct cgn_str){s.p + i, n};
}

static bool word_is(struct words *w, const char *text)
{
	struct words at = *w;
	if (!cgn_str_is(next_word(&at), text))
		return false;
	*w = at;
	return true;
}

static bool is_content(struct cgn_str word)
{
	return cgn_str_is(word, "'content'") || cgn_str_is(word, "\"content\"");
}

/* Skip to the end of an open bracket. Return true when it contains a ':', which makes it a slice. */
static bool skip_brackets(struct words *w)
{
	bool slice = false;
	unsigned depth = 1;
	for (struct cgn_str word = next_word(w); word.p != NULL; word = next_word(w)) {
		depth += cgn_str_is(word, "[") || cgn_str_is(word, "(");
		depth -= cgn_str_is(word, "]") || cgn_str_is(word, ")");
		slice = slice || (depth == 1 && cgn_str_is(word, ":"));
		if (depth == 0)
			break;
	}
	return slice;
}

/* Skip .content, ['content'] or .get... after a name; vLLM accepts only the first two. */
static bool take_content(struct words *w)
{
	struct words at = *w;
	bool dotted = word_is(&at, ".") && cgn_str_is(next_word(&at), "content");
	if (!dotted) {
		at = *w;
		if (!word_is(&at, "[") || !is_content(next_word(&at)) || !word_is(&at, "]"))
			return false;
	}
	*w = at;
	return true;
}

/* Skip slices and filters, and return true at the end of the expression: the block's end, or the "if" or
 * "recursive" of a loop. */
static bool only_dressing(struct words *w)
{
	for (;;) {
		if (word_is(w, "[")) {
			if (!skip_brackets(w))
				return false;
		} else if (word_is(w, "|")) {
			(void)next_word(w);
			if (word_is(w, "("))
				(void)skip_brackets(w);
		} else {
			struct cgn_str word = next_word(w);
			if (cgn_str_is(word, "-") || cgn_str_is(word, "+")) /* The start of "-%}". */
				return next_word(w).p == NULL;
			return word.p == NULL || cgn_str_is(word, "if") || cgn_str_is(word, "recursive");
		}
	}
}

static bool names_have(const struct names *names, struct cgn_str name)
{
	for (size_t i = 0; i < names->n; i++)
		if (cgn_str_eq(names->v[i], name))
			return true;
	return false;
}

static bool names_add(struct names *names, struct cgn_str name)
{
	if (name.n == 0 || !is_word_char(name.p[0]) || names_have(names, name) || names->n == NAMES_MAX)
		return false;
	names->v[names->n++] = name;
	return true;
}

/* Return true when |expr| is one of |names|, or with |content| its content, with or without slices and
 * filters. */
static bool stands_for(struct words expr, const struct names *names, bool content)
{
	if (!names_have(names, next_word(&expr)))
		return false;
	if (content && !take_content(&expr))
		return false;
	return only_dressing(&expr);
}

/* Return the next {% ... %} without its delimiters; comments are skipped. */
static bool next_block(struct cgn_str *source, struct words *out)
{
	while (source->n >= 2) {
		bool comment = cgn_str_starts(*source, "{#");
		if (!comment && !cgn_str_starts(*source, "{%")) {
			source->p++;
			source->n--;
			continue;
		}
		const char *end = memmem(source->p + 2, source->n - 2, comment ? "#}" : "%}", 2);
		if (end == NULL)
			return false;
		struct cgn_str inner = {source->p + 2, (size_t)(end - source->p) - 2};
		source->n -= (size_t)(end - source->p) + 2;
		source->p = end + 2;
		if (comment)
			continue;
		if (inner.n > 0 && (inner.p[0] == '-' || inner.p[0] == '+'))
			inner = (struct cgn_str){inner.p + 1, inner.n - 1};
		*out = (struct words){inner};
		return true;
	}
	return false;
}

/* Return NAME of {% set NAME = expr %} or {% for NAME in expr %}, and the expression in |*expr|. */
static struct cgn_str bound_name(struct words block, bool loop, struct words *expr)
{
	if (!word_is(&block, loop ? "for" : "set"))
		return (struct cgn_str){NULL, 0};
	struct cgn_str name = next_word(&block);
	if (!word_is(&block, loop ? "in" : "="))
		return (struct cgn_str){NULL, 0};
	*expr = block;
	return name;
}

/* Add the names that {% set %} or, with |loop|, {% for %} binds to one of |from| to |to|. Return true when
 * one was new. */
static bool names_gather(struct cgn_str source, const struct names *from, struct names *to, bool loop)
{
	struct words block, expr;
	bool grew = false;
	while (next_block(&source, &block)) {
		struct cgn_str name = bound_name(block, loop, &expr);
		if (name.p != NULL && stands_for(expr, from, false))
			grew = names_add(to, name) || grew;
	}
	return grew;
}

enum prompt_format prompt_format_of(struct cgn_str source)
{
	struct names messages = {.v = {CGN_STR("messages")}, .n = 1}, message = {.n = 0};
	struct words block, expr;
	struct cgn_str rest = source;
	while (names_gather(source, &messages, &messages, false))
		;
	(void)names_gather(source, &messages, &message, true);
	while (names_gather(source, &message, &message, false))
		;
	while (next_block(&rest, &block))
		if (bound_name(block, true, &expr).p != NULL && stands_for(expr, &message, true))
			return PROMPT_PARTS;
	return PROMPT_STRING;
}
