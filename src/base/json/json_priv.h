/* SPDX-License-Identifier: Apache-2.0 */
/* json, inside: scans over many bytes at a time, shared by the parser, the walkers and the writer. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "base/json/json.h"

static inline bool json_is_space(char c)
{
	return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static inline bool json_is_digit(char c)
{
	return c >= '0' && c <= '9';
}

/* True for a byte that must be escaped in a string. */
static inline bool json_is_special(char c)
{
	return (unsigned char)c < 0x20 || c == '"' || c == '\\';
}

/* Return the first special byte in [p, end), or |end|. Sets |*wide| when a byte before it is not ASCII; a
 * byte after it in the same block may set |*wide| too, which costs the caller a needless check. Reads nothing
 * at or after |end|. */
static inline const char *json_plain_end(const char *p, const char *end, bool *wide)
{
#ifdef __SSE2__
	const __m128i quote = _mm_set1_epi8('"'), slash = _mm_set1_epi8('\\'), control = _mm_set1_epi8(0x1f);
	for (; end - p >= 16; p += 16) {
		__m128i block = _mm_loadu_si128((const __m128i *)(const void *)p);
		__m128i hit = _mm_or_si128(_mm_cmpeq_epi8(block, quote), _mm_cmpeq_epi8(block, slash));
		hit = _mm_or_si128(hit, _mm_cmpeq_epi8(_mm_max_epu8(block, control), control));
		*wide |= _mm_movemask_epi8(block) != 0;
		int mask = _mm_movemask_epi8(hit);
		if (mask != 0)
			return p + __builtin_ctz((unsigned)mask);
	}
#else
	/* Skip words without a special byte. The last word is examined byte by byte, so that no byte order is
	 * assumed. */
	const uint64_t ones = UINT64_C(0x0101010101010101), tops = ones << 7;
	for (uint64_t w; end - p >= 8; p += 8) {
		memcpy(&w, p, sizeof w);
		uint64_t quote = w ^ ones * '"', slash = w ^ ones * '\\';
		*wide |= (w & tops) != 0;
		if ((((quote - ones) & ~quote) | ((slash - ones) & ~slash) | ((w - ones * 0x20) & ~w)) & tops)
			break;
	}
#endif
	for (; p < end && !json_is_special(*p); p++)
		*wide |= (unsigned char)*p >= 0x80;
	return p;
}

/* Return the first of []{}" in [p, end), or |end|: the bytes at which a walker stops inside a parsed
 * container. */
static inline const char *json_mark_end(const char *p, const char *end)
{
#ifdef __SSE2__
	const __m128i quote = _mm_set1_epi8('"'), bit = _mm_set1_epi8(0x20), open = _mm_set1_epi8('{'),
		      close = _mm_set1_epi8('}');
	for (; end - p >= 16; p += 16) {
		__m128i block = _mm_loadu_si128((const __m128i *)(const void *)p);
		__m128i bracket = _mm_or_si128(block, bit); /* [ and ] become { and } */
		__m128i hit = _mm_or_si128(_mm_cmpeq_epi8(bracket, open), _mm_cmpeq_epi8(bracket, close));
		int mask = _mm_movemask_epi8(_mm_or_si128(hit, _mm_cmpeq_epi8(block, quote)));
		if (mask != 0)
			return p + __builtin_ctz((unsigned)mask);
	}
#endif
	while (p < end && *p != '"' && (*p | 0x20) != '{' && (*p | 0x20) != '}')
		p++;
	return p;
}

/* Return the closing quote of a parsed string whose opening quote is before |p|: the first quote with an even
 * number of backslashes before it. Quotes are rarer than escapes, so only quotes are searched for. */
static inline const char *json_string_end(const char *p, const char *end)
{
	const char *from = p;
	while ((p = memchr(p, '"', (size_t)(end - p))) != NULL) {
		const char *run = p;
		while (run > from && run[-1] == '\\')
			run--;
		if ((p - run) % 2 == 0)
			return p;
		p++;
	}
	return end;
}

/* Return the four hexadecimal digits after the 'u' at |p|; -1 when they are missing. */
int32_t json_hex_quad(const char *p, const char *end);
