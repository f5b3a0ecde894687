/* SPDX-License-Identifier: Apache-2.0 */
/* arena: many small things that die together. Grows by chunks up to a stated limit; not thread-safe. */
#pragma once
#include <stdarg.h>
#include <stddef.h>

#include "base/core/str.h"

struct cgn_arena_chunk;
struct cgn_arena {
	struct cgn_arena_chunk *head;
	size_t used_bytes, limit_bytes;
};

void cgn_arena_init(struct cgn_arena *a, size_t limit_bytes);
void cgn_arena_fini(struct cgn_arena *a);  /* frees everything; safe twice */
void cgn_arena_reset(struct cgn_arena *a); /* frees everything, keeps the limit */
/* All return NULL on exhaustion (of memory or of the limit). 16-byte aligned. */
void *cgn_arena_get(struct cgn_arena *a, size_t n);                  /* not cleared */
void *cgn_arena_zero(struct cgn_arena *a, size_t n);                 /* cleared */
char *cgn_arena_strz(struct cgn_arena *a, struct cgn_str s);         /* NUL-terminated copy */
struct cgn_str cgn_arena_str(struct cgn_arena *a, struct cgn_str s); /* p == NULL on exhaustion */
char *cgn_arena_fmt(struct cgn_arena *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
