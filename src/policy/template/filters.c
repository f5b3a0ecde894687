/* SPDX-License-Identifier: Apache-2.0 */
/* template filters. Source: Jinja 3.1 documentation, "List of Builtin Filters"; tojson as transformers
 * replaces it. */
#include <math.h>
#include <stdlib.h>
#include <utf8proc.h>

#include "template_priv.h"
#include "text_priv.h"

typedef bool filter_fn(struct vm *vm, struct value v, struct args args, struct value *out);

static bool bool_arg(struct vm *vm, struct args args, size_t i, const char *name, bool *out)
{
	struct value v;
	return !arg_get(args, i, name, &v) || value_true(vm, v, out);
}

static bool str_arg(struct vm *vm, struct args args, size_t i, const char *name, struct cgn_str *out)
{
	struct value v;
	if (!arg_get(args, i, name, &v))
		return true;
	if (!is_str(v))
		return vm_type(vm, "the argument \"%s\" has to be a string", name);
	return value_str(vm, v, out);
}

/* Filters on text accept anything that can be shown; those of @huggingface/jinja accept strings only. */
static bool text_of(struct vm *vm, struct value v, struct cgn_str *out)
{
	if (vm->js && !is_str(v))
		return vm_type(vm, "this filter on %s", value_type(vm, v));
	return value_text(vm, v, out);
}

static bool f_safe(struct vm *vm, struct value v, struct args args, struct value *out)
{
	struct cgn_str s;
	(void)args;
	*out = v;
	if (vm->js || is_str(v))
		return true;
	if (!value_text(vm, v, &s))
		return false;
	*out = v_str(s);
	return true;
}

/* ---- text ---- */
static bool change_case(struct vm *vm, struct value v, enum text_case how, struct value *out)
{
	struct cgn_str s;
	if (!text_of(vm, v, &s) || !text_case(vm, s, how, &s))
		return false;
	*out = v_str(s);
	return true;
}

static bool f_upper(struct vm *vm, struct value v, struct args args, struct value *out)
{
	(void)args;
	return change_case(vm, v, CASE_UPPER, out);
}

static bool f_lower(struct vm *vm, struct value v, struct args args, struct value *out)
{
	(void)args;
	return change_case(vm, v, CASE_LOWER, out);
}

static bool f_title(struct vm *vm, struct value v, struct args args, struct value *out)
{
	(void)args;
	return change_case(vm, v, CASE_TITLE_WORDS, out);
}

static bool f_capitalize(struct vm *vm, struct value v, struct args args, struct value *out)
{
	(void)args;
	return change_case(vm, v, CASE_CAPITAL, out);
}

static bool f_trim(struct vm *vm, struct value v, struct args args, struct value *out)
{
	struct cgn_str s;
	struct value text;
	if (!text_of(vm, v, &s))
		return false;
	text = v_str(s);
	return method_call(vm, text, method_id(V_STR, CGN_STR("strip")), args, out);
}

static bool f_replace(struct vm *vm, struct value v, struct args args, struct value *out)
{
	struct cgn_str s;
	if (!text_of(vm, v, &s))
		return false;
	return method_call(vm, v_str(s), method_id(V_STR, CGN_STR("replace")), args, out);
}

static bool f_string(struct vm *vm, struct value v, struct args args, struct value *out)
{
	struct cgn_str s;
	(void)args;
	if (!value_text(vm, v, &s))
		return false;
	*out = v_str(s);
	return true;
}

static bool indent_lines(struct vm *vm, struct cgn_str s, struct cgn_str by, bool first, bool blank)
{
	for (bool at_first = true;; at_first = false) {
		const char *end = s.n > 0 ? memchr(s.p, '\n', s.n) : NULL;
		struct cgn_str line = {s.p, end != NULL ? (size_t)(end - s.p) : s.n};
		bool skip = at_first ? !first || (vm->js && !blank && line.n == 0) : !blank && line.n == 0;
		if ((!skip && !vm_emit(vm, by)) || !vm_emit(vm, line))
			return false;
		if (end == NULL)
			return true;
		if (!vm_emit(vm, CGN_STR("\n")))
			return false;
		s = (struct cgn_str){end + 1, s.n - line.n - 1};
	}
}

