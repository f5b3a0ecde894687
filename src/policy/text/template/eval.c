/* SPDX-License-Identifier: Apache-2.0 */
/* template eval: expressions. Output is emitted piece by piece ("a" + b + "c" never becomes one string). */
#include "template_priv.h"
#include "text_priv.h"

static bool find_in(struct vm *vm, struct value v, struct cgn_str name, struct value *out, bool *found)
{
	*found = false;
	if (v.kind == V_DICT || v.kind == V_SPACE)
		return dict_find(vm, v.dict, name, out, found);
	return true;
}

static bool bind_method(struct vm *vm, struct value self, int id, struct value *out)
{
	struct method *m = vm_get(vm, sizeof *m);
	if (m == NULL)
		return false;
	*m = (struct method){self, id};
	*out = (struct value){.kind = V_METHOD, .method = m};
	return true;
}

/* v.name */
static bool eval_attr(struct vm *vm, struct value v, struct cgn_str name, struct value *out)
{
	bool found;
	*out = v_undefined();
	if (v.kind == V_UNDEFINED)
		return vm_type(vm, "\"%.*s\" of an undefined value", CGN_STR_ARG(name));
	if (v.kind == V_LOOP && loop_attr(v.loop, name, out))
		return true;
	int id = method_id(v.kind, name);
	return id >= 0 ? bind_method(vm, v, id, out) : find_in(vm, v, name, out, &found);
}

static bool item_by_index(struct vm *vm, struct value v, int64_t i, struct value *out)
{
	struct cgn_str s;
	if (is_str(v)) {
		int64_t to = i < INT64_MAX ? i + 1 : i;
		if (!value_str(vm, v, &s) || !text_slice(vm, s, &i, i == -1 ? NULL : &to, 1, &s))
			return false;
		*out = s.n > 0 ? v_str(s) : v_undefined();
		return true;
	}
	if (!value_list(vm, v))
		return false;
	if (i < 0)
		i += (int64_t)v.list->n;
	*out = !is_indexed(v)                       ? v_undefined()
		: i >= 0 && (uint64_t)i < v.list->n ? v.list->v[i]
						    : v_undefined();
	return true;
}

/* v["key"]: the key takes precedence over the method of that name. */
static bool item_by_name(struct vm *vm, struct value v, struct cgn_str name, struct value *out)
{
	bool found;
	if (!find_in(vm, v, name, out, &found))
		return false;
	return found || eval_attr(vm, v, name, out);
}

static bool eval_item(struct vm *vm, const struct node *n, struct value *out)
{
	struct value v, key;
	struct cgn_str name;
	if (!eval(vm, n->a, &v) || !eval(vm, n->b, &key))
		return false;
	vm->now = n;
	*out = v_undefined();
	if (v.kind == V_UNDEFINED)
		return vm_type(vm, "an item of an undefined value");
	if (is_str(key))
		return value_str(vm, key, &name) && item_by_name(vm, v, name, out);
	if ((key.kind == V_INT || key.kind == V_BOOL) && (is_str(v) || v.kind == V_LIST))
		return item_by_index(vm, v, key.kind == V_INT ? key.i : (int64_t)key.b, out);
	return true;
}

static bool slice_bound(struct vm *vm, const struct node *n, int64_t *out, const int64_t **set)
{
	struct value v;
	*set = NULL;
	if (n == NULL)
		return true;
	if (!eval(vm, n, &v))
		return false;
	if (v.kind == V_NONE)
		return true;
	if (v.kind != V_INT)
		return vm_type(vm, "the bound of a slice is %s", value_type(v));
	*out = v.i;
	*set = out;
	return true;
}

static bool slice_list(struct vm *vm, struct value v, const int64_t *from, const int64_t *to, int64_t step,
	struct value *out)
{
	int64_t at;
	size_t count;
	if (!value_list(vm, v))
		return false;
	if (!slice_range(v.list->n, from, to, step, &at, &count))
		return vm_type(vm, "the step of a slice is zero");
	if (!list_new(vm, count, out) || !vm_spend(vm, count))
		return false;
	out->as = v.as;
	for (size_t i = 0; i < count; i++)
		out->list->v[i] = v.list->v[at + (int64_t)i * step];
	out->list->n = count;
	return true;
}

