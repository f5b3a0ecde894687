/* SPDX-License-Identifier: Apache-2.0 */
/* template args: arguments by place or by name. */
#include "template_priv.h"

bool arg_get(struct args args, size_t i, const char *name, struct value *out)
{
	if (i < args.n_pos) {
		*out = args.v[i].v;
		return true;
	}
	for (size_t k = args.n_pos; k < args.n; k++)
		if (cgn_str_is(args.v[k].name, name)) {
			*out = args.v[k].v;
			return true;
		}
	return false;
}

bool arg_int(struct vm *vm, struct args args, size_t i, const char *name, int64_t *out)
{
	struct value v;
	if (!arg_get(args, i, name, &v) || v.kind == V_NONE)
		return true;
	if (v.kind != V_INT)
		return vm_type(vm, "the argument \"%s\" has to be an integer", name);
	*out = v.i;
	return true;
}

bool arg_bool(struct vm *vm, struct args args, size_t i, const char *name, bool *out)
{
	struct value v;
	return !arg_get(args, i, name, &v) || value_true(vm, v, out);
}

bool arg_str(struct vm *vm, struct args args, size_t i, const char *name, struct cgn_str *out)
{
	struct value v;
	if (!arg_get(args, i, name, &v))
		return true;
	if (!is_str(v))
		return vm_type(vm, "the argument \"%s\" has to be a string", name);
	return value_str(vm, v, out);
}
