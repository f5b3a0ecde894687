/* SPDX-License-Identifier: Apache-2.0 */
/* template values: read from the document on first use; lists and dictionaries; truth, equality, order. */
#include <math.h>
#include <stdlib.h>

#include "base/mix/mix.h"
#include "template_priv.h"
#include "text_priv.h"

#define INDEX_FROM 12 /* Entries; a smaller dictionary is searched linearly. */

const char *value_type(struct value v)
{
	switch (v.kind) {
	case V_UNDEFINED:
		return "an undefined value";
	case V_NONE:
		return "none";
	case V_BOOL:
		return "a boolean";
	case V_INT:
	case V_BIG:
		return "an integer";
	case V_FLOAT:
		return "a float";
	case V_STR:
	case V_LAZY:
		return "a string";
	case V_LIST:
		return v.as == LIST_TUPLE    ? "a tuple"
			: v.as == LIST_PLAIN ? "a list"
			: v.as == LIST_ONCE  ? "a generator"
					     : "a view of a dictionary";
	case V_DICT:
		return "a dictionary";
	case V_SPACE:
		return "a namespace";
	case V_LOOP:
		return "a loop";
	case V_MACRO:
	case V_METHOD:
	case V_GLOBAL:
		break;
	}
	return "a function";
}

static bool number_of_json(struct vm *vm, struct cgn_str raw, struct value *out)
{
	char *z = cgn_arena_strz(&vm->mem, raw), *end;
	if (z == NULL)
		return vm_get(vm, SIZE_MAX) != NULL;
	double f = strtod(z, NULL);
	bool whole = memchr(raw.p, '.', raw.n) == NULL && memchr(raw.p, 'e', raw.n) == NULL &&
		memchr(raw.p, 'E', raw.n) == NULL;
	long long i = whole ? strtoll(z, &end, 10) : 0;
	if (!whole)
		*out = v_float(f);
	else if (fabs(f) < 9e18)
		*out = v_int(i);
	else
		*out = (struct value){.kind = V_BIG, .s = {z, raw.n}};
	return true;
}

bool value_of_json(struct vm *vm, struct json_val j, struct value *out)
{
	switch (j.type) {
	case JSON_NULL:
		*out = v_none();
		return true;
	case JSON_BOOL:
		*out = v_bool(j.raw.p[0] == 't');
		return true;
	case JSON_NUMBER:
		return number_of_json(vm, j.raw, out);
	case JSON_STRING:
		if (memchr(j.raw.p, '\\', j.raw.n) == NULL) {
			*out = v_str((struct cgn_str){j.raw.p + 1, j.raw.n - 2});
			return true;
		}
		*out = (struct value){.kind = V_LAZY, .lazy = vm_get(vm, sizeof *out->lazy)};
		if (out->lazy != NULL)
			*out->lazy = (struct lazy_str){.raw = j};
		return out->lazy != NULL;
	case JSON_ARRAY:
		*out = (struct value){.kind = V_LIST, .list = vm_get(vm, sizeof *out->list)};
		if (out->list != NULL)
			*out->list = (struct list){.raw = j};
		return out->list != NULL;
	case JSON_OBJECT:
		break;
	}
	*out = (struct value){.kind = V_DICT, .dict = vm_get(vm, sizeof *out->dict)};
	if (out->dict != NULL)
		*out->dict = (struct dict){.raw = j};
	return out->dict != NULL;
}

bool value_str(struct vm *vm, struct value v, struct cgn_str *out)
{
	if (v.kind == V_LAZY && v.lazy->s.p == NULL) {
		if (!vm_spend_bytes(vm, v.lazy->raw.raw.n))
			return false;
		v.lazy->s = json_str(v.lazy->raw, &vm->mem);
		if (v.lazy->s.p == NULL)
			return vm_get(vm, SIZE_MAX) != NULL;
	}
	*out = v.kind == V_LAZY ? v.lazy->s : v.s;
	return true;
}

/* ---- lists ---- */
bool list_new(struct vm *vm, size_t cap, struct value *out)
{
	struct list *l = vm_get(vm, sizeof *l);
	if (l == NULL)
		return false;
	*l = (struct list){.cap = cap};
	if (cap > 0 && (cap > SIZE_MAX / 64 || (l->v = vm_get(vm, cap * sizeof *l->v)) == NULL))
		return false;
	*out = (struct value){.kind = V_LIST, .list = l};
	return true;
}

