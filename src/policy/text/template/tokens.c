/* SPDX-License-Identifier: Apache-2.0 */
/* template tokens, for the parser: one token of look-ahead, failures, nodes and names. */
#include "parse_priv.h"

bool parse_fail(struct parser *ps, size_t at, const char *fmt, ...)
{
	char what[300];
	if (ps->failed)
		return false;
	va_list ap;
	va_start(ap, fmt);
	(void)vsnprintf(what, sizeof what, fmt, ap);
	va_end(ap);
	ps->failed = true;
	ps->rc = template_fail(ps->t->source, at, ps->err, CGN_INVALID, what);
	return false;
}

void *parse_get(struct parser *ps, size_t n)
{
	void *p = cgn_arena_zero(&ps->t->arena, n);
	if (p == NULL && !ps->failed) {
		ps->failed = true;
		ps->rc = CGN_FAIL(ps->err, NO_MEMORY, "no memory to compile the chat template");
	}
	return p;
}

struct node *node_new(struct parser *ps, enum node_kind kind, size_t at)
{
	struct node *n = parse_get(ps, sizeof *n);
	if (n == NULL)
		return NULL;
	n->kind = kind;
	n->at = (uint32_t)at;
	return n;
}

bool parse_step(struct parser *ps)
{
	ps->tok = lex_next(&ps->lx);
	if (ps->tok.kind == T_END && ps->lx.why != NULL)
		return parse_fail(ps, ps->tok.at, "%s", ps->lx.why);
	return true;
}

bool at_op(const struct parser *ps, const char *op)
{
	return ps->tok.kind == T_OP && cgn_str_is(ps->tok.s, op);
}

bool at_name(const struct parser *ps, const char *name)
{
	return ps->tok.kind == T_NAME && cgn_str_is(ps->tok.s, name);
}

bool parse_expected(struct parser *ps, const char *what)
{
	if (ps->tok.kind == T_END)
		return parse_fail(ps, ps->tok.at, "expected %s before the end", what);
	struct cgn_str s = ps->tok.s;
	return parse_fail(ps, ps->tok.at, "expected %s, got \"%.*s\"", what, (int)(s.n < 40 ? s.n : 40), s.p);
}

bool take_op(struct parser *ps, const char *op)
{
	return at_op(ps, op) ? parse_step(ps) : parse_expected(ps, op);
}

bool take_ident(struct parser *ps, struct cgn_str *out)
{
	if (ps->tok.kind != T_NAME)
		return parse_expected(ps, "a name");
	*out = ps->tok.s;
	return parse_step(ps);
}

bool parse_symbol(struct parser *ps, struct cgn_str name, uint32_t *out)
{
	struct template *t = ps->t;
	ps->varargs |= cgn_str_is(name, "varargs");
	ps->kwargs |= cgn_str_is(name, "kwargs");
	for (size_t i = 0; i < t->n_names; i++)
		if (cgn_str_eq(t->names[i], name)) {
			*out = (uint32_t)i;
			return true;
		}
	if ((t->n_names & (t->n_names - 1)) == 0) { /* Full at each power of two. */
		struct cgn_str *grown = parse_get(ps, (t->n_names == 0 ? 1 : 2 * t->n_names) * sizeof *grown);
		if (grown == NULL)
			return false;
		if (t->n_names > 0)
			memcpy(grown, t->names, t->n_names * sizeof *grown);
		t->names = grown;
	}
	if (t->n_names >= 4096)
		return parse_fail(ps, ps->tok.at, "more than 4096 different names");
	t->names[t->n_names] = name;
	*out = (uint32_t)t->n_names++;
	return true;
}
