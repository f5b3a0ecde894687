/* SPDX-License-Identifier: Apache-2.0 */
/* template, inside the parser: one token of look-ahead and a sticky failure. Every function returns false
 * once the parser has failed. */
#pragma once
#include <stdarg.h>

#include "template_priv.h"

struct parser {
	struct template *t;
	struct lexer lx;
	struct token tok; /* The look-ahead token. */
	size_t depth, loops;
	bool varargs, kwargs; /* The names occurred in the macro's body. */
	bool failed;
	cgn_rc rc;
	struct cgn_err *err;
};

/* tokens.c */
bool parse_fail(struct parser *ps, size_t at, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
bool parse_expected(struct parser *ps, const char *what);
void *parse_get(struct parser *ps, size_t n); /* Zeroed memory. */
struct node *node_new(struct parser *ps, enum node_kind kind, size_t at);
bool parse_step(struct parser *ps);
bool at_op(const struct parser *ps, const char *op);
bool at_name(const struct parser *ps, const char *name);
bool take_op(struct parser *ps, const char *op);
bool take_ident(struct parser *ps, struct cgn_str *out);
bool parse_symbol(struct parser *ps, struct cgn_str name, uint32_t *out);

/* expr.c */
bool parse_expr(struct parser *ps, struct node **out);
bool parse_or(struct parser *ps, struct node **out); /* An expression without "a if b else c". */
bool parse_tuple(struct parser *ps, bool choices, struct node **out);
/* "upper | indent(2)", with or without a first "|", over |operand|. */
bool parse_filters(struct parser *ps, struct node *operand, struct node **out);
