/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer, inside: text -> fragments between added tokens (added.c) -> normalizers (normal.c) -> stages of
 * splitting (stage.c) -> words -> ids (merge.c). */
#pragma once
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/core/arena.h"
#include "base/core/buf.h"
#include "base/json/json.h"
#include "policy/text/tokenizer/tokenizer.h"
#include "policy/text/tokenizer/unicode_priv.h"

#define TOK_MAX_STAGES   64
#define TOK_MAX_SPECIALS 64

/* ---- merge.c: words to ids ---- */

struct tok_merge {
	uint32_t left, right, rank, to; /* left == TOK_NONE: free. */
};
struct tok_model {
	/* Tokens that a word may hold: as bytes when |bytes|, otherwise as characters. */
	struct tok_names names;
	struct tok_names odd; /* When |bytes|: tokens that no word can hold. */
	struct tok_merge *merges;
	size_t n_merges, merge_mask;
	uint32_t start[256];    /* Id of a byte, or of an ASCII character; TOK_NONE. */
	uint32_t byte_ids[256]; /* Ids of "<0x00>" and so on; TOK_NONE. */
	uint32_t unk, n_ids;    /* unk: TOK_NONE without an unknown token. */
	bool bytes, ignore_merges, fuse_unk, byte_fallback;
	bool mark_breaks; /* No token holds U+2581 behind another character: a word may be cut there. */
};
struct tok_room { /* Memory for one word. */
	uint32_t *sym;
	size_t cap;
};
void tok_merge_put(struct tok_model *m, uint32_t left, uint32_t right, uint32_t rank, uint32_t to);
CGN_RC tok_word(const struct tok_model *m, struct tok_room *room, struct cgn_str word,
	struct tokenizer_ids *out, struct cgn_err *err);
CGN_RC tok_ids_room(struct tokenizer_ids *ids, size_t n);

/* ---- regex.c ---- */

struct tok_regex {
	pcre2_code *code;
	bool shadow; /* The pattern must see tok_shadow's text. */
};
struct tok_matcher {
	pcre2_match_data *data;
	pcre2_match_context *limits;
	pcre2_jit_stack *stack;
};
/* |pattern|: Oniguruma's language; |at| names the place in errors. */
CGN_RC tok_regex_make(struct cgn_str pattern, const char *at, struct tok_regex *out, struct cgn_err *err);
/* |pattern|: our own, PCRE2's. */
CGN_RC tok_regex_own(struct cgn_str pattern, struct tok_regex *out, struct cgn_err *err);
void tok_regex_fini(struct tok_regex *re);
size_t tok_regex_bytes(const struct tok_regex *re);
void tok_matcher_init(struct tok_matcher *m);
void tok_matcher_fini(struct tok_matcher *m);
/* Find the next match at or behind |from|; *end == 0: there is none. TOO_LARGE: the match limit was
 * reached. */
CGN_RC tok_regex_next(const struct tok_regex *re, struct tok_matcher *m, struct cgn_str text, size_t from,
	size_t *start, size_t *end, struct cgn_err *err);

/* ---- normal.c ---- */

enum tok_normal_kind {
	NORMAL_UNICODE,
	NORMAL_LOWERCASE,
	NORMAL_REPLACE,
	NORMAL_REPLACE_REGEX,
	NORMAL_PREPEND,
	NORMAL_STRIP,
	NORMAL_STRIP_ACCENTS
};
struct tok_normal {
	enum tok_normal_kind kind;
	bool compose, compat;    /* UNICODE */
	bool left, right;        /* STRIP */
	struct cgn_str from, to; /* REPLACE, PREPEND (to) */
	struct tok_regex regex;
};
struct tok_scratch {
	struct cgn_buf flip, flop;
	int32_t *points; /* For utf8proc. */
	size_t n_points;
};
/* Run |*text| through all of |v|; the result is borrowed from |s| or is the text itself. */
CGN_RC tok_normalize(const struct tok_normal *v, size_t n, struct tok_scratch *s, struct tok_matcher *m,
	struct cgn_str *text, struct cgn_err *err);
