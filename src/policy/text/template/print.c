/* SPDX-License-Identifier: Apache-2.0 */
/* template print: values as text, as {{ }} shows them, and as JSON. Output goes to the output's tail. Source:
 * Python's str, repr and json.dumps. */
#include <math.h>
#include <stdlib.h>
#include <utf8proc.h>

#include "template_priv.h"
#include "text_priv.h"

#define FLOAT_TEXT 80 /* Bytes of a float at most. */

static bool emit_z(struct vm *vm, const char *z)
{
	return vm_emit(vm, cgn_str_of(z));
}

static bool emit_int(struct vm *vm, int64_t i)
{
	char text[24];
	(void)snprintf(text, sizeof text, "%lld", (long long)i);
	return emit_z(vm, text);
}

/* Find the fewest digits that read back as |f|, and the exponent of the first digit: d.ddd * 10^exp10. */
static size_t float_digits(double f, char digits[24], int *exp10)
{
	char text[40];
	for (int precision = 14; precision <= 16; precision++) {
		(void)snprintf(text, sizeof text, "%.*e", precision, fabs(f));
		double again = strtod(text, NULL);
		if (!(again < fabs(f)) && !(again > fabs(f)))
			break;
	}
	size_t n = 0;
	for (const char *p = text; *p != 'e'; p++)
		if (*p != '.')
			digits[n++] = *p;
	while (n > 1 && digits[n - 1] == '0')
		n--;
	*exp10 = atoi(strchr(text, 'e') + 1);
	return n;
}

static void lay_out(struct cgn_buf *b, const char *digits, size_t n, int exp10)
{
	if (exp10 < 0) {
		cgn_buf_putz(b, "0.");
		for (int i = -1; i > exp10; i--)
			cgn_buf_char(b, '0');
		cgn_buf_add(b, digits, n);
		return;
	}
	size_t whole = (size_t)exp10 + 1;
	cgn_buf_add(b, digits, n < whole ? n : whole);
	for (size_t i = n; i < whole; i++)
		cgn_buf_char(b, '0');
	if (n > whole) {
		cgn_buf_char(b, '.');
		cgn_buf_add(b, digits + whole, n - whole);
	}
}