static bool eval_slice(struct vm *vm, const struct node *n, struct value *out)
{
	struct value v;
	int64_t from, to, step;
	const int64_t *a, *b, *c;
	struct cgn_str s;
	if (!eval(vm, n->a, &v) || !slice_bound(vm, n->b, &from, &a) || !slice_bound(vm, n->c, &to, &b) ||
		!slice_bound(vm, n->d, &step, &c))
		return false;
	vm->now = n;
	if (is_indexed(v))
		return slice_list(vm, v, a, b, c != NULL ? *c : 1, out);
	if (!is_str(v))
		return vm_type(vm, "a slice of %s", value_type(v));
	if (!value_str(vm, v, &s) || !text_slice(vm, s, a, b, c != NULL ? *c : 1, &s))
		return false;
	*out = v_str(s);
	return true;
}

/* ---- calls ---- */
static bool push_arg(struct vm *vm, struct args *args, struct cgn_str name, struct value v)
{
	if (vm->sp == MAX_ARGS)
		return vm_fail(vm, CGN_TOO_LARGE, "more than %d arguments wait in the chat template's calls",
			MAX_ARGS);
	for (size_t i = 0; name.p != NULL && i < args->n; i++)
		if (args->v[i].name.p != NULL && cgn_str_eq(args->v[i].name, name))
			return vm_type(vm, "the argument \"%.*s\" is given twice", CGN_STR_ARG(name));
	vm->stack[vm->sp++] = (struct arg){name, v};
	args->n++;
	args->n_pos += name.p == NULL;
	return true;
}

static bool args_spread(struct vm *vm, struct value v, bool named, struct args *args)
{
	struct value items;
	if (named ? v.kind != V_DICT : v.kind != V_LIST && v.kind != V_DICT && !is_str(v))
		return vm_type(vm, "%s behind %s in a call", value_type(v), named ? "**" : "*");
	if (named) {
		if (!value_list(vm, v))
			return false;
		for (size_t i = 0; i < v.dict->n; i++)
			if (!push_arg(vm, args, v.dict->e[i].key.p != NULL ? v.dict->e[i].key : CGN_STR(""),
				    v.dict->e[i].v))
				return false;
		return true;
	}
	if (!value_items(vm, v, &items))
		return false;
	for (size_t i = 0; i < items.list->n; i++)
		if (!push_arg(vm, args, (struct cgn_str){NULL, 0}, items.list->v[i]))
			return false;
	return true;
}

bool eval_args(struct vm *vm, const struct node *list, struct args *out)
{
	*out = (struct args){vm->stack + vm->sp, 0, 0};
	for (int named = 0; named < 2; named++) /* Positional arguments first, as Python evaluates them. */
		for (const struct node *n = list; n != NULL; n = n->next) {
			struct value v;
			if ((n->kind == N_NAMED || n->kind == N_SPREAD_NAMED) != (named == 1))
				continue;
			if (!eval(vm, n->a, &v))
				return false;
			bool spreads = n->kind == N_SPREAD || n->kind == N_SPREAD_NAMED;
			if (!(spreads ? args_spread(vm, v, named == 1, out)
				      : push_arg(vm, out, named == 1 ? n->text : (struct cgn_str){NULL, 0},
						v)))
				return false;
		}
	return true;
}

static bool run_to_value(struct vm *vm, struct value callee, struct args args, struct value *out)
{
	size_t mark = vm_mark(vm);
	if (callee.kind == V_MACRO)
		return macro_run(vm, callee.macro, args) && vm_take(vm, mark, out);
	if (args.n_pos < 1 || !callee.loop->node->flag)
		return vm_type(vm, "loop() needs a \"recursive\" loop and what to walk through");
	return loop_run(vm, callee.loop->node, args.v[0].v, callee.loop->depth + 1) && vm_take(vm, mark, out);
}

