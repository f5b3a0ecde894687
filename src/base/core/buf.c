/* SPDX-License-Identifier: Apache-2.0 */
#include "base/core/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/core/err.h"
#include "base/unlikely/unlikely.h"

void cgn_buf_fini(struct cgn_buf *b)
{
	free(b->p);
	*b = (struct cgn_buf){.limit = b->limit};
}

char *cgn_buf_room(struct cgn_buf *b, size_t n)
{
	size_t limit = b->limit != 0 ? b->limit : SIZE_MAX / 2;
	if (b->bad || n > limit - b->n) {
		b->bad = true;
		return NULL;
	}
	if (b->cap - b->n >= n)
		return b->p + b->n;
	size_t want = b->cap < 64 ? 64 : b->cap + b->cap / 2;
	want = want < b->n + n || unlikely_way(UNLIKELY_buf_exact) ? b->n + n : want;
	want = want > limit ? limit : want;
	char *grown = realloc(b->p, want);
	if (grown == NULL && want <= CGN_SURE_BYTES)
		cgn_out_of_memory(want, CGN_HERE);
	if (grown == NULL) {
		b->bad = true;
		return NULL;
	}
	b->p = grown;
	b->cap = want;
	return b->p + b->n;
}

void cgn_buf_fit(struct cgn_buf *b)
{
	if (b->cap - b->n <= b->n / 8 || b->n == 0)
		return;
	char *fit = realloc(b->p, b->n);
	if (fit == NULL)
		return;
	b->p = fit;
	b->cap = b->n;
}

void cgn_buf_grew(struct cgn_buf *b, size_t n)
{
	CGN_MUST(n <= b->cap - b->n);
	b->n += n;
}

void cgn_buf_add(struct cgn_buf *b, const void *p, size_t n)
{
	if (n == 0)
		return;
	char *to = cgn_buf_room(b, n);
	if (to == NULL)
		return;
	memcpy(to, p, n);
	b->n += n;
}

void cgn_buf_str(struct cgn_buf *b, struct cgn_str s)
{
	cgn_buf_add(b, s.p, s.n);
}

void cgn_buf_putz(struct cgn_buf *b, const char *z)
{
	cgn_buf_add(b, z, strlen(z));
}

void cgn_buf_char(struct cgn_buf *b, char c)
{
	cgn_buf_add(b, &c, 1);
}

void cgn_buf_u64(struct cgn_buf *b, uint64_t v)
{
	char digits[20];
	size_t at = sizeof digits;
	do
		digits[--at] = (char)('0' + v % 10);
	while ((v /= 10) != 0);
	cgn_buf_add(b, digits + at, sizeof digits - at);
}

void cgn_buf_fmt(struct cgn_buf *b, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	va_list again;
	va_copy(again, ap);
	int n = vsnprintf(NULL, 0, fmt, ap);
	va_end(ap);
	char *to = n < 0 ? NULL : cgn_buf_room(b, (size_t)n + 1);
	if (to != NULL) {
		(void)vsnprintf(to, (size_t)n + 1, fmt, again);
		b->n += (size_t)n;
	}
	va_end(again);
}

/* U+200E to U+200F, U+2028 to U+202E and U+2066 to U+2069: E2 80 8E ... E2 81 A9. */
static bool turns_text(const unsigned char *p)
{
	if (p[0] != 0xe2)
		return false;
	return p[1] == 0x80 ? (p[2] >= 0x8e && p[2] <= 0x8f) || (p[2] >= 0xa8 && p[2] <= 0xae)
			    : p[1] == 0x81 && p[2] >= 0xa6 && p[2] <= 0xa9;
}

/* Return the length of the character at |p| if it can be shown as it is, else 0. */
static size_t shown_length(const unsigned char *p, size_t n)
{
	if (p[0] < 0x80)
		return p[0] >= ' ' && p[0] != 0x7f;
	for (size_t len = 2; len <= 4 && len <= n; len++)
		if (cgn_utf8_prefix(p, len) == len)
			return (len == 2 && p[0] == 0xc2 && p[1] < 0xa0) || (len == 3 && turns_text(p)) ? 0
													: len;
	return 0;
}

void cgn_buf_shown(struct cgn_buf *b, struct cgn_str s)
{
	const unsigned char *p = (const unsigned char *)s.p, *end = p + s.n;
	while (p < end) {
		size_t left = (size_t)(end - p), len = shown_length(p, left);
		if (len > 0) {
			cgn_buf_add(b, p, len);
			p += len;
		} else if (left >= 3 && turns_text(p)) {
			cgn_buf_fmt(b, "\\u20%02x", p[1] == 0x80 ? p[2] & 0x3fU : (p[2] & 0x3fU) | 0x40U);
			p += 3;
		} else {
			cgn_buf_fmt(b, "\\x%02x", *p++);
		}
	}
}

const char *cgn_buf_z(struct cgn_buf *b)
{
	char *end = cgn_buf_room(b, 1);
	if (end == NULL)
		return "";
	*end = '\0';
	return b->p;
}

void cgn_buf_eat(struct cgn_buf *b, size_t n)
{
	CGN_MUST(n <= b->n);
	b->n -= n;
	if (b->n > 0)
		memmove(b->p, b->p + n, b->n);
}
