/* SPDX-License-Identifier: Apache-2.0 */
/* template parse, expressions: one function per level of Jinja's precedence, loosest first.
 * Source: Jinja 3.1 documentation, "Expressions", and its grammar as the Python implementation accepts it. */
#include <errno.h>
#include <stdlib.h>

#include "base/codec/codec.h"
#include "parse_priv.h"

static bool parse_unary(struct parser *ps, bool filters, struct node **out);

static struct node *node_binary(struct parser *ps, enum node_kind kind, size_t at, struct node *a,
	struct node *b)
{
	struct node *n = node_new(ps, kind, at);
	if (n != NULL) {
		n->a = a;
		n->b = b;
	}
	return n;
}

static bool take_hex(struct cgn_str *rest, size_t n, uint32_t *out)
{
	*out = 0;
	if (rest->n < n)
		return false;
	for (size_t i = 0; i < n; i++) {
		int digit = hex_digit(rest->p[i]);
		if (digit < 0)
			return false;
		*out = *out << 4 | (uint32_t)digit;
	}
	rest->p += n;
	rest->n -= n;
	return true;
}

/* Decode the escape that |c| begins behind a backslash, with its digits in |rest|. */
static bool take_code(struct cgn_str *rest, char c, uint32_t *out)
{
	if (!take_hex(rest, c == 'x' ? 2 : c == 'u' ? 4 : 8, out))
		return false;
	if (*out >= 0xd800 && *out < 0xdc00 && rest->n >= 6 && rest->p[0] == '\\' && rest->p[1] == 'u') {
		struct cgn_str low_at = {rest->p + 2, rest->n - 2};
		uint32_t low;
		if (take_hex(&low_at, 4, &low) && low >= 0xdc00 && low < 0xe000) {
			*out = 0x10000 + ((*out - 0xd800) << 10) + (low - 0xdc00);
			*rest = low_at;
		}
	}
	return *out < 0x110000 && !(*out >= 0xd800 && *out < 0xe000);
}

static uint32_t take_octal(struct cgn_str *rest, char first)
{
	uint32_t code = (uint32_t)(first - '0');
	for (int i = 0; i < 2 && rest->n > 0 && *rest->p >= '0' && *rest->p <= '7'; i++) {
		code = code * 8 + (uint32_t)(*rest->p - '0');
		rest->p++;
		rest->n--;
	}
	return code;
}

/* Decode Python's escapes; an unknown one is kept as written. The result is never longer than its source. */
static bool str_unescape(struct cgn_str raw, struct cgn_buf *b)
{
	static const char from[] = "ntrbfva'\"\\", to[] = "\n\t\r\b\f\v\a'\"\\";
	while (raw.n > 0) {
		char c = *raw.p, utf8[4];
		const char *known;
		raw.p++;
		raw.n--;
		if (c != '\\' || raw.n == 0) {
			cgn_buf_char(b, c);
			continue;
		}
		c = *raw.p;
		raw.p++;
		raw.n--;
		uint32_t code;
		if (c == 'x' || c == 'u' || c == 'U') {
			if (!take_code(&raw, c, &code))
				return false;
			cgn_buf_add(b, utf8, cgn_utf8_write(utf8, code));
		} else if (c >= '0' && c <= '7') {
			cgn_buf_add(b, utf8, cgn_utf8_write(utf8, take_octal(&raw, c)));
		} else if (c != '\0' && (known = strchr(from, c)) != NULL) {
			cgn_buf_char(b, to[known - from]);
		} else if (c != '\n') { /* An escaped line end is dropped. */
			cgn_buf_char(b, '\\');
			cgn_buf_char(b, c);
		}
	}
	return true;
}

/* Adjacent strings ('a' "b") form one string. */
static bool parse_string(struct parser *ps, struct node **out)
{
	struct node *n = node_new(ps, N_CONST, ps->tok.at);
	struct lexer ahead = ps->lx;
	size_t room = ps->tok.s.n;
	for (struct token t = lex_next(&ahead); t.kind == T_STR; t = lex_next(&ahead))
		room += t.s.n;
	char *p = parse_get(ps, room + 1);
	if (n == NULL || p == NULL)
		return false;
	struct cgn_buf b = cgn_buf_over(p, room + 1);
	for (; ps->tok.kind == T_STR;) {
		if (!str_unescape(ps->tok.s, &b))
			return parse_fail(ps, ps->tok.at, "a string with a broken \\x, \\u or \\U escape");
		if (!parse_step(ps))
			return false;
	}
	n->value = v_str(cgn_buf_view(&b));
	*out = n;
	return true;
}