bool list_add(struct vm *vm, struct list *l, struct value v)
{
	if (!vm_spend(vm, 1))
		return false;
	if (l->n == l->cap) {
		size_t cap = l->cap < 4 ? 4 : 2 * l->cap;
		struct value *grown = vm_get(vm, cap * sizeof *grown);
		if (grown == NULL)
			return false;
		if (l->n > 0)
			memcpy(grown, l->v, l->n * sizeof *grown);
		l->v = grown;
		l->cap = cap;
	}
	l->v[l->n++] = v;
	return true;
}

/* ---- dictionaries ---- */
/* Return the slot of |key|, or the empty slot for it. Long probes cost steps, so that chosen keys cannot gain
 * time. */
static bool index_slot(struct vm *vm, const struct dict *d, struct cgn_str key, size_t *out)
{
	size_t mask = d->n_index - 1, at = mix_fnv1a(MIX_FNV1A, key.p, key.n) & mask;
	while (d->index[at] != 0 && !cgn_str_eq(d->e[d->index[at] - 1].key, key)) {
		if (!vm_spend(vm, 1))
			return false;
		at = (at + 1) & mask;
	}
	*out = at;
	return true;
}

static bool index_make(struct vm *vm, struct dict *d)
{
	d->n_index = 64;
	while (d->n_index < 4 * d->n)
		d->n_index *= 2;
	d->index = vm_get(vm, d->n_index * sizeof *d->index);
	if (d->index == NULL)
		return false;
	memset(d->index, 0, d->n_index * sizeof *d->index);
	for (size_t i = 0, slot; i < d->n; i++) {
		if (!index_slot(vm, d, d->e[i].key, &slot))
			return false;
		d->index[slot] = (uint32_t)i + 1;
	}
	return true;
}

/* Return the index of |key|'s entry; SIZE_MAX: absent. */
static bool dict_at(struct vm *vm, const struct dict *d, struct cgn_str key, size_t *out)
{
	size_t slot;
	*out = SIZE_MAX;
	if (d->index != NULL) {
		if (!index_slot(vm, d, key, &slot))
			return false;
		if (d->index[slot] != 0)
			*out = d->index[slot] - 1;
		return true;
	}
	for (size_t i = 0; i < d->n && *out == SIZE_MAX; i++)
		if (cgn_str_eq(d->e[i].key, key))
			*out = i;
	return true;
}

static bool dict_append(struct vm *vm, struct dict *d, struct cgn_str key, struct value v)
{
	if (d->n == d->cap) {
		size_t cap = d->cap < 4 ? 4 : 2 * d->cap;
		struct entry *grown = vm_get(vm, cap * sizeof *grown);
		if (grown == NULL)
			return false;
		if (d->n > 0)
			memcpy(grown, d->e, d->n * sizeof *grown);
		d->e = grown;
		d->cap = cap;
	}
	d->e[d->n++] = (struct entry){key, v};
	if (d->n < INDEX_FROM)
		return true;
	if (d->index == NULL || 2 * d->n > d->n_index)
		return index_make(vm, d);
	size_t slot;
	if (!index_slot(vm, d, key, &slot))
		return false;
	d->index[slot] = (uint32_t)d->n;
	return true;
}

static bool dict_put(struct vm *vm, struct dict *d, struct cgn_str key, struct value v)
{
	size_t at;
	if (!dict_at(vm, d, key, &at))
		return false;
	if (at == SIZE_MAX)
		return dict_append(vm, d, key, v);
	d->e[at].v = v; /* Keep the first entry's place and the last one's value. */
	return true;
}

static bool dict_walk(struct vm *vm, struct dict *d)
{
	struct json_iter it = json_iter_of(d->raw);
	struct cgn_str key;
	struct json_val j;
	struct value v;
	if (!vm_spend_bytes(vm, d->raw.raw.n))
		return false;
	d->raw.raw.p = NULL;
	while (json_next_member(&it, &key, &j)) {
		struct json_val quoted = {JSON_STRING, {key.p - 1, key.n + 2}};
		struct cgn_str name = json_str(quoted, &vm->mem);
		if (name.p == NULL && key.n > 0)
			return vm_get(vm, SIZE_MAX) != NULL;
		if (!vm_spend(vm, 1) || !value_of_json(vm, j, &v) || !dict_put(vm, d, name, v))
			return false;
	}
	return true;
}

static bool list_walk(struct vm *vm, struct list *l)
{
	struct json_iter it = json_iter_of(l->raw);
	struct json_val j;
	struct value v;
	if (!vm_spend_bytes(vm, l->raw.raw.n))
		return false;
	l->raw.raw.p = NULL;
	while (json_next_elem(&it, &j))
		if (!vm_spend(vm, 1) || !value_of_json(vm, j, &v) || !list_add(vm, l, v))
			return false;
	return true;
}

