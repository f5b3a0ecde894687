/* SPDX-License-Identifier: Apache-2.0 */
#include "base/core/arena.h"

#include <stdalign.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/core/err.h"

#ifdef CGN_ARENA_EMULATE
#define CHUNK_BYTES 0 /* Each allocation is its own malloc, so that ASan sees overruns. */
#else
#define CHUNK_BYTES 2032
#endif

struct cgn_arena_chunk {
	struct cgn_arena_chunk *next;
	size_t cap, used;
	alignas(16) char bytes[];
};

void cgn_arena_init(struct cgn_arena *a, size_t limit_bytes)
{
	*a = (struct cgn_arena){.limit_bytes = limit_bytes};
}

void cgn_arena_reset(struct cgn_arena *a)
{
	while (a->head != NULL) {
		struct cgn_arena_chunk *c = a->head;
		a->head = c->next;
		free(c);
	}
	a->used_bytes = 0;
}

void cgn_arena_fini(struct cgn_arena *a)
{
	cgn_arena_reset(a);
}

static struct cgn_arena_chunk *chunk_new(struct cgn_arena *a, size_t need)
{
	size_t cap = need > CHUNK_BYTES ? need : CHUNK_BYTES;
	struct cgn_arena_chunk *c = malloc(sizeof *c + cap);
	if (c == NULL && cap <= CGN_SURE_BYTES)
		cgn_out_of_memory(cap, CGN_HERE);
	if (c == NULL)
		return NULL;
	c->cap = cap;
	c->used = 0;
	c->next = a->head;
	a->head = c;
	return c;
}

void *cgn_arena_get(struct cgn_arena *a, size_t n)
{
	size_t need = (n + 15) & ~(size_t)15;
	if (need < n || need > a->limit_bytes - a->used_bytes)
		return NULL;
	struct cgn_arena_chunk *c = a->head;
	if (c == NULL || c->cap - c->used < need)
		c = chunk_new(a, need);
	if (c == NULL)
		return NULL;
	void *p = c->bytes + c->used;
	c->used += need;
	a->used_bytes += need;
	return p;
}

void *cgn_arena_zero(struct cgn_arena *a, size_t n)
{
	void *p = cgn_arena_get(a, n);
	return p != NULL ? memset(p, 0, n) : NULL;
}

char *cgn_arena_strz(struct cgn_arena *a, struct cgn_str s)
{
	char *z = cgn_arena_get(a, s.n + 1);
	if (z == NULL)
		return NULL;
	if (s.n > 0)
		memcpy(z, s.p, s.n);
	z[s.n] = '\0';
	return z;
}

struct cgn_str cgn_arena_str(struct cgn_arena *a, struct cgn_str s)
{
	char *z = cgn_arena_strz(a, s);
	return (struct cgn_str){z, z != NULL ? s.n : 0};
}

char *cgn_arena_fmt(struct cgn_arena *a, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	va_list again;
	va_copy(again, ap);
	int n = vsnprintf(NULL, 0, fmt, ap);
	va_end(ap);
	char *z = n < 0 ? NULL : cgn_arena_get(a, (size_t)n + 1);
	if (z != NULL)
		(void)vsnprintf(z, (size_t)n + 1, fmt, again);
	va_end(again);
	return z;
}
