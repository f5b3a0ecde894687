/* SPDX-License-Identifier: Apache-2.0 */
/* str: bytes with a length, borrowed. NUL-terminated strings exist only at syscall edges. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct iovec;

struct cgn_str {
	const char *p; /* May be NULL when n is 0. */
	size_t n;
};

#define CGN_STR(lit)   ((struct cgn_str){"" lit, sizeof(lit) - 1})
#define CGN_STR_ARG(s) (int)(s).n, (s).p /* For "%.*s". */

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
bool cgn_str_eq_nocase(struct cgn_str a, struct cgn_str b); /* Ignores the case of ASCII letters only. */
/* Compare byte by byte: less than, equal to or greater than 0, as memcmp; a prefix comes first. */
int cgn_str_order(struct cgn_str a, struct cgn_str b);
struct cgn_str cgn_str_trim(struct cgn_str s); /* Removes SP and HTAB at both ends. */
/* Split at the first |sep|: return the left part and set |*rest| to the bytes after |sep|; rest->p is NULL
 * once everything was returned. */
struct cgn_str cgn_str_split(struct cgn_str *rest, char sep);
/* Read all of |s| as a decimal number without sign or space; false on anything else and on overflow. */
bool cgn_str_u64(struct cgn_str s, uint64_t *out);
/* Copy into |dst| and terminate with a NUL; false when |s| was cut to fit. */
bool cgn_str_copyz(char *dst, size_t cap, struct cgn_str s);
/* Return a heap copy. NULL, without memory: only of more than CGN_SURE_BYTES; for less, the program ends. */
char *cgn_str_dupz(struct cgn_str s);
/* The same of a text that may be NULL, whose copy is NULL. */
static inline char *cgn_str_dup_maybe(const char *z)
{
	return z != NULL ? cgn_str_dupz(cgn_str_of(z)) : NULL;
}
/* Return the edit distance of |a| and |b|, for "did you mean"; any number above |max| when it is greater than
 * |max|. */
size_t cgn_str_distance(struct cgn_str a, struct cgn_str b, size_t max);
/* Return the length of the leading part that is valid UTF-8. */
size_t cgn_utf8_prefix(const void *p, size_t n);
/* True for valid UTF-8 (RFC 3629: no surrogates, no overlong forms). */
bool cgn_utf8_valid(const void *p, size_t n);
/* Write the code point |code| in UTF-8; return the number of bytes, at most 4. */
size_t cgn_utf8_write(char out[4], uint32_t code);
/* Does |s| match |pattern| by Redis' rules: * ? [a-z] [^...] \x? At most pattern.n times s.n steps. */
bool cgn_str_glob(struct cgn_str pattern, struct cgn_str s);
/* Return the sum of the lengths of |n| pieces. */
size_t cgn_iov_bytes(const struct iovec *iov, size_t n);
