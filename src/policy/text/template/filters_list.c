/* SPDX-License-Identifier: Apache-2.0 */
/* template filters of collections: lists, mappings, and picks from them. */
#include <stdlib.h>

#include "filters_priv.h"
#include "text_priv.h"

/* ---- collections ---- */
static bool f_length(struct vm *vm, struct value v, struct args args, struct value *out)
{
	struct cgn_str s;
	size_t n = 0;
	(void)args;
	if (!value_list(vm, v))
		return false;
	if (is_str(v)) {
		if (!value_str(vm, v, &s) || !vm_spend_bytes(vm, s.n))
			return false;
		n = utf8_count(s);
	} else if ((v.kind == V_LIST && v.as != LIST_ONCE) || v.kind == V_DICT) {
		n = v.kind == V_LIST ? v.list->n : v.dict->n;
	} else if (v.kind != V_UNDEFINED) {
		return vm_type(vm, "length of %s", value_type(v));
	}
	*out = v_int((int64_t)n);
	return true;
}

static bool f_list(struct vm *vm, struct value v, struct args args, struct value *out)
{
	(void)args;
	if (!value_items(vm, v, out))
		return false;
	out->as = LIST_PLAIN;
	return true;
}

static bool f_first(struct vm *vm, struct value v, struct args args, struct value *out)
{
	(void)args;
	if (v.kind == V_LIST && v.as == LIST_ONCE && v.list->n > 0) { /* Consumes only the first element. */
		*out = *v.list->v++;
		v.list->n--;
		v.list->cap = v.list->n;
		return true;
	}
	if (!value_items(vm, v, &v))
		return false;
	*out = v.list->n > 0 ? v.list->v[0] : v_undefined();
	return true;
}

static bool f_last(struct vm *vm, struct value v, struct args args, struct value *out)
{
	(void)args;
	if (v.kind == V_LIST && v.as == LIST_ONCE)
		return vm_type(vm, "last of %s", value_type(v));
	if (!value_items(vm, v, &v))
		return false;
	*out = v.list->n > 0 ? v.list->v[v.list->n - 1] : v_undefined();
	return true;
}

static bool f_reverse(struct vm *vm, struct value v, struct args args, struct value *out)
{
	struct value items;
	struct cgn_str s;
	(void)args;
	if (is_str(v)) {
		if (!value_str(vm, v, &s) || !text_slice(vm, s, NULL, NULL, -1, &s))
			return false;
		*out = v_str(s);
		return true;
	}
	if (!value_items(vm, v, &items) || !list_new(vm, items.list->n, out) || !vm_spend(vm, items.list->n))
		return false;
	for (size_t i = items.list->n; i > 0; i--)
		out->list->v[out->list->n++] = items.list->v[i - 1];
	out->as = v.kind == V_LIST && v.as == LIST_ONCE ? LIST_PLAIN : LIST_ONCE;
	return true;
}

/* v.a.0.b: keys and indexes separated by dots. */
bool filter_attr_path(struct vm *vm, struct value v, struct cgn_str path, struct value *out)
{
	*out = v;
	if (!vm_spend(vm, 1))
		return false;
	while (path.p != NULL) {
		struct cgn_str part = cgn_str_split(&path, '.');
		uint64_t i;
		bool found;
		v = *out;
		*out = v_undefined();
		if (!vm_spend(vm, 1) || !value_list(vm, v))
			return false;
		if ((v.kind == V_DICT || v.kind == V_SPACE) && !dict_find(vm, v.dict, part, out, &found))
			return false;
		if (v.kind == V_LIST && cgn_str_u64(part, &i) && i < v.list->n)
			*out = v.list->v[i];
		if (v.kind == V_UNDEFINED)
			return vm_type(vm, "\"%.*s\" of an undefined value", CGN_STR_ARG(part));
	}
	return true;
}

bool filter_path_arg(struct vm *vm, struct args args, size_t i, const char *name, struct cgn_str *out)
{
	struct value v;
	out->p = NULL;
	out->n = 0;
	if (!arg_get(args, i, name, &v) || v.kind == V_NONE)
		return true;
	return value_text(vm, v, out);
}

struct keyed {
	struct value key, v;
};

