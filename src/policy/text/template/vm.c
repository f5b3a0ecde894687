/* SPDX-License-Identifier: Apache-2.0 */
/* template vm: bounds and failures of a render, and the text under construction. */
#include <stdarg.h>

#include "template_priv.h"

cgn_rc template_fail(struct cgn_str source, size_t at, struct cgn_err *err, enum cgn_code code,
	const char *what)
{
	size_t line = 1, column = 1;
	for (size_t i = 0; i < at && i < source.n; i++) {
		if (source.p[i] == '\n') {
			line++;
			column = 1;
		} else if (((unsigned char)source.p[i] & 0xc0) != 0x80) {
			column++;
		}
	}
	return CGN_FAIL_AS(err, code, "line %zu column %zu: %s", line, column, what);
}

bool vm_fail(struct vm *vm, enum cgn_code code, const char *fmt, ...)
{
	char what[400];
	if (!cgn_ok(vm->rc))
		return false;
	va_list ap;
	va_start(ap, fmt);
	(void)vsnprintf(what, sizeof what, fmt, ap);
	va_end(ap);
	vm->rc = CGN_FAIL_AS(vm->err, code, "%s", what);
	return false;
}

bool vm_type(struct vm *vm, const char *fmt, ...)
{
	char what[300];
	if (!cgn_ok(vm->rc))
		return false;
	va_list ap;
	va_start(ap, fmt);
	(void)vsnprintf(what, sizeof what, fmt, ap);
	va_end(ap);
	vm->rc = template_fail(vm->t->source, vm->now != NULL ? vm->now->at : 0, vm->err, CGN_INVALID, what);
	return false;
}

bool vm_spend(struct vm *vm, size_t steps)
{
	if (steps > vm->steps_left)
		return vm_fail(vm, CGN_TOO_LARGE, "the chat template takes too many steps");
	vm->steps_left -= steps;
	return true;
}

void *vm_get(struct vm *vm, size_t n)
{
	void *p = cgn_arena_get(&vm->mem, n);
	if (p == NULL) {
		bool limit = n > vm->mem.limit_bytes - vm->mem.used_bytes || n == SIZE_MAX;
		(void)vm_fail(vm, limit ? CGN_TOO_LARGE : CGN_NO_MEMORY,
			"the chat template takes too much memory");
	}
	return p;
}

bool vm_emit(struct vm *vm, struct cgn_str s)
{
	if (s.n > vm->out_max - (vm->out->n - vm->out_base))
		return vm_fail(vm, CGN_TOO_LARGE, "the chat template makes more than %zu bytes", vm->out_max);
	cgn_buf_str(vm->out, s);
	if (vm->out->bad)
		return vm_fail(vm, vm->out->limit != 0 ? CGN_TOO_LARGE : CGN_NO_MEMORY,
			"the chat template's text does not fit its buffer");
	return vm_spend_bytes(vm, s.n);
}

size_t vm_mark(struct vm *vm)
{
	return vm->out->n;
}

bool vm_take(struct vm *vm, size_t mark, struct value *out)
{
	struct cgn_str s = {vm->out->p + mark, vm->out->n - mark};
	*out = v_str(CGN_STR(""));
	if (s.n == 0)
		return true;
	char *p = vm_get(vm, s.n);
	if (p == NULL)
		return false;
	memcpy(p, s.p, s.n);
	vm->out->n = mark;
	*out = v_str((struct cgn_str){p, s.n});
	return vm_spend_bytes(vm, s.n);
}