void tok_scratch_fini(struct tok_scratch *s);

/* ---- stage.c ---- */

enum tok_behavior {
	SPLIT_REMOVED,
	SPLIT_ISOLATED,
	SPLIT_MERGED_WITH_PREVIOUS,
	SPLIT_MERGED_WITH_NEXT,
	SPLIT_CONTIGUOUS
};
enum tok_stage_kind { STAGE_REGEX, STAGE_LITERAL, STAGE_SPACE_PREFIX, STAGE_MARK };
enum tok_prepend { PREPEND_ALWAYS, PREPEND_FIRST, PREPEND_NEVER };
struct tok_stage {
	enum tok_stage_kind kind;
	enum tok_behavior behavior;
	bool invert;
	struct tok_regex regex;
	struct cgn_str literal;   /* LITERAL: the text to split at; MARK: the replacement of a space. */
	enum tok_prepend prepend; /* MARK */
};
struct tok_piece {
	const char *p, *shadow; /* |shadow|: the text as patterns see it; NULL: not made yet. */
	size_t n;
	bool first; /* The piece begins where the whole text does. */
};

/* ---- added.c ---- */

struct tok_added {
	struct cgn_str content, match; /* |match|: the normalized form when |normalized|. */
	uint32_t id;
	bool special, lstrip, rstrip, single_word, normalized;
};
struct tok_added_set {
	struct tok_added **v; /* Sorted by |match|. */
	size_t n;
	uint32_t first[257]; /* Index of the first token that begins with byte b: v[first[b]]. */
};
struct tok_span { /* An added token that was found, including the blanks that it strips. */
	const struct tok_added *token;
	size_t start, stop;
	size_t end; /* End of the match without blanks. */
};
struct tok_finder {
	const struct tokenizer *t;
	const struct tok_added_set *set;
	struct cgn_str text;
	size_t at, done;
};
CGN_RC tok_added_set_init(struct tok_added_set *s, struct tok_added *all, size_t n, bool normalized,
	struct cgn_arena *a);
bool tok_find(struct tok_finder *f, struct tok_span *out);

struct tokenizer {
	uint32_t tag;
	struct cgn_arena arena;
	struct tok_model model;
	struct tok_added *added;
	size_t n_added;
	struct tok_names added_names;
	struct tok_added_set exact, normal; /* Matched before and behind the normalizers. */
	bool any_single_word, any_fffd;
	struct tok_normal *normals;
	size_t n_normals;
	struct tok_stage *stages;
	size_t n_stages;
	uint32_t head[TOK_MAX_SPECIALS], tail[TOK_MAX_SPECIALS];
	size_t n_head, n_tail;
};

/* The ids that a word had the last time: one cache line. */
#define TOK_CACHE_KEY 32
#define TOK_CACHE_IDS 6
struct tok_cached {
	uint32_t hash;
	uint8_t len, n;
	uint16_t unused;
	char key[TOK_CACHE_KEY];
	uint32_t ids[TOK_CACHE_IDS];
};
#define TOK_CACHE_N (TOKENIZER_WORK_BYTES / sizeof(struct tok_cached))

struct tokenizer_work {
	uint32_t tag;
	const struct tokenizer *t;
	struct tok_cached *cache;
	void *cache_memory; /* The allocation that holds the cache. */
	struct tok_matcher matcher;
	struct tok_scratch scratch;
	struct tok_room room;
	struct cgn_buf lossy;
	/* Each stage that rewrites text has its own. */
	struct cgn_buf text[TOK_MAX_STAGES + 1], shadow[TOK_MAX_STAGES + 1];
};

/* stage.c: run |piece| through the stages from |stage| on; the ids of its words go to |out|. */
CGN_RC tok_stages(const struct tokenizer *t, struct tokenizer_work *w, size_t stage, struct tok_piece piece,
	struct tokenizer_ids *out, struct cgn_err *err);