bool call_value(struct vm *vm, struct value callee, struct args args, struct value *out)
{
	switch ((int)callee.kind) {
	case V_MACRO:
	case V_LOOP:
		return run_to_value(vm, callee, args, out);
	case V_METHOD:
		return method_call(vm, callee.method->self, callee.method->id, args, out);
	case V_GLOBAL:
		return global_call(vm, callee.id, args, out);
	default:
		return vm_type(vm, "%s can't be called", value_type(callee));
	}
}

/* Evaluate "x.strip()" without making a value of the method. */
static bool call_method(struct vm *vm, const struct node *n, struct value *out)
{
	struct value self, callee = v_undefined();
	struct args args;
	if (!eval(vm, n->a->a, &self))
		return false;
	vm->now = n->a;
	int id = method_id(self.kind, n->a->text);
	bool direct = id >= 0;
	if (!direct && !eval_attr(vm, self, n->a->text, &callee))
		return false;
	if (!direct && callee.kind == V_UNDEFINED)
		return vm_type(vm, "%s has no method \"%.*s\"", value_type(self), CGN_STR_ARG(n->a->text));
	if (!eval_args(vm, n->list, &args))
		return false;
	vm->now = n;
	return direct ? method_call(vm, self, id, args, out) : call_value(vm, callee, args, out);
}

static bool call_name(struct vm *vm, const struct node *n, struct value *out)
{
	struct value callee;
	struct args args;
	if (!eval(vm, n->a, &callee) || !eval_args(vm, n->list, &args))
		return false;
	vm->now = n;
	if (callee.kind == V_UNDEFINED && n->a->kind == N_NAME)
		return vm_type(vm, "\"%.*s\" is undefined and can't be called", CGN_STR_ARG(n->a->text));
	return call_value(vm, callee, args, out);
}

static bool eval_call(struct vm *vm, const struct node *n, struct value *out)
{
	size_t sp = vm->sp;
	bool ok = n->a->kind == N_ATTR ? call_method(vm, n, out) : call_name(vm, n, out);
	vm->sp = sp;
	return ok;
}

static bool eval_filter(struct vm *vm, const struct node *n, struct value *out)
{
	struct value v;
	struct args args;
	size_t sp = vm->sp;
	if (!eval(vm, n->a, &v) || !eval_args(vm, n->list, &args))
		return false;
	vm->now = n;
	bool ok = filter_apply(vm, n->id, v, args, out);
	vm->sp = sp;
	return ok;
}

static bool eval_test(struct vm *vm, const struct node *n, struct value *out)
{
	struct value v;
	struct args args;
	size_t sp = vm->sp;
	bool yes;
	if (!eval(vm, n->a, &v) || !eval_args(vm, n->list, &args))
		return false;
	vm->now = n;
	if (!test_apply(vm, n->id, v, args, &yes))
		return false;
	vm->sp = sp;
	*out = v_bool(yes != n->flag);
	return true;
}

/* ---- the rest ---- */
static bool eval_list(struct vm *vm, const struct node *n, struct value *out)
{
	if (!list_new(vm, n->n, out))
		return false;
	for (const struct node *e = n->list; e != NULL; e = e->next)
		if (!eval(vm, e->a, &out->list->v[out->list->n++]))
			return false;
	out->as = n->kind == N_TUPLE ? LIST_TUPLE : LIST_PLAIN;
	return true;
}

static bool eval_dict(struct vm *vm, const struct node *n, struct value *out)
{
	struct value key, v;
	struct cgn_str name;
	if (!dict_new(vm, V_DICT, out))
		return false;
	for (const struct node *e = n->list; e != NULL; e = e->next) {
		if (!eval(vm, e->a, &key))
			return false;
		if (!is_str(key))
			return vm_type(vm, "%s as a dictionary's key; only strings are supported",
				value_type(key));
		if (!value_str(vm, key, &name) || !eval(vm, e->b, &v) || !dict_set(vm, out->dict, name, v))
			return false;
	}
	return true;
}

