/* SPDX-License-Identifier: Apache-2.0 */
/* template parse, statements: tags and the text between them become lists of nodes. Expressions are in
 * expr.c. */
#include <stdlib.h>

#include "parse_priv.h"

static const char *const ends_of_if[] = {"elif", "else", "endif", NULL};
static const char *const ends_of_else[] = {"endif", NULL};
static const char *const ends_of_for[] = {"else", "endfor", NULL};

static bool take_block_end(struct parser *ps)
{
	return ps->tok.kind == T_BLOCK_END ? parse_step(ps) : parse_expected(ps, "%}");
}

/* Parse a target of set and for: a name, "a, b", "(a, b)", or where |attr| allows it, namespace.attribute. */
static bool parse_target(struct parser *ps, bool attr, struct node **out)
{
	struct node *first = NULL, **tail = &first;
	size_t at = ps->tok.at, n = 0;
	bool paren = at_op(ps, "("), tuple = paren;
	if (paren && !parse_step(ps))
		return false;
	do {
		struct node *name;
		struct cgn_str text;
		if (n > 0 && (!parse_step(ps) || ps->tok.kind != T_NAME)) { /* "a," is a tuple too. */
			tuple = true;
			break;
		}
		name = node_new(ps, N_NAME, ps->tok.at);
		if (name == NULL || !take_ident(ps, &text) || !parse_symbol(ps, text, &name->sym))
			return false;
		if (attr && n == 0 && at_op(ps, ".")) {
			struct node *member = node_new(ps, N_ATTR, ps->tok.at);
			if (member == NULL || !parse_step(ps) || !take_ident(ps, &member->text))
				return false;
			member->a = name;
			*out = member;
			return true;
		}
		*tail = name;
		tail = &name->next;
		n++;
	} while (at_op(ps, ","));
	if (ps->failed || (paren && !take_op(ps, ")")))
		return false;
	if (n == 1 && !tuple) {
		*out = first;
		return true;
	}
	struct node *list = node_new(ps, N_TUPLE, at);
	if (list == NULL)
		return false;
	list->list = first;
	list->n = n;
	*out = list;
	return true;
}

/* Expect "end"; the opening tag was consumed before. */
static bool take_end(struct parser *ps, const char *end)
{
	if (!at_name(ps, end))
		return parse_expected(ps, end);
	return parse_step(ps) && take_block_end(ps);
}

static bool parse_body(struct parser *ps, const char *const *ends, struct node **out);

static bool parse_until(struct parser *ps, const char *end, struct node **out)
{
	const char *const ends[] = {end, NULL};
	return parse_body(ps, ends, out) && take_end(ps, end);
}

static bool parse_if(struct parser *ps, struct node *n)
{
	struct node *arm = n;
	for (;;) {
		if (!parse_step(ps) || !parse_expr(ps, &arm->a) || !take_block_end(ps) ||
			!parse_body(ps, ends_of_if, &arm->list))
			return false;
		if (!at_name(ps, "elif"))
			break;
		arm->b = node_new(ps, N_IF, ps->tok.at);
		if ((arm = arm->b) == NULL)
			return false;
	}
	if (at_name(ps, "else") &&
		!(parse_step(ps) && take_block_end(ps) && parse_body(ps, ends_of_else, &arm->body)))
		return false;
	return take_end(ps, "endif");
}

static bool parse_for(struct parser *ps, struct node *n)
{
	if (!parse_step(ps) || !parse_target(ps, false, &n->a))
		return false;
	if (!at_name(ps, "in"))
		return parse_expected(ps, "in");
	if (!parse_step(ps) || !parse_tuple(ps, false, &n->b))
		return false;
	if (at_name(ps, "if") && !(parse_step(ps) && parse_or(ps, &n->c)))
		return false;
	/* "for x in a if b else c" is a conditional expression, not a filter. */
	if (at_name(ps, "else") && n->c != NULL) {
		struct node *cond = node_new(ps, N_COND, ps->tok.at);
		if (cond == NULL || !parse_step(ps) || !parse_expr(ps, &cond->c))
			return false;
		cond->a = n->c;
		cond->b = n->b;
		n->b = cond;
		n->c = NULL;
	}
	if (at_name(ps, "recursive")) {
		n->flag = true;
		if (!parse_step(ps))
			return false;
	}
	ps->loops++;
	bool ok = take_block_end(ps) && parse_body(ps, ends_of_for, &n->list);
	ps->loops--;
	if (ok && at_name(ps, "else")) {
		static const char *const end[] = {"endfor", NULL};
		ok = parse_step(ps) && take_block_end(ps) && parse_body(ps, end, &n->body);
	}
	return ok && take_end(ps, "endfor");
}