static bool f_indent(struct vm *vm, struct value v, struct args args, struct value *out)
{
	struct cgn_str s, by;
	struct value width = v_int(4), spaces;
	bool first = false, blank = false;
	if (!is_str(v))
		return vm_type(vm, "indent of %s", value_type(vm, v));
	if (!value_str(vm, v, &s) || !bool_arg(vm, args, 1, "first", &first) ||
		!bool_arg(vm, args, 2, "blank", &blank))
		return false;
	(void)arg_get(args, 0, "width", &width);
	if (width.kind == V_INT) {
		size_t mark = vm_mark(vm);
		for (int64_t i = 0; i < width.i; i++)
			if (!vm_emit(vm, CGN_STR(" ")))
				return false;
		if (!vm_take(vm, mark, &spaces))
			return false;
		width = spaces;
	}
	if (!is_str(width))
		return vm_type(vm, "the width of an indent is %s", value_type(vm, width));
	size_t mark = vm_mark(vm);
	return value_str(vm, width, &by) && indent_lines(vm, s, by, first, blank) && vm_take(vm, mark, out);
}

static bool f_escape(struct vm *vm, struct value v, struct args args, struct value *out)
{
	static const char *const names[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
	static const char from[] = "&<>'\"";
	struct cgn_str s;
	size_t mark = vm_mark(vm), run = 0;
	(void)args;
	if (!text_of(vm, v, &s))
		return false;
	for (size_t i = 0; i < s.n; i++) {
		const char *hit = s.p[i] != '\0' ? strchr(from, s.p[i]) : NULL;
		if (hit == NULL)
			continue;
		if (!vm_emit(vm, (struct cgn_str){s.p + run, i - run}) ||
			!vm_emit(vm, cgn_str_of(names[hit - from])))
			return false;
		run = i + 1;
	}
	return vm_emit(vm, (struct cgn_str){s.p + run, s.n - run}) && vm_take(vm, mark, out);
}

static bool is_word(int32_t code)
{
	int category = (int)utf8proc_category(code);
	return code == '_' || (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO) ||
		(category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO);
}

static bool f_wordcount(struct vm *vm, struct value v, struct args args, struct value *out)
{
	struct cgn_str s;
	int32_t code;
	bool inside = false;
	(void)args;
	if (!text_of(vm, v, &s) || !vm_spend(vm, s.n / 16 + 1))
		return false;
	*out = v_int(0);
	for (size_t at = 0; at < s.n;) {
		at += utf8_step(s.p + at, s.p + s.n, &code);
		bool word = is_word(code);
		out->i += word && !inside;
		inside = word;
	}
	return true;
}

/* ---- numbers ---- */
static bool parse_number(struct vm *vm, struct cgn_str s, bool whole, struct value *out, bool *ok)
{
	s = text_strip(vm, s, NULL, true, true);
	char *z = cgn_arena_strz(&vm->mem, s), *end;
	if (z == NULL)
		return vm_get(vm, SIZE_MAX) != NULL;
	char *stop = z + strspn(z, vm->js && whole ? "+-0123456789" : "+-0123456789.eE"), last = *stop;
	/* JavaScript reads as many characters as it understands; Python accepts all or nothing. */
	*stop = '\0';
	double f = strtod(z, &end);
	*ok = end != z && (vm->js || (end == stop && last == '\0')) && fabs(f) < 9e18;
	*out = whole ? v_int(*ok ? (int64_t)f : 0) : v_float(f);
	return true;
}

static bool to_number(struct vm *vm, struct value v, struct args args, bool whole, struct value *out)
{
	struct value fallback = whole ? v_int(0) : v_float(0);
	struct cgn_str s;
	bool ok = false;
	(void)arg_get(args, 0, "default", &fallback);
	if (is_str(v)) {
		if (!value_str(vm, v, &s) || !parse_number(vm, s, whole, out, &ok))
			return false;
	} else if (is_num(v)) {
		double f = value_num(v);
		ok = !whole || fabs(f) < 9e18;
		*out = !whole             ? v_float(f)
			: v.kind == V_INT ? v
					  : v_int(ok ? (int64_t)(vm->js ? floor(f) : trunc(f)) : 0);
	} else if (vm->js || v.kind == V_UNDEFINED) {
		return vm_type(vm, "a number of %s", value_type(vm, v));
	}
	if (!ok)
		*out = fallback;
	return true;
}

static bool f_int(struct vm *vm, struct value v, struct args args, struct value *out)
{
	int64_t base = 10;
	if (!arg_int(vm, args, 1, "base", &base))
		return false;
	if (base != 10 && !vm->js)
		return vm_type(vm, "int with another base than 10 is not supported");
	return to_number(vm, v, args, true, out);
}

static bool f_float(struct vm *vm, struct value v, struct args args, struct value *out)
{
	return to_number(vm, v, args, false, out);
}

static bool f_abs(struct vm *vm, struct value v, struct args args, struct value *out)
{
	(void)args;
	if (!is_num(v) || v.kind == V_BIG)
		return vm_type(vm, "abs of %s", value_type(vm, v));
	if (v.kind == V_FLOAT)
		*out = v_float(fabs(v.f));
	else
		*out = v_int(v.kind == V_BOOL ? (int64_t)v.b : v.i < 0 && v.i != INT64_MIN ? -v.i : v.i);
	return true;
}

static bool f_round(struct vm *vm, struct value v, struct args args, struct value *out)
{
	int64_t digits = 0;
	struct cgn_str how = CGN_STR("common");
	if (!arg_int(vm, args, 0, "precision", &digits) || !str_arg(vm, args, 1, "method", &how))
		return false;
	if (!is_num(v) || digits < -18 || digits > 18)
		return vm_type(vm, "round of %s", value_type(vm, v));
	double scale = pow(10, (double)digits), f = value_num(v) * scale;
	if (v.kind != V_FLOAT && digits >= 0 && cgn_str_is(how, "common")) {
		*out = v.kind == V_BOOL ? v_int(v.b) : v;
		return true;
	}
	bool common = !cgn_str_is(how, "ceil") && !cgn_str_is(how, "floor");
	f = (cgn_str_is(how, "ceil") ? ceil(f) : cgn_str_is(how, "floor") ? floor(f) : rint(f)) / scale;
	*out = common && (v.kind == V_INT || v.kind == V_BOOL) && fabs(f) < 9e18 ? v_int(llrint(f))
										 : v_float(f);
	return true;
}

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
		for (size_t i = 0; vm->js && i < s.n; i++)
			n += (unsigned char)s.p[i] >= 0xf0; /* JavaScript counts such a character twice. */
	} else if ((v.kind == V_LIST && v.as != LIST_ONCE) || v.kind == V_DICT) {
		n = v.kind == V_LIST ? v.list->n : v.dict->n;
	} else if (v.kind != V_UNDEFINED || vm->js) {
		return vm_type(vm, "length of %s", value_type(vm, v));
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
		return vm_type(vm, "last of %s", value_type(vm, v));
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
	list_as(vm, out, v.kind == V_LIST && v.as == LIST_ONCE ? LIST_PLAIN : LIST_ONCE);
	return true;
}