static bool eval_sign(struct vm *vm, const struct node *n, struct value *out)
{
	struct value v;
	if (!eval(vm, n->a, &v))
		return false;
	vm->now = n;
	if (!is_num(v) || v.kind == V_BIG)
		return vm_type(vm, "no sign before %s", value_type(v));
	if (v.kind == V_FLOAT) {
		*out = v_float(n->kind == N_NEG ? -v.f : v.f);
		return true;
	}
	int64_t i = v.kind == V_BOOL ? (int64_t)v.b : v.i;
	*out = v_int(n->kind == N_NEG && i != INT64_MIN ? -i : i);
	return true;
}

/* a < b < c compares each pair. */
static bool eval_compare(struct vm *vm, const struct node *n, struct value *out)
{
	struct value left, right;
	bool on = true;
	if (!eval(vm, n->a, &left))
		return false;
	for (const struct node *c = n->list; c != NULL && on; c = c->next) {
		if (!eval(vm, c->a, &right))
			return false;
		vm->now = n;
		if (!op_binary(vm, c->op, left, right, out) || !value_true(vm, *out, &on))
			return false;
		left = right;
	}
	return true;
}

static bool is_sum(const struct node *n)
{
	return n->kind == N_BIN && n->op == OP_ADD;
}

/* a + b + c + d */
static bool eval_sum(struct vm *vm, const struct node *n, struct value *out)
{
	const struct node *terms[MAX_SUM];
	struct value v[MAX_SUM];
	size_t first = MAX_SUM;
	const struct node *at = n;
	for (; first > 1 && is_sum(at); at = at->a)
		terms[--first] = at->b;
	terms[--first] = at;
	for (size_t i = first; i < MAX_SUM; i++)
		if (!eval(vm, terms[i], &v[i]))
			return false;
	vm->now = n;
	return op_sum(vm, v + first, MAX_SUM - first, out);
}

static bool eval_binary(struct vm *vm, const struct node *n, struct value *out)
{
	struct value a, b;
	if (is_sum(n) && is_sum(n->a))
		return eval_sum(vm, n, out);
	if (!eval(vm, n->a, &a) || !eval(vm, n->b, &b))
		return false;
	vm->now = n;
	return op_binary(vm, n->op, a, b, out);
}

static bool output_joined(struct vm *vm, const struct node *n)
{
	for (const struct node *e = n->list; e != NULL; e = e->next) {
		struct value v;
		if (!eval(vm, e->a, &v))
			return false;
		vm->now = n;
		if (!print_value(vm, v))
			return false;
	}
	return true;
}

static bool eval_joined(struct vm *vm, const struct node *n, struct value *out)
{
	size_t mark = vm_mark(vm);
	return output_joined(vm, n) && vm_take(vm, mark, out);
}

static bool eval_logic(struct vm *vm, const struct node *n, struct value *out)
{
	bool yes;
	if (!eval(vm, n->a, out) || !value_true(vm, *out, &yes))
		return false;
	if (n->kind == N_NOT) {
		*out = v_bool(!yes);
		return true;
	}
	return yes == (n->kind == N_OR) || eval(vm, n->b, out);
}

static bool expr_choose(struct vm *vm, const struct node *n, const struct node **out)
{
	struct value test;
	bool yes;
	if (!eval(vm, n->a, &test) || !value_true(vm, test, &yes))
		return false;
	*out = yes ? n->b : n->c;
	return true;
}

static bool eval_cond(struct vm *vm, const struct node *n, struct value *out)
{
	const struct node *arm;
	*out = v_undefined();
	return expr_choose(vm, n, &arm) && (arm == NULL || eval(vm, arm, out));
}

static bool eval_member(struct vm *vm, const struct node *n, struct value *out)
{
	struct value v;
	if (!eval(vm, n->a, &v))
		return false;
	vm->now = n;
	return eval_attr(vm, v, n->text, out);
}

static bool eval_const(struct vm *vm, const struct node *n, struct value *out)
{
	(void)vm;
	*out = n->value;
	return true;
}

static bool eval_name(struct vm *vm, const struct node *n, struct value *out)
{
	*out = scope_get(vm, n->sym);
	return true;
}