/* Two keys that are both absent, or both none, compare as equal. */
static bool key_order(struct vm *vm, struct value a, struct value b, bool fold, int *out)
{
	if (a.kind == b.kind && (a.kind == V_UNDEFINED || a.kind == V_NONE)) {
		*out = 0;
		return true;
	}
	return value_order(vm, a, b, fold, out);
}

static bool runs_merge(struct vm *vm, struct keyed *from, struct keyed *to, size_t a, size_t mid, size_t b,
	bool fold, bool reverse)
{
	size_t left = a, right = mid;
	int order = 0;
	for (size_t i = a; i < b; i++) {
		bool take_left = right == b;
		if (left < mid && right < b) {
			if (!key_order(vm, from[left].key, from[right].key, fold, &order))
				return false;
			take_left = (reverse ? -order : order) <= 0;
		}
		to[i] = take_left ? from[left++] : from[right++];
	}
	return true;
}

/* A stable bottom-up merge sort. */
static bool sort_keyed(struct vm *vm, struct keyed **io, size_t n, bool fold, bool reverse)
{
	struct keyed *from = *io, *to = vm_get(vm, (n + 1) * sizeof *to);
	if (to == NULL)
		return false;
	for (size_t width = 1; width < n; width *= 2) {
		for (size_t a = 0; a < n; a += 2 * width) {
			size_t mid = a + width < n ? a + width : n, b = a + 2 * width < n ? a + 2 * width : n;
			if (!runs_merge(vm, from, to, a, mid, b, fold, reverse))
				return false;
		}
		struct keyed *swap = from;
		from = to;
		to = swap;
	}
	*io = from;
	return true;
}

static bool sort_items(struct vm *vm, struct value items, struct cgn_str path, bool fold, bool reverse,
	struct value *out)
{
	size_t n = items.list->n;
	struct keyed *k = vm_get(vm, (n + 1) * sizeof *k);
	if (k == NULL)
		return false;
	for (size_t i = 0; i < n; i++) {
		k[i].v = items.list->v[i];
		if (!filter_attr_path(vm, k[i].v, path, &k[i].key))
			return false;
	}
	if (!sort_keyed(vm, &k, n, fold, reverse) || !list_new(vm, n, out))
		return false;
	for (size_t i = 0; i < n; i++)
		out->list->v[i] = k[i].v;
	out->list->n = n;
	return true;
}

static bool f_sort(struct vm *vm, struct value v, struct args args, struct value *out)
{
	bool reverse = false, exact = false;
	struct cgn_str path;
	if (!arg_bool(vm, args, 0, "reverse", &reverse) || !arg_bool(vm, args, 1, "case_sensitive", &exact) ||
		!filter_path_arg(vm, args, 2, "attribute", &path) || !value_items(vm, v, &v))
		return false;
	return sort_items(vm, v, path, !exact, reverse, out);
}

static bool f_dictsort(struct vm *vm, struct value v, struct args args, struct value *out)
{
	bool exact = false, reverse = false;
	struct cgn_str by = CGN_STR("key");
	struct value pairs;
	if (!arg_bool(vm, args, 0, "case_sensitive", &exact) || !arg_str(vm, args, 1, "by", &by) ||
		!arg_bool(vm, args, 2, "reverse", &reverse))
		return false;
	if (v.kind != V_DICT)
		return vm_type(vm, "dictsort of %s", value_type(v));
	if (!cgn_str_is(by, "key") && !cgn_str_is(by, "value"))
		return vm_type(vm, "dictsort by neither \"key\" nor \"value\"");
	return dict_pairs(vm, v.dict, &pairs) &&
		sort_items(vm, pairs, cgn_str_is(by, "key") ? CGN_STR("0") : CGN_STR("1"), !exact, reverse,
			out);
}

static bool list_extreme(struct vm *vm, struct value v, struct args args, int sign, struct value *out)
{
	bool exact = false;
	struct cgn_str path;
	struct value best = v_undefined(), key;
	int order = 0;
	if (!arg_bool(vm, args, 0, "case_sensitive", &exact) ||
		!filter_path_arg(vm, args, 1, "attribute", &path) || !value_items(vm, v, &v))
		return false;
	*out = v_undefined();
	for (size_t i = 0; i < v.list->n; i++) {
		if (!filter_attr_path(vm, v.list->v[i], path, &key))
			return false;
		if (i > 0 && !value_order(vm, key, best, !exact, &order))
			return false;
		if (i > 0 && order * sign <= 0)
			continue;
		best = key;
		*out = v.list->v[i];
	}
	return true;
}

