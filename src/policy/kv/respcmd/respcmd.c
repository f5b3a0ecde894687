/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/kv/respcmd/respcmd.h"

#include <stdlib.h>

#include "base/core/err.h"
#include "base/resp/resp.h"

#define R RESPCMD_READS
#define W RESPCMD_WRITES
#define L RESPCMD_FAST
#define A RESPCMD_EARLY
const struct respcmd_row respcmd_rows[RESPCMD_UNKNOWN] = {
#define CMD(id, name, arity, flags, first, last, step, value, value_step) \
	{name, arity, flags, first, last, step, value, value_step},
#include "policy/kv/respcmd/respcmd.def"
#undef CMD
};
#undef R
#undef W
#undef L
#undef A

enum respcmd_id respcmd_find(struct cgn_str name)
{
	for (int i = 0; i < RESPCMD_UNKNOWN; i++)
		if (cgn_str_eq_nocase(name, cgn_str_of(respcmd_rows[i].name)))
			return (enum respcmd_id)i;
	return RESPCMD_UNKNOWN;
}

bool respcmd_arity_ok(enum respcmd_id id, size_t n_args)
{
	int arity = respcmd_rows[id].arity;
	return arity >= 0 ? n_args == (size_t)arity : n_args >= (size_t)-arity;
}

void respcmd_init(struct respcmd *c)
{
	*c = (struct respcmd){.cap = CGN_COUNT(c->few), .id = RESPCMD_UNKNOWN};
	c->args = c->few;
}

void respcmd_fini(struct respcmd *c)
{
	if (c->args != c->few)
		free(c->args);
	respcmd_init(c);
}

void respcmd_reset(struct respcmd *c)
{
	bool wary = c->wary;
	if (c->args != c->few)
		respcmd_fini(c);
	c->due = c->n_apart = c->n = 0;
	c->at = c->value = 0;
	c->crlf = false;
	c->id = RESPCMD_UNKNOWN;
	c->wary = wary;
}

static bool args_add(struct respcmd *c, struct respcmd_arg a)
{
	if (c->n == c->cap) {
		bool few = c->args == c->few;
		struct respcmd_arg *more = realloc(few ? NULL : c->args, 2 * c->cap * sizeof *more);
		if (more == NULL)
			return false;
		if (few)
			memcpy(more, c->few, sizeof c->few);
		c->args = more;
		c->cap *= 2;
	}
	c->args[c->n++] = a;
	return true;
}

/* ---- an inline command: words, some of them in quotes ---- */

static enum respcmd_outcome reply_bad(const char **why, const char *what)
{
	*why = what;
	return RESPCMD_BAD;
}

/* Return the end of the word at |i|; n + 1: a quote does not end, or contains an escape, which only a copy of
 * the text could resolve. */
static size_t word_end(const char *p, size_t n, size_t i)
{
	if (p[i] != '"' && p[i] != '\'') {
		while (i < n && p[i] != ' ' && p[i] != '\t')
			i++;
		return i;
	}
	for (size_t to = i + 1; to < n && p[to] != '\\'; to++)
		if (p[to] == p[i])
			return to + 1 == n || p[to + 1] == ' ' || p[to + 1] == '\t' ? to + 1 : n + 1;
	return n + 1;
}

static enum respcmd_outcome count_words(struct respcmd *c, const char *p, size_t n, const char **why)
{
	for (size_t i = 0; i < n;) {
		if (p[i] == ' ' || p[i] == '\t') {
			i++;
			continue;
		}
		size_t end = word_end(p, n, i);
		if (end > n)
			return reply_bad(why, "Protocol error: unbalanced quotes in request");
		bool quoted = p[i] == '"' || p[i] == '\'';
		if (c->n == RESPCMD_MAX_ARGS ||
			!args_add(c,
				(struct respcmd_arg){(uint32_t)(i + quoted),
					(uint32_t)(end - i - 2 * quoted)}))
			return reply_bad(why, "Protocol error: too many words in a line");
		i = end;
	}
	return RESPCMD_GOT;
}

static enum respcmd_outcome line_step(struct respcmd *c, struct cgn_str text, const char **why)
{
	size_t look = text.n < RESPCMD_MAX_LINE ? text.n : RESPCMD_MAX_LINE;
	const char *lf = memchr(text.p, '\n', look);
	if (lf == NULL && look == RESPCMD_MAX_LINE)
		return reply_bad(why, "Protocol error: too big inline request");
	if (lf == NULL)
		return RESPCMD_MORE;
	size_t n = (size_t)(lf - text.p);
	enum respcmd_outcome o = count_words(c, text.p, n - (n > 0 && lf[-1] == '\r'), why);
	c->at = n + 1;
	if (o == RESPCMD_GOT && c->n > 0)
		c->id = respcmd_find(respcmd_arg(c, text, 0));
	return o;
}

/* ---- an array of bulks ---- */

