/* SPDX-License-Identifier: Apache-2.0 */
/* template operators. "and", "or", "not" and ~ are in eval.c, because they decide which operands are
 * evaluated. */
#include <math.h>

#include "template_priv.h"
#include "text_priv.h"

static const char *const names[] = {"+", "-", "*", "/", "//", "%", "**", "==", "!=", "<", ">",
	"<=", ">=", "in", "not in"};

static bool op_refuse(struct vm *vm, enum op op, struct value a, struct value b)
{
	return vm_type(vm, "no \"%s\" between %s and %s", names[op], value_type(a), value_type(b));
}

static bool op_divide(struct vm *vm, enum op op, double x, double y, struct value *out)
{
	if (!(y < 0) && !(y > 0))
		return vm_type(vm, "division by zero");
	double r = op == OP_DIV ? x / y : op == OP_FLOOR ? floor(x / y) : fmod(x, y);
	if (op == OP_REM && (r < 0 || r > 0) && (r < 0) != (y < 0))
		r += y;
	*out = v_float(r);
	return true;
}

static bool divide_ints(struct vm *vm, enum op op, int64_t x, int64_t y, struct value *out)
{
	if (y == 0)
		return vm_type(vm, "division by zero");
	if (y == -1) { /* The only quotient that overflows. */
		*out = v_int(op == OP_REM ? 0 : x == INT64_MIN ? INT64_MAX : -x);
		return true;
	}
	int64_t quotient = x / y, rest = x % y;
	if (rest != 0 && (rest < 0) != (y < 0)) {
		quotient--;
		rest += y;
	}
	*out = v_int(op == OP_REM ? rest : quotient);
	return true;
}

static bool raise_power(struct vm *vm, struct value a, struct value b, struct value *out)
{
	double x = value_num(a), y = value_num(b), r = pow(x, y);
	bool whole = a.kind != V_FLOAT && b.kind != V_FLOAT && y >= 0;
	if (!isfinite(r) || (whole && fabs(r) > 9007199254740992.0))
		return vm_type(vm, "the power is too large, or no real number");
	*out = whole ? v_int((int64_t)r) : v_float(r);
	return true;
}

static int64_t whole_of(struct value v)
{
	return v.kind == V_BOOL ? (int64_t)v.b : v.i;
}

static bool op_ints(struct vm *vm, enum op op, int64_t x, int64_t y, struct value *out)
{
	bool over;
	int64_t r = 0;
	if (op == OP_FLOOR || op == OP_REM)
		return divide_ints(vm, op, x, y, out);
	if (op == OP_ADD)
		over = __builtin_add_overflow(x, y, &r);
	else if (op == OP_SUB)
		over = __builtin_sub_overflow(x, y, &r);
	else
		over = __builtin_mul_overflow(x, y, &r);
	if (over)
		return vm_type(vm, "the result of \"%s\" does not fit 64 bits", names[op]);
	*out = v_int(r);
	return true;
}

static bool op_numbers(struct vm *vm, enum op op, struct value a, struct value b, struct value *out)
{
	double x = value_num(a), y = value_num(b);
	if (op == OP_POW)
		return raise_power(vm, a, b, out);
	if (op == OP_DIV)
		return op_divide(vm, op, x, y, out);
	if (a.kind == V_BIG || b.kind == V_BIG)
		return vm_type(vm, "\"%s\" with an integer of more than 64 bits", names[op]);
	if (a.kind != V_FLOAT && b.kind != V_FLOAT)
		return op_ints(vm, op, whole_of(a), whole_of(b), out);
	if (op == OP_FLOOR || op == OP_REM)
		return op_divide(vm, op, x, y, out);
	*out = v_float(op == OP_ADD ? x + y : op == OP_SUB ? x - y : x * y);
	return true;
}

static bool join_lists(struct vm *vm, struct value a, struct value b, struct value *out)
{
	if (!value_list(vm, a) || !value_list(vm, b) || !list_new(vm, a.list->n + b.list->n, out) ||
		!vm_spend(vm, a.list->n + b.list->n))
		return false;
	for (size_t i = 0; i < a.list->n + b.list->n; i++)
		out->list->v[i] = i < a.list->n ? a.list->v[i] : b.list->v[i - a.list->n];
	out->list->n = a.list->n + b.list->n;
	out->as = a.as;
	return true;
}

static bool join_strings(struct vm *vm, const struct value *v, size_t n, struct value *out)
{
	struct cgn_str parts[MAX_SUM], made;
	for (size_t i = 0; i < n; i++)
		if (!value_str(vm, v[i], &parts[i]))
			return false;
	if (!text_join(vm, parts, n, &made))
		return false;
	*out = v_str(made);
	return true;
}

