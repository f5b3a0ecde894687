/* SPDX-License-Identifier: Apache-2.0 */
/* template methods of strings, dictionaries, lists and loops. Source: Python's documentation, "Built-in
 * Types". */
#include <utf8proc.h>

#include "template_priv.h"
#include "text_priv.h"

#define MAX_STRIP 64 /* In bytes; every character is compared with each of them. */

enum method_name {
	M_STRIP,
	M_LSTRIP,
	M_RSTRIP,
	M_SPLIT,
	M_RSPLIT,
	M_SPLITLINES,
	M_STARTSWITH,
	M_ENDSWITH,
	M_UPPER,
	M_LOWER,
	M_TITLE,
	M_CAPITALIZE,
	M_REPLACE,
	M_JOIN,
	M_FIND,
	M_RFIND,
	M_COUNT,
	M_ISDIGIT,
	M_ISSPACE,
	M_ISALPHA,
	M_ISALNUM,
	M_REMOVEPREFIX,
	M_REMOVESUFFIX,
	M_PARTITION,
	M_ITEMS,
	M_KEYS,
	M_VALUES,
	M_GET,
	M_COPY,
	M_INDEX,
	M_LIST_COUNT,
	M_FORBIDDEN,
	M_CYCLE,
	M_CHANGED
};

static const struct {
	enum value_kind kind;
	enum method_name id;
	const char *name;
} methods[] = {
	{V_STR, M_STRIP, "strip"},
	{V_STR, M_LSTRIP, "lstrip"},
	{V_STR, M_RSTRIP, "rstrip"},
	{V_STR, M_SPLIT, "split"},
	{V_STR, M_RSPLIT, "rsplit"},
	{V_STR, M_SPLITLINES, "splitlines"},
	{V_STR, M_STARTSWITH, "startswith"},
	{V_STR, M_ENDSWITH, "endswith"},
	{V_STR, M_UPPER, "upper"},
	{V_STR, M_LOWER, "lower"},
	{V_STR, M_TITLE, "title"},
	{V_STR, M_CAPITALIZE, "capitalize"},
	{V_STR, M_REPLACE, "replace"},
	{V_STR, M_JOIN, "join"},
	{V_STR, M_FIND, "find"},
	{V_STR, M_RFIND, "rfind"},
	{V_STR, M_COUNT, "count"},
	{V_STR, M_ISDIGIT, "isdigit"},
	{V_STR, M_ISSPACE, "isspace"},
	{V_STR, M_ISALPHA, "isalpha"},
	{V_STR, M_ISALNUM, "isalnum"},
	{V_STR, M_REMOVEPREFIX, "removeprefix"},
	{V_STR, M_REMOVESUFFIX, "removesuffix"},
	{V_STR, M_PARTITION, "partition"},
	{V_DICT, M_ITEMS, "items"},
	{V_DICT, M_KEYS, "keys"},
	{V_DICT, M_VALUES, "values"},
	{V_DICT, M_GET, "get"},
	{V_DICT, M_COPY, "copy"},
	{V_DICT, M_FORBIDDEN, "pop"},
	{V_DICT, M_FORBIDDEN, "popitem"},
	{V_DICT, M_FORBIDDEN, "update"},
	{V_DICT, M_FORBIDDEN, "setdefault"},
	{V_DICT, M_FORBIDDEN, "clear"},
	{V_LIST, M_INDEX, "index"},
	{V_LIST, M_LIST_COUNT, "count"},
	{V_LIST, M_COPY, "copy"},
	{V_LIST, M_FORBIDDEN, "append"},
	{V_LIST, M_FORBIDDEN, "extend"},
	{V_LIST, M_FORBIDDEN, "insert"},
	{V_LIST, M_FORBIDDEN, "pop"},
	{V_LIST, M_FORBIDDEN, "remove"},
	{V_LIST, M_FORBIDDEN, "reverse"},
	{V_LIST, M_FORBIDDEN, "sort"},
	{V_LIST, M_FORBIDDEN, "clear"},
	{V_LOOP, M_CYCLE, "cycle"},
	{V_LOOP, M_CHANGED, "changed"},
};