static bool (*const evals[])(struct vm *vm, const struct node *n, struct value *out) = {
	[N_CONST] = eval_const,
	[N_NAME] = eval_name,
	[N_ATTR] = eval_member,
	[N_ITEM] = eval_item,
	[N_SLICE] = eval_slice,
	[N_CALL] = eval_call,
	[N_FILTER] = eval_filter,
	[N_TEST] = eval_test,
	[N_LIST] = eval_list,
	[N_TUPLE] = eval_list,
	[N_DICT] = eval_dict,
	[N_NOT] = eval_logic,
	[N_NEG] = eval_sign,
	[N_POS] = eval_sign,
	[N_BIN] = eval_binary,
	[N_JOIN] = eval_joined,
	[N_AND] = eval_logic,
	[N_OR] = eval_logic,
	[N_COMPARE] = eval_compare,
	[N_COND] = eval_cond,
};

static bool eval_enter(struct vm *vm)
{
	if (++vm->depth > MAX_EVAL_DEPTH)
		return vm_fail(vm, CGN_TOO_LARGE, "the chat template recurses more than %d deep",
			MAX_EVAL_DEPTH);
	return vm_spend(vm, 1);
}

bool eval(struct vm *vm, const struct node *n, struct value *out)
{
	if (!eval_enter(vm))
		return false;
	bool ok = evals[n->kind](vm, n, out);
	vm->depth--;
	return ok;
}

/* Emit an expression that can only be text. |*sent| false: nothing was emitted and |*out| has the value. */
static bool expr_emit(struct vm *vm, const struct node *n, struct value *out, bool *sent);

static bool send_sum(struct vm *vm, const struct node *n, struct value *out, bool *sent)
{
	struct value a, b;
	if (!expr_emit(vm, n->a, &a, sent) || !eval(vm, n->b, &b))
		return false;
	vm->now = n;
	if (!*sent)
		return op_binary(vm, OP_ADD, a, b, out);
	if (is_str(b))
		return print_value(vm, b);
	return op_binary(vm, OP_ADD, v_str(CGN_STR("")), b, out); /* Fails with the reason. */
}

static bool send_call(struct vm *vm, const struct node *n, struct value *out, bool *sent)
{
	struct value callee = scope_get(vm, n->a->sym);
	struct args args;
	if (callee.kind != V_MACRO)
		return eval_call(vm, n, out);
	size_t sp = vm->sp;
	if (!eval_args(vm, n->list, &args))
		return false;
	vm->now = n;
	bool ok = macro_run(vm, callee.macro, args);
	vm->sp = sp;
	*sent = true;
	return ok;
}

static bool send_value(struct vm *vm, const struct node *n, struct value *out, bool *sent)
{
	if (!eval(vm, n, out))
		return false;
	*sent = is_str(*out);
	return !*sent || print_value(vm, *out);
}

static bool expr_emit(struct vm *vm, const struct node *n, struct value *out, bool *sent)
{
	const struct node *arm;
	*sent = false;
	if (!eval_enter(vm))
		return false;
	bool ok;
	if (is_sum(n)) {
		ok = send_sum(vm, n, out, sent);
	} else if (n->kind == N_JOIN) {
		*sent = true;
		ok = output_joined(vm, n);
	} else if (n->kind == N_CALL && n->a->kind == N_NAME) {
		ok = send_call(vm, n, out, sent);
		if (ok && !*sent && is_str(*out)) {
			*sent = true;
			ok = print_value(vm, *out);
		}
	} else if (n->kind == N_COND) {
		*out = v_undefined();
		ok = expr_choose(vm, n, &arm) && (arm == NULL || expr_emit(vm, arm, out, sent));
	} else {
		ok = send_value(vm, n, out, sent);
	}
	vm->depth--;
	return ok;
}

bool eval_output(struct vm *vm, const struct node *n)
{
	struct value v;
	bool sent;
	if (!expr_emit(vm, n, &v, &sent))
		return false;
	vm->now = n;
	return sent || print_value(vm, v);
}
