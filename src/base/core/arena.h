/* SPDX-License-Identifier: Apache-2.0 */
/* arena: many small allocations that are freed together. Grows by chunks up to a limit; not thread-safe. */
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
void cgn_arena_fini(struct cgn_arena *a);  /* Free everything; may be called twice. */
void cgn_arena_reset(struct cgn_arena *a); /* Free everything and keep the limit. */
/* Allocations return NULL when the limit is exhausted, and for more than CGN_SURE_BYTES without memory. Results are aligned to 16 bytes. */
void *cgn_arena_get(struct cgn_arena *a, size_t n);          /* Not cleared. */
void *cgn_arena_zero(struct cgn_arena *a, size_t n);         /* Cleared. */
char *cgn_arena_strz(struct cgn_arena *a, struct cgn_str s); /* A NUL-terminated copy. */
/* The result's p is NULL on exhaustion. */
struct cgn_str cgn_arena_str(struct cgn_arena *a, struct cgn_str s);
char *cgn_arena_fmt(struct cgn_arena *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