static void put_float(double f, struct cgn_buf *b)
{
	char digits[24];
	int exp10;
	if (!isfinite(f)) {
		cgn_buf_putz(b, isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");
		return;
	}
	size_t n = float_digits(f, digits, &exp10);
	if (signbit(f))
		cgn_buf_char(b, '-');
	if (exp10 > -5 && exp10 < 16) {
		lay_out(b, digits, n, exp10);
		if ((int)n <= exp10 + 1)
			cgn_buf_putz(b, ".0");
	} else {
		cgn_buf_char(b, digits[0]);
		if (n > 1)
			cgn_buf_char(b, '.');
		cgn_buf_add(b, digits + 1, n - 1);
		cgn_buf_fmt(b, "e%c%02d", exp10 < 0 ? '-' : '+', abs(exp10));
	}
}

static bool emit_float(struct vm *vm, double f)
{
	char text[FLOAT_TEXT];
	struct cgn_buf b = cgn_buf_over(text, sizeof text);
	put_float(f, &b);
	return vm_emit(vm, cgn_buf_view(&b));
}

static bool emit_number(struct vm *vm, struct value v)
{
	if (v.kind == V_BIG)
		return vm_emit(vm, v.s);
	if (v.kind == V_INT)
		return emit_int(vm, v.i);
	return emit_float(vm, v.f);
}

static bool emit_str(struct vm *vm, struct value v)
{
	struct cgn_str s;
	if (v.kind == V_STR)
		return vm_emit(vm, v.s);
	if (v.lazy->s.p == NULL) { /* Print it directly from the document: it may never be used as a value. */
		if (!vm_spend_bytes(vm, v.lazy->raw.raw.n))
			return false;
		if (v.lazy->raw.raw.n <= vm->out_max - (vm->out->n - vm->out_base)) {
			json_str_to(v.lazy->raw, vm->out);
			return !vm->out->bad || vm_emit(vm, CGN_STR(""));
		}
	}
	return value_str(vm, v, &s) && vm_emit(vm, s);
}

/* ---- Python's repr ---- */
static bool is_printable(int32_t code)
{
	switch ((int)utf8proc_category(code)) {
	case UTF8PROC_CATEGORY_CC:
	case UTF8PROC_CATEGORY_CF:
	case UTF8PROC_CATEGORY_CS:
	case UTF8PROC_CATEGORY_CO:
	case UTF8PROC_CATEGORY_CN:
	case UTF8PROC_CATEGORY_ZL:
	case UTF8PROC_CATEGORY_ZP:
	case UTF8PROC_CATEGORY_ZS:
		return code == ' ';
	default:
		return true;
	}
}

static bool repr_char(struct vm *vm, struct cgn_str raw, int32_t code, char quote)
{
	char text[16];
	if (code == quote || code == '\\')
		(void)snprintf(text, sizeof text, "\\%c", (char)code);
	else if (code == '\n' || code == '\r' || code == '\t')
		(void)snprintf(text, sizeof text, "\\%c", code == '\n' ? 'n' : code == '\r' ? 'r' : 't');
	else if (is_printable(code))
		return vm_emit(vm, raw);
	else
		(void)snprintf(text, sizeof text,
			code < 0x100             ? "\\x%02x"
				: code < 0x10000 ? "\\u%04x"
						 : "\\U%08x",
			(unsigned)code);
	return emit_z(vm, text);
}

static bool repr_str(struct vm *vm, struct value v)
{
	struct cgn_str s;
	if (!value_str(vm, v, &s) || !vm_spend(vm, s.n / 8 + 1))
		return false;
	char quote[2] = "'";
	if (s.n > 0 && memchr(s.p, '\'', s.n) != NULL && memchr(s.p, '"', s.n) == NULL)
		quote[0] = '"';
	bool ok = emit_z(vm, quote);
	int32_t code;
	for (size_t at = 0, n; ok && at < s.n; at += n) {
		n = utf8_step(s.p + at, s.p + s.n, &code);
		ok = repr_char(vm, (struct cgn_str){s.p + at, n}, code, quote[0]);
	}
	return ok && emit_z(vm, quote);
}

static bool print_repr(struct vm *vm, struct value v);

static bool repr_list(struct vm *vm, struct value v)
{
	static const char *const open[] = {"[", "(", "dict_keys([", "dict_values([", "dict_items([",
		"<generator"},
				 *const close[] = {"]", ")", "])", "])", "])", ">"};
	bool ok = emit_z(vm, open[v.as]);
	if (v.as == LIST_ONCE)
		return ok && emit_z(vm, close[v.as]);
	for (size_t i = 0; ok && i < v.list->n; i++)
		ok = (i == 0 || emit_z(vm, ", ")) && print_repr(vm, v.list->v[i]);
	if (ok && v.as == LIST_TUPLE && v.list->n == 1)
		ok = emit_z(vm, ",");
	return ok && emit_z(vm, close[v.as]);
}

static bool repr_dict(struct vm *vm, const struct dict *d)
{
	bool ok = emit_z(vm, "{");
	for (size_t i = 0; ok && i < d->n; i++)
		ok = (i == 0 || emit_z(vm, ", ")) && repr_str(vm, v_str(d->e[i].key)) && emit_z(vm, ": ") &&
			print_repr(vm, d->e[i].v);
	return ok && emit_z(vm, "}");
}

static bool print_enter(struct vm *vm)
{
	if (++vm->depth > MAX_EVAL_DEPTH)
		return vm_fail(vm, CGN_TOO_LARGE,
			"a value that the chat template shows is nested more than %d deep", MAX_EVAL_DEPTH);
	return vm_spend(vm, 1);
}

static bool print_repr(struct vm *vm, struct value v)
{
	if (!print_enter(vm) || !value_list(vm, v))
		return false;
	bool ok = is_str(v)             ? repr_str(vm, v)
		: v.kind == V_LIST      ? repr_list(vm, v)
		: v.kind == V_DICT      ? repr_dict(vm, v.dict)
		: v.kind == V_UNDEFINED ? emit_z(vm, "Undefined")
					: print_value(vm, v);
	vm->depth--;
	return ok;
}

static bool print_object(struct vm *vm, struct value v)
{
	if (v.kind == V_SPACE)
		return emit_z(vm, "<Namespace ") && repr_dict(vm, v.dict) && emit_z(vm, ">");
	if (v.kind == V_MACRO)
		return emit_z(vm, "<Macro '") && vm_emit(vm, v.macro->node->text) && emit_z(vm, "'>");
	return emit_z(vm, v.kind == V_LOOP ? "<LoopContext>" : "<function>");
}

bool print_value(struct vm *vm, struct value v)
{
	switch (v.kind) {
	case V_UNDEFINED:
		return true;
	case V_NONE:
		return emit_z(vm, "None");
	case V_BOOL:
		return emit_z(vm, v.b ? "True" : "False");
	case V_INT:
	case V_BIG:
	case V_FLOAT:
		return emit_number(vm, v);
	case V_STR:
	case V_LAZY:
		return emit_str(vm, v);
	case V_LIST:
	case V_DICT:
		return print_repr(vm, v);
	case V_SPACE:
	case V_MACRO:
	case V_METHOD:
	case V_LOOP:
	case V_GLOBAL:
		break;
	}
	return print_object(vm, v);
}

bool value_text(struct vm *vm, struct value v, struct cgn_str *out)
{
	struct value text;
	if (is_str(v))
		return value_str(vm, v, out);
	size_t mark = vm_mark(vm);
	if (!print_value(vm, v) || !vm_take(vm, mark, &text))
		return false;
	*out = text.s;
	return true;
}

/* ---- JSON ---- */
static bool json_escape(struct vm *vm, unsigned char c)
{
	static const char letters[] = "btn\0fr"; /* From 0x08 on; 0x0b has no letter. */
	char text[8];
	if (c == '"' || c == '\\')
		(void)snprintf(text, sizeof text, "\\%c", c);
	else if (c >= 0x08 && c <= 0x0d && letters[c - 0x08] != '\0')
		(void)snprintf(text, sizeof text, "\\%c", letters[c - 0x08]);
	else
		(void)snprintf(text, sizeof text, "\\u%04x", c);
	return emit_z(vm, text);
}

static bool json_ascii(struct vm *vm, int32_t code)
{
	char text[16];
	if (code < 0x10000)
		(void)snprintf(text, sizeof text, "\\u%04x", (unsigned)code);
	else
		(void)snprintf(text, sizeof text, "\\u%04x\\u%04x",
			0xd800U + (unsigned)((code - 0x10000) >> 10), 0xdc00U + (unsigned)(code & 0x3ff));
	return emit_z(vm, text);
}

static bool json_str_out(struct vm *vm, struct cgn_str s, bool ascii)
{
	bool ok = vm_spend_bytes(vm, s.n) && emit_z(vm, "\"");
	size_t run = 0, at = 0;
	while (ok && at < s.n) {
		unsigned char c = (unsigned char)s.p[at];
		bool plain = c >= 0x20 && c != '"' && c != '\\' && !(ascii && c >= 0x7f);
		if (plain) {
			at++;
			continue;
		}
		ok = vm_emit(vm, (struct cgn_str){s.p + run, at - run});
		int32_t code = c;
		size_t n = c >= 0x80 ? utf8_step(s.p + at, s.p + s.n, &code) : 1;
		ok = ok && (c >= 0x7f ? json_ascii(vm, code) : json_escape(vm, c));
		run = at += n;
	}
	return ok && vm_emit(vm, (struct cgn_str){s.p + run, s.n - run}) && emit_z(vm, "\"");
}

struct json_at {
	const struct json_style *style;
	struct cgn_str item, key;
	size_t level;
	bool lines;
};

static bool json_break(struct vm *vm, const struct json_at *at, size_t level)
{
	bool ok = !at->lines || emit_z(vm, "\n");
	for (size_t n = at->lines ? (size_t)at->style->indent * level : 0; ok && n > 0; n--)
		ok = emit_z(vm, " ");
	return ok;
}

static bool json_value_out(struct vm *vm, struct value v, struct json_at *at);

static bool json_list_out(struct vm *vm, const struct list *l, struct json_at *at)
{
	bool ok = emit_z(vm, "[");
	at->level++;
	for (size_t i = 0; ok && i < l->n; i++)
		ok = (i == 0 || vm_emit(vm, at->item)) && json_break(vm, at, at->level) &&
			json_value_out(vm, l->v[i], at);
	at->level--;
	return ok && (l->n == 0 || json_break(vm, at, at->level)) && emit_z(vm, "]");
}

static int entry_order(const void *a, const void *b)
{
	const struct entry *x = *(const struct entry *const *)a, *y = *(const struct entry *const *)b;
	size_t n = x->key.n < y->key.n ? x->key.n : y->key.n;
	int order = n > 0 ? memcmp(x->key.p, y->key.p, n) : 0;
	return order != 0 ? order : x->key.n < y->key.n ? -1 : x->key.n > y->key.n;
}

static bool entries_of(struct vm *vm, const struct dict *d, bool sort, struct entry ***out)
{
	*out = vm_get(vm, (d->n + 1) * sizeof **out);
	if (*out == NULL || !vm_spend(vm, sort ? d->n * 16 : d->n))
		return false;
	for (size_t i = 0; i < d->n; i++)
		(*out)[i] = &d->e[i];
	if (sort && d->n > 1)
		qsort(*out, d->n, sizeof **out, entry_order);
	return true;
}

static bool json_dict_out(struct vm *vm, const struct dict *d, struct json_at *at)
{
	struct entry **e;
	if (!entries_of(vm, d, at->style->sort, &e))
		return false;
	bool ok = emit_z(vm, "{");
	at->level++;
	for (size_t i = 0; ok && i < d->n; i++)
		ok = (i == 0 || vm_emit(vm, at->item)) && json_break(vm, at, at->level) &&
			json_str_out(vm, e[i]->key, at->style->ascii) && vm_emit(vm, at->key) &&
			json_value_out(vm, e[i]->v, at);
	at->level--;
	return ok && (d->n == 0 || json_break(vm, at, at->level)) && emit_z(vm, "}");
}

static bool json_float_out(struct vm *vm, double f)
{
	if (isfinite(f))
		return emit_float(vm, f);
	return emit_z(vm, isnan(f) ? "NaN" : f < 0 ? "-Infinity" : "Infinity");
}

static bool json_scalar_out(struct vm *vm, struct value v, const struct json_at *at)
{
	struct cgn_str s;
	if (v.kind == V_NONE)
		return emit_z(vm, "null");
	if (v.kind == V_BOOL)
		return emit_z(vm, v.b ? "true" : "false");
	if (v.kind == V_FLOAT)
		return json_float_out(vm, v.f);
	if (is_num(v))
		return emit_number(vm, v);
	if (is_str(v))
		return value_str(vm, v, &s) && json_str_out(vm, s, at->style->ascii);
	return vm_type(vm, "%s can't be written as JSON", value_type(v));
}

static bool json_value_out(struct vm *vm, struct value v, struct json_at *at)
{
	if (!print_enter(vm) || !value_list(vm, v))
		return false;
	bool ok = is_indexed(v)    ? json_list_out(vm, v.list, at)
		: v.kind == V_DICT ? json_dict_out(vm, v.dict, at)
				   : json_scalar_out(vm, v, at);
	vm->depth--;
	return ok;
}

bool print_json(struct vm *vm, struct value v, const struct json_style *style)
{
	struct json_at at = {.style = style, .lines = style->indent >= 0};
	at.item = style->item.p != NULL ? style->item : at.lines ? CGN_STR(",") : CGN_STR(", ");
	at.key = style->key.p != NULL ? style->key : CGN_STR(": ");
	return json_value_out(vm, v, &at);
}
