/* SPDX-License-Identifier: Apache-2.0 */
/* template, inside: source -> tokens (lex) -> nodes (parse) -> text (render over values). */
#pragma once
#include "base/core/arena.h"
#include "policy/template/template.h"

#define TEMPLATE_TAG 0x4a494e4aU
/* Nesting of the source (parentheses, blocks), and operators chained in one expression. */
#define MAX_NEST       150
#define MAX_EVAL_DEPTH 800 /* Nested nodes at render time, including macro calls. */
#define MAX_SUM        16  /* Values added in one sum. */
#define MAX_ARGS       256 /* Arguments of unfinished calls. */

/* ---- values ---- */
enum value_kind {
	V_UNDEFINED,
	V_NONE,
	V_BOOL,
	V_INT,
	V_BIG,
	V_FLOAT,
	V_STR,
	V_LAZY,
	V_LIST,
	V_DICT,
	V_SPACE,
	V_MACRO,
	V_METHOD,
	V_LOOP,
	V_GLOBAL
};

/* Python's kinds of iterables; @huggingface/jinja has lists only. ONCE: a generator, empty after its first
 * use. */
enum list_kind { LIST_PLAIN, LIST_TUPLE, LIST_KEYS, LIST_VALUES, LIST_ITEMS, LIST_ONCE };

struct list;
struct dict;
struct value {
	enum value_kind kind;
	uint8_t as;  /* V_LIST: enum list_kind. */
	uint16_t id; /* V_GLOBAL: its number. */
	union {
		bool b;
		int64_t i;
		double f;
		/* V_STR; V_BIG: the text of an integer wider than 64 bits; a NUL follows. */
		struct cgn_str s;
		struct lazy_str *lazy;
		struct list *list;
		struct dict *dict; /* V_DICT, V_SPACE */
		struct macro *macro;
		struct method *method;
		struct loop *loop;
	};
};

/* A JSON string with escapes; unescaped on first use, once for all copies of the value. */
struct lazy_str {
	struct json_val raw;
	struct cgn_str s; /* p == NULL: not unescaped yet. */
};
/* Containers of the document are parsed on first use (raw.p != NULL until then). */
struct list {
	struct json_val raw;
	struct value *v;
	size_t n, cap;
};
struct entry {
	struct cgn_str key;
	struct value v;
};
struct dict {
	struct json_val raw;
	struct entry *e;
	size_t n, cap;
	uint32_t *index; /* Open addressing by hash of the key, 1-based; NULL while small. */
	size_t n_index;  /* A power of two. */
};
struct method {
	struct value self;
	int id;
};

/* ---- nodes ---- */
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

/* ---- source ---- */
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
	const char *why;      /* With T_END: what is wrong; NULL: the regular end. */
};
struct token lex_next(struct lexer *lx);
struct cgn_rc template_fail(struct cgn_str source, size_t at, struct cgn_err *err, enum cgn_code code,
	const char *what);

CGN_RC parse_source(struct template *t, struct cgn_err *err);

int filter_id(struct cgn_str name); /* Returns -1 for an unknown name. */
int test_id(struct cgn_str name);

/* ---- rendering ---- */
struct scope {
	struct scope *up;
	struct binding *first;
	bool kept; /* A macro was made in the scope: its bindings may outlive the iteration. */
};
struct binding {
	struct binding *next;
	uint32_t sym;
	struct value v;
};
struct macro {
	const struct node *node; /* The MACRO, or the CALL_BLOCK whose body it is. */
	struct scope *home;
	struct value caller; /* caller() of the call block that calls; otherwise undefined. */
};
struct loop {
	struct value items;
	size_t i, depth;
	const struct node *node;
	struct value changed;
	bool has_changed;
};
struct arg {
	struct cgn_str name; /* p == NULL: positional. */
	struct value v;
};
struct args {
	struct arg *v; /* Positional arguments first. */
	size_t n, n_pos;
};

enum flow { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE };

