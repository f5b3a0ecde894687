/* SPDX-License-Identifier: Apache-2.0 */
/* alloc: memory of a small size that the program itself bounds. There is no way on without it: the program ends with one
 * line that names the size and the place (docs/change/adr/0028). A size that a peer, a file or an operator chooses goes
 * through a cgn_arena, a cgn_buf with a limit, or calloc, and its lack is CGN_NO_MEMORY. base/core/err.h includes this. */
#pragma once
#include <stddef.h>

/* The place in the source, as text. */
#define CGN_STR2(x) #x
#define CGN_STR1(x) CGN_STR2(x)
#define CGN_HERE    __FILE__ ":" CGN_STR1(__LINE__)

/* A cgn_buf without a limit and a copy by cgn_str_dupz get so many bytes, or the program ends. */
#define CGN_SURE_BYTES ((size_t)64 * 1024)

/* Return one zeroed object, or an array of |n|; freed with free. */
#define CGN_NEW(type)          ((type *)cgn_zeroed(1, sizeof(type), CGN_HERE))
#define CGN_NEW_ARRAY(type, n) ((type *)cgn_zeroed((n), sizeof(type), CGN_HERE))
/* Return an array of |n| zeroed objects that begins at a cache line. */
#define CGN_NEW_LINES(type, n) ((type *)cgn_zeroed_lines((n) * sizeof(type), CGN_HERE))
/* Resize the array |p| to |n| elements, as realloc does, and return it; new elements are not cleared. */
#define CGN_GROWN(p, n) ((__typeof__(p))cgn_grown((p), (n), sizeof *(p), CGN_HERE))

void *cgn_zeroed(size_t n, size_t size, const char *where) __attribute__((returns_nonnull, malloc));
void *cgn_zeroed_lines(size_t bytes, const char *where) __attribute__((returns_nonnull, malloc));
void *cgn_grown(void *p, size_t n, size_t size, const char *where) __attribute__((returns_nonnull));
/* End the program for the lack of |bytes|. */
_Noreturn void cgn_out_of_memory(size_t bytes, const char *where);
