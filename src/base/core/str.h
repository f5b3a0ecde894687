/* SPDX-License-Identifier: Apache-2.0 */
/* str: bytes with a length, borrowed. NUL-terminated strings exist only at syscall edges. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct cgn_str {
	const char *p; /* may be NULL when n == 0 */
	size_t n;
};

#define CGN_STR(lit)   ((struct cgn_str){"" lit, sizeof(lit) - 1})
#define CGN_STR_ARG(s) (int)(s).n, (s).p /* for "%.*s" */

static inline struct cgn_str cgn_str_of(const char *z)
{
	return (struct cgn_str){z, z != NULL ? strlen(z) : 0};
}
static inline bool cgn_str_eq(struct cgn_str a, struct cgn_str b)
{
	return a.n == b.n && (a.n == 0 || memcmp(a.p, b.p, a.n) == 0);
}
static inline bool cgn_str_is(struct cgn_str a, const char *z)
{
	return cgn_str_eq(a, cgn_str_of(z));
}
static inline bool cgn_str_starts(struct cgn_str s, const char *prefix)
{
	size_t n = strlen(prefix);
	return s.n >= n && memcmp(s.p, prefix, n) == 0;
}
bool cgn_str_eq_nocase(struct cgn_str a, struct cgn_str b); /* ASCII only */
struct cgn_str cgn_str_trim(struct cgn_str s);              /* SP and HTAB at both ends */
/* Split at the first |sep|: returns the left part and moves |*rest| behind it; rest->p == NULL once
 * exhausted. */
struct cgn_str cgn_str_split(struct cgn_str *rest, char sep);
/* Whole string as a decimal number, no sign, no space; false on anything else or overflow. */
bool cgn_str_u64(struct cgn_str s, uint64_t *out);
/* Fixed buffer, always terminated; returns false when it had to cut. */
bool cgn_str_copyz(char *dst, size_t cap, struct cgn_str s);
/* heap copies; NULL on exhaustion */
char *cgn_str_dupz(struct cgn_str s);
/* 1-based; edit distance for "did you mean", bounded: returns > max when further away. */
size_t cgn_str_distance(struct cgn_str a, struct cgn_str b, size_t max);
/* Length of the leading part that is valid UTF-8. */
size_t cgn_utf8_prefix(const void *p, size_t n);
/* Valid UTF-8 (RFC 3629: no surrogates, no overlongs)? */
bool cgn_utf8_valid(const void *p, size_t n);