bool value_list(struct vm *vm, struct value v)
{
	if (v.kind == V_LIST && v.list->raw.raw.p != NULL)
		return list_walk(vm, v.list);
	if (v.kind == V_DICT && v.dict->raw.raw.p != NULL)
		return dict_walk(vm, v.dict);
	return true;
}

bool dict_new(struct vm *vm, enum value_kind kind, struct value *out)
{
	struct dict *d = vm_get(vm, sizeof *d);
	if (d == NULL)
		return false;
	*d = (struct dict){.n = 0};
	*out = (struct value){.kind = kind, .dict = d};
	return true;
}

bool dict_set(struct vm *vm, struct dict *d, struct cgn_str key, struct value v)
{
	return (d->raw.raw.p == NULL || dict_walk(vm, d)) && dict_put(vm, d, key, v);
}

bool dict_find(struct vm *vm, struct dict *d, struct cgn_str key, struct value *out, bool *found)
{
	size_t at;
	if ((d->raw.raw.p != NULL && !dict_walk(vm, d)) || !dict_at(vm, d, key, &at))
		return false;
	*found = at != SIZE_MAX;
	*out = *found ? d->e[at].v : v_undefined();
	return true;
}

bool dict_pairs(struct vm *vm, struct dict *d, struct value *out)
{
	if (!value_list(vm, (struct value){.kind = V_DICT, .dict = d}) || !list_new(vm, d->n, out))
		return false;
	for (size_t i = 0; i < d->n; i++) {
		struct value pair;
		if (!vm_spend(vm, 1) || !list_new(vm, 2, &pair))
			return false;
		pair.list->v[0] = v_str(d->e[i].key);
		pair.list->v[1] = d->e[i].v;
		pair.list->n = 2;
		pair.as = LIST_TUPLE;
		out->list->v[out->list->n++] = pair;
	}
	return true;
}

static bool dict_keys(struct vm *vm, struct dict *d, struct value *out)
{
	if (!list_new(vm, d->n, out) || !vm_spend(vm, d->n))
		return false;
	for (size_t i = 0; i < d->n; i++)
		out->list->v[i] = v_str(d->e[i].key);
	out->list->n = d->n;
	return true;
}

static bool chars_of(struct vm *vm, struct cgn_str s, struct value *out)
{
	int32_t code;
	if (!list_new(vm, 0, out))
		return false;
	for (size_t at = 0, n; at < s.n; at += n) {
		n = utf8_step(s.p + at, s.p + s.n, &code);
		if (!vm_spend(vm, 1) || !list_add(vm, out->list, v_str((struct cgn_str){s.p + at, n})))
			return false;
	}
	return true;
}

static bool list_drain(struct vm *vm, struct list *l, struct value *out)
{
	if (!list_new(vm, 0, out))
		return false;
	*out->list = *l;
	*l = (struct list){.n = 0};
	return true;
}

bool value_items(struct vm *vm, struct value v, struct value *out)
{
	struct cgn_str s;
	if (!value_list(vm, v))
		return false;
	if (v.kind == V_LIST && v.as == LIST_ONCE)
		return list_drain(vm, v.list, out);
	if (v.kind == V_LIST) {
		*out = v;
		return true;
	}
	if (v.kind == V_DICT)
		return dict_keys(vm, v.dict, out);
	if (v.kind == V_UNDEFINED)
		return list_new(vm, 0, out);
	if (is_str(v))
		return value_str(vm, v, &s) && chars_of(vm, s, out);
	return vm_type(vm, "%s can't be walked through", value_type(v));
}

/* ---- truth and order ---- */
bool value_true(struct vm *vm, struct value v, bool *out)
{
	if (!value_list(vm, v))
		return false;
	switch (v.kind) {
	case V_UNDEFINED:
	case V_NONE:
		*out = false;
		return true;
	case V_BOOL:
		*out = v.b;
		return true;
	case V_INT:
		*out = v.i != 0;
		return true;
	case V_FLOAT:
		*out = v.f < 0 || v.f > 0;
		return true;
	case V_STR:
		*out = v.s.n > 0;
		return true;
	case V_LIST:
		*out = v.list->n > 0 || v.as == LIST_ONCE;
		return true;
	case V_DICT:
		*out = v.dict->n > 0;
		return true;
	case V_BIG:
	case V_LAZY: /* A string with an escape. */
	case V_SPACE:
	case V_MACRO:
	case V_METHOD:
	case V_LOOP:
	case V_GLOBAL:
		break;
	}
	*out = true;
	return true;
}

