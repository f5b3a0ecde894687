/* SPDX-License-Identifier: Apache-2.0 */
/* template exec: statements, loops, macros. */
#include "template_priv.h"
#include "text_priv.h"

/* ---- set ---- */
static bool target_unpack(struct vm *vm, const struct node *target, struct value v)
{
	struct value items;
	if (!value_items(vm, v, &items))
		return false;
	if (items.list->n != target->n)
		return vm_type(vm, "%zu values can't be unpacked into %zu names", items.list->n, target->n);
	size_t i = 0;
	for (const struct node *name = target->list; name != NULL; name = name->next)
		if (!scope_set(vm, name->sym, items.list->v[i++]))
			return false;
	return true;
}

static bool target_assign(struct vm *vm, const struct node *target, struct value v)
{
	vm->now = target;
	if (target->kind == N_NAME)
		return scope_set(vm, target->sym, v);
	if (target->kind == N_TUPLE)
		return target_unpack(vm, target, v);
	struct value space = scope_get(vm, target->a->sym);
	if (space.kind != V_SPACE)
		return vm_type(vm, "an attribute can be set on a namespace only, not on %s",
			value_type(space));
	return dict_set(vm, space.dict, target->text, v);
}

static bool exec_set(struct vm *vm, const struct node *n)
{
	struct value v;
	return eval(vm, n->b, &v) && target_assign(vm, n->a, v);
}

/* Run a body with variables of its own. */
static bool scoped_body(struct vm *vm, const struct node *list)
{
	struct scope *old = vm->scope;
	if (scope_push(vm, old) == NULL)
		return false;
	bool ok = exec_body(vm, list);
	vm->scope = old;
	return ok;
}

static bool apply_filters(struct vm *vm, const struct node *f, struct value *io)
{
	struct args args;
	size_t sp = vm->sp;
	if (f == NULL)
		return true;
	if (!apply_filters(vm, f->a, io) || !eval_args(vm, f->list, &args))
		return false;
	vm->now = f;
	struct value in = *io;
	bool ok = filter_apply(vm, f->id, in, args, io);
	vm->sp = sp;
	return ok;
}

static bool exec_set_block(struct vm *vm, const struct node *n)
{
	struct value v;
	size_t mark = vm_mark(vm);
	return scoped_body(vm, n->list) && vm_take(vm, mark, &v) && apply_filters(vm, n->c, &v) &&
		target_assign(vm, n->a, v);
}

static bool exec_filter_block(struct vm *vm, const struct node *n)
{
	struct value v;
	size_t mark = vm_mark(vm);
	return scoped_body(vm, n->list) && vm_take(vm, mark, &v) && apply_filters(vm, n->c, &v) &&
		print_value(vm, v);
}

/* ---- loops ---- */
static bool loop_filter(struct vm *vm, const struct node *n, struct value items, struct value *out)
{
	struct value v;
	bool yes;
	if (!list_new(vm, 0, out))
		return false;
	for (size_t i = 0; i < items.list->n; i++) {
		if (!target_assign(vm, n->a, items.list->v[i]) || !eval(vm, n->c, &v) ||
			!value_true(vm, v, &yes))
			return false;
		if (yes && !list_add(vm, out->list, items.list->v[i]))
			return false;
	}
	return true;
}

static bool loop_turns(struct vm *vm, struct loop *l)
{
	struct scope *scope = vm->scope;
	struct value self = {.kind = V_LOOP, .loop = l};
	for (l->i = 0; l->i < l->items.list->n; l->i++) {
		if (!scope_clear(vm, &scope))
			return false;
		vm->scope = scope;
		if (!vm_spend(vm, 1) || !scope_set(vm, SYM_LOOP, self) ||
			!target_assign(vm, l->node->a, l->items.list->v[l->i]) ||
			!exec_body(vm, l->node->list))
			return false;
		enum flow flow = vm->flow;
		vm->flow = FLOW_ON;
		if (flow == FLOW_BREAK)
			return true;
	}
	return true;
}

bool loop_run(struct vm *vm, const struct node *n, struct value items, size_t depth)
{
	struct scope *old = vm->scope;
	struct loop *l = vm_get(vm, sizeof *l);
	vm->now = n;
	if (l == NULL || !value_items(vm, items, &items) || scope_push(vm, old) == NULL)
		return false;
	if (n->c != NULL && !loop_filter(vm, n, items, &items))
		return false;
	*l = (struct loop){.items = items, .depth = depth, .node = n};
	bool ok = loop_turns(vm, l);
	if (ok && items.list->n == 0)
		ok = exec_body(vm, n->body);
	vm->scope = old;
	return ok;
}

static bool exec_for(struct vm *vm, const struct node *n)
{
	struct value items;
	return eval(vm, n->b, &items) && loop_run(vm, n, items, 0);
}

/* ---- macros ---- */
static bool exec_macro(struct vm *vm, const struct node *n)
{
	struct macro *m = vm_get(vm, sizeof *m);
	if (m == NULL)
		return false;
	scope_keep(vm);
	*m = (struct macro){.node = n, .home = vm->scope};
	return scope_set(vm, n->sym, (struct value){.kind = V_MACRO, .macro = m});
}

static const char *macro_name(const struct node *n)
{
	return n->kind == N_MACRO ? "macro" : "caller";
}

static bool bind_one(struct vm *vm, const struct node *p, size_t i, struct args args, bool *given)
{
	struct value v = v_undefined();
	*given = i < args.n_pos;
	if (*given)
		v = args.v[i].v;
	for (size_t k = args.n_pos; k < args.n && !*given; k++)
		if (cgn_str_eq(args.v[k].name, p->text)) {
			v = args.v[k].v;
			*given = true;
		}
	return scope_set(vm, p->sym, v);
}