struct vm {
	const struct template *t;
	const struct template_ask *ask;
	bool js;
	struct cgn_arena mem;
	struct cgn_buf joined; /* Lies over the string that was joined last. */
	struct cgn_buf *out;
	size_t out_base, out_max;
	size_t steps_left;
	size_t depth;
	struct value *globals; /* Indexed by symbol. */
	struct scope *scope;   /* NULL: the globals. */
	struct binding *spare;
	enum flow flow;
	const struct node *now; /* Node in execution, for the error's place. */
	struct arg stack[MAX_ARGS];
	size_t sp;
	struct cgn_err *err;
	cgn_rc rc; /* Code of the failure. */
};

/* All of the following functions return false once the render has failed; vm->rc has the code. */
bool vm_fail(struct vm *vm, enum cgn_code code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* INVALID, with the place. */
bool vm_type(struct vm *vm, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
bool vm_spend(struct vm *vm, size_t steps);
static inline bool vm_spend_bytes(struct vm *vm, size_t n)
{
	return vm_spend(vm, n / 256 + 1);
}
void *vm_get(struct vm *vm, size_t n); /* Returns NULL after a failure. */
bool vm_emit(struct vm *vm, struct cgn_str s);
/* Text under construction in the output's tail: begin, emit, take it back as a string. */
size_t vm_mark(struct vm *vm);
bool vm_take(struct vm *vm, size_t mark, struct value *out);

/* values.c */
static inline struct value v_undefined(void)
{
	return (struct value){.kind = V_UNDEFINED};
}
static inline struct value v_none(void)
{
	return (struct value){.kind = V_NONE};
}
static inline struct value v_bool(bool b)
{
	return (struct value){.kind = V_BOOL, .b = b};
}
static inline struct value v_int(int64_t i)
{
	return (struct value){.kind = V_INT, .i = i};
}
static inline struct value v_float(double f)
{
	return (struct value){.kind = V_FLOAT, .f = f};
}
static inline struct value v_str(struct cgn_str s)
{
	return (struct value){.kind = V_STR, .s = s};
}
static inline bool is_str(struct value v)
{
	return v.kind == V_STR || v.kind == V_LAZY;
}
static inline bool is_num(struct value v)
{
	return v.kind == V_INT || v.kind == V_FLOAT || v.kind == V_BOOL || v.kind == V_BIG;
}
static inline bool is_indexed(struct value v)
{
	return v.kind == V_LIST && v.as <= LIST_TUPLE;
}
const char *value_type(struct vm *vm, struct value v);
bool value_of_json(struct vm *vm, struct json_val j, struct value *out);
bool value_str(struct vm *vm, struct value v, struct cgn_str *out); /* |v| is a string. */
/* Parse the container if that was not done yet. */
bool value_list(struct vm *vm, struct value v);
bool value_true(struct vm *vm, struct value v, bool *out);
double value_num(struct value v);
/* Equality of == in the dialect. */
bool value_equal(struct vm *vm, struct value a, struct value b, bool *out);
bool value_same(struct vm *vm, struct value a, struct value b, bool *out); /* Equality of "in a list". */
/* Fails when the values have no order. */
bool value_order(struct vm *vm, struct value a, struct value b, bool fold, int *out);
bool list_new(struct vm *vm, size_t cap, struct value *out);
void list_as(const struct vm *vm, struct value *io, enum list_kind as); /* Only in Python's dialect. */
bool list_add(struct vm *vm, struct list *l, struct value v);
bool dict_new(struct vm *vm, enum value_kind kind, struct value *out);
bool dict_set(struct vm *vm, struct dict *d, struct cgn_str key, struct value v);
bool dict_find(struct vm *vm, struct dict *d, struct cgn_str key, struct value *out, bool *found);
/* Get the elements that a for loop visits: a list's elements, a dictionary's keys, a string's characters. */
bool value_items(struct vm *vm, struct value v, struct value *out);
bool dict_pairs(struct vm *vm, struct dict *d, struct value *out);

/* print.c */
struct json_style {
	int64_t indent; /* -1: one line. */
	bool ascii, sort;
	bool shown;               /* For {{ }} instead of tojson: an undefined value is marked. */
	struct cgn_str item, key; /* Separators; p == NULL: the default. */
};
#define FLOAT_TEXT 80
/* At most FLOAT_TEXT bytes; point: print 1 as "1.0". */
void print_float(const struct vm *vm, double f, bool point, struct cgn_buf *b);
bool print_value(struct vm *vm, struct value v); /* Print as {{ v }} does. */
bool print_json(struct vm *vm, struct value v, const struct json_style *style);
/* Print as ~ and join do, and + in JavaScript. */
bool print_joined(struct vm *vm, struct value v);
/* Return the text that print_value prints. */
bool value_text(struct vm *vm, struct value v, struct cgn_str *out);

/* text.c: UTF-8 */
size_t utf8_count(struct cgn_str s);
size_t utf8_step(const char *p, const char *end, int32_t *code);
/* TITLE_WORDS: words as the title filter defines them. */
enum text_case { CASE_UPPER, CASE_LOWER, CASE_TITLE, CASE_TITLE_WORDS, CASE_CAPITAL };
bool text_case(struct vm *vm, struct cgn_str s, enum text_case how, struct cgn_str *out);
bool text_is_space(struct vm *vm, int32_t code);
struct cgn_str text_strip(struct vm *vm, struct cgn_str s, const struct cgn_str *chars, bool left,
	bool right);
bool text_replace(struct vm *vm, struct cgn_str s, struct cgn_str from, struct cgn_str to, int64_t count,
	struct cgn_str *out);
bool text_find(struct vm *vm, struct cgn_str s, struct cgn_str what, size_t *at); /* SIZE_MAX: not found. */
/* Requires n >= 1. */
bool text_join(struct vm *vm, const struct cgn_str *parts, size_t n, struct cgn_str *out);
bool text_slice(struct vm *vm, struct cgn_str s, const int64_t *from, const int64_t *to, int64_t step,
	struct cgn_str *out);
bool slice_range(size_t n, const int64_t *from, const int64_t *to, int64_t step, int64_t *at, size_t *count);

/* methods.c */
int method_id(enum value_kind kind, struct cgn_str name); /* Returns -1 for an unknown name. */
bool method_call(struct vm *vm, struct value self, int id, struct args args, struct value *out);

/* filters.c, tests.c, globals.c */
bool filter_apply(struct vm *vm, int id, struct value v, struct args args, struct value *out);
bool test_apply(struct vm *vm, int id, struct value v, struct args args, bool *out);
int global_id(struct cgn_str name);
struct value global_value(int id);
bool global_call(struct vm *vm, int id, struct args args, struct value *out);

/* eval.c */
bool eval(struct vm *vm, const struct node *n, struct value *out);
bool eval_attr(struct vm *vm, struct value v, struct cgn_str name, struct value *out);
/* The arguments stay on the stack: restore vm->sp afterwards. */
bool eval_args(struct vm *vm, const struct node *list, struct args *out);
bool eval_output(struct vm *vm, const struct node *n);
bool call_value(struct vm *vm, struct value callee, struct args args, struct value *out);
/* Get a positional or named argument; returns false when it is absent. */
bool arg_get(struct args args, size_t i, const char *name, struct value *out);
/* |*out| stays when the argument is absent or none. */
bool arg_int(struct vm *vm, struct args args, size_t i, const char *name, int64_t *out);

/* ops.c */
/* Add |n| values from the left; strings are joined in one step. */
bool op_sum(struct vm *vm, const struct value *v, size_t n, struct value *out);
bool op_binary(struct vm *vm, enum op op, struct value a, struct value b, struct value *out);

/* exec.c */
bool exec_body(struct vm *vm, const struct node *list);
bool scope_set(struct vm *vm, uint32_t sym, struct value v);
struct value scope_get(struct vm *vm, uint32_t sym);
/* Run the macro; its text goes to the output. */
bool macro_run(struct vm *vm, struct macro *m, struct args args);
bool loop_attr(struct vm *vm, struct loop *l, struct cgn_str name, struct value *out);
/* loop.cycle, loop.changed */
bool loop_call(struct vm *vm, struct loop *l, bool cycle, struct args args, struct value *out);
bool loop_run(struct vm *vm, const struct node *n, struct value items, size_t depth);