int method_id(enum value_kind kind, struct cgn_str name)
{
	kind = kind == V_LAZY ? V_STR : kind;
	for (size_t i = 0; i < CGN_COUNT(methods); i++)
		if (methods[i].kind == kind && cgn_str_is(name, methods[i].name))
			return (int)methods[i].id;
	return -1;
}

/* ---- strings ---- */
static bool string_arg(struct vm *vm, struct args args, size_t i, const char *name, struct cgn_str *out)
{
	struct value v;
	if (!arg_get(args, i, name, &v) || !is_str(v))
		return vm_type(vm, "the argument \"%s\" has to be a string", name);
	return value_str(vm, v, out);
}

static bool str_strip(struct vm *vm, struct cgn_str s, int id, struct args args, struct value *out)
{
	struct cgn_str chars, *asked = NULL;
	struct value v;
	if (arg_get(args, 0, "chars", &v) && v.kind != V_NONE) {
		if (!string_arg(vm, args, 0, "chars", &chars))
			return false;
		if (chars.n > MAX_STRIP)
			return vm_type(vm, "strip of more than %d characters", MAX_STRIP);
		asked = &chars;
	}
	if (!vm_spend(vm, (asked != NULL ? s.n / 16 : s.n / 256) + 1))
		return false;
	*out = v_str(text_strip(s, asked, id != M_RSTRIP, id != M_LSTRIP));
	return true;
}

/* The next word of |*rest|, which ends at white space. */
static struct cgn_str next_word(struct cgn_str *rest)
{
	int32_t code;
	*rest = text_strip(*rest, NULL, true, false);
	struct cgn_str word = {rest->p, 0};
	while (word.n < rest->n) {
		size_t n = utf8_step(rest->p + word.n, rest->p + rest->n, &code);
		if (text_is_space(code))
			break;
		word.n += n;
	}
	*rest = (struct cgn_str){rest->p + word.n, rest->n - word.n};
	return word;
}

static bool split_words(struct vm *vm, struct cgn_str s, int64_t max, struct list *l)
{
	for (s = text_strip(s, NULL, true, false); s.n > 0; s = text_strip(s, NULL, true, false), max--) {
		struct cgn_str word = max == 0 ? s : next_word(&s);
		if (!vm_spend_bytes(vm, word.n) || !list_add(vm, l, v_str(word)))
			return false;
		if (max == 0)
			return true;
	}
	return true;
}

static bool split_at(struct vm *vm, struct cgn_str s, struct cgn_str sep, int64_t max, struct list *l)
{
	for (size_t at;; max--) {
		if (!text_find(vm, s, sep, &at))
			return false;
		if (at == SIZE_MAX || max == 0)
			return list_add(vm, l, v_str(s));
		if (!list_add(vm, l, v_str((struct cgn_str){s.p, at})))
			return false;
		s = (struct cgn_str){s.p + at + sep.n, s.n - at - sep.n};
	}
}

/* Split everywhere, then join the surplus pieces at the front again. */
static bool rsplit_at(struct vm *vm, struct cgn_str s, struct cgn_str sep, int64_t max, struct list *l)
{
	if (!split_at(vm, s, sep, -1, l))
		return false;
	if (max < 0 || l->n <= (size_t)max + 1)
		return true;
	size_t gone = l->n - (size_t)max - 1;
	struct cgn_str last = l->v[gone].s;
	l->v[gone] = v_str((struct cgn_str){s.p, (size_t)(last.p + last.n - s.p)});
	memmove(l->v, l->v + gone, (l->n - gone) * sizeof *l->v);
	l->n -= gone;
	return true;
}