static const struct node *parameter_of(const struct node *n, struct cgn_str name)
{
	const struct node *p = n->body;
	while (p != NULL && !cgn_str_eq(p->text, name))
		p = p->next;
	return p;
}

static bool bind_rest(struct vm *vm, const struct node *n, struct args args)
{
	struct value positional, named;
	if (args.n_pos > n->n && !n->varargs)
		return vm_type(vm, "%s \"%.*s\" takes %zu arguments, not %zu", macro_name(n),
			CGN_STR_ARG(n->text), n->n, args.n_pos);
	if (!list_new(vm, 0, &positional) || !dict_new(vm, V_DICT, &named))
		return false;
	for (size_t i = n->n; i < args.n_pos; i++)
		if (!list_add(vm, positional.list, args.v[i].v))
			return false;
	for (size_t k = args.n_pos; k < args.n; k++) {
		struct cgn_str name = args.v[k].name;
		if (parameter_of(n, name) != NULL)
			continue;
		if (!n->kwargs)
			return vm_type(vm, "%s \"%.*s\" has no parameter \"%.*s\"", macro_name(n),
				CGN_STR_ARG(n->text), CGN_STR_ARG(name));
		if (!dict_set(vm, named.dict, name, args.v[k].v))
			return false;
	}
	positional.as = LIST_TUPLE;
	return (!n->varargs || scope_set(vm, SYM_VARARGS, positional)) &&
		(!n->kwargs || scope_set(vm, SYM_KWARGS, named));
}

static bool bind_arguments(struct vm *vm, const struct node *n, struct args args)
{
	bool given;
	size_t i = 0;
	for (const struct node *p = n->body; p != NULL; p = p->next)
		if (!bind_one(vm, p, i++, args, &given))
			return false;
	if ((n->varargs || n->kwargs || args.n > 0) && !bind_rest(vm, n, args))
		return false;
	i = 0;
	for (const struct node *p = n->body; p != NULL; p = p->next, i++) {
		struct value v;
		given = i < args.n_pos;
		for (size_t k = args.n_pos; k < args.n && !given; k++)
			given = cgn_str_eq(args.v[k].name, p->text);
		if (!given && p->a != NULL && (!eval(vm, p->a, &v) || !scope_set(vm, p->sym, v)))
			return false;
	}
	return true;
}

bool macro_run(struct vm *vm, struct macro *m, struct args args)
{
	struct scope *old = vm->scope;
	const struct node *n = m->node;
	if (++vm->depth > MAX_EVAL_DEPTH)
		return vm_fail(vm, CGN_TOO_LARGE, "the chat template recurses more than %d deep",
			MAX_EVAL_DEPTH);
	if (scope_push(vm, m->home) == NULL)
		return false;
	if (m->caller.kind != V_UNDEFINED && !scope_set(vm, SYM_CALLER, m->caller))
		return false;
	bool ok = bind_arguments(vm, n, args) && exec_body(vm, n->list);
	vm->scope = old;
	vm->depth--;
	return ok;
}

static bool exec_call_block(struct vm *vm, const struct node *n)
{
	struct value callee, out;
	struct args args;
	size_t sp = vm->sp;
	struct macro *caller = vm_get(vm, sizeof *caller);
	if (caller == NULL || !eval(vm, n->a->a, &callee) || !eval_args(vm, n->a->list, &args))
		return false;
	vm->now = n;
	scope_keep(vm);
	*caller = (struct macro){.node = n, .home = vm->scope};
	bool ok;
	if (callee.kind == V_MACRO) {
		struct macro with = *callee.macro;
		with.caller = (struct value){.kind = V_MACRO, .macro = caller};
		ok = macro_run(vm, &with, args);
	} else {
		ok = call_value(vm, callee, args, &out) && print_value(vm, out);
	}
	vm->sp = sp;
	return ok;
}

/* ---- the rest ---- */
static bool exec_if(struct vm *vm, const struct node *n)
{
	for (; n != NULL; n = n->b) {
		struct value v;
		bool yes;
		if (!eval(vm, n->a, &v) || !value_true(vm, v, &yes))
			return false;
		if (yes)
			return exec_body(vm, n->list);
		if (n->body != NULL)
			return exec_body(vm, n->body);
	}
	return true;
}

static bool exec_one(struct vm *vm, const struct node *n)
{
	switch ((int)n->kind) {
	case N_TEXT:
		return vm_emit(vm, n->text);
	case N_OUTPUT:
		return eval_output(vm, n->a);
	case N_IF:
		return exec_if(vm, n);
	case N_FOR:
		return exec_for(vm, n);
	case N_SET:
		return exec_set(vm, n);
	case N_SET_BLOCK:
		return exec_set_block(vm, n);
	case N_MACRO:
		return exec_macro(vm, n);
	case N_CALL_BLOCK:
		return exec_call_block(vm, n);
	case N_FILTER_BLOCK:
		return exec_filter_block(vm, n);
	case N_SCOPE:
		return scoped_body(vm, n->list);
	default:
		vm->flow = n->kind == N_BREAK ? FLOW_BREAK : FLOW_CONTINUE;
		return true;
	}
}

bool exec_body(struct vm *vm, const struct node *list)
{
	if (++vm->depth > MAX_EVAL_DEPTH)
		return vm_fail(vm, CGN_TOO_LARGE, "the chat template recurses more than %d deep",
			MAX_EVAL_DEPTH);
	for (const struct node *n = list; n != NULL && vm->flow == FLOW_ON; n = n->next) {
		vm->now = n;
		if (!vm_spend(vm, 1) || !exec_one(vm, n))
			return false;
	}
	vm->depth--;
	return true;
}