static bool parse_set(struct parser *ps, struct node *n)
{
	if (!parse_step(ps) || !parse_target(ps, true, &n->a))
		return false;
	if (at_op(ps, "="))
		return parse_step(ps) && parse_tuple(ps, true, &n->b) && take_block_end(ps);
	n->kind = N_SET_BLOCK;
	if (at_op(ps, "|") && !parse_filters(ps, NULL, &n->c))
		return false;
	return take_block_end(ps) && parse_until(ps, "endset", &n->list);
}

static bool parse_parameters(struct parser *ps, struct node *n)
{
	struct node **tail = &n->body;
	bool defaults = false;
	if (!take_op(ps, "("))
		return false;
	while (!at_op(ps, ")")) {
		struct node *p = node_new(ps, N_NAME, ps->tok.at);
		struct cgn_str name;
		if (p == NULL || !take_ident(ps, &name) || !parse_symbol(ps, name, &p->sym))
			return false;
		p->text = name;
		for (const struct node *other = n->body; other != NULL; other = other->next)
			if (other->sym == p->sym)
				return parse_fail(ps, p->at, "the parameter \"%.*s\" is named twice",
					CGN_STR_ARG(name));
		if (at_op(ps, "=") && !(parse_step(ps) && parse_expr(ps, &p->a)))
			return false;
		if (p->a == NULL && defaults)
			return parse_fail(ps, p->at, "a parameter without a default behind one that has one");
		defaults |= p->a != NULL;
		*tail = p;
		tail = &p->next;
		n->n++;
		if (!at_op(ps, ")") && !take_op(ps, ","))
			return false;
	}
	return parse_step(ps);
}

/* Parse the body, and note whether it uses varargs and kwargs. */
static bool parse_macro_body(struct parser *ps, struct node *n, const char *end)
{
	bool varargs = ps->varargs, kwargs = ps->kwargs;
	size_t loops = ps->loops;
	ps->varargs = ps->kwargs = false;
	ps->loops = 0;
	if (!take_block_end(ps) || !parse_until(ps, end, &n->list))
		return false;
	n->varargs = ps->varargs;
	n->kwargs = ps->kwargs;
	ps->varargs |= varargs;
	ps->kwargs |= kwargs;
	ps->loops = loops;
	return true;
}

static bool parse_macro(struct parser *ps, struct node *n)
{
	return parse_step(ps) && take_ident(ps, &n->text) && parse_symbol(ps, n->text, &n->sym) &&
		parse_parameters(ps, n) && parse_macro_body(ps, n, "endmacro");
}

static bool parse_call_block(struct parser *ps, struct node *n)
{
	if (!parse_step(ps) || (at_op(ps, "(") && !parse_parameters(ps, n)))
		return false;
	size_t at = ps->tok.at;
	if (!parse_expr(ps, &n->a))
		return false;
	if (n->a->kind != N_CALL)
		return parse_fail(ps, at, "{%% call %%} needs the call of a macro");
	return parse_macro_body(ps, n, "endcall");
}

static bool parse_filter_block(struct parser *ps, struct node *n)
{
	return parse_step(ps) && parse_filters(ps, NULL, &n->c) && take_block_end(ps) &&
		parse_until(ps, "endfilter", &n->list);
}

static bool parse_with(struct parser *ps, struct node *n)
{
	struct node **tail = &n->list;
	if (!parse_step(ps))
		return false;
	while (ps->tok.kind != T_BLOCK_END) {
		struct node *set = node_new(ps, N_SET, ps->tok.at);
		if (set == NULL || !parse_target(ps, false, &set->a) || !take_op(ps, "=") ||
			!parse_expr(ps, &set->b))
			return false;
		*tail = set;
		tail = &set->next;
		if (ps->tok.kind != T_BLOCK_END && !take_op(ps, ","))
			return false;
	}
	return take_block_end(ps) && parse_until(ps, "endwith", tail);
}

