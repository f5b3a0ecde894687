/* SPDX-License-Identifier: Apache-2.0 */
/* core, the room: strings, buffers, arenas, lists and errors, which all code uses. */
#include "base/core/str.h"

#include <stdlib.h>

#include <sys/uio.h>

#include "base/core/err.h"

static char char_lower(char c)
{
	return c >= 'A' && c <= 'Z' ? (char)(c | 0x20) : c;
}

bool cgn_str_eq_nocase(struct cgn_str a, struct cgn_str b)
{
	if (a.n != b.n)
		return false;
	for (size_t i = 0; i < a.n; i++)
		if (char_lower(a.p[i]) != char_lower(b.p[i]))
			return false;
	return true;
}

int cgn_str_order(struct cgn_str a, struct cgn_str b)
{
	size_t n = a.n < b.n ? a.n : b.n;
	int order = n > 0 ? memcmp(a.p, b.p, n) : 0;
	return order != 0 ? order : (a.n > b.n) - (a.n < b.n);
}

struct cgn_str cgn_str_trim(struct cgn_str s)
{
	while (s.n > 0 && (s.p[0] == ' ' || s.p[0] == '\t')) {
		s.p++;
		s.n--;
	}
	while (s.n > 0 && (s.p[s.n - 1] == ' ' || s.p[s.n - 1] == '\t'))
		s.n--;
	return s;
}

struct cgn_str cgn_str_split(struct cgn_str *rest, char sep)
{
	struct cgn_str left = *rest;
	const char *at = rest->n > 0 ? memchr(rest->p, sep, rest->n) : NULL;
	if (at == NULL) {
		*rest = (struct cgn_str){NULL, 0};
		return left;
	}
	left.n = (size_t)(at - left.p);
	rest->p = at + 1;
	rest->n -= left.n + 1;
	return left;
}

bool cgn_str_u64(struct cgn_str s, uint64_t *out)
{
	uint64_t v = 0;
	if (s.n == 0)
		return false;
	for (size_t i = 0; i < s.n; i++) {
		if (s.p[i] < '0' || s.p[i] > '9')
			return false;
		if (__builtin_mul_overflow(v, 10U, &v) ||
			__builtin_add_overflow(v, (uint64_t)(s.p[i] - '0'), &v))
			return false;
	}
	*out = v;
	return true;
}

bool cgn_str_copyz(char *dst, size_t cap, struct cgn_str s)
{
	CGN_MUST(cap > 0);
	size_t n = s.n < cap ? s.n : cap - 1;
	if (n > 0)
		memcpy(dst, s.p, n);
	dst[n] = '\0';
	return n == s.n;
}

char *cgn_str_dupz(struct cgn_str s)
{
	char *z = malloc(s.n + 1);
	if (z == NULL && s.n < CGN_SURE_BYTES)
		cgn_out_of_memory(s.n + 1, CGN_HERE);
	if (z == NULL)
		return NULL;
	if (s.n > 0)
		memcpy(z, s.p, s.n);
	z[s.n] = '\0';
	return z;
}

/* Computes the Levenshtein table row by row on the stack; names longer than 63 bytes never match. */
size_t cgn_str_distance(struct cgn_str a, struct cgn_str b, size_t max)
{
	size_t line[64];
	if (a.n >= CGN_COUNT(line) || b.n >= CGN_COUNT(line))
		return max + 1;
	for (size_t j = 0; j <= b.n; j++)
		line[j] = j;
	for (size_t i = 1; i <= a.n; i++) {
		size_t diagonal = line[0];
		line[0] = i;
		for (size_t j = 1; j <= b.n; j++) {
			size_t change = diagonal + (char_lower(a.p[i - 1]) != char_lower(b.p[j - 1]));
			size_t gap = (line[j] < line[j - 1] ? line[j] : line[j - 1]) + 1;
			diagonal = line[j];
			line[j] = change < gap ? change : gap;
		}
	}
	return line[b.n] <= max ? line[b.n] : max + 1;
}