static bool str_split(struct vm *vm, struct cgn_str s, int id, struct args args, struct value *out)
{
	struct cgn_str sep;
	struct value v;
	int64_t max = -1;
	if (!list_new(vm, 0, out) || !arg_int(vm, args, 1, "maxsplit", &max))
		return false;
	if (!arg_get(args, 0, "sep", &v) || v.kind == V_NONE) {
		if (id == M_RSPLIT && max >= 0)
			return vm_type(vm, "rsplit at white space with maxsplit is not supported");
		return split_words(vm, s, max, out->list);
	}
	if (!string_arg(vm, args, 0, "sep", &sep))
		return false;
	if (sep.n == 0)
		return vm_type(vm, "split at an empty string");
	return id == M_RSPLIT ? rsplit_at(vm, s, sep, max, out->list) : split_at(vm, s, sep, max, out->list);
}

static bool split_lines(struct vm *vm, struct cgn_str s, struct value *out)
{
	if (!list_new(vm, 0, out))
		return false;
	while (s.n > 0) {
		size_t n = 0;
		while (n < s.n && s.p[n] != '\n' && s.p[n] != '\r')
			n++;
		if (!vm_spend_bytes(vm, n) || !list_add(vm, out->list, v_str((struct cgn_str){s.p, n})))
			return false;
		size_t end = n == s.n ? n : n + (s.p[n] == '\r' && n + 1 < s.n && s.p[n + 1] == '\n' ? 2 : 1);
		s = (struct cgn_str){s.p + end, s.n - end};
	}
	return true;
}

static bool affix_matches(struct cgn_str s, struct cgn_str part, bool front)
{
	return s.n >= part.n &&
		(part.n == 0 || memcmp(front ? s.p : s.p + s.n - part.n, part.p, part.n) == 0);
}

static bool starts_or_ends(struct vm *vm, struct cgn_str s, int id, struct args args, struct value *out)
{
	struct value v;
	struct cgn_str part;
	bool yes = false;
	if (!arg_get(args, 0, "prefix", &v))
		return vm_type(vm, "startswith and endswith need an argument");
	if (v.kind == V_LIST && v.as == LIST_TUPLE) {
		if (!value_list(vm, v))
			return false;
		for (size_t i = 0; i < v.list->n && !yes; i++) {
			if (!is_str(v.list->v[i]))
				return vm_type(vm, "startswith and endswith need strings");
			if (!value_str(vm, v.list->v[i], &part) || !vm_spend_bytes(vm, part.n))
				return false;
			yes = affix_matches(s, part, id == M_STARTSWITH);
		}
	} else {
		if (!string_arg(vm, args, 0, "prefix", &part) || !vm_spend_bytes(vm, part.n))
			return false;
		yes = affix_matches(s, part, id == M_STARTSWITH);
	}
	*out = v_bool(yes);
	return true;
}

static bool remove_part(struct vm *vm, struct cgn_str s, int id, struct args args, struct value *out)
{
	struct cgn_str part;
	bool front = id == M_REMOVEPREFIX;
	if (!string_arg(vm, args, 0, "prefix", &part))
		return false;
	if (affix_matches(s, part, front))
		s = (struct cgn_str){front ? s.p + part.n : s.p, s.n - part.n};
	*out = v_str(s);
	return true;
}

static bool str_find(struct vm *vm, struct cgn_str s, int id, struct args args, struct value *out)
{
	struct cgn_str what;
	size_t at, hit = SIZE_MAX, from = 0;
	int64_t n = 0;
	if (!string_arg(vm, args, 0, "sub", &what))
		return false;
	if (args.n > 1)
		return vm_type(vm, "find, rfind and count with bounds are not supported");
	while (from <= s.n) {
		if (!text_find(vm, (struct cgn_str){s.p + from, s.n - from}, what, &at))
			return false;
		if (at == SIZE_MAX)
			break;
		hit = from + at;
		n++;
		if (id == M_FIND)
			break;
		from = hit + (id == M_COUNT && what.n > 0 ? what.n : 1);
	}
	*out = v_int(id == M_COUNT        ? n
			: hit == SIZE_MAX ? -1
					  : (int64_t)utf8_count((struct cgn_str){s.p, hit}));
	return true;
}

