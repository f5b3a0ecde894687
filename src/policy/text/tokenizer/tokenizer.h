/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer: a model's tokenizer.json (the format of Hugging Face's `tokenizers`, version "1.0"), and text as
 * the ids that library gives.
 *
 * Supported: model BPE (byte-level, or of characters with byte_fallback; ignore_merges, fuse_unk);
 * normalizers NFC NFD NFKC NFKD Lowercase Replace Prepend Strip StripAccents Sequence; pre_tokenizers
 * ByteLevel Split Digits Metaspace Punctuation WhitespaceSplit Sequence; post_processors ByteLevel
 * TemplateProcessing Sequence; added tokens with all their flags. Whatever else a file asks for is refused
 * when it is loaded, by name.
 *
 * Split patterns are Oniguruma's; the part of that language which means the same in PCRE2 is accepted.
 * Character classes follow the Unicode version that the library has (unicode.def), so an ideograph of Unicode
 * 15 is a letter here too.
 *
 * Bounds: a file of TOKENIZER_MAX_FILE bytes, TOKENIZER_MAX_TOKENS tokens and TOKENIZER_MAX_MERGES merges, a
 * text of TOKENIZER_MAX_TEXT bytes, of which TOKENIZER_MAX_WORD bytes may stand together without a place to
 * split; a normalized text is up to 4 times the longest text. A work holds TOKENIZER_WORK_BYTES for its word
 * cache. While it encodes it also holds a copy of the text for each stage that rewrites it (at most 4 *
 * TOKENIZER_MAX_TEXT each), 16 bytes for each character of the longest stretch that NFC and the like have to
 * look at, once decomposed, and 40 bytes for each byte of its longest word; of each the part beyond
 * TOKENIZER_WORK_KEEP / 4 is given back after the call.
 *
 * Time is O(n log n) in the longest word and otherwise linear for the patterns that models ship, with or
 * without PCRE2's JIT; a match that would take more than its limit of steps is an error, never another
 * split. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/err.h"
#include "base/core/str.h"

#define TOKENIZER_MAX_FILE   ((size_t)128 << 20)
#define TOKENIZER_MAX_TOKENS ((size_t)1 << 21)
#define TOKENIZER_MAX_MERGES ((size_t)1 << 22)
#define TOKENIZER_MAX_TEXT   ((size_t)64 << 20)
#define TOKENIZER_MAX_WORD   ((size_t)4 << 20)
#define TOKENIZER_WORK_BYTES ((size_t)4 << 20)
#define TOKENIZER_WORK_KEEP  ((size_t)4 << 20)

struct tokenizer; /* Immutable after loading; any thread. */

/* |json|: the text of a tokenizer.json, borrowed until the call returns. Fails with UNSUPPORTED (the message
 * names the component and its place: pre_tokenizer.pretokenizers[1].type "Foo"), INVALID (malformed; where),
 * TOO_LARGE, NO_MEMORY. */
CGN_RC tokenizer_load(struct cgn_str json, struct tokenizer **out, struct cgn_err *err);
void tokenizer_free(struct tokenizer **take);

/* Scratch memory and word cache of one thread, for one tokenizer, which must outlive it. */
struct tokenizer_work;
struct tokenizer_work *tokenizer_work_new(const struct tokenizer *t);
void tokenizer_work_free(struct tokenizer_work **take);

struct tokenizer_ids {
	uint32_t *ids;
	size_t n, cap;
};
void tokenizer_ids_fini(struct tokenizer_ids *ids); /* Free the list and leave an empty, usable one. */

enum {
	TOKENIZER_HEAD = 1,     /* Add the post-processor's tokens before the text (bos). */
	TOKENIZER_TAIL = 2,     /* Add the post-processor's tokens behind the text (eos). */
	TOKENIZER_SPECIALS = 3, /* Both: add_special_tokens=True. */
	/* |text| continues behind a cut (see tokenizer_cuts): a start-of-text marker is not added again. */
	TOKENIZER_CONTINUED = 4,
};

/* Append the ids of |text|. Each maximal ill-formed part of UTF-8 counts as U+FFFD, as in Python's
 * bytes.decode("utf-8", "replace"). Added tokens in the text are recognised. On failure |out| keeps its
 * previous content. TOO_LARGE: a bound above, or a split pattern reached its match limit; NO_MEMORY. */
CGN_RC tokenizer_encode(const struct tokenizer *t, struct tokenizer_work *w, struct cgn_str text,
	unsigned flags, struct tokenizer_ids *out, struct cgn_err *err);

/* Ends of added tokens at which |text| may be cut: for each such offset c (0 < c <= text.n) and any two texts
 * that continue alike,
 *   encode(text, HEAD|TAIL) == encode(text[:c], HEAD) + encode(text[c:], CONTINUED|TAIL). Ascending; the last
 *   |max| of them when there are more. Returns how many were written. Never allocates. */
size_t tokenizer_cuts(const struct tokenizer *t, struct cgn_str text, size_t *out, size_t max);

size_t tokenizer_vocab(const struct tokenizer *t); /* Highest id + 1. */
size_t tokenizer_bytes(const struct tokenizer *t); /* Bytes of memory held. */
/* Get the id of a token by its text ("<|begin_of_text|>"); added tokens come before the model's. */
bool tokenizer_token_id(const struct tokenizer *t, struct cgn_str token, uint32_t *id);
