/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer unicode: characters and their kinds, as the reference library's tables have them; and strings to
 * ids. */
#pragma once
#include "base/core/buf.h"
#include "base/core/err.h"
#include "base/core/str.h"
#include "base/table/table.h"

#define TOK_NONE UINT32_MAX

/* The code point at |p|, and its length; a malformed one is U+FFFD of length 1. |p| < |end|. */
uint32_t tok_char_at(const char *p, const char *end, size_t *n);
/* Return the code point that ends at |p|, or U+FFFD when none does; |from| < |p|. */
uint32_t tok_char_before(const char *from, const char *p, size_t *n);
bool tok_is_space(uint32_t c); /* Unicode White_Space. */
/* Word character for single_word: letters, marks, digits, connectors, joiners. */
bool tok_is_word(uint32_t c);
bool tok_is_inert(uint32_t c); /* Newer than the normalizers' tables (unicode.def). */
/* Call |put| for punctuation that the Punctuation pre-tokenizer does not split at. */
void tok_each_plain(struct cgn_buf *b, void (*put)(struct cgn_buf *b, uint32_t first, uint32_t last));
void tok_put_lower(struct cgn_buf *b, uint32_t c);
void tok_put_char(struct cgn_buf *b, uint32_t c);
/* Return |text| as a split pattern should see it: newer characters replaced by older ones of their kind and
 * length. The result is |text.p| or the bytes of |b|. */
const char *tok_shadow(struct cgn_str text, struct cgn_buf *b);
/* Does tok_shadow leave all characters of the range alone and produce none of them? */
bool tok_range_is_steady(uint32_t first, uint32_t last);
/* Append |text| with each maximal ill-formed part replaced by U+FFFD. */
void tok_put_lossy(struct cgn_buf *b, struct cgn_str text);

/* ---- names.c: strings to ids ---- */

struct tok_name {
	uint32_t off, len, id;
};
struct tok_names {
	struct cgn_buf text;
	struct tok_name *v;
	struct table table; /* Indices of |v|. */
	size_t n, cap;
};
/* Make room for |n| names in all. Zeroed memory has none. */
CGN_RC tok_names_reserve(struct tok_names *s, size_t n);
void tok_names_fini(struct tok_names *s);
/* When a name is given twice, its id is the last one. */
CGN_RC tok_names_put(struct tok_names *s, struct cgn_str name, uint32_t id);
uint32_t tok_names_get(const struct tok_names *s, struct cgn_str name); /* Returns TOK_NONE when absent. */
struct cgn_str tok_names_text(const struct tok_names *s, size_t i);
size_t tok_names_bytes(const struct tok_names *s);
/* For words of any length; reads no byte behind |n|. */
uint64_t tok_hash(const void *p, size_t n);
