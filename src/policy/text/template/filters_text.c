/* SPDX-License-Identifier: Apache-2.0 */
/* template filters of text and numbers. */
#include <math.h>
#include <stdlib.h>
#include <utf8proc.h>

#include "filters_priv.h"
#include "text_priv.h"

static bool f_safe(struct vm *vm, struct value v, struct args args, struct value *out)
{
	struct cgn_str s;
	(void)args;
	*out = v;
	if (is_str(v))
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
	if (!value_text(vm, v, &s) || !text_case(vm, s, how, &s))
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
	if (!value_text(vm, v, &s))
		return false;
	text = v_str(s);
	return method_call(vm, text, method_id(V_STR, CGN_STR("strip")), args, out);
}

static bool f_replace(struct vm *vm, struct value v, struct args args, struct value *out)
{
	struct cgn_str s;
	if (!value_text(vm, v, &s))
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
		bool skip = at_first ? !first : !blank && line.n == 0;
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
		return vm_type(vm, "indent of %s", value_type(v));
	if (!value_str(vm, v, &s) || !arg_bool(vm, args, 1, "first", &first) ||
		!arg_bool(vm, args, 2, "blank", &blank))
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
		return vm_type(vm, "the width of an indent is %s", value_type(width));
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
	if (!value_text(vm, v, &s))
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
	if (!value_text(vm, v, &s) || !vm_spend(vm, s.n / 16 + 1))
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
	s = text_strip(s, NULL, true, true);
	char *z = cgn_arena_strz(&vm->mem, s), *end;
	if (z == NULL)
		return vm_get(vm, SIZE_MAX) != NULL;
	bool decimal = z[strspn(z, "+-0123456789.eE")] == '\0'; /* strtod reads "inf" and "0x1f" too. */
	double f = strtod(z, &end);
	*ok = decimal && end != z && *end == '\0' && fabs(f) < 9e18;
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
		*out = !whole ? v_float(f) : v.kind == V_INT ? v : v_int(ok ? (int64_t)f : 0);
	} else if (v.kind == V_UNDEFINED) {
		return vm_type(vm, "a number of %s", value_type(v));
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
	if (base != 10)
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
		return vm_type(vm, "abs of %s", value_type(v));
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
	if (!arg_int(vm, args, 0, "precision", &digits) || !arg_str(vm, args, 1, "method", &how))
		return false;
	if (!is_num(v) || digits < -18 || digits > 18)
		return vm_type(vm, "round of %s", value_type(v));
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

static const struct filter_row text_rows[] = {
	{"trim", f_trim},
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
	{"indent", f_indent},
	{"safe", f_safe},
	{"escape", f_escape},
	{"e", f_escape},
	{"wordcount", f_wordcount},
};
const struct filter_rows filters_of_text = {text_rows, CGN_COUNT(text_rows)};