static bool is_value(const struct respcmd *c)
{
	if (c->id == RESPCMD_UNKNOWN || respcmd_rows[c->id].value == 0)
		return false;
	uint32_t first = (uint32_t)respcmd_rows[c->id].value, step = (uint32_t)respcmd_rows[c->id].value_step;
	return c->n == first || (step > 0 && c->n > first && (c->n - first) % step == 0);
}

static enum respcmd_outcome array_begin(struct respcmd *c, struct cgn_str text, const char **why)
{
	struct cgn_str rest = text;
	struct resp_value v;
	const char *what;
	enum resp_outcome o = resp_take_head(&rest, &v, &what);
	if (o == RESP_MORE)
		return RESPCMD_MORE;
	if (o == RESP_BAD || v.n > RESPCMD_MAX_ARGS)
		return reply_bad(why, "Protocol error: invalid multibulk length");
	if (c->wary && v.n > RESPCMD_WARY_ARGS)
		return reply_bad(why, "Protocol error: unauthenticated multibulk length");
	c->at = text.n - rest.n;
	c->due = (uint32_t)v.n;
	return RESPCMD_GOT;
}

/* Begin a value of |n| bytes that follows at |at| and stays apart from the text. */
static enum respcmd_outcome value_apart(struct respcmd *c, size_t at, size_t n, const char **why)
{
	if (!args_add(c, (struct respcmd_arg){RESPCMD_IS_APART, c->n_apart}))
		return reply_bad(why, "out of memory");
	c->n_apart++;
	c->at = at;
	c->value = n;
	c->crlf = true;
	return RESPCMD_VALUE;
}

static enum respcmd_outcome bulk_begin(struct respcmd *c, struct cgn_str text, struct resp_value *v,
	struct cgn_str *rest, const char **why)
{
	const char *what;
	if (rest->n > 0 && rest->p[0] != '$')
		return reply_bad(why, "Protocol error: expected '$'");
	enum resp_outcome o = resp_take_head(rest, v, &what);
	if (o == RESP_MORE)
		return RESPCMD_MORE;
	if (o == RESP_BAD || v->type != RESP_BULK || v->n > RESPCMD_MAX_VALUE)
		return reply_bad(why, "Protocol error: invalid bulk length");
	if (c->wary && v->n > RESPCMD_WARY_BULK)
		return reply_bad(why, "Protocol error: unauthenticated bulk length");
	if (v->n > RESPCMD_APART && is_value(c))
		return value_apart(c, text.n - rest->n, v->n, why);
	if (text.n - rest->n + v->n > RESPCMD_MAX_TEXT)
		return reply_bad(why, "Protocol error: a command of more than 1 MiB beside its values");
	return RESPCMD_GOT;
}

static enum respcmd_outcome bulk_step(struct respcmd *c, struct cgn_str text, const char **why)
{
	struct cgn_str rest = {text.p + c->at, text.n - c->at};
	struct resp_value v;
	enum respcmd_outcome o = bulk_begin(c, text, &v, &rest, why);
	if (o != RESPCMD_GOT)
		return o;
	if (rest.n < v.n + 2)
		return RESPCMD_MORE;
	if (rest.p[v.n] != '\r' || rest.p[v.n + 1] != '\n')
		return reply_bad(why, "Protocol error: a bulk does not end where it said");
	if (!args_add(c, (struct respcmd_arg){(uint32_t)(rest.p - text.p), (uint32_t)v.n}))
		return reply_bad(why, "out of memory");
	c->at = (size_t)(rest.p - text.p) + v.n + 2;
	if (c->n == 1)
		c->id = respcmd_find(respcmd_arg(c, text, 0));
	return RESPCMD_GOT;
}

/* Read the end of a value that came in pieces. */
static enum respcmd_outcome crlf_step(struct respcmd *c, struct cgn_str text, const char **why)
{
	if (text.n < c->at + 2)
		return RESPCMD_MORE;
	if (text.p[c->at] != '\r' || text.p[c->at + 1] != '\n')
		return reply_bad(why, "Protocol error: a bulk does not end where it said");
	c->at += 2;
	c->crlf = false;
	return RESPCMD_GOT;
}

enum respcmd_outcome respcmd_step(struct respcmd *c, struct cgn_str text, const char **why)
{
	enum respcmd_outcome o = RESPCMD_GOT;
	if (text.n == 0)
		return RESPCMD_MORE;
	if (c->at == 0 && text.p[0] != '*')
		return line_step(c, text, why);
	if (c->at == 0)
		o = array_begin(c, text, why);
	while (o == RESPCMD_GOT && (c->crlf || c->n < c->due))
		o = c->crlf ? crlf_step(c, text, why) : bulk_step(c, text, why);
	return o;
}

struct cgn_str respcmd_arg(const struct respcmd *c, struct cgn_str text, size_t i)
{
	CGN_MUST(i < c->n);
	if (c->args[i].at == RESPCMD_IS_APART)
		return (struct cgn_str){"", 0};
	return (struct cgn_str){text.p + c->args[i].at, c->args[i].n};
}
