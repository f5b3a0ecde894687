/* SPDX-License-Identifier: Apache-2.0 */
/* buf: a growable byte string with a limit and a sticky error, so that writers check once at the end. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/str.h"

struct cgn_buf {
	char *p;              /* owned; not NUL-terminated unless cgn_buf_z was called */
	size_t n, cap, limit; /* limit 0 means SIZE_MAX / 2 */
	bool bad;             /* an append did not fit; nothing is appended any more */
};

void cgn_buf_fini(struct cgn_buf *b); /* frees; leaves an empty usable buffer with the same limit */
/* Make room for |n| more bytes and return where they go; NULL (and bad) when that can't be had.
 * Follow with cgn_buf_grew(b, written). */
char *cgn_buf_room(struct cgn_buf *b, size_t n);
void cgn_buf_grew(struct cgn_buf *b, size_t n);
void cgn_buf_add(struct cgn_buf *b, const void *p, size_t n);
void cgn_buf_str(struct cgn_buf *b, struct cgn_str s);
void cgn_buf_putz(struct cgn_buf *b, const char *z);
void cgn_buf_char(struct cgn_buf *b, char c);
void cgn_buf_u64(struct cgn_buf *b, uint64_t v); /* decimal */
void cgn_buf_fmt(struct cgn_buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Terminate (the NUL is not counted) and borrow; "" when bad. */
const char *cgn_buf_z(struct cgn_buf *b);
/* Drop the first |n| bytes. */
void cgn_buf_eat(struct cgn_buf *b, size_t n);
/* A buffer over |cap| bytes (not 0) that somebody else owns: never grows, never given to cgn_buf_fini. */
static inline struct cgn_buf cgn_buf_over(char *p, size_t cap)
{
	return (struct cgn_buf){.p = p, .cap = cap, .limit = cap};
}
static inline struct cgn_str cgn_buf_view(const struct cgn_buf *b)
{
	return (struct cgn_str){b->p, b->n};
}