static bool parse_number(struct parser *ps, struct node **out)
{
	struct node *n = node_new(ps, N_CONST, ps->tok.at);
	char digits[64];
	size_t used = 0;
	for (size_t i = 0; i < ps->tok.s.n; i++)
		if (ps->tok.s.p[i] != '_' && used + 1 < sizeof digits)
			digits[used++] = ps->tok.s.p[i];
	digits[used] = '\0';
	if (n == NULL)
		return false;
	errno = 0;
	n->value = ps->tok.kind == T_INT ? v_int(strtoll(digits, NULL, 10)) : v_float(strtod(digits, NULL));
	if (errno != 0 || used + 1 >= sizeof digits)
		return parse_fail(ps, ps->tok.at, "the number %s is too large", digits);
	*out = n;
	return parse_step(ps);
}

static bool parse_name(struct parser *ps, struct node **out)
{
	static const struct {
		const char *name;
		enum value_kind kind;
		bool b;
	} words[] = {{"true", V_BOOL, true}, {"True", V_BOOL, true}, {"false", V_BOOL, false},
		{"False", V_BOOL, false}, {"none", V_NONE, false}, {"None", V_NONE, false}};
	struct node *n = node_new(ps, N_NAME, ps->tok.at);
	if (n == NULL || !take_ident(ps, &n->text))
		return false;
	*out = n;
	for (size_t i = 0; i < CGN_COUNT(words); i++)
		if (cgn_str_is(n->text, words[i].name)) {
			n->kind = N_CONST;
			n->value = (struct value){.kind = words[i].kind, .b = words[i].b};
			return true;
		}
	return parse_symbol(ps, n->text, &n->sym);
}

/* Parse elements up to |close|, which is consumed; a dictionary's elements are pairs. */
static bool parse_elements(struct parser *ps, enum node_kind kind, const char *close, struct node **out)
{
	struct node *n = node_new(ps, kind, ps->tok.at), **tail;
	if (n == NULL || !parse_step(ps))
		return false;
	for (tail = &n->list; !at_op(ps, close); tail = &(*tail)->next, n->n++) {
		struct node *value, *pair;
		if (n->n > 0) {
			if (!take_op(ps, ","))
				return false;
			if (at_op(ps, close))
				break;
		}
		if (!parse_expr(ps, &value))
			return false;
		if ((pair = node_new(ps, N_NAMED, value->at)) == NULL)
			return false;
		pair->a = value; /* A wrapper, because the expression's own link may be in use. */
		if (kind == N_DICT && !(take_op(ps, ":") && parse_expr(ps, &pair->b)))
			return false;
		*tail = pair;
	}
	*out = n;
	return parse_step(ps);
}

static bool parse_paren(struct parser *ps, struct node **out)
{
	if (!parse_step(ps))
		return false;
	if (at_op(ps, ")")) {
		*out = node_new(ps, N_TUPLE, ps->tok.at);
		return *out != NULL && parse_step(ps);
	}
	return parse_tuple(ps, true, out) && take_op(ps, ")");
}

static bool parse_primary(struct parser *ps, struct node **out)
{
	if (ps->tok.kind == T_NAME)
		return parse_name(ps, out);
	if (ps->tok.kind == T_STR)
		return parse_string(ps, out);
	if (ps->tok.kind == T_INT || ps->tok.kind == T_FLOAT)
		return parse_number(ps, out);
	if (at_op(ps, "("))
		return parse_paren(ps, out);
	if (at_op(ps, "["))
		return parse_elements(ps, N_LIST, "]", out);
	if (at_op(ps, "{"))
		return parse_elements(ps, N_DICT, "}", out);
	return parse_expected(ps, "an expression");
}

static bool parse_argument(struct parser *ps, struct node *call, struct node ***tail, enum node_kind *last)
{
	struct node *arg = node_new(ps, N_CONST, ps->tok.at), *value;
	if (arg == NULL)
		return false;
	enum node_kind kind = at_op(ps, "**") ? N_SPREAD_NAMED : at_op(ps, "*") ? N_SPREAD : N_OUTPUT;
	if (kind != N_OUTPUT && !parse_step(ps))
		return false;
	if (!parse_expr(ps, &value))
		return false;
	if (kind == N_OUTPUT && at_op(ps, "=") && value->kind == N_NAME) {
		kind = N_NAMED;
		arg->text = value->text;
		if (!parse_step(ps) || !parse_expr(ps, &value))
			return false;
	}
	if (*last == N_SPREAD_NAMED || (kind == N_OUTPUT && *last != N_OUTPUT))
		return parse_fail(ps, arg->at, "a positional argument behind a named one");
	*last = kind;
	arg->kind = kind;
	arg->a = value;
	**tail = arg;
	*tail = &arg->next;
	call->n++;
	return true;
}