static bool str_partition(struct vm *vm, struct cgn_str s, struct args args, struct value *out)
{
	struct cgn_str sep;
	size_t at;
	if (!string_arg(vm, args, 0, "sep", &sep) || !list_new(vm, 3, out) || !text_find(vm, s, sep, &at))
		return false;
	if (sep.n == 0)
		return vm_type(vm, "partition at an empty string");
	bool found = at != SIZE_MAX;
	out->list->v[0] = v_str((struct cgn_str){s.p, found ? at : s.n});
	out->list->v[1] = v_str(found ? sep : CGN_STR(""));
	out->list->v[2] = v_str(found ? (struct cgn_str){s.p + at + sep.n, s.n - at - sep.n} : CGN_STR(""));
	out->list->n = 3;
	out->as = LIST_TUPLE;
	return true;
}

static bool is_class(int id, int32_t code)
{
	int category = (int)utf8proc_category(code);
	bool alpha = category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
	bool digit = category == UTF8PROC_CATEGORY_ND;
	switch (id) {
	case M_ISDIGIT:
		return digit;
	case M_ISALPHA:
		return alpha;
	case M_ISALNUM:
		return alpha || digit;
	default:
		return text_is_space(code);
	}
}

static bool is_all(struct vm *vm, struct cgn_str s, int id, struct value *out)
{
	bool yes = s.n > 0;
	int32_t code;
	for (size_t at = 0; yes && at < s.n;) {
		at += utf8_step(s.p + at, s.p + s.n, &code);
		yes = is_class(id, code);
	}
	*out = v_bool(yes);
	return vm_spend(vm, s.n / 16 + 1);
}

static bool str_join(struct vm *vm, struct cgn_str s, struct args args, struct value *out)
{
	struct value v, items;
	struct cgn_str piece;
	size_t mark = vm_mark(vm);
	if (!arg_get(args, 0, "iterable", &v))
		return vm_type(vm, "join needs an argument");
	if (!value_items(vm, v, &items))
		return false;
	for (size_t i = 0; i < items.list->n; i++) {
		if (!is_str(items.list->v[i]))
			return vm_type(vm, "join of %s", value_type(items.list->v[i]));
		if (!value_str(vm, items.list->v[i], &piece) || (i > 0 && !vm_emit(vm, s)) ||
			!vm_emit(vm, piece))
			return false;
	}
	return vm_take(vm, mark, out);
}

static bool change_case(struct vm *vm, struct cgn_str s, int id, struct value *out)
{
	enum text_case how = id == M_UPPER ? CASE_UPPER
		: id == M_LOWER            ? CASE_LOWER
		: id == M_TITLE            ? CASE_TITLE
					   : CASE_CAPITAL;
	if (!text_case(vm, s, how, &s))
		return false;
	*out = v_str(s);
	return true;
}

static bool str_replace(struct vm *vm, struct cgn_str s, struct args args, struct value *out)
{
	struct cgn_str from, to;
	int64_t count = -1;
	if (!string_arg(vm, args, 0, "old", &from) || !string_arg(vm, args, 1, "new", &to) ||
		!arg_int(vm, args, 2, "count", &count) || !text_replace(vm, s, from, to, count, &s))
		return false;
	*out = v_str(s);
	return true;
}