static bool parse_generation(struct parser *ps, struct node *n)
{
	return parse_step(ps) && take_block_end(ps) && parse_until(ps, "endgeneration", &n->list);
}

static bool parse_jump(struct parser *ps, struct node *n)
{
	if (ps->loops == 0)
		return parse_fail(ps, n->at, "%s outside of a loop",
			n->kind == N_BREAK ? "break" : "continue");
	return parse_step(ps) && take_block_end(ps);
}

static const struct {
	const char *name;
	enum node_kind kind;
	bool (*parse)(struct parser *ps, struct node *n);
} statements[] = {
	{"if", N_IF, parse_if},
	{"for", N_FOR, parse_for},
	{"set", N_SET, parse_set},
	{"macro", N_MACRO, parse_macro},
	{"call", N_CALL_BLOCK, parse_call_block},
	{"filter", N_FILTER_BLOCK, parse_filter_block},
	{"with", N_SCOPE, parse_with},
	{"generation", N_SCOPE, parse_generation},
	{"break", N_BREAK, parse_jump},
	{"continue", N_CONTINUE, parse_jump},
};

static bool parse_statement(struct parser *ps, struct node **out)
{
	if (ps->tok.kind != T_NAME)
		return parse_expected(ps, "a statement");
	for (size_t i = 0; i < CGN_COUNT(statements); i++) {
		if (!at_name(ps, statements[i].name))
			continue;
		*out = node_new(ps, statements[i].kind, ps->tok.at);
		return *out != NULL && statements[i].parse(ps, *out);
	}
	return parse_fail(ps, ps->tok.at, "the statement \"%.*s\" is not supported here",
		CGN_STR_ARG(ps->tok.s));
}

static bool parse_output(struct parser *ps, struct node **out)
{
	*out = node_new(ps, N_OUTPUT, ps->tok.at);
	if (*out == NULL || !parse_step(ps) || !parse_tuple(ps, true, &(*out)->a))
		return false;
	return ps->tok.kind == T_VAR_END ? parse_step(ps) : parse_expected(ps, "}}");
}

static bool parse_text(struct parser *ps, struct node **out)
{
	*out = node_new(ps, N_TEXT, ps->tok.at);
	if (*out == NULL)
		return false;
	(*out)->text = ps->tok.s;
	return parse_step(ps);
}

static bool is_end(const struct parser *ps, const char *const *ends)
{
	for (; *ends != NULL; ends++)
		if (at_name(ps, *ends))
			return true;
	return false;
}

static bool body_goes_on(struct parser *ps, const char *const *ends, struct node **tail)
{
	for (; ps->tok.kind != T_END || ends != NULL; tail = &(*tail)->next) {
		if (ps->tok.kind == T_END)
			return parse_fail(ps, ps->tok.at, "%s is missing",
				ends[ends[1] == NULL              ? 0
						: ends[2] == NULL ? 1
								  : 2]);
		if (ps->tok.kind == T_BLOCK) {
			if (!parse_step(ps))
				return false;
			if (ends != NULL && is_end(ps, ends))
				return true;
			if (!parse_statement(ps, tail))
				return false;
		} else if (!(ps->tok.kind == T_VAR ? parse_output(ps, tail) : parse_text(ps, tail))) {
			return false;
		}
	}
	return true;
}

/* Parse up to a tag whose name is in |ends| (NULL-terminated; NULL: the end of the source). The tag's name is
 * the look-ahead token then. */
static bool parse_body(struct parser *ps, const char *const *ends, struct node **out)
{
	*out = NULL;
	if (++ps->depth > MAX_NEST)
		return parse_fail(ps, ps->tok.at, "blocks are nested more than %d deep", MAX_NEST);
	bool ok = body_goes_on(ps, ends, out);
	ps->depth--;
	return ok;
}

cgn_rc parse_source(struct template *t, struct cgn_err *err)
{
	struct parser ps = {.t = t, .lx = {.src = t->source}, .err = err, .rc = CGN_OK};
	/* In the order of SYM_*. */
	static const char *const first[] = {"loop", "caller", "varargs", "kwargs"};
	uint32_t sym;
	for (size_t i = 0; i < CGN_COUNT(first); i++)
		if (!parse_symbol(&ps, cgn_str_of(first[i]), &sym))
			return ps.rc;
	if (parse_step(&ps) && parse_body(&ps, NULL, &t->body))
		return CGN_OK;
	return ps.rc;
}
