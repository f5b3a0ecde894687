/* SPDX-License-Identifier: Apache-2.0 */
/* template tests: the names behind "is". Source: Jinja 3.1 documentation, "List of Builtin Tests". */
#include <math.h>

#include "template_priv.h"
#include "text_priv.h"

enum test_name {
	IS_DEFINED,
	IS_UNDEFINED,
	IS_NONE,
	IS_STRING,
	IS_MAPPING,
	IS_ITERABLE,
	IS_SEQUENCE,
	IS_NUMBER,
	IS_INTEGER,
	IS_FLOAT,
	IS_BOOLEAN,
	IS_TRUE,
	IS_FALSE,
	IS_CALLABLE,
	IS_ODD,
	IS_EVEN,
	IS_DIVISIBLEBY,
	IS_IN,
	IS_SAMEAS,
	IS_UPPER,
	IS_LOWER,
	IS_FILTER,
	IS_TEST,
	IS_EQ,
	IS_NE,
	IS_LT,
	IS_GT,
	IS_LE,
	IS_GE
};

static const struct {
	const char *name;
	enum test_name id;
} tests[] = {
	{"defined", IS_DEFINED},
	{"undefined", IS_UNDEFINED},
	{"none", IS_NONE},
	{"string", IS_STRING},
	{"mapping", IS_MAPPING},
	{"iterable", IS_ITERABLE},
	{"sequence", IS_SEQUENCE},
	{"number", IS_NUMBER},
	{"integer", IS_INTEGER},
	{"float", IS_FLOAT},
	{"boolean", IS_BOOLEAN},
	{"true", IS_TRUE},
	{"false", IS_FALSE},
	{"callable", IS_CALLABLE},
	{"odd", IS_ODD},
	{"even", IS_EVEN},
	{"divisibleby", IS_DIVISIBLEBY},
	{"in", IS_IN},
	{"sameas", IS_SAMEAS},
	{"upper", IS_UPPER},
	{"lower", IS_LOWER},
	{"filter", IS_FILTER},
	{"test", IS_TEST},
	{"equalto", IS_EQ},
	{"eq", IS_EQ},
	{"==", IS_EQ},
	{"ne", IS_NE},
	{"!=", IS_NE},
	{"lt", IS_LT},
	{"lessthan", IS_LT},
	{"<", IS_LT},
	{"gt", IS_GT},
	{"greaterthan", IS_GT},
	{">", IS_GT},
	{"le", IS_LE},
	{"<=", IS_LE},
	{"ge", IS_GE},
	{">=", IS_GE},
};

int test_id(struct cgn_str name)
{
	for (size_t i = 0; i < CGN_COUNT(tests); i++)
		if (cgn_str_is(name, tests[i].name))
			return (int)tests[i].id;
	return -1;
}

/* The remainder is between 0 and |by|, as for Python's %. */
static bool remainder_of(struct vm *vm, struct value v, struct value by, double *out)
{
	if (!is_num(v) || !is_num(by))
		return vm_type(vm, "%s is neither odd nor even, nor divisible by %s", value_type(v),
			value_type(by));
	double n = value_num(by);
	if (!(n < 0) && !(n > 0))
		return vm_type(vm, "divisible by zero");
	*out = v.kind == V_INT && by.kind == V_INT && by.i != -1 ? (double)(v.i % by.i)
								 : fmod(value_num(v), n);
	if ((*out < 0 && n > 0) || (*out > 0 && n < 0))
		*out += n;
	return true;
}

static bool is_about(double f, double want)
{
	return !(f < want) && !(f > want);
}

static bool is_divisible(struct vm *vm, struct value v, struct args args, bool *out)
{
	struct value by = v_undefined();
	double rest = 0;
	(void)arg_get(args, 0, "num", &by);
	if (!remainder_of(vm, v, by, &rest))
		return false;
	*out = is_about(rest, 0);
	return true;
}

static bool is_odd(struct vm *vm, struct value v, int id, bool *out)
{
	double rest = 0;
	if (!remainder_of(vm, v, v_int(2), &rest))
		return false;
	*out = is_about(rest, id == IS_ODD ? 1 : 0);
	return true;
}

