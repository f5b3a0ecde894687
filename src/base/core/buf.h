/* SPDX-License-Identifier: Apache-2.0 */
/* buf: a growable byte string with a limit and a sticky error, so that writers check once at the end. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/str.h"

/* Without a limit, the first CGN_SURE_BYTES are there or the program ends: a writer of a text that cannot be longer need not
 * look at |bad|. */
struct cgn_buf {
	char *p;              /* Owned; NUL-terminated only after cgn_buf_z. */
	size_t n, cap, limit; /* A limit of 0 means SIZE_MAX / 2. */
	bool bad;             /* An append did not fit; further appends do nothing. */
};

/* Free the bytes; the buffer is then empty and usable, with the same limit. */
void cgn_buf_fini(struct cgn_buf *b);
/* Make room for |n| more bytes and return its start; NULL, with the buffer bad, when there is no memory or
 * the limit is reached. Call cgn_buf_grew(b, written) afterwards. */
char *cgn_buf_room(struct cgn_buf *b, size_t n);
void cgn_buf_grew(struct cgn_buf *b, size_t n);
void cgn_buf_add(struct cgn_buf *b, const void *p, size_t n);
void cgn_buf_str(struct cgn_buf *b, struct cgn_str s);
void cgn_buf_putz(struct cgn_buf *b, const char *z);
void cgn_buf_char(struct cgn_buf *b, char c);
void cgn_buf_u64(struct cgn_buf *b, uint64_t v); /* Append decimal digits. */
void cgn_buf_fmt(struct cgn_buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Append |s| as text that cannot change a terminal or begin a new line: control characters (DEL and U+0080 to
 * U+009F too), the marks that change the direction of text, and bytes that are not UTF-8 become \x1b or \u202e.
 * A backslash of |s| stays as it is. */
void cgn_buf_shown(struct cgn_buf *b, struct cgn_str s);
/* Terminate the bytes with a NUL, which is not counted, and borrow them; "" when the buffer is bad. */
const char *cgn_buf_z(struct cgn_buf *b);
/* Give back room that is not used, if it is more than an eighth of the bytes. */
void cgn_buf_fit(struct cgn_buf *b);
/* Drop the first |n| bytes. */
void cgn_buf_eat(struct cgn_buf *b, size_t n);
/* Return a buffer over |cap| bytes (not 0) of the caller's: it never grows and is never given to
 * cgn_buf_fini. */
static inline struct cgn_buf cgn_buf_over(char *p, size_t cap)
{
	return (struct cgn_buf){.p = p, .cap = cap, .limit = cap};
}
static inline struct cgn_str cgn_buf_view(const struct cgn_buf *b)
{
	return (struct cgn_str){b->p, b->n};
}