static bool string_call(struct vm *vm, struct cgn_str s, int id, struct args args, struct value *out)
{
	switch (id) {
	case M_STRIP:
	case M_LSTRIP:
	case M_RSTRIP:
		return str_strip(vm, s, id, args, out);
	case M_SPLIT:
	case M_RSPLIT:
		return str_split(vm, s, id, args, out);
	case M_SPLITLINES:
		return split_lines(vm, s, out);
	case M_STARTSWITH:
	case M_ENDSWITH:
		return starts_or_ends(vm, s, id, args, out);
	case M_REMOVEPREFIX:
	case M_REMOVESUFFIX:
		return remove_part(vm, s, id, args, out);
	case M_REPLACE:
		return str_replace(vm, s, args, out);
	case M_JOIN:
		return str_join(vm, s, args, out);
	case M_FIND:
	case M_RFIND:
	case M_COUNT:
		return str_find(vm, s, id, args, out);
	case M_PARTITION:
		return str_partition(vm, s, args, out);
	case M_ISDIGIT:
	case M_ISSPACE:
	case M_ISALPHA:
	case M_ISALNUM:
		return is_all(vm, s, id, out);
	default:
		return change_case(vm, s, id, out);
	}
}

/* ---- dictionaries and lists ---- */
static bool dict_get(struct vm *vm, struct dict *d, struct args args, struct value *out)
{
	struct value key, fallback = v_none();
	struct cgn_str name;
	bool found = false;
	if (!arg_get(args, 0, "key", &key))
		return vm_type(vm, "get needs a key");
	(void)arg_get(args, 1, "default", &fallback);
	if (is_str(key) && (!value_str(vm, key, &name) || !dict_find(vm, d, name, out, &found)))
		return false;
	if (!found)
		*out = fallback;
	return true;
}

static bool dict_values(struct vm *vm, struct dict *d, struct value *out)
{
	if (!list_new(vm, d->n, out) || !vm_spend(vm, d->n))
		return false;
	for (size_t i = 0; i < d->n; i++)
		out->list->v[i] = d->e[i].v;
	out->list->n = d->n;
	return true;
}

static bool dict_call(struct vm *vm, struct value self, int id, struct args args, struct value *out)
{
	if (!value_list(vm, self))
		return false;
	if (id == M_GET)
		return dict_get(vm, self.dict, args, out);
	bool ok = id == M_ITEMS ? dict_pairs(vm, self.dict, out)
		: id == M_KEYS  ? value_items(vm, self, out)
				: dict_values(vm, self.dict, out);
	if (ok)
		out->as = id == M_ITEMS ? LIST_ITEMS : id == M_KEYS ? LIST_KEYS : LIST_VALUES;
	return ok;
}

static bool list_find(struct vm *vm, struct value self, int id, struct args args, struct value *out)
{
	struct value what;
	int64_t n = 0;
	bool same;
	if (!is_indexed(self))
		return vm_type(vm, "%s has neither index nor count", value_type(self));
	if (!arg_get(args, 0, "value", &what))
		return vm_type(vm, "index and count need a value");
	if (!value_list(vm, self))
		return false;
	for (size_t i = 0; i < self.list->n; i++) {
		if (!value_equal(vm, self.list->v[i], what, &same))
			return false;
		if (same && id == M_INDEX) {
			*out = v_int((int64_t)i);
			return true;
		}
		n += same;
	}
	*out = v_int(n);
	return id == M_LIST_COUNT || vm_type(vm, "index of a value that is not in the list");
}

bool method_call(struct vm *vm, struct value self, int id, struct args args, struct value *out)
{
	struct cgn_str s;
	if (id == M_FORBIDDEN)
		return vm_type(vm, "a chat template may not change %s", value_type(self));
	if (id == M_COPY) { /* Values are never changed, so a copy is the same value. */
		*out = self;
		return true;
	}
	if (self.kind == V_LOOP)
		return loop_call(vm, self.loop, id == M_CYCLE, args, out);
	if (self.kind == V_LIST)
		return list_find(vm, self, id, args, out);
	if (self.kind == V_DICT)
		return dict_call(vm, self, id, args, out);
	return value_str(vm, self, &s) && string_call(vm, s, id, args, out);
}