static bool is_cased(struct vm *vm, struct value v, int id, bool *out)
{
	struct cgn_str s, same, other;
	if (!value_text(vm, v, &s) || !text_case(vm, s, id == IS_UPPER ? CASE_UPPER : CASE_LOWER, &same) ||
		!text_case(vm, s, id == IS_UPPER ? CASE_LOWER : CASE_UPPER, &other))
		return false;
	*out = cgn_str_eq(s, same) && !cgn_str_eq(same, other);
	return true;
}

static bool is_same(struct vm *vm, struct value v, struct args args, bool *out)
{
	struct value other;
	if (!arg_get(args, 0, "other", &other))
		return vm_type(vm, "sameas needs a value");
	*out = false;
	return v.kind != other.kind || value_equal(vm, v, other, out);
}

static bool is_compared(struct vm *vm, struct value v, int id, struct args args, bool *out)
{
	static const enum op ops[] = {OP_EQ, OP_NE, OP_LT, OP_GT, OP_LE, OP_GE};
	struct value other, yes;
	if (!arg_get(args, 0, "b", &other))
		return vm_type(vm, "this test needs something to compare with");
	if (!op_binary(vm, ops[id - IS_EQ], v, other, &yes))
		return false;
	*out = yes.b;
	return true;
}

static bool is_known(struct vm *vm, struct value v, int id, bool *out)
{
	struct cgn_str name;
	*out = false;
	if (!is_str(v))
		return true;
	if (!value_str(vm, v, &name))
		return false;
	*out = (id == IS_FILTER ? filter_id(name) : test_id(name)) >= 0;
	return true;
}

static bool is_in(struct vm *vm, struct value v, struct args args, bool *out)
{
	struct value seq, yes;
	if (!arg_get(args, 0, "seq", &seq))
		return vm_type(vm, "the test \"in\" needs something to look in");
	if (!op_binary(vm, OP_IN, v, seq, &yes))
		return false;
	*out = yes.b;
	return true;
}

static bool is_kind(struct value v, int id)
{
	switch (id) {
	case IS_DEFINED:
		return v.kind != V_UNDEFINED;
	case IS_UNDEFINED:
		return v.kind == V_UNDEFINED;
	case IS_NONE:
		return v.kind == V_NONE;
	case IS_STRING:
		return is_str(v);
	case IS_MAPPING:
		return v.kind == V_DICT;
	case IS_ITERABLE:
		return is_str(v) || v.kind == V_LIST || v.kind == V_DICT || v.kind == V_UNDEFINED ||
			v.kind == V_LOOP;
	case IS_SEQUENCE:
		return is_str(v) || is_indexed(v) || v.kind == V_DICT || v.kind == V_UNDEFINED;
	case IS_NUMBER:
		return is_num(v);
	case IS_INTEGER:
		return v.kind == V_INT || v.kind == V_BIG;
	case IS_FLOAT:
		return v.kind == V_FLOAT;
	case IS_BOOLEAN:
		return v.kind == V_BOOL;
	case IS_TRUE:
		return v.kind == V_BOOL && v.b;
	case IS_FALSE:
		return v.kind == V_BOOL && !v.b;
	default: /* IS_CALLABLE. */
		return v.kind == V_MACRO || v.kind == V_METHOD || v.kind == V_GLOBAL || v.kind == V_LOOP ||
			v.kind == V_UNDEFINED;
	}
}

bool test_apply(struct vm *vm, int id, struct value v, struct args args, bool *out)
{
	if (id >= IS_EQ)
		return is_compared(vm, v, id, args, out);
	switch (id) {
	case IS_ODD:
	case IS_EVEN:
		return is_odd(vm, v, id, out);
	case IS_DIVISIBLEBY:
		return is_divisible(vm, v, args, out);
	case IS_IN:
		return is_in(vm, v, args, out);
	case IS_SAMEAS:
		return is_same(vm, v, args, out);
	case IS_UPPER:
	case IS_LOWER:
		return is_cased(vm, v, id, out);
	case IS_FILTER:
	case IS_TEST:
		return is_known(vm, v, id, out);
	default:
		*out = is_kind(v, id);
		return true;
	}
}