static bool f_min(struct vm *vm, struct value v, struct args args, struct value *out)
{
	return list_extreme(vm, v, args, -1, out);
}

static bool f_max(struct vm *vm, struct value v, struct args args, struct value *out)
{
	return list_extreme(vm, v, args, 1, out);
}

static bool f_sum(struct vm *vm, struct value v, struct args args, struct value *out)
{
	struct cgn_str path;
	struct value key, total = v_int(0);
	if (!filter_path_arg(vm, args, 0, "attribute", &path) || !value_items(vm, v, &v))
		return false;
	(void)arg_get(args, 1, "start", &total);
	for (size_t i = 0; i < v.list->n; i++)
		if (!filter_attr_path(vm, v.list->v[i], path, &key) ||
			!op_binary(vm, OP_ADD, total, key, &total))
			return false;
	*out = total;
	return true;
}

static bool seen_before(struct vm *vm, const struct list *seen, struct value v, bool *out)
{
	*out = false;
	for (size_t i = 0; i < seen->n && !*out; i++)
		if (!value_equal(vm, seen->v[i], v, out))
			return false;
	return true;
}

static bool f_unique(struct vm *vm, struct value v, struct args args, struct value *out)
{
	bool exact = false, again;
	struct value keys, key;
	struct cgn_str path, s;
	if (!arg_bool(vm, args, 0, "case_sensitive", &exact) ||
		!filter_path_arg(vm, args, 1, "attribute", &path) || !value_items(vm, v, &v) ||
		!list_new(vm, 0, out) || !list_new(vm, 0, &keys))
		return false;
	for (size_t i = 0; i < v.list->n; i++) {
		if (!filter_attr_path(vm, v.list->v[i], path, &key))
			return false;
		if (is_str(key) && !exact) {
			if (!value_str(vm, key, &s) || !text_case(vm, s, CASE_LOWER, &s))
				return false;
			key = v_str(s);
		}
		if (!seen_before(vm, keys.list, key, &again))
			return false;
		if (!again && (!list_add(vm, keys.list, key) || !list_add(vm, out->list, v.list->v[i])))
			return false;
	}
	out->as = LIST_ONCE;
	return true;
}

static bool f_join(struct vm *vm, struct value v, struct args args, struct value *out)
{
	struct cgn_str by = CGN_STR(""), path;
	struct value items, item;
	if (!arg_str(vm, args, 0, "d", &by) || !filter_path_arg(vm, args, 1, "attribute", &path) ||
		!value_items(vm, v, &items))
		return false;
	size_t mark = vm_mark(vm);
	for (size_t i = 0; i < items.list->n; i++)
		if ((i > 0 && !vm_emit(vm, by)) || !filter_attr_path(vm, items.list->v[i], path, &item) ||
			!print_value(vm, item))
			return false;
	return vm_take(vm, mark, out);
}

static bool f_items(struct vm *vm, struct value v, struct args args, struct value *out)
{
	(void)args;
	bool ok = v.kind == V_UNDEFINED ? list_new(vm, 0, out)
		: v.kind == V_DICT      ? dict_pairs(vm, v.dict, out)
					: vm_type(vm, "items of %s", value_type(v));
	if (ok)
		out->as = LIST_ONCE;
	return ok;
}

static bool f_default(struct vm *vm, struct value v, struct args args, struct value *out)
{
	struct value fallback = v_str(CGN_STR(""));
	bool also_false = false, yes;
	(void)arg_get(args, 0, "default_value", &fallback);
	if (!arg_bool(vm, args, 1, "boolean", &also_false) || !value_true(vm, v, &yes))
		return false;
	*out = v.kind == V_UNDEFINED || (also_false && !yes) ? fallback : v;
	return true;
}

static const struct filter_row list_rows[] = {
	{"length", f_length},
	{"join", f_join},
	{"default", f_default},
	{"first", f_first},
	{"last", f_last},
	{"list", f_list},
	{"items", f_items},
	{"dictsort", f_dictsort},
	{"sort", f_sort},
	{"unique", f_unique},
	{"reverse", f_reverse},
	{"count", f_length},
	{"d", f_default},
	{"min", f_min},
	{"max", f_max},
	{"sum", f_sum},
};
const struct filter_rows filters_of_collections = {list_rows, CGN_COUNT(list_rows)};
