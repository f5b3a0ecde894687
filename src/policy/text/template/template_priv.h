/* SPDX-License-Identifier: Apache-2.0 */
/* template, inside: source -> tokens (lex) -> nodes (parse) -> text (render over values). This header has the
 * render: its state, and the functions of each file that runs nodes. */
#pragma once
#include "policy/text/template/node_priv.h"

#define MAX_EVAL_DEPTH 800 /* Nested nodes at render time, including macro calls. */
#define MAX_SUM        16  /* Values added in one sum. */
#define MAX_ARGS       256 /* Arguments of unfinished calls. */

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

/* ---- Each file calls those above it here; eval.c and exec.c call each other, as do filters.c and tests.c. ---- */

/* vm.c */
cgn_rc template_fail(struct cgn_str source, size_t at, struct cgn_err *err, enum cgn_code code,
	const char *what);
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

/* args.c */
/* Get a positional or named argument; returns false when it is absent. */
bool arg_get(struct args args, size_t i, const char *name, struct value *out);
/* |*out| stays when the argument is absent or none. */
bool arg_int(struct vm *vm, struct args args, size_t i, const char *name, int64_t *out);
/* |*out| stays when the argument is absent. */
bool arg_bool(struct vm *vm, struct args args, size_t i, const char *name, bool *out);
bool arg_str(struct vm *vm, struct args args, size_t i, const char *name, struct cgn_str *out);

/* scope.c */
struct value scope_get(struct vm *vm, uint32_t sym);
bool scope_set(struct vm *vm, uint32_t sym, struct value v);
struct scope *scope_push(struct vm *vm, struct scope *up);
/* Keep the variables that a macro made here can see. */
void scope_keep(struct vm *vm);
/* Drop the scope's variables; a scope that a macro saw is left to that macro. */
bool scope_clear(struct vm *vm, struct scope **io);

/* loop.c */
/* Get loop.index and so on; false: it has no such attribute. */
bool loop_attr(const struct loop *l, struct cgn_str name, struct value *out);
/* loop.cycle, loop.changed */
bool loop_call(struct vm *vm, struct loop *l, bool cycle, struct args args, struct value *out);

/* ops.c */
/* Add |n| values from the left; strings are joined in one step. */
bool op_sum(struct vm *vm, const struct value *v, size_t n, struct value *out);
bool op_binary(struct vm *vm, enum op op, struct value a, struct value b, struct value *out);

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
/* The arguments stay on the stack: restore vm->sp afterwards. */
bool eval_args(struct vm *vm, const struct node *list, struct args *out);
bool eval_output(struct vm *vm, const struct node *n);
bool call_value(struct vm *vm, struct value callee, struct args args, struct value *out);

/* exec.c */
bool exec_body(struct vm *vm, const struct node *list);
/* Run the macro; its text goes to the output. */
bool macro_run(struct vm *vm, struct macro *m, struct args args);
bool loop_run(struct vm *vm, const struct node *n, struct value items, size_t depth);
