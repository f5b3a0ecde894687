/* SPDX-License-Identifier: Apache-2.0 */
/* template scope: variables. */
#include "template_priv.h"

static struct binding *binding_of(struct scope *scope, uint32_t sym)
{
	struct binding *b = scope->first;
	while (b != NULL && b->sym != sym)
		b = b->next;
	return b;
}

struct value scope_get(struct vm *vm, uint32_t sym)
{
	for (struct scope *s = vm->scope; s != NULL; s = s->up) {
		const struct binding *b = binding_of(s, sym);
		if (b != NULL)
			return b->v;
	}
	return vm->globals[sym];
}

bool scope_set(struct vm *vm, uint32_t sym, struct value v)
{
	if (vm->scope == NULL) {
		vm->globals[sym] = v;
		return true;
	}
	struct binding *b = binding_of(vm->scope, sym);
	if (b == NULL) {
		b = vm->spare != NULL ? vm->spare : vm_get(vm, sizeof *b);
		if (b == NULL)
			return false;
		vm->spare = vm->spare != NULL ? b->next : NULL;
		*b = (struct binding){.next = vm->scope->first, .sym = sym};
		vm->scope->first = b;
	}
	b->v = v;
	return true;
}

void scope_keep(struct vm *vm)
{
	for (struct scope *s = vm->scope; s != NULL && !s->kept; s = s->up)
		s->kept = true;
}

struct scope *scope_push(struct vm *vm, struct scope *up)
{
	struct scope *s = vm_get(vm, sizeof *s);
	if (s != NULL) {
		*s = (struct scope){.up = up};
		vm->scope = s;
	}
	return s;
}

bool scope_clear(struct vm *vm, struct scope **io)
{
	struct scope *s = *io;
	if (s->kept) {
		struct scope *up = s->up;
		return (*io = scope_push(vm, up)) != NULL;
	}
	for (struct binding *b = s->first, *next; b != NULL; b = next) {
		next = b->next;
		b->next = vm->spare;
		vm->spare = b;
	}
	s->first = NULL;
	return true;
}