/* The look-ahead is "(". The list has wrappers: OUTPUT (positional), NAMED, SPREAD, SPREAD_NAMED. */
static bool parse_arguments(struct parser *ps, struct node *call)
{
	struct node **tail = &call->list;
	enum node_kind last = N_OUTPUT;
	if (!parse_step(ps))
		return false;
	while (!at_op(ps, ")")) {
		if (!parse_argument(ps, call, &tail, &last))
			return false;
		if (!at_op(ps, ")") && !take_op(ps, ","))
			return false;
	}
	return parse_step(ps);
}

static bool parse_slice(struct parser *ps, struct node *item)
{
	struct node **part[] = {&item->b, &item->c, &item->d};
	size_t i = 0;
	for (; i < 3 && !at_op(ps, "]"); i++) {
		if (!at_op(ps, ":") && !(i == 0 ? parse_tuple(ps, true, part[i]) : parse_expr(ps, part[i])))
			return false;
		if (at_op(ps, "]"))
			break;
		item->kind = N_SLICE;
		if (i < 2 && !take_op(ps, ":"))
			return false;
	}
	if (item->kind == N_ITEM && item->b == NULL)
		return parse_expected(ps, "an expression");
	return take_op(ps, "]");
}

static bool parse_attr(struct parser *ps, struct node *n)
{
	n->kind = N_ATTR;
	if (!parse_step(ps))
		return false;
	if (ps->tok.kind != T_INT) /* x.0 is x[0]. */
		return take_ident(ps, &n->text);
	n->kind = N_ITEM;
	return parse_number(ps, &n->b);
}

static bool parse_postfix(struct parser *ps, struct node **io)
{
	for (size_t chain = 0;; chain++) {
		if (chain > MAX_NEST)
			return parse_fail(ps, ps->tok.at, "more than %d attributes, items and calls in a row",
				MAX_NEST);
		bool attr = at_op(ps, "."), item = at_op(ps, "["), call = at_op(ps, "(");
		if (!attr && !item && !call)
			return true;
		struct node *n = node_binary(ps, call ? N_CALL : N_ITEM, ps->tok.at, *io, NULL);
		if (n == NULL)
			return false;
		if (!(attr                 ? parse_attr(ps, n)
				    : call ? parse_arguments(ps, n)
					   : parse_step(ps) && parse_slice(ps, n)))
			return false;
		*io = n;
	}
}

static bool parse_filter(struct parser *ps, struct node **io)
{
	struct node *n = node_binary(ps, N_FILTER, ps->tok.at, *io, NULL);
	struct cgn_str name;
	if (n == NULL || !take_ident(ps, &name))
		return false;
	int id = filter_id(name);
	if (id < 0)
		return parse_fail(ps, n->at, "the filter \"%.*s\" is not supported", CGN_STR_ARG(name));
	n->id = (uint16_t)id;
	n->text = name;
	if (at_op(ps, "(") && !parse_arguments(ps, n))
		return false;
	*io = n;
	return true;
}

bool parse_filters(struct parser *ps, struct node *operand, struct node **out)
{
	size_t chain = 0;
	*out = operand;
	if (!at_op(ps, "|") && !parse_filter(ps, out))
		return false;
	while (at_op(ps, "|")) {
		if (++chain > MAX_NEST)
			return parse_fail(ps, ps->tok.at, "more than %d filters in a row", MAX_NEST);
		if (!parse_step(ps) || !parse_filter(ps, out))
			return false;
	}
	return true;
}

/* Does the token behind a test's name belong to the test, as in "is divisibleby 3"? */
static bool at_operand(const struct parser *ps)
{
	static const char *const words[] = {"else", "or", "and", "is", "if", "in", "not", "recursive"};
	if (ps->tok.kind == T_STR || ps->tok.kind == T_INT || ps->tok.kind == T_FLOAT)
		return true;
	if (ps->tok.kind == T_OP)
		return at_op(ps, "[") || at_op(ps, "{");
	for (size_t i = 0; i < CGN_COUNT(words); i++)
		if (at_name(ps, words[i]))
			return false;
	return ps->tok.kind == T_NAME;
}

static bool parse_test_operand(struct parser *ps, struct node *test)
{
	struct node *arg = node_new(ps, N_OUTPUT, ps->tok.at);
	if (arg == NULL || !parse_primary(ps, &arg->a) || !parse_postfix(ps, &arg->a))
		return false;
	test->list = arg;
	test->n = 1;
	return true;
}

