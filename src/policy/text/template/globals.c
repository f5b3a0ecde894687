/* SPDX-License-Identifier: Apache-2.0 */
/* template globals: the functions that every chat template may call. */
#include <time.h>

#include "template_priv.h"
#include "text_priv.h"

#define MAX_FORMAT 200    /* Bytes of strftime_now's format. */
#define MAX_RANGE  100000 /* The limit of Jinja's sandbox. */

enum global_name { G_RAISE, G_RANGE, G_NAMESPACE, G_DICT, G_STRFTIME };
static const char *const globals[] = {"raise_exception", "range", "namespace", "dict", "strftime_now"};

int global_id(struct cgn_str name)
{
	for (size_t i = 0; i < CGN_COUNT(globals); i++)
		if (cgn_str_is(name, globals[i]))
			return (int)i;
	return -1;
}

struct value global_value(int id)
{
	return (struct value){.kind = V_GLOBAL, .id = (uint16_t)id};
}

static bool raise_exception(struct vm *vm, struct args args)
{
	struct value v = v_undefined();
	struct cgn_str s;
	(void)arg_get(args, 0, "message", &v);
	if (!value_text(vm, v, &s))
		return false;
	return vm_fail(vm, CGN_INVALID, "%.*s", (int)(s.n < 390 ? s.n : 390), s.p);
}

static bool make_range(struct vm *vm, struct args args, struct value *out)
{
	int64_t v[3] = {0, 0, 1};
	if (args.n_pos < 1 || args.n_pos > 3 || args.n != args.n_pos)
		return vm_type(vm, "range needs one to three integers");
	for (size_t i = 0; i < args.n_pos; i++) {
		if (args.v[i].v.kind != V_INT)
			return vm_type(vm, "range of %s", value_type(args.v[i].v));
		v[args.n_pos == 1 ? 1 : i] = args.v[i].v.i;
	}
	if (v[2] == 0)
		return vm_type(vm, "range with a step of zero");
	if (!list_new(vm, 0, out))
		return false;
	for (int64_t i = v[0]; v[2] > 0 ? i < v[1] : i > v[1];) {
		if (out->list->n == MAX_RANGE)
			return vm_type(vm, "range of more than %d numbers", MAX_RANGE);
		if (!vm_spend(vm, 1) || !list_add(vm, out->list, v_int(i)))
			return false;
		if (__builtin_add_overflow(i, v[2], &i))
			break;
	}
	return true;
}

/* Copy a dictionary or pairs, and named arguments, so that setting an attribute changes nothing else. */
static bool make_dict(struct vm *vm, enum value_kind kind, struct args args, struct value *out)
{
	struct cgn_str key;
	struct value pairs = v_undefined(), pair;
	if (!dict_new(vm, kind, out))
		return false;
	if (args.n_pos > 1)
		return vm_type(vm, "namespace and dict take one positional argument at most");
	if (args.n_pos == 1 &&
		!(args.v[0].v.kind == V_DICT ? dict_pairs(vm, args.v[0].v.dict, &pairs)
					     : value_items(vm, args.v[0].v, &pairs)))
		return false;
	for (size_t i = 0; args.n_pos == 1 && i < pairs.list->n; i++) {
		if (!value_items(vm, pairs.list->v[i], &pair))
			return false;
		if (pair.list->n != 2 || !is_str(pair.list->v[0]))
			return vm_type(vm, "namespace and dict need pairs whose first is a string");
		if (!value_str(vm, pair.list->v[0], &key) || !dict_set(vm, out->dict, key, pair.list->v[1]))
			return false;
	}
	for (size_t i = args.n_pos; i < args.n; i++)
		if (!dict_set(vm, out->dict, args.v[i].name, args.v[i].v))
			return false;
	return true;
}

/* Keep unknown conversions as they are written. */
static void known_format(struct cgn_str format, char *z)
{
	for (size_t i = 0; i < format.n; i++) {
		bool percent = format.p[i] == '%';
		char next = i + 1 < format.n ? format.p[i + 1] : '\0';
		*z++ = format.p[i];
		if (percent &&
			(next == '\0' || strchr("aAbBcdHIjmMpSUwWxXyYzZ%eFTDGuVnthRrC-", next) == NULL))
			*z++ = '%';
		else if (percent)
			*z++ = format.p[++i];
	}
	*z = '\0';
}

static bool strftime_now(struct vm *vm, struct args args, struct value *out)
{
	struct value v;
	struct cgn_str format;
	struct tm tm;
	time_t now = (time_t)vm->ask->now;
	char text[4096], z[2 * MAX_FORMAT + 1];
	if (!arg_get(args, 0, "format", &v) || !is_str(v))
		return vm_type(vm, "strftime_now needs a format");
	if (!value_str(vm, v, &format))
		return false;
	if (format.n > MAX_FORMAT || gmtime_r(&now, &tm) == NULL)
		return vm_type(vm, "strftime_now with a format of more than %d bytes, or outside of time",
			MAX_FORMAT);
	known_format(format, z);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
	size_t n = strftime(text, sizeof text, z, &tm);
#pragma GCC diagnostic pop
	struct cgn_str made = cgn_arena_str(&vm->mem, (struct cgn_str){text, n});
	*out = v_str(made);
	return made.p != NULL || vm_get(vm, SIZE_MAX) != NULL;
}

bool global_call(struct vm *vm, int id, struct args args, struct value *out)
{
	switch (id) {
	case G_RAISE:
		return raise_exception(vm, args);
	case G_RANGE:
		return make_range(vm, args, out);
	case G_NAMESPACE:
		return make_dict(vm, V_SPACE, args, out);
	case G_DICT:
		return make_dict(vm, V_DICT, args, out);
	default:
		return strftime_now(vm, args, out);
	}
}
