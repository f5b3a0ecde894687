/* SPDX-License-Identifier: Apache-2.0 */
/* cursor: read little-endian numbers and pieces of foreign bytes with a sticky error: read everything, then
 * check once. Writers append to a buffer, which has a sticky error too. */
#pragma once
#include <endian.h>

#include "base/core/buf.h"

struct cgn_cursor {
	const uint8_t *p;
	size_t n; /* Bytes left. */
	bool bad; /* A read was longer than the bytes left; every read since then returned zero. */
};
static inline struct cgn_cursor cgn_cursor_of(struct cgn_str s)
{
	return (struct cgn_cursor){(const uint8_t *)s.p, s.n, false};
}
/* Return the next |n| bytes, borrowed; NULL when fewer are left. */
static inline const uint8_t *cgn_cursor_take(struct cgn_cursor *c, size_t n)
{
	if (c->bad || n > c->n) {
		c->bad = true;
		c->n = 0;
		return NULL;
	}
	const uint8_t *at = c->p;
	c->p += n;
	c->n -= n;
	return at;
}
static inline void cgn_cursor_copy(struct cgn_cursor *c, void *to, size_t n)
{
	const uint8_t *at = cgn_cursor_take(c, n);
	if (at != NULL)
		memcpy(to, at, n);
	else
		memset(to, 0, n);
}
static inline struct cgn_str cgn_cursor_str(struct cgn_cursor *c, size_t n)
{
	const uint8_t *at = cgn_cursor_take(c, n);
	return (struct cgn_str){(const char *)at, at != NULL ? n : 0};
}
static inline uint8_t cgn_cursor_u8(struct cgn_cursor *c)
{
	uint8_t v;
	cgn_cursor_copy(c, &v, sizeof v);
	return v;
}
static inline uint16_t cgn_cursor_u16(struct cgn_cursor *c)
{
	uint16_t v;
	cgn_cursor_copy(c, &v, sizeof v);
	return le16toh(v);
}
static inline uint32_t cgn_cursor_u32(struct cgn_cursor *c)
{
	uint32_t v;
	cgn_cursor_copy(c, &v, sizeof v);
	return le32toh(v);
}
static inline uint64_t cgn_cursor_u64(struct cgn_cursor *c)
{
	uint64_t v;
	cgn_cursor_copy(c, &v, sizeof v);
	return le64toh(v);
}
/* True when there was no error and nothing is left. */
static inline bool cgn_cursor_end(const struct cgn_cursor *c)
{
	return !c->bad && c->n == 0;
}

static inline void cgn_put_u8(struct cgn_buf *b, uint8_t v)
{
	cgn_buf_add(b, &v, sizeof v);
}
static inline void cgn_put_u16(struct cgn_buf *b, uint16_t v)
{
	v = htole16(v);
	cgn_buf_add(b, &v, sizeof v);
}
static inline void cgn_put_u32(struct cgn_buf *b, uint32_t v)
{
	v = htole32(v);
	cgn_buf_add(b, &v, sizeof v);
}
static inline void cgn_put_u64(struct cgn_buf *b, uint64_t v)
{
	v = htole64(v);
	cgn_buf_add(b, &v, sizeof v);
}