static size_t utf8_one(const unsigned char *p, size_t n)
{
	if (p[0] < 0x80)
		return 1;
	size_t len = p[0] >= 0xf0 && p[0] <= 0xf4 ? 4
		: p[0] >= 0xe0 && p[0] < 0xf0     ? 3
		: p[0] >= 0xc2 && p[0] < 0xe0     ? 2
						  : 0;
	if (len == 0 || len > n)
		return 0;
	unsigned char lo = 0x80, hi = 0xbf;
	if (p[0] == 0xe0)
		lo = 0xa0;
	else if (p[0] == 0xed)
		hi = 0x9f;
	else if (p[0] == 0xf0)
		lo = 0x90;
	else if (p[0] == 0xf4)
		hi = 0x8f;
	if (p[1] < lo || p[1] > hi)
		return 0;
	for (size_t i = 2; i < len; i++)
		if ((p[i] & 0xc0) != 0x80)
			return 0;
	return len;
}

/* Count the bytes of a run of common three-byte characters, which most Asian scripts use. E0 and ED have
 * rules of their own. */
static size_t utf8_threes(const unsigned char *p, size_t n)
{
	size_t i = 0;
	while (n - i >= 3 && p[i] > 0xe0 && p[i] < 0xf0 && p[i] != 0xed &&
		((p[i + 1] ^ 0x80) | (p[i + 2] ^ 0x80)) < 0x40)
		i += 3;
	return i;
}

size_t cgn_utf8_prefix(const void *bytes, size_t n)
{
	const unsigned char *p = bytes;
	size_t i = 0;
	for (size_t step; i < n; i += step) {
		uint64_t word;
		if (i + sizeof word <= n) {
			memcpy(&word, p + i, sizeof word);
			if ((word & UINT64_C(0x8080808080808080)) == 0) {
				step = sizeof word;
				continue;
			}
		}
		step = utf8_threes(p + i, n - i);
		if (step == 0)
			step = utf8_one(p + i, n - i);
		if (step == 0)
			break;
	}
	return i;
}

bool cgn_utf8_valid(const void *bytes, size_t n)
{
	return cgn_utf8_prefix(bytes, n) == n;
}

size_t cgn_utf8_write(char out[4], uint32_t code)
{
	static const unsigned char lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
	size_t n = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
	for (size_t i = n - 1; i > 0; i--, code >>= 6)
		out[i] = (char)(0x80 | (code & 0x3f));
	out[0] = (char)(lead[n] | code);
	return n;
}

/* Match one character with the [set] at |*i|, and move |*i| behind the set. */
static bool glob_set_has(struct cgn_str p, size_t *i, unsigned char ch)
{
	size_t at = *i + 1;
	bool not = at < p.n && p.p[at] == '^', found = false;
	at += not;
	for (; at < p.n && p.p[at] != ']'; at++) {
		if (p.p[at] == '\\' && at + 1 < p.n)
			at++;
		unsigned char low = (unsigned char)p.p[at], high = low;
		if (at + 2 < p.n && p.p[at + 1] == '-') {
			high = (unsigned char)p.p[at + 2];
			at += 2;
		}
		found |= low <= high ? ch >= low && ch <= high : ch >= high && ch <= low;
	}
	*i = at < p.n ? at + 1 : at;
	return found != not;
}

/* Match one character with the pattern's element at |*i|, and move |*i| behind the element. */
static bool glob_one_fits(struct cgn_str p, size_t *i, char ch)
{
	if (p.p[*i] == '[')
		return glob_set_has(p, i, (unsigned char)ch);
	if (p.p[*i] == '?') {
		++*i;
		return true;
	}
	*i += p.p[*i] == '\\' && *i + 1 < p.n;
	return p.p[(*i)++] == ch;
}

bool cgn_str_glob(struct cgn_str pattern, struct cgn_str s)
{
	size_t i = 0, at = 0, star = SIZE_MAX, retry = 0;
	while (at < s.n) {
		if (i < pattern.n && pattern.p[i] == '*') {
			star = ++i;
			retry = at;
			continue;
		}
		if (i < pattern.n && glob_one_fits(pattern, &i, s.p[at])) {
			at++;
			continue;
		}
		if (star == SIZE_MAX)
			return false;
		i = star; /* The last star takes one more character. */
		at = ++retry;
	}
	while (i < pattern.n && pattern.p[i] == '*')
		i++;
	return i == pattern.n;
}

size_t cgn_iov_bytes(const struct iovec *iov, size_t n)
{
	size_t sum = 0;
	for (size_t i = 0; i < n; i++)
		sum += iov[i].iov_len;
	return sum;
}
