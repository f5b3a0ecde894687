/* SPDX-License-Identifier: Apache-2.0 */
/* template loop: what a body asks its loop. */
#include "template_priv.h"

static bool loop_cycle(struct vm *vm, const struct loop *l, struct args args, struct value *out)
{
	if (args.n_pos == 0)
		return vm_type(vm, "loop.cycle needs something to cycle through");
	*out = args.v[l->i % args.n_pos].v;
	return true;
}

static bool loop_changed(struct vm *vm, struct loop *l, struct args args, struct value *out)
{
	struct value now;
	bool same = false;
	if (!list_new(vm, args.n, &now))
		return false;
	for (size_t i = 0; i < args.n; i++)
		now.list->v[now.list->n++] = args.v[i].v;
	if (l->has_changed && !value_equal(vm, l->changed, now, &same))
		return false;
	l->changed = now;
	l->has_changed = true;
	*out = v_bool(!same);
	return true;
}

bool loop_call(struct vm *vm, struct loop *l, bool cycle, struct args args, struct value *out)
{
	return cycle ? loop_cycle(vm, l, args, out) : loop_changed(vm, l, args, out);
}

bool loop_attr(const struct loop *l, struct cgn_str name, struct value *out)
{
	int64_t i = (int64_t)l->i, n = (int64_t)l->items.list->n;
	const struct {
		const char *name;
		struct value v;
	} attrs[] = {
		{"index", v_int(i + 1)},
		{"index0", v_int(i)},
		{"first", v_bool(i == 0)},
		{"last", v_bool(i == n - 1)},
		{"length", v_int(n)},
		{"revindex", v_int(n - i)},
		{"revindex0", v_int(n - i - 1)},
		{"depth", v_int((int64_t)l->depth + 1)},
		{"depth0", v_int((int64_t)l->depth)},
		{"previtem", i > 0 ? l->items.list->v[i - 1] : v_undefined()},
		{"nextitem", i + 1 < n ? l->items.list->v[i + 1] : v_undefined()},
	};
	for (size_t k = 0; k < CGN_COUNT(attrs); k++)
		if (cgn_str_is(name, attrs[k].name)) {
			*out = attrs[k].v;
			return true;
		}
	return false;
}
