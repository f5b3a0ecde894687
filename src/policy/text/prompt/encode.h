/* SPDX-License-Identifier: Apache-2.0 */
/* encode: turns a rendered prompt into a chain of its tokens, and tokenises only the new part.
 *
 * The text is split where a tokenizer may be cut (tokenizer_cuts), at least ENCODE_SEGMENT bytes apart, and
 * at media. Texts with the same beginning are split at the same places. The state of the chain after each
 * segment is cached in a promptcache, and after the whole text when much of it has no cut. Keys are BLAKE3
 * chained from segment to segment, so a prompt is hashed once, however long the conversation is.
 *
 * There are four steps, so that the third can run on another thread: prompt_encode_open,
 * prompt_encode_resume, prompt_encode_run, prompt_encode_finish. Memory: 24 bytes a segment, 4 a token, and
 * the tokenizer's. Of a text longer than its chain can be, only the front is used. Pure. */
#pragma once
#include "policy/text/prefix/promptcache.h"
#include "policy/text/prompt/prompt.h"
#include "policy/text/tokenizer/tokenizer.h"

#define ENCODE_SEGMENT 512
/* Assumed maximum of bytes per token; a text with longer tokens has a shorter chain. */
#define ENCODE_TOKEN_BYTES 16

struct prompt_encode_segment {
	size_t start, end; /* Offsets in the text. */
	int medium;        /* The medium before the segment; -1: none. */
	size_t n_ids;      /* Set by prompt_encode_run. */
};
struct encode {
	const struct tokenizer *tokenizer;
	struct cgn_str text;                    /* Borrowed. */
	const struct digest *media;             /* Borrowed. */
	unsigned flags;                         /* TOKENIZER_SPECIALS or 0. */
	bool cut;                               /* The text continues after the part that is used. */
	struct prompt_encode_segment *segments; /* Owned. */
	struct promptcache_key *keys;           /* Owned; keys of the first n_keys segments. */
	size_t n_segments, n_keys, known, cap;
	size_t max_ids;
	struct tokenizer_ids ids; /* Ids of the segments that were not cached. */
};

struct prompt_encode_ask {
	const struct tokenizer *tokenizer; /* Must outlive the encode. */
	/* Root of the keys: the chain's root, and everything else that its tokens and blocks depend on. */
	struct digest root;
	struct cgn_str text;
	bool specials; /* Add the tokenizer's special tokens around the text. */
	/* Media whose marks (PROMPT_MEDIUM) are in the text, in order; one without a mark comes last. */
	const struct digest *media;
	size_t n_media;
	size_t max_ids; /* Maximum of ids in the chain. */
};
/* Call prompt_encode_close afterwards. */
void prompt_encode_open(struct encode *e, const struct prompt_encode_ask *ask);
void prompt_encode_close(struct encode *e);
/* Set |chain|, just started, to the cached state. Return the bytes left to tokenise. */
size_t prompt_encode_resume(struct encode *e, struct promptcache *cache, struct prefix_tokens *chain);
/* Tokenise the rest. Any thread. Fails as tokenizer_encode does. */
CGN_RC prompt_encode_run(struct encode *e, struct tokenizer_work *work, struct cgn_err *err);
/* Complete |chain| and cache the new states. */
void prompt_encode_finish(struct encode *e, struct promptcache *cache, struct prefix_tokens *chain);
