/* SPDX-License-Identifier: Apache-2.0 */
/* template nodes: a compiled template, made by the parser (parse.c, expr.c) from the lexer's tokens (lex.c). */
#pragma once
#include "policy/text/template/template.h"
#include "policy/text/template/value_priv.h"

#define TEMPLATE_TAG 0x4a494e4aU
/* Nesting of the source (parentheses, blocks), and operators chained in one expression. */
#define MAX_NEST 150

enum node_kind {
	/* expressions */
	N_CONST,
	N_NAME,
	N_ATTR,
	N_ITEM,
	N_SLICE,
	N_CALL,
	N_FILTER,
	N_TEST,
	N_LIST,
	N_TUPLE,
	N_DICT,
	N_NOT,
	N_NEG,
	N_POS,
	N_BIN,
	N_JOIN,
	N_AND,
	N_OR,
	N_COMPARE,
	N_COND,
	/* parts of argument lists: name=value, *list, **dict */
	N_NAMED,
	N_SPREAD,
	N_SPREAD_NAMED,
	/* statements */
	N_TEXT,
	N_OUTPUT,
	N_IF,
	N_FOR,
	N_SET,
	N_SET_BLOCK,
	N_MACRO,
	N_CALL_BLOCK,
	N_FILTER_BLOCK,
	N_SCOPE,
	N_BREAK,
	N_CONTINUE
};
enum op {
	OP_ADD,
	OP_SUB,
	OP_MUL,
	OP_DIV,
	OP_FLOOR,
	OP_REM,
	OP_POW,
	OP_EQ,
	OP_NE,
	OP_LT,
	OP_GT,
	OP_LE,
	OP_GE,
	OP_IN,
	OP_NOT_IN
};

/* Meaning of the children, by kind:
 *   NAME sym | ATTR a.text | ITEM a[b] | SLICE a[b:c:d] | CALL a(list) | FILTER a|id(list) | TEST a is
 *   id(list) | NOT NEG POS a | BIN a op b
 *   JOIN list, ~ between | AND OR a b | COMPARE a then list of (op, a) | COND b if a else c | LIST TUPLE list
 *   | DICT list of (a key, b value)
 *   TEXT text | OUTPUT a | IF a: list, else b (an IF) or body | FOR a (target) b (iterable) c (if) list, else
 *   body | SET a (target) b
 *   SET_BLOCK a, body list, c (filter chain over NULL) | MACRO sym text, parameters in body, list |
 *   CALL_BLOCK a (a CALL), parameters in body, list
 *   FILTER_BLOCK c (filter chain over NULL), list | SCOPE list (with: SETs first) */
struct node {
	enum node_kind kind;
	enum op op;
	uint16_t id;
	bool flag;            /* TEST: negated; FOR: recursive; MACRO, CALL_BLOCK: see the next two */
	bool varargs, kwargs; /* The body uses these names. */
	uint32_t at;          /* Byte offset in the source. */
	uint32_t sym;
	size_t n; /* Length of |list|, where it holds arguments or elements. */
	struct node *a, *b, *c, *d, *list, *body, *next;
	struct cgn_str text;
	struct value value; /* CONST */
};

struct template
{
	uint32_t tag;
	struct cgn_arena arena;
	struct cgn_str source; /* Normalised. */
	struct node *body;
	struct cgn_str *names; /* Names of symbols. */
	size_t n_names;
};
enum { SYM_LOOP, SYM_CALLER, SYM_VARARGS, SYM_KWARGS }; /* Symbols of every template. */

/* ---- tokens ---- */
enum token_kind {
	T_END,
	T_TEXT,
	T_BLOCK,
	T_BLOCK_END,
	T_VAR,
	T_VAR_END,
	T_NAME,
	T_STR,
	T_INT,
	T_FLOAT,
	T_OP
};
struct token {
	enum token_kind kind;
	uint32_t at;
	/* T_OP: the operator; T_STR: the text between the quotes, escaped; T_TEXT: trimmed as the
	 * neighbouring tags request. */
	struct cgn_str s;
};
struct lexer {
	struct cgn_str src;
	size_t at;
	enum { IN_TEXT, IN_BLOCK, IN_VAR } where;
	bool trim, trim_line; /* The previous tag ended with "-", or removes the following line end. */
	size_t depth;         /* Nesting of brackets within a tag. */
	const char *why;      /* With T_END: the error; NULL: the regular end. */
};
struct token lex_next(struct lexer *lx);
CGN_RC parse_source(struct template *t, struct cgn_err *err);

int filter_id(struct cgn_str name); /* Returns -1 for an unknown name. */
int test_id(struct cgn_str name);