double value_num(struct value v)
{
	if (v.kind == V_BOOL)
		return v.b ? 1 : 0;
	if (v.kind == V_BIG)
		return strtod(v.s.p, NULL);
	return v.kind == V_INT ? (double)v.i : v.f;
}

static bool num_equal(struct value a, struct value b)
{
	if (a.kind == V_INT && b.kind == V_INT)
		return a.i == b.i;
	if (a.kind == V_BIG && b.kind == V_BIG)
		return cgn_str_eq(a.s, b.s);
	double x = value_num(a), y = value_num(b);
	return !(x < y) && !(x > y);
}

static bool str_equal(struct vm *vm, struct value a, struct value b, bool *out)
{
	struct cgn_str x, y;
	if (!value_str(vm, a, &x) || !value_str(vm, b, &y) || !vm_spend_bytes(vm, x.n == y.n ? x.n : 0))
		return false;
	*out = cgn_str_eq(x, y);
	return true;
}

static bool list_equal(struct vm *vm, struct value a, struct value b, bool *out)
{
	if (!value_list(vm, a) || !value_list(vm, b))
		return false;
	*out = a.list->n == b.list->n && a.as == b.as;
	for (size_t i = 0; *out && i < a.list->n; i++)
		if (!value_equal(vm, a.list->v[i], b.list->v[i], out))
			return false;
	return true;
}

static bool dict_equal(struct vm *vm, struct value a, struct value b, bool *out)
{
	struct value other;
	if (!value_list(vm, a) || !value_list(vm, b))
		return false;
	*out = a.dict->n == b.dict->n;
	for (size_t i = 0; *out && i < a.dict->n; i++)
		if (!dict_find(vm, b.dict, a.dict->e[i].key, &other, out) ||
			(*out && !value_equal(vm, a.dict->e[i].v, other, out)))
			return false;
	return true;
}

static bool deep_equal(struct vm *vm, struct value a, struct value b, bool *out)
{
	if (++vm->depth > MAX_EVAL_DEPTH)
		return vm_fail(vm, CGN_TOO_LARGE,
			"the values that the chat template compares are nested more than %d deep",
			MAX_EVAL_DEPTH);
	bool ok = a.kind == V_LIST ? list_equal(vm, a, b, out) : dict_equal(vm, a, b, out);
	vm->depth--;
	return ok;
}

static bool same_object(struct value a, struct value b)
{
	return a.kind == b.kind && (a.kind == V_GLOBAL ? a.id == b.id : a.list == b.list);
}

bool value_equal(struct vm *vm, struct value a, struct value b, bool *out)
{
	if (!vm_spend(vm, 1))
		return false;
	if (is_str(a) && is_str(b))
		return str_equal(vm, a, b, out);
	if (is_num(a) && is_num(b)) {
		*out = num_equal(a, b);
		return true;
	}
	if (a.kind == b.kind && (a.kind == V_LIST || a.kind == V_DICT))
		return (a.kind == V_LIST && !is_indexed(a) && !(*out = false)) || deep_equal(vm, a, b, out);
	*out = a.kind == b.kind && (a.kind == V_NONE || a.kind == V_UNDEFINED || same_object(a, b));
	return true;
}

static int str_order(struct cgn_str x, struct cgn_str y)
{
	size_t n = x.n < y.n ? x.n : y.n; /* UTF-8 sorts in the order of its code points. */
	int order = n > 0 ? memcmp(x.p, y.p, n) : 0;
	return order != 0 ? order : x.n < y.n ? -1 : x.n > y.n;
}

bool value_order(struct vm *vm, struct value a, struct value b, bool fold, int *out)
{
	struct cgn_str x, y;
	if (!vm_spend(vm, 1))
		return false;
	if (is_num(a) && is_num(b)) {
		double f = value_num(a), g = value_num(b);
		*out = f < g ? -1 : f > g;
		if (a.kind == V_INT && b.kind == V_INT)
			*out = a.i < b.i ? -1 : a.i > b.i;
		return true;
	}
	if (!is_str(a) || !is_str(b))
		return vm_type(vm, "%s and %s can't be compared", value_type(a), value_type(b));
	if (!value_str(vm, a, &x) || !value_str(vm, b, &y) || !vm_spend_bytes(vm, x.n < y.n ? x.n : y.n))
		return false;
	if (fold && (!text_case(vm, x, CASE_LOWER, &x) || !text_case(vm, y, CASE_LOWER, &y)))
		return false;
	*out = str_order(x, y);
	return true;
}