static bool parse_test(struct parser *ps, struct node **io)
{
	struct node *n = node_binary(ps, N_TEST, ps->tok.at, *io, NULL);
	if (n == NULL || !parse_step(ps))
		return false;
	n->flag = at_name(ps, "not");
	if (n->flag && !parse_step(ps))
		return false;
	size_t at = ps->tok.at;
	if (!take_ident(ps, &n->text))
		return false;
	int id = test_id(n->text);
	if (id < 0)
		return parse_fail(ps, at, "the test \"%.*s\" is not supported", CGN_STR_ARG(n->text));
	n->id = (uint16_t)id;
	*io = n;
	if (at_op(ps, "("))
		return parse_arguments(ps, n);
	return !at_operand(ps) || parse_test_operand(ps, n);
}

static bool parse_filters_and_tests(struct parser *ps, struct node **io)
{
	for (size_t chain = 0; at_op(ps, "|") || at_name(ps, "is"); chain++) {
		if (chain > MAX_NEST)
			return parse_fail(ps, ps->tok.at, "more than %d filters and tests in a row",
				MAX_NEST);
		if (!(at_op(ps, "|") ? parse_filters(ps, *io, io) : parse_test(ps, io)))
			return false;
	}
	return true;
}

static bool parse_sign(struct parser *ps, struct node **out)
{
	struct node *n = node_new(ps, at_op(ps, "-") ? N_NEG : N_POS, ps->tok.at);
	if (n == NULL || !parse_step(ps) || !parse_unary(ps, false, &n->a))
		return false;
	*out = n;
	return true;
}

static bool parse_unary(struct parser *ps, bool filters, struct node **out)
{
	if (++ps->depth > MAX_NEST)
		return parse_fail(ps, ps->tok.at, "expressions are nested more than %d deep", MAX_NEST);
	bool ok = at_op(ps, "-") || at_op(ps, "+") ? parse_sign(ps, out) : parse_primary(ps, out);
	ps->depth--;
	return ok && parse_postfix(ps, out) && (!filters || parse_filters_and_tests(ps, out));
}

struct level {
	const char *words[5];
	enum op ops[5];
};

/* Parse left-associative operators of one level over operands of the next level. */
static bool parse_level(struct parser *ps, const struct level *level,
	bool (*next)(struct parser *, struct node **), struct node **out)
{
	if (!next(ps, out))
		return false;
	for (size_t chain = 0;; chain++) {
		size_t i = 0;
		while (level->words[i] != NULL && !at_op(ps, level->words[i]))
			i++;
		if (level->words[i] == NULL)
			return true;
		struct node *n = node_binary(ps, N_BIN, ps->tok.at, *out, NULL);
		if (chain > MAX_NEST)
			return parse_fail(ps, ps->tok.at, "more than %d operators in a row", MAX_NEST);
		if (n == NULL || !parse_step(ps) || !next(ps, &n->b))
			return false;
		n->op = level->ops[i];
		*out = n;
	}
}

static bool parse_operand(struct parser *ps, struct node **out)
{
	return parse_unary(ps, true, out);
}

static bool parse_power(struct parser *ps, struct node **out)
{
	static const struct level level = {{"**"}, {OP_POW}};
	return parse_level(ps, &level, parse_operand, out);
}

static bool parse_product(struct parser *ps, struct node **out)
{
	static const struct level level = {{"*", "//", "/", "%"}, {OP_MUL, OP_FLOOR, OP_DIV, OP_REM}};
	return parse_level(ps, &level, parse_power, out);
}

static bool parse_join(struct parser *ps, struct node **out)
{
	struct node *join = NULL, **tail = NULL;
	if (!parse_product(ps, out))
		return false;
	while (at_op(ps, "~")) {
		if (join == NULL) {
			if ((join = node_new(ps, N_JOIN, ps->tok.at)) == NULL ||
				(join->list = node_binary(ps, N_OUTPUT, ps->tok.at, *out, NULL)) == NULL)
				return false;
			tail = &join->list->next;
			*out = join;
		}
		if (!parse_step(ps) || (*tail = node_new(ps, N_OUTPUT, ps->tok.at)) == NULL ||
			!parse_product(ps, &(*tail)->a))
			return false;
		tail = &(*tail)->next;
	}
	return true;
}

static bool parse_sum(struct parser *ps, struct node **out)
{
	static const struct level level = {{"+", "-"}, {OP_ADD, OP_SUB}};
	return parse_level(ps, &level, parse_join, out);
}

