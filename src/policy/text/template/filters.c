/* SPDX-License-Identifier: Apache-2.0 */
/* template filters. Source: Jinja 3.1 documentation, "List of Builtin Filters"; tojson as transformers
 * replaces it. */
#include "filters_priv.h"
#include "text_priv.h"

/* ---- select, reject, map ---- */
static struct args args_from(struct args args, size_t i)
{
	i = i < args.n_pos ? i : args.n_pos;
	return (struct args){args.v + i, args.n - i, args.n_pos - i};
}

/* |args|: empty (truth), or a test's name and its arguments. */
static bool item_passes(struct vm *vm, struct value v, struct args args, bool *out)
{
	struct cgn_str name;
	if (args.n_pos == 0)
		return value_true(vm, v, out);
	if (!arg_str(vm, args, 0, "test", &name))
		return false;
	int id = test_id(name);
	if (id < 0)
		return vm_type(vm, "the test \"%.*s\" is not supported", CGN_STR_ARG(name));
	return test_apply(vm, id, v, args_from(args, 1), out);
}

/* Python's select, reject and map treat any false value as empty. */
static bool list_of(struct vm *vm, struct value v, struct value *out)
{
	bool yes;
	if (!value_true(vm, v, &yes))
		return false;
	return yes ? value_items(vm, v, out) : list_new(vm, 0, out);
}

static bool items_pick(struct vm *vm, struct value v, struct args args, bool want, bool by_attr,
	struct value *out)
{
	struct value key;
	struct cgn_str path = {NULL, 0};
	bool yes;
	if (by_attr && args.n_pos == 0)
		return vm_type(vm, "selectattr and rejectattr need an attribute");
	if ((by_attr && !filter_path_arg(vm, args, 0, "attribute", &path)) || !list_of(vm, v, &v) ||
		!list_new(vm, 0, out))
		return false;
	out->as = LIST_ONCE;
	for (size_t i = 0; i < v.list->n; i++) {
		if (!filter_attr_path(vm, v.list->v[i], path, &key) ||
			!item_passes(vm, key, by_attr ? args_from(args, 1) : args, &yes))
			return false;
		if (yes == want && !list_add(vm, out->list, v.list->v[i]))
			return false;
	}
	return true;
}

static bool f_select(struct vm *vm, struct value v, struct args args, struct value *out)
{
	return items_pick(vm, v, args, true, false, out);
}

static bool f_reject(struct vm *vm, struct value v, struct args args, struct value *out)
{
	return items_pick(vm, v, args, false, false, out);
}

static bool f_selectattr(struct vm *vm, struct value v, struct args args, struct value *out)
{
	return items_pick(vm, v, args, true, true, out);
}

static bool f_rejectattr(struct vm *vm, struct value v, struct args args, struct value *out)
{
	return items_pick(vm, v, args, false, true, out);
}

static bool map_one(struct vm *vm, struct value v, struct args args, struct cgn_str path, int filter,
	struct value *out)
{
	struct value fallback;
	if (filter >= 0)
		return filter_apply(vm, filter, v, args_from(args, 1), out);
	if (!filter_attr_path(vm, v, path, out))
		return false;
	if (out->kind == V_UNDEFINED && arg_get(args, SIZE_MAX, "default", &fallback))
		*out = fallback;
	return true;
}

static bool f_map(struct vm *vm, struct value v, struct args args, struct value *out)
{
	struct cgn_str path, name = {NULL, 0};
	struct value item;
	int filter = -1;
	if (!filter_path_arg(vm, args, SIZE_MAX, "attribute", &path) ||
		!arg_str(vm, args, 0, "filter", &name) || !list_of(vm, v, &v) || !list_new(vm, 0, out))
		return false;
	out->as = LIST_ONCE;
	if (path.p == NULL && (filter = filter_id(name)) < 0)
		return vm_type(vm, "map needs an attribute, or a filter that is supported, not \"%.*s\"",
			CGN_STR_ARG(name));
	if (++vm->depth > MAX_EVAL_DEPTH)
		return vm_fail(vm, CGN_TOO_LARGE, "the chat template recurses more than %d deep",
			MAX_EVAL_DEPTH);
	for (size_t i = 0; i < v.list->n; i++)
		if (!map_one(vm, v.list->v[i], args, path, filter, &item) || !list_add(vm, out->list, item))
			return false;
	vm->depth--;
	return true;
}

/* ---- JSON ---- */
static bool separators_arg(struct vm *vm, struct args args, struct json_style *style)
{
	struct value v;
	if (!arg_get(args, 2, "separators", &v) || v.kind == V_NONE)
		return true;
	if (v.kind != V_LIST || !value_list(vm, v) || v.list->n != 2 || !is_str(v.list->v[0]) ||
		!is_str(v.list->v[1]))
		return vm_type(vm, "separators has to be two strings");
	return value_str(vm, v.list->v[0], &style->item) && value_str(vm, v.list->v[1], &style->key);
}

static bool f_tojson(struct vm *vm, struct value v, struct args args, struct value *out)
{
	struct json_style style = {.indent = -1};
	size_t mark = vm_mark(vm);
	if (!arg_bool(vm, args, 0, "ensure_ascii", &style.ascii) ||
		!arg_int(vm, args, 1, "indent", &style.indent) || !separators_arg(vm, args, &style) ||
		!arg_bool(vm, args, 3, "sort_keys", &style.sort))
		return false;
	if (style.indent > 64)
		return vm_type(vm, "an indent of more than 64");
	return print_json(vm, v, &style) && vm_take(vm, mark, out);
}

static const struct filter_row own_rows[] = {
	{"tojson", f_tojson},
	{"map", f_map},
	{"selectattr", f_selectattr},
	{"rejectattr", f_rejectattr},
	{"select", f_select},
	{"reject", f_reject},
};

/* An id is the filter's place in all tables, one after the other. */
static const struct filter_row *row_at(size_t i)
{
	if (i < CGN_COUNT(own_rows))
		return &own_rows[i];
	i -= CGN_COUNT(own_rows);
	if (i < filters_of_text.n)
		return &filters_of_text.rows[i];
	i -= filters_of_text.n;
	return i < filters_of_collections.n ? &filters_of_collections.rows[i] : NULL;
}

int filter_id(struct cgn_str name)
{
	const struct filter_row *row;
	for (size_t i = 0; (row = row_at(i)) != NULL; i++)
		if (cgn_str_is(name, row->name))
			return (int)i;
	return -1;
}

bool filter_apply(struct vm *vm, int id, struct value v, struct args args, struct value *out)
{
	const struct filter_row *row = row_at((size_t)id);
	CGN_MUST(row != NULL);
	return row->run(vm, v, args, out);
}