/* v.a.0.b: keys and indexes separated by dots. */
static bool attr_path(struct vm *vm, struct value v, struct cgn_str path, struct value *out)
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
		if (v.kind == V_UNDEFINED && !vm->js)
			return vm_type(vm, "\"%.*s\" of an undefined value", CGN_STR_ARG(part));
	}
	return true;
}

static bool path_arg(struct vm *vm, struct args args, size_t i, const char *name, struct cgn_str *out)
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
		if (!attr_path(vm, k[i].v, path, &k[i].key))
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
	if (!bool_arg(vm, args, 0, "reverse", &reverse) || !bool_arg(vm, args, 1, "case_sensitive", &exact) ||
		!path_arg(vm, args, 2, "attribute", &path) || !value_items(vm, v, &v))
		return false;
	return sort_items(vm, v, path, !exact, reverse, out);
}

static bool f_dictsort(struct vm *vm, struct value v, struct args args, struct value *out)
{
	bool exact = false, reverse = false;
	struct cgn_str by = CGN_STR("key");
	struct value pairs;
	if (!bool_arg(vm, args, 0, "case_sensitive", &exact) || !str_arg(vm, args, 1, "by", &by) ||
		!bool_arg(vm, args, 2, "reverse", &reverse))
		return false;
	if (v.kind != V_DICT)
		return vm_type(vm, "dictsort of %s", value_type(vm, v));
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
	if (!bool_arg(vm, args, 0, "case_sensitive", &exact) || !path_arg(vm, args, 1, "attribute", &path) ||
		!value_items(vm, v, &v))
		return false;
	*out = v_undefined();
	for (size_t i = 0; i < v.list->n; i++) {
		if (!attr_path(vm, v.list->v[i], path, &key))
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
	if (!path_arg(vm, args, 0, "attribute", &path) || !value_items(vm, v, &v))
		return false;
	(void)arg_get(args, 1, "start", &total);
	for (size_t i = 0; i < v.list->n; i++)
		if (!attr_path(vm, v.list->v[i], path, &key) || !op_binary(vm, OP_ADD, total, key, &total))
			return false;
	*out = total;
	return true;
}

static bool seen_before(struct vm *vm, const struct list *seen, struct value v, bool *out)
{
	*out = false;
	for (size_t i = 0; i < seen->n && !*out; i++)
		if (!value_same(vm, seen->v[i], v, out))
			return false;
	return true;
}

static bool f_unique(struct vm *vm, struct value v, struct args args, struct value *out)
{
	bool exact = vm->js, again;
	struct value keys, key;
	struct cgn_str path, s;
	if (!bool_arg(vm, args, 0, "case_sensitive", &exact) || !path_arg(vm, args, 1, "attribute", &path) ||
		!value_items(vm, v, &v) || !list_new(vm, 0, out) || !list_new(vm, 0, &keys))
		return false;
	for (size_t i = 0; i < v.list->n; i++) {
		if (!attr_path(vm, v.list->v[i], path, &key))
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
	list_as(vm, out, LIST_ONCE);
	return true;
}

static bool f_join(struct vm *vm, struct value v, struct args args, struct value *out)
{
	struct cgn_str by = CGN_STR(""), path;
	struct value items, item = v_undefined();
	if (!str_arg(vm, args, 0, vm->js ? "separator" : "d", &by) ||
		!path_arg(vm, args, 1, "attribute", &path))
		return false;
	path = vm->js ? (struct cgn_str){NULL, 0} : path;
	if (vm->js && is_str(v) && by.n == 0) {
		*out = v;
		return true;
	}
	bool js = vm->js;
	vm->js = js && !is_str(v); /* Both dialects iterate over a string here. */
	bool ok = value_items(vm, v, &items);
	vm->js = js;
	size_t mark = vm_mark(vm);
	for (size_t i = 0; ok && i < items.list->n; i++) {
		ok = (i == 0 || vm_emit(vm, by)) && attr_path(vm, items.list->v[i], path, &item);
		if (ok && !(vm->js && (item.kind == V_NONE || item.kind == V_UNDEFINED)))
			ok = print_joined(vm, item);
	}
	return ok && vm_take(vm, mark, out);
}

static bool f_items(struct vm *vm, struct value v, struct args args, struct value *out)
{
	(void)args;
	bool ok = v.kind == V_UNDEFINED && !vm->js ? list_new(vm, 0, out)
		: v.kind == V_DICT                 ? dict_pairs(vm, v.dict, out)
						   : vm_type(vm, "items of %s", value_type(vm, v));
	if (ok)
		list_as(vm, out, LIST_ONCE);
	return ok;
}

static bool f_default(struct vm *vm, struct value v, struct args args, struct value *out)
{
	struct value fallback = v_str(CGN_STR(""));
	bool also_false = false, yes;
	(void)arg_get(args, 0, "default_value", &fallback);
	if (!bool_arg(vm, args, 1, "boolean", &also_false) || !value_true(vm, v, &yes))
		return false;
	*out = v.kind == V_UNDEFINED || (also_false && !yes) ? fallback : v;
	return true;
}

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
	if (!str_arg(vm, args, 0, "test", &name))
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
	return yes || vm->js ? value_items(vm, v, out) : list_new(vm, 0, out);
}

static bool items_pick(struct vm *vm, struct value v, struct args args, bool want, bool by_attr,
	struct value *out)
{
	struct value key;
	struct cgn_str path = {NULL, 0};
	bool yes;
	if (by_attr && args.n_pos == 0)
		return vm_type(vm, "selectattr and rejectattr need an attribute");
	if ((by_attr && !path_arg(vm, args, 0, "attribute", &path)) || !list_of(vm, v, &v) ||
		!list_new(vm, 0, out))
		return false;
	list_as(vm, out, LIST_ONCE);
	for (size_t i = 0; i < v.list->n; i++) {
		if (!attr_path(vm, v.list->v[i], path, &key))
			return false;
		yes = false; /* JavaScript's filter applies no test to an absent attribute. */
		if (!(vm->js && by_attr && key.kind == V_UNDEFINED) &&
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
	if (!attr_path(vm, v, path, out))
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
	if (!path_arg(vm, args, SIZE_MAX, "attribute", &path) || !str_arg(vm, args, 0, "filter", &name) ||
		!list_of(vm, v, &v) || !list_new(vm, 0, out))
		return false;
	list_as(vm, out, LIST_ONCE);
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
	if (!arg_get(args, vm->js ? SIZE_MAX : 2, "separators", &v) || v.kind == V_NONE)
		return true;
	if (v.kind != V_LIST || !value_list(vm, v) || v.list->n != 2 || !is_str(v.list->v[0]) ||
		!is_str(v.list->v[1]))
		return vm_type(vm, "separators has to be two strings");
	return value_str(vm, v.list->v[0], &style->item) && value_str(vm, v.list->v[1], &style->key);
}

static bool f_tojson(struct vm *vm, struct value v, struct args args, struct value *out)
{
	struct json_style style = {.indent = -1};
	size_t none = vm->js ? SIZE_MAX : 0, mark = vm_mark(vm); /* JavaScript accepts them by name only. */
	if (!bool_arg(vm, args, none, "ensure_ascii", &style.ascii) ||
		!arg_int(vm, args, none == 0 ? 1 : none, "indent", &style.indent) ||
		!separators_arg(vm, args, &style) ||
		!bool_arg(vm, args, none == 0 ? 3 : none, "sort_keys", &style.sort))
		return false;
	if (style.indent > 64)
		return vm_type(vm, "an indent of more than 64");
	return print_json(vm, v, &style) && vm_take(vm, mark, out);
}

static const struct {
	const char *name;
	filter_fn *run;
} filters[] = {
	{"trim", f_trim},
	{"tojson", f_tojson},
	{"length", f_length},
	{"join", f_join},
	{"default", f_default},
	{"map", f_map},
	{"selectattr", f_selectattr},
	{"rejectattr", f_rejectattr},
	{"select", f_select},
	{"reject", f_reject},
	{"first", f_first},
	{"last", f_last},
	{"list", f_list},
	{"items", f_items},
	{"dictsort", f_dictsort},
	{"sort", f_sort},
	{"unique", f_unique},
	{"upper", f_upper},
	{"lower", f_lower},
	{"title", f_title},
	{"capitalize", f_capitalize},
	{"replace", f_replace},
	{"string", f_string},
	{"int", f_int},
	{"float", f_float},
	{"abs", f_abs},
	{"round", f_round},
	{"reverse", f_reverse},
	{"indent", f_indent},
	{"safe", f_safe},
	{"escape", f_escape},
	{"e", f_escape},
	{"count", f_length},
	{"d", f_default},
	{"min", f_min},
	{"max", f_max},
	{"sum", f_sum},
	{"wordcount", f_wordcount},
};

int filter_id(struct cgn_str name)
{
	for (size_t i = 0; i < CGN_COUNT(filters); i++)
		if (cgn_str_is(name, filters[i].name))
			return (int)i;
	return -1;
}

bool filter_apply(struct vm *vm, int id, struct value v, struct args args, struct value *out)
{
	filter_fn *run = filters[id].run;
	if (vm->js && (v.kind == V_UNDEFINED || v.kind == V_NONE) && run != f_tojson && run != f_safe &&
		!(run == f_default && args.n > 0))
		return vm_type(vm, "the filter \"%s\" on %s", filters[id].name, value_type(vm, v));
	return run(vm, v, args, out);
}