static bool repeat_list(struct vm *vm, struct value l, int64_t times, struct value *out)
{
	if (!list_new(vm, 0, out) || !value_list(vm, l))
		return false;
	out->as = l.as;
	for (; times > 0 && l.list->n > 0; times--)
		for (size_t i = 0; i < l.list->n; i++)
			if (!list_add(vm, out->list, l.list->v[i]))
				return false;
	return true;
}

/* "a" * 3, [0] * 3; |by| is the value of the 3. */
static bool op_repeat(struct vm *vm, struct value s, int64_t times, struct value by, struct value *out)
{
	struct cgn_str text;
	if (is_indexed(s))
		return repeat_list(vm, s, times, out);
	if (!is_str(s))
		return op_refuse(vm, OP_MUL, s, by);
	size_t mark = vm_mark(vm);
	if (!value_str(vm, s, &text))
		return false;
	for (; times > 0; times--)
		if (!vm_emit(vm, text))
			return false;
	return vm_take(vm, mark, out);
}

static bool op_compute(struct vm *vm, enum op op, struct value a, struct value b, struct value *out)
{
	if (is_num(a) && is_num(b))
		return op_numbers(vm, op, a, b, out);
	if (op == OP_ADD && is_str(a) && is_str(b))
		return join_strings(vm, (const struct value[]){a, b}, 2, out);
	if (op == OP_ADD && is_indexed(a) && is_indexed(b) && a.as == b.as)
		return join_lists(vm, a, b, out);
	if (op == OP_MUL && (b.kind == V_INT || b.kind == V_BOOL))
		return op_repeat(vm, a, whole_of(b), b, out);
	if (op == OP_MUL && (a.kind == V_INT || a.kind == V_BOOL))
		return op_repeat(vm, b, whole_of(a), a, out);
	return op_refuse(vm, op, a, b);
}

static bool in_list(struct vm *vm, struct value a, struct value list, bool *out)
{
	*out = false;
	if (!value_items(vm, list, &list))
		return false;
	for (size_t i = 0; i < list.list->n && !*out; i++)
		if (!value_equal(vm, list.list->v[i], a, out))
			return false;
	return true;
}

static bool op_in(struct vm *vm, enum op op, struct value a, struct value b, struct value *out)
{
	struct cgn_str x, y;
	struct value ignored;
	bool in = false;
	size_t at;
	if (b.kind == V_LIST) {
		if (!in_list(vm, a, b, &in))
			return false;
	} else if (b.kind == V_DICT && is_str(a)) {
		if (!value_str(vm, a, &x) || !dict_find(vm, b.dict, x, &ignored, &in))
			return false;
	} else if (is_str(a) && is_str(b)) {
		if (!value_str(vm, a, &x) || !value_str(vm, b, &y) || !text_find(vm, y, x, &at))
			return false;
		in = at != SIZE_MAX;
	} else if (b.kind != V_UNDEFINED && (b.kind != V_DICT || a.kind == V_LIST || a.kind == V_DICT)) {
		return op_refuse(vm, op, a, b);
	}
	*out = v_bool(in == (op == OP_IN));
	return true;
}

static bool op_order(struct vm *vm, enum op op, struct value a, struct value b, struct value *out)
{
	int order;
	if (!value_order(vm, a, b, false, &order))
		return false;
	*out = v_bool(op == OP_LT     ? order < 0
			: op == OP_GT ? order > 0
			: op == OP_LE ? order <= 0
				      : order >= 0);
	return true;
}

bool op_binary(struct vm *vm, enum op op, struct value a, struct value b, struct value *out)
{
	bool same;
	if (op == OP_EQ || op == OP_NE) {
		if (!value_equal(vm, a, b, &same))
			return false;
		*out = v_bool(same == (op == OP_EQ));
		return true;
	}
	if (op == OP_IN || op == OP_NOT_IN)
		return op_in(vm, op, a, b, out);
	return op >= OP_LT ? op_order(vm, op, a, b, out) : op_compute(vm, op, a, b, out);
}

bool op_sum(struct vm *vm, const struct value *v, size_t n, struct value *out)
{
	size_t strings = 0;
	while (strings < n && is_str(v[strings]))
		strings++;
	if (strings == n)
		return join_strings(vm, v, n, out);
	*out = v[0];
	for (size_t i = 1; i < n; i++)
		if (!op_binary(vm, OP_ADD, *out, v[i], out))
			return false;
	return true;
}