/* Is the look-ahead a comparison? Consumes a "not" that an "in" follows. */
static bool at_comparison(struct parser *ps, enum op *op)
{
	static const char *const words[] = {"==", "!=", "<", ">", "<=", ">="};
	for (size_t i = 0; i < CGN_COUNT(words); i++)
		if (at_op(ps, words[i])) {
			*op = (enum op)(OP_EQ + (int)i);
			return true;
		}
	if (at_name(ps, "in")) {
		*op = OP_IN;
		return true;
	}
	struct lexer ahead = ps->lx;
	struct token next = at_name(ps, "not") ? lex_next(&ahead) : (struct token){T_END, 0, {NULL, 0}};
	if (next.kind != T_NAME || !cgn_str_is(next.s, "in"))
		return false;
	*op = OP_NOT_IN;
	return parse_step(ps);
}

static bool parse_compare(struct parser *ps, struct node **out)
{
	struct node *n = NULL, **tail = NULL;
	enum op op;
	if (!parse_sum(ps, out))
		return false;
	while (at_comparison(ps, &op)) {
		if (n == NULL) {
			if ((n = node_binary(ps, N_COMPARE, ps->tok.at, *out, NULL)) == NULL)
				return false;
			tail = &n->list;
			*out = n;
		}
		if (!parse_step(ps) || (*tail = node_new(ps, N_OUTPUT, ps->tok.at)) == NULL ||
			!parse_sum(ps, &(*tail)->a))
			return false;
		(*tail)->op = op;
		tail = &(*tail)->next;
	}
	return !ps->failed;
}

static bool parse_not(struct parser *ps, struct node **out)
{
	if (!at_name(ps, "not"))
		return parse_compare(ps, out);
	struct node *n = node_new(ps, N_NOT, ps->tok.at);
	if (++ps->depth > MAX_NEST)
		return parse_fail(ps, ps->tok.at, "expressions are nested more than %d deep", MAX_NEST);
	bool ok = n != NULL && parse_step(ps) && parse_not(ps, &n->a);
	ps->depth--;
	*out = n;
	return ok;
}

static bool parse_words(struct parser *ps, const char *word, enum node_kind kind,
	bool (*next)(struct parser *, struct node **), struct node **out)
{
	if (!next(ps, out))
		return false;
	for (size_t chain = 0; at_name(ps, word); chain++) {
		struct node *n = node_binary(ps, kind, ps->tok.at, *out, NULL);
		if (chain > MAX_NEST)
			return parse_fail(ps, ps->tok.at, "more than %d operators in a row", MAX_NEST);
		if (n == NULL || !parse_step(ps) || !next(ps, &n->b))
			return false;
		*out = n;
	}
	return true;
}

static bool parse_and(struct parser *ps, struct node **out)
{
	return parse_words(ps, "and", N_AND, parse_not, out);
}

bool parse_or(struct parser *ps, struct node **out)
{
	return parse_words(ps, "or", N_OR, parse_and, out);
}

bool parse_expr(struct parser *ps, struct node **out)
{
	if (++ps->depth > MAX_NEST)
		return parse_fail(ps, ps->tok.at, "expressions are nested more than %d deep", MAX_NEST);
	bool ok = parse_or(ps, out);
	while (ok && at_name(ps, "if")) {
		struct node *n = node_new(ps, N_COND, ps->tok.at);
		if (n == NULL || !parse_step(ps) || !parse_or(ps, &n->a))
			return false;
		n->b = *out;
		*out = n;
		if (at_name(ps, "else"))
			ok = parse_step(ps) && parse_expr(ps, &n->c);
	}
	ps->depth--;
	return ok;
}

static bool ends_tuple(const struct parser *ps)
{
	return ps->tok.kind == T_VAR_END || ps->tok.kind == T_BLOCK_END || at_op(ps, ")") || at_op(ps, "=") ||
		at_op(ps, "]") || at_name(ps, "in");
}

bool parse_tuple(struct parser *ps, bool choices, struct node **out)
{
	struct node *n = NULL, **tail = NULL;
	bool (*element)(struct parser *, struct node **) = choices ? parse_expr : parse_or;
	if (!element(ps, out))
		return false;
	while (at_op(ps, ",")) {
		if (n == NULL) {
			if ((n = node_new(ps, N_TUPLE, ps->tok.at)) == NULL ||
				(n->list = node_binary(ps, N_NAMED, ps->tok.at, *out, NULL)) == NULL)
				return false;
			n->n = 1;
			tail = &n->list->next;
			*out = n;
		}
		if (!parse_step(ps))
			return false;
		if (ends_tuple(ps))
			break;
		if ((*tail = node_new(ps, N_NAMED, ps->tok.at)) == NULL || !element(ps, &(*tail)->a))
			return false;
		tail = &(*tail)->next;
		n->n++;
	}
	return true;
}
